"""Generated code that recognises arrays like those of an earlier call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cuconv.runtime import generated
from cuconv.runtime.layout import ALIGNMENT


class Recogniser:
    """Recognises other arrays with the facts of a call, and finds their addresses."""

    def __init__(
        self,
        given: Sequence[Any],
        recognise: Callable[[Mapping[int, Any]], tuple[list[str], dict[str, Any]]],
        address: Callable[[Any], int],
        mark_written: Callable[[Sequence[Any]], None],
        is_followed: bool = False,
        uncounted: frozenset[int] = frozenset(),
    ) -> None:
        """Take the arrays of a call, None for absent ones.

        `recognise` gets the arrays by their places, each once; it returns lines of code and the values of names in
        them. The lines `return None` if one of the arrays a0, a1, … in these places has other facts, except for its
        address; otherwise they assign the addresses to p0, p1, …
        """
        places = {place: array for place, array in enumerate(given) if array is not None}
        self.same = same = repeated(given)
        """For each array that also has an earlier place, its later place and that earlier one."""
        distinct = {place: array for place, array in places.items() if place not in same}
        lines, self.values = recognise(distinct)
        self.misaligned = _misaligned(distinct, address)
        """Code that says whether recognised arrays have other addresses modulo ALIGNMENT."""
        self.unpacking = f"{''.join(f'a{place}, ' for place in range(len(given)))} = given"
        """The code that names the arrays of `given`."""
        self.lines = [
            *_unless([f"a{place} is not a{other}" for place, other in same.items()]),
            *lines,
            *(f"p{place} = p{other}" for place, other in same.items()),
        ]
        """The code that recognises arrays in their places, except for alignment, and assigns their addresses."""
        absent = [f"a{place} is not None" for place in range(len(given)) if place not in places]
        self.of_given = [self.unpacking, *_unless(absent), *self.lines]
        """The code that does so for the arrays of `given`, and checks that the others are absent."""
        self.count = len(distinct)
        """The number of arrays, each counted once."""
        self.pointers = [f"p{place}" for place in places]
        """The names of the addresses, in the order of the arrays."""
        self.mark_written = mark_written
        """Tells the library that some of the arrays have new contents."""
        self.addresses: Callable[[Sequence[Any]], list[int] | None] = generated.function(
            "given",
            [*self.of_given, *_unless([self.misaligned]), f"return [{', '.join(self.pointers)}]"],
            self.values,
        )
        """The addresses of arrays with the facts of an earlier call; None where it cannot be sure."""
        self.is_followed = is_followed
        """Whether autograd follows one of the arrays in grad mode."""
        self.uncounted = uncounted
        """The places of arrays for which the library counts no writes: inference tensors of torch."""


def repeated(given: Sequence[Any]) -> dict[int, int]:
    """For each value that also has an earlier place, its place and the first such place; None does not count."""
    places = {place: each for place, each in enumerate(given) if each is not None}
    first = {id(each): place for place, each in reversed(places.items())}
    return {place: first[id(each)] for place, each in places.items() if first[id(each)] != place}


def _unless(conditions: Sequence[str]) -> list[str]:
    """The line that returns None where one of these conditions holds; no line for no conditions."""
    return [f"if {' or '.join(conditions)}: return None"] if conditions else []


def _misaligned(arrays: Mapping[int, Any], address: Callable[[Any], int]) -> str:
    offsets = {place: address(array) % ALIGNMENT for place, array in arrays.items()}
    differences = (f"p{place} ^ {offset}" if offset else f"p{place}" for place, offset in offsets.items())
    return f"({' | '.join(differences)}) & {ALIGNMENT - 1}"
