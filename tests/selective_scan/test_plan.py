"""What is planned for selective scans: accesses are aligned, and every token of every channel has its lanes."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from cuconv.selective_scan.kernel_carry import SelectiveScanCarry
from cuconv.selective_scan.kernel_tiles_chunk import SelectiveScanTilesChunk
from cuconv.selective_scan.kernel_tiles_fwd import SelectiveScanTilesFwd
from cuconv.selective_scan.kernel_varlen_tiles_fwd import SelectiveScanVarlenTilesFwd
from cuconv.selective_scan.kernels_scan import (
    CHUNK,
    MAX_STATE,
    MAX_TOKENS,
    SHAPES,
    THREADS,
    TILE_THREADS,
    TILE_TIMES,
    TileShape,
    lanes_for,
    own_tokens,
)
from cuconv.selective_scan.operands import Operands, Packed
from hypothesis import given, settings
from hypothesis import strategies as st

from cuconv.runtime.dtypes import BFLOAT16, FLOAT32, FLOATS, INT32
from cuconv.runtime.launch import MAX_DIVIDEND, ceil_div
from cuconv.selective_scan.plan_dense import Launch, plan, scratch_size, segments
from cuconv.selective_scan.plan_varlen import plan_varlen
from tests.causal_conv1d.test_dense_plan import FEW, MANY, numbers_of, some, variants
from tests.support.placement import place

TILED = (SelectiveScanTilesFwd, SelectiveScanTilesChunk)
SIZES = st.one_of(FEW, MANY)
LENGTHS = st.one_of(FEW, MANY.map(lambda n: min(n, MAX_TOKENS)))


def operands(
    shape: tuple[int, int, int], d_state: int, dtype: Any = BFLOAT16, matrix: Any = None, **lies: Any
) -> Operands:
    """A call with arrays like u, and a last state."""
    batch, dim, seqlen = shape
    u, A = place(dtype, shape, **lies).layout, place(FLOAT32, (dim, d_state)).layout
    B = matrix or place(dtype, (batch, 1, d_state, seqlen)).layout
    last = place(FLOAT32, (batch, dim, d_state)).layout
    return Operands(u, u, A, B, B, None, None, None, u, True, last_state=last)


def test_lanes_have_every_state() -> None:
    for d_state in range(1, MAX_STATE + 1):
        lanes, states = lanes_for(d_state)
        assert lanes * states >= d_state
        # No fewer would do.
        assert all(a * b < d_state for a, b in SHAPES[: SHAPES.index((lanes, states))])


@given(st.tuples(SIZES, SIZES, LENGTHS), st.integers(1, MAX_STATE))
@settings(max_examples=400)
def test_segments_are_all_of_a_row(shape: tuple[int, int, int], d_state: int) -> None:
    o = operands(shape, d_state)
    cut = segments(o)
    assert cut.tokens % CHUNK == 0
    assert (cut.parts - 1) * cut.tokens < max(shape[2], 1) <= cut.parts * cut.tokens
    if cut.parts > 1:
        # The kernels count the states of all rows in 32 bits.
        assert shape[0] * shape[1] * d_state <= MAX_DIVIDEND
        assert scratch_size(o) == shape[0] * cut.parts * shape[1] * (d_state + 1)
    else:
        assert scratch_size(o) == 0


@given(st.tuples(SIZES, SIZES, LENGTHS), st.integers(1, MAX_STATE))
@settings(max_examples=400)
def test_grids_have_every_channel_at_any_size(shape: tuple[int, int, int], d_state: int) -> None:
    batch, dim, _ = shape
    o = operands(shape, d_state)
    try:
        launches = plan(o)
    except ValueError:
        # Too large for one launch: said so, and before anything ran.
        return
    cut = segments(o)
    assert len(launches) == (3 if cut.parts > 1 else 1)
    for launch in launches:
        assert launch.kernel in variants()[type(launch.kernel)]
        kernel: Any = launch.kernel
        is_tiled = isinstance(kernel, TILED)
        threads = TILE_THREADS if is_tiled else THREADS
        assert launch.config.grid[1:] == (1, 1)
        n = numbers_of(launch)
        if isinstance(launch.kernel, SelectiveScanCarry):
            assert launch.config.block == (THREADS, 1, 1)
            assert launch.config.threads >= batch * dim * d_state
            assert (n["states"][0], n["channels"][0]) == (d_state, dim)
            continue
        assert launch.config.block == (threads, 1, 1)
        lanes = kernel.lanes * kernel.parts if is_tiled else lanes_for(d_state)[0]
        assert n["dim_blocks"][0] == ceil_div(dim * lanes, threads)
        assert launch.config.grid[0] == n["dim_blocks"][0] * n["segments"][0] * batch
        assert (n["segments"][0], n["segment_tokens"]) == cut


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("d_state", [1, 8, 16, 32])
def test_every_way_to_be_unaligned(dtype: Any, d_state: int) -> None:
    """All small offsets of u and B from an aligned address, and of their rows from each other."""
    accesses = set()
    for shift, gap in np.ndindex(8, 8):
        matrix = place(dtype, (2, 1, d_state, 24), shift=int(gap), pad=(0, 0, 0, int(shift))).layout
        o = operands((2, 3, 24), d_state, dtype, matrix, shift=int(shift), pad=(0, 0, int(gap)))
        (launch,) = plan(o)
        assert_aligned(o, launch)
        accesses.add(accesses_of(launch)[:2])
    lanes, _ = lanes_for(d_state)
    widest = 16 // dtype.itemsize
    assert {vec for vec, _ in accesses} >= {1, min(own_tokens(lanes), widest)}
    assert {vec for _, vec in accesses} >= {1, widest}


def accesses_of(launch: Launch) -> tuple[int, int, int]:
    """Elements an access of u, B and C."""
    kernel: Any = launch.kernel
    if isinstance(kernel, TILED):
        return (16 // kernel.input_t.itemsize,) * 3
    assert kernel.vec <= own_tokens(kernel.lanes)
    return kernel.vec, kernel.b_vec, kernel.c_vec


@pytest.mark.parametrize("seqlen", [1, 15, 16, 63, 64, 255, 256, 4096])
@pytest.mark.parametrize("groups", [1, 2, 48])
def test_tiles_are_no_longer_than_rows_and_channels_of_a_block_are_of_one_group(seqlen: int, groups: int) -> None:
    for dim in (48, 96, 1536, 49152):
        matrix = place(BFLOAT16, (1, groups, 16, seqlen), pad=(0, 0, 0, -seqlen % 8)).layout
        o = operands((1, dim, seqlen), 16, matrix=matrix, pad=(0, 0, -seqlen % 8))
        kernel = plan(o)[-1].kernel
        if isinstance(kernel, SelectiveScanTilesFwd):
            shape = TileShape(kernel.lanes, kernel.parts, kernel.at_once)
            assert shape.lanes == 1 or shape.lanes * shape.tokens <= seqlen
            assert groups == 1 or dim // groups % shape.channels == 0
        else:
            fitting = [shape for shape in TILE_TIMES if shape.lanes == 1 or shape.lanes * shape.tokens <= seqlen]
            assert seqlen < 8 or dim // groups % min(shape.channels for shape in fitting)


@pytest.mark.parametrize(
    ("batch", "dim", "shape"),
    [(1, 1536, (16, 2, 2)), (1, 5120, (16, 1, 4)), (1, 8192, (8, 1, 1)), (8, 1536, (4, 1, 2)), (8, 8192, (1, 1, 1))],
)
def test_the_shape_of_tiles_is_what_was_quickest(batch: int, dim: int, shape: tuple[int, int, int]) -> None:
    """On an H200, of all that there are; by hand, and so not by the model that chooses."""
    kernel: Any = plan(operands((batch, dim, 4096), 16))[-1].kernel
    assert isinstance(kernel, SelectiveScanTilesFwd)
    assert (kernel.lanes, kernel.parts, kernel.at_once) == shape


def packed(dim: int, total: int, sequences: int, d_state: int) -> Launch:
    """The launch of a call on packed sequences."""
    o = operands((1, dim, total), d_state)._replace(last_state=None)
    launch = plan_varlen(o, Packed(None, place(INT32, (sequences + 1,)).layout, None, None, -1, total))
    assert launch is not None
    return launch


@given(FEW, st.integers(1, 20000), st.integers(0, 5000), st.integers(1, MAX_STATE))
@settings(max_examples=300)
def test_every_packed_sequence_has_its_blocks(dim: int, total: int, sequences: int, d_state: int) -> None:
    launch = packed(dim, total, sequences, d_state)
    assert launch.kernel in variants()[type(launch.kernel)]
    n, kernel = numbers_of(launch), cast("Any", launch.kernel)
    lanes = kernel.lanes * getattr(kernel, "parts", 1)
    assert n["dim_blocks"][0] == ceil_div(dim * lanes, THREADS)
    # A warp looks at all sequences of a run at a time, and at where the next one begins.
    assert 1 <= n["run_sequences"] < 32
    assert n["few_tokens"] <= n["short_tokens"]
    run_blocks = launch.config.grid[0] - n["dim_blocks"][0] * n["long_at_a_time"]
    if n["short_tokens"] == 0:
        assert run_blocks == 0 and n["long_at_a_time"] == sequences + 2
    else:
        assert n["runs"][0] * n["run_sequences"] >= sequences + 2
        assert run_blocks == n["runs"][0] * ceil_div(dim, THREADS)
        possible = min(sequences + 2, total // (n["short_tokens"] + 1))
        assert min(1, possible) <= n["long_at_a_time"] <= possible
        assert n["long_goes_on"] == (n["long_at_a_time"] < possible)
    if isinstance(kernel, SelectiveScanVarlenTilesFwd):
        assert kernel.mixed == (n["short_tokens"] > 0)


@pytest.mark.parametrize(
    ("dim", "sequences", "shape"),
    [(8192, 1, (8, 1, 1)), (8192, 393, (8, 1, 1)), (1536, 1, (16, 2, 2)), (1536, 393, (16, 2, 2))],
)
def test_one_long_sequence_among_single_tokens_is_walked_as_one_alone(
    dim: int, sequences: int, shape: tuple[int, int, int]
) -> None:
    kernel: Any = packed(dim, 8192, sequences, 16).kernel
    assert isinstance(kernel, SelectiveScanVarlenTilesFwd)
    assert (kernel.lanes, kernel.parts, kernel.at_once) == shape


def assert_aligned(o: Operands, launch: Launch) -> None:
    """Every address that a width makes a thread access is a multiple of it."""
    for layout, vec in zip((o.u, o.B, o.C), accesses_of(launch), strict=True):
        assert vec == 1 or layout.strides[-1] == 1
        assert vec * layout.itemsize <= 16
        for row in np.ndindex(*(min(n, 3) for n in layout.shape[:-1])):
            at = layout.first + sum(i * stride for i, stride in zip(row, layout.strides, strict=False))
            assert all((at + token // vec * vec) % vec == 0 for token in some(layout.shape[-1]))


def test_nothing_is_launched_where_nothing_is_written() -> None:
    assert plan(operands((0, 3, 5), 4)) == plan(operands((2, 0, 5), 4)) == ()
    assert plan(operands((2, 3, 0), 4)._replace(last_state=None)) == ()
    assert len(plan(operands((2, 3, 0), 4))) == 1
