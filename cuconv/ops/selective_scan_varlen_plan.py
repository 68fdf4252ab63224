"""Which kernel a selective scan of packed sequences runs, and how: a pure function of layouts."""

from __future__ import annotations

from typing import Any, NamedTuple

from cuconv.call import Launch
from cuconv.dtypes import FLOAT32, INT64, DType
from cuconv.kernel import Kernel
from cuconv.kernels.scan import FEW_SHAPE, FEW_STATES, TILE_THREADS, TileShape, lanes_for, tile_time
from cuconv.kernels.selective_scan_varlen_fwd import THREADS, SelectiveScanVarlenFwd
from cuconv.kernels.selective_scan_varlen_tiles_fwd import SHAPES, SelectiveScanVarlenTilesFwd
from cuconv.launch import MAX_VECTOR_BYTES, WARP_SIZE, LaunchConfig, ceil_div, fast_div, widest_vector
from cuconv.layout import Layout
from cuconv.ops.selective_scan_operands import Operands, Packed, has_tiles, matrix_vector, numbers, vector

FILL = 132 * 256
"""Channels that keep an H200 busy with one lane each."""

FEW = 16
"""Tokens of a packed sequence that is walked token by token: tiles would mostly be empty."""

SHORT = 128
"""Tokens of a packed sequence that one lane a channel walks, where that leaves enough for all to do."""

LONG = 24
"""Tokens of a packed sequence on average, below which most are short and a few have nearly all tokens."""

PREFILL = 4096
"""Tokens that those few are guessed to have."""

RUN = 16
"""Short sequences that a block takes one after another, at most, sharing its rates and accesses of u. Fewer than a warp
has lanes.
"""

RUN_BLOCKS = 132 * 16
"""Blocks of runs that keep an H200 busy; with fewer, runs are shorter."""

LONG_BLOCKS = 4096
"""Blocks that long sequences are spread over, if there may be so many long ones. Every block looks for its own."""


class Division(NamedTuple):
    """The work as blocks: first those of long sequences, then those of runs of short ones."""

    few_tokens: int
    short_tokens: int
    long_channels: int
    """Of a block that has a long sequence; one that has a run has as many as threads."""

    def grid(self, o: Operands, sequences: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch, and the params that divide it so."""
        _, dim, total = o.u.shape
        # What precedes the first sequence and what follows the last are rows, too.
        rows = sequences + 2
        dim_blocks, run_blocks = ceil_div(dim, self.long_channels), ceil_div(dim, THREADS)
        # As many long ones as there can be, at most.
        at_a_time = min(rows, total // (self.short_tokens + 1), max(1, LONG_BLOCKS // dim_blocks))
        run = min(RUN, max(1, rows * run_blocks // RUN_BLOCKS))
        runs = ceil_div(rows, run) if self.short_tokens else 0
        return LaunchConfig((dim_blocks * at_a_time + run_blocks * runs, 1, 1), (THREADS, 1, 1)), {
            "dim_blocks": fast_div(dim_blocks),
            "runs": fast_div(max(1, runs)),
            "few_tokens": self.few_tokens,
            "short_tokens": self.short_tokens,
            "run_sequences": run,
            "long_at_a_time": at_a_time,
        }


def plan_varlen(o: Operands, packed: Packed) -> Launch | None:
    """The launch that computes a call on packed sequences, None when it has nothing to compute."""
    if o.u.size == 0:
        return None
    pool = packed.ssm_states
    state_t = pool.dtype if pool else FLOAT32
    assert isinstance(o.u.dtype, DType) and isinstance(state_t, DType)
    kernel: Kernel
    if has_tiles(o, TILE_THREADS):
        states = FEW_SHAPE[1]
        shape = _tile_shape(o, packed)
        kernel = SelectiveScanVarlenTilesFwd(o.u.dtype, state_t, *shape)
        division = _tile_division(o, shape)
    else:
        lanes, states = lanes_for(o.d_state)
        kernel = SelectiveScanVarlenFwd(
            input_t=o.u.dtype,
            lanes=lanes,
            states=states,
            vec=vector(o, lanes),
            b_vec=matrix_vector(o.B),
            c_vec=matrix_vector(o.C),
            state_t=state_t,
        )
        division = _lane_division(o, lanes, states)
    config, divided = division.grid(o, packed.sequences)
    known = {
        **numbers(o),
        **divided,
        "sequences": packed.sequences,
        "total": o.u.shape[2],
        "has_states": pool is not None,
        "states_is_vectors": pool is not None and _is_vectors(pool, states),
        "A_is_vectors": _is_vectors(o.A, states),
        "slots": pool.shape[0] if pool else 0,
        "ssm_states_stride": pool.strides if pool else (0, 0, 0),
        "pad_slot_id": packed.pad_slot_id,
        "query_start_loc_is_int64": packed.query_start_loc is not None and packed.query_start_loc.dtype is INT64,
        "cache_indices_is_int64": packed.cache_indices is not None and packed.cache_indices.dtype is INT64,
    }
    for name in ("query_start_loc", "cache_indices", "has_initial_state"):
        layout = getattr(packed, name)
        known[f"{name}_stride"] = layout.strides[0] if layout else 0
    return Launch(kernel, config, kernel.params.pack_numbers(**known))


def _tile_shape(o: Operands, packed: Packed) -> TileShape:
    """The quickest for as many long sequences as are likely: how many tokens each has is known only on average."""
    _, dim, total = o.u.shape
    count = packed.sequences if total >= LONG * packed.sequences else ceil_div(total, PREFILL)
    shapes = [shape for shape in SHAPES if o.d_state % (shape.parts * shape.at_once) == 0]
    return min(shapes, key=lambda shape: tile_time(count * dim, shape))


def _tile_division(o: Operands, shape: TileShape) -> Division:
    _, dim, total = o.u.shape
    # One lane a channel has less to do than several, which are quicker done: worth it when all are busy.
    short_tokens = SHORT if total * dim >= SHORT * FILL else shape.tokens
    return Division(FEW, max(FEW, short_tokens), shape.channels)


def _lane_division(o: Operands, lanes: int, states: int) -> Division:
    groups = o.B.shape[1]
    # The channels of a warp share B and C.
    is_shared = groups == 1 or o.u.shape[1] // groups % WARP_SIZE == 0
    few_tokens = FEW if is_shared and lanes * states <= FEW_STATES else 0
    return Division(few_tokens, few_tokens, THREADS // lanes)


def _is_vectors(layout: Layout, states: int) -> bool:
    """Whether so many consecutive states of a channel can be accessed as vectors."""
    wanted = min(states, MAX_VECTOR_BYTES // layout.itemsize)
    outer = layout.active(*range(len(layout.shape) - 1))
    is_whole = layout.strides[-1] == 1 and layout.shape[-1] % states == 0
    return is_whole and widest_vector(layout.itemsize, layout.first, *outer) >= wanted
