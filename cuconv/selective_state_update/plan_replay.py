"""Which kernel replay runs, and how: a pure function of layouts."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from cuconv.runtime.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT16
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import MAX_VECTOR_BYTES, WARP_SIZE, LaunchConfig, ceil_div
from cuconv.runtime.layout import Layout, index_numbers, strides_or_zeros
from cuconv.runtime.plan import Launch, Plan
from cuconv.selective_state_update import plan as plain
from cuconv.selective_state_update.kernels import lanes
from cuconv.selective_state_update.kernels_replay import (
    MAX_WINDOW,
    WINDOWS,
    SelectiveStateUpdateCommit,
    SelectiveStateUpdateFold,
    SelectiveStateUpdateFoldSingle,
    SelectiveStateUpdateReplay,
    SelectiveStateUpdateReplayFew,
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

SMALL_HEADS = {FLOAT32: 32 * 2**20, BFLOAT16: 48 * 2**20, FLOAT16: 48 * 2**20, INT16: 48 * 2**20, INT8: 32 * 2**20}
"""The same by the dtype of states where SelectiveStateUpdateReplayFew fits, SMALL for others. 48 MiB of bfloat16 take
23 us, and 27 without rings, 32 MiB 20 and 19; 64 MiB of int8 41 and 44, 32 MiB 24.7 and 24.8; 64 MiB of float32 31 and
37; 64 MiB of float8_e4m3fn 46, and 43 without rings."""

MANY_WARPS = 2048
"""Warps below which each has fewer tiles of rows, so that more warps share the work."""

MANY_WAVES = 8192
"""Warps below which each has one head: those that flush take twice as long as others, which go on meanwhile."""


FEW_WARPS = {False: 4096, True: 2048}
"""Warps of SelectiveStateUpdateReplayFew, by whether there are several tokens, that are left when each has more heads,
and from which sequences that flush come first: more than run at once, so that what a warp does before its first head is
hidden. On an H200 with Mamba-2 of 128 heads, int8 and sequences that flush in turn, 32, 64 and 256 sequences take 22.4,
41 and 133 us with one head a warp, 23.4, 30.5 and 114 with two, and 44 and 103 with four; 64 take 41.6 with two where
those that flush come last."""

FEW_HEADS = 4
"""Heads of such a warp at most: one that flushes takes as long as several others."""

FEW_LEAST = 256
"""Warps of SelectiveStateUpdateReplayFew below which SelectiveStateUpdateReplay divides heads further. A sequence of
128 heads takes 5.1 us instead of 7.1 with float32 states, 5.5 instead of 5.7 with bfloat16; four take 11.0 instead of
9.3."""


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
    group_heads = nheads // o.step.B.shape[2]
    if isinstance(kernel, SelectiveStateUpdateReplay):
        shares = work(sequences, nheads, group_heads, ceil_div(headdim, kernel.tile))
        config, division = kernel.launch_config(sequences, nheads, headdim, *shares)
    elif isinstance(kernel, SelectiveStateUpdateReplayFew):
        shares = few_work(sequences, nheads * (headdim // kernel.ROWS), group_heads, kernel.many)
        config, division = kernel.launch_config(sequences, nheads, headdim, *shares)
    else:
        config, division = kernel.launch_config(sequences, nheads, headdim)
    numbers = _numbers(o.step, o.rings, o.force_flush, None)
    return _launch(kernel, config, {**numbers, **division})


def folds_at_once(step: plain.Operands, rings: Rings) -> bool:
    """Whether the tokens of a call are put in the states at once, if the caller does not say so."""
    if step.x.shape[1] != 1 or step.cu_seqlens is not None:
        return False
    otherwise = choose(Operands(step, rings, None, False))
    small = SMALL[step.state.itemsize]
    if isinstance(otherwise, SelectiveStateUpdateReplayFew):
        small = SMALL_HEADS.get(plain._dtype(step.state), small)
    return plain._state_bytes(step) < small


def choose(
    o: Operands,
) -> (
    SelectiveStateUpdateReplay
    | SelectiveStateUpdateReplayFew
    | SelectiveStateUpdateFold
    | SelectiveStateUpdateFoldSingle
):
    """The kernel that computes a step."""
    s = o.step
    d_state = s.state.shape[3]
    fits, vec = capacity(d_state), plain._vector(s)
    while not plain._is_packed(o.rings.B, vec):
        vec //= 2
    of_slot = (prod(ring.shape[1:]) for ring in (o.rings.x, o.rings.B, o.rings.dt))
    index32 = not s.stochastic and plain._fits_index32(s) and max(of_slot) < 2**31
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
        if index32 and s.has_initial_state is None and not s.quantised and _has_strides32(o):
            return SelectiveStateUpdateFoldSingle(**arrays, rows=rows, masked=masked)
        return SelectiveStateUpdateFold(
            **arrays, rows=rows, token=True, masked=masked, stochastic=s.stochastic, index32=index32
        )
    many = s.x.shape[1] != 1 or s.cu_seqlens is not None
    if _is_few(o, vec, index32):
        return SelectiveStateUpdateReplayFew(d_state, arrays["state_t"], arrays["a_t"], many)
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
        many=many,
        stochastic=s.stochastic,
        index32=index32,
    )


def _is_few(o: Operands, vec: int, index32: bool) -> bool:
    """Whether the kernel for few tokens and contiguous rows fits."""
    s, kernel = o.step, SelectiveStateUpdateReplayFew
    _, _, headdim, d_state = s.state.shape
    tokens = s.x.shape[1]
    is_whole_head = d_state in kernel.D_STATES and headdim % kernel.ROWS == 0 and s.state.strides[2] == d_state
    types = {plain._dtype(layout) for layout in (s.x, s.B, s.C, s.z) if layout is not None}
    has_others = s.cu_seqlens is not None or s.has_initial_state is not None
    is_small = tokens == 1 and s.sequences * s.state.shape[1] * (headdim // kernel.ROWS) < FEW_LEAST
    has_rows_of_scales = s.state_scale is None or s.state_scale.strides[2] == 1
    is_short = tokens <= kernel.TOKENS and o.rings.window <= kernel.WINDOW
    if (
        not (is_short and index32 and _has_strides32(o) and is_whole_head and has_rows_of_scales)
        or has_others
        or is_small
        or types != {BFLOAT16}
    ):
        return False
    # A lane has two rows at once.
    own = (layout for layout in (s.x, s.z, s.out) if layout is not None)
    matrices = plain._is_packed(s.B, 8) and plain._is_packed(s.C, 8) and plain._is_packed(o.rings.B, 8)
    is_wide = is_whole(plain._dtype(s.state), vec) and plain._is_packed(o.rings.x, 8)
    return matrices and is_wide and all(plain._is_packed(layout, 2) for layout in own)


def _has_strides32(o: Operands) -> bool:
    """Whether strides and the numbers of slots are integers of 32 bits."""
    layouts = (*o.rings[:4], o.force_flush, o.step.state_scale)
    strides = (stride for layout in layouts if layout is not None for stride in layout.strides)
    return plain._has_strides32(o.step) and all(-(2**31) <= stride < 2**31 for stride in strides)


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


def few_work(sequences: int, tiles: int, group_heads: int, many: bool) -> tuple[int, bool]:
    """The heads of a warp of SelectiveStateUpdateReplayFew, `tiles` of 64 rows a sequence, and whether sequences that
    flush come first.
    """
    heads, warps = 1, sequences * tiles
    while heads < FEW_HEADS and group_heads % (2 * heads) == 0 and warps // (2 * heads) >= FEW_WARPS[many]:
        heads *= 2
    return heads, warps >= FEW_WARPS[many] and sequences <= SelectiveStateUpdateReplayFew.RANKED


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
    assert isinstance(step, SelectiveStateUpdateFold | SelectiveStateUpdateFoldSingle)
    kernel = SelectiveStateUpdateFold(**{"stochastic": False, "index32": True, **vars(step), "token": False})
    config, division = kernel.launch_config(count, nheads, headdim)
    return _launch(kernel, config, {**_numbers(token, o.rings, None, o.live), **division})


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


def _launch(kernel: Kernel, config: LaunchConfig, numbers: dict[str, object]) -> Plan:
    """One launch, with those of these numbers that the kernel takes."""
    fields = kernel.params.numbers.names or ()
    return Plan((Launch.packed(kernel, config, **{name: numbers[name] for name in fields}),))


def _numbers(step: plain.Operands, rings: Rings, force_flush: Layout | None, count: Layout | None) -> dict[str, object]:
    """The arguments behind the pointers, but for what divides the work."""
    numbers = plain._numbers(step)
    return {
        "state_scale_stride": (0, 0, 0),
        "scale_stride": strides_or_zeros(step.state_scale, 3)[:2],
        "warp_heads": 1,
        "flushes_first": 0,
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
