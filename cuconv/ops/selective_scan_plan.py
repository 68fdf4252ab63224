"""Which kernels a selective scan runs, and how: a pure function of layouts."""

from __future__ import annotations

from typing import Any, NamedTuple

from cuconv.call import Launch
from cuconv.dtypes import FLOAT32, INT64, DType
from cuconv.kernel import Kernel
from cuconv.kernels.scan import (
    CHUNK,
    CONSTANT,
    LANE_TOKENS,
    THREADS,
    TILE_LANES,
    TILE_STATES,
    TILE_TOKENS,
    grid,
    lanes_for,
    matrix_accesses,
    own_tokens,
)
from cuconv.kernels.selective_scan_carry import SelectiveScanCarry
from cuconv.kernels.selective_scan_chunk import SelectiveScanChunk
from cuconv.kernels.selective_scan_fwd import SelectiveScanFwd
from cuconv.kernels.selective_scan_tiles_fwd import THREADS as THREADS_OF_TILES
from cuconv.kernels.selective_scan_tiles_fwd import SelectiveScanTilesFwd
from cuconv.kernels.selective_scan_varlen_fwd import SelectiveScanVarlenFwd
from cuconv.kernels.selective_scan_varlen_tiles_fwd import LANES as TILE_LANES_OF_LONG
from cuconv.kernels.selective_scan_varlen_tiles_fwd import SelectiveScanVarlenTilesFwd
from cuconv.launch import MAX_VECTOR_BYTES, LaunchConfig, ceil_div, fast_div, widest_vector
from cuconv.layout import Layout

FILL_THREADS = 132 * 512
"""What keeps an H200 busy. With far fewer threads rows are cut into segments, which costs every exponential twice."""

WORTH_CUTTING = 2.5
"""How many times fewer: on an H200 cutting in 4 takes 1.9 ms instead of 2.6 (1 x 5120 x 16384), in 3 2.8 instead of 2.6
(1 x 8192 x 16384), in 2 0.54 instead of 0.39 (8 x 1536 x 2048)."""


TILE_FILL = 132 * 256
"""The same with tokens in several lanes."""


SHORT = 128
"""Tokens of a packed sequence that one lane a channel walks, where that leaves enough for all to do."""


class Operands(NamedTuple):
    """The layouts of one valid call; None stands for an argument that is absent."""

    u: Layout
    """(batch, dim, seqlen), and so are delta, z and out. Packed tokens count as one row."""
    delta: Layout
    A: Layout
    B: Layout
    """(batch, ngroups, d_state, seqlen), or (dim, d_state) of a constant; and so is C."""
    C: Layout
    D: Layout | None
    z: Layout | None
    delta_bias: Layout | None
    out: Layout
    delta_softplus: bool
    initial_state: Layout | None = None
    last_state: Layout | None = None
    chunk_states: Layout | None = None

    @property
    def d_state(self) -> int:
        """The states of a channel."""
        return self.A.shape[1]


class Packed(NamedTuple):
    """What packed sequences have besides."""

    ssm_states: Layout | None
    query_start_loc: Layout | None
    cache_indices: Layout | None
    has_initial_state: Layout | None
    pad_slot_id: int
    total: int

    @property
    def sequences(self) -> int:
        """How many there are, empty ones too."""
        return 1 if self.query_start_loc is None else self.query_start_loc.shape[0] - 1


class Segments(NamedTuple):
    """How rows are cut."""

    parts: int
    tokens: int
    """Of each but the last, a multiple of CHUNK."""


def plan(o: Operands) -> tuple[Launch, ...]:
    """The launches that compute a call, in order; none when there is nothing to compute."""
    batch, dim, _ = o.u.shape
    if not batch or not dim or (o.out.size == 0 and o.last_state is None):
        return ()
    lanes, states = lanes_for(o.d_state)
    cut = segments(o.u.shape, o.d_state)
    config, division = grid(dim, lanes, batch * cut.parts)
    numbers = {**_numbers(o), **_segment_numbers(o, cut), **division}
    axes: dict[str, Any] = {
        "input_t": o.u.dtype,
        "lanes": lanes,
        "states": states,
        "vec": _vector(o, lanes),
        "b_vec": _matrix_vector(o.B),
    }
    last = _last(o, axes, config, numbers, batch * cut.parts)
    if cut.parts == 1:
        return (last,)
    chunk = SelectiveScanChunk(**axes)
    carry = SelectiveScanCarry()
    carry_config, carry_division = carry.launch_config(batch, dim, o.d_state)
    return (
        Launch(chunk, config, chunk.params.pack_numbers(**numbers)),
        Launch(carry, carry_config, carry.params.pack_numbers(**numbers, **carry_division)),
        last,
    )


