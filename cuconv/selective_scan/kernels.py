"""The kernels of the selective scans: frozen dataclasses whose fields are the template parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

from cuconv.runtime.dtypes import FLOATS, DType
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import LaunchConfig, ceil_div, fast_div, vectors

TILE_TOKENS = 8
"""The tokens that a group of lanes takes at a time: ScanShape::kTokens of common/scan.cuh."""

CHUNK = 256
"""Tokens between the states that can be asked for, and of the shortest segment."""

MAX_TOKENS = 2**30
"""Of a row: the kernels count tokens in 32 bits, and a little beyond the last one."""

MAX_STATE = 256

CONSTANT = 0
"""Instead of the tokens an access has: B or C does not depend on the token."""

SHAPES = ((1, 1), (1, 2), (1, 4), (2, 4), (4, 4), (8, 4), (16, 4), (32, 4), (32, 8))
"""(lanes a channel, states a lane), by the most states that a channel has then."""


class TileShape(NamedTuple):
    """How a block whose lanes share the tokens of a tile is divided: TileShape of common/tiles.cuh."""

    lanes: int
    """That have a channel's tokens."""
    parts: int
    """Of its states, each of so many lanes."""
    at_once: int
    """States that a lane has under way."""

    @property
    def tokens(self) -> int:
        """Consecutive ones that a lane has of a tile: TileShape::kTokens."""
        return 8 if self.at_once > 2 else 16

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor of an H200 has at a time: TileShape::kMinBlocks."""
        return 3 if self.at_once > 1 else 4

    @property
    def group(self) -> int:
        """The lanes of a channel."""
        return self.lanes * self.parts

    @property
    def channels(self) -> int:
        """Of a block."""
        return SelectiveScanTilesFwd.threads // self.group


TILE_TIMES = {
    TileShape(1, 1, 1): (850, 2005),
    TileShape(4, 1, 2): (975, 1790),
    TileShape(8, 1, 1): (1431, 2571),
    TileShape(8, 1, 2): (1060, 1893),
    TileShape(16, 1, 4): (1114, 2086),
    TileShape(16, 2, 2): (1350, 2214),
}
"""The shapes that kernels have, by how many lanes a channel has. How long an H200 takes when a multiprocessor has one
block and when it has all that it has room for: microseconds for 4096 tokens of 16 states, times the lanes.
"""

CUT = TileShape(8, 1, 1)
"""That of rows which are cut into segments."""

MULTIPROCESSORS = 132
"""Of an H200."""

TILE_STATES = 16
"""The most states of a channel then."""

FEW_STATES = 16
"""The most states of a channel whose sequences of few tokens are walked token by token."""

FEW_SHAPE = (4, 4)
"""(lanes a channel, states a lane) of such a sequence, in a kernel whose other sequences have tiles."""


def tile_time(rows: int, shape: TileShape) -> float:
    """About how long so many rows take: multiprocessors have a few blocks at a time, and then the next."""
    alone, full = TILE_TIMES[shape]
    waves, rest = divmod(ceil_div(ceil_div(rows, shape.channels), MULTIPROCESSORS), shape.resident)
    last = alone + (full - alone) * (rest - 1) / (shape.resident - 1) if rest else 0
    return (waves * full + last) / shape.group


def lanes_for(d_state: int) -> tuple[int, int]:
    """Lanes a channel and states a lane for so many states."""
    return next(shape for shape in SHAPES if shape[0] * shape[1] >= d_state)


def own_tokens(lanes: int) -> int:
    """The tokens of a tile that a lane loads of u and its kin."""
    return max(1, TILE_TOKENS // lanes)


def matrix_accesses(input_t: DType, *, constants: bool) -> list[int]:
    """The tokens that an access of B or C may have; two at a time would hardly be better than one."""
    return [CONSTANT] * constants + [vec for vec in vectors(input_t) if vec != 2]


def scan_axes(*, constants: bool = True) -> Iterator[dict[str, Any]]:
    """Every combination of the axes that the kernels have, without those of a constant B or not."""
    for input_t, (lanes, states) in product(FLOATS, SHAPES):
        of_rows = [vec for vec in vectors(input_t) if vec <= own_tokens(lanes)]
        for vec, b_vec in product(of_rows, matrix_accesses(input_t, constants=constants)):
            yield {"input_t": input_t, "lanes": lanes, "states": states, "vec": vec, "b_vec": b_vec}


def with_c(axes: dict[str, Any], *, constants: bool = True) -> Iterator[dict[str, Any]]:
    """The same with every access of C."""
    for c_vec in matrix_accesses(axes["input_t"], constants=constants):
        yield {**axes, "c_vec": c_vec}


@dataclass(frozen=True)
class SegmentKernel(Kernel):
    """Base of the kernels whose blocks own channels of a row or of its segments."""

    @property
    def group(self) -> int:
        """Lanes that share one channel."""
        raise NotImplementedError

    def launch_config(self, dim: int, rows: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for this many rows, or segments of rows, of `dim` channels."""
        dim_blocks = ceil_div(dim * self.group, self.threads)
        return self.config(dim_blocks * rows), {"dim_blocks": fast_div(dim_blocks)}


