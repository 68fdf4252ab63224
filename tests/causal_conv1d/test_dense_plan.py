"""What is planned for random layouts: accesses are aligned, and every element is written exactly once.

Which thread writes what is read from the packed numbers, with the arithmetic of the kernels' first lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuconv.causal_conv1d import dense
from cuconv.causal_conv1d.kernels import (
    ODD_LANES,
    CausalConv1dChannellastFwd,
    CausalConv1dChannellastWideFwd,
    CausalConv1dFwd,
    CausalConv1dOddchannelsFwd,
    CausalConv1dOddseqFwd,
    CausalConv1dShortseqFwd,
    CausalConv1dWideFwd,
    CausalConv1dWideshortFwd,
)
from cuconv.causal_conv1d.plan_dense import Operands
from cuconv.runtime.dtypes import FLOATS, DType
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import MAX_DIVIDEND, WARP_SIZE
from cuconv.runtime.plan import Launch
from tests.cases import numbers_of
from tests.causal_conv1d.strategies import calls
from tests.support.placement import Placement, place
from tests.support.plans import FEW, MANY, addresses, assert_vectors, planned, some

SMALL = st.one_of(
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(0, 1100)),
    st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 3, 6, 8, 12, 100, 132]), st.integers(0, 12)),
    st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 70)),
    st.tuples(st.integers(1, 2), st.integers(20, 260), st.integers(1, 70)),
)
HUGE = st.one_of(
    st.tuples(FEW, FEW, st.one_of(MANY, st.just(2**33))),
    st.tuples(FEW, MANY, FEW),
    st.tuples(MANY, FEW, FEW),
    st.tuples(FEW, MANY, MANY),
)


class Tile(NamedTuple):
    """What one thread writes at once; tokens may lie outside the row, and are not written then."""

    batch: int
    channel: int
    channels: int
    token: int
    tokens: int
    is_last: bool
    """Whether the final states are written by the same thread."""


def channellast_tiles(o: Operands, launch: Launch) -> Iterator[Tile]:
    kernel, n = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, CausalConv1dChannellastFwd)
    for block in range(launch.config.grid[0]):
        rest, dim_block = divmod(block, int(n["dim_blocks"][0]))
        batch, time_block = divmod(rest, int(n["time_blocks"][0]))
        for thread in range(launch.config.block[0]):
            tile, vector = divmod(thread, int(n["block_vecs"][0]))
            channel = (dim_block * int(n["block_vecs"][0]) + vector) * kernel.vec
            token = (time_block * int(n["tiles"]) + tile) * kernel.tokens
            if tile < n["tiles"] and channel < o.x.shape[1] and (token == 0 or token < o.x.shape[2]):
                is_last = token + kernel.tokens >= o.x.shape[2]
                yield Tile(batch, channel, kernel.vec, token, kernel.tokens, is_last)


def oddchannels_tiles(o: Operands, launch: Launch) -> Iterator[Tile]:
    kernel, n = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, CausalConv1dOddchannelsFwd)
    _, dim, seqlen = o.x.shape
    for block, warp in product(range(launch.config.grid[0]), range(launch.kernel.warps)):
        rest, dim_block = divmod(block, int(n["dim_blocks"][0]))
        batch, time_block = divmod(rest, int(n["time_blocks"][0]))
        token = (time_block * launch.kernel.warps + warp) * kernel.tokens
        if token > 0 and token >= seqlen:
            continue
        vectors = [(dim_block * ODD_LANES + lane - 1) * kernel.vec for lane in range(ODD_LANES)]
        for t in range(token, min(token + kernel.tokens, seqlen)):
            for channel in vectors:
                # The first aligned vector that begins in the lane's channels.
                at = o.out.first + batch * o.out.strides[0] + t * o.out.strides[2] + channel
                first, end = channel - at % kernel.vec + (kernel.vec if at % kernel.vec else 0), dim
                if first < end and first + kernel.vec > 0:
                    channels = range(max(0, first), min(first + kernel.vec, end))
                    yield Tile(batch, channels.start, len(channels), t, 1, False)
        if token + kernel.tokens >= seqlen:
            for channel in vectors:
                if 0 <= channel < dim:
                    yield Tile(batch, channel, min(kernel.vec, dim - channel), token, 0, True)


def phase_of(o: Operands, kernel: Any, batch: int, channel: int) -> int:
    """How many elements the row begins behind an aligned address, where vectors lie."""
    lies = o.out if getattr(kernel, "shifted", False) else o.x
    phase: int = (lies.first + batch * lies.strides[0] + channel * lies.strides[1]) % kernel.vec
    return phase


def rows_tiles(o: Operands, launch: Launch) -> Iterator[Tile]:
    kernel, n = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, CausalConv1dFwd)
    warps = launch.kernel.warps
    for tile in range(min(launch.config.grid[0] * warps, int(n["tiles"]))):
        row, row_tile = divmod(tile, int(n["row_tiles"][0]))
        batch, channel = divmod(row, int(n["dim_div"][0]))
        for i in range(kernel.lane_vecs * WARP_SIZE):
            vector = row_tile * kernel.lane_vecs * WARP_SIZE + i
            token = vector * kernel.vec - phase_of(o, kernel, batch, channel)
            yield Tile(batch, channel, 1, token, kernel.vec, vector == n["row_vecs"] - 1)


def shortseq_tiles(o: Operands, launch: Launch) -> Iterator[Tile]:
    kernel, n = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, CausalConv1dShortseqFwd)
    threads = kernel.threads
    for block in range(launch.config.grid[0]):
        group, part = divmod(block, int(n["blocks"][0]))
        for index in range(part * threads, min((part + 1) * threads, int(n["batch_vecs"]))):
            channel, vector = divmod(index, int(n["row_vecs"][0]))
            for batch in range(group * kernel.lane_vecs, min((group + 1) * kernel.lane_vecs, o.x.shape[0])):
                token = vector * kernel.vec - phase_of(o, kernel, batch, channel)
                yield Tile(batch, channel, 1, token, kernel.vec, vector == n["row_vecs"][0] - 1)


def oddseq_tiles(o: Operands, launch: Launch) -> Iterator[Tile]:
    kernel, n = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, CausalConv1dOddseqFwd)
    batches, dim, seqlen = o.x.shape
    threads = kernel.threads
    for block in range(launch.config.grid[0]):
        group, part = divmod(block, int(n["blocks"][0]))
        for index in range(part * threads, min((part + 1) * threads, int(n["batch_vecs"]))):
            channel, token = divmod(index * kernel.vec, int(n["row"][0]))
            for batch in range(group * kernel.lane_vecs, min((group + 1) * kernel.lane_vecs, batches)):
                yield Tile(batch, channel, 1, token, kernel.vec, token + kernel.vec >= seqlen)
                if token + kernel.vec > seqlen and channel + 1 < dim:
                    yield Tile(batch, channel + 1, 1, token - seqlen, kernel.vec, False)


def wide_tiles(o: Operands, launch: Launch) -> Iterator[Tile]:
    kernel, n = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, CausalConv1dWideFwd)
    assert n["walk_vecs"] % (kernel.lane_vecs * WARP_SIZE) == 0
    for walk in range(min(launch.config.grid[0] * kernel.warps, int(n["walks"]))):
        row, row_walk = divmod(walk, int(n["row_walks"][0]))
        batch, channel = divmod(row, int(n["dim_div"][0]))
        for i in range(int(n["walk_vecs"])):
            vector = row_walk * int(n["walk_vecs"]) + i
            yield Tile(batch, channel, 1, vector * kernel.VEC, kernel.VEC, vector == n["row_vecs"] - 1)


def wideshort_tiles(o: Operands, launch: Launch) -> Iterator[Tile]:
    kernel, n = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, CausalConv1dWideshortFwd)
    batches, dim, _ = o.x.shape
    row_vecs, entries = int(n["row_vecs"][0]), int(n["entries"])
    rows = WARP_SIZE // row_vecs
    for warp in range(min(launch.config.grid[0] * kernel.warps, int(n["warps"]))):
        walk, group = divmod(warp, int(n["channel_warps"][0]))
        for row, vector in product(range(rows), range(row_vecs)):
            if group * rows + row < dim:
                for batch in range(walk * entries, min((walk + 1) * entries, batches)):
                    is_last = vector == row_vecs - 1
                    yield Tile(batch, group * rows + row, 1, vector * kernel.VEC, kernel.VEC, is_last)


def channellast_wide_tiles(o: Operands, launch: Launch) -> Iterator[Tile]:
    kernel, n = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, CausalConv1dChannellastWideFwd)
    channels = kernel.constants["kChannels"]
    assert n["tokens"] % kernel.constants["kTokens"] == 0
    warps = launch.config.block[0] // WARP_SIZE
    for block, warp in product(range(launch.config.grid[0]), range(warps)):
        rest, dim_block = divmod(block, int(n["dim_blocks"][0]))
        batch, walk = divmod(rest, int(n["walks"][0]))
        token, tokens = walk * int(n["tokens"]), int(n["tokens"])
        yield Tile(
            batch, (dim_block * warps + warp) * channels, channels, token, tokens, token + tokens >= o.x.shape[2]
        )


TILES: dict[type[Kernel], Callable[[Operands, Launch], Iterator[Tile]]] = {
    CausalConv1dChannellastFwd: channellast_tiles,
    CausalConv1dChannellastWideFwd: channellast_wide_tiles,
    CausalConv1dFwd: rows_tiles,
    CausalConv1dOddchannelsFwd: oddchannels_tiles,
    CausalConv1dOddseqFwd: oddseq_tiles,
    CausalConv1dShortseqFwd: shortseq_tiles,
    CausalConv1dWideFwd: wide_tiles,
    CausalConv1dWideshortFwd: wideshort_tiles,
}

WIDE = CausalConv1dWideFwd | CausalConv1dWideshortFwd | CausalConv1dChannellastWideFwd
"""The kernels of which all accesses are whole ones of 16 bytes."""


def assert_covers(o: Operands, launch: Launch) -> None:
    """Every element is written once, and every row's final state."""
    written = np.zeros(o.x.shape, np.int32)
    states = np.zeros(o.x.shape[:2], np.int32)
    for tile in TILES[type(launch.kernel)](o, launch):
        channels = slice(tile.channel, tile.channel + tile.channels)
        written[tile.batch, channels, max(0, tile.token) : max(0, tile.token + tile.tokens)] += 1
        states[tile.batch, channels] += tile.is_last
    assert (written == 1).all()
    assert (states == 1).all()


