"""How many blocks the kernels of whole sequences are launched with, and how these share the work."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from cuconv.causal_conv1d.kernels import (
    CausalConv1dChannellastFwd,
    CausalConv1dChannellastWideFwd,
    CausalConv1dFwd,
    CausalConv1dShortseqFwd,
    CausalConv1dWideFwd,
    CausalConv1dWideshortFwd,
    lane_vecs_for,
)
from cuconv.runtime.dtypes import BFLOAT16, FLOAT32
from cuconv.runtime.launch import MAX_DIVIDEND, WARP_SIZE, LaunchConfig


def channellast(vec: int) -> Any:
    return CausalConv1dChannellastFwd(4, BFLOAT16, BFLOAT16, vec, 8, True, False, False)


def rows(lane_vecs: int) -> Any:
    return CausalConv1dFwd(4, FLOAT32, FLOAT32, 4, lane_vecs, True, False, False)


def shortseq(lane_vecs: int) -> Any:
    return CausalConv1dShortseqFwd(4, FLOAT32, FLOAT32, 4, lane_vecs, True, False, False)


def wide(lane_vecs: int) -> Any:
    return CausalConv1dWideFwd(16, BFLOAT16, BFLOAT16, True, False, lane_vecs)


def wideshort(width: int) -> Any:
    return CausalConv1dWideshortFwd(width, BFLOAT16, BFLOAT16, True)


def channellast_wide(width: int) -> Any:
    return CausalConv1dChannellastWideFwd(width, BFLOAT16, BFLOAT16, True, False)


WARPS, PLACES = CausalConv1dFwd.warps, CausalConv1dShortseqFwd.threads


@pytest.mark.parametrize(
    ("kernel", "problem", "blocks", "shares"),
    [
        (channellast(4), (1, 128, 32), 1 * 1, {"block_vecs": 32, "tiles": 4}),
        (channellast(4), (1, 128, 33), 1 * 2, {"block_vecs": 32, "tiles": 4}),
        # 33 vectors: two even shares and not 32 + 1.
        (channellast(4), (3, 132, 33), 2 * 1 * 3, {"block_vecs": 17, "tiles": 7}),
        (channellast(1), (1, 3, 42 * 8), 1, {"block_vecs": 3, "tiles": 42}),
        (channellast(1), (1, 3, 42 * 8 + 1), 2, {"block_vecs": 3, "tiles": 42}),
        # No tokens, but states to write.
        (channellast(2), (5, 2, 0), 5, {"block_vecs": 1, "tiles": 128}),
        (channellast(4), (2, 262144, 1), 2048 * 2, {"block_vecs": 32, "tiles": 4}),
        (rows(1), (1, 1, 1), 1, {"row_tiles": 1}),
        (rows(4), (1, WARPS, 128), 1, {"row_tiles": 1}),
        (rows(4), (1, WARPS + 1, 128), 2, {"row_tiles": 1}),
        (rows(3), (1, WARPS, 97), 2, {"row_tiles": 2}),
        (rows(2), (2, WARPS, 257), 10, {"row_tiles": 5}),
        (rows(4), (1, WARPS, 2**30), 2**23, {"row_tiles": 2**23}),
        (shortseq(1), (3, 4, PLACES // 4), 3, {"batch_vecs": PLACES}),
        (shortseq(1), (3, 4, PLACES // 4 + 1), 6, {"batch_vecs": PLACES + 4}),
        (shortseq(2), (3, 4, PLACES // 4), 2, {"batch_vecs": PLACES}),
        (shortseq(2), (4, 1, 1), 2, {"batch_vecs": 1}),
        (shortseq(2), (1, PLACES + 1, 1), 2, {"batch_vecs": PLACES + 1}),
        (wide(2), (1, WARPS, 256), 1, {"row_walks": 1, "walk_vecs": 256}),
        (wide(2), (2, WARPS, 257), 4, {"row_walks": 2, "walk_vecs": 256}),
        (wide(3), (1, WARPS + 1, 96), 2, {"row_walks": 1, "walk_vecs": 96}),
        (wide(3), (1, WARPS, 600), 3, {"row_walks": 3, "walk_vecs": 288}),
        (wideshort(16), (70, 8, 8, 9), 4, {"row_vecs": 8, "channel_warps": 2, "entries": 9}),
        (wideshort(9), (71, 7, 9, 10), 6, {"row_vecs": 9, "channel_warps": 3, "entries": 10}),
    ],
)
def test_launches(kernel: Any, problem: tuple[int, ...], blocks: int, shares: dict[str, int]) -> None:
    config, division = kernel.launch_config(*problem)
    assert config == LaunchConfig((blocks, 1, 1), (kernel.threads, 1, 1))
    found = {name: each[0] if isinstance(each, tuple) else each for name, each in division.items()}
    assert found.items() >= shares.items()
    if "row_tiles" in shares:
        assert found["tiles"] == prod(problem[:2]) * shares["row_tiles"]


@pytest.mark.parametrize(
    ("problem", "blocks", "warps", "shares"),
    [
        ((1, 256, 64, 64), 1, 4, {"dim_blocks": 1, "walks": 1}),
        ((3, 264, 65, 64), 12, 3, {"dim_blocks": 2, "walks": 2}),
        # No tokens, but states to write.
        ((5, 8, 0, 16), 5, 1, {"dim_blocks": 1, "walks": 1}),
    ],
)
def test_blocks_of_wide_filters_share_the_channels(
    problem: tuple[int, ...], blocks: int, warps: int, shares: dict[str, int]
) -> None:
    config, division = channellast_wide(16).launch_config(*problem)
    assert config == LaunchConfig((blocks, 1, 1), (warps * WARP_SIZE, 1, 1))
    assert {name: division[name][0] for name in shares} == shares


@pytest.mark.parametrize(
    ("row_vecs", "lane_vecs"), [(1, 1), (32, 1), (33, 2), (64, 2), (65, 3), (96, 3), (97, 2), (256, 2), (288, 3)]
)
def test_few_lanes_of_wide_filters_idle(row_vecs: int, lane_vecs: int) -> None:
    assert CausalConv1dWideFwd.lane_vecs_for(row_vecs) == lane_vecs


@pytest.mark.parametrize(
    ("width", "shape", "tokens"),
    [
        (6, (8, 4096, 2048), 64),
        (12, (8, 4096, 2048), 128),
        (16, (8, 4096, 2048), 512),
        (16, (2, 5120, 4096), 320),
        (16, (1, 4096, 2048), 128),
        (16, (1, 2048, 1024), 64),
        (16, (1, 8, 2**20), 512),
        (8, (1, 2048, 64), 16),
        (8, (1, 8, 0), 16),
    ],
)
def test_walks_along_channels_are_shorter_where_there_are_few(width: int, shape: Any, tokens: int) -> None:
    assert channellast_wide(width).walk_tokens(*shape, 132) == tokens


@pytest.mark.parametrize(("row_vecs", "lane_vecs"), [(1, 1), (32, 1), (33, 2), (96, 3), (128, 4), (129, 3), (10**6, 4)])
def test_rows_are_cut_into_even_tiles(row_vecs: int, lane_vecs: int) -> None:
    assert lane_vecs_for(row_vecs) == lane_vecs


def test_a_problem_with_too_many_blocks_says_so() -> None:
    with pytest.raises(ValueError, match="a launch takes at most"):
        channellast(1).launch_config(2**20, 2**20, 1)
    with pytest.raises(ValueError, match=f"the problem needs {3 * 2**30} warps; a launch takes at most {MAX_DIVIDEND}"):
        rows(1).launch_config(3, 2**30, 3)
