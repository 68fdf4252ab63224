"""Which kernel replay runs, and how: a pure function of layouts."""

from __future__ import annotations

from typing import Any, NamedTuple

from cuconv.runtime.call import Launch, Plan
from cuconv.runtime.launch import MAX_VECTOR_BYTES, WARP_SIZE, ceil_div
from cuconv.runtime.layout import Layout, index_numbers, strides_or_zeros
from cuconv.selective_state_update import plan as plain
from cuconv.selective_state_update.kernels import lanes
from cuconv.selective_state_update.kernels_replay import (
    MAX_WINDOW,
    WINDOWS,
    SelectiveStateUpdateCommit,
    SelectiveStateUpdateFold,
    SelectiveStateUpdateReplay,
    capacity,
    has_tensor_cores,
    is_whole,
    most_rows,
)

SMALL = {1: 2**63, 2: 128 * 2**20, 4: 32 * 2**20}
"""Bytes of states, by the bytes of an element, below which single tokens are put in them at once: writing so few takes
less time than reading the rings, and some sequences flush in every step. On an H200 with Mamba-2 of 128 heads and a
window of 16, sequences that flush in turn take 39 us for 64 MiB of bfloat16, and 36 without rings; for 32 MiB of
float32 15.4 and 19.5. Codes of 8 bits take 72 us for 64 MiB, and 48 without rings."""

MANY_WARPS = 2048
"""Warps below which each has fewer tiles of rows, so that more warps share the work."""

MANY_WAVES = 8192
"""Warps below which each has one head: those that flush take twice as long as others, which go on meanwhile."""


class Rings(NamedTuple):
    """The layouts of rings and cursors."""

    x: Layout
    """(slots, nheads, ring_rows, headdim)."""
    B: Layout
    """(slots, ngroups, ring_rows, d_state)."""
    dt: Layout
    """(slots, nheads, ring_rows)."""
    cursors: Layout
    """(slots, 4)."""
    window: int
    """Live tokens at most."""


class Operands(NamedTuple):
    """The layouts of one valid step; None stands for an argument that is absent."""

    step: plain.Operands
    rings: Rings
    force_flush: Layout | None
    """(sequences,)."""
    fold: bool
    """Whether tokens are put in the states at once."""


class FoldOperands(NamedTuple):
    """The layouts of one valid call that puts live tokens in states."""

    state: Layout
    """(slots, nheads, headdim, d_state)."""
    A: Layout
    """(nheads, headdim, d_state)."""
    rings: Rings
    state_batch_indices: Layout
    """(sequences,)."""
    dst_state_batch_indices: Layout | None
    """(sequences,)."""
    live: Layout | None
    """(sequences,): how many live tokens are put in states."""
    state_scale: Layout | None
    """(slots, nheads, headdim)."""
    pad_slot_id: int


class CommitOperands(NamedTuple):
    """The layouts of one valid call that moves cursors."""

    cursors: Layout
    accepted: Layout | None
    """(sequences,)."""
    state_batch_indices: Layout | None
    """(sequences,)."""
    batch: int
    ring_rows: int
    window: int
    pad_slot_id: int
    is_reset: bool


