"""The kernels of the selective scans: frozen dataclasses, their fields the template parameters in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, ClassVar, NamedTuple

from cuconv.jit import source, structs
from cuconv.runtime.dtypes import FLOAT32, FLOATS, STATES, DType
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import MAX_VECTOR_BYTES, LaunchConfig, ceil_div, fast_div, vectors

MAX_TOKENS = 2**30
"""Most tokens of a row: the kernels count them in 32 bits, and a little beyond the last one."""

MAX_STATE = 256
"""Most states per channel."""

CONSTANT = 0
"""Value of "tokens per access" of B or C where the matrix does not depend on the token."""

UNUSED = -1
"""Value of "tokens per access" of C where only the states are wanted."""

SHAPES = ((1, 1), (1, 2), (1, 4), (2, 4), (4, 4), (8, 4), (16, 4), (32, 4), (32, 8))
"""(lanes per channel, states per lane), in ascending order of the states per channel that they hold."""


@cache
def _declared(header: str, struct: str) -> dict[str, int]:
    """The literal integers of a struct of this family's device code."""
    return dict(structs.constants(source.load(), f"selective_scan/{header}", struct))


def chunk_tokens() -> int:
    """Tokens of a chunk, before which states can be kept; also the tokens of the shortest segment."""
    return _declared("scan_segments.cuh", "ScanSegment")["kChunk"]


def tile_tokens() -> int:
    """Tokens that the lanes of a channel load at a time when each lane owns some of the states."""
    return _declared("scan.cuh", "ScanShape")["kTokens"]


def max_tile_states() -> int:
    """Most states per channel where lanes share the tokens of a tile."""
    return _declared("tile_shape.cuh", "TileShape")["kStates"]


MOST_STATES = (max_tile_states(), 128, MAX_STATE)
"""States per channel at most of the kernels in which lanes share tokens: their shared memory has room for as many."""


def most_states(d_state: int) -> int:
    """The least of MOST_STATES that has room for d_state states per channel."""
    return next(most for most in MOST_STATES if most >= d_state)


class TileShape(NamedTuple):
    """A block's division into lanes that share the tokens of a tile: TileShape of selective_scan/tile_shape.cuh."""

    lanes: int
    """Lanes that share the tokens of one channel."""
    parts: int
    """Partitions of a channel's states, each with `lanes` separate lanes."""
    at_once: int
    """States that a lane computes interleaved."""
    tokens: int
    """Consecutive tokens per lane of a tile; a sweep's tile has fewer where channels are contiguous."""
    resident: int
    """Blocks per multiprocessor that registers must leave room for."""

    @property
    def group(self) -> int:
        """Lanes per channel."""
        return self.lanes * self.parts

    @property
    def channels(self) -> int:
        """Channels per block."""
        return SelectiveScanTilesFwd.threads // self.group

    @property
    def sweeps(self) -> bool:
        """Whether each lane walks all tokens of a channel, with its part of the states."""
        return self.lanes == 1 and self.parts > 1

    def fits(self, dtype: DType, d_state: int, seqlen: int) -> bool:
        """Whether the shape can be used for channels with this many states, in rows of this many tokens of u."""
        if d_state % (self.parts * self.at_once):
            return False
        # In float32 4096 tokens of 8192 channels take 352 us with tokens shared, and 428 swept.
        if self.sweeps:
            return dtype.itemsize == 2 and seqlen >= SWEPT
        return self.lanes == 1 or self.lanes * self.tokens <= seqlen

    def has_room(self, *, by_channel: bool, snapshots: bool = False) -> bool:
        """Whether the shape fits in a block's shared memory. With one lane per channel, contiguous channels and
        snapshots it would take 52 KB of 48.
        """
        return TILE_TIMES[self][by_channel] is not None and (self.group > 1 or not (by_channel and snapshots))


SWEPT = 32
"""Tokens of a row from which on lanes may sweep them. On an H200 16 x 1536 x 32 take 11 us swept and 13 with tokens
shared, 64 x 1536 x 96 72 and 80, but 256 x 1536 x 16 80 and 66.
"""

