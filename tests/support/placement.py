"""Where a test's arrays lie: views of any strides, cut from buffers that hold NaN wherever the view does not.

A kernel that reads beside its input meets NaN; one that writes beside its output changes what must stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cuconv.runtime.dtypes import DType
from cuconv.runtime.layout import ALIGNMENT, Layout
from cuconv.runtime.machine import assumed_device

Array = np.ndarray[Any, Any]

GUARD_BYTES = 256
"""Before and behind every view: a multiple of the widest access, and more than any halo."""

BUFFER_ALIGNMENT = 256
"""Bytes: a CUDA allocator's alignment, so that plans for host and device memory are the same."""

POISON = 0xFF
"""Every byte of this: a NaN in every float format, -1 in every integer one."""


@dataclass(frozen=True)
class Placement:
    """A view of an aligned buffer of `size` elements: its element 0, 0, … is the buffer's `first`."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    size: int

    @property
    def layout(self) -> Layout:
        """What cuconv knows of such an array on the GPU that plans assume."""
        return Layout(
            self.shape, self.strides, self.dtype, assumed_device(), self.first * self.dtype.itemsize % ALIGNMENT
        )

    @property
    def bytes(self) -> int:
        """The memory that the view's distinct elements take."""
        lengths = [n for n, stride in zip(self.shape, self.strides, strict=True) if stride or not n]
        return int(np.prod(lengths, dtype=np.int64)) * self.dtype.itemsize

    @property
    def is_backward(self) -> bool:
        """Whether a stride is negative, which torch does not have."""
        return any(stride < 0 for stride in self.strides)

    def view(self, buffer: Array) -> Array:
        """The view of a buffer, of whatever dtype."""
        strides = [stride * buffer.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(buffer[self.first :], self.shape, strides)


def place(
    dtype: DType,
    shape: tuple[int, ...],
    *,
    order: Sequence[int] = (),
    pad: Sequence[int] = (),
    spacing: int = 1,
    shift: int = 0,
    backward: Sequence[int] = (),
    repeated: Sequence[int] = (),
) -> Placement:
    """Lay an array out.

    `order` names the axes, the outermost first; along each the parent tensor is `pad` longer than the view. The
    innermost elements are `spacing` apart, the first one `shift` elements from an aligned address. `backward` axes
    have negative strides, `repeated` ones stride 0.
    """
    strides = [0] * len(shape)
    extent = spacing
    for axis in reversed(order or range(len(shape))):
        if axis not in repeated:
            strides[axis] = extent
            extent *= max(1, shape[axis]) + (pad[axis] if pad else 0)
    guard = GUARD_BYTES // dtype.itemsize
    first = guard + shift
    for axis in backward:
        first += max(0, shape[axis] - 1) * strides[axis]
        strides[axis] = -strides[axis]
    return Placement(dtype, tuple(shape), tuple(strides), first, guard + shift + extent + guard)


class Placed:
    """A placement with memory."""

    def __init__(self, placement: Placement, values: Any = None) -> None:
        """The view holds `values`, or poison like everything around it."""
        self.placement = placement
        self.buffer = poisoned(placement)
        self.array = placement.view(self.buffer)
        if values is not None:
            self.array[...] = values

    def copy(self) -> Placed:
        """The same contents in memory of their own."""
        twin = Placed(self.placement)
        twin.buffer[...] = self.buffer
        return twin

    @cached_property
    def is_outside(self) -> Array:
        """A mask of the buffer: what does not belong to the view."""
        mask = np.ones(self.placement.size, bool)
        self.placement.view(mask)[...] = False
        return mask


def assert_unchanged(name: str, before: Placed, after: Array) -> None:
    """A buffer, the view and all around it, still has the bits that it had."""
    count = int((bits(after) != bits(before.buffer)).sum())
    assert count == 0, f"{count} elements of or around {name} were written to"


def assert_unchanged_around(name: str, before: Placed, after: Array) -> None:
    """The part of a buffer that does not belong to the view still has the bits that it had."""
    count = int((bits(after) != bits(before.buffer))[before.is_outside].sum())
    assert count == 0, f"{count} elements around {name} were written to"


def poisoned(placement: Placement) -> Array:
    """A buffer of nothing but poison."""
    count = placement.size * placement.dtype.itemsize
    memory = np.full(count + BUFFER_ALIGNMENT, POISON, np.uint8)
    start = -memory.ctypes.data % BUFFER_ALIGNMENT
    return memory[start : start + count].view(placement.dtype.numpy)


def bits(array: Array) -> Array:
    """Elements as integers, so that NaN equals NaN and 0 does not equal -0."""
    return array.view(f"u{array.itemsize}")
