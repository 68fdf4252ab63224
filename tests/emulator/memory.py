"""Global memory of an emulated launch: the tensors' elements between fenced bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 256
"""Bytes that device allocations are aligned to. Every array keeps its address modulo this number."""

MIN_FENCE = 4096
CLOSED = 0xFF
"""The value of all bytes between tensors. Fences cover 8 bytes at a time, and where one has a hole a kernel reads NaN.
"""


@dataclass(frozen=True)
class _Placed:
    """An array and its copy in the buffer, viewed as integers so that copying keeps the bits of NaN."""

    array: np.ndarray
    original: np.ndarray
    copy: np.ndarray
    pointer: int
    begin: int
    end: int


class Memory:
    """A buffer that holds a copy of every tensor, at an address that is the same modulo ALIGNMENT.

    Arrays that share elements share them here; all others lie apart, even where one fills the gaps of another.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray | None]) -> None:
        present = {name: array for name, array in tensors.items() if array is not None}
        regions: list[_Region] = []
        for name, array in present.items():
            added = _Region({name: array})
            for region in [region for region in regions if region.shares(array)]:
                regions.remove(region)
                added = _Region({**region.arrays, **added.arrays})
            regions.append(added)
        offset = 0
        starts: list[int] = []
        for region in regions:
            size = region.end - region.begin
            # As wide as the region itself, so that an access one row too far is found and does not hit the next tensor.
            offset += MIN_FENCE + size
            offset += (region.begin - offset) % ALIGNMENT
            starts.append(offset)
            offset += size + MIN_FENCE + size
        self.bytes = np.full(offset + ALIGNMENT, CLOSED, np.uint8)
        self._is_open = np.zeros(self.bytes.size, np.uint8)
        self._placed: dict[str, _Placed] = {}
        for region, start in zip(regions, starts, strict=True):
            for name, array in region.arrays.items():
                self._place(name, array, start - region.begin)

    def pointer(self, name: str) -> int | None:
        """The offset of a tensor's first element in the buffer, in bytes; None for an absent tensor."""
        return self._placed[name].pointer if name in self._placed else None

    def open_ranges(self) -> bytes:
        """Begin and end of all ranges that a kernel may access, as pairs of 64-bit integers."""
        edges = np.flatnonzero(np.diff(self._is_open, prepend=0, append=0))
        return edges.astype(np.uint64).tobytes()

    def take(self, written: bytes) -> str | None:
        """Copy the buffer's elements into the arrays after a launch. Returns a wrong store that it finds, else None."""
        self.bytes[:] = np.frombuffer(written, np.uint8)
        strays = np.flatnonzero((self.bytes != CLOSED) & (self._is_open == 0))
        if strays.size:
            return f"a store where no tensor has an element: {self.describe(int(strays[0]))}"
        for name, placed in self._placed.items():
            if placed.array.flags.writeable:
                placed.original[...] = placed.copy
            elif not np.array_equal(placed.original, placed.copy):
                return f"a store to {name}, which is read-only"
        return None

    def describe(self, offset: int) -> str:
        """The place of a byte of the buffer relative to the nearest tensor, in words."""
        distances = {
            name: max(placed.begin - offset, offset - placed.end + 1, 0) for name, placed in self._placed.items()
        }
        if not distances:
            return "in no tensor"
        name = min(distances, key=lambda candidate: distances[candidate])
        placed = self._placed[name]
        if offset < placed.begin:
            return f"{placed.begin - offset} bytes before {name}"
        if offset >= placed.end:
            return f"{offset - placed.end} bytes past the end of {name}"
        where = "an element" if self._is_open[offset] else "a gap"
        return f"in {where} of {name}, {offset - placed.begin} bytes from its beginning"

    def _place(self, name: str, array: np.ndarray, shift: int) -> None:
        integers = array.view(f"u{array.itemsize}")
        begin, end = _extent(array)
        pointer = _address(array) + shift
        layout = (array.shape, integers.dtype)
        copy: np.ndarray = np.ndarray(*layout, self.bytes, pointer, array.strides)
        copy[...] = integers
        if array.size:
            np.ndarray(*layout, self._is_open, pointer, array.strides)[...] = int.from_bytes(
                b"\x01" * array.itemsize, "little"
            )
        self._placed[name] = _Placed(array, integers, copy, pointer, begin + shift, end + shift)


class _Region:
    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = dict(arrays)
        extents = [_extent(array) for array in arrays.values()]
        self.begin = min(begin for begin, _ in extents)
        self.end = max(end for _, end in extents)

    def shares(self, array: np.ndarray) -> bool:
        return any(np.shares_memory(array, other) for other in self.arrays.values())


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _extent(array: np.ndarray) -> tuple[int, int]:
    """The addresses of the first byte of the array's elements and of the byte behind the last one."""
    begin = end = _address(array)
    if array.size == 0:
        return begin, end
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        begin, end = begin + min(reach, 0), end + max(reach, 0)
    return begin, end + array.itemsize
