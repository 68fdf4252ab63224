"""The selective scan of packed sequences with their states in a pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cuconv.runtime import blocks, checks, codes, slots
from cuconv.runtime.dtypes import BOOL, CODES, STATES
from cuconv.runtime.entry import quick
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import NO_NUMBERS, Arrays, Checked, Layouts
from cuconv.selective_scan import reference
from cuconv.selective_scan.check import Inputs, inputs, is_variable
from cuconv.selective_scan.kernels import MAX_TOKENS
from cuconv.selective_scan.plan_varlen import Chunks, Operands, plan


@quick
def selective_scan_varlen_fn(
    u: Any,
    ssm_states: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    query_start_loc: Any = None,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    pad_slot_id: int = -1,
    *,
    state_column: Any = None,
    dst_state_indices: Any = None,
    null_slot: int | None = None,
    pad_output: str = "zero",
    snapshots: Any = None,
    snapshot_count: Any = None,
    snapshot_out: Any = None,
    state_scale: Any = None,
    snapshot_scale: Any = None,
    rand_seed: Any = None,
    philox_rounds: int = 10,
    out: Any = None,
) -> Any:
    """The selective scan of packed sequences, or of a batch, with states in a pool, as serving engines prefill.

    Within sequence i, the tokens query_start_loc[i] to query_start_loc[i + 1] - 1, this is selective_scan_fn:

        dt = delta[d, t] + delta_bias[d]; with delta_softplus, dt = log(1 + exp(dt)) unless dt > 20
        h[n] = h[n] * exp(dt * A[d, n]) + dt * B[n] * u[d, t]
        out[d, t] = (sum over n of C[n] * h[n] + D[d] * u[d, t]) * silu(z[d, t])

    in float32 (Gu and Dao, "Mamba", 2023, equation 2, with A discretised by zero-order hold and B as dt * B). The state
    before the first token is the sequence's slot of ssm_states where has_initial_state[i] is true, else zeros. The slot
    is then overwritten by the state after the last token, so that the sequence can go on in another call, or that state
    goes to slot dst_state_indices[i]; the slots of an empty sequence stay as they are.

    Padding (tokens of no sequence) gives 0, and so does a sequence with a slot that is pad_slot_id or outside the pool:
    no state is read or written for it. No sequence may write a slot that another one writes or starts from. With
    CUCONV_CHECK=1 in the environment the index arrays are read back and checked, which waits for the GPU; otherwise the
    call waits for nothing, and a captured CUDA graph may be replayed with other sequences of the same total.

    States may be codes with a scale per slot and channel, rounded exactly as in `selective_state_update` with states
    (slots, dim, d_state): prefill and decode may take turns on the same slots. For Mamba-2, each row of a head is a
    channel: repeat A, delta, D and delta_bias within a head (views with a stride of 0 will do), and view states (slots,
    nheads, headdim, d_state) and their scales with nheads * headdim channels. If these slots have rings of replay,
    empty them afterwards by `ReplayRings.reset`.

    Arrays are NumPy, CuPy, torch or DLPack ones, all of one kind and on one device, of any strides. Contiguous tokens
    have vector kernels, and so have contiguous channels with contiguous states in B and C, where dim and d_state are
    multiples of 16 bytes. Where rows of contiguous tokens are not aligned to 16 bytes, but alike in all arrays, B and C
    are copied first, up to 8 times, if sequences have 64 tokens on average. From 256 tokens on, other arrays that are
    not aligned are copied, unless padding keeps its old contents. Memory for copies comes from the library of u. Arrays
    with a row per sequence may have further rows, which are ignored.

    Args:
        u: (dim, total), float32, float16 or bfloat16; total up to 2**30. (batch, dim, seqlen): each row of the batch is
            a sequence, and B and C have an axis for the batch, too.
        ssm_states: (slots, dim, d_state), any of these dtypes, or codes of int16, int8 or float8_e4m3fn with
            state_scale; updated in place. None: sequences start from zeros and leave no state.
        delta: shape and dtype of u.
        A: (dim, d_state), float32, finite, d_state 1 to 256.
        B: (d_state, total) or (ngroups, d_state, total), for a batch (batch, d_state, seqlen) or (batch, ngroups,
            d_state, seqlen); u's dtype. Channel d is of group d // (dim / ngroups).
        C: shape and dtype of B.
        D: (dim,), u's dtype or float32.
        z: shape and dtype of u: the gate.
        delta_bias: (dim,), u's dtype or float32.
        delta_softplus: whether dt is the softplus of delta + delta_bias.
        query_start_loc: (sequences + 1,), int32 or int64, from 0 up to at most total, never falling. None: a single
            sequence, or the rows of a batch.
        cache_indices: (sequences,), int32 or int64: the slot of each sequence; None: sequence i has slot i. (sequences,
            columns): column 0, or the one in state_column.
        has_initial_state: (sequences,), bool; false when None.
        pad_slot_id: the slot number of sequences that only fill a batch. Sequence numbers that stand in for a missing
            array of slots are not compared with it.
        state_column: (sequences,), int32 or int64: sequence i has slot cache_indices[i, state_column[i]]; a column that
            does not exist is padding.
        dst_state_indices: (sequences,), int32 or int64: the slot for the state after the last token; None: the slot in
            cache_indices. The state is not stored where this slot is negative, pad_slot_id or outside the pool.
        null_slot: another name of pad_slot_id, as vLLM's null_block_id. If both are 0 or more, they must be equal.
        pad_output: "zero": padding and sequences without a slot give 0. "keep": out, which must be given then, keeps
            its contents there.
        snapshots: (rows, 3), int32 or int64: a row (sequence, position, slot) puts the state after the sequence's first
            `position` tokens, 0 to all of them, into the slot, as prefix caches need it. Rows come in any order; they
            take the least time where those of one sequence are neighbours, in the order of their positions. A row is
            ignored if its slot is negative, pad_slot_id or outside the pool, if its sequence is empty, padding or does
            not exist, or if its position exceeds the sequence's length. No two rows or final states may share a slot,
            and no row may have a slot that another sequence than its own starts from.
        snapshot_count: (1,), int32 or int64: how many of the rows count, the first ones; None: all.
        snapshot_out: (slots, dim, d_state), ssm_states' dtype: where snapshots go; to ssm_states when None.
        state_scale: (slots, dim) or (slots, dim, 1), float32; only with ssm_states of codes, and updated with them: the
            state is ssm_states * state_scale. Scales, rounding and rows that cannot have codes are as in
            `selective_state_update`. out follows from states before they are rounded.
        snapshot_scale: (slots, dim) or (slots, dim, 1), float32; only with snapshot_out of codes: receives their
            scales.
        rand_seed: a seed of 64 bits, or an int64 array (1,): round codes up or down at random, as in
            `selective_state_update`. The state after t tokens of a sequence takes the random numbers of its token t - 1
            in this call.
        philox_rounds: rounds of Philox-4x32, 1 to 20; 0 stands for 10.
        out: shape and dtype of u: where to write the result. It may be u, delta or z itself, but must not overlap any
            other argument, and neither must ssm_states.

    Returns:
        out, laid out in memory like u: of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    # The usual arguments are recognised without calling a function: this is on the path of every call.
    padding, keeps_padding = slots.NONE, False
    if not (null_slot is None and pad_slot_id is slots.NONE and pad_output is slots.ZERO):
        padding, keeps_padding = slots.padding(pad_slot_id, null_slot), slots.keeps_padding(pad_output)
    softplus = checks.flag("delta_softplus", delta_softplus)
    given = (
        u, ssm_states, delta, A, B, C, D, z, delta_bias, query_start_loc, cache_indices, has_initial_state,
        state_column, dst_state_indices,
    )  # fmt: skip
    if snapshots is snapshot_count is snapshot_out is state_scale is snapshot_scale is rand_seed is None:
        if philox_rounds is not codes.DEFAULT_ROUNDS:
            codes.rounds_of(philox_rounds)
        return _packed_scan((*given, out), (softplus, padding, keeps_padding))[0]
    rounds = codes.rounds_of(philox_rounds)
    seed, rand_seed = codes.seed_of(rand_seed)
    extras = snapshots, snapshot_count, snapshot_out, state_scale, snapshot_scale, rand_seed
    options = softplus, padding, seed is not None, rounds, keeps_padding
    late = NO_NUMBERS if seed is None else {"seed": seed}
    (result,) = _packed_scan_with_extras((*given, *extras, out), options, late=late)
    return result


