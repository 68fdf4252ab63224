"""Which kernel a selective scan of packed sequences runs, and how: a pure function of layouts."""

from __future__ import annotations

from typing import Any, NamedTuple

from cuconv.runtime.call import Launch, Plan
from cuconv.runtime.dtypes import FLOAT32, INT64, DType
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import MAX_VECTOR_BYTES, WARP_SIZE, LaunchConfig, ceil_div, fast_div, widest_vector
from cuconv.runtime.layout import Layout
from cuconv.selective_scan.kernels import (
    FEW_SHAPE,
    FEW_STATES,
    SelectiveScanVarlenFwd,
    SelectiveScanVarlenTilesFwd,
    TileShape,
    lanes_for,
    tile_time,
)
from cuconv.selective_scan.operands import Operands, Packed, has_tiles, matrix_vector, numbers, vector

FILL = 132 * 256
"""Channels that keep an H200 busy with one lane each."""

FEW = 24
"""Tokens of a packed sequence that is walked token by token: tiles would mostly be empty. On an H200 512 sequences of
16 tokens on average take 1.61 ms with 16, 1.42 with 24, and with 32 256 of 32 tokens 1.50 instead of 0.90.
"""

SHORT = 128
"""Tokens of a packed sequence that one lane a channel walks, where that leaves enough for all to do."""

LONG = 192
"""Tokens of a packed sequence on average, from which on each has blocks of its own. With fewer they count as mixed: a
few may have nearly all tokens. On an H200 64 x 128 take 0.57 ms as mixed and 0.71 as not, 16 x 512 0.66 and 0.61.
"""

PREFILL = 4096
"""Tokens that those few are guessed to have."""

RUN = 16
"""Short sequences that a block takes one after another, at most, sharing its rates and accesses of u. Fewer than a warp
has lanes.
"""

RUN_TOKENS = 64
"""Tokens of a run, likely, at most: on an H200 1.65 ms instead of 1.84 with 512 sequences of 1 to 32 tokens."""

RUN_BLOCKS = 132 * 16
"""Blocks of runs that keep an H200 busy; with fewer, runs are shorter."""

LONG_BLOCKS = 132 * 4
"""Blocks of long sequences that an H200 has at a time. More would look for a long one among many that are short: 0.96
ms instead of 0.86 with 4096 of them and 2048 single tokens.
"""


class Division(NamedTuple):
    """The work as blocks: of a sequence each, or first those of long ones and then those of runs of the others."""

    few_tokens: int
    short_tokens: int
    channels: int
    """Of a block that has a sequence; one that has a run has as many as threads."""
    is_mixed: bool = True

    def grid(self, o: Operands, sequences: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch, and the params that divide it so."""
        _, dim, total = o.u.shape
        threads = SelectiveScanVarlenFwd.threads
        # What precedes the first sequence and what follows the last are rows, too.
        rows = sequences + 2
        dim_blocks, run_blocks = ceil_div(dim, self.channels), ceil_div(dim, threads)
        # As many long ones as there can be.
        possible = min(rows, total // (self.short_tokens + 1))
        at_a_time = min(possible, max(1, LONG_BLOCKS // dim_blocks)) if self.is_mixed else rows
        run = max(1, min(RUN, rows * run_blocks // RUN_BLOCKS, RUN_TOKENS * sequences // total))
        runs = ceil_div(rows, run) if self.short_tokens else 0
        return LaunchConfig((dim_blocks * at_a_time + run_blocks * runs, 1, 1), (threads, 1, 1)), {
            "dim_blocks": fast_div(dim_blocks),
            "runs": fast_div(max(1, runs)),
            "few_tokens": self.few_tokens,
            "short_tokens": self.short_tokens,
            "run_sequences": run,
            "long_at_a_time": at_a_time,
            "long_goes_on": at_a_time < possible,
        }


def plan(call: tuple[Operands, Packed]) -> Plan:
    """The launch that computes a call on packed sequences."""
    o, packed = call
    if o.u.size == 0:
        return Plan()
    pool = packed.ssm_states
    state_t = pool.dtype if pool else FLOAT32
    assert isinstance(o.u.dtype, DType) and isinstance(state_t, DType)
    kernel: Kernel
    if has_tiles(o, SelectiveScanVarlenTilesFwd.threads):
        states = FEW_SHAPE[1]
        is_mixed = o.u.shape[2] < LONG * packed.sequences
        shape = _tile_shape(o, packed, is_mixed)
        kernel = SelectiveScanVarlenTilesFwd(o.u.dtype, state_t, *shape, is_mixed)
        division = _tile_division(o, shape) if is_mixed else Division(0, 0, shape.channels, is_mixed=False)
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
    return Plan((Launch(kernel, config, kernel.params.pack_numbers(**known)),))


def _tile_shape(o: Operands, packed: Packed, is_mixed: bool) -> TileShape:
    """The quickest for as many long sequences as are likely: how many tokens each has is known only on average."""
    _, dim, total = o.u.shape
    count = ceil_div(total, PREFILL) if is_mixed else packed.sequences
    shapes = [shape for shape in SelectiveScanVarlenTilesFwd.TILES if o.d_state % (shape.parts * shape.at_once) == 0]
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
    return Division(few_tokens, few_tokens, SelectiveScanVarlenFwd.threads // lanes, is_mixed=few_tokens > 0)


def _is_vectors(layout: Layout, states: int) -> bool:
    """Whether so many consecutive states of a channel can be accessed as vectors."""
    wanted = min(states, MAX_VECTOR_BYTES // layout.itemsize)
    outer = layout.active(*range(len(layout.shape) - 1))
    is_whole = layout.strides[-1] == 1 and layout.shape[-1] % states == 0
    return is_whole and widest_vector(layout.itemsize, layout.first, *outer) >= wanted