def assert_aligned(o: Operands, launch: Launch) -> None:
    """Every address that the vector width makes a thread access is a multiple of it, for every row or token."""
    kernel: Any = launch.kernel
    vec = kernel.VEC if isinstance(kernel, WIDE) else kernel.vec
    assert vec * o.x.itemsize <= 16
    for layout in (o.x, o.out):
        batches, dims, tokens = layout.shape
        if isinstance(kernel, CausalConv1dChannellastWideFwd):
            assert dims % vec == 0
            assert_vectors(layout, vec, 1)
        elif isinstance(kernel, CausalConv1dWideFwd | CausalConv1dWideshortFwd):
            assert tokens % vec == 0
            assert_vectors(layout, vec, 2)
        elif isinstance(launch.kernel, CausalConv1dChannellastFwd):
            assert_vectors(layout, vec, 1)
        elif isinstance(launch.kernel, CausalConv1dOddchannelsFwd):
            # What a vector has of other tokens is memory of the same array.
            assert dims >= 2 * vec and (tokens <= 1 or abs(layout.strides[2]) >= dims) and layout.strides[1] == 1
        elif isinstance(launch.kernel, CausalConv1dOddseqFwd):
            assert vec <= tokens and all(at % vec == 0 for at in addresses(layout, 0))
            assert vec == 1 or (layout.strides[2] == 1 and (dims == 1 or layout.strides[1] == tokens))
        elif vec > 1:
            assert layout.strides[2] == 1 or tokens <= 1
            # x and out begin at the same phase, so that the vectors of both are aligned; or vectors of x are shifted.
            for b, d in product(some(batches), some(dims)):
                at = layout.first + b * layout.strides[0] + d * layout.strides[1]
                assert at % vec == phase_of(o, launch.kernel, b, d) or getattr(launch.kernel, "shifted", False)