@quick
def scan_by_blocks(
    u: Any,
    ssm_states: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    z: Any,
    delta_bias: Any,
    delta_softplus: bool,
    query_start_loc: Any,
    cache_indices: Any,
    has_initial_state: Any,
    null_slot: int | None,
    block_size: int,
    *,
    state_column: Any,
    block_idx_first_scheduled_token: Any,
    block_idx_last_scheduled_token: Any,
    cu_chunk_seqlen: Any,
    last_chunk_indices: Any,
    out: Any = None,
) -> Any:
    """`selective_scan_varlen_fn` with a prefix cache that keeps the state at the end of every block, for engines.

    A small kernel finds the snapshots first. The arguments are those of vLLM's mode "all" (runtime/blocks.py):
    cache_indices (sequences, blocks) has the slot of each block of block_size tokens, cu_chunk_seqlen (chunks + 1,) the
    first token of each chunk, last_chunk_indices (sequences,) the last chunk of each sequence, state_column the block
    that it starts from. A block has one or more chunks.

    Returns:
        out, in which padding keeps its contents, or a new array laid out in memory like u, with zeros at padding.
    """
    given = (
        *(u, ssm_states, delta, A, B, C, D, z, delta_bias, query_start_loc, cache_indices, has_initial_state),
        *(state_column, None, block_idx_first_scheduled_token, block_idx_last_scheduled_token),
        *(cu_chunk_seqlen, last_chunk_indices, out),
    )
    options = checks.flag("delta_softplus", delta_softplus), slots.padding(-1, null_slot), block_size
    (result,) = _packed_scan_by_blocks(given, options)
    return result


