"""Which kernel replay runs, and how: a pure function of layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from cuconv.runtime.dtypes import BFLOAT16, CODES, FLOAT8_E4M3FN, FLOAT16, FLOAT32, INT8, INT16
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import MAX_VECTOR_BYTES, WARP_SIZE, LaunchConfig, ceil_div
from cuconv.runtime.layout import Layout, index_numbers, strides_or_zeros
from cuconv.runtime.machine import multiprocessors
from cuconv.runtime.plan import Launch, Plan
from cuconv.selective_state_update import plan as plain
from cuconv.selective_state_update.borders import least_bytes
from cuconv.selective_state_update.kernels import FEW_ROWS, lanes
from cuconv.selective_state_update.kernels_replay import (
    MAX_WINDOW,
    WINDOWS,
    SelectiveStateUpdateCommit,
    SelectiveStateUpdateFold,
    SelectiveStateUpdateFoldSingle,
    SelectiveStateUpdateQuantisedFold,
    SelectiveStateUpdateQuantisedFoldSingle,
    SelectiveStateUpdateReplay,
    SelectiveStateUpdateReplayFew,
    capacity,
    has_tensor_cores,
    is_whole,
    most_folded,
    most_rows,
)

WALKED: dict[int, dict[int, float]] = {64: {2: 5.5, 4: 5}, 128: {2: 7, 4: 5}, 256: {2: 8, 4: 4}}
"""MiB of codes from which warps that fold single tokens into states at once walk over heads, by d_state and the bytes
of an element of x. On an H200 4, 5 and 6 MiB of int8 take 5.4, 6.1 and 7.0 us without walks over heads and 5.8, 7.0 and
7.0 with them, with x of float32 6.0, 7.5 and 8.1, and 6.4, 7.5 and 7.5. With a d_state of 64 5 and 5.5 MiB take 6.3 and
8.2, and 6.6 and 6.8."""

FOLD_RESIDENT = 5
"""Blocks of SelectiveStateUpdateFold with codes per multiprocessor, beyond which groups of lanes have twice as many
rows. On an H200 with Mamba-2 of 128 heads and int8, 5 MiB take 6.5 us with the usual rows and 7.0 with twice as many, 6
MiB 8.2 and 7.3."""

FEW_STATES = 8 * 2**20
"""Bytes of float32 states, with x of float16 or float32, below which a group of lanes folds a token into at most two
rows. One sequence of Mamba-2 with 128 heads and x of float16 takes 4.01 us with two rows, 4.20 with four and 4.11
without rings; two sequences 6.6, 6.1 and 6.0."""

MANY_WARPS = 12288
"""Warps below which each has two tiles of rows of a head instead of more, because the others would wait for warps that
flush a whole head. On an H200, with sequences of Mamba-2 that flush in turn, 24 of float32 take 43 us with two tiles of
four, and 53 with all, 64 120 and 120, 128 223 and 209; 16 of float16 26 us and 39, 64 64 and 75."""

FEW_WARPS = 768
"""Warps below which each has a single tile. 2 sequences of float32 take 7.9 us with one tile and 8.7 with two, 3
sequences 11.3 and 9.2."""

MANY_WAVES = 32768
"""Warps from which each has two heads. 256 sequences of float32 take 320 us with one and 338 with two, of float16 207
and 223, of int8 257 and 251."""


FEW_RESIDENT = {False: 3, True: 2}
"""Blocks of SelectiveStateUpdateReplayFew per multiprocessor, by whether there are several tokens."""

FEW_HEADS = {
    FLOAT32: {1: 2.0, 2: 0.5},
    BFLOAT16: {1: 0.0, 2: 0.5, 4: 0.5},
    FLOAT16: {1: 0.0, 2: 0.5, 4: 0.5},
    INT16: {1: 2.0, 2: 0.5, 4: 0.5},
    INT8: {1: 4.0, 2: 2.0, 4: 0.5, 8: 0.5},
    FLOAT8_E4M3FN: {1: 4.0, 2: 2.0, 4: 0.5, 8: 0.5},
}
"""By the dtype of states, the heads that a warp of SelectiveStateUpdateReplayFew may have, and for each the further
blocks that there must be room for, as a multiple of the blocks that have one warp for each head that flushes. The
fewest heads are chosen for which all blocks run at once. On an H200 with Mamba-2 of 128 heads, 8 sequences of float32
take 13.8 us, 14.9 in a step in which one flushes, with one head and 128 further blocks, 13.4 and 16.5 without these; 13
of int8 10.0 and 10.6 with two heads, 10.5 and 11.6 with four, and 11.8 with one where none flushes; 20 12.5 with two
and 12.7 with four, or 14.5 and 13.3 when two flush. Of bfloat16 there is no gain: 8 take 9.5 and 10.5, and 9.3 and 10.7
without further blocks."""

FEW_WAVES = {
    FLOAT32: (2, 0.0, 1.0),
    BFLOAT16: (2, 0.0, 1.0),
    FLOAT16: (2, 0.0, 1.0),
    INT16: (2, 0.0, 1.0),
    INT8: (8, 0.35, 0.125),
    FLOAT8_E4M3FN: (8, 0.35, 0.125),
}
"""By the dtype of states, where not all blocks run at once: the heads of a warp, and the further blocks as a fraction
of the blocks that run at once, plus a multiple of the blocks with one warp for each head that flushes. 96 sequences of
int8 take 43.6 us with eight heads and 96 further blocks, 38.8 with 140, 38.3 with 168 and 38.9 with 256; 256 take 100.9
with 140, 94.2 with 200 and 101.8 with 400; 64 of bfloat16 43.1 with two heads, 47.2 with four and 45.0 with eight."""

FEW_MANY = {4: {1: 0.0, 2: 0.5}, 2: {1: 0.0, 2: 0.5, 4: 0.5}, 1: {1: 0.0, 2: 0.5, 4: 0.5}}
"""FEW_HEADS for several tokens, by the bytes of an element of states."""

FEW_MANY_WAVES = {4: (2, 0.5, 0.0), 2: (4, 0.0, 0.5), 1: (4, 0.0, 0.5)}
"""FEW_WAVES for several tokens. 4 tokens of 32 sequences of float32 take 62.5 us with two heads, 65.2 with four, of 64
110.9 and 122.5."""

FEW_PARTS = 4
"""Most parts in which a head that flushes is divided, each for a warp: 16 sequences of int8 take 11.0 us with parts and
12.6 without. Where not all blocks run at once the parts cost more than they save: 96 take 53 us with parts and 38
without."""

FEW_WAVES_DIVIDED = 2.5
"""The multiple of the blocks that run at once up to which heads of float32 states are divided: 48 sequences take 61.6
us divided and 64.9 otherwise, 64 77.6 and 76.0."""

FEW_WAVES_LEFT = 3.0
"""The multiple of the blocks that run at once up to which a warp with two heads of codes leaves both to others when
they flush: 64 sequences of int16 take 45.9 us with both left and 48.5 otherwise, 256 174 and 169. With floats a warp
flushes its first head, because its states are already being loaded: 64 of bfloat16 take 42.6 us in this way and 43.7
otherwise."""

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
    """(slots, 4); with `live` (slots,): the rows of the oldest tokens."""
    window: int
    """Most live tokens of a slot."""
    live: Layout | None = None
    """(slots,), with the strides of `cursors`: the numbers of live tokens, where `cursors` lacks them."""


class Operands(NamedTuple):
    """The layouts of one valid step; None stands for an argument that is absent."""

    step: plain.Operands
    rings: Rings
    force_flush: Layout | None
    """(sequences,)."""
    fold: bool
    """Whether tokens are folded into the states at once."""
    empty: bool = False
    """Whether no sequence has live tokens, and this step leaves none."""


class FoldOperands(NamedTuple):
    """The layouts of one valid call that folds live tokens into states."""

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
    """(sequences,): how many live tokens are folded into states."""
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
    if o.empty:
        return plain.plan(o.step)
    kernel = choose(o)
    _, nheads, headdim, _ = o.step.state.shape
    sequences = max(1, o.step.sequences)
    group_heads = nheads // o.step.B.shape[2]
    if isinstance(kernel, SelectiveStateUpdateReplay):
        shares = work(sequences, nheads, group_heads, ceil_div(headdim, kernel.tile))
        config, division = kernel.launch_config(sequences, nheads, headdim, *shares)
    elif isinstance(kernel, SelectiveStateUpdateReplayFew):
        tiles = min(sequences, kernel.RANKED) * nheads * (headdim // kernel.ROWS)
        choices = FEW_MANY[o.step.state.itemsize] if kernel.many else FEW_HEADS[kernel.state_t]
        last = FEW_MANY_WAVES[o.step.state.itemsize] if kernel.many else FEW_WAVES[kernel.state_t]
        resident = FEW_RESIDENT[kernel.many] * multiprocessors(o.step.x.device)
        # At least one sequence is counted as flushing.
        flushed = max(o.step.x.shape[1] / o.rings.window, 1 / sequences)
        heads, spare = few_work(tiles, group_heads, choices, last, flushed, resident)
        waves = (ceil_div(tiles, heads * kernel.warps) + spare) / resident
        shares = few_flushed(kernel, heads, spare, waves)
        config, division = kernel.launch_config(sequences, nheads, headdim, heads, spare, *shares)
    elif isinstance(kernel, SelectiveStateUpdateQuantisedFold):
        config, division = kernel.launch_config(sequences, nheads, headdim, plain._heads(o.step))
    else:
        config, division = kernel.launch_config(sequences, nheads, headdim)
    numbers = _numbers(o.step, o.rings, o.force_flush, None)
    return _launch(kernel, config, {**numbers, **division})


def folds_at_once(step: plain.Operands, rings: Rings) -> bool:
    """Whether the tokens of a call are folded into the states at once, if the caller leaves that open."""
    if step.x.shape[1] != 1 or step.cu_seqlens is not None:
        return False
    kernel = choose(Operands(step, rings, None, False))
    # Tokens are not folded at once, so this is one of the two kernels that replay.
    assert isinstance(kernel, (SelectiveStateUpdateReplay, SelectiveStateUpdateReplayFew))
    group_heads = step.state.shape[1] // step.B.shape[2]
    least = least_bytes(kernel, plain._dtype(step.state), step.x.itemsize, rings.window, group_heads)
    return plain._state_bytes(step) < least


def choose(
    o: Operands,
) -> (
    SelectiveStateUpdateReplay
    | SelectiveStateUpdateReplayFew
    | SelectiveStateUpdateFold
    | SelectiveStateUpdateFoldSingle
    | SelectiveStateUpdateQuantisedFold
    | SelectiveStateUpdateQuantisedFoldSingle
):
    """The kernel that computes a step."""
    s = o.step
    d_state = s.state.shape[3]
    fits, vec, index32 = capacity(d_state), _vector(o), _fits_index32(o)
    if o.fold and index32 and s.has_initial_state is None and _has_strides32(o):
        if plain._walks_over_heads(s, vec, WALKED):
            return SelectiveStateUpdateQuantisedFold(d_state, *map(plain._dtype, (s.x, s.state, s.A, s.B)))
        arrays = _arrays(o)
        if SelectiveStateUpdateQuantisedFoldSingle.takes(d_state, arrays["state_t"], arrays["b_t"], vec):
            rows = plain._rows(s, vec, True, False)
            codes = plain._with_best_rows(s, SelectiveStateUpdateQuantisedFoldSingle(**arrays, rows=rows))
            if codes.rows <= FEW_ROWS:
                return codes
        if not s.quantised:
            found = _rows_to_fold(o)
            if found["state_t"] is FLOAT32 and found["input_t"] is not BFLOAT16 and plain._state_bytes(s) < FEW_STATES:
                found["rows"] = min(found["rows"], 2)
            kernel = SelectiveStateUpdateFoldSingle(**found, crowded=False)
            if kernel.may_be_crowded:
                config, _ = kernel.launch_config(max(1, s.sequences), *s.state.shape[1:3])
                usual, most = (blocks * multiprocessors(s.x.device) for blocks in kernel.BLOCKS)
                kernel = replace(kernel, crowded=usual < config.grid[0] <= most)
            if s.state.shape[0] and (kernel.masked or plain._has_whole_rows(s, kernel.tile)):
                return kernel
    if o.fold:
        return SelectiveStateUpdateFold(**_rows_to_fold(o), token=True, stochastic=s.stochastic, index32=index32)
    arrays = _arrays(o)
    masked = d_state != fits
    many = s.x.shape[1] != 1 or s.cu_seqlens is not None
    if _is_few(o, vec, index32):
        return SelectiveStateUpdateReplayFew(d_state, arrays["state_t"], arrays["a_t"], many, o.rings.live is not None)
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
        by_columns=o.rings.live is not None,
    )


def _vector(o: Operands) -> int:
    """Elements per access along d_state: the most that every array allows."""
    vec = plain._vector(o.step)
    # Rings without slots have no strides.
    while vec > 1 and not plain._is_packed(o.rings.B, vec):
        vec //= 2
    return vec


def _fits_index32(o: Operands) -> bool:
    """Whether all offsets fit in int32, those of states and rings from the beginning of their slot."""
    of_slot = (math.prod(ring.shape[1:]) for ring in (o.rings.x, o.rings.B, o.rings.dt))
    return not o.step.stochastic and plain._fits_index32(o.step) and max(of_slot) < 2**31


def _arrays(o: Operands) -> dict[str, Any]:
    """The fields for the arrays of a step, of kernels that divide rows among groups of lanes."""
    s = o.step
    return {
        "d_state": capacity(s.state.shape[3]),
        "input_t": plain._dtype(s.x),
        "state_t": plain._dtype(s.state),
        "a_t": plain._dtype(s.A),
        "b_t": plain._dtype(s.B),
        "vec": _vector(o),
    }


def _rows_to_fold(o: Operands, token: bool = True) -> dict[str, Any]:
    """The fields that say how kernels which fold live tokens into states at once divide rows, with the next token or
    without."""
    s, arrays = o.step, _arrays(o)
    fits, vec, state_t = arrays["d_state"], arrays["vec"], arrays["state_t"]
    masked, rows = s.state.shape[3] != fits, plain._rows(s, vec, True, False)
    few = min(rows, most_rows(fits, vec, state_t))
    if token and arrays["input_t"] is BFLOAT16 and state_t.itemsize == 2 and not s.quantised:
        # Eight rows take 150 registers per lane: 192 MiB take 119 us with eight, 103 with four and 103 without rings.
        few = min(few, FEW_ROWS)
    if token and s.quantised and is_whole(state_t, vec) and arrays["b_t"].itemsize == 2 and fits <= 256 and not masked:
        kernel = SelectiveStateUpdateFold(**arrays, rows=few, token=True, masked=False, stochastic=False, index32=True)
        config, _ = kernel.launch_config(max(1, s.sequences), *s.state.shape[1:3])
        if config.grid[0] > FOLD_RESIDENT * multiprocessors(s.x.device):
            few = min(rows, most_folded(fits, vec, state_t))
    return {**arrays, "rows": few, "masked": masked}


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
    """Rows per group of lanes: as many as its registers hold, fewer where a head has fewer."""
    headdim, d_state = s.state.shape[2:]
    fits, state_t = capacity(d_state), plain._dtype(s.state)
    groups = WARP_SIZE // lanes(fits, vec, state_t)
    rows = most_rows(fits, vec, state_t)
    while rows > 1 and rows // 2 * groups >= headdim:
        rows //= 2
    return rows


def work(sequences: int, nheads: int, group_heads: int, tiles: int) -> tuple[int, int]:
    """The heads of a warp, and the tiles of each of them: the most that leave enough warps."""
    own = tiles
    while own > 2 and sequences * nheads * ceil_div(tiles, own) < MANY_WARPS:
        own = ceil_div(own, 2)
    if sequences * nheads * ceil_div(tiles, own) < FEW_WARPS:
        own = 1
    has_two = own == tiles and group_heads % 2 == 0 and sequences * nheads >= 2 * MANY_WAVES
    return 1 + has_two, own


def few_work(
    tiles: int,
    group_heads: int,
    choices: Mapping[int, float],
    last: tuple[int, float, float],
    flushed: float,
    resident: int,
) -> tuple[int, int]:
    """The heads of a warp of SelectiveStateUpdateReplayFew, and the blocks of further warps for sequences that flush.

    Args:
        tiles: 64 rows of a head each, of all sequences that share blocks.
        group_heads: heads of a group.
        choices: heads that a warp may have, in ascending order, and the further blocks that there must be room for, as
            multiples of the blocks with one warp for each head that flushes.
        last: the heads of a warp where not all blocks run at once, and its further blocks: as a fraction of the blocks
            that run at once, and as a multiple of the blocks with one warp for each head that flushes.
        flushed: the fraction of sequences that flush in a step.
        resident: blocks that run at once.
    """
    warps = SelectiveStateUpdateReplayFew.warps
    of_flushing = ceil_div(tiles, warps) * flushed
    for heads, least in choices.items():
        left = resident - ceil_div(tiles, heads * warps)
        if group_heads % heads == 0 and left >= round(of_flushing * least):
            # Warps beyond one for each part of a head that flushes would have no work.
            return heads, min(left, round(of_flushing * FEW_PARTS)) if least else 0
    heads, of_resident, of_flushed = last
    heads = math.gcd(heads, group_heads)
    return heads, round(resident * of_resident + of_flushing * of_flushed) * (heads > 1)


def few_flushed(kernel: SelectiveStateUpdateReplayFew, heads: int, spare: int, waves: float) -> tuple[int, int]:
    """The number of its own heads that a warp flushes itself, and the most parts in which other heads are divided.

    Args:
        kernel: the kernel that runs.
        heads: the heads of a warp.
        spare: the blocks of further warps.
        waves: all blocks as a multiple of those that run at once.
    """
    is_code = kernel.state_t in CODES and not kernel.many
    kept = not spare or (heads == 2 and not (is_code and waves <= FEW_WAVES_LEFT))
    limit = 1.0 if is_code else FEW_WAVES_DIVIDED if kernel.state_t is FLOAT32 and not kernel.many else 0.0
    return int(kept), FEW_PARTS if spare and waves <= limit else 1


def plan_fold(o: FoldOperands) -> Plan:
    """The launch that folds live tokens into states."""
    count, (_, nheads, headdim, d_state) = o.state_batch_indices.shape[0], o.state.shape
    if not count * nheads * headdim:
        return Plan()
    x, B = o.rings.x, o.rings.B
    like = x._replace(shape=(count, 1, nheads, headdim), strides=(0, 0, 0, 0), offset=0)
    # The arrays of new tokens are not read.
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
    step = Operands(token, o.rings, None, True)
    rows = _rows_to_fold(step, token=False)
    kernel = SelectiveStateUpdateFold(**rows, token=False, stochastic=False, index32=_fits_index32(step))
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
    """One launch, with the numbers that the kernel takes."""
    fields = kernel.params.numbers.names or ()
    return Plan((Launch.packed(kernel, config, **{name: numbers[name] for name in fields}),))


def _numbers(step: plain.Operands, rings: Rings, force_flush: Layout | None, count: Layout | None) -> dict[str, object]:
    """The arguments behind the pointers, but for what divides the work."""
    numbers = plain._numbers(step)
    return {
        "state_scale_stride": (0, 0, 0),
        "scale_stride": strides_or_zeros(step.state_scale, 3)[:2],
        "warp_heads": 1,
        "kept_heads": 0,
        "spare_warps": 0,
        "most_parts": 1,
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