@dataclass(frozen=True)
class SelectiveScanFwd(SegmentKernel):
    """`lanes` lanes own a channel, each `states` of its states."""

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
            yield from (cls(**each) for each in with_c(axes))


@dataclass(frozen=True)
class SelectiveScanChunk(SegmentKernel):
    """`lanes` lanes own a channel, each `states` of its states."""

    input_t: DType
    lanes: int
    states: int
    vec: int
    b_vec: int

    @property
    def group(self) -> int:
        return self.lanes

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanChunk]:
        for axes in scan_axes():
            yield cls(**axes)


@dataclass(frozen=True)
class SelectiveScanCarry(Kernel):
    """A thread owns a state of a channel, and loads `ahead` segments' at a time."""

    ahead: int = 8

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanCarry]:
        yield cls()

    def launch_config(self, batch: int, dim: int, d_state: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for so many states, and the params that divide them so."""
        config = self.config(ceil_div(batch * dim * d_state, self.threads))
        return config, {"states": fast_div(d_state), "channels": fast_div(dim)}


@dataclass(frozen=True)
class SelectiveScanTilesFwd(SegmentKernel):
    """A TileShape: `lanes` lanes own a channel, each consecutive tokens of a tile, or `parts` times as many."""

    input_t: DType
    lanes: int
    parts: int
    at_once: int

    @property
    def group(self) -> int:
        return self.lanes * self.parts

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanTilesFwd]:
        for input_t, shape in product(FLOATS, TILE_TIMES):
            yield cls(input_t, *shape)


@dataclass(frozen=True)
class SelectiveScanTilesChunk(SegmentKernel):
    """A TileShape: `lanes` lanes own a channel, each 16 consecutive tokens of a tile, or `parts` times as many."""

    input_t: DType
    lanes: int
    parts: int
    at_once: int

    @property
    def group(self) -> int:
        return self.lanes * self.parts

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanTilesChunk]:
        for input_t in FLOATS:
            yield cls(input_t, *CUT)


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

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanVarlenFwd]:
        for axes in scan_axes(constants=False):
            for each, state_t in product(with_c(axes, constants=False), FLOATS):
                yield cls(state_t=state_t, **each)


@dataclass(frozen=True)
class SelectiveScanVarlenTilesFwd(Kernel):
    """The TileShape of sequences or, when they are `mixed`, of the long ones."""

    TILES: ClassVar[tuple[TileShape, ...]] = (TileShape(8, 1, 1), TileShape(16, 2, 2))
    """Shapes of sequences that are not short."""

    input_t: DType
    state_t: DType
    lanes: int
    parts: int
    at_once: int
    mixed: bool

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanVarlenTilesFwd]:
        for input_t, state_t, shape, mixed in product(FLOATS, FLOATS, cls.TILES, (False, True)):
            yield cls(input_t, state_t, *shape, mixed)
