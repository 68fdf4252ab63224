"""Which scans of whole rows run SelectiveScanShortFwd or SelectiveScanPartsFwd: short, few and unaligned rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from cuconv.runtime.dtypes import FLOATS, DType
from cuconv.runtime.launch import ceil_div
from cuconv.runtime.machine import multiprocessors
from cuconv.selective_scan.check import Inputs
from cuconv.selective_scan.kernels import (
    PartsKernel,
    SelectiveScanPartsFwd,
    SelectiveScanShortFwd,
    SelectiveScanVarlenPartsFwd,
    TileShape,
    max_tile_states,
)
from cuconv.selective_scan.plan import input_dtype, tokens_vector
from cuconv.selective_scan.plan_turned import LEAST_COPIED

TOKENS_OF_MANY = 128
"""Tokens of a row below which it is short for tiles."""

PARTS_TOKENS = 32
"""Tokens of a row from which on warps share its states (SelectiveScanPartsFwd)."""

PAIR_ROWS, PAIR_TOKENS, PAIR_TOKENS_FEW = 2, 4096, 2048
"""Warps share the states of aligned rows that are long enough for tiles where a multiprocessor has at most PAIR_ROWS of
them, up to PAIR_TOKENS tokens, and up to PAIR_TOKENS_FEW of four states or fewer. On an H200, with 16 states, 1 x 256 x
1024 takes 8.8 us with states shared and 10.3 with tiles, 1 x 256 x 4096 28.4 and 30.3; but 1 x 512 x 1024 12.4 and
10.5, and with two states 1 x 256 x 4096 19.4 and 15.8.
"""

FEW_ALIGNED, FEW_SWEPT = 24, 6
"""Rows of more than four states, per multiprocessor, whose states warps share where rows are aligned and short for
tiles: without and with tiles whose lanes sweep over the tokens. With 16 states 1 x 256 x 96 takes 3.4 us with states
shared and 4.7 swept, 1 x 2048 x 64 4.8 and 3.8, 1 x 2048 x 96 6.8 and 4.8.
"""

FEW_UNALIGNED = 200
"""Rows that are not aligned, per multiprocessor and times the states of a warp, up to which warps share their states. 4
x 384 x 197 takes 11 us with states shared and 28 with selective_scan_fwd, 16 x 384 x 197 32 and 42, of 8 states 16 x
384 x 196 20 and 27, but 8 x 1536 x 100 28 and 20.
"""

FEW_OF_FOUR = 8
"""Rows of three or four states, per multiprocessor, whose states warps share where they fit a window. 4 x 256 x 96
takes 3.5 us with states shared and 3.9 by SelectiveScanShortFwd, 2 x 768 x 196 6.0 and 5.7.
"""

FEW_OF_PHASES = {1: 80, 2: 100, 4: 100}
"""Rows that can have phases, per multiprocessor and times the states of a warp, up to which warps share their states;
by tokens per access, 4 for more. With 16 states 4 x 768 x 77 takes 9.8 us with phases and 11.5 with states shared, 1 x
1536 x 197 12.3 and 11.0, 4 x 768 x 130 14.6 and 13.5.
"""

LONG_TOKENS = 23_600
"""Tokens of all rows per multiprocessor, times the states of a warp, up to which warps share the states of longer rows
that are not aligned, and those of packed sequences. With 16 states 1 x 1536 x 301 takes 15 us with states shared and 22
with copies, 1 x 512 x 1500 20 and 29, but 1 x 1536 x 515 32 and 27; with four states 1 x 1536 x 999 21 and 27, 1 x 1536
x 2047 46 and 41.
"""

TOKENS_OF_PHASES: dict[int, dict[int, float]] = {
    1: {1: 60_000, 2: 120_000, 4: math.inf},
    2: {1: 30_000, 2: 60_000, 4: 130_000},
    4: {1: 11_500, 2: 22_000, 4: 45_000},
    16: {1: 11_500, 2: 17_000, 4: 20_000},
}
"""LONG_TOKENS where rows can have phases, also for lanes that own all states, by the most states and by tokens per
access. With 16 states and phases 1 x 768 x 515 takes 15.4 us and 16.5 without, x 518 15.2 and 14.0, x 780 18.1 and
16.0, 1 x 1536 x 516 19.4 and 26.7; with four 1 x 5120 x 777 34 and 51, 8 x 1536 x 332 33 and 28, x 780 58 and 61; with
two 8 x 1536 x 777 52 and 65, x 780 50 and 45, x 2044 103 and 112; with one 8 x 1536 x 777 53 and 56, x 2044 97 and 77.
"""

FULL, FULL_OF_TWO = 24, 8
"""Unaligned rows longer than a window, per multiprocessor, from which on lanes that own all states are quicker than
warps that share them, with four states and with two: 4 x 1536 x 500 of four states takes 22 us by such lanes and 30 by
warps, 4 x 384 x 601 of two 12 and 14, but 1 x 512 x 1500 of two 12.7 and 11.2. Aligned rows of two states are quicker
by such lanes than with tiles where their number is between the two: 1 x 1536 x 2048 takes 21.6 us and 27.2, 4 x 1536 x
2048 53 and 45.
"""

FEW_PACKED = 128
"""Channels of packed sequences that are not aligned, per multiprocessor, times the states of a warp, whose states warps
share, if they are not longer than LONG_TOKENS allows. With 16 states one sequence of 201 tokens of 1024 channels takes
11 us with states shared by warps, 32 if lanes with some of the states each walk its tokens, and 18 with copies; of 4096
channels 26, 41 and 27; three of 35 tokens of 1024 channels 11, 14 and 15, of 2048 16, 15 and 18.
"""

FEW_PACKED_ALIGNED, FEW_PACKED_TOKENS = 10, 96
"""Channels of aligned packed sequences, per multiprocessor, whose states warps share, and the most tokens of a
sequence: one of 64 tokens of 1024 channels takes 5.3 us with states shared and 6.0 with tiles, of 4096 9.8 and 7.1; one
of 152 tokens of 1024 8.2 and 7.3.
"""

SHORT_TOKENS, SHORT_ROWS = 16, 64
"""Lanes that own all states (SelectiveScanShortFwd) are quicker than lanes that have a channel alone in rows of
SHORT_TOKENS tokens or more, and in shorter ones where a multiprocessor has at most SHORT_ROWS: with one state 64 x 1536
x 17 takes 18 us by the former and 21.5 by the latter, 64 x 768 x 13 10.2 and 9.7.
"""

SHORT_ALONE, ALONE_ROWS = 64, {2: 200, 4: 24}
"""Tokens of aligned rows from which on SelectiveScanShortFwd is quicker than tiles whose lanes have a channel alone,
and the rows per multiprocessor up to which it also is with fewer tokens, by the most states. 64 x 1536 x 48 of two
states takes 32 us with it and 27 with such tiles, 16 x 1536 x 32 6.0 and 8.4.
"""

SHORT_LONG = 2048
"""Tokens up to which few rows of one state are not cut into segments: 1 x 256 x 2048 takes 10.2 us uncut and 11.1 cut,
x 4096 21 and 15. FULL_OF_TWO rows or more per multiprocessor are never cut: 1 x 1536 x 8192 takes 49 us uncut and 62
cut.
"""

FULL_OF_FOUR = 48
"""Aligned rows of three or four states, per multiprocessor, up to which lanes that own all states are quicker than
tiles where rows are short for tiles: 4 x 1536 x 96 takes 6.6 us by such lanes and 8.0 with tiles, 8 x 1536 x 64 6.9 and
6.3.
"""

MANY_TOKENS = 256
"""Tokens of a row of one state from which on a lane has eight of them at a time instead of four, where tokens have
vectors: 1 x 1536 x 2048 takes 14.6 us with eight and 19.2 with four, 2 x 768 x 196 4.2 and 3.7.
"""

MOST_ROUNDS = 12
"""Most channels that a group of lanes takes one after another. With 12 of them 32 x 768 x 197 of 8 states takes 84.5
us, with 6 85.2.
"""


@dataclass(frozen=True, eq=False)
class Times:
    """Times of blocks, relative to a block's time for a tile with 8 lanes per channel."""

    turns: Mapping[int, float]
    """A block's time for a tile, by lanes per channel."""
    more: float
    """Time that each further block on a multiprocessor adds."""
    start: float
    """Time of a block's start, where tokens have vectors."""
    start_alone: float
    """Time of a block's start, where tokens have no vectors."""


