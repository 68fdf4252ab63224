"""The convolution of packed sequences with their states in a pool, with one result or one per range of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference_convolve
from cuconv.causal_conv1d.check_varlen import (
    BLOCKS,
    PAYLOAD,
    check,
    check_by_blocks,
    check_contents,
    check_with_extras,
)
from cuconv.causal_conv1d.kernels import GATES
from cuconv.causal_conv1d.plan_varlen import Operands, plan
from cuconv.causal_conv1d.split import WHOLE, Split, by_heads, by_sizes
from cuconv.runtime import blocks, checks, slots
from cuconv.runtime.entry import quick
from cuconv.runtime.errors import message
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import Arrays

L2NORM_EPS = 1e-6


@quick
def causal_conv1d_varlen_fn(
    x: Any,
    weight: Any,
    bias: Any = None,
    conv_states: Any = None,
    query_start_loc: Any = None,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    *,
    state_column: Any = None,
    dst_state_indices: Any = None,
    initial_states: Any = None,
    null_slot: int | None = None,
    pad_output: str = "zero",
    first_column: int | None = None,
    snapshots: Any = None,
    snapshot_count: Any = None,
    snapshot_out: Any = None,
    pre_gate: Any = None,
    post_gate: Any = None,
    residual: Any = None,
    out: Any = None,
) -> Any:
    """Depthwise causal convolution of packed sequences, as serving engines prefill: vLLM's causal_conv1d_fn.

    Within sequence i, the tokens query_start_loc[i] to query_start_loc[i + 1] - 1,

        out[d, t] = act(bias[d] + sum over w of weight[d, w] * x[d, t - (width - 1) + w]),

    summed in float32 (Gu and Dao, "Mamba", 2023, section 3.4). The inputs before the first token are the last width - 1
    columns of the sequence's slot of conv_states where has_initial_state[i] is true, else zeros. Then these columns are
    overwritten by the last width - 1 inputs of the sequence, so that it can go on in another call; columns before them,
    and the slot of an empty sequence, stay as they are. With dst_state_indices the columns of another slot are
    overwritten instead.

    Padding (tokens of no sequence) gives 0. So do the tokens of a sequence with a slot that is pad_slot_id, negative or
    outside the pool; such a slot is neither read nor written. Two sequences must not share a slot that one of them
    writes. With CUCONV_CHECK=1 in the environment the index arrays are read back and checked, which waits for the GPU;
    otherwise the call waits for nothing, and a captured CUDA graph may be replayed with other sequences of the same
    total.

    Arrays are NumPy, CuPy, torch or DLPack ones, all of one kind and on one device, of any strides; x and out with
    contiguous channels (engines' layout) or contiguous tokens have vector kernels.

    Args:
        x: (dim, total), float32, float16 or bfloat16; or (batch, dim, seqlen), one sequence per batch entry, where
            query_start_loc, gates and residual must be None. Splits take no batch.
        weight: (dim, width), any of these dtypes, width 1 to 16.
        bias: (dim,), weight's dtype or float32.
        conv_states: (slots, dim, state_len), state_len at least width - 1, any of these dtypes; updated in place. None:
            sequences start from zeros and leave no state.
        query_start_loc: (sequences + 1,), int32 or int64, from 0 up to at most total, never falling. None: a single
            sequence.
        cache_indices: (sequences,) or (sequences, columns), int32 or int64: the slot of each sequence; None: sequence i
            has slot i. Of several columns state_column chooses one; without it, the first counts. Here and in all other
            arrays with a row per sequence, further rows are ignored.
        has_initial_state: (sequences,), bool; false when None.
        activation: None, "silu" or "swish", another name of "silu".
        pad_slot_id: the slot number of sequences that only fill a batch. Sequence numbers that stand in for a missing
            array of slots are not compared with it.
        state_column: (sequences,), int32 or int64: the column of cache_indices for each sequence. One without such a
            column is treated as if its slot were negative.
        dst_state_indices: (sequences,), int32 or int64: the slot in which each sequence leaves its last inputs; None:
            the slot that it starts from. They are not stored where this slot is negative, pad_slot_id or outside the
            pool. No sequence may leave its inputs in a slot in which another one leaves its own, or from which another
            one starts.
        initial_states: (slots, dim, state_len), any of these dtypes: a pool that replaces conv_states and is only read.
            Sequences leave no state, and all start from their slots unless has_initial_state is given.
        null_slot: another name of pad_slot_id, as vLLM's null_block_id. If both are 0 or more, they must be equal.
        pad_output: "zero": padding gives 0. "keep": out, which must be given then, keeps its contents at padding.
        first_column: which columns of a state longer than width - 1 hold the inputs: the last ones with -1 or None, the
            first ones with 0. The first ones are where engines keep them, and where `causal_conv1d_update` expects them
            with num_accepted_tokens.
        snapshots: (rows, 3), int32 or int64: a row (sequence, position, slot) puts the state after the sequence's first
            `position` tokens, 0 to all of them, into the slot, as prefix caches need it. Rows come in any order; they
            are found soonest where those of one sequence are neighbours. A row is ignored if its slot is negative,
            pad_slot_id or outside the pool, if its sequence is empty, padding or does not exist, or if its position
            exceeds the sequence's length. No two rows or final states may share a slot, and no row may have a slot that
            another sequence than its own starts from.
        snapshot_count: (1,), int32 or int64: how many of the rows count, the first ones; None: all.
        snapshot_out: (slots, dim, state_len), state_len at least width - 1, the other states' dtype: where snapshots
            go, each the last state_len inputs before its position. Inputs before the sequence's first token come from
            its initial state as far as this has columns, and are zeros before that. None: snapshots go to conv_states,
            into the columns of final states.
        pre_gate: shape and dtype of x: the filter reads pre_gate * x, rounded to x's dtype, which is also what states
            and snapshots hold.
        post_gate: shape and dtype of x: the result, rounded to x's dtype, is multiplied by it, as in LFM2.
        residual: shape and dtype of x: added last, in float32. It may be x itself.
        out: shape and dtype of x: where to write the result. It may be x itself where there are no gates; it must not
            overlap any other argument.

    Returns:
        out, laid out in memory like x: of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    inputs = (
        x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state,
        state_column, dst_state_indices, initial_states,
    )  # fmt: skip
    extras = None
    if out is x or not (snapshots is snapshot_count is snapshot_out is pre_gate is post_gate is residual is None):
        extras = snapshots, snapshot_count, snapshot_out, pre_gate, post_gate, residual, None, None, None
    outs = None if out is None else (out,)
    return _run(WHOLE, inputs, extras, outs, activation, pad_slot_id, null_slot, pad_output, first_column)[0]


@quick
def convolve_by_token(
    x: Any,
    weight: Any,
    bias: Any,
    conv_states: Any,
    query_start_loc: Any,
    cache_indices: Any,
    has_initial_state: Any,
    activation: str | None,
    *,
    initial_states: Any = None,
    pre_gate: Any = None,
    post_gate: Any = None,
) -> Any:
    """`causal_conv1d_varlen_fn` with x, the gates and the result as (total, dim), for engines that have them so.

    Transposing four tensors in torch would take half as long as the whole call. Errors name the axes of the public
    functions, here and in the splits by token.

    Returns:
        (total, dim), new.
    """
    inputs = (
        x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state, None, None, initial_states,
        None, None, None, pre_gate, post_gate, None, None, None, None, None,
    )  # fmt: skip
    checks.activation(activation)
    options = (WHOLE, activation is not None, -1, None, False, True, True, False)
    return _packed_with_extras(inputs, options, WHOLE.names)[0]


@quick
def split_by_token(
    x: Any,
    weight: Any,
    bias: Any,
    conv_states: Any,
    query_start_loc: Any,
    cache_indices: Any,
    has_initial_state: Any,
    activation: str | None,
    pad_slot_id: int,
    first_column: int | None,
    sizes: tuple[int, ...],
) -> tuple[Any, ...]:
    """`causal_conv1d_split` of x (dim, total) with results (total, size), for engines.

    Returns:
        For every range (total, size), new.
    """
    checks.activation(activation)
    split = by_sizes(sizes)
    inputs = (
        x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state, None, None, None,
        *_NO_EXTRAS, *split.given_outs(None),
    )  # fmt: skip
    options = (
        split, activation is not None, checks.integer("pad_slot_id", pad_slot_id), checks.column(first_column),
        False, False, True, False,
    )  # fmt: skip
    return tuple(_packed_with_extras(inputs, options, split.names))


@quick
def qkv_split_by_token(
    x: Any, weight: Any, heads: tuple[int, ...], qk_l2norm: bool, payload: Any, gate: Any, other_gate: Any
) -> tuple[Any, Any, Any]:
    """`causal_conv1d_qkv_split` of one sequence x (total, dim) without states and activation, for engines.

    heads are the numbers of heads of q, k and v, then their channels per head; gate and other_gate are payload_gates.

    Returns:
        q, k and v, each (1, total, heads, head_dim), new.
    """
    split = by_heads(*heads, qk_l2norm=qk_l2norm, l2norm_eps=L2NORM_EPS)
    inputs = (
        x, weight, None, None, None, None, None, None, None, None,
        None, None, None, None, None, None, payload, gate, other_gate, None, None, None,
    )  # fmt: skip
    q, k, v = _packed_with_extras(inputs, (split, False, -1, None, False, True, False, False), split.names)
    return q, k, v


@quick
def convolve_by_blocks(
    x: Any,
    weight: Any,
    bias: Any,
    conv_states: Any,
    query_start_loc: Any,
    cache_indices: Any,
    has_initial_state: Any,
    activation: str | None,
    null_slot: int | None,
    first_column: int | None,
    block_size: int,
    *,
    state_column: Any,
    block_idx_last_scheduled_token: Any,
    num_computed_tokens: Any,
    out: Any = None,
) -> Any:
    """`causal_conv1d_varlen_fn` with a prefix cache that keeps the state at the end of every block, for engines.

    The arguments are those of vLLM's mode "all" (runtime/blocks.py): cache_indices (sequences, blocks) has the slot of
    each block of block_size tokens, num_computed_tokens (sequences,) the number of tokens before this call,
    state_column the block that each sequence starts from. One launch does all where the channels of x are contiguous,
    as in vLLM; where its tokens are contiguous, a small kernel finds the snapshots first.

    Returns:
        out, or a new array laid out in memory like x.
    """
    checks.activation(activation)
    inputs = (
        x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state, state_column, None, None,
        block_idx_last_scheduled_token, num_computed_tokens, out,
    )  # fmt: skip
    options = (WHOLE, activation is not None, slots.padding(-1, null_slot), checks.column(first_column), block_size)
    return _packed_by_blocks(inputs, options, WHOLE.names)[0]


@quick
def causal_conv1d_split(
    x: Any,
    weight: Any,
    bias: Any = None,
    conv_states: Any = None,
    query_start_loc: Any = None,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    *,
    sizes: Sequence[int],
    state_column: Any = None,
    dst_state_indices: Any = None,
    initial_states: Any = None,
    null_slot: int | None = None,
    pad_output: str = "zero",
    first_column: int | None = None,
    snapshots: Any = None,
    snapshot_count: Any = None,
    snapshot_out: Any = None,
    pre_gate: Any = None,
    post_gate: Any = None,
    residual: Any = None,
    out: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """`causal_conv1d_varlen_fn` with a result for each of several ranges of channels, such as x, B and C of Mamba-2.

    One kernel writes all results; there is no intermediate array. Arguments and errors are those of
    `causal_conv1d_varlen_fn`, and:

    Args:
        sizes: the number of channels of every range, in the order of x: 1 to 16 numbers of at least 1 that add up to
            dim.
        out: for every range an array (size, total) of x's dtype and any strides, or None.

    Returns:
        For every range (size, total), laid out in memory like x.
    """
    inputs = (
        x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state,
        state_column, dst_state_indices, initial_states,
    )  # fmt: skip
    extras = None
    if not (snapshots is snapshot_count is snapshot_out is pre_gate is post_gate is residual is None):
        extras = snapshots, snapshot_count, snapshot_out, pre_gate, post_gate, residual, None, None, None
    split = by_sizes(sizes)
    return tuple(_run(split, inputs, extras, out, activation, pad_slot_id, null_slot, pad_output, first_column))


@quick
def causal_conv1d_qkv_split(
    x: Any,
    weight: Any,
    bias: Any = None,
    conv_states: Any = None,
    query_start_loc: Any = None,
    *,
    num_q_heads: int,
    num_k_heads: int,
    num_v_heads: int,
    head_q: int,
    head_k: int,
    head_v: int,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    qk_l2norm: bool = False,
    l2norm_eps: float = L2NORM_EPS,
    state_column: Any = None,
    dst_state_indices: Any = None,
    initial_states: Any = None,
    null_slot: int | None = None,
    pad_output: str = "zero",
    first_column: int | None = None,
    snapshots: Any = None,
    snapshot_count: Any = None,
    snapshot_out: Any = None,
    pre_gate: Any = None,
    post_gate: Any = None,
    residual: Any = None,
    payload: Any = None,
    payload_gates: Sequence[Any] | None = None,
    out: Sequence[Any] | None = None,
) -> tuple[Any, Any, Any]:
    """`causal_conv1d_varlen_fn` on the channels q | k | v of linear attention, as in Gated DeltaNet and Kimi Linear.

    One kernel convolves and writes all three; there is no intermediate array. Arguments and errors are those of
    `causal_conv1d_varlen_fn`, and:

    Args:
        num_q_heads, num_k_heads, num_v_heads: numbers of heads, each at least 1.
        head_q, head_k, head_v: channels per head; dim is num_q_heads * head_q + num_k_heads * head_k + num_v_heads *
            head_v.
        qk_l2norm: divide every head y of q and k, after the activation, by sqrt(sum of y * y + l2norm_eps), computed in
            float32 (Yang et al., "Gated Delta Networks", 2024).
        l2norm_eps: at least 0; used only with qk_l2norm.
        payload: (total, channels of k and v + 2 * gate heads), x's dtype: where to write what a later replay of the
            tokens needs. Row t has the channels k and v of x at token t, before the convolution, then row t of both
            payload_gates.
        payload_gates: two arrays (total, gate heads) of x's dtype, copied to payload. Beside payload, and with
            qk_l2norm, pre_gate, post_gate and residual must be None.
        out: (q, k, v), each (1, total, heads, head_dim) of x's dtype and any strides, or None.

    Returns:
        q, k and v, each (1, total, heads, head_dim), contiguous.
    """
    inputs = (
        x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state,
        state_column, dst_state_indices, initial_states,
    )  # fmt: skip
    heads = (num_q_heads, num_k_heads, num_v_heads, head_q, head_k, head_v)
    split = by_heads(*heads, qk_l2norm=qk_l2norm, l2norm_eps=l2norm_eps)
    extras = None
    gates = pre_gate, post_gate, residual
    if not (
        snapshots
        is snapshot_count
        is snapshot_out
        is pre_gate
        is post_gate
        is residual
        is payload
        is payload_gates
        is None
    ):
        if payload_gates is not None:
            checks.sequence("payload_gates", payload_gates)
            if len(payload_gates) != 2:
                raise ValueError(message("payload_gates", f"{len(payload_gates)} arrays", 2))
        extras = snapshots, snapshot_count, snapshot_out, *gates, payload, *(payload_gates or (None, None))
    q, k, v = _run(split, inputs, extras, out, activation, pad_slot_id, null_slot, pad_output, first_column)
    return q, k, v


def _run(
    split: Split,
    inputs: tuple[Any, ...],
    extras: tuple[Any, ...] | None,
    out: Sequence[Any] | None,
    activation: str | None,
    pad_slot_id: int,
    null_slot: int | None,
    pad_output: str,
    first_column: int | None,
) -> Sequence[Any]:
    # The usual arguments are recognised without calling a function: this is on the path of every call.
    if activation is not None:
        checks.activation(activation)
    if null_slot is first_column is None and pad_slot_id is slots.NONE and pad_output is slots.ZERO:
        options: tuple[Any, ...] = split, activation is not None, slots.NONE, None, False
    else:
        padding, keeps_padding = slots.padding(pad_slot_id, null_slot), slots.keeps_padding(pad_output)
        options = split, activation is not None, padding, checks.column(first_column), keeps_padding
    if extras is None:
        return _packed(inputs + split.given_outs(out), options, split.names)
    outs = split.given_outs(out)
    more = (*options[:-1], outs[0] is inputs[0], False, False, options[-1])
    return _packed_with_extras(inputs + extras + outs, more, split.names)


def _reference(o: Operands, arrays: Arrays) -> None:
    if o.blocks is not None:
        read = blocks.reading(arrays.get, o.blocks)
        arrays = {name: each for name, each in arrays.items() if name not in BLOCKS}
        arrays |= {name: read(name) for name in blocks.DERIVED}
    if o.by_token:
        arrays = {name: each.T if each is not None and name in o.by_token else each for name, each in arrays.items()}
    inputs = {name: array for name, array in arrays.items() if name not in (*o.split.names, *PAYLOAD)}
    for name in ("conv_states", "initial_states"):
        if inputs[name] is not None and o.states is not None:
            inputs[name] = inputs[name][:, :, : o.states.shape[2]]
    activation = "silu" if o.silu else None
    result, is_padding = reference_convolve.convolve_packed(**inputs, activation=activation, pad_slot_id=o.pad_slot_id)
    if o.payload is not None:
        (heads_q, head_q), *_ = o.split.heads(o.x.shape[0])
        raw = arrays["x"][heads_q * head_q :].T
        arrays["payload"][...] = np.concatenate([raw, *(arrays[name] for name in PAYLOAD[1:])], axis=1)
    o.split.write(result, arrays, ~is_padding if o.keeps_padding else None)


INPUTS = (
    *("x", "weight", "bias", "conv_states", "query_start_loc", "cache_indices", "has_initial_state"),
    *("state_column", "dst_state_indices", "initial_states"),
)
EXTRAS = (*slots.SNAPSHOTS, *GATES, *PAYLOAD)
"""Further arrays, which few calls have."""
_NO_EXTRAS = (None,) * len(EXTRAS)

_packed = Operation(
    INPUTS,
    name="causal_conv1d_varlen_fn",
    check=check,
    plan=plan,
    reference=_reference,
    contents=check_contents,
    absent=EXTRAS,
)

_packed_by_blocks = replace(
    _packed, inputs=INPUTS + BLOCKS, name="causal_conv1d_varlen_by_blocks", check=check_by_blocks
)
# Each argument costs a call some time, even when it is None.
_packed_with_extras = replace(
    _packed, inputs=INPUTS + EXTRAS, name="causal_conv1d_varlen_with_extras", check=check_with_extras, absent=()
)
