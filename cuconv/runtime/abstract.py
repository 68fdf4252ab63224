"""Arrays without memory: they tell what a call would launch, without a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from cuconv.runtime import arrays
from cuconv.runtime.arrays import Facts, Maker, PlainFamily
from cuconv.runtime.dtypes import DType
from cuconv.runtime.kernel import Enqueue, Kernel
from cuconv.runtime.launch import LaunchConfig
from cuconv.runtime.layout import Layout
from cuconv.runtime.machine import assumed_device
from cuconv.runtime.plan import Launch

_made = itertools.count()


def _address() -> int:
    """An address so far from earlier ones that no two arrays of a call overlap."""
    return 2**60 + next(_made) % 2**18 * 2**44


@dataclass(frozen=True, eq=False)
class AbstractArray:
    """The shape, strides (in elements) and dtype of an array on a GPU that begins `offset` elements behind an aligned
    address.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    offset: int = 0
    address: int = field(default_factory=_address)

    @property
    def pointer(self) -> int:
        """The address of the first element."""
        return self.address + self.offset * self.dtype.itemsize


class AbstractFamily(PlainFamily):
    name = "abstract"
    address = attrgetter("pointer")

    def _place(self, array: Any) -> tuple[int, int]:
        return array.pointer, assumed_device()

    def layout(self, argument: str, facts: Facts) -> Layout:
        return Layout(*facts)

    def maker(self, layout: Layout) -> Maker:
        assert isinstance(layout.dtype, DType)
        dtype = layout.dtype

        def make() -> tuple[Any, int]:
            array = AbstractArray(layout.shape, layout.strides, dtype)
            return array, array.pointer

        return make

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        raise TypeError("an abstract array has no contents")

    def checks_contents(self) -> bool:
        return False

    def stream(self, device: int) -> int:
        return 0

    def load(self, kernel: Kernel, device: int, defined: tuple[str, ...] = ()) -> Any:
        return _Recorder(kernel)


class _Recorder:
    """A stand-in for a loaded kernel that records launches."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def bound(self, config: LaunchConfig, numbers: bytes) -> Enqueue:
        launch = Launch(self._kernel, config, numbers)

        def enqueue(pointers: Sequence[int], stream: int, late: bytes | None = None) -> None:
            _launched.get().append(launch if late is None else launch._replace(numbers=late))

        return enqueue


_launched: ContextVar[list[Launch]] = ContextVar("launched")
arrays.register(AbstractArray, AbstractFamily)


def launches_of(function: Callable[..., Any], **arguments: Any) -> tuple[Launch, ...]:
    """The launches of a call with these arguments, in order, where its arrays are AbstractArrays.

    The call is checked, so this raises what the call would.
    """
    launched: list[Launch] = []
    token = _launched.set(launched)
    try:
        function(**arguments)
    finally:
        _launched.reset(token)
    return tuple(launched)
