"""What the kernels of a selective scan share on the host: their operands, the axes of their variants, their grids."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from cuconv.dtypes import FLOATS, DType
from cuconv.kernel import Params
from cuconv.kernels.conv import vectors
from cuconv.launch import LaunchConfig, ceil_div, fast_div

THREADS = 128

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

TILE_THREADS = 128


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
        return TILE_THREADS // self.group


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

SEGMENT_POINTERS = (
    *("u", "delta", "A", "B", "C", "D", "z", "delta_bias"),
    *("initial_state", "out", "last_state", "chunk_states", "scratch"),
)
"""The tensors of common/scan_segments.cuh's SelectiveScanOperands, in order; 0 stands for one that is absent."""

_INPUTS = (
    ("u_stride", "i8", 3),
    ("delta_stride", "i8", 3),
    ("z_stride", "i8", 3),
    ("out_stride", "i8", 3),
    ("B_stride", "i8", 4),
    ("C_stride", "i8", 4),
    ("A_stride", "i8", 2),
    ("D_stride", "i8"),
    ("delta_bias_stride", "i8"),
    ("dim_blocks", "u4", 3),
)
_PARAMETERS = (("D_is_float32", "i4"), ("delta_bias_is_float32", "i4"))

SEGMENT_OPERANDS = (
    *_INPUTS,
    ("segments", "u4", 3),
    ("group_dim", "u4", 3),
    ("batch", "i4"),
    ("dim", "i4"),
    ("seqlen", "i4"),
    ("d_state", "i4"),
    ("segment_tokens", "i4"),
    ("delta_softplus", "i4"),
    ("B_is_float32", "i4"),
    ("C_is_float32", "i4"),
    *_PARAMETERS,
    ("initial_state_stride", "i8", 3),
    ("last_state_stride", "i8", 3),
    ("chunk_states_stride", "i8", 4),
)

VARLEN_PARAMS = Params(
    (
        *("u", "ssm_states", "delta", "A", "B", "C", "D", "z", "delta_bias"),
        *("query_start_loc", "cache_indices", "has_initial_state", "out"),
    ),
    *_INPUTS,
    ("runs", "u4", 3),
    ("group_dim", "u4", 3),
    ("sequences", "i4"),
    ("dim", "i4"),
    ("total", "i4"),
    ("d_state", "i4"),
    ("delta_softplus", "i4"),
    *_PARAMETERS,
    ("has_states", "i4"),
    ("few_tokens", "i4"),
    ("short_tokens", "i4"),
    ("run_sequences", "i4"),
    ("long_at_a_time", "i4"),
    ("long_goes_on", "i4"),
    ("states_is_vectors", "i4"),
    ("A_is_vectors", "i4"),
    ("query_start_loc_is_int64", "i4"),
    ("cache_indices_is_int64", "i4"),
    ("query_start_loc_stride", "i8"),
    ("cache_indices_stride", "i8"),
    ("has_initial_state_stride", "i8"),
    ("slots", "i8"),
    ("pad_slot_id", "i8"),
    ("ssm_states_stride", "i8", 3),
)
"""The argument struct of the kernel of packed sequences."""


def segment_params(*launch_fields: tuple[str, str] | tuple[str, str, int]) -> Params:
    """The argument struct of a kernel of rows cut into segments: the operands, then what divides the work."""
    return Params(SEGMENT_POINTERS, *SEGMENT_OPERANDS, *launch_fields)


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


def grid(dim: int, lanes: int, rows: int, threads: int = THREADS) -> tuple[LaunchConfig, dict[str, Any]]:
    """The launch for so many rows of `dim` channels, and the param that divides its blocks so."""
    dim_blocks = ceil_div(dim * lanes, threads)
    return LaunchConfig((dim_blocks * rows, 1, 1), (threads, 1, 1)), {"dim_blocks": fast_div(dim_blocks)}
