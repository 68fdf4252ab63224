"""What a call is made on, as a value: shapes, strides, dtypes and ranges, but no memory yet."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from cuconv.runtime.abstract import AbstractArray
from cuconv.runtime.dtypes import FLOATS, DType
from cuconv.runtime.launch import ceil_div
from cuconv.runtime.layout import dense_strides


@dataclass(frozen=True)
class Array:
    """One argument: dense, its axes in an order of its own."""

    shape: tuple[int, ...]
    dtype: DType
    order: tuple[int, ...] | None = None
    """The axes from the outermost to the contiguous one; as they come when None."""
    tied: tuple[int, ...] = ()
    """Axes along which all elements are one, with a stride of 0."""
    low: float = -1.0
    high: float = 1.0
    values: tuple[int, ...] | None = None
    """What index arrays hold; None for random numbers from low to high."""
    touched: int | None = None
    """Elements that a call reads or writes, both counted; each once unless said otherwise."""

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in memory: an axis that is tied has one element."""
        return tuple(1 if axis in self.tied else length for axis, length in enumerate(self.shape))

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        dense = dense_strides(self.stored, self.axes)
        return tuple(0 if axis in self.tied else stride for axis, stride in enumerate(dense))

    @property
    def axes(self) -> tuple[int, ...]:
        """The order of the axes, given or not."""
        return self.order or tuple(range(len(self.shape)))

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return prod(self.stored) * self.dtype.itemsize

    @property
    def bytes_moved(self) -> int:
        """What a call at least moves of it."""
        return self.nbytes if self.touched is None else self.touched * self.dtype.itemsize

    @property
    def abstract(self) -> AbstractArray:
        """For a call that is only planned."""
        return AbstractArray(self.shape, self.strides, self.dtype)

    def host(self, seed: int) -> np.ndarray[Any, Any]:
        """As a NumPy array of these strides."""
        if self.values is not None:
            dense = np.array(self.values, self.dtype.numpy).reshape(self.shape)
        else:
            drawn = np.random.default_rng(seed).uniform(self.low, self.high, [self.stored[axis] for axis in self.axes])
            dense = drawn.astype(self.dtype.numpy).transpose(np.argsort(self.axes).tolist())
        return np.broadcast_to(dense, self.shape) if self.tied else dense


Cut = tuple[int, tuple[int, ...]]
"""An axis and the indices along it that are kept."""


@dataclass(frozen=True)
class Workload:
    """One call of a public function."""

    function: str
    sizes: Mapping[str, Any]
    """The keyword arguments that it was made from."""
    arrays: Mapping[str, Array]
    """By argument, in the order of the function's parameters."""
    outs: tuple[Array, ...]
    """What `out=` takes."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """All arguments that are no arrays."""
    updated: tuple[str, ...] = ()
    """Arguments that are read and written in place."""
    exponentials: int = 0
    """How many a selective scan computes: its other bound."""
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    """What to keep of every argument, and of the results under out0, out1 and so on, so that a call on what is kept
    gives what is kept of the results: a part that the oracle does in a moment.
    """
    cut_options: Mapping[str, Any] = field(default_factory=dict)
    """Options that are others in the call on what is kept."""

    @property
    def title(self) -> str:
        """What tells it from other workloads of the function."""
        return " ".join(f"{name}={value}" for name, value in self.sizes.items())

    @property
    def bytes_moved(self) -> int:
        """The least traffic with the device's memory."""
        return sum(array.bytes_moved for array in (*self.arrays.values(), *self.outs))

    def seed(self, name: str, number: int = 0) -> int:
        """Of an array's random numbers: the same everywhere, another one for every array and every set of arrays."""
        return zlib.crc32(f"{self.function} {self.title} {name} {number}".encode())

    def call(self, arrays: Mapping[str, Any], outs: Sequence[Any] | None = None) -> dict[str, Any]:
        """The keyword arguments of the call with these arrays."""
        arguments = {**arrays, **self.options}
        if outs is not None:
            arguments["out"] = tuple(outs) if self.is_split else outs[0]
        return arguments

    @property
    def is_split(self) -> bool:
        """Whether the function returns several results, and takes as many in `out`."""
        return self.function.endswith("split")

    def abstract(self) -> dict[str, Any]:
        """The keyword arguments of a call that is only planned."""
        arrays = {name: array.abstract for name, array in self.arrays.items()}
        return self.call(arrays, [array.abstract for array in self.outs])

    def host(self, number: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays of a call as NumPy ones."""
        return {name: array.host(self.seed(name, number)) for name, array in self.arrays.items()}

    def cut(self, name: str, array: Any) -> Any:
        """What is kept of an argument or a result; a copy, of NumPy or CuPy arrays."""
        if name not in self.cuts:
            return array
        axis, kept = self.cuts[name]
        return array.take(kept, axis)


def spread(count: int, most: int = 32) -> tuple[int, ...]:
    """Up to `most` indices from first to last."""
    return tuple(dict.fromkeys(int(i) for i in np.linspace(0, count - 1, min(count, most))))


CHANNELS, TOKENS = "channels", "tokens"
"""The axis that is contiguous."""


def choice(name: str, got: str, *known: str) -> str:
    """One of the known words."""
    if got not in known:
        raise ValueError(f"{name}: got {got!r}; wanted one of {', '.join(known)}")
    return got


def element_of(dtype: str, name: str = "dtype") -> DType:
    """The floating-point dtype of this name."""
    return next(each for each in FLOATS if each.name == choice(name, dtype, *map(str, FLOATS)))


def scattered(count: int) -> tuple[int, ...]:
    """Slots of a pool, every one once and none beside the one before."""
    half = ceil_div(count, 2)
    return tuple(index // 2 + half * (index % 2) for index in range(count))
