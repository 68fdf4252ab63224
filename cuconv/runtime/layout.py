"""Layouts: where an array's elements lie, as a value."""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import prod
from typing import NamedTuple

from cuconv.runtime.dtypes import INT64, DType
from cuconv.runtime.memo import remembered

HOST = -1
"""The device number of the CPU."""

ALIGNMENT = 16
"""Bytes modulo which a layout holds an address: the widest access of a thread."""


class Layout(NamedTuple):
    """What decides how an array is processed, as a hashable key."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Strides in elements."""
    dtype: DType | str
    """A dtype that kernels know, or the name of another one."""
    device: int
    """The number of a CUDA device, or HOST."""
    offset: int
    """The first element's address in bytes, modulo ALIGNMENT."""

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def span(self) -> tuple[int, int]:
        """The bytes that the elements cover, counted from the first element: (begin, end), equal when there is none."""
        if not self.size:
            return 0, 0
        reaches = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        begin = sum(min(0, reach) for reach in reaches)
        end = sum(max(0, reach) for reach in reaches) + 1
        return begin * self.itemsize, end * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes per element of a dtype that kernels know."""
        assert isinstance(self.dtype, DType)
        return self.dtype.itemsize

    @property
    def first(self) -> int:
        """The first element's address in elements, modulo ALIGNMENT bytes."""
        return self.offset // self.itemsize

    def active(self, *axes: int) -> list[int]:
        """The strides along those of the axes that are longer than 1; strides along other axes have no meaning."""
        return [self.strides[axis] for axis in axes if self.shape[axis] > 1]

    def with_axis(self, axis: int) -> Layout:
        """The layout with a new axis of length 1 and stride 0 in front of an axis."""
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(axis, 1)
        strides.insert(axis, 0)
        return self._replace(shape=tuple(shape), strides=tuple(strides))

    def with_order(self, *axes: int) -> Layout:
        """The layout with these axes in this order."""
        return self._replace(
            shape=tuple(self.shape[axis] for axis in axes), strides=tuple(self.strides[axis] for axis in axes)
        )


def transposed(layouts: Mapping[str, Layout | None], names: Container[str]) -> dict[str, Layout | None]:
    """Layouts, with the last two axes exchanged in those that have these names."""
    return {
        name: each.with_order(*range(len(each.shape) - 2), -1, -2) if each is not None and name in names else each
        for name, each in layouts.items()
    }


def strides_or_zeros(layout: Layout | None, rank: int) -> tuple[int, ...]:
    """Strides in elements, `rank` zeros for an array that is absent."""
    return (0,) * rank if layout is None else layout.strides


def index_numbers(**arrays: Layout | None) -> dict[str, object]:
    """The fields of an argument struct for index arrays: `<name>_stride`, along sequences, and `<name>_is_int64`."""
    numbers: dict[str, object] = {}
    for name, layout in arrays.items():
        numbers[f"{name}_stride"] = strides_or_zeros(layout, 1)[0]
        numbers[f"{name}_is_int64"] = layout is not None and layout.dtype is INT64
    return numbers


def pad_number(pad_slot_id: int, indices: Layout | None) -> int:
    """The slot number that kernels take for padding; -1 without an array of slots, so that no sequence is padding."""
    return -1 if indices is None else pad_slot_id


class View(NamedTuple):
    """The address of an array's first element, and the array's layout."""

    pointer: int
    layout: Layout


def dense_strides(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of an array without gaps and with its axes in this order, the outermost first."""
    strides = [0] * len(shape)
    extent = 1
    for axis in reversed(order):
        strides[axis] = extent
        extent *= shape[axis]
    return tuple(strides)


def dense(shape: tuple[int, ...], order: tuple[int, ...], like: Layout) -> Layout:
    """The layout of a new array, aligned and without gaps."""
    return Layout(shape, dense_strides(shape, order), like.dtype, like.device, 0)


@remembered
def in_bytes(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, tuple[int, ...] | None]:
    """The size and the strides in bytes of an array without gaps; no strides when its axes are in order."""
    is_ordered = strides == dense_strides(shape, tuple(range(len(shape))))
    return prod(shape) * itemsize, None if is_ordered else tuple(stride * itemsize for stride in strides)


def is_channel_last(layout: Layout) -> bool:
    """Whether an array (…, dim, tokens) has contiguous channels and no contiguous tokens."""
    dim, length = layout.shape[-2:]
    dim_stride, length_stride = layout.strides[-2:]
    return dim > 1 and dim_stride == 1 and (length == 1 or length_stride != 1)


def order_like(layout: Layout) -> tuple[int, ...]:
    """The order of the axes, outermost first, of a new array (…, dim, n) beside one of (…, dim, tokens)."""
    *outer, dim, length = range(len(layout.shape))
    if is_channel_last(layout):
        return (*outer, length, dim)
    # Matrix products over all tokens lay out their results like this, and the next product needs no copy.
    is_batch_inside = len(outer) == 1 and layout.shape[dim] > 1 and 0 < layout.strides[0] < layout.strides[dim]
    return (dim, *outer, length) if is_batch_inside else (*outer, dim, length)
