"""How many blocks the kernels of whole sequences are launched with, and how these share the work."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from cuconv.causal_conv1d.kernels import (
    CausalConv1dChannellastFwd,
    CausalConv1dFwd,
    CausalConv1dShortseqFwd,
    lane_vecs_for,
)
from cuconv.runtime.dtypes import BFLOAT16, FLOAT32
from cuconv.runtime.launch import MAX_DIVIDEND, LaunchConfig


def channellast_config(vec: int, *problem: int) -> tuple[LaunchConfig, dict[str, Any]]:
    return CausalConv1dChannellastFwd(4, BFLOAT16, BFLOAT16, vec, 8, True, False, False).launch_config(*problem)


def rows_config(lane_vecs: int, *problem: int) -> tuple[LaunchConfig, dict[str, Any]]:
    return CausalConv1dFwd(4, FLOAT32, FLOAT32, 4, lane_vecs, True, False, False).launch_config(*problem)


def shortseq_config(lane_vecs: int, *problem: int) -> tuple[LaunchConfig, dict[str, Any]]:
    return CausalConv1dShortseqFwd(4, FLOAT32, FLOAT32, 4, lane_vecs, True, False, False).launch_config(*problem)


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
    assert config == LaunchConfig((blocks, 1, 1), (CausalConv1dChannellastFwd.threads, 1, 1))
    assert (division["block_vecs"][0], division["tiles"]) == (block_vecs, tiles)


WARPS = CausalConv1dFwd.warps


@pytest.mark.parametrize(
    ("lane_vecs", "problem", "blocks", "row_tiles"),
    [
        (1, (1, 1, 1), 1, 1),
        (4, (1, WARPS, 128), 1, 1),
        (4, (1, WARPS + 1, 128), 2, 1),
        (3, (1, WARPS, 97), 2, 2),
        (2, (2, WARPS, 257), 10, 5),
        (4, (1, WARPS, 2**30), 2**23, 2**23),
    ],
)
def test_row_launches(lane_vecs: int, problem: tuple[int, int, int], blocks: int, row_tiles: int) -> None:
    config, division = rows_config(lane_vecs, *problem)
    assert config == LaunchConfig((blocks, 1, 1), (CausalConv1dFwd.threads, 1, 1))
    assert division["row_tiles"][0] == row_tiles
    assert division["tiles"] == prod(problem[:2]) * row_tiles


@pytest.mark.parametrize(("row_vecs", "lane_vecs"), [(1, 1), (32, 1), (33, 2), (96, 3), (128, 4), (129, 3), (10**6, 4)])
def test_rows_are_cut_into_even_tiles(row_vecs: int, lane_vecs: int) -> None:
    assert lane_vecs_for(row_vecs) == lane_vecs


PLACES = CausalConv1dShortseqFwd.threads


@pytest.mark.parametrize(
    ("lane_vecs", "problem", "blocks"),
    [
        (1, (3, 4, PLACES // 4), 3),
        (1, (3, 4, PLACES // 4 + 1), 6),
        (2, (3, 4, PLACES // 4), 2),
        (2, (4, 1, 1), 2),
        (2, (1, PLACES + 1, 1), 2),
    ],
)
def test_shortseq_launches(lane_vecs: int, problem: tuple[int, int, int], blocks: int) -> None:
    config, division = shortseq_config(lane_vecs, *problem)
    assert config == LaunchConfig((blocks, 1, 1), (CausalConv1dShortseqFwd.threads, 1, 1))
    assert division["batch_vecs"] == problem[1] * problem[2]


def test_a_problem_with_too_many_blocks_says_so() -> None:
    with pytest.raises(ValueError, match="a launch takes at most"):
        channellast_config(1, 2**20, 2**20, 1)
    with pytest.raises(ValueError, match=f"the problem needs {3 * 2**30} warps; a launch takes at most {MAX_DIVIDEND}"):
        rows_config(1, 3, 2**30, 3)