TILE_TIMES: dict[TileShape, tuple[tuple[int, int], tuple[int, int] | None]] = {
    TileShape(1, 2, 8, 64, 3): ((641, 1344), (794, 1475)),
    TileShape(1, 4, 4, 64, 4): ((900, 1989), (861, 1849)),
    TileShape(1, 8, 2, 64, 4): ((1050, 2112), (980, 2408)),
    TileShape(1, 1, 1, 16, 4): ((850, 2005), (850, 2060)),
    TileShape(4, 1, 2, 16, 3): ((975, 1790), (998, 1876)),
    TileShape(8, 1, 1, 16, 4): ((1431, 2571), (1570, 2872)),
    TileShape(8, 1, 2, 16, 3): ((1060, 1893), (1070, 2115)),
    TileShape(8, 2, 4, 16, 2): ((1139, 1568), (1234, 1683)),
    TileShape(16, 1, 4, 8, 3): ((1114, 2086), (1238, 2448)),
    TileShape(16, 1, 4, 16, 2): ((1006, 1434), None),
    TileShape(16, 2, 4, 16, 2): ((1238, 1680), (1421, 1997)),
    TileShape(16, 2, 2, 16, 3): ((1350, 2214), (1578, 2989)),
}
"""By shape, for contiguous tokens and for contiguous channels: the time of a scan when a multiprocessor has one block,
and when it has all blocks that it has room for; None where a block does not fit in shared memory. The unit is
microseconds on an H200 for 4096 tokens of 16 states, times the lanes per channel. With one more block some shapes have
too few registers, and reload spilled numbers from memory behind their loads of tokens: (1, 2, 8, 64) then takes 1894
instead of 1837, and contiguous channels in one block 954 instead of 794.
"""

TIMED_TOKENS = 4096
"""Tokens of the scans in TILE_TIMES."""

SHARED = min(shape.lanes * shape.tokens for shape in TILE_TIMES if shape.lanes > 1)
"""Tokens of a row from which on lanes may share them: the smallest tile of several lanes."""

CUT = TileShape(8, 1, 1, 16, 4)
"""The shape for rows that are cut into segments."""

WIDE, WIDE_FULL = TileShape(16, 2, 2, 16, 2), TileShape(16, 2, 2, 16, 3)
"""The shapes for channels of more than 16 states. The second one is for contiguous channels that fill the GPU, without
snapshots, for which it would have too few registers.
"""


def wide_shapes(dtype: DType, *, by_channel: bool, snapshots: bool = False) -> tuple[TileShape, ...]:
    """The shapes of WIDE and WIDE_FULL that kernels have."""
    # Where channels are contiguous a block has no room for float32.
    if not by_channel:
        return (WIDE,)
    return () if dtype.itemsize == FLOAT32.itemsize else (WIDE, WIDE_FULL)[: 2 - snapshots]


def tile_time(rows: int, shape: TileShape, multiprocessors: int, by_channel: bool) -> float:
    """The time that this many rows take, up to a factor: multiprocessors run `resident` blocks at once, in waves."""
    times = TILE_TIMES[shape][by_channel]
    assert times is not None
    alone, full = times
    waves, rest = divmod(ceil_div(ceil_div(rows, shape.channels), multiprocessors), shape.resident)
    last = alone + (full - alone) * (rest - 1) / (shape.resident - 1) if rest else 0
    return (waves * full + last) / shape.group


def lanes_for(d_state: int) -> tuple[int, int]:
    """Lanes per channel and states per lane for this many states per channel."""
    return next(shape for shape in SHAPES if shape[0] * shape[1] >= d_state)


