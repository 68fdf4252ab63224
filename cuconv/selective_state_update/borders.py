"""How large states must be for replay: below these borders single tokens are folded into them at once.

Writing few states takes less time than reading the rings, and some sequences flush in every step. At a border a step
with rings takes as long as one without, on the mean of a cycle in which every sequence flushes once. All were measured
on an H200 with Mamba-2, heads of 64 rows and 8 groups, separately for each d_state: with 128 heads, and for x of
bfloat16 and a window of 16 also with 24. Where nothing was measured, nothing is replayed. tests/benchmarks/README.md
has the times on both sides.
"""

from __future__ import annotations

import math

from cuconv.runtime.dtypes import BFLOAT16, CODES, FLOAT8_E4M3FN, FLOAT16, FLOAT32, INT8, INT16, DType
from cuconv.selective_state_update.kernels_replay import SelectiveStateUpdateReplay, SelectiveStateUpdateReplayFew

SHORTEST = 4
"""Tokens of the shortest window with which replay may take less time than a step without rings."""

FEW = {
    64: {
        FLOAT32: {16: 20},
        BFLOAT16: {16: 40},
        FLOAT16: {16: 40},
        INT16: {16: 20},
        INT8: {16: 16},
        FLOAT8_E4M3FN: {16: 16},
    },
    128: {
        FLOAT32: {4: 20, 8: 16},
        BFLOAT16: {4: 17, 8: 13},
        FLOAT16: {4: 24, 8: 15, 16: 13},
        INT16: {4: 17},
        INT8: {8: 13, 16: 12},
        FLOAT8_E4M3FN: {8: 17, 16: 13},
    },
}
"""MiB of states from which SelectiveStateUpdateReplayFew saves time, by d_state, dtype of states and the shortest
window that the number holds for. With shorter windows rings never save time. With 128 and a window of 16, 12, 16 and 20
MiB of float32 take 9.7, 10.3 and 11.3 us with rings, and 8.9, 11.0 and 13.1 without; 12 and 14 MiB of bfloat16 8.7 and
9.1, and 8.7 and 9.7; 12, 16 and 18 MiB of int16 10.1, 11.4 and 12.7, folded into states at once 9.3, 11.5 and 14.7, and
without rings, 12 and 16 MiB, 8.9 and 11.2. Of int8 9 to 12 MiB take 4 % less to 5 % more with 128 heads and 80, and 1
to 6 % more with 24; 13 take 10.6 and 11.9. With 64 and 24 heads 20 MiB of float32 take 10.2 us with rings and 13.0
without, 20 and 40 of bfloat16 13.7 and 21.7, and 12.9 and 23.3, of float16 15.3 and 23.4, and 13.0 and 23.4; with 128
heads 16 of int8 12.1 and 13.7."""

FEW_GROUP_HEADS = 16
"""Heads per group below which codes with a d_state of 64 are never replayed. With three heads, 20 and 80 MiB of int16
take 17.9 and 50.5 us with rings, and 15.4 and 48.5 without; 64 MiB of int8 56.7 and 44.5. With 16 heads the steps with
rings take 12.5, 38.7 and 34.3."""

TENSOR = {
    128: {FLOAT32: {1: 28}, BFLOAT16: {1: 176}, FLOAT16: {1: 192}, INT16: {1: 192}},
    256: {BFLOAT16: {16: 64}},
}
"""MiB of states from which replay saves time where tensor cores fold live tokens into states. With 128 the numbers hold
for any window: they were measured with one of 32, which takes the most time. 20, 24 and 28 MiB of float32 take 14.3,
15.4 and 16.4 us with rings and 13.2, 15.2 and 17.2 without; 144, 160 and 176 MiB of bfloat16 78.6, 86.2 and 93.6, and
77.7, 86.1 and 94.0; 176 and 192 MiB of float16 110.6 and 99.7, and 94.3 and 103.2; 192 and 224 MiB of int16 105.0 and
120.6, and 104.9 and 121.5. 64 MiB of int8 take twice as long. With 256 and a window of 16 40 and 80 MiB of bfloat16
take 21.7 and 36.0, and 23.3 and 43.8; with 24 heads 23.5 and 38.5, and 23.3 and 44.4."""

OTHER = {
    128: {
        (FLOAT32, 2): {1: 40, 17: 160},
        (FLOAT32, 4): {1: 64, 17: 320},
        (BFLOAT16, 2): {1: 112, 17: 640},
        (FLOAT16, 2): {1: 72, 17: 512},
    },
    256: {(FLOAT32, 2): {16: 80}, (FLOAT32, 4): {16: 160}},
}
"""MiB of states from which replay saves time with all other kernels, by d_state, dtype of states and bytes of an
element of x. With 128, x of float16 and a window of 16, 36 and 40 MiB of float32 take 21.5 and 22.9 us with rings and
21.4 and 23.5 without; 104 and 112 MiB of bfloat16 57.4 and 60.9, and 57.1 and 61.3; 64 and 72 MiB of float16 36.9 and
39.7, and 36.4 and 40.4. With x of float32, 60 and 64 MiB of float32 take 34.0 and 35.6, and 33.6 and 35.7. For all else
rings never save time: 512 MiB of int16 278.6 beside 272.8; with x of float32, 768 MiB of bfloat16 423 beside 401 and
256 MiB of int8 292 beside 146. With 256 40 and 80 MiB of float32 take 21.9 and 36.4, and 23.1 and 43.8; with 24 heads
25.0 and 40.9, and 23.6 and 43.8; 128 MiB with x of float32 59.6 beside 68.7, and of bfloat16 78.4 beside 68.8. With 16
and 32 rings take up to twice as long."""


def least_bytes(
    kernel: SelectiveStateUpdateReplay | SelectiveStateUpdateReplayFew,
    state_t: DType,
    x_itemsize: int,
    window: int,
    group_heads: int,
) -> float:
    """Bytes of states from which this kernel is used for replay; infinite where it never takes less time.

    Args:
        kernel: the kernel of replay.
        state_t: the dtype of states.
        x_itemsize: bytes of an element of x.
        window: the most live tokens of a sequence.
        group_heads: heads of a group.
    """
    by_window: dict[int, int] = {}
    if isinstance(kernel, SelectiveStateUpdateReplayFew):
        if kernel.d_state != 64 or state_t not in CODES or group_heads >= FEW_GROUP_HEADS:
            by_window = FEW[kernel.d_state][state_t]
    elif kernel.tensor and not kernel.masked:
        by_window = TENSOR.get(kernel.d_state, {}).get(state_t, {})
    elif not kernel.masked:
        by_window = OTHER.get(kernel.d_state, {}).get((state_t, x_itemsize), {})
    shortest = max((each for each in by_window if each <= window), default=0)
    return by_window[shortest] * 2**20 if shortest and window >= SHORTEST else math.inf
