"""Scans of rows of contiguous tokens that are not aligned: only B and C are copied.

The phase of a row is the number of elements in front of it in its first vector. A block of SelectiveScanTilesFwd or
SelectiveScanVarlenTilesFwd has channels of one phase, and takes a copy of B and C whose rows have it, too: then all of
its accesses are aligned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cuconv.runtime.launch import MAX_DIVIDEND, MAX_VECTOR_BYTES, ceil_div
from cuconv.runtime.layout import Layout
from cuconv.selective_scan.check import Inputs, Phases, is_variable
from cuconv.selective_scan.plan import TOKENS
from cuconv.selective_scan.plan_turned import Copy, Turned, aligning


def phased(inputs: Inputs, fits: Callable[[Inputs], object]) -> Turned | None:
    """Inputs with a copy of B and C for each phase of their rows; None where rows or copies do not fit."""
    u, B, C = inputs.u, inputs.B, inputs.C
    whole = MAX_VECTOR_BYTES // u.itemsize
    rows = [row for row in (u, inputs.delta, inputs.z, inputs.out) if row is not None]
    if not is_variable(B) or not is_variable(C) or any(each.strides[-1] != 1 for each in (*rows, B, C)):
        return None
    if any(_phases(row, whole) != _phases(u, whole) for row in rows):
        return None
    apart = math.gcd(whole, *u.active(0, 1))
    copies, first = whole // apart, u.first % apart
    # Every copy has room for the elements in front of a row in its first vector.
    pitch = ceil_div(u.shape[TOKENS] + whole - 1, whole) * whole
    batch, groups, d_state, _ = B.shape
    size = batch * groups * d_state * pitch
    if size > MAX_DIVIDEND:
        return None
    strides = (groups * d_state * pitch, d_state * pitch, pitch, 1)
    copied = inputs._replace(
        B=B._replace(strides=strides, offset=0),
        C=C._replace(strides=strides, offset=0),
        phases=Phases(whole // math.gcd(whole, *u.active(1)), first, size // apart),
    )
    if not fits(copied):
        return None
    regions = {"turned_B": 0, "turned_C": copies * size * u.itemsize}
    each = [Copy(B, copied.B, "B", "turned_B"), Copy(C, copied.C, "C", "turned_C")]
    launch = aligning(each, TOKENS, copies=copies, offset=first, next_copy=size + apart)
    return Turned(copied, (launch,), (), regions, 2 * copies * size * u.itemsize)


def _phases(row: Layout, whole: int) -> list[list[int]]:
    """The sizes and strides that determine the phases of all rows of an array."""
    return [[number % whole for number in numbers] for numbers in ((row.first,), row.active(0), row.active(1))]


def phase_numbers(phases: Phases | None) -> dict[str, Any]:
    """The arguments of kernels whose rows may have phases."""
    period, first, step = phases or Phases(1, 0, 0)
    return {"phase_bits": period.bit_length() - 1, "first_phase": first, "matrix_phase_step": step}