PARTS_TIMES = Times({8: 1.0, 16: 1.1, 32: 1.4}, 0.25, 0.05, 0.2)
"""With these the chosen lanes and rounds take 0.9 % more than the quickest, in the mean of 65 sizes on an H200, and 9 %
at most.
"""

PACKED_TIMES = replace(PARTS_TIMES, start=0.4, start_alone=0.8)
"""Times for packed sequences, where blocks wait to know where sequences begin: chosen kernels take 1.1 % more than the
quickest, in the mean of 77 sizes."""

SHORT_TIMES = Times({8: 1.0, 16: 1.0, 32: 1.0}, 0.15, 0.2, 0.2)
"""Times for SelectiveScanShortFwd: chosen kernels take 0.2 % more than the quickest, in the mean of 170 sizes, and 11 %
at most."""


ShortKernel: TypeAlias = PartsKernel | SelectiveScanShortFwd


class ShortRows(NamedTuple):
    """How short rows are scanned."""

    kernel: ShortKernel
    rounds: int = 1
    """Channels that a group of lanes takes one after another."""


def short_rows(
    inputs: Inputs, shapes: Sequence[TileShape], has_copies: Callable[[], bool], has_phases: Callable[[], bool]
) -> ShortRows | None:
    """The kernel of short rows; None where another one is quicker, or where none fits.

    Args:
        inputs: what a scan reads and writes.
        shapes: the tiles that the rows have room for.
        has_copies: tells whether copies of the rows would have room for tiles.
        has_phases: tells whether rows may have phases instead.
    """
    vec = tokens_vector(inputs)
    if vec is None or inputs.d_state > max_tile_states() or inputs.phases is not None:
        return None
    if _share_states(inputs, vec, shapes, has_phases):
        batch, _, seqlen = inputs.u.shape
        return _of_parts(inputs, vec, batch, seqlen, PARTS_TIMES, SelectiveScanPartsFwd)
    if inputs.d_state <= SelectiveScanShortFwd.STATES[-1] and _own_states(inputs, vec, shapes, has_copies, has_phases):
        return _of_few_states(inputs, vec)
    return None


