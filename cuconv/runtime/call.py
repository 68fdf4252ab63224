"""A prepared call: the decisions made once for arrays of given layouts, and the way from arrays to launches or
results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import add, itemgetter, le
from typing import Any, Generic, NamedTuple

import numpy as np

from cuconv.runtime import checks, dependent, generated, machine
from cuconv.runtime.arrays import Facts, Family, Maker
from cuconv.runtime.definition import Definition
from cuconv.runtime.dependent import contexts
from cuconv.runtime.dtypes import BYTE
from cuconv.runtime.environment import CHECK, variable
from cuconv.runtime.errors import message
from cuconv.runtime.kernel import Enqueue, Replay, thread
from cuconv.runtime.layout import HOST, Layout, View
from cuconv.runtime.memo import SharedLimit
from cuconv.runtime.plan import NO_NUMBERS, Late, Launch, Operands
from cuconv.runtime.recogniser import Recogniser

SCRATCH = "scratch"
"""The name of a kernel's pointer to memory that a plan asks for."""


class Follower(NamedTuple):
    """A function of autograd that makes a call."""

    apply: Callable[..., Any]
    """Takes the addresses of the arrays and the inputs, None for absent ones; returns a result or several."""
    places: tuple[int, ...]
    """The places of the returned results among all results of the call."""


class Known(NamedTuple):
    """How arrays like those of an earlier call are handled."""

    options: tuple[Any, ...]
    outputs: tuple[str, ...] | None
    run: Callable[[tuple[Any, ...], Late], Sequence[Any] | None]
    """Runs the call on given arrays, with late numbers; returns None where they are not like those."""
    call: Call[Any]
    """The call that is run, or that `follower` makes, which may have other options."""
    follower: Follower | None = None
    """Makes the call where autograd follows it."""


Code = Callable[[Sequence[str]], str]
"""Makes code out of the code of each result of a call."""


def all_of(results: Sequence[str]) -> str:
    """The code of all results in order."""
    return f"({''.join(f'{result}, ' for result in results)})"


def _leaving(returned: Code) -> Code:
    """Code that returns what a public function returns."""
    return lambda results: f"return {returned(results)}"


_leaving_with_all = _leaving(all_of)


