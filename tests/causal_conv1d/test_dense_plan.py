"""What is planned for random layouts: accesses are aligned, and every element is written exactly once.

Which thread writes what is read from the packed numbers, with the arithmetic of the kernels' first lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cuconv.causal_conv1d import dense
from cuconv.causal_conv1d.kernels import (
    CausalConv1dChannellastFwd,
    CausalConv1dFwd,
    CausalConv1dOddseqFwd,
    CausalConv1dShortseqFwd,
)
from cuconv.causal_conv1d.plan_dense import Operands
from cuconv.runtime.call import Launch, Operation
from cuconv.runtime.dtypes import FLOATS, DType
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import MAX_DIVIDEND, WARP_SIZE, fast_div
from cuconv.runtime.layout import Layout
from tests import cases
from tests.causal_conv1d.strategies import calls
from tests.runtime.test_launch import divide
from tests.support.discovery import op_kernels
from tests.support.placement import Placement, place

SMALL = st.one_of(
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(0, 1100)),
    st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 3, 6, 8, 12, 100, 132]), st.integers(0, 12)),
    st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 70)),
)
FEW = st.sampled_from([1, 2, 3, 8, 64, 127])
MANY = st.sampled_from([1000, 4096, 65537, 2**20, 2**24 + 1, 2**30, MAX_DIVIDEND])
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


def planned_by(operation: Operation[Any], given: dict[str, Placement], *options: Any) -> tuple[Any, Launch]:
    """A valid call as its family has checked it, and its one launch; no example where there is nothing to compute."""
    names = dict.fromkeys([*operation.inputs, *operation.outputs, *given])
    checked = operation._check({name: given[name].layout if name in given else None for name in names}, *options)
    launches = operation._plan(checked.operands).launches
    if not launches:
        assume(False)
    (launch,) = launches
    return checked.operands, launch


def numbers_of(launch: Launch) -> Any:
    (numbers,) = np.frombuffer(launch.numbers, launch.kernel.params.numbers)
    return numbers


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


def phase_of(o: Operands, vec: int, batch: int, channel: int) -> int:
    """How many elements the row begins behind an aligned address."""
    return (first_element(o.x) + batch * o.x.strides[0] + channel * o.x.strides[1]) % vec


def first_element(layout: Layout) -> int:
    return layout.offset // layout.itemsize


def rows_tiles(o: Operands, launch: Launch) -> Iterator[Tile]:
    kernel, n = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, CausalConv1dFwd)
    warps = launch.kernel.warps
    for tile in range(min(launch.config.grid[0] * warps, int(n["tiles"]))):
        row, row_tile = divmod(tile, int(n["row_tiles"][0]))
        batch, channel = divmod(row, int(n["dim_div"][0]))
        for i in range(kernel.lane_vecs * WARP_SIZE):
            vector = row_tile * kernel.lane_vecs * WARP_SIZE + i
            token = vector * kernel.vec - phase_of(o, kernel.vec, batch, channel)
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
                token = vector * kernel.vec - phase_of(o, kernel.vec, batch, channel)
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


TILES: dict[type[Kernel], Callable[[Operands, Launch], Iterator[Tile]]] = {
    CausalConv1dChannellastFwd: channellast_tiles,
    CausalConv1dFwd: rows_tiles,
    CausalConv1dOddseqFwd: oddseq_tiles,
    CausalConv1dShortseqFwd: shortseq_tiles,
}


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
    vec = launch.kernel.vec  # type: ignore[attr-defined]
    assert vec * o.x.itemsize <= 16
    if vec == 1:
        return
    for layout in (o.x, o.out):
        batches, dims, tokens = layout.shape
        for b in some(batches):
            batch = first_element(layout) + b * layout.strides[0]
            if isinstance(launch.kernel, CausalConv1dChannellastFwd):
                assert dims % vec == 0 and layout.strides[1] == 1
                assert all((batch + t * layout.strides[2]) % vec == 0 for t in some(tokens))
            elif isinstance(launch.kernel, CausalConv1dOddseqFwd):
                assert vec <= tokens and batch % vec == 0
                assert layout.strides[2] == 1 and (dims == 1 or layout.strides[1] == tokens)
            else:
                assert layout.strides[2] == 1 or tokens <= 1
                # x and out begin at the same phase, so that the vectors of both are aligned.
                assert all((batch + d * layout.strides[1]) % vec == phase_of(o, vec, b, d) for d in some(dims))


def assert_rows_fit(o: Operands, launch: Launch) -> None:
    """A row has vectors enough, wherever among aligned addresses it begins."""
    if isinstance(launch.kernel, CausalConv1dFwd | CausalConv1dShortseqFwd):
        batches, dims, seqlen = o.x.shape
        phases = [phase_of(o, launch.kernel.vec, b, d) for b in some(batches) for d in some(dims)]
        assert int(np.ravel(numbers_of(launch)["row_vecs"])[0]) * launch.kernel.vec >= seqlen + max(phases)


def some(length: int) -> list[int]:
    """Enough indices of an axis: what is a multiple for 0 and 1 is one for all."""
    return sorted({i for i in (0, 1, 2, 3, 7, length // 2, length - 1) if 0 <= i < length})


def planned(placements: dict[str, Placement]) -> tuple[Operands, Launch]:
    return planned_by(dense._forward, placements, "final_states_out" in placements, True)


@given(calls(SMALL))
def test_every_element_is_written_once(placements: dict[str, Placement]) -> None:
    o, launch = planned(placements)
    assert_covers(o, launch)
    assert_aligned(o, launch)


@given(calls(HUGE))
@settings(max_examples=600)
def test_accesses_are_aligned_and_indices_fit_at_any_size(placements: dict[str, Placement]) -> None:
    try:
        o, launch = planned(placements)
    except ValueError:
        # Too large for one launch: said so, and before anything ran.
        return
    assert_aligned(o, launch)
    assert launch.config.grid[0] <= MAX_DIVIDEND and launch.config.grid[1:] == (1, 1)
    assert launch.config.block[0] <= 1024 and launch.config.block[0] % WARP_SIZE == 0
    n = numbers_of(launch)
    # What the kernels divide must be below 2**31.
    batches, dims, seqlen = o.x.shape
    kernel = launch.kernel
    if isinstance(kernel, CausalConv1dOddseqFwd):
        assert int(n["batch_vecs"]) * kernel.vec >= dims * seqlen and dims * seqlen <= MAX_DIVIDEND
    if isinstance(kernel, CausalConv1dShortseqFwd):
        assert int(n["batch_vecs"]) == dims * int(n["row_vecs"][0]) <= MAX_DIVIDEND
    if isinstance(kernel, CausalConv1dFwd):
        assert int(n["tiles"]) == batches * dims * int(n["row_tiles"][0]) <= MAX_DIVIDEND
        assert int(n["row_tiles"][0]) * kernel.lane_vecs * WARP_SIZE >= n["row_vecs"]
    assert_rows_fit(o, launch)


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
            o, launch = planned({"x": x, "out": out, "weight": place(dtype, (dim, 4))})
            assert_aligned(o, launch)
            assert_rows_fit(o, launch)
            vectors.add(launch.kernel.vec)  # type: ignore[attr-defined]
    assert vectors >= {1, 2}


@given(st.integers(1, MAX_DIVIDEND), st.integers(0, MAX_DIVIDEND))
@settings(max_examples=2000)
def test_fast_division_is_exact(divisor: int, n: int) -> None:
    assert divide(n, fast_div(divisor)) == n // divisor


@given(calls(SMALL))
def test_a_plan_is_among_the_variants(placements: dict[str, Placement]) -> None:
    _, launch = planned(placements)
    assert launch.kernel in variants()[type(launch.kernel)]


def variants() -> dict[type[Kernel], set[Kernel]]:
    if not _variants:
        _variants.update({cls: set(cls.variants()) for cls in op_kernels()})
    return _variants


_variants: dict[type[Kernel], set[Kernel]] = {}


@pytest.mark.parametrize("cls", op_kernels())
def test_variants_are_finite_and_unique(cls: type[Kernel]) -> None:
    listed = list(cls.variants())
    assert len(listed) == len(set(listed)) == len({kernel.expression for kernel in listed}) < 10**5
    assert all(type(kernel) is cls for kernel in listed)


@pytest.mark.parametrize("table", ["UNIT", "EDGE", "BIG"])
@pytest.mark.parametrize("module", cases.modules(), ids=lambda module: module.Case.FUNCTION)
def test_every_case_has_a_variant(module: Any, table: str) -> None:
    for case in getattr(module, table, ()):
        for launch in case.launches():
            assert launch.kernel in variants()[type(launch.kernel)]