def _last(o: Operands, axes: dict[str, Any], config: LaunchConfig, numbers: dict[str, Any], rows: int) -> Launch:
    """The launch that writes the results."""
    kernel: Kernel
    if (lanes := tile_lanes(o, rows)) is None:
        kernel = SelectiveScanFwd(**axes, c_vec=_matrix_vector(o.C))
    else:
        assert isinstance(o.u.dtype, DType)
        kernel = SelectiveScanTilesFwd(o.u.dtype, lanes)
        config, division = grid(o.u.shape[1], lanes, rows, THREADS_OF_TILES)
        numbers = numbers | division
    return Launch(kernel, config, kernel.params.pack_numbers(**numbers))


def tile_lanes(o: Operands, rows: int) -> int | None:
    """The fewest lanes a channel that fill the GPU when each has tokens of its own; None where that cannot be."""
    _, dim, seqlen = o.u.shape
    fitting = [
        lanes
        for lanes in TILE_LANES
        if lanes * LANE_TOKENS <= max(seqlen, LANE_TOKENS) and _has_tiles(o, THREADS_OF_TILES // lanes)
    ]
    return next((lanes for lanes in fitting if rows * dim * lanes >= TILE_FILL), max(fitting, default=None))


def _has_tiles(o: Operands, channels: int) -> bool:
    """Whether tokens can be spread over lanes, by blocks that have so many channels."""
    if o.d_state > TILE_STATES or not is_variable(o.B) or not is_variable(o.C):
        return False
    whole = MAX_VECTOR_BYTES // o.u.itemsize
    arrays = [each for each in (o.u, o.delta, o.z, o.out, o.B, o.C) if each is not None]
    if any(_row_vector(each, each.active(*range(len(each.shape) - 1)), whole) < whole for each in arrays):
        return False
    groups = max(o.B.shape[1], o.C.shape[1])
    # A block's channels are of one group.
    return groups == 1 or o.u.shape[1] // groups % channels == 0


def segments(shape: tuple[int, ...], d_state: int) -> Segments:
    """The fewest segments of a row, of whole chunks, that fill the GPU; one when (batch, dim, seqlen) fills it."""
    batch, dim, seqlen = shape
    threads = batch * ceil_div(dim * lanes_for(d_state)[0], THREADS) * THREADS
    chunks = max(1, ceil_div(seqlen, CHUNK))
    wanted = min(ceil_div(FILL_THREADS, max(1, threads)), seqlen // CHUNK)
    if wanted < 2 or WORTH_CUTTING * threads > FILL_THREADS:
        return Segments(1, chunks * CHUNK)
    tokens = ceil_div(chunks, wanted) * CHUNK
    return Segments(ceil_div(seqlen, tokens), tokens)


def scratch_size(shape: tuple[int, ...], d_state: int) -> int:
    """The floats that the segments of (batch, dim, seqlen) leave to each other."""
    batch, dim, _ = shape
    count = segments(shape, d_state).parts
    return batch * count * dim * (d_state + 1) if count > 1 else 0


def plan_varlen(o: Operands, packed: Packed) -> Launch | None:
    """The launch that computes a call on packed sequences, None when it has nothing to compute."""
    if o.u.size == 0:
        return None
    lanes, states = lanes_for(o.d_state)
    _, dim, total = o.u.shape
    pool = packed.ssm_states
    state_t = pool.dtype if pool else FLOAT32
    assert isinstance(o.u.dtype, DType) and isinstance(state_t, DType)
    # What precedes the first sequence and what follows the last are rows, too.
    rows, short_tokens = packed.sequences + 2, 0
    kernel: Kernel
    if _has_tiles(o, THREADS_OF_TILES):
        kernel = SelectiveScanVarlenTilesFwd(o.u.dtype, state_t)
        config, division = grid(dim, TILE_LANES_OF_LONG, rows, THREADS_OF_TILES)
        # One lane a channel has less to do than several, which are quicker done: worth it when all are busy.
        short_tokens = SHORT if total * dim >= SHORT * TILE_FILL else LANE_TOKENS
    else:
        config, division = grid(dim, lanes, rows)
        kernel = SelectiveScanVarlenFwd(
            input_t=o.u.dtype,
            lanes=lanes,
            states=states,
            vec=_vector(o, lanes),
            b_vec=_matrix_vector(o.B),
            c_vec=_matrix_vector(o.C),
            state_t=state_t,
        )
    numbers = {
        **_numbers(o),
        **division,
        "sequences": packed.sequences,
        "total": total,
        "has_states": pool is not None,
        "short_tokens": short_tokens,
        "slots": pool.shape[0] if pool else 0,
        "ssm_states_stride": pool.strides if pool else (0, 0, 0),
        "pad_slot_id": packed.pad_slot_id,
        "query_start_loc_is_int64": packed.query_start_loc is not None and packed.query_start_loc.dtype is INT64,
        "cache_indices_is_int64": packed.cache_indices is not None and packed.cache_indices.dtype is INT64,
    }
    for name in ("query_start_loc", "cache_indices", "has_initial_state"):
        layout = getattr(packed, name)
        numbers[f"{name}_stride"] = layout.strides[0] if layout else 0
    return Launch(kernel, config, kernel.params.pack_numbers(**numbers))


def is_variable(matrix: Layout) -> bool:
    """Whether B or C depends on the token."""
    return len(matrix.shape) == 4


def _vector(o: Operands, lanes: int) -> int:
    """The most tokens an access of u and its kin, none more than a lane has in a tile."""
    rows = [row for row in (o.u, o.delta, o.z, o.out) if row is not None]
    return min(_row_vector(row, row.active(0, 1), own_tokens(lanes)) for row in rows)


def _matrix_vector(matrix: Layout) -> int:
    if not is_variable(matrix):
        return CONSTANT
    vec = _row_vector(matrix, matrix.active(0, 1, 2), TILE_TOKENS)
    assert isinstance(matrix.dtype, DType)
    return vec if vec in matrix_accesses(matrix.dtype, constants=False) else 1


def _row_vector(row: Layout, strides: list[int], most: int) -> int:
    """The most tokens an access of rows so far apart."""
    # Of rows of fewer tokens than a tile no vector is ever loaded.
    if row.shape[-1] < TILE_TOKENS or row.strides[-1] != 1:
        return 1
    return widest_vector(row.itemsize, row.first, *strides, limit=min(most * row.itemsize, MAX_VECTOR_BYTES))


def _numbers(o: Operands) -> dict[str, Any]:
    """What all kernels of a scan take."""
    _, dim, _ = o.u.shape
    groups = max([matrix.shape[1] for matrix in (o.B, o.C) if is_variable(matrix)], default=1)

    def matrix_strides(matrix: Layout) -> tuple[int, ...]:
        # A constant has neither batch nor tokens.
        return matrix.strides if is_variable(matrix) else (0, *matrix.strides, 0)

    numbers: dict[str, Any] = {
        "u_stride": o.u.strides,
        "delta_stride": o.delta.strides,
        "z_stride": o.z.strides if o.z else (0, 0, 0),
        "out_stride": o.out.strides,
        "B_stride": matrix_strides(o.B),
        "C_stride": matrix_strides(o.C),
        "A_stride": o.A.strides,
        "D_stride": o.D.strides[0] if o.D else 0,
        "delta_bias_stride": o.delta_bias.strides[0] if o.delta_bias else 0,
        "group_dim": fast_div(dim // groups),
        "dim": dim,
        "d_state": o.d_state,
        "delta_softplus": o.delta_softplus,
    }
    for name in ("D", "delta_bias"):
        numbers[f"{name}_is_float32"] = _is_float32(getattr(o, name))
    return numbers


def _is_float32(layout: Layout | None) -> bool:
    return layout is not None and layout.dtype is FLOAT32


def _segment_numbers(o: Operands, cut: Segments) -> dict[str, Any]:
    batch, _, seqlen = o.u.shape
    return {
        "batch": batch,
        "seqlen": seqlen,
        "segments": fast_div(cut.parts),
        "segment_tokens": cut.tokens,
        "B_is_float32": _is_float32(o.B),
        "C_is_float32": _is_float32(o.C),
        "initial_state_stride": o.initial_state.strides if o.initial_state else (0, 0, 0),
        "last_state_stride": o.last_state.strides if o.last_state else (0, 0, 0),
        "chunk_states_stride": o.chunk_states.strides if o.chunk_states else (0, 0, 0, 0),
    }
