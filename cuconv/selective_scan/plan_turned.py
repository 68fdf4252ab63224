"""Copies of arrays that are not laid out as the kernels of contiguous tokens or channels need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from cuconv.runtime.dtypes import INT32, DType
from cuconv.runtime.launch import MAX_DIVIDEND, MAX_VECTOR_BYTES, ceil_div, fast_div, widest_vector
from cuconv.runtime.layout import Layout
from cuconv.runtime.machine import multiprocessors
from cuconv.runtime.plan import NULL, Launch, Plan
from cuconv.selective_scan.check import Inputs, is_variable
from cuconv.selective_scan.kernels import (
    MAX_TOKENS,
    MOST_ALIGNED,
    SelectiveScanAlign,
    SelectiveScanTurn,
    lanes_for,
    max_tile_states,
)
from cuconv.selective_scan.plan import CHANNELS, TOKENS, matrix_vector, vector

LEAST_TOKENS = 64
"""Tokens of a row from which on a copy and a kernel of contiguous arrays are quicker than a kernel of any strides. On
an H200, with only delta to be copied, 1 x 5120 x 4096 takes 267 us with a copy and 529 without, 1 x 8192 x 64 10.5 and
12.3, but 1 x 8192 x 32 12.0 and 7.7 (bfloat16).
"""

LEAST_COPIED = 256
"""Tokens of a row from which on copies are quicker where u, and so every array of rows, is copied. 1 x 5120 of 2047
contiguous tokens take 154 us with copies and 315 without, of 301 35.6 and 61.0, but of 100 25.9 and 15.7; 2 x 2052
contiguous channels of 2048 tokens 129 and 214, of 300 36.1 and 41.9, and their gradients 357 and 1427, 116 and 157, of
100 87.8 and 78.1. With 64 states in float32, 1 x 1024 contiguous channels of 256 tokens take 24.9 and 32.2.
"""

FEW_ROWS = 8192
"""Channels of all rows up to which LEAST_COPIED always holds; with more channels, only with more than 16 states, or
where kernels of any strides access one or two tokens of 16 bits at a time. 8 x 1536 of 2047 tokens take 304 us with
copies and 435 without, but of 516, which they access by four, 93.6 and 85.1, and of 2045 in float32 489 and 390. With
64 states in float32, 8 x 2048 contiguous channels of 2048 tokens take 1728 and 2247, of 512 449 and 572.
"""


class Copy(NamedTuple):
    """An array, its copy, and the names of both."""

    array: Layout
    to: Layout
    name: str
    to_name: str


class Turned(NamedTuple):
    """Operands that are laid out alike, and the launches that copy other arrays to them and results back."""

    operands: Any
    before: tuple[Launch, ...]
    after: tuple[Launch, ...]
    regions: Mapping[str, int]
    """Where copies begin in scratch memory, in bytes, by the name of the array with `turned_` in front."""
    scratch: int
    dropped: tuple[str, ...] = ()
    """Arguments that are null for kernels."""

    def joined(self, plan: Plan) -> Plan:
        """The plan of these operands with the copies, which come behind the plan's own scratch memory."""
        begin = _whole(plan.scratch, 1)
        named = {name.removeprefix("turned_"): name for name in self.regions} | dict.fromkeys(self.dropped, NULL)
        between = (each._replace(named=named) for each in plan.launches)
        regions = {name: begin + at for name, at in self.regions.items()}
        return Plan((*self.before, *between, *self.after), begin + self.scratch, regions)


def turned(
    operands: Any,
    read: Sequence[str],
    written: Sequence[str],
    fits: Callable[[Any], object],
    tokens_at_once: int | None = None,
    least_copied: int = LEAST_COPIED,
) -> Turned | None:
    """The operands with copies of some of these arrays, so that they fit; None where copies do not help.

    The arrays are (…, dim or d_state, tokens). Copies have contiguous tokens or channels, if possible as u has, and
    aligned vectors. Contiguous tokens are accessed `tokens_at_once`, or a vector, at a time. transformers calls a scan
    with u and z of contiguous channels and delta of contiguous tokens; mamba_ssm's rows of contiguous tokens are
    aligned where their length is a multiple of a vector. u is copied only in rows of at least `least_copied` tokens.
    """
    u: Layout = operands.u
    for axis in sorted((TOKENS, CHANNELS), key=lambda axis: u.strides[axis] != 1):
        whole = (axis == TOKENS and tokens_at_once) or MAX_VECTOR_BYTES // u.itemsize
        if u.shape[TOKENS] < (LEAST_TOKENS if _is_accessed(u, axis, whole) else least_copied):
            continue
        stays, laid = partial(_is_accessed, axis=axis, whole=whole), partial(_turned, axis=axis)
        copied = _copied(operands, axis, stays, laid, read, written)
        if copied and copied.regions and fits(copied.operands):
            return copied
    return None


