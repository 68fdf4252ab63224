"""A sample call as a value: the shapes, strides, dtypes and ranges of its arrays, without their memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeVar

import numpy as np

from cuconv.runtime.abstract import AbstractArray
from cuconv.runtime.blocks import CHUNKS, COMPUTED, FIRST, LAST, LAST_CHUNKS
from cuconv.runtime.dtypes import FLOATS, INT32, DType
from cuconv.runtime.launch import ceil_div
from cuconv.runtime.layout import dense_strides


@dataclass(frozen=True)
class Array:
    """One argument: dense, with its axes in any order."""

    shape: tuple[int, ...]
    dtype: DType
    order: tuple[int, ...] | None = None
    """The axes from the outermost to the contiguous one; None where they are in order."""
    broadcast: tuple[int, ...] = ()
    """Axes with a stride of 0."""
    low: float = -1.0
    """The least random number."""
    high: float = 1.0
    """The largest random number."""
    values: tuple[int, ...] | None = None
    """The contents of an index array; None for random numbers from low to high."""
    touched: int | None = None
    """Elements that a call reads plus elements that it writes; None where it moves every stored element once."""

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in memory: an axis that is broadcast has one element."""
        return tuple(1 if axis in self.broadcast else length for axis, length in enumerate(self.shape))

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        dense = dense_strides(self.stored, self.axes)
        return tuple(0 if axis in self.broadcast else stride for axis, stride in enumerate(dense))

    @property
    def axes(self) -> tuple[int, ...]:
        """The order of the axes, given or not."""
        return self.order or tuple(range(len(self.shape)))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the array takes."""
        return prod(self.stored) * self.dtype.itemsize

    @property
    def bytes_moved(self) -> int:
        """The fewest bytes of the array that a call moves."""
        return self.nbytes if self.touched is None else self.touched * self.dtype.itemsize

    @property
    def abstract(self) -> AbstractArray:
        """The array for a call that is only planned."""
        return AbstractArray(self.shape, self.strides, self.dtype)

    def host(self, seed: int) -> np.ndarray[Any, Any]:
        """A NumPy array with these strides."""
        if self.values is not None:
            dense = np.array(self.values, self.dtype.numpy).reshape(self.shape)
        else:
            drawn = np.random.default_rng(seed).uniform(self.low, self.high, [self.stored[axis] for axis in self.axes])
            dense = drawn.astype(self.dtype.numpy).transpose(np.argsort(self.axes).tolist())
        return np.broadcast_to(dense, self.shape) if self.broadcast else dense


Cut = tuple[int, tuple[int, ...]]
"""An axis and the indices along it that are kept."""


@dataclass(frozen=True)
class Workload:
    """One call of a public function."""

    function: str
    sizes: Mapping[str, Any]
    """The keyword arguments of the maker that described the call."""
    arrays: Mapping[str, Array]
    """Arrays by argument, in the order of the function's parameters."""
    outs: Mapping[str, Array]
    """Results in the order in which the function returns them, by the argument that takes them: "out", or "out[0]",
    "out[1]", … where `out` takes a tuple.
    """
    options: Mapping[str, Any] = field(default_factory=dict)
    """All arguments that are no arrays."""
    updated: tuple[str, ...] = ()
    """Arguments that are read and written in place."""
    exponentials: int = 0
    """Exponentials that a selective scan computes, which bound its time besides memory."""
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    """By argument or result, the part that is compared where the whole would take the oracle too long. A call on these
    parts of the arguments gives these parts of the results.
    """
    cut_options: Mapping[str, Any] = field(default_factory=dict)
    """Options that are different in the call on the parts of `cuts`."""
    is_common: bool = True
    """Whether other libraries may support such a call."""
    over: Mapping[str, str] = field(default_factory=dict)
    """By result, the argument that it overwrites; these arguments are updated, and not among `outs`."""
    parts: tuple[Mapping[str, Cut], ...] = ()
    """Several cuts, instead of `cuts`, where no single part of the arguments gives a part of every result; each is
    compared in the results that it names.
    """
    through: Callable[..., Any] | None = None
    """The function that engines call instead of the public one, with other arguments."""
    meaning: Workload | None = None
    """Where `through` is called, the call of the public function that gives the same results. Its index arrays are the
    equivalents of those of `through`; all other arrays are the same.
    """

    @property
    def title(self) -> str:
        """All sizes, which distinguish the workload from others of the function."""
        return " ".join(f"{name}={value}" for name, value in self.sizes.items())

    @property
    def bytes_moved(self) -> int:
        """The fewest bytes that a call moves to and from the device's memory."""
        return sum(array.bytes_moved for array in (*self.arrays.values(), *self.outs.values()))

    @property
    def results(self) -> tuple[str, ...]:
        """Everything that a call writes: results, then arguments updated in place."""
        return (*self.outs, *self.updated)

    @property
    def compared(self) -> tuple[tuple[Workload, tuple[str, ...]], ...]:
        """What is compared: the workload with the cuts of each part, and the names of the part's results."""
        if not self.parts:
            return ((self, self.results),)
        return tuple(
            (replace(self, cuts=cuts, parts=()), tuple(name for name in self.results if name in cuts))
            for cuts in self.parts
        )

    def seed(self, name: str, number: int = 0) -> int:
        """The seed of an array's random numbers: the same on every machine, different for every array and set."""
        return zlib.crc32(f"{self.function} {self.title} {name} {number}".encode())

    def call(self, arrays: Mapping[str, Any], outs: Sequence[Any] | None = None) -> dict[str, Any]:
        """The keyword arguments of the call with these arrays and, if given, these arrays for results."""
        arguments = {**arrays, **self.options, **{out: arrays[name] for out, name in self.over.items()}}
        for name, out in zip(self.outs, outs, strict=True) if outs is not None else ():
            argument, bracket, _ = name.partition("[")
            arguments[argument] = (*arguments.get(argument, ()), out) if bracket else out
        return arguments

    def named(self, returned: Any) -> dict[str, Any]:
        """The results of a call by name, from what it returned; None for one that was not wanted."""
        if self.over:
            return {}
        results = returned if isinstance(returned, tuple) else (returned,)
        return dict(zip(self.outs, (each for each in results if each is not None), strict=True))

    def abstract(self) -> dict[str, Any]:
        """The keyword arguments of a call that is only planned."""
        arrays = {name: array.abstract for name, array in self.arrays.items()}
        return self.call(arrays, [array.abstract for array in self.outs.values()])

    def host(self, number: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays of a call as NumPy ones."""
        return {name: array.host(self.seed(name, number)) for name, array in self.arrays.items()}

    def cut(self, name: str, array: Any) -> Any:
        """The part of a NumPy or CuPy argument or result that is compared, as a copy."""
        if name not in self.cuts:
            return array
        axis, kept = self.cuts[name]
        return array.take(kept, axis)


def snapshot_rows(counts: Sequence[int], every: int) -> list[tuple[int, int, int]]:
    """Rows of snapshots (sequence, position, slot) every `every` tokens, none for 0, in slots behind the sequences'."""
    if not every:
        return []
    places = [(i, t) for i, count in enumerate(counts) for t in range(every, count + 1, every)]
    return [(*place, len(counts) + number) for number, place in enumerate(places)]


@dataclass(frozen=True)
class BlockCache:
    """The index arrays of a prefill with a prefix cache that keeps the state at the end of every block. Each sequence
    has one block from an earlier call, and starts from its state.
    """

    counts: Sequence[int]
    """Tokens of each sequence."""
    size: int
    """Tokens per block."""

    @property
    def most(self) -> int:
        """Blocks of the longest sequence, including the one from an earlier call."""
        return 1 + ceil_div(max(self.counts, default=0), self.size)

    @property
    def slots(self) -> int:
        """Slots of the pool."""
        return len(self.counts) * self.most

    @property
    def last(self) -> list[int]:
        """The last block of each sequence; the one from an earlier call has the number 0."""
        return [ceil_div(count, self.size) for count in self.counts]

    @property
    def snapshots(self) -> list[tuple[int, int, int]]:
        """Rows (sequence, position, slot): the blocks that end before each sequence's last one."""
        table = scattered(self.slots)
        return [
            (i, block * self.size, table[i * self.most + block])
            for i, last in enumerate(self.last)
            for block in range(1, last)
        ]

    @property
    def shared(self) -> dict[str, Array]:
        """The arrays that both forms have: the slot of each block, and the block that a sequence starts from."""
        n = len(self.counts)
        return {
            "cache_indices": Array((n, self.most), INT32, values=scattered(self.slots)),
            "state_column": Array((n,), INT32, values=(0,) * n),
        }

    @property
    def given(self) -> dict[str, Array]:
        """All arrays as engines give them. A chunk is a block, or the part of a sequence's last block."""
        starts, last_chunks = [0], []
        for count, last in zip(self.counts, self.last, strict=True):
            begin = starts[-1]
            starts += [begin + min(block * self.size, count) for block in range(1, max(last, 1) + 1)]
            last_chunks.append(len(starts) - 2)
        n = len(self.counts)
        of_sequences = {FIRST: (1,) * n, LAST: self.last, COMPUTED: (self.size,) * n, LAST_CHUNKS: last_chunks}
        found = {name: Array((n,), INT32, values=tuple(values)) for name, values in of_sequences.items()}
        return {**self.shared, **found, CHUNKS: Array((len(starts),), INT32, values=tuple(starts))}

    @property
    def explicit(self) -> dict[str, Array]:
        """All arrays as public functions take them."""
        table, rows = scattered(self.slots), self.snapshots
        finals = tuple(table[i * self.most + last] for i, last in enumerate(self.last))
        return {
            **self.shared,
            "dst_state_indices": Array((len(finals),), INT32, values=finals),
            "snapshots": Array((len(rows), 3), INT32, values=tuple(number for row in rows for number in row)),
        }


def without_zero(sizes: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """All sizes, except for those of these names that are 0 or empty, as if the call had no such size."""
    return {each: value for each, value in sizes.items() if each not in names or value}


def spread(count: int, most: int = 32) -> tuple[int, ...]:
    """Up to `most` indices from first to last."""
    return tuple(dict.fromkeys(int(i) for i in np.linspace(0, count - 1, min(count, most))))


Value = TypeVar("Value")


def numbered(values: Iterable[Value]) -> dict[str, Value]:
    """Values by the names of results that `out` takes as a tuple: "out[0]", "out[1]", …"""
    return {f"out[{number}]": value for number, value in enumerate(values)}


CHANNELS, TOKENS = "channels", "tokens"
"""Which axis is contiguous."""

Rows = Mapping[str, tuple[Mapping[str, Any], ...]]
"""Sizes of workloads by public function."""


def choice(name: str, got: str, *known: str) -> str:
    """`got`, which must be one of the known words."""
    if got not in known:
        raise ValueError(f"{name}: got {got!r}; wanted one of {', '.join(known)}")
    return got


def element_of(dtype: str, name: str = "dtype", known: tuple[DType, ...] = FLOATS) -> DType:
    """The dtype of this name, a floating-point one unless others are known."""
    return next(each for each in known if each.name == choice(name, dtype, *map(str, known)))


def scattered(count: int) -> tuple[int, ...]:
    """All slots of a pool, each once, in an order in which no slot follows its neighbour."""
    half = ceil_div(count, 2)
    order = [0] * count
    order[::2], order[1::2] = range(half), range(half, count)
    return tuple(order)
