"""The path of every call: inspect → look up, or check and plan → allocate → launch, or the reference, or DLPack.

An operator family describes each of its public functions as an Operation: the names of its arrays, and functions that
check, plan and compute. This module alone knows the path of a call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import add, itemgetter, le
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from cuconv.runtime import arrays, checks, dlpack
from cuconv.runtime.arrays import Facts, Family, Recogniser
from cuconv.runtime.dtypes import BYTE, FLOAT32, FLOAT64, DType
from cuconv.runtime.errors import message
from cuconv.runtime.kernel import Enqueue, Kernel
from cuconv.runtime.launch import LaunchConfig, TooLarge
from cuconv.runtime.layout import HOST, Layout, View
from cuconv.runtime.memo import SharedLimit, remembered

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
    return torch is not None and torch.compiler.is_compiling()


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
    in_place: tuple[str, str] | None = None
    """An output and an input that may be the same memory, laid out alike."""


class New(NamedTuple):
    """A result that the caller has not given."""

    number: int
    """The argument's place in the call."""
    like: int
    """The place of an array of the caller's kind, and of the result's dtype if there is one."""
    layout: Layout
    dtype: DType | None
    """The result's dtype; None where `like` has the same."""


class Call(Generic[Operands]):
    """A checked and planned call. It follows from the facts of the arrays, so later calls with equal facts reuse it."""

    def __init__(
        self,
        arguments: Sequence[str],
        absent: tuple[str, ...],
        leader: int,
        layouts: list[Layout | None],
        checked: Checked[Operands],
        plan: Plan,
        follows_writes: bool,
    ) -> None:
        first = layouts[leader]
        assert first is not None
        self.operands = checked.operands
        self.device = first.device
        self.on_host = first.device == HOST
        self.new: list[New] = []
        self._arguments = arguments
        self._layouts = list(layouts)
        for name, layout in checked.outputs.items():
            number = arguments.index(name)
            if layout is not None and layouts[number] is None:
                like = next((i for i, each in enumerate(layouts) if each and each.dtype is layout.dtype), None)
                assert isinstance(layout.dtype, DType)
                self.new.append(
                    New(number, leader, layout, layout.dtype) if like is None else New(number, like, layout, None)
                )
                self._layouts[number] = layout
        self._spans = [(0, 0) if layout is None else layout.span for layout in self._layouts]
        self._begins, self._ends = zip(*self._spans, strict=True)
        self.written = [i for i in _written(arguments, checked) if layouts[i] is not None]
        """The places of the given arrays that are written."""
        self.is_marked = follows_writes and bool(self.written)
        """Whether the library may want to know that arrays of the caller have been written."""
        self._in_place = None
        if checked.in_place is not None:
            output, source = map(arguments.index, checked.in_place)
            if layouts[output] == layouts[source]:
                self._in_place = output, source
        self.scratch = Layout((plan.scratch,), (1,), BYTE, self.device, 0) if plan.scratch else None
        self._launches = plan.launches
        self._orders = [_order(arguments, absent, launch.kernel, plan.scratch > 0) for launch in plan.launches]
        self._enqueues: list[tuple[Enqueue, Order | None]] = []
        self.recogniser: Recogniser | None = None
        """Tells other arrays with the facts of this call."""
        self.apart: set[tuple[int, ...]] = set()
        """Addresses at which no written array meets another one."""

    def check_overlap(self, pointers: Sequence[int]) -> None:
        """Raise ValueError when an array that is written shares memory with another argument."""
        self._check_apart(pointers)
        _addresses.add(self.apart, tuple(pointers))

    def _check_apart(self, pointers: Sequence[int]) -> None:
        if len(self.written) > 1:
            # It is quicker to see that no two arrays meet at all than to compare each written one with all others.
            begins = sorted(map(add, pointers, self._begins))
            if all(map(le, sorted(map(add, pointers, self._ends)), begins[1:])):
                return
        for number in self.written:
            begin, end = self._spans[number]
            begin += pointers[number]
            end += pointers[number]
            for other, (other_begin, other_end) in enumerate(self._spans):
                # Bounds come first: two comparisons rule out nearly all pairs.
                if pointers[other] + other_begin < end and begin < pointers[other] + other_end and other != number:
                    if (number, other) == self._in_place and pointers[number] == pointers[other]:
                        continue
                    self._check_disjoint(number, other, pointers)

    def _check_disjoint(self, number: int, other: int, pointers: Sequence[int]) -> None:
        a, b = self._layouts[number], self._layouts[other]
        assert a is not None and b is not None  # their spans are not empty
        names = self._arguments
        checks.disjoint(names[number], View(pointers[number], a), names[other], View(pointers[other], b))

    def enqueue(self, pointers: list[int], family: Family, like: Any, late: Late = NO_NUMBERS) -> None:
        """Launch on the caller's current stream, unless there is nothing to compute."""
        if not self._enqueues:
            if not self._launches:
                return
            bound = [
                family.load(kernel, self.device).bound(config, numbers) for kernel, config, numbers in self._launches
            ]
            self._enqueues = list(zip(bound, self._orders, strict=True))
        if self.scratch is not None:
            scratch, address = family.new(like, self.scratch, BYTE)
            family.keep_if_captured(scratch, self.device)
            pointers.append(address)
        stream = family.stream(self.device)
        if late:
            for launch, (enqueue, order) in zip(self._launches, self._enqueues, strict=True):
                enqueue(pointers if order is None else order(pointers), stream, launch.with_numbers(late))
            return
        for enqueue, order in self._enqueues:
            enqueue(pointers if order is None else order(pointers), stream)