def _check_with_extras(
    given: Layouts, delta_softplus: bool, pad_slot_id: int, has_seed: bool, philox_rounds: int, keeps_padding: bool
) -> Checked[Operands]:
    codes.check_seed(given["rand_seed"])
    is_random = has_seed or given["rand_seed"] is not None
    checked = _check(given, delta_softplus, pad_slot_id, keeps_padding, philox_rounds if is_random else 0)
    states = [each for name in reference.SCALES if (each := given[name]) is not None]
    if is_random and not any(each.dtype in CODES for each in states):
        raise ValueError(message("rand_seed", "a seed", "None unless states are codes"))
    return checked


def _check(
    given: Layouts, delta_softplus: bool, pad_slot_id: int, keeps_padding: bool, philox_rounds: int = 0
) -> Checked[Operands]:
    u = given["u"]
    is_batch = u is not None and len(u.shape) == 3
    checked = inputs(given, "batch, dim, seqlen" if is_batch else "dim, total", delta_softplus)
    pool, starts = given["ssm_states"], given["query_start_loc"]
    count = _check_batch(checked, starts) if is_batch else checks.starts("query_start_loc", starts, MAX_TOKENS)
    for argument in ("cache_indices", "has_initial_state", "state_column", "dst_state_indices"):
        if given[argument] is not None and pool is None:
            raise ValueError(message(argument, "an array", "None unless ssm_states is given"))
    cache_indices = slots.sources(given, "cache_indices", count, "sequences")
    has_initial_state = given["has_initial_state"]
    slots.by_sequence("has_initial_state", has_initial_state, count, "sequences", (BOOL,))
    if keeps_padding:
        slots.check_kept(given, ("out",))
    if pool is not None:
        _check_pool(pool, checked.A, count if given["cache_indices"] is None else 0)
    chosen = given["state_column"], given["dst_state_indices"]
    snapshots_to = slots.check_snapshots(given, "ssm_states", "slots, dim, d_state", STATES)
    if snapshots_to is not None and given["snapshot_out"] is not None:
        shape = (snapshots_to.shape[0], *checked.A.shape)
        checks.shape("snapshot_out", snapshots_to.shape, shape, "slots, dim of u, d_state of A")
    operands = Operands(
        *(checked, pool, starts, cache_indices, has_initial_state, *chosen, pad_slot_id, keeps_padding),
        snapshots=given.get("snapshots"),
        snapshot_count=given.get("snapshot_count"),
        snapshot_out=given.get("snapshot_out"),
        state_scale=given.get("state_scale"),
        snapshot_scale=given.get("snapshot_scale"),
        philox_rounds=philox_rounds,
    )
    codes.check_scales(given, reference.SCALES)
    out = checked.out
    if not is_batch:
        out = out._replace(shape=out.shape[1:], strides=out.strides[1:])
    updated = tuple(name for name in (*reference.SCALES, *SCALES) if name in given)
    return Checked(operands, {"out": out}, updated, in_place=("out", "u", "delta", "z"))


