"""The path of every call: inspect → look up, or check and plan → allocate → launch, or the reference, or DLPack.

An operator family describes each of its public functions as an Operation: the names of its arrays, and functions that
check, plan and compute. This module alone knows the path of a call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import add, itemgetter, le
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from cuconv.runtime import arrays, checks, dependent, dlpack, generated, machine
from cuconv.runtime.arrays import Facts, Family, Maker, Recogniser
from cuconv.runtime.dependent import contexts
from cuconv.runtime.dtypes import BYTE, FLOAT32, FLOAT64, DType
from cuconv.runtime.environment import CHECK, variable
from cuconv.runtime.errors import message
from cuconv.runtime.kernel import Enqueue, Kernel, Replay, thread
from cuconv.runtime.launch import LaunchConfig, TooLarge
from cuconv.runtime.layout import HOST, Layout, View
from cuconv.runtime.memo import SharedLimit, remembered

RECENT = 4
"""Most calls of an operation that arrays are compared with, before all that is remembered is searched."""

SCRATCH = "scratch"
"""The name of a kernel's pointer to memory that a plan asks for."""

Layouts = Mapping[str, Layout | None]
"""The layouts of a call's arrays by argument, None for an absent array."""

Arrays = Mapping[str, Any]
"""The arrays of a call by argument, None for an absent array."""

Late = Mapping[str, int]
"""Integers that differ from call to call without any effect on checks and plans, such as the seed of random numbers, by
their field in argument structs. They are not part of what a call is remembered by."""

NO_NUMBERS: Late = {}


ThroughTorch = Callable[..., Sequence[Any]]
"""Makes the call of an operation, with the arguments of its __call__, on tensors that torch traces, that autograd
follows or that have no memory."""


def _no_torch(*call: Any) -> Sequence[Any]:
    raise RuntimeError("cuconv.torch has not been named")


through_torch: ThroughTorch = _no_torch
"""Set by the package, because what knows torch is above the runtime."""

_modules = sys.modules


def is_traced() -> bool:
    """Whether torch.compile or torch.export traces this call."""
    torch = _modules.get("torch")
    # Where it is not Dynamo that traces, tensors tell by their types.
    return torch is not None and torch.compiler.is_dynamo_compiling()


class Known(NamedTuple):
    """How arrays are handled that are like those of an earlier call."""

    options: tuple[Any, ...]
    outputs: tuple[str, ...] | None
    run: Callable[[tuple[Any, ...], Late], Sequence[Any] | None]
    """Runs the call on given arrays, with late numbers; None where they are not like those."""


Follow = Callable[[tuple[Any, ...], list[int]], Sequence[Any]]
"""Runs a call that autograd follows, on arrays that are recognised, at these addresses."""


class Launch(NamedTuple):
    """One kernel launch of a call."""

    kernel: Kernel
    config: LaunchConfig
    numbers: bytes
    """The bytes of the kernel's argument struct behind its pointers."""

    @classmethod
    def packed(cls, kernel: Kernel, config: LaunchConfig, **numbers: object) -> Launch:
        """A launch with these fields in the argument struct, behind the pointers."""
        return cls(kernel, config, kernel.params.pack_numbers(**numbers))

    def with_numbers(self, late: Late) -> bytes:
        """The bytes of the argument struct behind its pointers, with these numbers in the fields of their names."""
        return self.kernel.params.replaced(self.numbers, late)


class Plan(NamedTuple):
    """The launches of a call, in order; none where there is nothing to compute."""

    launches: tuple[Launch, ...] = ()
    scratch: int = 0
    """Bytes of device memory in which the launches leave results for each other."""
    regions: Mapping[str, int] = {}
    """Arguments that launches find in that memory, by their first byte."""


Operands = TypeVar("Operands")


@dataclass(frozen=True)
class Checked(Generic[Operands]):
    """A call that has passed its operator's checks."""

    operands: Operands
    """Layouts and options as plans and references take them."""
    outputs: Layouts
    """The layouts of the results by argument, given or to be made; None for a result that is not wanted."""
    updated: tuple[str, ...] = ()
    """Arguments that are read and written; absent ones may be named, too."""
    in_place: tuple[str, ...] = ()
    """An output, and the inputs of which one may be the same memory, laid out alike."""
    overlaid: Layouts = field(default_factory=dict)
    """The distinct elements of written arguments that have one element at several indices, where equal values go."""