def _exchanged(layout: Layout | None, old: DType, new: DType) -> Layout | None:
    return layout._replace(dtype=new) if layout is not None and layout.dtype is old else layout


def _written(arguments: Sequence[str], checked: Checked[Any]) -> list[int]:
    return [arguments.index(name) for name in (*checked.updated, *checked.outputs)]


Order = Callable[[list[int]], Sequence[int]]
"""Takes the pointers of a kernel out of those of a call."""


def _order(arguments: Sequence[str], absent: tuple[str, ...], kernel: Kernel, has_scratch: bool) -> Order | None:
    """The pointers of a kernel by their places in a call, null where it has none; None when they are the call's own.

    An argument is known to kernels by its name, or without a final "_out"; the one result `out` is also `out[0]`, and
    further ones of a kernel that has room for several are null, as are those that are absent.
    """
    places = dict.fromkeys(absent, -1) | {name: number for number, name in enumerate(arguments)}
    places |= {name.removesuffix("_out"): number for number, name in enumerate(arguments)}
    places[SCRATCH] = len(arguments) if has_scratch else -1
    if "out" in places:
        places["out[0]"] = places["out"]
    order = []
    for name in kernel.params.pointer_names:
        if name not in places and not name.startswith("out["):
            raise TypeError(f"{kernel.unit} has a pointer {name}, which is none of {', '.join(arguments)}")
        order.append(places.get(name, -1))
    while order and order[-1] < 0:
        order.pop()
    if order == list(range(len(arguments) + has_scratch)):
        return None
    if -1 not in order and len(order) > 1:
        return itemgetter(*order)
    return lambda pointers: [pointers[number] if number >= 0 else 0 for number in order]


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
        self._absent = absent
        self._arguments = inputs + outputs
        self._count = len(inputs)
        self._leader = inputs.index(leader) if leader else 0
        self._check = check
        self._plan = plan
        self._reference = reference
        self._contents = contents
        self._remembered: Callable[..., Call[Operands]] = partial(_prepared, self)
        self._last: tuple[Any, Any, Call[Operands]] | None = None

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
        leader = given[self._leader]
        if may_be_traced and not isinstance(leader, arrays.untraced) and is_traced():
            return through_torch(self, given, options, outputs, late)
        family = arrays.family(leader)
        if family is None:
            return self._through_dlpack(given, options, outputs, late)
        # The last call is tried first, because the layers of a model make equal calls one after another. Recognising
        # arrays is quicker than comparing facts, and that takes half as long as hashing them.
        key, last = (family, outputs, options), self._last
        recognise = None if last is None else last[2].recogniser
        known = None if recognise is None else recognise(given)
        if known is arrays.FOLLOWED:
            return through_torch(self, given, options, outputs, late)
        if last is not None and last[0] != key:
            last = None
        if last is not None and known is not None:
            pointers, call = known, last[2]
        else:
            try:
                pointers, facts = family.inspect(self._arguments if outputs is None else self.inputs + outputs, given)
            except arrays.NotPlain:
                return through_torch(self, given, options, outputs, late)
            if last is None or last[1] != facts:
                call = self._remembered(*key, *facts)
                self._last = key, facts, call
            else:
                call = last[2]
                if family.recogniser is not None:
                    # To make one takes as long as a call, so it is for the second of equal calls.
                    call.recogniser = None if call.recogniser else family.recogniser(given)
        if call.written:
            if call.on_host:
                self._check_writable(call, family, given, outputs)
            if tuple(pointers) not in call.apart:
                call.check_overlap(pointers)
        if self._contents is not None and family.checks_contents():
            self._check_contents(call, family, dict(zip(self._names(outputs), given, strict=True)))
        count = self._count
        results = list(given[count:])
        if call.new:
            for number, like, layout, dtype in call.new:
                results[number - count], pointers[number] = family.new(given[like], layout, dtype)
        if call.on_host:
            # Infinities and NaN are results as on a GPU, where nothing warns of them.
            memory = [None if each is None else family.as_numpy(each) for each in (*given[:count], *results)]
            with np.errstate(all="ignore"):
                self._reference(call.operands, dict(zip(self._names(outputs), memory, strict=True)), **late)
        else:
            call.enqueue(pointers, family, leader, late)
        if call.is_marked and family.follows_writes():  # type: ignore[misc]
            family.mark_written([given[number] for number in call.written])
        return results

    def _names(self, outputs: tuple[str, ...] | None) -> tuple[str, ...]:
        """The arguments that are arrays, in the order in which they are given."""
        return self._arguments if outputs is None else self.inputs + outputs

    def _check_writable(
        self, call: Call[Operands], family: Family, given: tuple[Any, ...], outputs: tuple[str, ...] | None
    ) -> None:
        for number in call.written:
            if not family.is_writable(given[number]):
                raise ValueError(message(self._names(outputs)[number], "a read-only array", "one that can be written"))

    def layouts_of_results(self, layouts: Layouts, options: tuple[Any, ...]) -> dict[str, Layout]:
        """The results that a call on these layouts makes, by argument; raises for what does not fit."""
        first = layouts[self.inputs[self._leader]]
        assert first is not None
        checked = self._checked(layouts, options, first.device == HOST)
        return {
            name: layout for name, layout in checked.outputs.items() if layout is not None and layouts.get(name) is None
        }

    def _prepare(
        self, family: Family, outputs: tuple[str, ...] | None, options: tuple[Any, ...], *facts: Facts | None
    ) -> Call[Operands]:
        """Check and plan a call; raises before anything is launched or written."""
        arguments = self._names(outputs)
        layouts = [
            None if fact is None else family.layout(argument, fact)
            for argument, fact in zip(arguments, facts, strict=True)
        ]
        name, leader = arguments[self._leader], layouts[self._leader]
        if leader is None:
            raise TypeError(message(name, "None", "an array"))
        if not family.has_host:
            checks.on_gpu(name, leader.device, "NumPy arrays are computed on the CPU")
        checked = self._checked(
            dict(zip(arguments, layouts, strict=True)), options, family.has_float64 and leader.device == HOST
        )
        for argument, layout in zip(arguments, layouts, strict=True):
            if layout is not None:
                checks.device(argument, layout.device, leader.device, name)
        for number in _written(arguments, checked):
            if (layout := layouts[number]) is not None:
                checks.not_self_overlapping(arguments[number], layout.shape, layout.strides)
        try:
            plan = Plan() if leader.device == HOST else self._plan(checked.operands)
        except TooLarge as error:
            got = f"shape {leader.shape}, in a call that no launch can take ({error})"
            raise ValueError(message(name, got, "fewer elements")) from None
        follows_writes = family.follows_writes is not None
        return Call(arguments, self._absent, self._leader, layouts, checked, plan, follows_writes)

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

    def _check_contents(self, call: Call[Operands], family: Family, given: Arrays) -> None:
        assert self._contents is not None
        self._contents(call.operands, lambda name: None if given[name] is None else family.to_host(given[name]))

    def _through_dlpack(
        self, given: tuple[Any, ...], options: tuple[Any, ...], outputs: tuple[str, ...] | None, late: Late
    ) -> list[Any]:
        """Run a call on CuPy or NumPy arrays over the same memory; its results go back to the leader's library."""
        arguments = self._names(outputs)
        imported = dlpack.imported(arguments, given, arguments[self._leader])
        results = self(imported, options, outputs, late)
        return dlpack.exported(results, given[len(self.inputs) :], like=given[self._leader])


@remembered
def _prepared(operation: Operation[Any], *key: Any) -> Call[Any]:
    return operation._prepare(*key)


_addresses = SharedLimit()
"""Sets of addresses at which the arrays of prepared calls do not overlap."""
