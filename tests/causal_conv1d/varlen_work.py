"""Which thread of the kernels of packed sequences writes what, read from the packed numbers of random calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from cuconv.causal_conv1d import varlen
from cuconv.causal_conv1d.kernels_varlen import (
    CausalConv1dVarlenFwd,
    CausalConv1dVarlenL2normFwd,
    CausalConv1dVarlenL2normShortFwd,
    CausalConv1dVarlenRowsFwd,
    CausalConv1dVarlenShortrowsFwd,
)
from cuconv.causal_conv1d.plan_varlen import Operands
from cuconv.causal_conv1d.split import Split
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import WARP_SIZE, ceil_div
from cuconv.runtime.layout import HOST, Layout
from cuconv.runtime.plan import Launch
from tests.cases import numbers_of
from tests.causal_conv1d.strategies import packed_calls
from tests.support.placement import place
from tests.support.strategies import few_sequences, lain_out


class Problem(NamedTuple):
    """A call's layouts, where its sequences begin and end, and which of them have results and a state."""

    o: Operands
    starts: tuple[int, ...]
    is_live: tuple[bool, ...]

    def prefix(self, number: int, whole: int = 0) -> range:
        """The first width - 1 tokens of a sequence, or all of at most `whole`; none where it has no results."""
        begin, end = self.starts[number], self.starts[number + 1]
        count = end - begin if end - begin <= whole else min(self.o.weight.shape[1] - 1, end - begin)
        return range(begin, begin + count if self.is_live[number] else begin)

    def prefixes(self, whole: int = 0) -> set[int]:
        """The tokens that are in the prefix of a sequence."""
        return {token for number in range(len(self.is_live)) for token in self.prefix(number, whole)}


class Write(NamedTuple):
    """What one thread writes."""

    channels: range
    tokens: Sequence[int]
    sequence: int = -1
    """The sequence that has its state updated in these channels; -1 for none."""


DIMS = st.sampled_from([1, 2, 3, 5, 8, 12, 32, 36, 100, 132, 264])


