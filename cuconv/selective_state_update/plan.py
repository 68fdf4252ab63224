"""Which kernel a selective state update runs, and how: a pure function of layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from cuconv.runtime.dtypes import BFLOAT16, CODES, FLOAT16, FLOAT32, INT16, INT64, DType
from cuconv.runtime.launch import MAX_VECTOR_BYTES, WARP_SIZE, fast_div, widest_vector
from cuconv.runtime.layout import Layout, index_numbers, strides_or_zeros
from cuconv.runtime.machine import multiprocessors
from cuconv.runtime.plan import Launch, Plan
from cuconv.selective_state_update.kernels import (
    BYTES,
    D_STATES,
    DECAYS_D_STATE,
    DECAYS_SEQUENCES,
    FEW_D_STATES,
    FEW_LANES,
    FEW_ROWS,
    HALVED_D_STATE,
    HEADS_D_STATES,
    MAX_GRID_Y,
    ROWS,
    STAYING_ROWS,
    SelectiveStateUpdate,
    SelectiveStateUpdateDecays,
    SelectiveStateUpdateFew,
    SelectiveStateUpdateQuantised,
    SelectiveStateUpdateQuantisedHeads,
    SelectiveStateUpdateQuantisedSingle,
    SelectiveStateUpdateSingle,
    capacity,
    heads_tile,
    lanes,
    most_rows,
)
from cuconv.selective_state_update.kernels_replay import SelectiveStateUpdateQuantisedFoldSingle

LARGE = 192 * 2**20
"""Bytes of states that are a few times an L2 cache. Measured on an H200 for Mamba-2 with 128 heads: 128 MiB reach 0.95
of copy with 4 rows and stores that do not stay in the cache, 0.92 with 16 rows or ordinary stores; 512 MiB 0.93 with 16
rows and ordinary stores, 0.90 with 4 rows or stores that do not stay in the cache."""

SEVERAL_LARGE = 32 * 2**20
"""LARGE for several tokens with a state stored after each: 4 tokens of 8 sequences of float32, 32 MiB, take 57.7 us
with four rows and 55.1 with eight, of 4 sequences 30.0 both, of one 9.2 and 9.4. From that size on states of 16 bits
run `crowded`: 32 and 128 sequences of bfloat16, 64 and 256 MiB, take 109 and 420 us crowded and 118 and 458 otherwise,
8 31.7 and 31.9, 4 17.8 and 17.3, one 7.3 and 7.0."""

CROWDED = 256
"""The d_state with which states of 16 bits run `crowded` at any size: 1, 4, 8 and 32 sequences of bfloat16 take 9.6,
30.1, 55.9 and 210 us crowded and 11.8, 34.0, 63.2 and 237 otherwise."""

WHOLE = 96 * 2**20
"""Bytes of states from which `whole` makes no difference. With fewer bytes it takes less time: on an H200 1, 2, 4, 8
and 16 sequences of bfloat16 take 6, 2, 12, 2 and 0.4 % less (Mamba-2, 128 heads), 64 as long as without."""

PAIRS = range(10 * 2**20, 384 * 2**20)
"""Bytes of float32 states, with x of 16 bits, for which a group of lanes has two rows, and stores do not stay in the
cache. Measured on an H200 for Mamba-2 with 128 heads and x of bfloat16: 12, 32 and 96 MiB take 8.3, 18.3 and 49.9 us
with two rows, 8.4, 18.6 and 52.5 with four; 256 MiB 130.6 with two and 133.8 with 16. 8 MiB take 6.3 us with two rows
and 5.7 with four, 512 MiB in slots 265.2 with two and 264.4 with 16. With x of float32, and where states go to other
slots, two rows take longer at any size."""

PAIRED = (64, 128)
"""The d_state for which a group has these two rows. With 16, 32 sequences take 11.2 us with two rows and 10.2 with
four; with 256, 8 take 35.9 and 35.3."""

WALKED = {64: {2: 5, 4: 5}, 128: {2: 7, 4: 4}, 256: {2: 8, 4: 4}}
"""MiB of codes from which warps walk over heads, by d_state and the bytes of an element of x. Measured on an H200 for
Mamba-2 with 128 heads: with a d_state of 128 5, 6 and 7 MiB of int8 take 6.4, 7.6 and 8.8 us without walks over heads,
and 7.5, 7.7 and 7.9 with them; with x of float32 3, 4 and 5 MiB 5.4, 6.7 and 10.0, and 6.1, 6.4 and 7.9. 16 MiB take
14.4 and 12.5, 64 MiB 43.1 and 39.2, 256 MiB 166 and 142. With 64 4, 5 and 5.5 MiB take 6.0, 6.8 and 8.6, and 5.9, 6.7
and 7.0; of float8_e4m3fn 4 MiB 5.7 and 5.9. With 256 6, 8 and 10 MiB take 7.6, 8.9 and 12.0, and 8.0, 8.4 and 10.3 by
halves of heads; with x of float32 4 and 6 MiB 7.1 and 11.0, and 6.6 and 8.4."""

MAX_HEADS = 1
"""Most heads that a warp walks over. With 2, 64 MiB take 41.4 us instead of 39.2, with 4 42.4."""

HALVED = 16 * 2**20
"""Bytes of codes with a d_state of 256 up to which a warp walks over half a head. On an H200 with Mamba-2 of 128 heads
and int8 8, 10, 12 and 16 MiB take 8.4, 10.1, 10.7 and 12.8 us by halves, and 9.6, 11.7, 12.1 and 13.0 by whole heads;
24 MiB 18.3 and 17.8. With a d_state of 128, where a head has two tiles instead of four, 8 MiB take 9.0 and 8.2."""

FEW_THREADS = 800
"""Threads per multiprocessor up to which SelectiveStateUpdateFew is quicker than SelectiveStateUpdateSingle. On an H200
1, 4 and 8 sequences of 24 heads of 64 x 128 of bfloat16, 186, 745 and 1489 threads, take 2.20, 2.81 and 3.72 us by the
former and 2.28, 2.87 and 3.67 by the latter; with states in the L2 cache 1.78, 2.27 and 3.25, and 2.15, 2.41 and 3.06.
"""

MANY_WARPS = 1024
"""Warps below which a group of lanes takes fewer rows, so that more warps share the work."""

AT_ONCE = {BFLOAT16: 5, FLOAT16: 4}
"""Blocks per multiprocessor of kernels of few arguments with codes, by the dtype of B and C. Groups have as few rows of
codes, at least two, as let all blocks run at once. Measured on an H200 for Mamba-2 with 128 heads: 2, 4 and 5 sequences
of int8 take 3.97, 5.52 and 6.35 us by this rule and 4.20, 6.09 and 7.18 with twice as many rows; 3 take 5.66 with two
and 4.91 with four, 6 8.55 with four and 7.60 with eight; 4 and 6 of int16 6.8 and 10.2 with four, and 7.3 and 9.1 with
eight. Where not all blocks run at once with any rows, int16 has four rows, from FULL_ROWS bytes on only with a d_state
of 256: 16 and 32 sequences take 20.7 and 38.0 us with four and 21.0 and 38.6 with eight, 64 and 128 72.8 and 141.1, and
72.8 and 139.5; with a d_state of 256 16 and 32 37.5 and 70.5, and 40.1 and 74.9."""

FULL_AT_ONCE = 4
"""Blocks per multiprocessor of these kernels with eight rows of int16, or with a d_state of 256."""

FULL_ROWS = 96 * 2**20
"""Bytes of int16 states from which groups have eight rows although not all blocks run at once."""

SHARED_ROWS = 2**15
"""Rows of all sequences from which a thread of SelectiveStateUpdateDecays has two sequences of 16-bit states, which
share its loads of A. On an H200 8192 rows of bfloat16 take 2.65 us with two and 2.61 with one in 2 sequences, 2.92 and
3.00 in 4, 12.4 and 12.9 in 64.
"""


Codes = TypeVar("Codes", SelectiveStateUpdateQuantisedSingle, SelectiveStateUpdateQuantisedFoldSingle)


class Operands(NamedTuple):
    """The layouts of one valid call; None stands for an argument that is absent.

    Arrays without heads have one head here. Packed tokens are the tokens of one batch entry.
    """

    state: Layout
    """(slots, nheads, headdim, d_state)."""
    x: Layout
    """(batch, tokens, nheads, headdim)."""
    dt: Layout
    """The shape of x."""
    A: Layout
    """(nheads, headdim, d_state)."""
    B: Layout
    """(batch, tokens, ngroups, d_state)."""
    C: Layout
    """The shape of B."""
    D: Layout | None
    """(nheads, headdim)."""
    z: Layout | None
    """The shape of x."""
    dt_bias: Layout | None
    """(nheads, headdim)."""
    state_batch_indices: Layout | None
    """(sequences,) or (sequences, columns)."""
    dst_state_batch_indices: Layout | None
    """(sequences,) or (sequences, columns)."""
    intermediate_states_buffer: Layout | None
    """(rows, steps, nheads, headdim, d_state)."""
    intermediate_state_indices: Layout | None
    """(sequences,)."""
    num_accepted_tokens: Layout | None
    """(sequences,)."""
    cu_seqlens: Layout | None
    """(sequences + 1,)."""
    state_column: Layout | None
    """(sequences,)."""
    has_initial_state: Layout | None
    """(sequences,)."""
    parents: Layout | None
    """(sequences, tokens)."""
    rand_seed: Layout | None
    """One element."""
    state_scale: Layout | None
    """(slots, nheads, headdim)."""
    intermediate_state_scales: Layout | None
    """(rows, steps, nheads, headdim)."""
    out: Layout
    """The shape of x."""
    dt_softplus: bool
    disable_state_update: bool
    pad_slot_id: int
    keeps_padding: bool
    """Whether the results of padding stay as they are."""
    has_seed: bool
    """Whether the seed of the random rounding is a number, which comes with the launch."""
    philox_rounds: int

    @property
    def sequences(self) -> int:
        """Sequences, empty ones included."""
        return self.x.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def targets(self) -> Layout | None:
        """The slots of the states after every token; None when only the last one is stored."""
        targets = self.dst_state_batch_indices
        if targets is None and self.num_accepted_tokens is not None:
            targets = self.state_batch_indices
        return targets if targets is not None and len(targets.shape) == 2 else None

    @property
    def quantised(self) -> bool:
        """Whether states are codes, with a scale per row."""
        return self.state.dtype in CODES

    @property
    def stochastic(self) -> bool:
        """Whether states are rounded at random."""
        return self.has_seed or self.rand_seed is not None


def plan(o: Operands) -> Plan:
    """The launch that computes a call."""
    if not o.x.size:
        return Plan()
    kernel = choose(o)
    if isinstance(kernel, SelectiveStateUpdateDecays):
        return Plan((_launch_of_decays(o, kernel),))
    if isinstance(kernel, SelectiveStateUpdateFew):
        return Plan((_launch_of_few(o, kernel),))
    _, nheads, headdim, _ = o.state.shape
    if isinstance(kernel, SelectiveStateUpdateQuantisedHeads):
        config, division = kernel.launch_config(o.sequences, nheads, headdim, _heads(o))
    else:
        # Without any sequence there are still results to be set to zero.
        config, division = kernel.launch_config(max(1, o.sequences), nheads, headdim)
    fields = kernel.params.numbers.names or ()
    numbers = {name: number for name, number in {**_numbers(o), **division}.items() if name in fields}
    return Plan((Launch.packed(kernel, config, **numbers),))


def choose(
    o: Operands,
) -> (
    SelectiveStateUpdate
    | SelectiveStateUpdateDecays
    | SelectiveStateUpdateFew
    | SelectiveStateUpdateQuantised
    | SelectiveStateUpdateQuantisedHeads
    | SelectiveStateUpdateQuantisedSingle
    | SelectiveStateUpdateSingle
):
    """The kernel that computes a call."""
    if _is_plain_step(o) and (plain := _decays(o) or _few(o)) is not None:
        return plain
    d_state = o.state.shape[3]
    vec, shared_decay = _vector(o), _has_shared_decay(o)
    is_one = o.x.shape[1] == 1 and o.cu_seqlens is None
    many = not is_one or o.targets is not None or o.intermediate_states_buffer is not None
    many |= o.stochastic and not o.quantised
    chosen, index32 = _is_chosen(o), _fits_index32(o)
    has_strides32 = index32 and not (many or chosen) and _has_strides32(o)
    if has_strides32 and shared_decay and _walks_over_heads(o, vec, WALKED):
        return SelectiveStateUpdateQuantisedHeads(d_state, *map(_dtype, (o.x, o.state, o.A, o.B)))
    is_single = has_strides32 and not o.quantised
    division: dict[str, Any] = {
        **_axes(o, vec),
        "d_state": capacity(d_state),
        "rows": _rows(o, vec, shared_decay, many, not is_single),
        "shared_decay": shared_decay,
        "masked": d_state != capacity(d_state),
    }
    stream = not many and not chosen and (_state_bytes(o) < LARGE or (is_single and _is_paired(o, shared_decay)))
    if is_single:
        single = SelectiveStateUpdateSingle(**division, stream=stream, whole=False, moved=False)
        is_small = stream and _state_bytes(o) < WHOLE and not o.disable_state_update
        if not is_small or not single.may_be_whole(division) or not _has_whole_rows(o, single.tile):
            return single
        return replace(single, whole=True, moved=o.dst_state_batch_indices is not None)
    if has_strides32 and not o.stochastic and d_state <= max(D_STATES):
        codes = SelectiveStateUpdateQuantisedSingle(**division, stream=stream)
        return _staying(o, _with_best_rows(o, codes)) if shared_decay else codes
    division |= {
        "many": many,
        "chosen": chosen,
        "stream": stream,
        "stochastic": o.stochastic,
        # Without several tokens or a choice, and where codes are rounded at random, offsets have 64 bits.
        "index32": index32 and (many or chosen) and not (o.quantised and o.stochastic),
    }
    if o.quantised:
        return SelectiveStateUpdateQuantised(**division)
    kernel = SelectiveStateUpdate(**division)
    is_crowded = o.state.dtype is FLOAT32 or d_state == CROWDED or _state_bytes(o) >= SEVERAL_LARGE
    return replace(kernel, crowded=is_crowded and kernel.may_be_crowded)


def _with_best_rows(o: Operands, kernel: Codes) -> Codes:
    """The kernel with the best rows per group of lanes for this call, at most its present number."""
    is_whole = kernel.vec * kernel.state_t.itemsize == MAX_VECTOR_BYTES and o.state.shape[3] in HEADS_D_STATES
    if not is_whole or kernel.b_t not in AT_ONCE:
        # Of these it was not measured.
        return kernel
    for rows in ROWS[1:]:
        if rows < kernel.rows and _is_at_once(o, fewer := replace(kernel, rows=rows)):
            return fewer
    is_large = kernel.d_state <= 128 and _state_bytes(o) >= FULL_ROWS
    keeps_rows = kernel.state_t is not INT16 or is_large or _is_at_once(o, kernel)
    return kernel if keeps_rows else replace(kernel, rows=min(kernel.rows, FEW_ROWS))


def _staying(o: Operands, kernel: SelectiveStateUpdateQuantisedSingle) -> SelectiveStateUpdateQuantisedSingle:
    """The kernel with code for states that stay in their slot where that takes less time.

    On an H200 with Mamba-2 of 128 heads 9, 12, 16, 32, 64 and 95 sequences of int16 take 12.2, 15.3, 19.5, 35.8, 70.0
    and 103.7 us with this code, and 12.8, 16.3, 20.6, 37.4, 72.1 and 105.0 without; 8, where all blocks run at once,
    11.1 and 10.8; 96 and more, where states are not streamed, up to 3 % longer.
    """
    fewer = replace(kernel, rows=STAYING_ROWS)
    if not fewer.may_stay or o.dst_state_batch_indices is not None or o.disable_state_update:
        return kernel
    return kernel if _is_at_once(o, kernel) else replace(fewer, in_place=True)


def _is_at_once(o: Operands, kernel: Codes) -> bool:
    """Whether all blocks run at once."""
    is_full = kernel.rows > FEW_ROWS and (kernel.state_t is INT16 or kernel.d_state > 128)
    config, _ = kernel.launch_config(max(1, o.sequences), *o.state.shape[1:3])
    blocks = min(AT_ONCE[kernel.b_t], FULL_AT_ONCE if is_full else max(AT_ONCE.values()))
    return config.grid[0] <= blocks * multiprocessors(o.x.device)


def _has_whole_rows(o: Operands, tile: int) -> bool:
    """Whether heads are whole tiles of contiguous rows, and the pool has a slot that can be read in place of
    padding."""
    slots, _, headdim, d_state = o.state.shape
    return slots > 0 and headdim % tile == 0 and o.state.strides[2:] == (d_state, 1)


def _is_plain_step(o: Operands) -> bool:
    """Whether a call is one token of every sequence, with states of floats that stay in their slots."""
    others = (o.dst_state_batch_indices, o.intermediate_states_buffer, o.num_accepted_tokens, o.cu_seqlens)
    is_one = o.x.shape[1] == 1 and not o.disable_state_update and all(each is None for each in others)
    return is_one and not (o.quantised or o.stochastic or _is_chosen(o)) and o.sequences <= MAX_GRID_Y


def _axes(o: Operands, vec: int) -> dict[str, Any]:
    """The fields of all kernels, where kernels take exactly d_state states."""
    types = {"input_t": o.x, "state_t": o.state, "a_t": o.A, "b_t": o.B}
    return {"d_state": o.state.shape[3], "vec": vec} | {name: _dtype(layout) for name, layout in types.items()}


def _decays(o: Operands) -> SelectiveStateUpdateDecays | None:
    """The kernel of Mamba's rows with separate decays, where it can compute a plain step."""
    _, nheads, headdim, d_state = o.state.shape
    is_whole = o.D is not None and o.z is not None and o.dt_bias is not None and o.dt_softplus
    if not is_whole or nheads != 1 or d_state != DECAYS_D_STATE or _has_shared_decay(o) or _state_bytes(o) >= LARGE:
        return None
    vec, by_row = _vector(o), ((o.x, 3), (o.dt, 3), (o.z, 3), (o.out, 3), (o.D, 1), (o.dt_bias, 1))
    rows_are_packed = headdim == 1 or all(layout is not None and layout.strides[axis] == 1 for layout, axis in by_row)
    states_are_packed = headdim == 1 or o.state.strides[2] == o.A.strides[1] == d_state
    is_wide = vec * o.state.itemsize == MAX_VECTOR_BYTES
    if not (rows_are_packed and states_are_packed and is_wide and _fits_index32(o) and _has_strides32(o)):
        return None
    sequences = _sequences(o)
    block = SelectiveStateUpdateDecays.BLOCKS[sequences > 1]
    indexed = o.state_batch_indices is not None
    return SelectiveStateUpdateDecays(**_axes(o, vec), sequences=sequences, block=block, indexed=indexed)


