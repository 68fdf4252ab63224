"""Where an array's elements lie, as a value."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from cuconv.runtime.dtypes import DType

HOST = -1
"""The device number of the CPU."""

ALIGNMENT = 16
"""Layouts know an address modulo this many bytes, the widest access of a thread."""


class Layout(NamedTuple):
    """All that decides how an array is processed, so a hashable key; strides in elements, offset in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType | str
    device: int
    offset: int

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def span(self) -> tuple[int, int]:
        """The bytes that the elements cover, from the first element's address: (begin, end), equal when empty."""
        if not self.size:
            return 0, 0
        reaches = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        begin = sum(min(0, reach) for reach in reaches)
        end = sum(max(0, reach) for reach in reaches) + 1
        return begin * self.itemsize, end * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes an element, for a dtype of the table."""
        assert isinstance(self.dtype, DType)
        return self.dtype.itemsize

    @property
    def first(self) -> int:
        """The first element's address in elements, modulo the alignment that layouts know."""
        return self.offset // self.itemsize

    def active(self, *axes: int) -> list[int]:
        """The strides along the axes that are longer than 1: the others' mean nothing."""
        return [self.strides[axis] for axis in axes if self.shape[axis] > 1]


class View(NamedTuple):
    """Where an array lies and how."""

    pointer: int
    layout: Layout


def dense_strides(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Strides without gaps, in elements, of axes in this order, the outermost first."""
    strides = [0] * len(shape)
    extent = 1
    for axis in reversed(order):
        strides[axis] = extent
        extent *= shape[axis]
    return tuple(strides)


def dense(shape: tuple[int, ...], order: tuple[int, ...], like: Layout) -> Layout:
    """The layout of a new array, aligned and without gaps."""
    return Layout(shape, dense_strides(shape, order), like.dtype, like.device, 0)


@lru_cache(maxsize=4096)
def stored(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The shape, outermost axis first, of an array without gaps, and where each axis stands in it, None when in order.

    Of two axes with one stride, the inner one has one element.
    """
    axes = range(len(shape))
    order = sorted(axes, key=lambda axis: (-strides[axis], -shape[axis]))
    return tuple(shape[axis] for axis in order), None if order == [*axes] else tuple(map(order.index, axes))


def is_channel_last(layout: Layout) -> bool:
    """Whether (…, dim, tokens) has its channels contiguous and not its tokens."""
    dim, length = layout.shape[-2:]
    dim_stride, length_stride = layout.strides[-2:]
    return dim > 1 and dim_stride == 1 and (length == 1 or length_stride != 1)


def order_like(layout: Layout) -> tuple[int, ...]:
    """The order of the axes, the outermost first, of a new (…, dim, n) beside this one."""
    *outer, dim, length = range(len(layout.shape))
    return (*outer, length, dim) if is_channel_last(layout) else (*outer, dim, length)
