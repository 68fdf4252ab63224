"""Global memory of an emulated launch: the tensors' elements between fenced bytes.

Addresses are offsets in a range that may have any length. Only windows of it have memory: one around all tensors, or,
where strides are so large that this would be gigabytes, one around every part of a tensor that lies together.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

ALIGNMENT = 256
"""Bytes that device allocations are aligned to. Every array keeps its address modulo this number."""

MIN_FENCE = 4096

PAGE = 4096
"""Bytes that windows are multiples of, and that they are aligned to."""

TOGETHER = 1 << 24
"""Bytes of the widest tensor that lies together in one window."""

CLOSED = 0xFF
"""The value of all bytes between tensors. Fences cover 8 bytes at a time, and where one has a hole a kernel reads NaN.
"""


class Window(NamedTuple):
    """A part of the range of addresses that has memory."""

    begin: int
    end: int
    at: int
    """Where its bytes begin among those of all windows."""


@dataclass(frozen=True)
class _Part:
    """A part of an array and its copy, viewed as integers so that copying keeps the bits of NaN."""

    original: np.ndarray
    copy: np.ndarray
    at: int
    """Where its first element begins among the bytes of all windows."""


@dataclass(frozen=True)
class _Placed:
    """An array, its parts, and the addresses of its first element, its first byte and the byte behind its last one."""

    array: np.ndarray
    parts: Sequence[_Part]
    pointer: int
    begin: int
    end: int


class Memory:
    """Memory that holds a copy of every tensor, at an address that is the same modulo ALIGNMENT.

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
        shifts: dict[str, int] = {}
        for region in regions:
            size = region.end - region.begin
            # As wide as the region itself, so that an access one row too far is found and does not hit the next tensor.
            offset += MIN_FENCE + size
            offset += (region.begin - offset) % ALIGNMENT
            shifts |= dict.fromkeys(region.arrays, offset - region.begin)
            offset += size + MIN_FENCE + size
        if all(region.end - region.begin <= TOGETHER for region in regions):
            self.windows: Sequence[Window] = (Window(0, _pages(offset), 0),)
        else:
            self.windows = _windows_around(
                (begin + shifts[name], end + shifts[name])
                for name, array in present.items()
                for begin, end in map(_extent, _parts(array))
            )
        self.bytes = np.full(sum(window.end - window.begin for window in self.windows), CLOSED, np.uint8)
        self._is_open = np.zeros(self.bytes.size, np.uint8)
        self._placed = {name: self._place(array, shifts[name]) for name, array in present.items()}

    def pointer(self, name: str) -> int | None:
        """The address of a tensor's first element; None for an absent tensor."""
        return self._placed[name].pointer if name in self._placed else None

    def open_ranges(self, names: Container[str] | None = None) -> list[bytes]:
        """The 64-bit begin and end of each range that a kernel may access, counted from its window's begin.

        With names, of these tensors alone.
        """
        opened = self._is_open
        if names is not None:
            opened = np.zeros_like(opened)
            for name, placed in self._placed.items():
                if name in names:
                    self._open(opened, placed.parts)
        ranges = []
        for window in self.windows:
            is_open = opened[self._of(window)]
            # A window begins and ends with a fence.
            edges = np.flatnonzero(is_open[1:] != is_open[:-1]) + 1
            ranges.append(edges.astype(np.uint64).tobytes())
        return ranges

    def take(self, written: bytes) -> str | None:
        """Copy the elements into the arrays after a launch. Returns a wrong store that it finds, else None."""
        self.bytes[:] = np.frombuffer(written, np.uint8)
        strays = np.flatnonzero((self.bytes != CLOSED) & (self._is_open == 0))
        if strays.size:
            return f"a store where no tensor has an element: {self.describe(self._address_of(int(strays[0])))}"
        for name, placed in self._placed.items():
            for part in placed.parts:
                if placed.array.flags.writeable:
                    part.original[...] = part.copy
                elif not np.array_equal(part.original, part.copy):
                    return f"a store to {name}, which is read-only"
        return None

    def describe(self, address: int) -> str:
        """The place of an address relative to the nearest tensor, in words."""
        distances = {
            name: max(placed.begin - address, address - placed.end + 1, 0) for name, placed in self._placed.items()
        }
        if not distances:
            return "in no tensor"
        name = min(distances, key=lambda candidate: distances[candidate])
        placed = self._placed[name]
        if address < placed.begin:
            return f"{placed.begin - address} bytes before {name}"
        if address >= placed.end:
            return f"{address - placed.end} bytes past the end of {name}"
        window = self._window(address)
        is_open = window is not None and self._is_open[window.at + address - window.begin]
        return f"in {'an element' if is_open else 'a gap'} of {name}, {address - placed.begin} bytes from its beginning"

    def _window(self, address: int) -> Window | None:
        return next((window for window in self.windows if window.begin <= address < window.end), None)

    def _of(self, window: Window) -> slice:
        return slice(window.at, window.at + window.end - window.begin)

    def _address_of(self, place: int) -> int:
        """The address of a byte of the windows."""
        window = max((window for window in self.windows if window.at <= place), key=lambda window: window.at)
        return place - window.at + window.begin

    @staticmethod
    def _open(opened: np.ndarray, parts: Sequence[_Part]) -> None:
        """Mark the bytes of elements."""
        for part in parts:
            if (ours := part.original).size:
                marks: np.ndarray = np.ndarray(ours.shape, ours.dtype, opened, part.at, ours.strides)
                marks[...] = int.from_bytes(b"\x01" * ours.itemsize, "little")

    def _place(self, array: np.ndarray, shift: int) -> _Placed:
        parts = []
        for part in _parts(array.view(f"u{array.itemsize}")):
            pointer = _address(part) + shift
            window = self._window(pointer) or self.windows[0]
            at = pointer - window.begin + window.at
            copy: np.ndarray = np.ndarray(part.shape, part.dtype, self.bytes, at, part.strides)
            copy[...] = part
            parts.append(_Part(part, copy, at))
        self._open(self._is_open, parts)
        begin, end = _extent(array)
        return _Placed(array, parts, _address(array) + shift, begin + shift, end + shift)


def _pages(size: int) -> int:
    return -(-(size + ALIGNMENT) // PAGE) * PAGE


def _windows_around(extents: Iterator[tuple[int, int]]) -> Sequence[Window]:
    """Windows around these extents, with fences; those that would overlap are one."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted((begin // PAGE * PAGE - MIN_FENCE, _pages(end + MIN_FENCE)) for begin, end in extents):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    windows, at = [], 0
    for begin, end in joined:
        windows.append(Window(begin, end, at))
        at += end - begin
    return windows


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    """The array, or the parts of it that each lie together."""
    begin, end = _extent(array)
    if end - begin <= TOGETHER:
        yield array
        return
    widest = max(range(array.ndim), key=lambda axis: abs(array.strides[axis]) * (array.shape[axis] - 1))
    for i in range(array.shape[widest]):
        yield from _parts(array[(slice(None),) * widest + (slice(i, i + 1),)])


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