def _few(o: Operands) -> SelectiveStateUpdateFew | None:
    """The kernel of few sequences with a decay for each head, where it can compute a plain step and is quicker."""
    _, nheads, headdim, d_state = o.state.shape
    is_whole = o.D is not None and o.dt_bias is not None and o.dt_softplus
    if not is_whole or d_state not in FEW_D_STATES or not _has_shared_decay(o):
        return None
    rows, vec = nheads * headdim, _vector(o)
    along_rows = [layout for layout in (o.x, o.z, o.out) if layout is not None]
    is_packed = all(layout.strides[2:] == (headdim, 1) for layout in along_rows)
    is_wide = vec * o.state.itemsize == MAX_VECTOR_BYTES and d_state // vec <= WARP_SIZE
    is_few = o.sequences * rows * d_state // vec <= FEW_THREADS * multiprocessors(o.x.device)
    if not (is_packed and o.state.strides[1:] == (headdim * d_state, d_state, 1) and is_wide and is_few):
        return None
    if not (_fits_index32(o) and _has_strides32(o)):
        return None
    return SelectiveStateUpdateFew(**_axes(o, vec), indexed=o.state_batch_indices is not None)


def _launch_of_few(o: Operands, kernel: SelectiveStateUpdateFew) -> Launch:
    assert o.D is not None and o.dt_bias is not None
    _, nheads, headdim, _ = o.state.shape
    numbers: dict[str, object] = {
        "head_rows": fast_div(headdim),
        "group_heads": fast_div(nheads // o.B.shape[2]),
        "rows": nheads * headdim,
        "slots": o.state.shape[0],
        "pad_slot_id": o.pad_slot_id,
        "keeps_padding": o.keeps_padding,
        "state_stride": o.state.strides[0],
        "dt_stride": (o.dt.strides[0], o.dt.strides[2]),
        "B_stride": (o.B.strides[0], o.B.strides[2]),
        "C_stride": (o.C.strides[0], o.C.strides[2]),
        "A_stride": o.A.strides[0],
        "dt_bias_stride": o.dt_bias.strides[0],
        "D_stride": o.D.strides,
        "state_batch_indices_stride": strides_or_zeros(o.state_batch_indices, 1)[0],
        "state_batch_indices_is_int64": o.state_batch_indices is not None and o.state_batch_indices.dtype is INT64,
    }
    for name in ("x", "z", "out"):
        numbers[f"{name}_stride"] = strides_or_zeros(getattr(o, name), 4)[0]
    for name in ("dt", "dt_bias", "D", "z"):
        layout = getattr(o, name)
        numbers[f"{name}_is_float32"] = layout is not None and layout.dtype is FLOAT32
    return Launch.packed(kernel, kernel.launch_config(o.sequences, nheads * headdim), **numbers)


def _sequences(o: Operands) -> int:
    """Sequences per thread of SelectiveStateUpdateDecays."""
    is_small = o.sequences * o.state.shape[2] < SHARED_ROWS
    return 1 if is_small or o.state.dtype is FLOAT32 else max(DECAYS_SEQUENCES)


def _launch_of_decays(o: Operands, kernel: SelectiveStateUpdateDecays) -> Launch:
    numbers: dict[str, object] = {
        "batch": o.sequences,
        "headdim": o.state.shape[2],
        "slots": o.state.shape[0],
        "pad_slot_id": o.pad_slot_id,
        "keeps_padding": o.keeps_padding,
        "state_batch_indices_stride": strides_or_zeros(o.state_batch_indices, 1)[0],
        "state_batch_indices_is_int64": o.state_batch_indices is not None and o.state_batch_indices.dtype is INT64,
    }
    numbers |= {f"{name}_stride": getattr(o, name).strides[0] for name in ("state", "x", "dt", "B", "C", "z", "out")}
    for name in ("dt", "dt_bias", "D", "z"):
        numbers[f"{name}_is_float32"] = getattr(o, name).dtype is FLOAT32
    return Launch.packed(kernel, kernel.launch_config(o.sequences, o.state.shape[2]), **numbers)


def _is_chosen(o: Operands) -> bool:
    """Whether an argument chooses the state that a sequence or a token follows."""
    return any(layout is not None for layout in (o.state_column, o.has_initial_state, o.parents))


def _rows(o: Operands, vec: int, shared_decay: bool, many: bool, keeps_rows: bool = True) -> int:
    """Rows per group of lanes: many when there is much to do, few where that leaves too few warps."""
    _, nheads, headdim, d_state = o.state.shape
    fits = capacity(d_state)
    is_few = _is_chosen(o) or _state_bytes(o) < (SEVERAL_LARGE if many else LARGE)
    most = FEW_ROWS if is_few and not o.quantised else max(ROWS)
    if not keeps_rows and _is_paired(o, shared_decay):
        most = 2
    if o.state.dtype is INT16 and shared_decay and not many and o.B.itemsize == 4:
        # Eight rows take 211 registers per lane.
        most = FEW_ROWS
    rows = min(most_rows(fits, vec, _dtype(o.state), shared_decay, many), most)
    sharing = lanes(fits, vec, _dtype(o.state))
    warps = o.sequences * nheads * headdim * sharing // WARP_SIZE
    while rows > 1 and (sharing > FEW_LANES or not keeps_rows) and warps // rows < MANY_WARPS:
        rows //= 2
    return rows


def _is_paired(o: Operands, shared_decay: bool) -> bool:
    """Whether a step of one token takes two rows of float32 states at once, streamed."""
    is_wide = o.state.dtype is FLOAT32 and o.x.itemsize == 2 and capacity(o.state.shape[3]) in PAIRED
    return shared_decay and is_wide and o.dst_state_batch_indices is None and _state_bytes(o) in PAIRS


def _walks_over_heads(o: Operands, vec: int, walked: Mapping[int, Mapping[int, float]]) -> bool:
    """Whether rows are laid out for warps that walk over heads, and states take at least the MiB in `walked`."""
    _, _, headdim, d_state = o.state.shape
    if o.state.dtype not in BYTES or o.stochastic or d_state not in HEADS_D_STATES:
        return False
    if _state_bytes(o) < walked[d_state][o.x.itemsize] * 2**20:
        return False
    return vec == MAX_VECTOR_BYTES and o.state.strides[2] == d_state and headdim % heads_tile(d_state) == 0


def _heads(o: Operands) -> int:
    """Heads per warp, all of one group; 0 for half of one."""
    _, nheads, headdim, d_state = o.state.shape
    if d_state == HALVED_D_STATE and headdim // heads_tile(d_state) % 2 == 0 and _state_bytes(o) <= HALVED:
        return 0
    return math.gcd(nheads // o.B.shape[2], MAX_HEADS)


def _state_bytes(o: Operands) -> int:
    _, *inner = o.state.shape
    return o.sequences * math.prod(inner) * o.state.itemsize


def _fits_index32(o: Operands) -> bool:
    """Whether all offsets fit in int32, those of states from the beginning of their slot."""
    slot = o.state._replace(shape=(1, *o.state.shape[1:]))
    others = [o.x, o.dt, o.A, o.B, o.C, o.D, o.z, o.dt_bias, o.out]
    if o.intermediate_states_buffer is not None:
        others.append(o.intermediate_states_buffer._replace(shape=(1, 1, *o.intermediate_states_buffer.shape[2:])))
    spans = [layout.span for layout in (slot, *others) if layout is not None]
    return all(begin >= -(2**31) and end < 2**31 for begin, end in spans)


def _has_strides32(o: Operands) -> bool:
    """Whether strides and the numbers of slots are integers of 32 bits."""
    layouts = (o.state, o.x, o.dt, o.A, o.B, o.C, o.D, o.z, o.dt_bias, o.state_batch_indices, o.dst_state_batch_indices,
               o.state_scale, o.out)  # fmt: skip
    strides = [stride for layout in layouts if layout is not None for stride in layout.strides]
    return all(-(2**31) <= number < 2**31 for number in (*strides, o.state.shape[0], o.pad_slot_id))


def _dtype(layout: Layout) -> DType:
    assert isinstance(layout.dtype, DType)
    return layout.dtype


def _has_shared_decay(o: Operands) -> bool:
    """Whether all rows and elements of a head have the same decay."""
    by_row = [(o.A, 1), (o.A, 2), (o.dt, 3), (o.dt_bias, 1)]
    return not any(stride for layout, axis in by_row if layout is not None for stride in layout.active(axis))


def _vector(o: Operands) -> int:
    """Elements per access along d_state: the most that every array allows."""
    vec = _widest(o.state)
    along_d_state = [o.B, o.C] + [o.A] * (not _has_shared_decay(o))
    if o.intermediate_states_buffer is not None:
        vec = min(vec, _widest(o.intermediate_states_buffer))
    while vec > 1 and not all(_is_packed(layout, vec) for layout in along_d_state):
        vec //= 2
    return vec


def _widest(states: Layout) -> int:
    """Elements per access along d_state that an array of states allows."""
    last = len(states.shape) - 1
    if states.shape[last] > 1 and states.strides[last] != 1:
        return 1
    return widest_vector(states.itemsize, states.shape[last], states.first, *states.active(*range(last)))


def _is_packed(layout: Layout, vec: int) -> bool:
    """Whether `vec` elements along d_state can be read by the widest accesses that divide them."""
    last = len(layout.shape) - 1
    if layout.shape[last] > 1 and layout.strides[last] != 1:
        return False
    access = widest_vector(layout.itemsize, vec, limit=MAX_VECTOR_BYTES)
    return not any(quantity % access for quantity in (layout.first, *layout.active(*range(last))))


def _numbers(o: Operands) -> dict[str, object]:
    """The fields of the argument struct behind the pointers, except for those that divide the work."""

    def strides(layout: Layout | None, count: int) -> list[int]:
        found = [] if layout is None else list(layout.strides)
        return found + [0] * (count - len(found))

    targets, buffer, sources = o.targets, o.intermediate_states_buffer, o.state_batch_indices
    numbers: dict[str, object] = {
        "slots": o.state.shape[0],
        "pad_slot_id": o.pad_slot_id,
        "group_heads": fast_div(o.state.shape[1] // o.B.shape[2]),
        "batch": o.sequences,
        "headdim": o.state.shape[2],
        "d_state": o.state.shape[3],
        "dt_softplus": o.dt_softplus,
        "is_read_only": o.disable_state_update,
        "keeps_padding": o.keeps_padding,
        "intermediate_rows": buffer.shape[0] if buffer else 0,
        "intermediate_steps": buffer.shape[1] if buffer else 0,
        # A seed that is a number is written here at the launch.
        "seed": 0,
        "tokens": o.x.shape[1],
        "columns": sources.shape[1] if sources and len(sources.shape) == 2 else 1,
        "dst_columns": targets.shape[1] if targets else 0,
        "philox_rounds": o.philox_rounds,
    }
    arrays = ("state", "x", "dt", "out", "z", "B", "C"), ("A",), ("D", "dt_bias")
    for count, names in zip((4, 3, 2), arrays, strict=True):
        numbers |= {f"{name}_stride": strides(getattr(o, name), count) for name in names}
    numbers["intermediate_states_buffer_stride"] = strides(buffer, 5)
    for name in ("state_batch_indices", "dst_state_batch_indices", "parents"):
        numbers[f"{name}_stride"] = strides(getattr(o, name), 2)
    numbers |= index_numbers(
        intermediate_state_indices=o.intermediate_state_indices,
        num_accepted_tokens=o.num_accepted_tokens,
        cu_seqlens=o.cu_seqlens,
        state_column=o.state_column,
    )
    numbers["has_initial_state_stride"] = strides_or_zeros(o.has_initial_state, 1)[0]
    if o.quantised:
        numbers["state_scale_stride"] = strides(o.state_scale, 3)
        numbers["intermediate_state_scales_stride"] = strides(o.intermediate_state_scales, 4)
    for name in ("dt", "D", "dt_bias", "z"):
        layout = getattr(o, name)
        numbers[f"{name}_is_float32"] = layout is not None and layout.dtype is FLOAT32
    for name in ("state_batch_indices", "dst_state_batch_indices", "parents"):
        layout = getattr(o, name)
        numbers[f"{name}_is_int64"] = layout is not None and layout.dtype is INT64
    return numbers
