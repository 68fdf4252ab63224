"""Whether a step of replay puts its tokens in states at once: what was measured on an H200 to take less time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cuconv.runtime.abstract import launches_of
from cuconv.runtime.machine import assuming
from cuconv.selective_state_update.kernels_replay import (
    SelectiveStateUpdateFold,
    SelectiveStateUpdateFoldSingle,
    SelectiveStateUpdateQuantisedFold,
    SelectiveStateUpdateQuantisedFoldSingle,
)
from cuconv.selective_state_update.replay import selective_state_update_replay
from cuconv.selective_state_update.workloads import selective_state_update_replay as workload_of

AT_ONCE = (
    SelectiveStateUpdateFold,
    SelectiveStateUpdateFoldSingle,
    SelectiveStateUpdateQuantisedFold,
    SelectiveStateUpdateQuantisedFoldSingle,
)

SLACK = 0.015
"""The part of a time by which two measurements of the same differ at most."""

# The dtype of states, that of x, the window, sequences with 128 heads of 64 x 128, and microseconds: at once, in turn.
MEASURED = (
    ("float32", "bfloat16", 16, 3, 8.82, 9.70),
    ("float32", "bfloat16", 16, 4, 10.81, 10.33),
    ("float32", "bfloat16", 16, 8, 19.36, 14.27),
    ("float32", "bfloat16", 4, 4, 10.81, 11.24),
    ("float32", "bfloat16", 4, 6, 15.22, 14.05),
    ("float32", "bfloat16", 32, 6, 15.07, 15.41),
    ("float32", "bfloat16", 32, 8, 19.15, 17.41),
    ("float32", "float16", 16, 8, 19.18, 20.14),
    ("float32", "float16", 16, 11, 25.37, 24.36),
    ("float32", "float16", 16, 16, 35.95, 31.34),
    ("float32", "float16", 32, 24, 52.05, 53.92),
    ("float32", "float16", 32, 48, 101.8, 96.76),
    ("float32", "float32", 16, 14, 32.07, 32.65),
    ("float32", "float32", 16, 18, 40.35, 38.82),
    ("float32", "float32", 32, 32, 69.59, 73.92),
    ("float32", "float32", 32, 128, 268.6, 241.8),
    ("bfloat16", "bfloat16", 16, 5, 7.67, 8.15),
    ("bfloat16", "bfloat16", 16, 7, 9.73, 9.08),
    ("bfloat16", "bfloat16", 4, 7, 9.75, 10.00),
    ("bfloat16", "bfloat16", 4, 10, 12.97, 12.57),
    ("bfloat16", "bfloat16", 32, 64, 69.70, 71.44),
    ("bfloat16", "bfloat16", 32, 128, 136.7, 125.8),
    ("bfloat16", "float16", 16, 32, 36.40, 39.73),
    ("bfloat16", "float16", 16, 80, 87.33, 83.47),
    ("bfloat16", "float32", 16, 64, 70.19, 87.47),
    ("bfloat16", "float32", 16, 256, 270.4, 289.0),
    ("float16", "bfloat16", 16, 5, 7.66, 7.96),
    ("float16", "bfloat16", 16, 8, 10.84, 9.60),
    ("float16", "bfloat16", 4, 8, 10.86, 11.58),
    ("float16", "bfloat16", 32, 88, 94.84, 110.6),
    ("float16", "bfloat16", 32, 128, 136.7, 130.3),
    ("float16", "float16", 16, 32, 36.53, 36.90),
    ("float16", "float16", 16, 48, 53.18, 48.95),
    ("float16", "float16", 32, 128, 135.9, 150.7),
    ("float16", "float16", 32, 256, 269.5, 252.7),
    ("float16", "float32", 16, 128, 137.2, 154.7),
    ("int16", "bfloat16", 16, 6, 9.29, 10.13),
    ("int16", "bfloat16", 16, 9, 14.67, 12.72),
    ("int16", "bfloat16", 32, 64, 73.5, 85.62),
    ("int16", "bfloat16", 32, 256, 277.4, 263.4),
    ("int16", "float16", 16, 128, 141.8, 148.7),
    ("int16", "float32", 16, 128, 142.7, 168.0),
    ("int8", "bfloat16", 16, 8, 8.07, 9.00),
    ("int8", "bfloat16", 16, 16, 12.55, 11.60),
    ("int8", "bfloat16", 8, 12, 10.37, 10.93),
    ("int8", "bfloat16", 8, 24, 18.16, 14.84),
    ("int8", "bfloat16", 4, 32, 22.12, 25.00),
    ("int8", "bfloat16", 32, 64, 39.87, 82.95),
    ("int8", "float16", 16, 64, 40.13, 77.13),
    ("int8", "float32", 16, 256, 151.0, 291.7),
    ("float8_e4m3fn", "bfloat16", 16, 8, 8.13, 9.35),
    ("float8_e4m3fn", "bfloat16", 16, 14, 12.17, 10.89),
    ("float8_e4m3fn", "bfloat16", 8, 20, 16.19, 13.96),
    ("float8_e4m3fn", "float32", 16, 16, 13.05, 28.67),
)


# The dtype of states, d_state, heads of 64 rows in 8 groups, sequences with x of bfloat16 and a window of 16, and
# microseconds: without rings, as long as which tokens put in states at once take, and in turn.
OTHERS = (
    ("float32", 64, 128, 6, 8.62, 8.62),
    ("float32", 64, 128, 10, 13.10, 10.36),
    ("float32", 64, 128, 80, 85.73, 52.69),
    ("float32", 64, 24, 107, 23.64, 17.73),
    ("bfloat16", 64, 24, 107, 12.89, 13.69),
    ("bfloat16", 64, 128, 40, 23.39, 17.99),
    ("bfloat16", 64, 24, 427, 44.45, 37.35),
    ("float16", 64, 24, 107, 12.95, 15.29),
    ("float16", 64, 128, 80, 44.49, 33.01),
    ("int16", 64, 128, 20, 15.25, 12.46),
    ("int16", 64, 24, 213, 26.44, 29.27),
    ("int16", 64, 24, 427, 48.48, 50.46),
    ("int8", 64, 128, 32, 13.68, 12.11),
    ("int8", 64, 24, 683, 44.51, 56.74),
    ("float32", 256, 128, 2, 10.85, 10.99),
    ("float32", 256, 24, 27, 23.56, 24.97),
    ("float32", 256, 128, 10, 43.77, 36.43),
    ("float32", 256, 24, 107, 85.71, 72.66),
    ("bfloat16", 256, 128, 5, 12.91, 14.70),
    ("bfloat16", 256, 24, 53, 23.26, 23.45),
    ("bfloat16", 256, 128, 20, 43.80, 35.98),
    ("bfloat16", 256, 24, 107, 44.41, 38.48),
    ("float16", 256, 128, 40, 85.70, 87.23),
    ("int16", 256, 128, 40, 88.48, 103.5),
    ("float32", 32, 128, 32, 18.88, 26.35),
    ("bfloat16", 16, 128, 128, 20.27, 38.00),
    ("int8", 48, 128, 64, 30.10, 63.84),
)


def folds(state_dtype: str, dtype: str, window: int, batch: int, nheads: int = 128, d_state: int = 128) -> bool:
    """What is chosen where the caller does not say it."""
    workload = workload_of(batch, nheads, 64, d_state, window=window, dtype=dtype, state_dtype=state_dtype)
    free = replace(workload, options={**workload.options, "fold": None})
    with assuming(132):
        (launch,) = launches_of(selective_state_update_replay, **free.abstract())
    return isinstance(launch.kernel, AT_ONCE)


@pytest.mark.parametrize(("state_dtype", "dtype", "window", "batch", "at_once", "in_turn"), MEASURED)
def test_the_choice_takes_no_more_time(
    state_dtype: str, dtype: str, window: int, batch: int, at_once: float, in_turn: float
) -> None:
    chosen = at_once if folds(state_dtype, dtype, window, batch) else in_turn
    assert chosen <= min(at_once, in_turn) * (1 + SLACK)


@pytest.mark.parametrize(("state_dtype", "d_state", "nheads", "batch", "at_once", "in_turn"), OTHERS)
def test_the_choice_of_another_d_state_takes_no_more_time(
    state_dtype: str, d_state: int, nheads: int, batch: int, at_once: float, in_turn: float
) -> None:
    chosen = at_once if folds(state_dtype, "bfloat16", 16, batch, nheads, d_state) else in_turn
    assert chosen <= at_once * (1 + SLACK)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_windows_that_flush_nearly_always_never_replay(window: int) -> None:
    assert folds("float32", "bfloat16", window, 256)