def own_tokens(lanes: int) -> int:
    """The tokens of a tile that one lane loads of u, delta and z."""
    return max(1, tile_tokens() // lanes)


def matrix_accesses(input_t: DType, *, constants: bool) -> list[int]:
    """Tokens per access that B or C may have; two are left out, because they would hardly be better than one."""
    return [CONSTANT] * constants + [vec for vec in vectors(input_t) if vec != 2]


def scan_axes(*, constants: bool = True) -> Iterator[dict[str, Any]]:
    """Every combination of the axes that the kernels share, except C's; `constants` allows a constant B."""
    for input_t, (lanes, states) in product(FLOATS, SHAPES):
        row_accesses = [vec for vec in vectors(input_t) if vec <= own_tokens(lanes)]
        for vec, b_vec in product(row_accesses, matrix_accesses(input_t, constants=constants)):
            yield {"input_t": input_t, "lanes": lanes, "states": states, "vec": vec, "b_vec": b_vec}


@dataclass(frozen=True)
class SegmentKernel(Kernel):
    """Base of the kernels with blocks that own channels of a row or of its segments."""

    @property
    def group(self) -> int:
        """Lanes per channel."""
        raise NotImplementedError

    @property
    def channels(self) -> int:
        """Channels that a block takes at a time."""
        return self.threads // self.group

    def dim_blocks(self, dim: int, rounds: int = 1) -> int:
        """Blocks for a row of `dim` channels, if each block takes channels `rounds` times."""
        return ceil_div(dim, self.channels * rounds)

    def launch_config(self, dim: int, rows: int, rounds: int = 1) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for this many rows, or segments of rows, of `dim` channels."""
        dim_blocks = self.dim_blocks(dim, rounds)
        return self.config(dim_blocks * rows), {"dim_blocks": fast_div(dim_blocks)}


@dataclass(frozen=True)
class SelectiveScanFwd(SegmentKernel):
    """`lanes` lanes own a channel, each `states` of its states. Computes the results, or where c_vec is UNUSED only the
    states."""

    input_t: DType
    lanes: int
    states: int
    vec: int
    b_vec: int
    c_vec: int

    @property
    def group(self) -> int:
        return self.lanes

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanFwd]:
        for axes in scan_axes():
            for c_vec in (UNUSED, *matrix_accesses(axes["input_t"], constants=True)):
                yield cls(**axes, c_vec=c_vec)


@dataclass(frozen=True)
class SelectiveScanCarry(Kernel):
    """A thread owns a state of a channel, and loads those of `ahead` segments at a time."""

    ahead: int = 8

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanCarry]:
        yield cls()

    def launch_config(self, batch: int, dim: int, d_state: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for the states of all rows, and the params that divide threads among them."""
        config = self.config(ceil_div(batch * dim * d_state, self.threads))
        return config, {"states": fast_div(d_state), "channels": fast_div(dim)}


@dataclass(frozen=True)
class SelectiveScanTurn(Kernel):
    """A block turns a tile of a matrix, `vec` elements a load and `turned_vec` a store."""

    input_t: DType
    vec: int
    turned_vec: int

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanTurn]:
        for input_t in FLOATS:
            for vec, turned_vec in product(vectors(input_t), repeat=2):
                yield cls(input_t, vec, turned_vec)

    @property
    def side(self) -> int:
        """Rows, and columns, of a tile."""
        return 128 // self.input_t.itemsize

    def launch_config(self, matrices: int, rows: int, columns: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for `matrices` of this many rows and columns, and the params that divide blocks among them."""
        row_tiles, column_tiles = ceil_div(rows, self.side), ceil_div(columns, self.side)
        tiles = row_tiles * column_tiles
        return self.config(matrices * tiles), {"tiles": fast_div(tiles), "row_tiles": fast_div(row_tiles)}


MOST_ALIGNED = structs.constant(source.load(), "selective_scan/selective_scan_align.cu", "kMostAligned")
"""Most arrays that one launch of SelectiveScanAlign copies."""


@dataclass(frozen=True)
class SelectiveScanAlign(Kernel):
    """A thread owns a vector of a row's copy."""

    input_t: DType

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanAlign]:
        for input_t in FLOATS:
            yield cls(input_t)

    def launch_config(
        self, arrays: int, rows: int, length: int, copies: int = 1
    ) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for copies of arrays of this many rows, and the params that divide threads among them."""
        # A row's first vector may hold only one element of the row.
        whole = MAX_VECTOR_BYTES // self.input_t.itemsize
        per_row = ceil_div(length + whole - 1, whole)
        config = LaunchConfig((ceil_div(rows * per_row, self.threads), arrays, copies), (self.threads, 1, 1))
        return config, {"vectors": fast_div(per_row), "count": rows * per_row}


@dataclass(frozen=True)
class SelectiveScanTilesFwd(SegmentKernel):
    """The lanes of a TileShape share the tokens of a channel. Computes the results, or only the states."""

    input_t: DType
    lanes: int
    parts: int
    at_once: int
    tokens: int
    resident: int
    by_channel: bool
    """Whether channels and states are contiguous, not tokens."""
    states_only: bool
    most_states: int = MOST_STATES[0]
    """States per channel at most."""
    phases: bool = False
    """Whether rows of contiguous tokens have phases (plan_phases.py); otherwise they are aligned."""
    keeps: bool = False
    """Whether states before chunks are kept for rows that have phases; for other rows they always may be."""

    @property
    def group(self) -> int:
        return self.lanes * self.parts

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanTilesFwd]:
        rows = ((True, False, False), (False, False, False), (False, True, False), (False, True, True))
        for input_t, (by_channel, phases, keeps) in product(FLOATS, rows):
            for shape in TILE_TIMES:
                if shape.fits(input_t, 0, MAX_TOKENS) and shape.has_room(by_channel=by_channel):
                    yield cls(input_t, *shape, by_channel, states_only=False, phases=phases, keeps=keeps)
            if not keeps:
                yield cls(input_t, *CUT, by_channel, states_only=True, phases=phases)
            for shape in wide_shapes(input_t, by_channel=by_channel):
                for most in MOST_STATES[1:]:
                    yield cls(input_t, *shape, by_channel, False, most_states=most, phases=phases, keeps=keeps)


@dataclass(frozen=True)
class SelectiveScanShortFwd(SegmentKernel):
    """`lanes` lanes own a channel, and each of them `tokens` consecutive tokens of a tile with all `states` states; a
    multiprocessor has room for `resident` blocks.
    """

    LANES: ClassVar[tuple[int, ...]] = (8, 16, 32)
    STATES: ClassVar[tuple[int, ...]] = (1, 2, 4)
    RESIDENT: ClassVar[dict[tuple[int, int], int]] = {(4, 1): 8, (4, 2): 6, (4, 4): 6, (8, 1): 6}
    """Blocks per multiprocessor that registers must leave room for, by tokens of a lane and its most states."""

    input_t: DType
    vec: int
    lanes: int
    states: int
    tokens: int
    resident: int

    @property
    def group(self) -> int:
        return self.lanes

    @property
    def tile(self) -> int:
        """Tokens of a channel that its lanes take at a time."""
        return self.lanes * self.tokens

    @classmethod
    def of(cls, input_t: DType, vec: int, lanes: int, tokens: int, d_state: int) -> SelectiveScanShortFwd:
        """The kernel for this many states, no more than the last of STATES."""
        states = next(states for states in cls.STATES if states >= d_state)
        return cls(input_t, min(vec, tokens), lanes, states, tokens, cls.RESIDENT[tokens, states])

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanShortFwd]:
        for input_t, lanes, (tokens, states) in product(FLOATS, cls.LANES, cls.RESIDENT):
            for vec in vectors(input_t):
                # Where tokens have no vectors, lanes have four of them.
                if vec <= tokens and (vec > 1 or tokens == 4):
                    yield cls.of(input_t, vec, lanes, tokens, states)


@dataclass(frozen=True)
class PartsKernel(SegmentKernel):
    """Base of the kernels in which `lanes` lanes of each warp of a block own a channel, and each some consecutive
    tokens of it, with the `states` states that are the warp's part; a multiprocessor has room for `resident` blocks.
    """

    LANES: ClassVar[tuple[int, ...]] = (8, 16, 32)
    RESIDENT: ClassVar[dict[int, int]] = {1: 5, 2: 4, 4: 4}
    """Blocks per multiprocessor that registers must leave room for, by the most states of a part."""

    input_t: DType
    vec: int
    lanes: int
    states: int
    resident: int

    @property
    def group(self) -> int:
        return self.lanes * self.warps

    @property
    def tile(self) -> int:
        """Tokens of a channel that a block takes at a time."""
        return self.lanes * _declared("scan_parts.cuh", "PartsShape")["kTokens"]

    @staticmethod
    def window() -> int:
        """Tokens for which a warp holds B and C at a time."""
        return _declared("scan_parts.cuh", "PartsShape")["kWindow"]

    @classmethod
    def part_of(cls, d_state: int) -> int:
        """The states of a part, where a channel has at most 16."""
        return next(states for states in cls.RESIDENT if states * cls.warps >= d_state)

    @classmethod
    def of(cls, input_t: DType, vec: int, lanes: int, d_state: int, *more: DType) -> PartsKernel:
        """The kernel for this many states, 16 at most; `more` are the fields that only this class has."""
        states = cls.part_of(d_state)
        return cls(input_t, vec, lanes, states, cls.RESIDENT[states], *more)

    @classmethod
    def axes(cls) -> Iterator[tuple[DType, int, int, int, int]]:
        """Every combination of the fields that the kernels share."""
        for input_t, lanes, divided in product(FLOATS, cls.LANES, cls.RESIDENT.items()):
            for vec in vectors(input_t):
                yield input_t, vec, lanes, *divided


@dataclass(frozen=True)
class SelectiveScanPartsFwd(PartsKernel):
    """A scan of the rows of a batch by parts of states."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanPartsFwd]:
        for axes in cls.axes():
            yield cls(*axes)