def turned_inputs(
    inputs: Inputs,
    sequences: int,
    fits: Callable[[Inputs], object],
    work: int | None,
    work_of_others: int | None = None,
) -> Turned | None:
    """Inputs of a scan, with copies of some arrays where they make it quicker; None where they do not.

    Args:
        inputs: what a scan reads and writes.
        sequences: rows of the batch, or packed sequences.
        fits: whether the quicker kernel can compute given inputs.
        work: tokens times channels, per multiprocessor, from which on u is worth copying with up to 16 states, where
            kernels of any strides access one token of B or C at a time; None where rows of fewer than LEAST_COPIED
            tokens never are.
        work_of_others: `work` where these kernels access several tokens of B and C.
    """
    batch, dim, _ = inputs.u.shape
    access = vector(inputs, lanes_for(inputs.d_state)[0])
    is_slow = inputs.u.itemsize == 2 and access <= 2
    enough = work if 1 in (matrix_vector(inputs.B), matrix_vector(inputs.C)) else work_of_others
    is_wide = inputs.d_state > max_tile_states()
    least = LEAST_COPIED
    if enough is not None and not is_wide:
        least = min(least, ceil_div(enough * multiprocessors(inputs.u.device), max(1, batch * dim)))
    if not is_slow and not is_wide and sequences * dim > FEW_ROWS:
        least = MAX_TOKENS + 1
    return turned(inputs, ("u", "delta", "z", "B", "C"), ("out",), fits, least_copied=least)


def packed(operands: Any, read: Sequence[str], written: Sequence[str]) -> Turned | None:
    """The rows of a batch as packed sequences in one row, with copies of arrays whose rows do not follow each other.

    A launch has to write where sequences begin to scratch memory. States before chunks are dropped, because packed
    sequences have other chunks. None where copies are not possible.
    """
    u: Layout = operands.u
    batch, _, tokens = u.shape
    axis = TOKENS if u.strides[TOKENS] == 1 else CHANNELS
    whole = 1 if axis == TOKENS else MAX_VECTOR_BYTES // u.itemsize

    def is_row(array: Layout) -> bool:
        return _is_accessed(array, axis, whole) and array.strides[0] == tokens * array.strides[-1]

    def as_row(array: Layout) -> Layout:
        """A copy with all tokens in a row: (…, batch, tokens), or (batch, tokens, …)."""
        middle = range(1, len(array.shape) - 1)
        return _laid(array, (*middle, 0, -1), 2) if axis == TOKENS else _laid(array, (0, -1, *middle), len(middle))

    def row(array: Layout) -> Layout:
        total = batch * tokens
        strides = (total * array.strides[-1], *array.strides[1:])
        return array._replace(shape=(1, *array.shape[1:-1], total), strides=strides)

    copied = _copied(operands, axis, is_row, as_row, read, written)
    if copied is None:
        return None
    starts = Layout((batch + 1,), (1,), INT32, u.device, 0)
    given = ((name, getattr(copied.operands, name)) for name in (*read, *written))
    changes: dict[str, Any] = {name: row(array) for name, array in given if array is not None}
    changes |= {"query_start_loc": starts, "chunk_states": None, "is_packed": True, "row_tokens": tokens}
    return copied._replace(
        operands=copied.operands._replace(**changes),
        dropped=("chunk_states",),
        regions={**copied.regions, "turned_query_start_loc": copied.scratch},
        scratch=copied.scratch + _whole(starts.size, starts.itemsize),
    )


def _copied(
    operands: Any,
    axis: int,
    stays: Callable[[Layout], bool],
    laid: Callable[[Layout], Layout],
    read: Sequence[str],
    written: Sequence[str],
) -> Turned | None:
    """The operands with copies, laid out by `laid`, of the arrays for which `stays` is false; `axis` is contiguous in
    them.

    None where an array has no contiguous axis, or too many elements for one launch.
    """
    copies: dict[str, Layout] = {}
    before: list[Launch] = []
    after: list[Launch] = []
    aligned: dict[tuple[bool, tuple[int, ...]], list[Copy]] = {}
    regions, scratch = {}, 0
    for name in (*read, *written):
        array: Layout | None = getattr(operands, name)
        # A constant has no tokens.
        if array is None or (name in "BC" and not is_variable(array)) or stays(array):
            continue
        if array.size > MAX_DIVIDEND:
            return None
        copies[name] = copy = laid(array)
        in_scratch, is_read = f"turned_{name}", name in read
        there, back = Copy(array, copy, name, in_scratch), Copy(copy, array, in_scratch, name)
        # Axes are counted from the last one, because B and C have groups.
        if array.strides[axis - 3] == 1:
            aligned.setdefault((is_read, array.shape), []).append(there if is_read else back)
        elif array.strides[-axis] != 1:
            return None
        elif is_read:
            before.append(copying(array, copy, axis, {"rows": name, "turned": in_scratch}))
        else:
            after.append(copying(copy, array, CHANNELS + TOKENS - axis, {"rows": in_scratch, "turned": name}))
        regions[in_scratch] = scratch
        scratch += _whole(copy.span[1], 1)
    for (is_read, _), of_one_shape in aligned.items():
        (before if is_read else after).append(aligning(of_one_shape, axis))
    return Turned(operands._replace(**copies), tuple(before), tuple(after), regions, scratch)