@st.composite
def outputs(draw: st.DrawFn, x: Any) -> tuple[Layout, ...]:
    """Up to 16 ranges of x's channels by heads, each lying anywhere."""
    dim, total = x.shape
    edges = {0, dim, *draw(st.lists(st.integers(0, dim), max_size=draw(st.sampled_from([0, 0, 1, 2, 15]))))}
    if draw(st.booleans()):
        edges = {min(dim, -(-edge // 4) * 4) for edge in edges}
    layouts = []
    for begin, end in zip(sorted(edges), sorted(edges)[1:], strict=False):
        size = end - begin
        heads = draw(st.sampled_from([n for n in (1, 2, 3, 4, size) if size % n == 0]))
        shape = total, heads, size // heads
        usual = draw(st.sampled_from([{}, {}, {"order": (1, 2, 0)}, {"order": (1, 0, 2)}]))
        any_way = lain_out(x.dtype, shape, is_written=True)
        layouts.append((place(x.dtype, shape, **usual) if draw(st.booleans()) else draw(any_way)).layout)
    return tuple(layouts)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Small ones, of every kernel."""
    call = draw(packed_calls(few_sequences(max_length=draw(st.sampled_from([7, 40, 300]))), DIMS))
    x = call.placements["x"]
    outs = draw(outputs(x)) if draw(st.booleans()) else ()
    if not outs:
        (channel, token), lies = call.placements["out"].strides, call.placements["out"].layout
        outs = (lies._replace(shape=(x.shape[1], 1, x.shape[0]), strides=(token, 0, channel)),)
    normalized = draw(st.sampled_from([0, 0, min(2, len(outs))]))
    layouts: list[Any] = [
        call.placements[name].layout if name in call.placements else None for name in varlen._packed.inputs
    ]
    layouts[0] = layouts[0]._replace(device=HOST - draw(st.sampled_from([1, 132])))
    o = Operands(*layouts, outs, Split(normalized=normalized, eps=1e-6), True, call.pad_slot_id)
    starts = tuple(call.integers.get("query_start_loc", np.array([0, x.shape[1]])).tolist())
    slots = call.integers.get("cache_indices", np.arange(len(starts) - 1)).tolist()
    count = len(slots) if o.conv_states is None else o.conv_states.shape[0]
    is_live = [o.conv_states is None or (slot in range(count) and slot != call.pad_slot_id) for slot in slots]
    return Problem(o, starts, tuple(is_live))


def tile(p: Problem, prefixes: set[int], begin: int, count: int) -> list[int]:
    """The tokens of a tile of `count` tokens that are in no prefix: prefixes are other threads' work."""
    return [t for t in range(max(begin, 0), min(begin + count, p.o.x.shape[1])) if t not in prefixes]


def write_prefix(p: Problem, number: int, channels: range, whole: int = 0) -> Iterator[Write]:
    """A sequence's prefix and its state, if there is such a sequence and it has results."""
    if number < len(p.is_live) and p.is_live[number] and p.starts[number] < p.starts[number + 1]:
        yield Write(channels, p.prefix(number, whole), number)


def role(group: int, launch: Launch) -> tuple[bool, int]:
    """Whether a group of blocks has prefixes, and its number among such groups, as conv_tile.cuh shares them out."""
    groups, prefix_groups, share = map(int, numbers_of(launch)["mix"])
    behind = groups - 1 - group
    prefixes = (behind + 1) * share >> 32
    has_prefixes = prefixes > behind * share >> 32
    return has_prefixes, prefix_groups - prefixes if has_prefixes else group - (prefix_groups - prefixes)


def channel_writes(p: Problem, launch: Launch) -> Iterator[Write]:
    kernel, n = launch.kernel, numbers_of(launch)
    assert isinstance(kernel, CausalConv1dVarlenFwd)
    whole = kernel.whole if n["states_are_packed"] and n["taps_are_packed"] else 0
    prefixes = p.prefixes(whole)
    block_vecs, tiles = int(n["block_vecs"][0]), int(n["tiles"])
    for block, thread in np.ndindex(launch.config.grid[0], launch.config.block[0]):
        group, dim_block = divmod(block, int(n["dim_blocks"][0]))
        has_prefixes, group = role(group, launch)
        row, vector = divmod(thread, block_vecs)
        assert not kernel.whole or thread // WARP_SIZE == row
        if row >= tiles:
            continue
        if kernel.whole and not has_prefixes:
            # A block has the tiles of several blocks across the channels.
            blocks, several = int(n["dim_blocks"][0]), kernel.constants["kShare"]
            number, share = divmod(group * blocks + dim_block, ceil_div(blocks, several))
            tokens = tile(p, prefixes, (number * tiles + row) * kernel.tokens, kernel.tokens)
            for i in range(share * several, (share + 1) * several):
                if (channel := (i * block_vecs + vector) * kernel.vec) < n["dim"]:
                    yield Write(range(channel, channel + kernel.vec), tokens)
            continue
        channel, number = (dim_block * block_vecs + vector) * kernel.vec, group * tiles + row
        if channel >= n["dim"]:
            continue
        channels = range(channel, channel + kernel.vec)
        if has_prefixes:
            count = int(n["prefixes"])
            for sequence in range(number * count, (number + 1) * count):
                yield from write_prefix(p, sequence, channels, whole)
        else:
            yield Write(channels, tile(p, prefixes, number * kernel.tokens, kernel.tokens))


def l2norm_writes(p: Problem, launch: Launch) -> Iterator[Write]:
    kernel, n, prefixes = launch.kernel, numbers_of(launch), p.prefixes()
    assert isinstance(kernel, CausalConv1dVarlenL2normFwd)
    for block, warp in np.ndindex(launch.config.grid[0], kernel.warps):
        group, unit = divmod(block, int(n["units"][0]))
        has_prefixes, group = role(group, launch)
        number = group * kernel.warps + warp
        tokens = tile(p, prefixes, number * kernel.tokens, kernel.tokens)
        for channels in unit_channels(kernel, n, unit):
            if has_prefixes:
                yield from write_prefix(p, number, channels)
            else:
                yield Write(channels, tokens)


def l2norm_short_writes(p: Problem, launch: Launch) -> Iterator[Write]:
    kernel, n, prefixes = launch.kernel, numbers_of(launch), p.prefixes()
    assert isinstance(kernel, CausalConv1dVarlenL2normShortFwd)
    for block, warp in np.ndindex(launch.config.grid[0], kernel.warps):
        number, share = divmod(block, int(n["shares"][0]))
        unit, first = share * kernel.warps + warp, number * kernel.tokens
        if unit >= int(n["units"]):
            continue
        for channels in unit_channels(kernel, n, unit):
            yield Write(channels, tile(p, prefixes, first, kernel.tokens))
            for sequence, begin in enumerate(p.starts):
                if begin in range(first, first + kernel.tokens):
                    yield from write_prefix(p, sequence, channels)


def unit_channels(
    kernel: CausalConv1dVarlenL2normFwd | CausalConv1dVarlenL2normShortFwd, n: Any, unit: int
) -> Iterator[range]:
    """The vectors of a warp's lanes; lanes that go on to others only where heads are wide."""
    number = int(np.searchsorted(n["unit_end"][: n["ranges"]], unit, side="right"))
    first_unit, first_channel = (int(n[name][number - 1]) if number else 0 for name in ("unit_end", "range_end"))
    lanes, width = int(n["unit_lanes"][number]), int(n["unit_width"][number])
    assert number >= n["normalized"] or width == n["head_dim"][3 * number]
    assert lanes & (lanes - 1) == 0 and lanes <= WARP_SIZE
    for lane in range(WARP_SIZE):
        begin = first_channel + ((unit - first_unit) * (WARP_SIZE // lanes) + lane // lanes) * width
        end = min(begin + width, int(n["range_end"][number]))
        turns = range(begin + lane % lanes * kernel.vec, end, lanes * kernel.vec)
        yield from (range(at, at + kernel.vec) for at in (turns if getattr(kernel, "wide", False) else turns[:1]))


def rows_writes(p: Problem, launch: Launch) -> Iterator[Write]:
    kernel, n, prefixes = launch.kernel, numbers_of(launch), p.prefixes()
    assert isinstance(kernel, CausalConv1dVarlenRowsFwd)
    dim, x, most = p.o.x.shape[0], p.o.x, kernel.constants["kGroup"]
    for block, warp in np.ndindex(launch.config.grid[0], kernel.warps):
        group, rest = divmod(block, int(n["group_blocks"][0]))
        if rest >= n["row_blocks"]:
            number = (rest - int(n["row_blocks"])) * kernel.warps + warp
            for channel in range(group * most, min((group + 1) * most, dim)):
                yield from write_prefix(p, number, range(channel, channel + 1))
            continue
        row, row_tile = divmod(rest * kernel.warps + warp, int(n["row_tiles"][0]))
        channel = group * most + row
        if row < most and channel < dim:
            phase = (x.first + channel * x.strides[0]) % kernel.vec
            count = kernel.lane_vecs * WARP_SIZE * kernel.vec
            yield Write(range(channel, channel + 1), tile(p, prefixes, row_tile * count - phase, count))


def short_rows_writes(p: Problem, launch: Launch) -> Iterator[Write]:
    kernel, n, prefixes = launch.kernel, numbers_of(launch), p.prefixes()
    assert isinstance(kernel, CausalConv1dVarlenShortrowsFwd)
    size = kernel.constants["kSingleChannels"] if kernel.singles else WARP_SIZE
    for block in range(launch.config.grid[0]):
        if kernel.singles:
            number, group = divmod(block, int(n["channel_groups"][0]))
        else:
            group, number = divmod(block, int(n["tiles"][0]))
        channels = range(group * size, min((group + 1) * size, p.o.x.shape[0]))
        first = number * kernel.tile
        yield Write(channels, tile(p, prefixes, first, kernel.tile))
        for sequence, begin in enumerate(p.starts):
            if begin in range(first, first + kernel.tile):
                yield from write_prefix(p, sequence, channels)


WRITES: dict[type[Kernel], Callable[[Problem, Launch], Iterator[Write]]] = {
    CausalConv1dVarlenFwd: channel_writes,
    CausalConv1dVarlenL2normFwd: l2norm_writes,
    CausalConv1dVarlenL2normShortFwd: l2norm_short_writes,
    CausalConv1dVarlenRowsFwd: rows_writes,
    CausalConv1dVarlenShortrowsFwd: short_rows_writes,
}
