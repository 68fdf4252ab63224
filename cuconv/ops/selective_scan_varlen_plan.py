"""Which kernel a selective scan of packed sequences runs, and how: a pure function of layouts."""

from __future__ import annotations

from cuconv.call import Launch
from cuconv.dtypes import FLOAT32, INT64, DType
from cuconv.kernel import Kernel
from cuconv.kernels.scan import TILE_THREADS, grid, lanes_for, tile_time
from cuconv.kernels.selective_scan_varlen_fwd import SelectiveScanVarlenFwd
from cuconv.kernels.selective_scan_varlen_tiles_fwd import SHAPES, SelectiveScanVarlenTilesFwd
from cuconv.ops.selective_scan_operands import Operands, Packed, has_tiles, matrix_vector, numbers, vector

FILL = 132 * 256
"""Channels that keep an H200 busy with one lane each."""

LONG = 24
"""Tokens of a packed sequence, on average, from which on tiles pay: on an H200 2.4 ms instead of 2.2 with 16 of them,
1.58 instead of 1.59 with 21 (7800 and 392 times one), 0.61 instead of 0.88 with 512.
"""

SHORT = 128
"""Tokens of a packed sequence that one lane a channel walks, where that leaves enough for all to do."""


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
    # How long sequences are is known here only on average.
    if total >= LONG * packed.sequences and has_tiles(o, TILE_THREADS):
        shapes = [shape for shape in SHAPES if o.d_state % (shape.parts * shape.at_once) == 0]
        shape = min(shapes, key=lambda shape: tile_time(packed.sequences * dim, shape))
        kernel = SelectiveScanVarlenTilesFwd(o.u.dtype, state_t, *shape)
        config, division = grid(dim, shape.group, rows, TILE_THREADS)
        # One lane a channel has less to do than several, which are quicker done: worth it when all are busy.
        short_tokens = SHORT if total * dim >= SHORT * FILL else shape.tokens
    else:
        config, division = grid(dim, lanes, rows)
        kernel = SelectiveScanVarlenFwd(
            input_t=o.u.dtype,
            lanes=lanes,
            states=states,
            vec=vector(o, lanes),
            b_vec=matrix_vector(o.B),
            c_vec=matrix_vector(o.C),
            state_t=state_t,
        )
    known = {
        **numbers(o),
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
        known[f"{name}_stride"] = layout.strides[0] if layout else 0
    return Launch(kernel, config, kernel.params.pack_numbers(**known))
