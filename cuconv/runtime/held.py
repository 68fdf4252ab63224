"""Stand-ins for arrays: a public function that is called with them hands its call of an operation to `taking`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from cuconv.runtime import arrays, dlpack
from cuconv.runtime.arrays import Family


class Held:
    """A stand-in for an array in a call of a public function."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getattr__(self, name: str) -> Any:
        """An attribute of the array, so that an error is about the argument that does not fit."""
        return getattr(self.array, name)


def is_array(value: Any) -> bool:
    """Whether an argument of a public function is an array."""
    return arrays.family(value) is not None or dlpack.is_array(value)


def held(value: Any, known: dict[int, Held]) -> Any:
    """The stand-in for an argument; an array in several places has one stand-in, because functions compare
    arguments."""
    if isinstance(value, tuple | list):
        return tuple(held(each, known) for each in value)
    return known.setdefault(id(value), Held(value)) if is_array(value) else value


Take = Callable[..., Sequence[Any]]
"""Takes an operation and the arguments of Operation.__call__; returns stand-ins for the results."""

_take: ContextVar[Take] = ContextVar("take")


@contextmanager
def taking(take: Take) -> Iterator[None]:
    """Leave calls of operations with stand-ins to `take`."""
    token = _take.set(take)
    try:
        yield
    finally:
        _take.reset(token)


class HeldFamily(Family):
    name = "held"

    @staticmethod
    def through(*call: Any) -> Sequence[Any]:
        return _take.get()(*call)


arrays.register(Held, HeldFamily)
