"""What is planned for gradients: every token of every channel belongs to one thread, sums to few parts, and vectors are
aligned.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuconv
from cuconv.causal_conv1d.kernels_backward import (
    CausalConv1dBulkBwd,
    CausalConv1dBwd,
    CausalConv1dBwdSum,
    CausalConv1dRowpartsBwd,
)
from cuconv.causal_conv1d.kernels_channels_backward import (
    CausalConv1dChannelcolumnsBwd,
    CausalConv1dChannellastBwd,
    CausalConv1dChannelpairsBwd,
    CausalConv1dChannelroundsBwd,
    CausalConv1dFewchannelsBwd,
)
from cuconv.causal_conv1d.kernels_varlen_backward import (
    CausalConv1dBwdStates,
    CausalConv1dChannellastVarlenBwd,
    CausalConv1dShortrowsBwd,
)
from cuconv.runtime import machine
from cuconv.runtime.abstract import AbstractArray, launches_of
from cuconv.runtime.dtypes import BFLOAT16, FLOAT32, INT32, DType
from cuconv.runtime.launch import MAX_DIVIDEND, WARP_SIZE
from cuconv.runtime.plan import Launch
from tests.cases import numbers_of
from tests.support.plans import assert_launchable

SIZES = st.one_of(
    st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(0, 1100)),
    st.tuples(st.integers(1, 600), st.sampled_from([1, 3, 8, 132, 300]), st.integers(1, 40)),
    st.tuples(st.sampled_from([1, 8, 1000]), st.sampled_from([1, 16, 4096, 2**20]), st.sampled_from([1, 4095, 2**20])),
)
WIDTHS = st.integers(1, 16)


def rows(batch: int, dim: int, row_vecs: int) -> tuple[int, dict[str, Any], int]:
    kernel = CausalConv1dBwd(
        4, BFLOAT16, BFLOAT16, 8, stages=4, edges=False, silu=True, seq_idx=False, packed=False, states=False
    )
    config, division, parts = kernel.launch_config(batch, dim, row_vecs, True)
    return config.grid[0], division, parts


def walks(width: int, batch: int, dim: int, seqlen: int, vec: int = 2) -> tuple[int, dict[str, Any], int, int]:
    tokens = CausalConv1dChannellastBwd.tokens_for(width)
    block = CausalConv1dChannellastBwd.block_for(width, vec, (batch, dim, seqlen), 132)
    kernel = CausalConv1dChannellastBwd(width, FLOAT32, FLOAT32, vec, tokens, block, True, False, False)
    config, division, parts = kernel.launch_config(batch, dim, seqlen)
    assert division["block_walks"] * division["block_vecs"][0] <= block == config.block[0]
    return config.grid[0], division, parts, tokens


@given(SIZES)
def test_every_vector_of_a_channel_has_one_lane(size: tuple[int, int, int]) -> None:
    batch, dim, row_vecs = size[0], size[1], max(1, size[2])
    blocks, division, parts = rows(batch, dim, row_vecs)
    lanes, warps = division["lanes"], 1 << division["warps_shift"]
    assert lanes == 1 << division["lanes_shift"] and WARP_SIZE % lanes == 0 and CausalConv1dBwd.warps % warps == 0
    assert division["vecs"] == batch * row_vecs
    assert lanes * division["groups"] >= division["vecs"] > lanes * (division["groups"] - 1)
    assert division["step_rows"] * row_vecs + division["step_vecs"] == lanes
    channels = WARP_SIZE // lanes * CausalConv1dBwd.warps // warps
    channel_groups = division["channel_groups"][0]
    assert channel_groups * channels >= dim > (channel_groups - 1) * channels
    assert blocks == parts * channel_groups
    # Warps take consecutive groups; every part has some, unless there is nothing at all.
    a_part = warps * division["warp_groups"]
    assert division["groups"] <= parts * a_part
    assert parts == 1 or division["groups"] > (parts - 1) * a_part
    # A warp of several channels has whole rows: the gradients behind its last group belong to other rows.
    assert lanes == WARP_SIZE or lanes * division["warp_groups"] % row_vecs == 0


@given(SIZES)
def test_every_unit_of_a_channel_has_one_warp(size: tuple[int, int, int]) -> None:
    batch, dim, row_vecs = size[0], size[1], max(1, size[2])
    groups = CausalConv1dBulkBwd.groups_for(batch, dim, row_vecs)
    kernel = CausalConv1dBulkBwd(4, FLOAT32, BFLOAT16, groups, silu=True)
    config, division, parts = kernel.launch_config(batch, dim, row_vecs)
    unit, row_units = kernel.unit_vecs, division["row_units"][0]
    assert row_units * unit >= row_vecs > (row_units - 1) * unit
    assert division["units"] == batch * row_units
    warps = 1 << division["warps_shift"]
    channels, channel_groups = kernel.warps // warps, division["channel_groups"][0]
    assert channel_groups * channels >= dim > (channel_groups - 1) * channels
    assert config.grid[0] == parts * channel_groups
    a_part = warps * division["warp_units"]
    assert division["units"] <= parts * a_part and (parts == 1 or division["units"] > (parts - 1) * a_part)


@given(SIZES)
def test_every_group_of_a_row_has_one_warp(size: tuple[int, int, int]) -> None:
    batch, dim, row_vecs = size[0], size[1], max(1, size[2])
    kernel = CausalConv1dRowpartsBwd.suited(4, FLOAT32, BFLOAT16, True, (batch, dim, row_vecs))
    config, division, parts = kernel.launch_config(batch, dim, row_vecs)
    warps = 1 << division["warps_shift"]
    row_parts, channel_blocks, entries = config.grid
    a_part, channels = warps * kernel.groups * WARP_SIZE, kernel.warps // warps
    assert row_parts * a_part >= row_vecs > (row_parts - 1) * a_part
    assert channel_blocks * channels >= dim > (channel_blocks - 1) * channels
    assert entries == batch and parts == batch * row_parts
    assert kernel.edges or (row_parts * a_part == row_vecs and channel_blocks * channels == dim)
    # Several warps share a part only where one would not hold it.
    assert warps == 1 or (row_vecs > a_part // 2 and (row_parts == 1 or channels == 1))


@given(WIDTHS, SIZES)
def test_every_step_of_tokens_has_one_thread(width: int, size: tuple[int, int, int]) -> None:
    batch, dim, seqlen = size
    blocks, division, parts, tokens = walks(width, batch, dim, seqlen)
    # The next walk's first step has all gradients that a walk's last tokens need.
    assert tokens >= width - 1 and division["walk_steps"] >= 1
    row_steps = division["row_steps"][0]
    assert row_steps * tokens >= seqlen and (row_steps - 1) * tokens < max(1, seqlen)
    assert division["steps"] == batch * row_steps
    vecs = -(-dim // 2)
    assert division["dim_blocks"][0] * division["block_vecs"][0] >= vecs
    assert blocks == parts * division["dim_blocks"][0]
    a_part = division["block_walks"] * division["walk_steps"]
    assert division["steps"] <= parts * a_part and (parts == 1 or division["steps"] > (parts - 1) * a_part)


@given(st.integers(1, 20000), st.integers(1, 2**20), st.booleans())
def test_every_chunk_of_packed_rows_has_one_warp(dim: int, total: int, is_wide: bool) -> None:
    dtype = FLOAT32 if is_wide else BFLOAT16
    kernel = CausalConv1dShortrowsBwd(4, dtype, BFLOAT16, silu=True, states=True)
    config, division, parts = kernel.launch_config(dim, total)
    groups, chunks = division["channel_groups"][0], -(-total // kernel.chunk)
    assert WARP_SIZE * groups >= dim > WARP_SIZE * (groups - 1)
    assert config.grid[0] == parts * groups
    a_part = kernel.warps * division["walk_chunks"]
    assert chunks <= parts * a_part and (parts == 1 or chunks > (parts - 1) * a_part)


@pytest.mark.parametrize(
    ("size", "share"),
    [
        ((8, 4096, 2048), 0.02),
        ((64, 1536, 512), 0.02),
        ((512, 512, 64), 0.03),
        ((1, 8192, 65536), 0.01),
        ((1, 16, 2**20), 0.02),
    ],
)
@pytest.mark.parametrize("is_last", [False, True])
def test_parts_of_sums_are_little_beside_the_tokens(size: tuple[int, int, int], share: float, is_last: bool) -> None:
    batch, dim, seqlen = size
    parts = walks(4, batch, dim, seqlen, 4)[2] if is_last else rows(batch, dim, seqlen // 8)[2]
    assert parts * dim * 5 * 4 <= share * 3 * batch * dim * seqlen * 2


def planned(
    x: AbstractArray, dtype: DType = BFLOAT16, width: int = 4, dout: AbstractArray | None = None, **more: Any
) -> tuple[Launch, ...]:
    dim = x.shape[-2]
    more.setdefault("weight", AbstractArray((dim, width), (width, 1), dtype))
    function = cuconv.causal_conv1d_varlen_bwd if len(x.shape) == 2 else cuconv.causal_conv1d_bwd
    launches = launches_of(function, x=x, bias=None, dout=dout or x, **more)
    for launch in launches:
        assert_launchable(launch)
    return launches


def first(batch: int, dim: int, seqlen: int, row: int = 0, offset: int = 0, dtype: DType = BFLOAT16) -> AbstractArray:
    row = row or seqlen
    return AbstractArray((batch, dim, seqlen), (dim * row, row, 1), dtype, offset)


def last(batch: int, dim: int, seqlen: int, token: int = 0, offset: int = 0, dtype: DType = BFLOAT16) -> AbstractArray:
    token = token or dim
    return AbstractArray((batch, dim, seqlen), (seqlen * token, 1, token), dtype, offset)


@pytest.mark.parametrize(
    ("x", "kernel", "vec"),
    [
        (first(1, 2048, 504), CausalConv1dBwd, 8),
        (first(1, 2048, 2048, offset=2), CausalConv1dBwd, 2),
        (first(1, 2048, 252, dtype=FLOAT32), CausalConv1dBwd, 4),
        (last(1, 2048, 2044), CausalConv1dChannellastBwd, 4),
        (last(1, 2048, 2044, dtype=FLOAT32), CausalConv1dChannellastBwd, 2),
        (last(1, 2046, 2048), CausalConv1dChannellastBwd, 2),
        (last(1, 2048, 2048, offset=1), CausalConv1dChannellastBwd, 1),
        (AbstractArray((2, 8, 64), (1024, 128, 2), BFLOAT16), CausalConv1dBwd, 1),
        (AbstractArray((2, 8, 64), (1024, 2, 16), BFLOAT16), CausalConv1dChannellastBwd, 1),
    ],
)
def test_vectors_are_as_wide_as_memory_allows(x: AbstractArray, kernel: type, vec: int) -> None:
    launch = planned(x, x.dtype)[0]
    assert type(launch.kernel) is kernel
    assert launch.kernel.vec == vec  # type: ignore[attr-defined]
    assert numbers_of(launch)["dout_is_packed"] == 1


@pytest.mark.parametrize("x", [first(4, 64, 256), last(4, 64, 252)])
def test_dout_of_other_strides_costs_x_and_dx_no_vector(x: AbstractArray) -> None:
    vec = planned(x)[0].kernel.vec  # type: ignore[attr-defined]
    for dout in (AbstractArray(x.shape, (0, 0, 0), x.dtype), AbstractArray(x.shape, x.strides, x.dtype, 1)):
        launch = planned(x, dout=dout)[0]
        assert launch.kernel.vec == vec  # type: ignore[attr-defined]
        assert numbers_of(launch)["dout_is_packed"] == 0


def test_rows_may_be_read_beyond_their_ends_only_where_there_is_memory() -> None:
    assert numbers_of(planned(first(4, 6, 63))[0])["is_dense"] == 1
    assert numbers_of(planned(first(4, 6, 63, row=71))[0])["is_dense"] == 0
    assert numbers_of(planned(first(4, 6, 63), dout=first(4, 6, 63, row=71))[0])["is_dense"] == 0


@pytest.mark.parametrize(("odd", "width", "kernel"), [(0, 5, CausalConv1dBulkBwd), (1, 4, CausalConv1dBwd)])
def test_few_channels_leave_sums_that_another_launch_adds_up(odd: int, width: int, kernel: type) -> None:
    assert [type(launch.kernel) for launch in planned(first(8, 1024, 2048 - odd), width=width)] == [kernel]
    added = planned(first(4, 16, 2**15 - odd), width=width)
    assert [type(launch.kernel) for launch in added] == [kernel, CausalConv1dBwdSum]
    assert numbers_of(added[1])["parts"] * 16 == added[0].config.grid[0]


def test_rows_in_parts_leave_sums_that_another_launch_adds_up() -> None:
    assert [type(launch.kernel) for launch in planned(first(1, 16, 4096))] == [CausalConv1dRowpartsBwd]
    for x in (first(2, 16, 4096), first(1, 16, 8192)):
        added = planned(x)
        assert [type(launch.kernel) for launch in added] == [CausalConv1dRowpartsBwd, CausalConv1dBwdSum]
        assert numbers_of(added[1])["parts"] == 2


@pytest.mark.parametrize(
    ("x", "width", "more"),
    [
        (first(2, 64, 760), 4, {}),
        (first(2, 64, 1280), 4, {}),
        (first(2, 64, 2048), 5, {}),
        (first(2, 64, 2048), 1, {}),
        (first(2, 64, 2048), 4, {"weight": AbstractArray((64, 4), (1, 64), BFLOAT16)}),
        (AbstractArray((2, 64, 2048), (-64 * 2048, 2048, 1), BFLOAT16, 64 * 2048), 4, {}),
    ],
)
def test_calls_that_short_blocks_do_not_fit_are_walked(x: AbstractArray, width: int, more: dict[str, Any]) -> None:
    assert type(planned(first(2, 64, 2048))[0].kernel) is CausalConv1dRowpartsBwd
    assert type(planned(x, width=width, **more)[0].kernel) in (CausalConv1dBulkBwd, CausalConv1dBwd)


@pytest.mark.parametrize(
    ("x", "more"),
    [
        (first(2, 64, 504), {}),
        (first(2, 64, 520), {}),
        (first(2, 64, 2044), {}),
        (first(9, 64, 1024), {}),
        (first(2, 64, 2**16), {}),
        (first(2, 64, 2048, row=2052), {}),
        (first(2, 64, 2048, offset=4), {}),
        (first(2, 64, 2048), {"dout": first(2, 64, 2048, offset=8, row=2052)}),
        (first(2, 64, 2048), {"seq_idx": AbstractArray((2, 2048), (2048, 1), INT32)}),
        (first(2, 64, 2048), {"initial_states": AbstractArray((2, 64, 4), (256, 4, 1), BFLOAT16)}),
    ],
)
def test_rows_that_bulk_copies_do_not_fit_are_walked_vector_by_vector(x: AbstractArray, more: dict[str, Any]) -> None:
    assert type(planned(first(2, 64, 2048), width=5)[0].kernel) is CausalConv1dBulkBwd
    assert type(planned(x, width=5, **more)[0].kernel) is CausalConv1dBwd


@pytest.mark.parametrize(
    ("x", "more"),
    [
        (last(2, 1024, 2044), {}),
        (last(2, 1028, 2048), {}),
        (last(2, 1032, 2048), {}),
        (last(2, 1024, 2048, token=1028), {}),
        (last(2, 1024, 2048, offset=4), {}),
        (last(2, 1024, 2048), {"dout": last(2, 1024, 2048, offset=4)}),
        (last(2, 1024, 2048), {"dout": AbstractArray((2, 1024, 2048), (0, 0, 0), BFLOAT16)}),
        (last(2, 1024, 2048), {"width": 5}),
        (last(2, 1024, 2048), {"seq_idx": AbstractArray((2, 2048), (2048, 1), INT32)}),
        (last(2, 1024, 2048), {"initial_states": AbstractArray((2, 1024, 3), (3072, 3, 1), BFLOAT16)}),
    ],
)
def test_what_pairs_of_vectors_do_not_fit_is_walked_by_vectors(x: AbstractArray, more: dict[str, Any]) -> None:
    for dtype in (BFLOAT16, FLOAT32):
        assert type(planned(last(2, 1024, 2048, dtype=dtype), dtype)[0].kernel) is CausalConv1dChannelpairsBwd
    assert type(planned(x, **more)[0].kernel) is CausalConv1dChannellastBwd


@pytest.mark.parametrize(
    ("x", "tokens"),
    [
        (last(16, 256, 23), 4),
        (AbstractArray((1024, 400), (1, 1024), BFLOAT16), 4),
        (AbstractArray((5120, 258), (1, 5120), BFLOAT16), 8),
        (AbstractArray((1024, 2048), (1, 1024), BFLOAT16), 16),
        (last(1, 5120, 33), 16),
    ],
)
def test_few_tokens_are_walked_in_short_pieces(x: AbstractArray, tokens: int) -> None:
    """Walks have the length with which these calls were quickest on an H200."""
    more = {"query_start_loc": AbstractArray((5,), (1,), INT32)} if len(x.shape) == 2 else {}
    with machine.assuming(132):
        launch, *_ = planned(x, **more)
    assert launch.kernel.tokens * numbers_of(launch)["walk_steps"] == tokens


@given(st.integers(1, 300), st.integers(1, 2500), st.integers(1, 300))
def test_all_threads_of_a_warp_with_pairs_make_the_same_steps(batch: int, pairs: int, row_steps: int) -> None:
    launch, *sums = planned(last(batch, 8 * pairs, 8 * row_steps))
    if type(launch.kernel) is not CausalConv1dChannelpairsBwd:
        return
    numbers = numbers_of(launch)
    block_vecs, walks, steps = numbers["block_vecs"][0], numbers["block_walks"], numbers["walk_steps"]
    threads = launch.kernel.threads
    assert block_vecs * walks == threads and numbers["dim_blocks"][0] * block_vecs == 2 * pairs
    assert steps >= 2, "blocks synchronise before the second step"
    parts = launch.config.grid[0] // numbers["dim_blocks"][0]
    assert [numbers_of(each)["parts"] for each in sums] == (
        [parts * walks if numbers["walks_are_parts"] else parts] if parts > 1 else []
    )
    for first_thread in {0, threads - WARP_SIZE, threads * (parts - 1), threads * parts - WARP_SIZE}:
        begins = [(thread // threads * walks + thread % threads // block_vecs) * steps
                  for thread in range(first_thread, first_thread + WARP_SIZE)]  # fmt: skip
        assert len({max(0, min(int(steps), int(numbers["steps"]) - int(begin))) for begin in begins}) == 1


@pytest.mark.parametrize(
    ("x", "more"),
    [
        (last(1, 4096, 8192), {}),
        (last(1, 2048, 1024), {}),
        (last(1, 3072, 2048), {}),
        (last(1, 4352, 2048), {}),
        (last(1, 2048, 2048), {}),
        (last(1, 4096, 2040), {}),
        (last(3, 4096, 512), {}),
        (AbstractArray((2, 4096, 1024), (4096 * 1056, 1, 4096), BFLOAT16), {}),
        (last(1, 4096, 2048, offset=4), {}),
        (last(1, 4096, 2048), {"dout": last(1, 4096, 2048, token=4100)}),
        (last(1, 4096, 2048), {"width": 5}),
    ],
)
def test_columns_are_for_channels_that_fill_the_gpu_with_few_tokens(x: AbstractArray, more: dict[str, Any]) -> None:
    for whole in (last(1, 4096, 2048), last(4, 4096, 512), last(1, 4096, 512, token=4104)):
        (launch,) = planned(whole)
        assert type(launch.kernel) is CausalConv1dChannelcolumnsBwd
    assert type(planned(last(1, 2048, 2048, dtype=FLOAT32), FLOAT32)[0].kernel) is CausalConv1dChannelcolumnsBwd
    assert type(planned(x, **more)[0].kernel) is not CausalConv1dChannelcolumnsBwd


@given(st.integers(1, 64), st.integers(1, 300), st.integers(1, 3000), st.integers(1, 148))
def test_the_walks_of_columns_have_every_token_once(batch: int, words: int, row_pieces: int, processors: int) -> None:
    kernel = CausalConv1dChannelcolumnsBwd(4, BFLOAT16, BFLOAT16, True)
    launch = kernel.launch_config(batch, 16 * words, 4 * row_pieces, processors)
    if launch is None:
        return
    config, division = launch
    (column_words, *_), (row_walks, *_) = division["column_words"], division["row_walks"]
    assert config.grid[0] * column_words * kernel.vec == 16 * words and config.grid[0] <= processors
    assert column_words <= kernel.constants["kMostWords"]
    assert row_walks * division["walk_pieces"] == row_pieces
    assert batch * row_walks * column_words == kernel.threads
    assert division["walk_pieces"] % kernel.constants["kStages"] == 0


GAPS = AbstractArray((8, 4096, 2048), (4096 * 2056, 1, 4096), BFLOAT16)


@pytest.mark.parametrize(
    ("x", "more"),
    [
        (last(1, 3072, 2048), {}),
        (last(1, 128, 2**19), {}),
        (last(8, 4096, 2044), {}),
        (GAPS, {}),
        (last(8, 4096, 2048), {"dout": GAPS}),
        (last(8, 4100, 2048), {}),
        (last(8, 4096, 2048), {"width": 5}),
    ],
)
def test_rounds_are_for_many_tokens_in_rows_without_gaps(x: AbstractArray, more: dict[str, Any]) -> None:
    for dtype in (BFLOAT16, FLOAT32):
        assert type(planned(last(8, 4096, 2048, dtype=dtype), dtype)[0].kernel) is CausalConv1dChannelroundsBwd
    one_row = planned(last(1, 4096, 2**14, token=4104))
    assert type(one_row[0].kernel) is CausalConv1dChannelroundsBwd
    assert type(planned(x, **more)[0].kernel) in (CausalConv1dChannellastBwd, CausalConv1dChannelpairsBwd)


@given(st.integers(1, 300), st.integers(1, 2500), st.integers(1, 3000), st.integers(1, 132))
def test_every_piece_of_rounds_is_in_one_part(batch: int, pairs: int, row_pieces: int, processors: int) -> None:
    kernel = CausalConv1dChannelroundsBwd(4, BFLOAT16, BFLOAT16, True)
    launch = kernel.launch_config(batch, 8 * pairs, 8 * row_pieces, processors)
    if launch is None:
        return
    config, division, parts = launch
    (block_vecs, *_), (dim_blocks, *_) = division["block_vecs"], division["dim_blocks"]
    assert dim_blocks * block_vecs == 2 * pairs and block_vecs * division["round_pieces"] == kernel.threads
    # A thread brings what lies whole pieces behind its first access.
    assert division["round_pieces"] % 4 == 0
    assert config.grid[0] == parts * dim_blocks and division["pieces"] == batch * row_pieces
    part_pieces = division["rounds"] * division["round_pieces"]
    assert (parts - 1) * part_pieces < division["pieces"] <= parts * part_pieces


@pytest.mark.parametrize(
    ("x", "more"),
    [
        (last(1, 16, 2**12), {}),
        (last(1, 64, 2**20), {}),
        (last(1, 12, 2**20), {}),
        (last(1, 16, 2**20, token=24), {}),
        (last(1, 16, 2**20, offset=4), {}),
        (last(1, 16, 2**20), {"dout": last(1, 16, 2**20, offset=4)}),
        (last(1, 16, 2**20), {"dout": AbstractArray((1, 16, 2**20), (0, 0, 0), BFLOAT16)}),
        (last(1, 16, 2**20), {"width": 5}),
        (last(1, 16, 2**20), {"seq_idx": AbstractArray((1, 2**20), (2**20, 1), INT32)}),
        (last(1, 16, 2**20), {"initial_states": AbstractArray((1, 16, 3), (48, 3, 1), BFLOAT16)}),
    ],
)
def test_what_tiles_of_few_channels_do_not_fit_is_walked(x: AbstractArray, more: dict[str, Any]) -> None:
    for dtype in (BFLOAT16, FLOAT32):
        assert type(planned(last(1, 16, 2**20, dtype=dtype), dtype)[0].kernel) is CausalConv1dFewchannelsBwd
    assert type(planned(x, **more)[0].kernel) is not CausalConv1dFewchannelsBwd


@given(st.integers(1, 40), st.integers(1, 10**6), st.sampled_from(CausalConv1dFewchannelsBwd.VECS), st.integers(1, 4))
def test_every_token_of_few_channels_is_in_one_tile(batch: int, seqlen: int, vecs: int, width: int) -> None:
    kernel = CausalConv1dFewchannelsBwd(width, BFLOAT16, BFLOAT16, vecs, True)
    config, division, parts = kernel.launch_config(batch, seqlen, 132)
    row_tiles = division["row_tiles"][0]
    assert (row_tiles - 1) * kernel.own_tokens < seqlen <= row_tiles * kernel.own_tokens
    assert division["tiles"] == batch * row_tiles and division["token_vecs"][0] == vecs
    assert parts == config.grid[0] and division["warps"] == parts * kernel.warps
    assert (parts - 1) * kernel.warps < division["tiles"]


STARTS = AbstractArray((6,), (1,), INT32)


def states_of(dim: int) -> AbstractArray:
    return AbstractArray((5, dim, 3), (3 * dim, 3, 1), BFLOAT16)


@pytest.mark.parametrize("tokens", [8, 100001])
def test_the_launch_for_states_of_packed_sequences_adds_up_the_sums(tokens: int) -> None:
    x = AbstractArray((24, tokens), (tokens, 1), BFLOAT16)
    with_states = planned(x, query_start_loc=STARTS, initial_states=states_of(24))
    assert [type(launch.kernel) for launch in with_states] == [CausalConv1dBwd, CausalConv1dBwdStates]
    sums = [launch for launch in planned(x, query_start_loc=STARTS) if type(launch.kernel) is CausalConv1dBwdSum]
    sum_blocks = sum(launch.config.grid[0] for launch in sums)
    assert bool(sum_blocks) == (tokens > 8)
    assert numbers_of(with_states[1])["sum_blocks"] == sum_blocks
    assert with_states[1].config.grid[0] == sum_blocks + 5


def test_long_packed_rows_are_walked_vector_by_vector() -> None:
    for tokens, kernel in ((5 * 2048, CausalConv1dShortrowsBwd), (5 * 2048 + 8, CausalConv1dBwd)):
        x = AbstractArray((64, tokens), (tokens, 1), BFLOAT16)
        assert type(planned(x, query_start_loc=STARTS)[0].kernel) is kernel
    for rows, tokens, width in ((31, 64, 4), (64, 60, 4), (64, 64, 6), (64, 64, 1)):
        x = AbstractArray((rows, tokens), (tokens, 1), BFLOAT16)
        assert type(planned(x, width=width, query_start_loc=STARTS)[0].kernel) is CausalConv1dBwd


@pytest.mark.parametrize("tokens", [8, 10000])
@pytest.mark.parametrize("is_last", [False, True])
def test_walks_along_packed_sequences_need_no_launch_for_states(tokens: int, is_last: bool) -> None:
    x = AbstractArray((64, tokens), (1, 64) if is_last else (tokens, 1), BFLOAT16)
    launches = planned(x, query_start_loc=STARTS, initial_states=states_of(64))
    kernel = CausalConv1dChannellastVarlenBwd if is_last else CausalConv1dShortrowsBwd
    added = [CausalConv1dBwdSum] if tokens > 8 else []
    assert [type(launch.kernel) for launch in launches] == [kernel, *added]


def test_without_channels_nothing_is_launched_and_without_tokens_zeros_are() -> None:
    assert planned(first(2, 0, 7)) == ()
    assert [type(launch.kernel) for launch in planned(first(0, 5, 7))] == [CausalConv1dBwd]
    assert [type(launch.kernel) for launch in planned(last(2, 5, 0))] == [CausalConv1dChannellastBwd]


def test_more_work_than_a_launch_counts_is_refused() -> None:
    with pytest.raises(ValueError, match="the problem has"):
        rows(MAX_DIVIDEND, 1, 33)
    with pytest.raises(ValueError, match="the problem has"):
        CausalConv1dBulkBwd(4, BFLOAT16, BFLOAT16, groups=2, silu=True).launch_config(MAX_DIVIDEND, 1, 64)
    with pytest.raises(ValueError, match="the problem needs"):
        walks(4, MAX_DIVIDEND, 2, 2**20)
    with pytest.raises(ValueError, match="the problem has"):
        CausalConv1dChannelroundsBwd(4, BFLOAT16, BFLOAT16, True).launch_config(MAX_DIVIDEND, 128, 64, 132)
    with pytest.raises(ValueError, match="the problem has"):
        CausalConv1dFewchannelsBwd(4, BFLOAT16, BFLOAT16, 4, True).launch_config(MAX_DIVIDEND, 64, 132)
    with pytest.raises(ValueError, match="parameters to add up"):
        CausalConv1dBwdSum(16, BFLOAT16).launch_config(2**28, 2)