def _check_batch(given: Inputs, starts: Layout | None) -> int:
    """Check what is particular to a batch; returns its rows."""
    if starts is not None:
        raise ValueError(message("query_start_loc", "an array", "None where u has 3 axes (batch, dim, seqlen)"))
    batch, _, seqlen = given.u.shape
    checks.between("batch * seqlen of u", batch * seqlen, 0, MAX_TOKENS)
    for name, matrix in (("B", given.B), ("C", given.C)):
        if not is_variable(matrix):
            wanted = "3 or 4 axes (batch of u, [ngroups,] d_state of A, tokens of u)"
            raise ValueError(message(name, f"shape {matrix.shape}", wanted))
    return batch


def _check_by_blocks(given: Layouts, delta_softplus: bool, pad_slot_id: int, block_size: int) -> Checked[Operands]:
    others = {name: each for name, each in given.items() if name not in BLOCKS}
    checked = _check(others, delta_softplus, pad_slot_id, keeps_padding=given["out"] is not None)
    o = checked.operands
    assert given["u"] is not None
    checks.rank("u", given["u"].shape, "dim, total")
    found = blocks.check(given, block_size, "ssm_states", o.sequences, o.total)
    chunks = Chunks(*(given[name] for name in Chunks._fields))  # type: ignore[arg-type]
    return replace(checked, operands=o._replace(blocks=found, chunks=chunks))


def _check_pool(pool: Layout, A: Layout, wanted_slots: int) -> None:
    checks.rank("ssm_states", pool.shape, "slots, dim, d_state")
    checks.dtype("ssm_states", pool.dtype, STATES)
    slots = pool.shape[0]
    checks.between("slots of ssm_states", slots, 0, MAX_DIVIDEND)
    checks.shape("ssm_states", pool.shape, (slots, *A.shape), "slots, dim of u, d_state of A")
    if slots < wanted_slots:
        wanted = f"at least {wanted_slots}, one a sequence, or cache_indices"
        raise ValueError(message("slots of ssm_states", slots, wanted))


def _check_contents(o: Operands, read: Callable[[str], Any]) -> None:
    """ValueError when what index arrays contain cannot be right."""
    if o.blocks is not None:
        read = blocks.reading(read, o.blocks)
        o = o._replace(**o.blocks.derived)
    pool_slots, snapshot_slots = (None if pool is None else pool.shape[0] for pool in (o.ssm_states, o.snapshots_to))
    batch, _, seqlen = o.inputs.u.shape
    lengths = np.full(batch, seqlen) if o.is_batch else None
    slots.check_packed(read, o.total, pool_slots, o.pad_slot_id, lengths, snapshot_slots=snapshot_slots)


def _reference(o: Operands, arrays: Arrays, seed: int | None = None) -> None:
    if o.blocks is not None:
        read = blocks.reading(arrays.get, o.blocks)
        arrays = {name: each for name, each in arrays.items() if name not in BLOCKS}
        arrays |= {name: read(name) for name in blocks.DERIVED}
    named = {name: array for name, array in arrays.items() if name != "out"}
    if seed is not None:
        named["rand_seed"] = seed
    call = reference.PackedScan(
        **named,
        delta_softplus=o.inputs.delta_softplus,
        pad_slot_id=o.pad_slot_id,
        pad_output="keep" if o.keeps_padding else "zero",
        philox_rounds=o.philox_rounds,
    )
    call.write(arrays["out"])


INPUTS = (
    *("u", "ssm_states", "delta", "A", "B", "C", "D", "z", "delta_bias"),
    *("query_start_loc", "cache_indices", "has_initial_state", "state_column", "dst_state_indices"),
)
SCALES = tuple(reference.SCALES.values())
EXTRAS = (*slots.SNAPSHOTS, *SCALES, "rand_seed")

_packed_scan = Operation(
    INPUTS,
    ("out",),
    name="selective_scan_varlen_fn",
    check=_check,
    plan=plan,
    reference=_reference,
    contents=_check_contents,
    absent=EXTRAS,
)
BLOCKS = (blocks.FIRST, blocks.LAST, blocks.CHUNKS, blocks.LAST_CHUNKS)

_packed_scan_by_blocks = replace(
    _packed_scan, inputs=INPUTS + BLOCKS, name="selective_scan_varlen_by_blocks", check=_check_by_blocks
)
# Each argument costs a call some time, even when it is None.
_packed_scan_with_extras = replace(
    _packed_scan, inputs=INPUTS + EXTRAS, name="selective_scan_varlen_with_extras", check=_check_with_extras, absent=()
)
