"""The arithmetic of launches: numbers only."""

from __future__ import annotations

import dataclasses
import random
from math import prod
from typing import Any

import pytest
from cuconv.causal_conv1d.kernels_conv import slots_for

from cuconv.causal_conv1d import kernel_channellast_fwd as channellast
from cuconv.causal_conv1d import kernel_fwd as rows
from cuconv.causal_conv1d import kernel_shortseq_fwd as shortseq
from cuconv.runtime.dtypes import BFLOAT16, FLOAT32
from cuconv.runtime.launch import MAX_DIVIDEND, MAX_GRID, LaunchConfig, ceil_div, fast_div, widest_vector

DIVISORS = [1, 2, 3, 5, 7, 31, 32, 33, 64, 127, 641, 1000, 65535, 65536, 65537, 2**20 - 1, 2**30, 2**30 + 1,
            2**31 - 3, 2**31 - 2, MAX_DIVIDEND]  # fmt: skip


def divide(n: int, by: tuple[int, int, int]) -> int:
    """FastDiv::quotient of common/fastdiv.cuh, in 32-bit unsigned arithmetic."""
    divisor, multiplier, shift = by
    assert divisor < 2**32 and multiplier < 2**32 and shift < 32
    return ((((n * multiplier) >> 32) + n) % 2**32) >> shift


@pytest.mark.parametrize(
    ("numerator", "denominator", "quotient"), [(0, 3, 0), (1, 3, 1), (3, 3, 1), (4, 3, 2), (2**62 + 1, 2, 2**61 + 1)]
)
def test_ceil_div(numerator: int, denominator: int, quotient: int) -> None:
    assert ceil_div(numerator, denominator) == quotient