class Call(Generic[Operands]):
    """A checked and planned call. It follows from the facts of the arrays, so later calls with equal facts reuse it."""

    def __init__(
        self,
        operation: Operation[Operands],
        family: Family,
        outputs: tuple[str, ...] | None,
        options: tuple[Any, ...],
        facts: list[Facts | None],
    ) -> None:
        """Check and plan; raises before anything is launched or written."""
        self.operation, self.family, self.outputs, self.options, self.facts = operation, family, outputs, options, facts
        self.names = names = operation.names(outputs)
        """The arguments that are arrays, in the order in which they are given."""
        layouts = [None if fact is None else family.layout(name, fact) for name, fact in zip(names, facts, strict=True)]
        checked, plan = operation.planned(family, dict(zip(names, layouts, strict=True)), options)
        leader = layouts[operation.leader]
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
        """Which of the given arrays are written."""
        self._in_place: set[tuple[int, int]] = set()
        if checked.in_place:
            output, *sources = map(names.index, checked.in_place)
            alike = [each for each in sources if layouts[each] is not None and layouts[each] == layouts[output]]
            self._in_place = {(self._given.index(output), self._given.index(each)) for each in alike}
        # The library may want to know that arrays of the caller have been written.
        self._follows_writes = family.follows_writes if self._written else None
        self._count = len(operation.inputs)
        held = [names[number] for number in self._given]
        self._held = list(self._views)
        """The layouts of all memory of a call, in the order of its addresses."""
        self._held_spans: list[tuple[int, int]] = []
        self._makers: list[tuple[int, Maker]] = []
        """The places among the results of those that the caller has not given, and what makes them."""
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
        orders = [_order(names, operation.absent, self._places, launch.kernel) for launch in plan.launches]
        self._orders = [_taking(order) for order in orders]
        self._places_of_pointers = orders
        self._enqueues: list[tuple[Enqueue, Order]] = []
        self._early: list[tuple[Enqueue, list[int]] | None] = []
        """What enqueues each launch so that it starts early, and the places among the addresses of what it reads before
        it waits; None where it cannot."""
        self.recogniser: Recogniser | None = None
        """Tells other arrays with the facts of this call."""
        self.known: tuple[Known, ...] = ()
        """How they are handled then: plainly, and before that as autograd follows them where that is known."""
        self.resume: Callable[..., Sequence[Any]] | None = None
        """`run`, quicker, for arrays that are recognised and that autograd follows."""
        self.apart: set[tuple[int, ...]] = set()
        """Addresses at which no written array meets another one."""

    def run(self, given: tuple[Any, ...], pointers: list[int], late: Late = NO_NUMBERS) -> list[Any]:
        """Run the call on arrays with its facts, at these addresses; its results, None for each that is not wanted."""
        if self._written and tuple(pointers) not in self.apart:
            self.check_written(given, pointers)
        if self.operation.contents is not None and variable(CHECK) is not None:
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
        if self._follows_writes is not None and self._follows_writes():
            self.family.mark_written(self.written(given))
        return results

    def recognise(self, recogniser: Recogniser | None) -> None:
        """Run the call at once from now on, on arrays that are recognised."""
        self.recogniser, self.known = recogniser, ()
        if recogniser is not None:
            lines, values = self._quick(recogniser.pointers)
            lines = recogniser.lines + lines
            if recogniser.followed_places:
                lines.insert(0, "if follows_writes(): return None")
            run = generated.function("given, late", lines, recogniser.values | values)
            self.known = (Known(self.options, self.outputs, run),)

    def _quick(self, addresses: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        """The code of `run` on arrays a0, a1, … with the addresses in these variables, and the values that it names."""
        pointers = list(addresses)
        lines, slow = [], f"return run(given, [{', '.join(pointers)}], late)"
        values: dict[str, Any] = {"run": self.run, "follows_writes": self.family.follows_writes}
        if self.on_host or not self._launches:
            return [slow], values
        family, device = self.family, self.device
        loaded = [family.load(launch.kernel, device) for launch in self._launches]
        values |= {"contexts": contexts, "thread": thread, "device": device, "get_device": loaded[0].get_device}
        rare = "contexts or late or get_device() != device or device not in (own := thread.own).devices"
        if self.operation.contents is not None:
            values |= {"variable": variable, "CHECK": CHECK}
            rare = f"variable(CHECK) is not None or {rare}"
        lines.append(f"if {rare}: {slow}")
        if self._written:
            values |= {"apart": self.apart, "check_written": self.check_written}
            lines.append(f"if ({', '.join(pointers)},) not in apart: check_written(given, [{', '.join(pointers)}])")
        results = [f"a{self._count + place}" for place in range(len(self.names) - self._count)]
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
        pointers.append("0")
        lines.append("on = stream(device)")
        for number, (launch, order) in enumerate(zip(self._launches, self._places_of_pointers, strict=True)):
            values[f"pack{number}"] = loaded[number].packer(len(order))
            values[f"numbers{number}"] = launch.numbers
            values[f"launch{number}"] = loaded[number].launcher(launch.config)
            taken = "".join(f"{pointers[place]}, " for place in order)
            lines += [
                f"pack{number}(own.bytes, 0, {taken}numbers{number})",
                f"launch{number}(on, own.pointers, 0)",
            ]
        if self._follows_writes is not None:
            values["mark_written"] = family.mark_written
            written = ", ".join(f"a{self._given[number]}" for number in self._written)
            lines.append(f"if follows_writes(): mark_written([{written}])")
        return [*lines, f"return ({''.join(f'{result}, ' for result in results)})"], values

    def follow(self, options: tuple[Any, ...], outputs: tuple[str, ...] | None, follow: Follow) -> None:
        """Let autograd follow calls with these options, on arrays that are recognised, in this way."""
        known = self.recogniser
        assert known is not None
        pointers = ", ".join(known.pointers)
        lines = ["if not follows_writes(): return None", *known.lines, f"return follow(given, [{pointers}])"]
        values = {"follows_writes": self.family.follows_writes, "follow": follow}
        run = generated.function("given, late", lines, known.values | values)
        self.known = (Known(options, outputs, run), *self.known[-1:])
        lines, values = self._quick(known.pointers)
        lines = [known.unpacking, f"{pointers}, = pointers", *lines]
        self.resume = generated.function("given, pointers, late=NO_NUMBERS", lines, values | {"NO_NUMBERS": NO_NUMBERS})

    def fixed(self, given: tuple[Any, ...], pointers: list[int], late: Late) -> tuple[list[Any], list[Replay], Any]:
        """The results of a call that is run later, as often as wanted, on these arrays; what runs it on a stream; and
        the scratch memory that it needs.
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
        """Launch the kernels while `dependent_launch` is open somewhere: early where that is wanted and right."""
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
        places = [self._places[name] for name in launch.kernel.EARLY if name in self._places]
        defined = dependent.defined(launch.config)
        return self.family.load(launch.kernel, self.device, defined).bound(launch.config, launch.numbers), places

    def _load(self) -> list[tuple[Enqueue, Order]]:
        return [
            (self.family.load(kernel, self.device).bound(config, numbers), order)
            for (kernel, config, numbers), order in zip(self._launches, self._orders, strict=True)
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
        if self.operation.contents is not None and self.family.checks_contents():
            named = dict(zip(self.names, given, strict=True))
            read = self.family.to_host
            self.operation.contents(self.operands, lambda name: None if named[name] is None else read(named[name]))

    def compute(self, given: tuple[Any, ...], results: list[Any], late: Late) -> None:
        """Compute arrays on the CPU by the reference."""
        inputs = given[: self._count]
        memory = [None if each is None else self.family.as_numpy(each) for each in (*inputs, *results)]
        # Infinities and NaN are results as on a GPU, where nothing warns of them.
        with np.errstate(all="ignore"):
            self.operation.reference(self.operands, dict(zip(self.names, memory, strict=True)), **late)

    def written(self, given: tuple[Any, ...]) -> list[Any]:
        """Those of the given arrays that are written."""
        return [given[self._given[number]] for number in self._written]

    def _check_apart(self, pointers: Sequence[int]) -> None:
        if len(self._written) > 1:
            # It is quicker to see that no two arrays meet at all than to compare each written one with all others.
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


def _exchanged(layout: Layout | None, old: DType, new: DType) -> Layout | None:
    return layout._replace(dtype=new) if layout is not None and layout.dtype is old else layout


Order = Callable[[list[int]], Sequence[int]]
"""Takes the pointers of a kernel out of those of a call, of which the last one is null."""


def _places(held: Sequence[str]) -> dict[str, int]:
    """The place of each kernel's pointer among the addresses of a call, of the arrays `held` in this order.

    An argument is known to kernels by its name, or without a final "_out"; the one result `out` is also `out[0]`.
    """
    places = {name: number for number, name in enumerate(held)}
    places |= {name.removesuffix("_out"): number for number, name in enumerate(held)}
    if "out" in places:
        places["out[0]"] = places["out"]
    return places


def _order(
    arguments: Sequence[str], absent: tuple[str, ...], places: Mapping[str, int], kernel: Kernel
) -> tuple[int, ...]:
    """The places of a kernel's pointers among those of a call, -1 for null.

    Further results of a kernel that has room for several are null, as are arguments that are absent.
    """
    known = {*absent, *arguments, *(name.removesuffix("_out") for name in arguments), SCRATCH}
    order = []
    for name in kernel.params.pointer_names:
        if name not in known and not name.startswith("out["):
            raise TypeError(f"{kernel.unit} has a pointer {name}, which is none of {', '.join(arguments)}")
        order.append(places.get(name, -1))
    while order and order[-1] < 0:
        order.pop()
    return tuple(order)


def _taking(order: tuple[int, ...]) -> Order:
    # A slice, because itemgetter makes no tuple of one; where there is none, that of no pointers.
    first = max(order[0], 0) if order else 0
    is_consecutive = order == tuple(range(first, first + len(order)))
    return itemgetter(slice(first, first + len(order))) if is_consecutive else itemgetter(*order)


class Operation(Generic[Operands]):
    """A public function: the names of its arrays, and how a call is checked, planned and computed."""

    named: ClassVar[dict[str, Operation[Any]]] = {}
    """All operations that have a name."""

    def __init__(
        self,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...] = (),
        *,
        name: str = "",
        check: Callable[..., Checked[Operands]],
        plan: Callable[[Operands], Plan],
        reference: Callable[..., None],
        contents: Callable[[Operands, Callable[[str], Any]], None] | None = None,
        leader: str = "",
        absent: tuple[str, ...] = (),
    ) -> None:
        """Take the functions of an operator family.

        Args:
            inputs: all arguments that are arrays except results, in the order in which they are given.
            outputs: the arguments for results, unless every call names its own.
            name: the public function's name, for functions that torch.compile and autograd can follow.
            check: takes the arguments' Layouts by name, and the options; raises for an argument that does not fit.
            plan: takes the operands; returns the launches. A pure function.
            reference: takes the operands and all NumPy Arrays by name, and late numbers by keyword; writes the results
                and, of the updated arrays, what the call changes: callers may use the rest at the same time.
            contents: takes the operands and a function that reads an array back by name (None for an absent one);
                raises for contents that cannot be right. It is called under CUCONV_CHECK=1.
            leader: the array that determines the kind and the device of all; the first when empty.
            absent: pointers of its kernels that are null in every call, because another operation has them.
        """
        self.name = name
        if name:
            self.named[name] = self
        self.inputs = inputs
        """The arguments that are arrays, but results, in the order in which they are given."""
        self.outputs = outputs
        """The arguments for results, empty when every call names its own."""
        self.absent = absent
        """Pointers of its kernels that are null in every call."""
        self.leader = inputs.index(leader) if leader else 0
        """The place of the array that determines the kind and the device of all."""
        self.reference = reference
        self.contents = contents
        self._arguments = inputs + outputs
        self._check = check
        self._plan = plan
        self._remembered: Callable[..., Call[Operands]] = partial(_prepared, self)
        self.recent: tuple[Call[Operands], ...] = ()
        """The last calls that were looked up and differ, the latest first."""
        self.known: tuple[Known, ...] = ()
        """How arrays are handled that are like those of these calls, the latest first."""

    def __call__(
        self,
        given: tuple[Any, ...],
        options: tuple[Any, ...] = (),
        outputs: tuple[str, ...] | None = None,
        late: Late = NO_NUMBERS,
        may_be_traced: bool = True,
    ) -> Sequence[Any]:
        """Run a call; returns its results, None for each that is not wanted.

        Args:
            given: the arrays in the order of inputs and outputs.
            options: the other arguments of `check`, hashable.
            outputs: the names of the results where they differ from call to call.
            late: integers for fields of argument structs, and for the reference, that nothing is remembered by.
            may_be_traced: False for the call of an operator in a graph, which runs whatever torch traces meanwhile.
        """
        leader = given[self.leader]
        if may_be_traced and not isinstance(leader, arrays.untraced) and is_traced():
            return through_torch(self, given, options, outputs, late)
        # The last calls are tried first, because the layers of a model make equal calls one after another. Recognising
        # arrays is quicker than comparing facts, and that takes half as long as hashing them.
        for known in self.known:
            known_options, known_outputs, run = known
            if known_options == options and known_outputs == outputs:
                results = run(given, late)
                if results is not None:
                    if known is not self.known[0]:
                        self._known_first(known)
                    return results
        family = arrays.family(leader)
        if family is None:
            return self._through_dlpack(given, options, outputs, late)
        if family.through is not None:
            return family.through(self, given, options, outputs, late)
        try:
            call, pointers = self.find(family, given, options, outputs)
        except arrays.NotPlain:
            return through_torch(self, given, options, outputs, late)
        return call.run(given, pointers, late)

    def find(
        self, family: Family, given: tuple[Any, ...], options: tuple[Any, ...], outputs: tuple[str, ...] | None
    ) -> tuple[Call[Operands], list[int]]:
        """The prepared call with the facts of these arrays, and their addresses; raises for what does not fit."""
        pointers, facts = family.inspect(self.names(outputs), given)
        call = self.recent[0] if self.recent else None
        if (
            call is None
            or call.facts != facts
            or call.options != options
            or call.outputs != outputs
            or call.family is not family
        ):
            call = self._remembered(family, outputs, options, *facts)
        if family.recogniser is not None and call in self.recent:
            # To make one takes longer than a call, so it is for the second of equal calls.
            call.recognise(None if call.recogniser else family.recogniser(given))
        self.recent = (call, *[each for each in self.recent if each is not call][: RECENT - 1])
        self.find_known()
        return call, pointers

    def find_known(self) -> None:
        """Let the recent calls be those that are known."""
        self.known = tuple(known for call in self.recent for known in call.known)

    def _known_first(self, known: Known) -> None:
        """Try one of the known calls first from now on."""
        self.known = (known, *[each for each in self.known if each is not known])

    def names(self, outputs: tuple[str, ...] | None) -> tuple[str, ...]:
        """The arguments that are arrays, in the order in which they are given."""
        return self._arguments if outputs is None else self.inputs + outputs

    def layouts_of_results(self, layouts: Layouts, options: tuple[Any, ...]) -> dict[str, Layout]:
        """The results that a call on these layouts makes, by argument; raises for what does not fit."""
        first = layouts[self.inputs[self.leader]]
        assert first is not None
        checked = self._checked(layouts, options, first.device == HOST)
        return {
            name: layout for name, layout in checked.outputs.items() if layout is not None and layouts.get(name) is None
        }

    def _prepare(
        self, family: Family, outputs: tuple[str, ...] | None, options: tuple[Any, ...], *facts: Facts | None
    ) -> Call[Operands]:
        return Call(self, family, outputs, options, list(facts))

    def planned(self, family: Family, layouts: Layouts, options: tuple[Any, ...]) -> tuple[Checked[Operands], Plan]:
        """Check and plan a call on arrays of a family; raises before anything is launched or written."""
        name = self.inputs[self.leader]
        leader = layouts[name]
        if leader is None:
            raise TypeError(message(name, "None", "an array"))
        if not family.has_host:
            checks.on_gpu(name, leader.device, "NumPy arrays are computed on the CPU")
        checked = self._checked(layouts, options, family.has_float64 and leader.device == HOST)
        for argument, layout in layouts.items():
            if layout is not None:
                checks.device(argument, layout.device, leader.device, name)
        for argument in (*checked.updated, *checked.outputs):
            if (layout := checked.overlaid.get(argument) or layouts[argument]) is not None:
                checks.not_self_overlapping(argument, layout.shape, layout.strides)
        try:
            plan = Plan() if leader.device == HOST else self._plan(checked.operands)
        except TooLarge as error:
            got = f"shape {leader.shape}, in a call that no launch can take ({error})"
            raise ValueError(message(name, got, "fewer elements")) from None
        return checked, plan

    def _checked(self, layouts: Layouts, options: tuple[Any, ...], may_be_float64: bool) -> Checked[Operands]:
        """What the family says; where float64 may stand in for float32, it stands in for all that a call has of it."""
        if not may_be_float64 or not any(layout and layout.dtype is FLOAT64 for layout in layouts.values()):
            return self._check(layouts, *options)
        for name, layout in layouts.items():
            if layout is not None and layout.dtype is FLOAT32:
                checks.dtype(name, layout.dtype, [FLOAT64])
        checked = self._check(
            {name: _exchanged(layout, FLOAT64, FLOAT32) for name, layout in layouts.items()}, *options
        )
        outputs = {name: _exchanged(layout, FLOAT32, FLOAT64) for name, layout in checked.outputs.items()}
        return replace(checked, outputs=outputs)

    def _through_dlpack(
        self, given: tuple[Any, ...], options: tuple[Any, ...], outputs: tuple[str, ...] | None, late: Late
    ) -> list[Any]:
        """Run a call on CuPy or NumPy arrays over the same memory; its results go back to the leader's library."""
        imported = dlpack.imported(self.names(outputs), given, self.inputs[self.leader])
        results = self(imported, options, outputs, late)
        return dlpack.exported(results, given[len(self.inputs) :], like=given[self.leader])


@remembered
def _prepared(operation: Operation[Any], *key: Any) -> Call[Any]:
    return operation._prepare(*key)


_addresses = SharedLimit()
"""Sets of addresses at which the arrays of prepared calls do not overlap."""
