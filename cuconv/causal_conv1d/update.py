"""The decode step of the convolution, with one result or one per range of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuconv.causal_conv1d import reference_convolve
from cuconv.causal_conv1d.check_update import (
    check,
    check_by_blocks,
    check_contents,
    check_with_extras,
    reading_columns,
)
from cuconv.causal_conv1d.kernels import GATES
from cuconv.causal_conv1d.plan_update import Operands, plan
from cuconv.causal_conv1d.split import WHOLE, Split, by_heads, by_sizes
from cuconv.runtime import checks, slots, trees
from cuconv.runtime.entry import quick
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import Arrays


@quick
def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
    *,
    query_start_loc: Any = None,
    max_query_len: int | None = None,
    num_accepted_tokens: Any = None,
    intermediate_conv_window: Any = None,
    intermediate_state_indices: Any = None,
    token_state_indices: Any = None,
    parents: Any = None,
    retrieve_next_token: Any = None,
    retrieve_next_sibling: Any = None,
    retrieve_parent_token: Any = None,
    state_column: Any = None,
    dst_state_indices: Any = None,
    has_initial_state: Any = None,
    disable_state_update: bool = False,
    pad_slot_id: int = -1,
    null_slot: int | None = None,
    pad_output: str = "zero",
    first_column: int | None = None,
    pre_gate: Any = None,
    post_gate: Any = None,
    residual: Any = None,
    out: Any = None,
) -> Any:
    """Depthwise causal convolution of the next tokens of sequences, as in Dao-AILab's causal-conv1d.

    The last inputs of a sequence are in its slot of conv_state, its new inputs in x. For its t-th new token,

        out[d, t] = act(bias[d] + sum over w of weight[d, w] * input[d, t - (width - 1) + w]),

    summed in float32 (Gu and Dao, "Mamba", 2023, section 3.4). The inputs before the first new token are read from the
    state, and the new inputs are kept there, in one of three ways:

    - By default a state is a row that ends with the width - 1 preceding inputs. It moves left by seqlen columns, and
      the new inputs follow. With first_column=0 the row is the first width - 1 columns, and others stay as they are.
    - With cache_seqlens it is a ring: token t goes to column (cache_seqlens + t) % state_len, and the preceding inputs
      are in the width - 1 columns before that of the first token, modulo state_len.
    - With num_accepted_tokens it is the window of speculative decoding. The previous call left width - 2 inputs and
      then those of its tokens, of which num_accepted_tokens were accepted (0 counts as 1). The preceding inputs are the
      width - 1 columns from column num_accepted_tokens - 1 on, which end with the last accepted token. This call leaves
      its inputs in the same way, in the first width - 1 + seqlen - 1 columns, and further columns as they are. The
      first such call after a prefill with first_column=0 has one accepted token; after such a call of one token, calls
      with first_column=0 may follow.

    Sequences may have different numbers of tokens, packed one behind the other (query_start_loc), and the tokens of a
    sequence may form a tree (parents). The state after each token, which a call that ends with this token would leave,
    may be kept too: in a buffer (intermediate_conv_window) or in slots (token_state_indices). A tree leaves the state
    after its last token.

    One call of many tokens, one call for each token, and a prefill by `causal_conv1d_varlen_fn` give the same bits as
    long as the states hold the values of x exactly. Arrays are NumPy, CuPy, torch or DLPack ones, all of one kind and
    on one device, of any strides. The kernel runs on the caller's current stream, and the call waits for nothing,
    except under CUCONV_CHECK=1, which reads index arrays back and checks them.

    Args:
        x: (batch, dim) or (batch, dim, seqlen), or (tokens, dim) with query_start_loc; float32, float16 or bfloat16.
        conv_state: (slots, dim, state_len), state_len at least width - 1, any of these dtypes; updated in place.
        weight: (dim, width), any of these dtypes, width 1 to 16.
        bias: (dim,), weight's dtype or float32.
        activation: None, "silu" or "swish", another name of "silu".
        cache_seqlens: (batch,), int32 or int64: the number of tokens that each sequence had before.
        conv_state_indices: (batch,) or (batch, columns), int32 or int64: the slot of each sequence; None: sequence i
            has slot i. Of several columns state_column chooses one; without it, the first counts. A sequence with a
            slot that is negative, pad_slot_id or outside the pool gives 0, and no state is read or written for it. Two
            sequences must not share a slot that one of them writes. Here and in all other arrays with a row per
            sequence, further rows are ignored.
        query_start_loc: (batch + 1,), int32 or int64, from 0 up to at most tokens, never falling: where sequences
            begin in a packed x, and where the last one ends. An empty sequence leaves its state as it is. Tokens of no
            sequence are padding and give 0.
        max_query_len: with query_start_loc only, if known, the largest number of tokens of a sequence: calls with 1 are
            quicker. Further tokens of a sequence are padding.
        num_accepted_tokens: (batch,), int32 or int64: how many tokens of its previous call each sequence keeps. A
            sequence with more accepted or packed tokens than the state can hold gives 0, and its state is neither read
            nor written. state_len must be at least width - 1 + seqlen - 1; for packed tokens, max_query_len replaces
            seqlen.
        intermediate_conv_window: (rows, steps, dim, width - 1), conv_state's dtype, steps at least seqlen: receives the
            width - 1 inputs that end with each token; of packed sequences, with each of the first `steps` tokens.
            Windows of successive tokens may overlap in memory, shifted by one column: the strides of steps and columns
            are equal then. (rows, steps, dim, state_len), without cache_seqlens and num_accepted_tokens: receives the
            state after each token.
        intermediate_state_indices: (batch,), int32 or int64: the row of intermediate_conv_window for each sequence;
            None: its slot. A sequence with a row outside the buffer writes nothing there. Two sequences must not share
            a row.
        token_state_indices: (batch, columns), int32 or int64: the slot for the state after each token of a sequence, by
            column. A state is not kept where there is no column for its token, or where this slot is negative,
            pad_slot_id or outside the pool. No other state may go to the slot, and no other sequence may start from it;
            the same sequence may, with disable_state_update. With num_accepted_tokens the states are windows for one
            accepted token. It must be None with cache_seqlens.
        parents: (batch, seqlen), int32 or int64: the number of the token that each token follows, at least 0 and less
            than its own number. With any other number it follows the state, as the first token always does. It must be
            None with cache_seqlens, num_accepted_tokens or query_start_loc. seqlen is at most 1024 in trees.
        retrieve_next_token, retrieve_next_sibling: (batch, seqlen), int32 or int64, both or neither, instead of
            parents: the first child of each token, and its next sibling, -1 for none, as in SGLang and TensorRT-LLM. A
            link that does not lead to a later token is ignored; a token to which no link leads follows the first one.
        retrieve_parent_token: (batch, seqlen), int32 or int64, only with these two: receives the parent of each token,
            0 where there is none. Rows of padding are not written.
        state_column: (batch,), int32 or int64: the column of conv_state_indices for each sequence. One without such a
            column is treated as if its slot were negative.
        dst_state_indices: (batch,), int32 or int64: the slot in which each sequence leaves its state; None: the slot
            that it starts from. The columns that the call would write or move there are written here instead; of a
            ring, all columns. The state is not stored where this slot is negative, pad_slot_id or outside the pool. No
            sequence may leave its state in a slot in which another one leaves its own, or from which another one
            starts.
        has_initial_state: (batch,), bool: whether each sequence starts from what its slot holds, else from zeros; true
            when None.
        disable_state_update: leave conv_state as it is, except for the slots in token_state_indices. With
            num_accepted_tokens this needs intermediate_conv_window or token_state_indices, which keep the tokens for
            the next call.
        pad_slot_id: the slot number of sequences that only fill a batch. Sequence numbers that stand in for a missing
            array of slots are not compared with it.
        null_slot: another name of pad_slot_id, as vLLM's null_block_id. If both are 0 or more, they must be equal.
        pad_output: "zero": padding and sequences without a slot give 0. "keep": out, which must be given then, keeps
            its contents there.
        first_column: which columns of a state longer than width - 1 hold the inputs: the last ones with -1; the first
            ones, where engines keep them, with 0. None: 0 with num_accepted_tokens, else -1. It must be None with
            cache_seqlens, and must not be -1 with num_accepted_tokens.
        pre_gate: shape and dtype of x: the filter reads pre_gate * x, rounded to x's dtype, which is also what states
            hold. Gates and residual must be None in trees.
        post_gate: shape and dtype of x: the result, rounded to x's dtype, is multiplied by it, as in LFM2.
        residual: shape and dtype of x: added last, in float32. It may be x itself. Padding gives 0 nevertheless.
        out: shape and dtype of x: where to write the result. It may be x itself, except in trees, but must not overlap
            any other argument.

    Returns:
        out, its channels contiguous in memory where x's are, of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit, or that has no meaning beside another one. Nothing has been
            launched or written then.
    """
    inputs = (
        x, conv_state, weight, bias, cache_seqlens, conv_state_indices, num_accepted_tokens, intermediate_conv_window,
        intermediate_state_indices, state_column, dst_state_indices, has_initial_state, query_start_loc,
        token_state_indices, parents,
    )  # fmt: skip
    extras = None
    if not (
        retrieve_next_token
        is retrieve_next_sibling
        is retrieve_parent_token
        is pre_gate
        is post_gate
        is residual
        is None
    ):
        links = retrieve_next_token, retrieve_next_sibling, retrieve_parent_token
        extras = (*links, pre_gate, post_gate, residual)
    options = _options(
        WHOLE, activation, disable_state_update, pad_slot_id, null_slot, pad_output, first_column, max_query_len
    )
    return _run(WHOLE, inputs, extras, (out,), options)[0]


@quick
def step_by_token(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any,
    activation: str | None,
    conv_state_indices: Any,
    intermediate_conv_window: Any,
) -> Any:
    """`causal_conv1d_update` of x (batch, dim) or (batch, seqlen, dim), for engines that have it so.

    Transposing x and the result in torch would take half as long as the whole call. Errors name the axes of the public
    function.

    Returns:
        The shape of x, new.
    """
    checks.activation(activation)
    inputs = (
        x, conv_state, weight, bias, None, conv_state_indices, None, intermediate_conv_window, None, None, None, None,
        None, None, None, None, None, None, None, None, None, None,
    )  # fmt: skip
    options = (WHOLE, activation is not None, False, -1, None, None, True, False)
    return _step_with_extras(inputs, options, WHOLE.names)[0]


@quick
def step_by_blocks(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any,
    activation: str | None,
    conv_state_indices: Any,
    null_slot: int | None,
    pad_output: str,
    *,
    query_start_loc: Any,
    max_query_len: int | None,
    num_accepted_tokens: Any,
    state_column: Any,
    block_idx_last_scheduled_token: Any,
    out: Any,
) -> Any:
    """`causal_conv1d_update` with the window in the first columns and a prefix cache by blocks, for engines.

    conv_state_indices (batch, blocks) has the slot of each block. Each sequence starts from the slot in column
    state_column (batch,) and leaves its state in the slot in column block_idx_last_scheduled_token (batch,).

    Returns:
        out, or a new array of the shape of x.
    """
    checks.activation(activation)
    inputs = (
        x, conv_state, weight, bias, None, conv_state_indices, num_accepted_tokens, None, None, state_column,
        block_idx_last_scheduled_token, None, query_start_loc, None, None, out,
    )  # fmt: skip
    keeps_padding = slots.keeps_padding(pad_output)
    padding = slots.padding(-1, null_slot)
    options = (WHOLE, activation is not None, False, padding, 0, max_query_len, keeps_padding)
    return _step_by_blocks(inputs, options, WHOLE.names)[0]


@quick
def causal_conv1d_update_split(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
    *,
    sizes: Sequence[int],
    query_start_loc: Any = None,
    max_query_len: int | None = None,
    num_accepted_tokens: Any = None,
    intermediate_conv_window: Any = None,
    intermediate_state_indices: Any = None,
    token_state_indices: Any = None,
    parents: Any = None,
    retrieve_next_token: Any = None,
    retrieve_next_sibling: Any = None,
    retrieve_parent_token: Any = None,
    state_column: Any = None,
    dst_state_indices: Any = None,
    has_initial_state: Any = None,
    disable_state_update: bool = False,
    pad_slot_id: int = -1,
    null_slot: int | None = None,
    pad_output: str = "zero",
    first_column: int | None = None,
    pre_gate: Any = None,
    post_gate: Any = None,
    residual: Any = None,
    out: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """`causal_conv1d_update` with a result for each of several ranges of channels, such as x, B and C of Mamba-2.

    One kernel writes all results; there is no intermediate array. Arguments and errors are those of
    `causal_conv1d_update`, and:

    Args:
        sizes: the number of channels of every range, in the order of x: 1 to 16 numbers of at least 1 that add up to
            dim.
        out: for every range an array (batch, size), (batch, size, seqlen) or (tokens, size) of x's dtype and any
            strides, or None.

    Returns:
        For every range (batch, size), (batch, size, seqlen) or (tokens, size), channels contiguous in memory where x's
        are.
    """
    inputs = (
        x, conv_state, weight, bias, cache_seqlens, conv_state_indices, num_accepted_tokens, intermediate_conv_window,
        intermediate_state_indices, state_column, dst_state_indices, has_initial_state, query_start_loc,
        token_state_indices, parents,
    )  # fmt: skip
    extras = None
    if not (
        retrieve_next_token
        is retrieve_next_sibling
        is retrieve_parent_token
        is pre_gate
        is post_gate
        is residual
        is None
    ):
        links = retrieve_next_token, retrieve_next_sibling, retrieve_parent_token
        extras = (*links, pre_gate, post_gate, residual)
    split = by_sizes(sizes)
    options = _options(
        split, activation, disable_state_update, pad_slot_id, null_slot, pad_output, first_column, max_query_len
    )
    return tuple(_run(split, inputs, extras, split.given_outs(out), options))


@quick
def causal_conv1d_update_qkv_split(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
    *,
    num_q_heads: int,
    num_k_heads: int,
    num_v_heads: int,
    head_q: int,
    head_k: int,
    head_v: int,
    query_start_loc: Any = None,
    max_query_len: int | None = None,
    num_accepted_tokens: Any = None,
    intermediate_conv_window: Any = None,
    intermediate_state_indices: Any = None,
    token_state_indices: Any = None,
    parents: Any = None,
    retrieve_next_token: Any = None,
    retrieve_next_sibling: Any = None,
    retrieve_parent_token: Any = None,
    state_column: Any = None,
    dst_state_indices: Any = None,
    has_initial_state: Any = None,
    disable_state_update: bool = False,
    pad_slot_id: int = -1,
    null_slot: int | None = None,
    pad_output: str = "zero",
    first_column: int | None = None,
    pre_gate: Any = None,
    post_gate: Any = None,
    residual: Any = None,
    out: Sequence[Any] | None = None,
) -> tuple[Any, Any, Any]:
    """`causal_conv1d_update` on the channels q | k | v of linear attention, as in Gated DeltaNet and Kimi Linear.

    One kernel convolves and writes all three; there is no intermediate array. Arguments and errors are those of
    `causal_conv1d_update`, and:

    Args:
        num_q_heads, num_k_heads, num_v_heads: numbers of heads, each at least 1.
        head_q, head_k, head_v: channels per head; dim is num_q_heads * head_q + num_k_heads * head_k + num_v_heads *
            head_v.
        out: (q, k, v) of the shapes below, x's dtype and any strides, or None.

    Returns:
        q, k and v, each (batch, heads, head_dim), (batch, seqlen, heads, head_dim) or (tokens, heads, head_dim), as x
        has axes; contiguous.
    """
    inputs = (
        x, conv_state, weight, bias, cache_seqlens, conv_state_indices, num_accepted_tokens, intermediate_conv_window,
        intermediate_state_indices, state_column, dst_state_indices, has_initial_state, query_start_loc,
        token_state_indices, parents,
    )  # fmt: skip
    extras = None
    if not (
        retrieve_next_token
        is retrieve_next_sibling
        is retrieve_parent_token
        is pre_gate
        is post_gate
        is residual
        is None
    ):
        links = retrieve_next_token, retrieve_next_sibling, retrieve_parent_token
        extras = (*links, pre_gate, post_gate, residual)
    split = by_heads(num_q_heads, num_k_heads, num_v_heads, head_q, head_k, head_v)
    options = _options(
        split, activation, disable_state_update, pad_slot_id, null_slot, pad_output, first_column, max_query_len
    )
    q, k, v = _run(split, inputs, extras, split.given_outs(out), options)
    return q, k, v


def _options(
    split: Split,
    activation: str | None,
    disable_state_update: bool,
    pad_slot_id: int,
    null_slot: int | None,
    pad_output: str,
    first_column: int | None,
    max_query_len: int | None,
) -> tuple[Any, ...]:
    """What `check` takes besides arrays."""
    # The usual arguments are recognised without calling a function: this is on the path of every call.
    if activation is not None:
        checks.activation(activation)
    if (
        disable_state_update is False
        and pad_slot_id is slots.NONE
        and pad_output is slots.ZERO
        and null_slot is first_column is max_query_len is None
    ):
        return split, activation is not None, False, slots.NONE, None, None, False
    is_read_only = checks.flag("disable_state_update", disable_state_update)
    padding, keeps_padding = slots.padding(pad_slot_id, null_slot), slots.keeps_padding(pad_output)
    if max_query_len is not None:
        max_query_len = checks.integer("max_query_len", max_query_len)
    column = checks.column(first_column)
    return split, activation is not None, is_read_only, padding, column, max_query_len, keeps_padding


def _run(
    split: Split,
    inputs: tuple[Any, ...],
    extras: tuple[Any, ...] | None,
    outs: tuple[Any, ...],
    options: tuple[Any, ...],
) -> Sequence[Any]:
    if extras is None:
        return _step(inputs + outs, options, split.names)
    return _step_with_extras(inputs + extras + outs, (*options[:-1], False, options[-1]), split.names)


def _reference(o: Operands, arrays: Arrays) -> None:
    if o.by_token:
        turned = {name: arrays[name].swapaxes(1, 2) for name in o.by_token if arrays[name] is not None}
        arrays = {**arrays, **turned}
    inputs = {name: array for name, array in arrays.items() if name not in o.split.names}
    inputs["dst_state_indices"] = reading_columns(o, arrays.get)("dst_state_indices")
    inputs["conv_state"] = inputs["conv_state"][:, :, : o.conv_state.shape[2]]
    for name in ("x", *GATES):
        if (each := inputs.get(name)) is not None and each.ndim == 2:
            inputs[name] = each[:, :, None]
    result, is_computed = reference_convolve.convolve_step(
        **inputs,
        activation="silu" if o.silu else None,
        disable_state_update=o.disable_state_update,
        pad_slot_id=o.pad_slot_id,
        max_query_len=o.seqlen,
    )
    o.split.write(result, arrays, is_computed if o.keeps_padding else None)


INPUTS = (
    *("x", "conv_state", "weight", "bias", "cache_seqlens", "conv_state_indices", "num_accepted_tokens"),
    *("intermediate_conv_window", "intermediate_state_indices", "state_column", "dst_state_indices"),
    *("has_initial_state", "query_start_loc", "token_state_indices", "parents"),
)
EXTRAS = (*trees.LINKS, *GATES)
"""Further arrays, which few calls have."""

_step = Operation(
    INPUTS,
    name="causal_conv1d_update",
    check=check,
    plan=plan,
    reference=_reference,
    contents=check_contents,
    absent=EXTRAS,
)
_step_by_blocks = replace(_step, name="causal_conv1d_update_by_blocks", check=check_by_blocks)
# Each argument costs a call some time, even when it is None.
_step_with_extras = replace(
    _step, inputs=INPUTS + EXTRAS, name="causal_conv1d_update_with_extras", check=check_with_extras, absent=()
)