def packed_parts(
    inputs: Inputs, sequences: int, state_t: DType, *, has_tiles: bool, has_phases: bool
) -> ShortRows | None:
    """How warps share the states of packed sequences; None where another kernel is quicker, or where they cannot.

    Args:
        inputs: what a scan reads and writes.
        sequences: the number of sequences.
        state_t: the dtype of the pool.
        has_tiles: whether there are tiles for such sequences.
        has_phases: whether the row of all tokens may have phases instead.
    """
    (batch, dim, tokens), d_state = inputs.u.shape, inputs.d_state
    if not sequences or not 1 < d_state <= max_tile_states() or state_t not in FLOATS or inputs.phases is not None:
        return None
    seqlen = batch * tokens // sequences
    states = SelectiveScanVarlenPartsFwd.part_of(d_state)
    rows = sequences * dim / multiprocessors(inputs.u.device)
    most = FEW_PACKED_ALIGNED if has_tiles else FEW_PACKED / states
    if rows > most or seqlen < PARTS_TOKENS or (vec := tokens_vector(inputs)) is None:
        return None
    many = _tokens_of_phases(d_state, vec) if has_phases else LONG_TOKENS
    if seqlen > (FEW_PACKED_TOKENS if has_tiles else many / (rows * states)):
        return None
    if has_phases and rows * states > FEW_OF_PHASES[min(vec, 4)]:
        return None
    return _of_parts(inputs, vec, sequences, seqlen, PACKED_TIMES, SelectiveScanVarlenPartsFwd, state_t)


def _per_processor(inputs: Inputs) -> float:
    """Rows per multiprocessor."""
    batch, dim, _ = inputs.u.shape
    return batch * dim / multiprocessors(inputs.u.device)


def _tokens_of_phases(d_state: int, vec: int) -> float:
    return next(by_access[min(vec, 4)] for most, by_access in TOKENS_OF_PHASES.items() if d_state <= most)


def _share_states(inputs: Inputs, vec: int, shapes: Sequence[TileShape], has_phases: Callable[[], bool]) -> bool:
    """Whether warps share the states of rows that have room for tiles of these shapes."""
    has_tiles = any(shape.group > 1 for shape in shapes)
    seqlen, d_state, rows = inputs.u.shape[2], inputs.d_state, _per_processor(inputs)
    states = SelectiveScanPartsFwd.part_of(d_state)
    if seqlen < PARTS_TOKENS or d_state == 1:
        return False
    if has_tiles and seqlen >= TOKENS_OF_MANY:
        return rows <= PAIR_ROWS and seqlen <= (PAIR_TOKENS if states > 1 else PAIR_TOKENS_FEW)
    if seqlen > SelectiveScanPartsFwd.window():
        is_full = states == 1 and rows > (FULL_OF_TWO if d_state == 2 else FULL)
        most = _tokens_of_phases(d_state, vec) if has_phases() else LONG_TOKENS
        return not is_full and rows * seqlen * states <= most
    if states == 1:
        return d_state > 2 and rows <= FEW_OF_FOUR
    if has_tiles:
        return rows <= (FEW_SWEPT if any(shape.sweeps for shape in shapes) else FEW_ALIGNED)
    return rows * states <= (FEW_OF_PHASES[min(vec, 4)] if has_phases() else FEW_UNALIGNED)


