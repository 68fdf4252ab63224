"""Stand-ins for arrays: a public function that is called with them leaves its call of an operation to whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from cuconv.runtime import arrays, dlpack
from cuconv.runtime.arrays import Family


class Held:
    """An array in the place of which a function is called."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getattr__(self, name: str) -> Any:
        """What the array has: where another argument does not fit, an error is to name that one."""
        return getattr(self.array, name)


def is_array(value: Any) -> bool:
    """Whether an argument of a public function is an array."""
    return arrays.family(value) is not None or dlpack.is_array(value)


def held(value: Any, known: dict[int, Held]) -> Any:
    """What a function gets in the place of an argument: one for an array in several places, because functions ask."""
    if isinstance(value, tuple | list):
        return tuple(held(each, known) for each in value)
    return known.setdefault(id(value), Held(value)) if is_array(value) else value


Take = Callable[..., Sequence[Any]]
"""Takes the arguments of Operation.__call__ behind the operation; returns what stands for the results."""

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