def plan(o: Operands) -> Plan:
    """The launch that computes a step."""
    if not o.step.x.size:
        return Plan()
    kernel = choose(o)
    _, nheads, headdim, _ = o.step.state.shape
    sequences = max(1, o.step.sequences)
    if isinstance(kernel, SelectiveStateUpdateFold):
        config, division = kernel.launch_config(sequences, nheads, headdim)
    else:
        shares = work(sequences, nheads, nheads // o.step.B.shape[2], ceil_div(headdim, kernel.tile))
        config, division = kernel.launch_config(sequences, nheads, headdim, *shares)
    numbers = _numbers(o.step, o.rings, o.force_flush, None)
    return Plan((Launch.packed(kernel, config, **{**numbers, **division}),))


def folds_at_once(step: plain.Operands) -> bool:
    """Whether the tokens of a call are put in the states at once, if the caller does not say so."""
    is_single = step.x.shape[1] == 1 and step.cu_seqlens is None
    return is_single and plain._state_bytes(step) < SMALL[step.state.itemsize]


def choose(o: Operands) -> SelectiveStateUpdateReplay | SelectiveStateUpdateFold:
    """The kernel that computes a step."""
    s = o.step
    d_state = s.state.shape[3]
    fits, vec = capacity(d_state), plain._vector(s)
    while not plain._is_packed(o.rings.B, vec):
        vec //= 2
    index32 = not s.stochastic and plain._fits_index32(s)
    arrays: dict[str, Any] = {
        "d_state": fits,
        "input_t": plain._dtype(s.x),
        "state_t": plain._dtype(s.state),
        "a_t": plain._dtype(s.A),
        "b_t": plain._dtype(s.B),
        "vec": vec,
    }
    masked = d_state != fits
    if o.fold:
        rows = min(plain._rows(s, vec, True, False), most_rows(fits, vec, plain._dtype(s.state)))
        return SelectiveStateUpdateFold(
            **arrays, rows=rows, token=True, masked=masked, stochastic=s.stochastic, index32=index32
        )
    tensor = has_tensor_cores(fits, arrays["input_t"], arrays["state_t"], arrays["b_t"], vec)
    x_vec = MAX_VECTOR_BYTES // s.x.itemsize
    if not is_whole(plain._dtype(s.state), vec) or not plain._is_packed(o.rings.x, x_vec):
        x_vec, index32 = 1, False
    wanted = o.rings.window if x_vec > 1 else MAX_WINDOW
    return SelectiveStateUpdateReplay(
        **arrays,
        rows=2 if tensor else _rows(s, vec),
        tensor=tensor,
        window=next(window for window in WINDOWS if window >= wanted),
        x_vec=x_vec,
        masked=masked,
        many=s.x.shape[1] != 1 or s.cu_seqlens is not None,
        stochastic=s.stochastic,
        index32=index32,
    )


def _rows(s: plain.Operands, vec: int) -> int:
    """Rows per group of lanes: as many as its registers hold, fewer where a head has less."""
    headdim, d_state = s.state.shape[2:]
    fits, state_t = capacity(d_state), plain._dtype(s.state)
    groups = WARP_SIZE // lanes(fits, vec, state_t)
    rows = most_rows(fits, vec, state_t)
    while rows > 1 and rows // 2 * groups >= headdim:
        rows //= 2
    return rows


def work(sequences: int, nheads: int, group_heads: int, tiles: int) -> tuple[int, int]:
    """The heads of a warp, and the tiles of each of them: as much as leaves enough warps."""
    heads, own = 1, tiles
    while own > 1 and sequences * nheads * ceil_div(tiles, own) < MANY_WARPS:
        own = ceil_div(own, 2)
    if own == tiles:
        while group_heads % (2 * heads) == 0 and sequences * nheads // (2 * heads) >= MANY_WAVES:
            heads *= 2
    return heads, own


def plan_fold(o: FoldOperands) -> Plan:
    """The launch that puts live tokens in states."""
    count, (_, nheads, headdim, d_state) = o.state_batch_indices.shape[0], o.state.shape
    if not count * nheads * headdim:
        return Plan()
    x, B = o.rings.x, o.rings.B
    like = x._replace(shape=(count, 1, nheads, headdim), strides=(0, 0, 0, 0), offset=0)
    # No token's arrays are read.
    token = plain.Operands(
        state=o.state,
        x=like,
        dt=like,
        A=o.A,
        B=B._replace(shape=(count, 1, B.shape[1], d_state), strides=(0, 0, 0, 1), offset=0),
        C=B._replace(shape=(count, 1, B.shape[1], d_state), strides=(0, 0, 0, 1), offset=0),
        D=None,
        z=None,
        dt_bias=None,
        state_batch_indices=o.state_batch_indices,
        dst_state_batch_indices=o.dst_state_batch_indices,
        **dict.fromkeys(
            (
                *("intermediate_states_buffer", "intermediate_state_indices", "num_accepted_tokens", "cu_seqlens"),
                *("state_column", "has_initial_state", "parents", "rand_seed", "intermediate_state_scales"),
            )
        ),
        state_scale=o.state_scale,
        out=like,
        dt_softplus=False,
        disable_state_update=False,
        pad_slot_id=o.pad_slot_id,
        keeps_padding=True,
        has_seed=False,
        philox_rounds=0,
    )
    step = choose(Operands(token, o.rings, None, True))
    assert isinstance(step, SelectiveStateUpdateFold)
    kernel = SelectiveStateUpdateFold(**{**vars(step), "token": False})
    config, division = kernel.launch_config(count, nheads, headdim)
    numbers = _numbers(token, o.rings, None, o.live)
    return Plan((Launch.packed(kernel, config, **{**numbers, **division}),))


def plan_commit(o: CommitOperands) -> Plan:
    """The launch that moves cursors."""
    if not o.batch:
        return Plan()
    kernel = SelectiveStateUpdateCommit(o.is_reset)
    numbers = {
        "cursors_stride": o.cursors.strides[0],
        "slots": o.cursors.shape[0],
        "pad_slot_id": o.pad_slot_id,
        "batch": o.batch,
        "ring_rows": o.ring_rows,
        "window": o.window,
        **index_numbers(accepted=o.accepted, state_batch_indices=o.state_batch_indices),
    }
    return Plan((Launch.packed(kernel, kernel.launch_config(o.batch), **numbers),))


def _numbers(step: plain.Operands, rings: Rings, force_flush: Layout | None, count: Layout | None) -> dict[str, object]:
    """The arguments behind the pointers, but for what divides the work."""
    numbers = plain._numbers(step)
    numbers.pop("intermediate_state_scales_stride", None)
    return {
        "state_scale_stride": (0, 0, 0),
        "warp_heads": 1,
        "warp_tiles": 1,
        **numbers,
        "x_ring_stride": rings.x.strides[0],
        "B_ring_stride": rings.B.strides[0],
        "dt_ring_stride": rings.dt.strides[0],
        "cursors_stride": rings.cursors.strides[0],
        "force_flush_stride": strides_or_zeros(force_flush, 1)[0],
        "ring_rows": rings.x.shape[2],
        "window": rings.window,
        **index_numbers(count=count),
    }