@dataclass(frozen=True)
class SelectiveScanVarlenPartsFwd(PartsKernel):
    """A scan of packed sequences by parts of states, which are not codes."""

    state_t: DType

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanVarlenPartsFwd]:
        for axes, state_t in product(cls.axes(), FLOATS):
            yield cls(*axes, state_t)


@dataclass(frozen=True)
class SelectiveScanVarlenFwd(Kernel):
    """`lanes` lanes own a channel of a sequence, each `states` of its states."""

    input_t: DType
    lanes: int
    states: int
    vec: int
    b_vec: int
    c_vec: int
    state_t: DType
    snapshots: bool = False
    """Whether snapshots of states inside sequences are stored."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanVarlenFwd]:
        for axes in scan_axes(constants=False):
            accesses = matrix_accesses(axes["input_t"], constants=False)
            for c_vec, state_t, snapshots in product(accesses, STATES, (False, True)):
                yield cls(**axes, c_vec=c_vec, state_t=state_t, snapshots=snapshots)


@dataclass(frozen=True)
class SelectiveScanVarlenTilesFwd(Kernel):
    """The lanes of a TileShape share the tokens of a sequence or, when lengths are `mixed`, of a long one."""

    TILES: ClassVar[tuple[TileShape, ...]] = (
        TileShape(8, 1, 1, 16, 4),
        TileShape(16, 1, 4, 8, 3),
    )
    """The shapes for long sequences among short ones; other shapes have too few registers there. On an H200 one
    sequence of 4096 tokens and 256 of 16, 2048 channels, takes 180 us with the second one, and with (16, 2, 2, 16) 183;
    with snapshots 186 and 199.
    """

    input_t: DType
    state_t: DType
    lanes: int
    parts: int
    at_once: int
    tokens: int
    resident: int
    by_channel: bool
    """Whether channels and states are contiguous, not tokens."""
    mixed: bool
    snapshots: bool = False
    """Whether snapshots of states inside sequences are stored."""
    most_states: int = MOST_STATES[0]
    """States per channel at most."""
    phases: bool = False
    """Whether rows of contiguous tokens have phases (plan_phases.py); otherwise they are aligned."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanVarlenTilesFwd]:
        for input_t, state_t, shape in product(FLOATS, STATES, TILE_TIMES):
            for by_channel, mixed, snapshots, phases in product((False, True), repeat=4):
                if phases and (by_channel or mixed):
                    continue
                is_row = not mixed and shape.fits(input_t, 0, MAX_TOKENS)
                has_room = shape.has_room(by_channel=by_channel, snapshots=snapshots)
                if shape in cls.TILES or (is_row and has_room):
                    yield cls(input_t, state_t, *shape, by_channel, mixed, snapshots, phases=phases)
        for input_t, state_t, snapshots in product(FLOATS, STATES, (False, True)):
            for by_channel, phases in ((False, False), (True, False), (False, True)):
                for shape in wide_shapes(input_t, by_channel=by_channel, snapshots=snapshots):
                    for most in MOST_STATES[1:]:
                        yield cls(
                            input_t, state_t, *shape, by_channel, False, snapshots, most_states=most, phases=phases
                        )


@dataclass(frozen=True)
class SelectiveScanVarlenBlocks(Kernel):
    """The snapshots of a prefix cache by blocks and chunks: a warp has one sequence."""

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanVarlenBlocks]:
        yield cls()

    def launch_config(self, sequences: int) -> LaunchConfig:
        """The launch for this many sequences."""
        return self.config(ceil_div(sequences, self.warps))
