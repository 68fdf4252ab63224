"""Copies of arrays that lie otherwise than u, for the kernels whose lanes share tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cuconv.runtime.dtypes import DType
from cuconv.runtime.launch import MAX_VECTOR_BYTES, ceil_div, fast_div, widest_vector
from cuconv.runtime.layout import Layout
from cuconv.runtime.plan import Launch, Plan
from cuconv.selective_scan.check import Inputs, is_variable
from cuconv.selective_scan.kernels import SelectiveScanTurn, tile_tokens
from cuconv.selective_scan.plan import CHANNELS, TOKENS

ARRAYS = ("delta", "z", "B", "C")

LEAST_TOKENS = 64
"""Tokens of a row from which on a copy and the other kernel are quicker than a kernel of any strides. On an H200, with
delta alone lying otherwise, 1 x 5120 x 4096 takes 267 us so and 529 without, 1 x 8192 x 64 10.5 and 12.3, but 1 x 8192
x 32 12.0 and 7.7 (bfloat16)."""


class Turned(NamedTuple):
    """Inputs laid out alike, and how those that lie otherwise get there."""

    inputs: Inputs
    launches: tuple[Launch, ...]
    regions: Mapping[str, int]
    """Where copies lie in scratch memory, in bytes, by the name of the array with `turned_` in front."""
    scratch: int

    def joined(self, plan: Plan) -> Plan:
        """A plan for these inputs, its scratch memory in front of the copies."""
        begin = ceil_div(plan.scratch, MAX_VECTOR_BYTES) * MAX_VECTOR_BYTES
        named = {name.removeprefix("turned_"): name for name in self.regions}
        launches = (*self.launches, *(each._replace(named=named) for each in plan.launches))
        return Plan(launches, begin + self.scratch, {name: begin + at for name, at in self.regions.items()})


def turned(inputs: Inputs) -> Turned | None:
    """The inputs with copies of those that lie otherwise than u; None where u itself has no contiguous axis, or one of
    them neither of the two.

    transformers calls a scan so: u and z have contiguous channels, delta contiguous tokens.
    """
    axis = next((axis for axis in (TOKENS, CHANNELS) if inputs.u.strides[axis] == 1), None)
    if axis is None or inputs.u.shape[2] < max(LEAST_TOKENS, tile_tokens()):
        return None
    found: dict[str, Any] = {}
    launches, regions, scratch = [], {}, 0
    for name in ARRAYS:
        array: Layout | None = getattr(inputs, name)
        # Axes counted from the last one, for B and C have groups.
        if array is None or (name in "BC" and not is_variable(array)) or array.strides[axis - 3] == 1:
            continue
        if array.strides[-axis] != 1:
            return None
        copy = _turned(array, axis)
        launches.append(_launch(name, array, copy, axis))
        regions[f"turned_{name}"] = scratch
        scratch += ceil_div(copy.strides[0] * copy.shape[0] * copy.itemsize, MAX_VECTOR_BYTES) * MAX_VECTOR_BYTES
        found[name] = copy
    if not found:
        return None
    return Turned(inputs._replace(**found), tuple(launches), regions, scratch)


def _turned(array: Layout, axis: int) -> Layout:
    """The layout of a copy of (batch, …, n, tokens) with that axis contiguous, whole vectors apart."""
    whole = MAX_VECTOR_BYTES // array.itemsize
    *outer, n, tokens = array.shape
    inner, last = (tokens, n) if axis == TOKENS else (n, tokens)
    step = ceil_div(inner, whole) * whole
    strides = [step, 1] if axis == TOKENS else [1, step]
    extent = step * last
    for length in reversed(outer):
        strides.insert(0, extent)
        extent *= length
    return Layout(array.shape, tuple(strides), array.dtype, array.device, 0)


def _launch(name: str, array: Layout, copy: Layout, axis: int) -> Launch:
    *outer, n, tokens = array.shape
    rows, columns, row_axis = (tokens, n, -1) if axis == TOKENS else (n, tokens, -2)
    column_axis = -3 - row_axis
    first, second = (*outer, 1)[:2]
    assert isinstance(array.dtype, DType)
    others = [each for each in range(-len(array.shape), 0) if each != column_axis]
    kernel = SelectiveScanTurn(array.dtype, widest_vector(array.itemsize, array.first, *array.active(*others)))
    config, division = kernel.launch_config(first * second, rows, columns)

    def strides(layout: Layout, axis: int) -> tuple[int, ...]:
        return *(*layout.strides[:-2], 0)[:2], layout.strides[axis]

    numbers: dict[str, Any] = {
        "rows_stride": strides(array, row_axis),
        "turned_stride": strides(copy, column_axis),
        "inner": fast_div(second),
        "row_count": rows,
        "column_count": columns,
        **division,
    }
    return Launch(kernel, config, kernel.params.pack_numbers(**numbers), {"rows": name, "turned": f"turned_{name}"})