@pytest.mark.parametrize("divisor", DIVISORS)
def test_fast_division_is_exact_to_the_largest_dividend(divisor: int) -> None:
    by = fast_div(divisor)
    multiples = {MAX_DIVIDEND // divisor * divisor, divisor, 2**30 // divisor * divisor}
    for n in {0, 1, MAX_DIVIDEND - 1, MAX_DIVIDEND, *multiples, *(m - 1 for m in multiples if m)}:
        assert divide(n, by) == n // divisor
    for n in random.Random(divisor).choices(range(MAX_DIVIDEND), k=1000):
        assert divide(n, by) == n // divisor


@pytest.mark.parametrize("divisor", [-1, 0, MAX_DIVIDEND + 1])
def test_a_divisor_out_of_range_is_refused(divisor: int) -> None:
    with pytest.raises(ValueError, match=f"divisor is {divisor}; wanted 1 to {MAX_DIVIDEND}"):
        fast_div(divisor)


@pytest.mark.parametrize(
    ("itemsize", "quantities", "limit", "vec"),
    [
        (2, (), 16, 8),
        (4, (), 16, 4),
        (2, (), 8, 4),
        (2, (0, 16, -24), 16, 8),
        (2, (8, 12), 16, 4),
        (2, (8, -2), 16, 2),
        (2, (8, 7), 16, 1),
        (4, (2, 4), 16, 2),
        (4, (2**40 + 1,), 16, 1),
    ],
)
def test_the_widest_vector(itemsize: int, quantities: tuple[int, ...], limit: int, vec: int) -> None:
    assert widest_vector(itemsize, *quantities, limit=limit) == vec


def test_a_grid_has_a_limit() -> None:
    assert LaunchConfig((MAX_GRID, 1, 1), (32, 1, 1)).threads == 32 * MAX_GRID
    with pytest.raises(ValueError, match=f"the problem needs {MAX_GRID + 1} blocks; a launch takes at most {MAX_GRID}"):
        LaunchConfig((MAX_GRID + 1, 1, 1), (32, 1, 1))


def test_a_launch_config_is_a_value() -> None:
    config = LaunchConfig((2, 3, 4), (32, 2, 1), 1024)
    assert config == LaunchConfig((2, 3, 4), (32, 2, 1), 1024)
    assert hash(config) == hash(LaunchConfig((2, 3, 4), (32, 2, 1), 1024))
    assert config != LaunchConfig((2, 3, 4), (32, 2, 1))
    assert config.threads == 2 * 3 * 4 * 32 * 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.shared_mem = 0  # type: ignore[misc]


def channellast_config(vec: int, *problem: int) -> tuple[LaunchConfig, dict[str, Any]]:
    return channellast.CausalConv1dChannellastFwd(4, BFLOAT16, BFLOAT16, vec, 8, True, False, False).launch_config(
        *problem
    )


def rows_config(slots: int, *problem: int) -> tuple[LaunchConfig, dict[str, Any]]:
    return rows.CausalConv1dFwd(4, FLOAT32, FLOAT32, 4, slots, True, False, False).launch_config(*problem)


def shortseq_config(slots: int, *problem: int) -> tuple[LaunchConfig, dict[str, Any]]:
    return shortseq.CausalConv1dShortseqFwd(4, FLOAT32, FLOAT32, 4, slots, True, False, False).launch_config(*problem)


@pytest.mark.parametrize(
    ("vec", "problem", "blocks", "block_vecs", "tiles"),
    [
        (4, (1, 128, 32), 1 * 1, 32, 4),
        (4, (1, 128, 33), 1 * 2, 32, 4),
        (4, (3, 132, 33), 2 * 1 * 3, 17, 7),  # 33 vectors: two even shares and not 32 + 1
        (1, (1, 3, 42 * 8), 1, 3, 42),
        (1, (1, 3, 42 * 8 + 1), 2, 3, 42),
        (2, (5, 2, 0), 5, 1, 128),  # no tokens, but states to write
        (4, (2, 262144, 1), 2048 * 2, 32, 4),
    ],
)
def test_channellast_launches(
    vec: int, problem: tuple[int, int, int], blocks: int, block_vecs: int, tiles: int
) -> None:
    config, division = channellast_config(vec, *problem)
    assert config == LaunchConfig((blocks, 1, 1), (channellast.THREADS, 1, 1))
    assert (division["block_vecs"][0], division["tiles"]) == (block_vecs, tiles)


WARPS = rows.THREADS // 32


@pytest.mark.parametrize(
    ("slots", "problem", "blocks", "row_tiles"),
    [
        (1, (1, 1, 1), 1, 1),
        (4, (1, WARPS, 128), 1, 1),
        (4, (1, WARPS + 1, 128), 2, 1),
        (3, (1, WARPS, 97), 2, 2),
        (2, (2, WARPS, 257), 10, 5),
        (4, (1, WARPS, 2**30), 2**23, 2**23),
    ],
)
def test_row_launches(slots: int, problem: tuple[int, int, int], blocks: int, row_tiles: int) -> None:
    config, division = rows_config(slots, *problem)
    assert config == LaunchConfig((blocks, 1, 1), (rows.THREADS, 1, 1))
    assert division["row_tiles"][0] == row_tiles
    assert division["tiles"] == prod(problem[:2]) * row_tiles


@pytest.mark.parametrize(("row_vecs", "slots"), [(1, 1), (32, 1), (33, 2), (96, 3), (128, 4), (129, 3), (10**6, 4)])
def test_rows_are_cut_into_even_tiles(row_vecs: int, slots: int) -> None:
    assert slots_for(row_vecs) == slots


PLACES = shortseq.THREADS


@pytest.mark.parametrize(
    ("slots", "problem", "blocks"),
    [
        (1, (3, 4, PLACES // 4), 3),
        (1, (3, 4, PLACES // 4 + 1), 6),
        (2, (3, 4, PLACES // 4), 2),
        (2, (4, 1, 1), 2),
        (2, (1, PLACES + 1, 1), 2),
    ],
)
def test_shortseq_launches(slots: int, problem: tuple[int, int, int], blocks: int) -> None:
    config, division = shortseq_config(slots, *problem)
    assert config == LaunchConfig((blocks, 1, 1), (shortseq.THREADS, 1, 1))
    assert division["batch_vecs"] == problem[1] * problem[2]


def test_a_problem_with_too_many_blocks_says_so() -> None:
    with pytest.raises(ValueError, match="a launch takes at most"):
        channellast_config(1, 2**20, 2**20, 1)
    with pytest.raises(ValueError, match=f"the problem needs {3 * 2**30} warps; a launch takes at most {MAX_DIVIDEND}"):
        rows_config(1, 3, 2**30, 3)