def assert_rows_fit(o: Operands, launch: Launch) -> None:
    """A row has vectors enough, wherever among aligned addresses it begins."""
    if isinstance(launch.kernel, CausalConv1dFwd | CausalConv1dShortseqFwd):
        batches, dims, seqlen = o.x.shape
        phases = [phase_of(o, launch.kernel, b, d) for b in some(batches) for d in some(dims)]
        assert int(np.ravel(numbers_of(launch)["row_vecs"])[0]) * launch.kernel.vec >= seqlen + max(phases)


def plan_of(placements: dict[str, Placement]) -> tuple[Operands, Launch]:
    return planned(dense._forward, placements, "final_states_out" in placements, True)


@given(calls(SMALL))
def test_every_element_is_written_once(placements: dict[str, Placement]) -> None:
    o, launch = plan_of(placements)
    assert_covers(o, launch)
    assert_aligned(o, launch)


@given(calls(HUGE))
@settings(max_examples=600)
def test_accesses_are_aligned_and_indices_fit_at_any_size(placements: dict[str, Placement]) -> None:
    try:
        o, launch = plan_of(placements)
    except ValueError:
        # Too large for one launch: said so, and before anything ran.
        return
    assert_aligned(o, launch)
    n = numbers_of(launch)
    # What the kernels divide must be below 2**31.
    batches, dims, seqlen = o.x.shape
    kernel = launch.kernel
    if isinstance(kernel, CausalConv1dOddseqFwd):
        assert int(n["batch_vecs"]) * kernel.vec >= dims * seqlen and dims * seqlen <= MAX_DIVIDEND
    if isinstance(kernel, CausalConv1dShortseqFwd):
        assert int(n["batch_vecs"]) == dims * int(n["row_vecs"][0]) <= MAX_DIVIDEND
    if isinstance(kernel, CausalConv1dWideFwd):
        assert int(n["walks"]) == batches * dims * int(n["row_walks"][0]) <= MAX_DIVIDEND
        assert int(n["row_vecs"]) * kernel.VEC == seqlen <= int(n["row_walks"][0]) * int(n["walk_vecs"]) * kernel.VEC
    if isinstance(kernel, CausalConv1dChannellastWideFwd):
        blocks = launch.config.grid[0]
        assert blocks == batches * int(n["dim_blocks"][0]) * int(n["walks"][0]) <= MAX_DIVIDEND
        assert int(n["walks"][0]) * int(n["tokens"]) >= seqlen
    if isinstance(kernel, CausalConv1dFwd):
        assert int(n["tiles"]) == batches * dims * int(n["row_tiles"][0]) <= MAX_DIVIDEND
        assert int(n["row_tiles"][0]) * kernel.lane_vecs * WARP_SIZE >= n["row_vecs"]
    assert_rows_fit(o, launch)


