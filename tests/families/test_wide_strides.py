"""Arrays with gigabytes between their entries: offsets need more than 32 bits; most of the memory is never touched."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

from cuconv.runtime.trees import LINKS
from tests import emulator
from tests.causal_conv1d import cases_bwd, cases_dense, cases_states, cases_update, cases_varlen, cases_varlen_bwd
from tests.emulator.family import EmulatedArray
from tests.families.test_numerics import place_arguments
from tests.selective_scan import cases_dense as scan
from tests.selective_scan import cases_varlen as scan_varlen
from tests.selective_state_update import cases as state_update
from tests.support.compare import check_values
from tests.support.placement import Array

pytestmark = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))

NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux: pages that are never touched take no memory."""

APART = 2**31 + 2**12
"""Elements between neighbouring entries of the widest axis."""

WIDE: tuple[tuple[Any, dict[str, int]], ...] = (
    (cases_dense.Case(2, 3, 1029), {"x": 0, "out": 0}),
    (cases_dense.Case(2, 3, 300, **cases_dense.ALL), {"x": 0, "out": 0, "initial_states": 0}),
    (cases_dense.Case(2, 3, 40, 3, "float16"), {"x": 0, "out": 0}),
    (cases_dense.Case(2, 6, 35, layout="channel_last", final=True), {"x": 0, "final_states_out": 0}),
    (cases_dense.Case(1, 3, 40), {"x": 1, "out": 1}),
    (cases_varlen.Case(3, "9+2", **cases_varlen.ROWS), {"x": 0, "out": 0}),
    (cases_varlen.Case(8, "9+2"), {"conv_states": 0}),
    (cases_states.Case(8, "8+1", 4), {"out": 0}),
    (cases_update.Case(8, 3), {"x": 0, "out": 0}),
    (cases_update.Case(8, 2), {"conv_state": 0}),
    (cases_update.Case(8, 2, pool="columns"), {"conv_state": 0}),
    # One sequence, whose strides reach nothing.
    *(
        (cases_update.Case(136, 1, index="int64", **way), {name: 0})
        for way, name in (
            ({}, "x"),
            ({}, "out"),
            ({}, "conv_state_indices"),
            ({"seqlen": 2}, "x"),
            ({"seqlen": 4, "window": "channels", "rows": True}, "intermediate_state_indices"),
            ({"seqlen": 3, "tree": True}, "parents"),
            *(({"seqlen": 3, "tree": True, "links": True}, name) for name in LINKS),
        )
    ),
    (cases_bwd.Case(2, 3, 300), {"x": 0, "dout": 0, "dx": 0}),
    *((cases_varlen_bwd.Case(8, "3+1"), {name: 1}) for name in ("x", "dout", "dx")),
    (cases_varlen_bwd.Case(8, "9+7"), dict.fromkeys(("initial_states", "dfinal_states", "dinitial_states"), 0)),
    (scan.Case(2, 3, 43), {"u": 0, "delta": 0, "out": 0}),
    (scan.Case(2, 3, 43, 1), {"u": 0, "delta": 0, "out": 0}),
    (scan.Case(2, 3, 43), {"B": 0, "C": 0, "z": 0}),
    (scan.Case(2, 60, 43, processors=1), {"u": 0, "delta": 0, "out": 0}),
    (scan.Case(2, 60, 43, processors=1), {"B": 0, "C": 0, "z": 0}),
    (scan.Case(2, 35, 72, processors=1), {"u": 0, "z": 0, "out": 0}),
    (scan.Case(2, 35, 72, processors=1), {"B": 0, "C": 0}),
    (scan_varlen.Case(3, "16+8", spare=0, initial="all"), {"ssm_states": 0}),
    (state_update.Case(3, 0, 9, 16, dtype="bfloat16"), {"x": 0, "out": 0}),
    (state_update.Case(2, 0, 9, 16, dtype="bfloat16", spare=0), {"state": 0}),
    (state_update.Case(2, 0, 9, 16, state_dtype="int8", spare=0), {"state": 0, "state_scale": 0}),
    (
        state_update.Case(2, 0, 9, 16, state_dtype="int8", tokens=2, steps="slot", slots=None, spare=0),
        {"intermediate_states_buffer": 0, "intermediate_state_scales": 0},
    ),
)


def spread(array: Array, axis: int) -> Array:
    """The same values in memory in which the entries of an axis lie APART elements from each other."""
    strides = list(array.strides)
    strides[axis] = APART * array.itemsize
    size = APART * array.itemsize * (array.shape[axis] - 1)
    size += sum(n * abs(step) for i, (n, step) in enumerate(zip(array.shape, array.strides, strict=True)) if i != axis)
    memory = mmap.mmap(-1, size + mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    copy: Array = np.ndarray(array.shape, array.dtype, memory, 0, strides)
    copy[...] = array
    return copy


@pytest.mark.parametrize(
    ("case", "axes"),
    [pytest.param(case, axes, id=f"{case.FUNCTION}-{case.id}-{'_'.join(axes)}") for case, axes in WIDE],
)
def test_entries_gigabytes_apart(case: Any, axes: dict[str, int]) -> None:
    placed = place_arguments(case)
    arrays = {name: spread(each.array, axes[name]) if name in axes else each.array for name, each in placed.items()}
    before = {name: array.copy() for name, array in arrays.items() if name not in case.OUTPUTS}
    with case.running():
        case.call({name: EmulatedArray(array) for name, array in arrays.items()})
    check_values(case, before, {name: arrays[name] for name in arrays if name in (*case.OUTPUTS, *case.UPDATED)})
