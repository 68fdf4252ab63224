"""What the calls of all operations share: a launch as a value, written memory that is nobody else's, the enqueueing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import add, le
from typing import Any, Generic, NamedTuple, TypeVar

from cuconv import checks
from cuconv.arrays import Facts, Family
from cuconv.kernel import Enqueue, Kernel
from cuconv.launch import LaunchConfig
from cuconv.layout import Layout, View

MAX_APART = 512
"""Sets of addresses that a call remembers: a few for every layer of a model."""


class Launch(NamedTuple):
    """A kernel, how it is launched, and its arguments behind the pointers."""

    kernel: Kernel
    config: LaunchConfig
    numbers: bytes


def launches(planned: Launch | tuple[Launch, ...] | None) -> tuple[Launch, ...]:
    """What a plan says is to be launched, in order."""
    if planned is None:
        return ()
    return (planned,) if isinstance(planned, Launch) else planned


class Call:
    """What is known of a call from its arrays' facts, and so the same for every later call with these facts."""

    def __init__(
        self,
        arguments: Sequence[str],
        layouts: Sequence[Layout | None],
        launch: Launch | tuple[Launch, ...] | None,
        written: Sequence[int] = (),
        in_place: tuple[int, int] | None = None,
    ) -> None:
        """The arrays in the order of the kernels' pointers; no launch when there is nothing for a GPU to compute.

        Several launches run one after the other, and all take the same pointers. `written` are the numbers of the
        given arrays that are written; two of the same layout, the first of them written, may be `in_place`: at the same
        address.
        """
        first = layouts[0]
        assert first is not None
        self.device = first.device
        self._arguments = arguments
        self._layouts = layouts
        self._spans = [(0, 0) if layout is None else layout.span for layout in layouts]
        self._begins, self._ends = zip(*self._spans, strict=True)
        self._written = written
        self._in_place = in_place
        self._launches: tuple[Launch, ...] = launches(launch)
        self._loaded: list[Enqueue] = []
        self._apart: set[tuple[int, ...]] = set()

    def check_overlap(self, pointers: Sequence[int]) -> None:
        """ValueError when an array that is written shares memory with another argument."""
        if not self._written or (key := tuple(pointers)) in self._apart:
            return
        self._check_apart(pointers)
        # Forgotten all at once, for programs whose arrays are always elsewhere.
        if len(self._apart) == MAX_APART:
            self._apart.clear()
        self._apart.add(key)

    def _check_apart(self, pointers: Sequence[int]) -> None:
        if len(self._written) > 1:
            # That no two arrays meet at all is quicker seen than that each of several meets no other.
            begins = sorted(map(add, pointers, self._begins))
            if all(map(le, sorted(map(add, pointers, self._ends)), begins[1:])):
                return
        for number in self._written:
            begin, end = self._spans[number]
            begin += pointers[number]
            end += pointers[number]
            for other, (other_begin, other_end) in enumerate(self._spans):
                # Bounds first: they rule out nearly everything at the cost of two comparisons.
                if pointers[other] + other_begin < end and begin < pointers[other] + other_end and other != number:
                    if (number, other) == self._in_place and pointers[number] == pointers[other]:
                        continue
                    self._check_disjoint(number, other, pointers)

    def _check_disjoint(self, number: int, other: int, pointers: Sequence[int]) -> None:
        a, b = self._layouts[number], self._layouts[other]
        assert a is not None and b is not None  # their spans are not empty
        names = self._arguments
        checks.disjoint(names[number], View(pointers[number], a), names[other], View(pointers[other], b))

    def enqueue(self, pointers: Sequence[int], family: Family) -> None:
        """Launch on the caller's current stream, unless there is nothing to compute; pointers left out are null."""
        if not self._launches:
            return
        if not self._loaded:
            self._loaded = [
                family.load(kernel, self.device).bound(config, numbers) for kernel, config, numbers in self._launches
            ]
        stream = family.stream(self.device)
        for enqueue in self._loaded:
            enqueue(pointers, stream)


Result = TypeVar("Result", bound=Call)


class Prepared(Generic[Result]):
    """A function that prepares calls, which remembers them: `prepare(*options, *facts)`.

    The last one stands in front of the others: to compare facts takes half as long as to hash them, and one call is
    mostly like the one before, a model's layers being alike.
    """

    def __init__(self, prepare: Callable[..., Result]) -> None:
        self._remembered = lru_cache(maxsize=4096)(prepare)
        self._last: tuple[tuple[Any, ...], list[Facts | None], Result] | None = None

    def __call__(self, options: tuple[Any, ...], facts: list[Facts | None]) -> Result:
        """The call with these options on arrays with these facts."""
        last = self._last
        if last is not None and last[1] == facts and last[0] == options:
            return last[2]
        call = self._remembered(*options, *facts)
        self._last = options, facts, call
        return call