@pytest.mark.parametrize("width", [5, 6, 16])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((2, 2, 2312), (0, 1, 2)),
        ((1, 3, 2304), (0, 1, 2)),
        ((2, 3, 448), (0, 1, 2)),
        ((2, 136, 75), (0, 2, 1)),
        ((1, 8704, 83), (0, 2, 1)),
    ],
)
def test_wide_filters_of_16_bits_have_kernels_of_their_own(
    shape: tuple[int, int, int], order: tuple[int, ...], dtype: DType, width: int
) -> None:
    x = place(dtype, shape, order=order)
    o, launch = plan_of({"x": x, "out": x, "weight": place(dtype, (shape[1], width))})
    assert isinstance(launch.kernel, WIDE) == (dtype.itemsize == 2 and width >= 6)
    assert_covers(o, launch)
    assert_aligned(o, launch)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)], ids=["channel_first", "channel_last"])
def test_every_way_to_be_unaligned(dtype: DType, order: tuple[int, ...]) -> None:
    """All small offsets of x and out from an aligned address, and of their rows or tokens from each other."""
    vectors = set()
    lengths = [*range(1, 12), 126, 127, 258, *range(512, 523)] if order == (0, 1, 2) else [9]
    for seqlen, shift, gap in product(lengths, range(8), range(8)):
        dim = 16 if seqlen == 9 else 5
        x = place(dtype, (2, dim, seqlen), order=order, shift=shift, pad=(0, 0, gap) if dim == 5 else (0, gap, 0))
        for out_shift, out_gap in {(shift, gap), (0, gap), (shift, 0), (shift ^ 4, gap), (shift, gap ^ 2)}:
            pad = (0, 0, out_gap) if dim == 5 else (0, out_gap, 0)
            out = place(dtype, x.shape, order=order, shift=out_shift, pad=pad)
            for width in (4, 5):
                o, launch = plan_of({"x": x, "out": out, "weight": place(dtype, (dim, width))})
                assert_aligned(o, launch)
                assert_rows_fit(o, launch)
                vectors.add(launch.kernel.vec)  # type: ignore[attr-defined]
    assert vectors >= {1, 2}