def _own_states(
    inputs: Inputs,
    vec: int,
    shapes: Sequence[TileShape],
    has_copies: Callable[[], bool],
    has_phases: Callable[[], bool],
) -> bool:
    """Whether lanes own all states of rows, which are few, and some tokens each."""
    seqlen, d_state, rows = inputs.u.shape[2], inputs.d_state, _per_processor(inputs)
    is_enough = seqlen >= SHORT_TOKENS or rows <= SHORT_ROWS
    if seqlen >= LEAST_COPIED and has_phases():
        return rows * seqlen <= _tokens_of_phases(d_state, vec)
    if d_state == 1:
        return is_enough and (seqlen <= SHORT_LONG or rows >= FULL_OF_TWO)
    if any(shape.group > 1 for shape in shapes):
        if d_state > 2:
            return seqlen < TOKENS_OF_MANY and rows <= FULL_OF_FOUR
        return seqlen < TOKENS_OF_MANY or (rows <= FULL and (seqlen < LEAST_COPIED or rows >= FULL_OF_TWO))
    if shapes:
        return seqlen >= SHORT_ALONE or rows <= ALONE_ROWS[2 if d_state == 2 else 4]
    if seqlen < LEAST_COPIED or not has_copies():
        return is_enough
    return rows >= FULL_OF_TWO if d_state == 2 else rows * seqlen <= LONG_TOKENS


def _of_parts(
    inputs: Inputs, vec: int, rows: int, seqlen: int, times: Times, cls: type[PartsKernel], *more: DType
) -> ShortRows:
    """The quickest lanes and rounds where warps share the states of rows."""
    dim = inputs.u.shape[1]
    # The longest of several packed sequences is likely longer than the average by this factor.
    longest = seqlen if rows == inputs.u.shape[0] else 2 * seqlen
    most = MOST_ROUNDS if longest <= PartsKernel.window() else 1
    kernels = [cls.of(input_dtype(inputs), vec, lanes, inputs.d_state, *more) for lanes in cls.LANES]
    # A warp holds B and C of one group.
    possible = (each for each in kernels if inputs.groups == 1 or dim // inputs.groups % each.channels == 0)
    return _quickest(inputs, possible, times, rows, seqlen, most)


def _of_few_states(inputs: Inputs, vec: int) -> ShortRows:
    """The quickest lanes where they own all states of rows."""
    batch, _, seqlen = inputs.u.shape
    tokens = 8 if inputs.d_state == 1 and vec > 1 and seqlen > MANY_TOKENS else 4
    kernels = (
        SelectiveScanShortFwd.of(input_dtype(inputs), vec, lanes, tokens, inputs.d_state)
        for lanes in SelectiveScanShortFwd.LANES
    )
    return _quickest(inputs, kernels, SHORT_TIMES, batch, seqlen, most=1)


def _quickest(
    inputs: Inputs, kernels: Iterable[ShortKernel], times: Times, rows: int, seqlen: int, most: int
) -> ShortRows:
    """The quickest of these kernels, and its rounds, at most `most`, for `rows` rows of `seqlen` tokens."""
    dim, processors = inputs.u.shape[1], multiprocessors(inputs.u.device)
    tiled = tuple((each, ceil_div(seqlen, each.tile)) for each in kernels)
    return _quickest_of(tiled, times, rows, dim, most, processors)


@lru_cache(maxsize=4096)
def _quickest_of(
    kernels: tuple[tuple[ShortKernel, int], ...], times: Times, rows: int, dim: int, most: int, processors: int
) -> ShortRows:
    """`_quickest` for kernels with their numbers of tiles per row; calls of many lengths share few such numbers, which
    are remembered."""

    def time(short: ShortRows, tiles: int) -> float:
        kernel, rounds = short
        waves, rest = divmod(rows * kernel.dim_blocks(dim, rounds), kernel.resident * processors)
        start = times.start_alone if kernel.vec == 1 else times.start

        def wave(blocks: int) -> float:
            return start * blocks + tiles * rounds * (times.turns[kernel.lanes] + times.more * blocks)

        return waves * wave(kernel.resident) + (wave(ceil_div(rest, processors)) if rest else 0)

    possible = [(ShortRows(each, rounds), tiles) for each, tiles in kernels for rounds in range(1, most + 1)]
    return min(possible, key=lambda each: time(*each))[0]