def _is_accessed(array: Layout, axis: int, whole: int) -> bool:
    """Whether this many elements along an axis, numbered as in u, can be accessed at a time."""
    return array.strides[axis - 3] == 1 and _widest(array, axis - 3) >= whole


def _widest(array: Layout, axis: int) -> int:
    """The most elements along a contiguous axis that can be accessed at a time."""
    others = [each for each in range(-len(array.shape), 0) if each != axis]
    return widest_vector(array.itemsize, array.first, *array.active(*others))


def _strides_along(array: Layout, axis: int) -> tuple[int, ...]:
    """The strides of two axes in front of the last two, zeros for absent ones, and the stride of this axis."""
    return *(*array.strides[:-2], 0)[:2], array.strides[axis]


def _whole(count: int, itemsize: int) -> int:
    """Bytes of `count` elements, rounded up to whole vectors."""
    return ceil_div(count * itemsize, MAX_VECTOR_BYTES) * MAX_VECTOR_BYTES


def _turned(array: Layout, axis: int) -> Layout:
    """The layout of a copy of (…, n, tokens) with that axis contiguous."""
    return _laid(array, (*range(len(array.shape) - 2), -axis, axis - 3), 1)


def _laid(array: Layout, order: Sequence[int], inner: int) -> Layout:
    """The layout of a copy with its axes in this order, the outermost first, and aligned runs of the innermost ones."""
    strides, step = [0] * len(array.shape), 1
    for count, axis in enumerate(reversed(order), 1):
        strides[axis] = step
        step *= array.shape[axis]
        if count == inner:
            step = _whole(step, array.itemsize) // array.itemsize
    return array._replace(strides=tuple(strides), offset=0)


def copying(array: Layout, to: Layout, axis: int, named: Mapping[str, str]) -> Launch:
    """The launch that copies an array to another one in which `axis` is contiguous."""
    *outer, n, tokens = array.shape
    rows, columns, row_axis = (tokens, n, -1) if axis == TOKENS else (n, tokens, -2)
    column_axis = -3 - row_axis
    first, second = (*outer, 1)[:2]
    assert isinstance(array.dtype, DType)

    kernel = SelectiveScanTurn(array.dtype, _widest(array, column_axis), _widest(to, row_axis))
    config, division = kernel.launch_config(first * second, rows, columns)
    numbers: dict[str, Any] = {
        "rows_stride": _strides_along(array, row_axis),
        "turned_stride": _strides_along(to, column_axis),
        "inner": fast_div(second),
        "row_count": rows,
        "column_count": columns,
        **division,
    }
    return Launch(kernel, config, kernel.params.pack_numbers(**numbers), named)


def aligning(arrays: Sequence[Copy], axis: int, *, copies: int = 1, offset: int = 0, next_copy: int = 0) -> Launch:
    """The launch that copies arrays of one shape to others; `axis` is contiguous in all of them.

    The first of several copies is `offset` elements behind the beginning of its array, and each further one `next_copy`
    elements behind the one before.
    """
    *outer, n, tokens = arrays[0].array.shape
    length, rows, row_axis = (tokens, n, -2) if axis == TOKENS else (n, tokens, -1)
    first, second = (*outer, 1)[:2]
    assert isinstance(arrays[0].array.dtype, DType)
    named: dict[str, str] = {}
    strides: dict[str, list[int]] = {"rows_stride": [], "aligned_stride": []}
    for i in range(MOST_ALIGNED):
        copy = arrays[i] if i < len(arrays) else arrays[0]._replace(name=NULL, to_name=NULL)
        named |= {f"rows[{i}]": copy.name, f"aligned[{i}]": copy.to_name}
        for field, layout in zip(strides, (copy.array, copy.to), strict=True):
            strides[field] += _strides_along(layout, row_axis)
    kernel = SelectiveScanAlign(arrays[0].array.dtype)
    config, division = kernel.launch_config(len(arrays), first * second * rows, length, copies)
    known = {"row_count": fast_div(rows), "inner": fast_div(second), "length": length, **division}
    known |= {"offset": offset, "next_copy": next_copy}
    return Launch(kernel, config, kernel.params.pack_numbers(**strides, **known), named)