class Call(Generic[Operands]):
    """A checked and planned call. It follows from the facts of the arrays, so later calls with equal facts reuse it."""

    def __init__(
        self,
        definition: Definition[Operands],
        family: Family,
        outputs: tuple[str, ...] | None,
        options: tuple[Any, ...],
        facts: list[Facts | None],
    ) -> None:
        """Check and plan; raises before anything is launched or written."""
        self.definition, self.family, self.outputs, self.options, self.facts = (
            definition,
            family,
            outputs,
            options,
            facts,
        )
        self.names = names = definition.names(outputs)
        """The arguments that are arrays, in the order in which they are given."""
        layouts = [None if fact is None else family.layout(name, fact) for name, fact in zip(names, facts, strict=True)]
        checked, plan = definition.planned(family, dict(zip(names, layouts, strict=True)), options)
        leader = layouts[definition.place_of_leader]
        assert leader is not None
        self.operands = checked.operands
        self.device = leader.device
        self.on_host = leader.device == HOST
        self._given = [number for number, layout in enumerate(layouts) if layout is not None]
        """The places in the call of the arrays that are given, in the order of their addresses."""
        self._views = [layout for layout in layouts if layout is not None]
        self._spans = [layout.span for layout in self._views]
        self._begins, self._ends = zip(*self._spans, strict=True)
        written = [names.index(name) for name in (*checked.updated, *checked.outputs)]
        self._written = [self._given.index(number) for number in written if layouts[number] is not None]
        """Places of the written arrays among those that are given."""
        self._in_place: set[tuple[int, int]] = set()
        if checked.in_place:
            output, *sources = map(names.index, checked.in_place)
            alike = [each for each in sources if layouts[each] is not None and layouts[each] == layouts[output]]
            self._in_place = {(self._given.index(output), self._given.index(each)) for each in alike}
        self._marks_written = bool(self._written) and family.counts_writes
        self._count = len(definition.inputs)
        held = [names[number] for number in self._given]
        self._held = list(self._views)
        """The arguments for all memory of a call, in the order of its addresses."""
        self._held_spans: list[tuple[int, int]] = []
        self._makers: list[tuple[int, Maker]] = []
        """For each result that the caller has not given, its place among the results and the function that makes it."""
        for name, layout in checked.outputs.items():
            if layout is not None and name not in held:
                self._makers.append((names.index(name) - self._count, family.maker(layout)))
                held.append(name)
                self._held.append(layout)
        self._make_scratch: Maker | None = None
        if plan.scratch:
            whole, *regions = (
                Layout((plan.scratch - first,), (1,), BYTE, self.device, 0) for first in (0, *plan.regions.values())
            )
            self._make_scratch = family.maker(whole)
            held += (SCRATCH, *plan.regions)
            self._held += (whole, *regions)
        self._regions = tuple(plan.regions.values())
        self._launches = plan.launches
        self._places = _places(held)
        orders = [_order(names, definition.absent, self._places, launch) for launch in plan.launches]
        self._orders = [_taking(order) for order in orders]
        self._places_of_pointers = orders
        self._enqueues: list[tuple[Enqueue, Order]] = []
        self._early: list[tuple[Enqueue, list[int]] | None] = []
        """For each launch the function that enqueues it so that it starts early, and the places, among the addresses,
        of the arrays that it reads before it waits; None for a launch that cannot start early."""
        self.recogniser: Recogniser | None = None
        """Recognises other arrays with the facts of this call."""
        self.known: tuple[Known, ...] = ()
        """How recognised arrays are handled: as autograd follows them, where that is known, or else plainly."""
        self.entries: dict[Any, Callable[..., Any] | None] = {}
        """The functions that `enter` has made, by the arguments that each is for; None where none can be made."""
        self.apart: set[tuple[int, ...]] = set()
        """Addresses at which no written array meets another one."""

    def run(self, given: tuple[Any, ...], pointers: list[int], late: Late = NO_NUMBERS) -> list[Any]:
        """Run the call on arrays with its facts, at these addresses; returns its results, None for each that is not
        wanted."""
        if self._written and tuple(pointers) not in self.apart:
            self.check_written(given, pointers)
        if self.definition.contents is not None and variable(CHECK) is not None:
            self.check_contents(given)
        results = list(given[self._count :])
        for number, make in self._makers:
            results[number], address = make()
            pointers.append(address)
        if self.on_host:
            self.compute(given, results, late)
        elif self._launches:
            if not self._enqueues:
                self._enqueues = self._load()
            if self._make_scratch is not None:
                scratch, address = self._make_scratch()
                self.family.keep_if_captured(scratch, self.device)
                pointers.append(address)
                pointers += [address + first for first in self._regions]
            pointers.append(0)
            stream = self.family.stream(self.device)
            if contexts:
                self.launch_early(pointers, stream, late)
            elif late:
                for launch, (enqueue, order) in zip(self._launches, self._enqueues, strict=True):
                    enqueue(order(pointers), stream, launch.with_numbers(late))
            else:
                for enqueue, order in self._enqueues:
                    enqueue(order(pointers), stream)
        if self._marks_written:
            self.family.mark_written(self.written(given))
        return results

    def recognise(self, recogniser: Recogniser | None) -> None:
        """From now on run the call directly on arrays that are recognised."""
        self.recogniser, self.known, self.entries = recogniser, (), {}
        if recogniser is not None:
            lines = self._unfollowed(recogniser, recogniser.of_given)
            run = self._generated("given, late", lines, recogniser.misaligned)
            self.known = (Known(self.options, self.outputs, run, self),)

    def enter(
        self,
        arguments: str,
        lines: list[str],
        values: Mapping[str, Any],
        given: str,
        returned: Code,
        follower: Follower | None,
    ) -> Callable[..., Any]:
        """A function that runs the call on the arguments of the public function and returns what that does, or None for
        arguments that are not those of this call.

        `lines`, with these values of names, `return None` unless all arguments that are not arrays are as in this call,
        and name the arrays a0, a1, … as `given` does.
        """
        known = self.recogniser
        assert known is not None and known.values.keys().isdisjoint(values)
        if follower is not None:
            return self._followed(follower, arguments, [*lines, *known.lines], returned, values)
        lines = self._unfollowed(known, [*lines, *known.lines])
        different = known.misaligned
        if self._written:
            # Functions check whether a result is another argument.
            different = f"{different} or len({{{', '.join(known.pointers)}}}) != {known.count}"
        return self._generated(arguments, lines, different, values, given, "NO_NUMBERS", _leaving(returned))

    def _unfollowed(self, recogniser: Recogniser, lines: list[str]) -> list[str]:
        """The code that recognises arrays; arrays that autograd would follow in grad mode only outside of grad mode."""
        return ["if is_grad_enabled(): return None", *lines] if recogniser.is_followed else lines

    def _generated(
        self,
        arguments: str,
        lines: list[str],
        misaligned: str | None,
        more: Mapping[str, Any] = NO_NUMBERS,
        given: str = "given",
        late: str = "late",
        leave: Code = _leaving_with_all,
    ) -> Callable[..., Any]:
        """A function of these lines, which recognise arrays, and then of the code of `run` on them.

        The lines name the arrays a0, a1, … and the addresses of given ones p0, p1, … `misaligned` is code that says
        whether addresses differ modulo ALIGNMENT, None where that is known. `leave` makes the final code from that of
        all results.
        """
        known = self.recogniser
        assert known is not None
        pointers, lines = list(known.pointers), list(lines)
        places = range(len(self.names) - self._count)
        slow = f"results = run({given}, [{', '.join(pointers)}], {late}); "
        slow += leave([f"results[{place}]" for place in places])
        unless = [] if misaligned is None else [f"if {misaligned}: return None"]
        values = {**known.values, **more, "run": self.run, "is_grad_enabled": self.family.is_grad_enabled}
        values["NO_NUMBERS"] = NO_NUMBERS
        if self.on_host or not self._launches:
            return generated.function(arguments, [*lines, *unless, slow], values)
        family, device = self.family, self.device
        loaded = [family.load(launch.kernel, device) for launch in self._launches]
        if self._written:
            # At addresses that have been checked before, arrays are aligned as they were then.
            values |= {"apart": self.apart, "check_written": self.check_written}
            lines.append(f"if ({', '.join(pointers)},) not in apart:")
            lines += [f"    {line}" for line in (*unless, f"check_written({given}, [{', '.join(pointers)}])")]
        else:
            lines += unless
        values |= {"contexts": contexts, "thread": thread, "device": device, "get_device": loaded[0].get_device}
        elsewhere = [] if machine.has_one_device() else ["get_device() != device"]
        rare = ["contexts", *elsewhere, "device not in (own := thread.own).devices"]
        if late != "NO_NUMBERS":
            rare.append(late)
        if self.definition.contents is not None:
            values |= {"variable": variable, "CHECK": CHECK}
            rare.append("variable(CHECK) is not None")
        lines.append(f"if {' or '.join(rare)}: {slow}")
        given_places = {self._count + place for place in places if f"p{self._count + place}" in pointers}
        results = [f"a{place}" if place in given_places else "None" for place in range(self._count, len(self.names))]
        values |= {"address": family.address, "stream": family.stream}
        layouts = self._held[len(self._given) :]
        for number, ((place, _), layout) in enumerate(zip(self._makers, layouts, strict=False)):
            values[f"make{number}"] = family.maker_here(layout)
            lines += [f"r{number} = make{number}()", f"q{number} = address(r{number})"]
            results[place] = f"r{number}"
            pointers.append(f"q{number}")
        if self._make_scratch is not None:
            values |= {"make_scratch": family.maker_here(layouts[len(self._makers)]), "keep": family.keep_if_captured}
            lines += ["scratch = make_scratch()", "keep(scratch, device)", "s = address(scratch)"]
            pointers += ["s", *(f"s + {first}" for first in self._regions)]
        lines.append("on = stream(device)")
        for number, (launch, order) in enumerate(zip(self._launches, self._places_of_pointers, strict=True)):
            values[f"pack{number}"] = loaded[number].packer([place >= 0 for place in order])
            values[f"numbers{number}"] = launch.numbers
            values[f"launch{number}"], first = loaded[number].launcher(launch.config)
            fixed = {f"c{number}_{place}": value for place, value in enumerate(first)}
            values |= fixed
            taken = "".join(f"{pointers[place]}, " for place in order if place >= 0)
            lines += [
                f"pack{number}(own.bytes, 0, {taken}numbers{number})",
                f"launch{number}({''.join(f'{name}, ' for name in fixed)}on, own.pointers, 0)",
            ]
        counted = {self._given[number] for number in self._written} - known.uncounted
        if self._marks_written and counted:
            values["mark_written"] = known.mark_written
            lines.append(f"mark_written(({''.join(f'a{place}, ' for place in sorted(counted))}))")
        return generated.function(arguments, [*lines, leave(results)], values)

    def forward(self, kept: int | None, hidden: int) -> tuple[Callable[..., Any], tuple[int, ...]]:
        """`run` as the forward pass of a function of autograd, on recognised arrays, with all results new.

        It takes the context, the addresses and the inputs, saves the first `kept` of these (None for all) and the last
        `hidden` results, and returns the other results, as a tuple unless there is only one.

        Returns:
            The function, and the places of these among the results.
        """
        known = self.recogniser
        assert known is not None
        inputs = [f"a{place}" for place in range(self._count)]
        count = len(self.names) - self._count
        shown = tuple(sorted(place for place, _ in self._makers if place < count - hidden))

        def leave(results: Sequence[str]) -> str:
            saved = f"ctx.save_for_backward({', '.join((*inputs[:kept], *results[count - hidden :]))}); "
            if len(shown) == 1:
                return f"{saved}return {results[shown[0]]}"
            # Gradients that are missing for some of several results stay None, instead of becoming zeros.
            return f"ctx.set_materialize_grads(False); {saved}return {all_of([results[place] for place in shown])}"

        given = all_of([*inputs, *["None"] * count])
        lines = [f"{''.join(f'{pointer}, ' for pointer in known.pointers)} = pointers"]
        # Absent inputs at the end are left out: each takes autograd 0.1 us.
        arguments = ", ".join(("ctx", "pointers", *(f"{each}=None" for each in inputs)))
        return self._generated(arguments, lines, None, {}, given, "NO_NUMBERS", leave), shown

    def follow(self, options: tuple[Any, ...], outputs: tuple[str, ...] | None, follower: Follower) -> None:
        """Let `follower` make calls with these options, on recognised arrays, where autograd follows them."""
        assert self.recogniser is not None
        run = self._followed(follower, "given, late", self.recogniser.of_given, all_of)
        self.known = (Known(options, outputs, run, self, follower), *self.known[-1:])

    def _followed(
        self, follower: Follower, arguments: str, lines: list[str], returned: Code, more: Mapping[str, Any] = NO_NUMBERS
    ) -> Callable[..., Any]:
        """A function of these lines, which recognise arrays, and then of the call that `follower` makes."""
        known = self.recogniser
        assert known is not None
        apply, places = follower
        results = ["None"] * (len(self.names) - self._count)
        for number, place in enumerate(places):
            results[place] = "results" if len(places) == 1 else f"results[{number}]"
        pointers = "".join(f"{pointer}, " for pointer in known.pointers)
        last = max(place for place in self._given if place < self._count)
        inputs = [f"a{place}" if place in self._given else "None" for place in range(last + 1)]
        lines = [
            "if not is_grad_enabled(): return None",
            *lines,
            f"if {known.misaligned}: return None",
            f"results = apply(({pointers}), {', '.join(inputs)})",
            f"return {returned(results)}",
        ]
        values = {**known.values, **more, "is_grad_enabled": self.family.is_grad_enabled, "apply": apply}
        return generated.function(arguments, lines, values)

    def fixed(self, given: tuple[Any, ...], pointers: list[int], late: Late) -> tuple[list[Any], list[Replay], Any]:
        """For a call that is run later, repeatedly, on these arrays: its results, the functions that run it on a
        stream, and the scratch memory that it needs.
        """
        self.check_written(given, pointers)
        self.check_contents(given)
        results, scratch = list(given[self._count :]), None
        for number, make in self._makers:
            results[number], address = make()
            pointers.append(address)
        if self.on_host:
            return results, [lambda stream: self.compute(given, results, late)], None
        if self._make_scratch is not None:
            scratch, address = self._make_scratch()
            pointers.append(address)
            pointers += [address + first for first in self._regions]
        pointers.append(0)
        replays = [
            self.family.load(launch.kernel, self.device).fixed(
                launch.config, launch.with_numbers(late), order(pointers)
            )
            for launch, order in zip(self._launches, self._orders, strict=True)
        ]
        return results, replays, scratch

    def launch_early(self, pointers: list[int], stream: int, late: Late) -> None:
        """Launch the kernels while a `dependent_launch` is open, early where that is wanted and safe."""
        if not self._enqueues:
            self._enqueues = self._load()
        if not self._early:
            self._early = [self._load_early(launch) for launch in self._launches]
        if not self._held_spans:
            self._held_spans = [layout.span for layout in self._held]
        extents = [
            dependent.Extent(pointer + begin, pointer + end, View(pointer, layout))
            for pointer, (begin, end), layout in zip(pointers, self._held_spans, self._held, strict=False)
        ]
        written = [extents[number] for number in (*self._written, *range(len(self._views), len(self._held)))]
        for launch, (enqueue, order), early in zip(self._launches, self._enqueues, self._early, strict=True):
            read = None if early is None else [extents[place] for place in early[1]]
            goes_first = launch.kernel.LETS_GO_FIRST
            if dependent.may_overlap(self.device, stream, read, written, goes_first) and early is not None:
                enqueue = early[0]
            enqueue(order(pointers), stream, launch.with_numbers(late))

    def _load_early(self, launch: Launch) -> tuple[Enqueue, list[int]] | None:
        if launch.kernel.EARLY is None or launch.kernel.FOLLOWS or not machine.has_dependent_launch(self.device):
            return None
        early = [launch.named.get(name, name) for name in launch.kernel.EARLY]
        places = [self._places[name] for name in early if name in self._places]
        defined = dependent.defined(launch.config)
        return self.family.load(launch.kernel, self.device, defined).bound(launch.config, launch.numbers), places

    def _load(self) -> list[tuple[Enqueue, Order]]:
        return [
            (self.family.load(launch.kernel, self.device).bound(launch.config, launch.numbers), order)
            for launch, order in zip(self._launches, self._orders, strict=True)
        ]

    def check_written(self, given: tuple[Any, ...], pointers: list[int]) -> None:
        """Raise ValueError when an array that is written is read-only or shares memory with another argument."""
        for number, array in zip(self._written, self.written(given), strict=True):
            if not self.family.is_writable(array):
                name = self.names[self._given[number]]
                raise ValueError(message(name, "a read-only array", "one that can be written"))
        self._check_apart(pointers)
        # An array at the same addresses may be read-only on the CPU.
        if not self.on_host:
            _addresses.add(self.apart, tuple(pointers))

    def check_contents(self, given: tuple[Any, ...]) -> None:
        """Raise ValueError for contents that cannot be right, if CUCONV_CHECK asks for it."""
        if self.definition.contents is not None and self.family.checks_contents():
            named = dict(zip(self.names, given, strict=True))
            read = self.family.to_host
            self.definition.contents(self.operands, lambda name: None if named[name] is None else read(named[name]))

    def compute(self, given: tuple[Any, ...], results: list[Any], late: Late) -> None:
        """Compute arrays on the CPU by the reference."""
        inputs = given[: self._count]
        memory = [None if each is None else self.family.as_numpy(each) for each in (*inputs, *results)]
        # Infinities and NaN are ordinary results, without warnings, as on a GPU.
        with np.errstate(all="ignore"):
            self.definition.reference(self.operands, dict(zip(self.names, memory, strict=True)), **late)

    def written(self, given: tuple[Any, ...]) -> list[Any]:
        """The given arrays that are written."""
        return [given[self._given[number]] for number in self._written]

    def _check_apart(self, pointers: Sequence[int]) -> None:
        if len(self._written) > 1:
            # To check that no two arrays overlap is quicker than to compare each written one with all others.
            begins = sorted(map(add, pointers, self._begins))
            if all(map(le, sorted(map(add, pointers, self._ends)), begins[1:])):
                return
        for number in self._written:
            begin, end = self._spans[number]
            begin += pointers[number]
            end += pointers[number]
            for other, (other_begin, other_end) in enumerate(self._spans):
                # Bounds come first: two comparisons rule out nearly all pairs.
                if pointers[other] + other_begin < end and begin < pointers[other] + other_end and other != number:
                    if (number, other) in self._in_place and pointers[number] == pointers[other]:
                        continue
                    names = [self.names[self._given[each]] for each in (number, other)]
                    views = [View(pointers[each], self._views[each]) for each in (number, other)]
                    checks.disjoint(names[0], views[0], names[1], views[1])


