"""Copies of arrays that lie otherwise than the kernels of contiguous tokens or channels need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cuconv.runtime.dtypes import DType
from cuconv.runtime.launch import MAX_VECTOR_BYTES, ceil_div, fast_div, widest_vector
from cuconv.runtime.layout import Layout
from cuconv.runtime.plan import Launch, Plan
from cuconv.selective_scan.check import is_variable
from cuconv.selective_scan.kernels import SelectiveScanTurn
from cuconv.selective_scan.plan import CHANNELS, TOKENS

LEAST_TOKENS = 64
"""Tokens of a row from which on a copy and the other kernel are quicker than a kernel of any strides. On an H200, with
delta alone lying otherwise, 1 x 5120 x 4096 takes 267 us so and 529 without, 1 x 8192 x 64 10.5 and 12.3, but 1 x 8192
x 32 12.0 and 7.7 (bfloat16).
"""


class Turned(NamedTuple):
    """Operands laid out alike, and how arrays that lie otherwise get there and back."""

    operands: Any
    before: tuple[Launch, ...]
    after: tuple[Launch, ...]
    regions: Mapping[str, int]
    """Where copies lie in scratch memory, in bytes, by the name of the array with `turned_` in front."""
    scratch: int

    def joined(self, plan: Plan) -> Plan:
        """A plan for these operands, its scratch memory in front of the copies."""
        begin = _whole(plan.scratch, 1)
        named = {name.removeprefix("turned_"): name for name in self.regions}
        between = (each._replace(named=named) for each in plan.launches)
        regions = {name: begin + at for name, at in self.regions.items()}
        return Plan((*self.before, *between, *self.after), begin + self.scratch, regions)


def turned(operands: Any, read: Sequence[str], written: Sequence[str] = ()) -> Turned | None:
    """The operands with copies of those of these arrays that lie otherwise than u: (…, dim or d_state, tokens).

    None where there is nothing to copy, u has no contiguous axis, or one of the arrays neither of the two.
    transformers calls a scan so: u and z have contiguous channels, delta contiguous tokens.
    """
    u: Layout = operands.u
    axis = next((axis for axis in (TOKENS, CHANNELS) if u.strides[axis] == 1), None)
    if axis is None or u.shape[2] < LEAST_TOKENS:
        return None
    copies: dict[str, Layout] = {}
    launches: dict[str, Launch] = {}
    regions, scratch = {}, 0
    for name in (*read, *written):
        array: Layout | None = getattr(operands, name)
        # Axes counted from the last one, for B and C have groups. Of a constant nothing depends on the token.
        if array is None or (name in "BC" and not is_variable(array)) or array.strides[axis - 3] == 1:
            continue
        if array.strides[-axis] != 1:
            return None
        copy = _turned(array, axis)
        in_scratch = f"turned_{name}"
        if name in read:
            launches[name] = copying(array, copy, axis, {"rows": name, "turned": in_scratch})
        else:
            launches[name] = copying(copy, array, CHANNELS + TOKENS - axis, {"rows": in_scratch, "turned": name})
        copies[name] = copy
        regions[in_scratch] = scratch
        scratch += _whole(copy.strides[0] * copy.shape[0], copy.itemsize)
    if not copies:
        return None
    before, after = (tuple(launches[name] for name in names if name in launches) for names in (read, written))
    return Turned(operands._replace(**copies), before, after, regions, scratch)


def _whole(count: int, itemsize: int) -> int:
    """Bytes of whole vectors."""
    return ceil_div(count * itemsize, MAX_VECTOR_BYTES) * MAX_VECTOR_BYTES


def _turned(array: Layout, axis: int) -> Layout:
    """The layout of a copy of (…, n, tokens) with that axis contiguous, whole vectors apart."""
    *outer, n, tokens = array.shape
    inner, last = (tokens, n) if axis == TOKENS else (n, tokens)
    step = _whole(inner, array.itemsize) // array.itemsize
    strides = [step, 1] if axis == TOKENS else [1, step]
    extent = step * last
    for length in reversed(outer):
        strides.insert(0, extent)
        extent *= length
    return Layout(array.shape, tuple(strides), array.dtype, array.device, 0)


def copying(array: Layout, to: Layout, axis: int, named: Mapping[str, str]) -> Launch:
    """The launch that copies an array to another one, of which that axis is contiguous."""
    *outer, n, tokens = array.shape
    rows, columns, row_axis = (tokens, n, -1) if axis == TOKENS else (n, tokens, -2)
    column_axis = -3 - row_axis
    first, second = (*outer, 1)[:2]
    assert isinstance(array.dtype, DType)

    def vec(layout: Layout, contiguous: int) -> int:
        others = [each for each in range(-len(layout.shape), 0) if each != contiguous]
        return widest_vector(layout.itemsize, layout.first, *layout.active(*others))

    def strides(layout: Layout, axis: int) -> tuple[int, ...]:
        return *(*layout.strides[:-2], 0)[:2], layout.strides[axis]

    kernel = SelectiveScanTurn(array.dtype, vec(array, column_axis), vec(to, row_axis))
    config, division = kernel.launch_config(first * second, rows, columns)
    numbers: dict[str, Any] = {
        "rows_stride": strides(array, row_axis),
        "turned_stride": strides(to, column_axis),
        "inner": fast_div(second),
        "row_count": rows,
        "column_count": columns,
        **division,
    }
    return Launch(kernel, config, kernel.params.pack_numbers(**numbers), named)