Order = Callable[[list[int]], Sequence[int]]
"""Takes a kernel's pointers out of those of a call, the last of which is null."""


def _places(held: Sequence[str]) -> dict[str, int]:
    """The place of each kernel's pointer among the addresses of a call, which are those of the arrays `held` in this
    order.

    Kernels know an argument by its name, with or without a final "_out"; a single result `out` is also `out[0]`.
    """
    places = {name: number for number, name in enumerate(held)}
    places |= {name.removesuffix("_out"): number for number, name in enumerate(held)}
    if "out" in places:
        places["out[0]"] = places["out"]
    return places


def _order(
    arguments: Sequence[str], absent: tuple[str, ...], places: Mapping[str, int], launch: Launch
) -> tuple[int, ...]:
    """The places of a kernel's pointers among those of a call, -1 for null.

    Unused results of a kernel that can have several are null, as are absent arguments.
    """
    known = {*absent, *arguments, *(name.removesuffix("_out") for name in arguments), *launch.named, SCRATCH}
    order = []
    for name in launch.kernel.params.pointer_names:
        if name not in known and not name.startswith("out["):
            raise TypeError(f"{launch.kernel.unit} has a pointer {name}, which is none of {', '.join(arguments)}")
        order.append(places.get(launch.named.get(name, name), -1))
    while order and order[-1] < 0:
        order.pop()
    return tuple(order)


def _taking(order: tuple[int, ...]) -> Order:
    # A slice, because itemgetter of one place makes no tuple; without places, an empty slice.
    first = max(order[0], 0) if order else 0
    is_consecutive = order == tuple(range(first, first + len(order)))
    return itemgetter(slice(first, first + len(order))) if is_consecutive else itemgetter(*order)


_addresses = SharedLimit()
"""Sets of addresses at which the arrays of prepared calls do not overlap."""
