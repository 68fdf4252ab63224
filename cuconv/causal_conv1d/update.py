"""The decode step of the convolution, with one result or one per range of channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference
from cuconv.causal_conv1d.kernels import GATES, MAX_SEQUENCES, MAX_TOKENS, WIDTHS
from cuconv.causal_conv1d.kernels_update import MAX_TREE_TOKENS
from cuconv.causal_conv1d.plan_update import Operands, is_overlaid, plan
from cuconv.causal_conv1d.split import WHOLE, Split, by_heads, by_sizes
from cuconv.causal_conv1d.states import window
from cuconv.runtime import checks, slots, trees
from cuconv.runtime.call import Arrays, Checked, Layouts, Operation
from cuconv.runtime.dtypes import BOOL, FLOATS, INDICES
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout

BY_SEQUENCE = ("cache_seqlens", "num_accepted_tokens", "intermediate_state_indices")

NOT_BESIDE = {
    "token_state_indices": ("cache_seqlens",),
    "parents": ("cache_seqlens", "num_accepted_tokens", "query_start_loc"),
    "retrieve_next_token": ("parents", "cache_seqlens", "num_accepted_tokens", "query_start_loc"),
    **dict.fromkeys(GATES, ("parents", "retrieve_next_token")),
}
"""Arrays that have no meaning beside others: states after single tokens are no rings, and the tokens of a tree are
neither packed nor gated."""


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

    With the last inputs of a sequence in its slot of conv_state and the new ones in x, for its t-th new token

        out[d, t] = act(bias[d] + sum over w of weight[d, w] * input[d, t - (width - 1) + w]),

    summed in float32 (Gu and Dao, "Mamba", 2023, section 3.4). The inputs before the first new token are read from the
    state, and the new inputs are kept there, in one of three ways:

    - By default a state is a row: its last width - 1 columns are the inputs before. It moves left by seqlen, and the
      new inputs follow. With first_column=0 the row is the first width - 1 columns, and others stay as they are.
    - With cache_seqlens it is a ring: token t goes to column (cache_seqlens + t) % state_len, and the inputs before are
      in the width - 1 columns before that of the first token.
    - With num_accepted_tokens it is the window of speculative decoding. The last call left width - 2 inputs and then
      those of its tokens, of which num_accepted_tokens were accepted (0 counts as 1). The inputs before are those up to
      the last accepted one: columns num_accepted_tokens - 1 and following. This call leaves its own in the same way, in
      the first width - 1 + seqlen - 1 columns, and the columns behind them as they are. A prefill with first_column=0
      comes before such calls, with one accepted token; and behind a call of one token, calls with first_column=0.

    Sequences may have different numbers of tokens, packed one behind the other (query_start_loc), and the tokens of one
    may be those of a tree (parents). The state after each token may be kept, too, in a buffer or in slots: what a call
    that ends with this token would leave. A tree leaves the state after its last token.

    Many tokens in one call, as many calls of one token, and the prefill of `causal_conv1d_varlen_fn` give the same bits
    as long as the states hold the values of x exactly. Arrays are NumPy, CuPy, torch or DLPack ones, all of one
    kind and on one device, of any strides. The kernel runs on the caller's current stream, and the call waits for
    nothing, except under CUCONV_CHECK=1, which reads index arrays back and checks them.

    Args:
        x: (batch, dim) or (batch, dim, seqlen), packed (tokens, dim), float32, float16 or bfloat16.
        conv_state: (slots, dim, state_len), state_len at least width - 1, any of these dtypes; updated in place.
        weight: (dim, width), any of these dtypes, width 1 to 16.
        bias: (dim,), weight's dtype or float32.
        activation: None, "silu" or "swish" (the same).
        cache_seqlens: (batch,), int32 or int64: the number of tokens that each sequence had before.
        conv_state_indices: (batch,) or (batch, columns), int32 or int64: the slot of each sequence, its own number when
            None; of several columns the one in state_column, else the first. A sequence with a slot that is negative,
            pad_slot_id or outside the pool gives 0, and its state is neither read nor written. Two sequences must not
            share a slot that one of them writes. Here and in all other arrays by sequence, rows behind those of the
            batch are ignored.
        query_start_loc: (batch + 1,), int32 or int64, from 0 up to at most tokens, never falling: where sequences
            begin in a packed x, and where the last one ends. An empty sequence leaves its state as it is. Tokens of no
            sequence are padding and give 0.
        max_query_len: the most tokens of a packed sequence, where that is known: calls of one token are quicker then.
            Further tokens of a sequence are padding.
        num_accepted_tokens: (batch,), int32 or int64. A sequence with more accepted tokens, or packed tokens, than the
            state can hold gives 0, and its state is neither read nor written. state_len must be at least width - 1 +
            seqlen - 1, with max_query_len in the place of seqlen.
        intermediate_conv_window: (rows, steps, dim, width - 1), conv_state's dtype, steps at least seqlen: receives
            the width - 1 inputs that end with each token, of packed sequences those of the first `steps` tokens. A
            token's window may be the next one's but for a column: strides of steps and columns that are equal. (rows,
            steps, dim, state_len), without cache_seqlens and num_accepted_tokens: receives the state after each token.
        intermediate_state_indices: (batch,), int32 or int64: the row there of each sequence, its slot when None. A
            sequence with a row outside the buffer writes nothing there. Two sequences must not share a row.
        token_state_indices: (batch, columns), int32 or int64: the slots for the states after single tokens; a state is
            not kept where there is no column, or a slot that is negative, pad_slot_id or outside the pool. No other
            state must go there, nor another sequence start there; its own may with disable_state_update. With
            num_accepted_tokens these are windows for one accepted token. It has no meaning with cache_seqlens.
        parents: (batch, seqlen), int32 or int64: the number of the token that each follows, less than its own, or else
            it follows the state, as the first always does. It has no meaning with cache_seqlens, num_accepted_tokens or
            query_start_loc. seqlen is at most 1024 in trees.
        retrieve_next_token, retrieve_next_sibling: (batch, seqlen), int32 or int64, both or neither, and in the place
            of parents: the first child of each token, and the next child of its own parent, -1 for none, as SGLang and
            TensorRT-LLM have trees. Each leads to a later token, or else it counts for nothing; a token that none leads
            to follows the first one.
        retrieve_parent_token: (batch, seqlen), int32 or int64, beside these two: receives the parents, 0 where there is
            none, in the rows of sequences with results.
        state_column: (batch,), int32 or int64: the column of conv_state_indices for each sequence. One without such a
            column is treated as if its slot were negative.
        dst_state_indices: (batch,), int32 or int64: the slot that each sequence leaves its state in, the one it starts
            from when None. What the call would write there goes here instead, with the columns that move; a ring goes
            here whole. A sequence with a slot here that is negative, pad_slot_id or outside the pool leaves no state.
            No sequence must leave its state where another one does, or starts.
        has_initial_state: (batch,), bool: whether each sequence starts from what its slot holds, else from zeros; true
            when None.
        disable_state_update: leave conv_state as it is, but for the slots in token_state_indices.
        pad_slot_id: the slot number of sequences that only fill a batch. Only given slot numbers are compared with it.
        null_slot: the same, as engines name it that have a slot, often 0, for no state. Where both are 0 or more they
            must be equal.
        pad_output: "zero", or "keep": sequences that would give 0 leave out, which must be given, as it is.
        first_column: which columns of longer states hold the inputs: -1 the last ones, 0 the first width - 1, where
            engines keep them. None: 0 with num_accepted_tokens, else -1; no other value has a meaning with
            cache_seqlens.
        pre_gate: shape and dtype of x: the filter reads pre_gate * x, rounded to x's dtype, which is also what states
            hold. None beside parents, and so are the other two.
        post_gate: shape and dtype of x: the result, rounded to x's dtype, is multiplied by it, as in LFM2.
        residual: shape and dtype of x: added to the result behind all else, in float32. It may be x itself. Padding
            gives 0 all the same.
        out: shape and dtype of x: where to write the result. It may be x itself, unless there are parents, but must not
            overlap any other argument.

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
    outs = None if out is None else (out,)
    return _run(
        *(WHOLE, inputs, extras, outs, activation, disable_state_update, pad_slot_id, null_slot, pad_output),
        *(first_column, max_query_len),
    )[0]


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
    state_column and leaves its state in that of column block_idx_last_scheduled_token, (batch,) both.

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

    One kernel writes them all; there is no intermediate result. Arguments and errors are those of
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
    return _run(
        *(split, inputs, extras, out, activation, disable_state_update, pad_slot_id, null_slot, pad_output),
        *(first_column, max_query_len),
    )


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
    """`causal_conv1d_update` on the channels q | k | v of linear attention, as Gated DeltaNet and Kimi have it.

    One kernel convolves and writes all three; there is no intermediate result. Arguments and errors are those of
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
    q, k, v = _run(
        *(split, inputs, extras, out, activation, disable_state_update, pad_slot_id, null_slot, pad_output),
        *(first_column, max_query_len),
    )
    return q, k, v


def _run(
    split: Split,
    inputs: tuple[Any, ...],
    extras: tuple[Any, ...] | None,
    out: Sequence[Any] | None,
    activation: str | None,
    disable_state_update: bool,
    pad_slot_id: int,
    null_slot: int | None,
    pad_output: str,
    first_column: int | None,
    max_query_len: int | None,
) -> tuple[Any, ...]:
    checks.activation(activation)
    is_read_only = checks.flag("disable_state_update", disable_state_update)
    # Calls of functions are left out where these arguments are as usual: this is on the path of every call.
    pad_slot_id = (
        checks.integer("pad_slot_id", pad_slot_id) if null_slot is None else slots.padding(pad_slot_id, null_slot)
    )
    keeps_padding = pad_output is not slots.ZERO and slots.keeps_padding(pad_output)
    if max_query_len is not None:
        max_query_len = checks.integer("max_query_len", max_query_len)
    column = checks.column(first_column)
    options = (split, activation is not None, is_read_only, pad_slot_id, column, max_query_len, keeps_padding)
    if extras is None:
        return tuple(_step(inputs + split.given_outs(out), options, split.names))
    return tuple(_step_with_extras(inputs + extras + split.given_outs(out), options, split.names))


def _check(
    given: Layouts,
    split: Split,
    silu: bool,
    disable_state_update: bool,
    pad_slot_id: int,
    first_column: int | None = None,
    max_query_len: int | None = None,
    keeps_padding: bool = False,
) -> Checked[Operands]:
    x, conv_state, weight, bias, *_ = given.values()
    assert x is not None
    is_packed = given["query_start_loc"] is not None
    if len(x.shape) not in ((2,) if is_packed else (2, 3)):
        wanted = "2 axes (tokens, dim)" if is_packed else "2 or 3 axes (batch, dim[, seqlen])"
        raise ValueError(message("x", f"shape {x.shape}", wanted))
    checks.dtype("x", x.dtype, FLOATS)
    _check_modes(given, disable_state_update, first_column, max_query_len)
    dim, sequences, seqlen, axes = _check_tokens(x, given["query_start_loc"], max_query_len)
    checks.taps(weight, bias, dim, WIDTHS)
    assert weight is not None
    width = weight.shape[1]
    longest = max(seqlen, 1) if not is_packed else max(max_query_len or 1, 1)
    _check_state(conv_state, given, sequences, dim, longest, width)
    assert conv_state is not None
    for name in BY_SEQUENCE:
        slots.by_sequence(name, given[name], sequences, axes)
    slots.by_sequence("has_initial_state", given["has_initial_state"], sequences, axes, (BOOL,))
    starts = slots.sources(given, "conv_state_indices", sequences, axes)
    live = conv_state if given["num_accepted_tokens"] is not None else window(conv_state, width - 1, first_column)
    windows = _check_windows(given, live, sequences, dim, 0 if is_packed else seqlen, width)
    _check_tables(given, sequences, seqlen, axes)
    for name in GATES:
        if (gate := given.get(name)) is not None:
            checks.dtype(name, gate.dtype, (x.dtype,))
            checks.shape(name, gate.shape, x.shape, "the shape of x")
    shared = (x.shape[0],), tuple(x.shape[2:])
    results = split.results(given, x, *shared, _axes(split, is_packed, has_tokens=len(x.shape) == 3))
    if keeps_padding:
        slots.check_kept(given, split.names)
    outs = tuple(split.by_head(out, *shared) for out in results.values())
    inputs = {name: layout for name, layout in given.items() if name not in results}
    for name in ("x", *GATES):
        if (each := given.get(name)) is not None:
            by_token = each if len(each.shape) == 3 else each.with_axis(2)
            inputs[name] = by_token.with_order(2, 1, 0) if is_packed else by_token
    if is_packed:
        outs = tuple(out.with_order(1, 0, 2, 3) for out in outs)
    operands = Operands(
        **{**inputs, "conv_state": live, "conv_state_indices": starts},  # type: ignore[arg-type]
        outs=outs,
        split=split,
        silu=silu,
        pad_slot_id=pad_slot_id,
        disable_state_update=disable_state_update,
        sequences=sequences,
        seqlen=seqlen,
        keeps_padding=keeps_padding,
    )
    is_written = not disable_state_update or given["token_state_indices"] is not None
    # A token of a tree reads the inputs before it, when the results of those may have been written.
    may_be_x = split is WHOLE and not _is_tree(given)
    updated = ("conv_state", "intermediate_conv_window")[not is_written :]
    return Checked(
        operands,
        results,
        updated=(*updated, "retrieve_parent_token") if "retrieve_parent_token" in given else updated,
        in_place=("out", "x") if may_be_x else (),
        overlaid={} if windows is None else {"intermediate_conv_window": windows},
    )


def _check_by_blocks(given: Layouts, *options: Any) -> Checked[Operands]:
    for name in ("state_column", "dst_state_indices"):
        if given[name] is None:
            raise ValueError(message(name, "None", "an array beside the other one"))
    checked = _check(given, *options)
    return replace(checked, operands=checked.operands._replace(dst_is_column=True))


def _reading_columns(o: Operands, read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A function that reads an array by its name, and the slots that columns stand for, in NumPy."""
    if not o.dst_is_column:
        return read
    found = slots.start_slots(read("conv_state_indices"), read("dst_state_indices"), o.sequences)
    return lambda name: found if name == "dst_state_indices" else read(name)


def _check_tokens(x: Layout, starts: Layout | None, max_query_len: int | None) -> tuple[int, int, int, str]:
    """Checks the sizes of x; returns dim, sequences, their tokens at most, and how errors call the sequences."""
    batch, dim, *tokens = x.shape
    checks.between("dim of x", dim, 0, MAX_DIVIDEND)
    if starts is None:
        checks.between("batch of x", batch, 0, MAX_SEQUENCES)
        checks.between("seqlen of x", x.size // max(1, batch * dim) if tokens else 1, 0, MAX_TOKENS)
        return dim, batch, tokens[0] if tokens else 1, "batch of x"
    checks.between("tokens of x", batch, 0, MAX_TOKENS)
    sequences = checks.starts("query_start_loc", starts, MAX_SEQUENCES)
    seqlen = batch if max_query_len is None else min(max_query_len, batch)
    return dim, sequences, seqlen, "sequences of query_start_loc"


def _check_tables(given: Layouts, sequences: int, seqlen: int, axes: str) -> None:
    """Checks the arrays that have a row per sequence and a column per token."""
    if (slots_of_tokens := given["token_state_indices"]) is not None:
        checks.dtype("token_state_indices", slots_of_tokens.dtype, INDICES)
        if len(slots_of_tokens.shape) != 2 or slots_of_tokens.shape[0] < sequences:
            wanted = f"({sequences}, tokens) or more rows ({axes})"
            raise ValueError(message("token_state_indices", f"shape {slots_of_tokens.shape}", wanted))
        checks.between("columns of token_state_indices", slots_of_tokens.shape[1], 0, MAX_TOKENS)
    if given["parents"] is not None:
        trees.check(given["parents"], sequences, seqlen, "batch, seqlen of x")
    trees.check_links(given, sequences, seqlen, "batch, seqlen of x")
    if _is_tree(given):
        checks.between("seqlen of x, of trees", seqlen, 0, MAX_TREE_TOKENS)


def _check_modes(
    given: Layouts, disable_state_update: bool, first_column: int | None, max_query_len: int | None
) -> None:
    """Raise ValueError for arguments that have no meaning together."""
    if max_query_len is not None:
        if given["query_start_loc"] is None:
            raise ValueError(message("max_query_len", max_query_len, "None unless query_start_loc is given"))
        checks.between("max_query_len", max_query_len, 0, MAX_TOKENS)
    for name, others in NOT_BESIDE.items():
        for other in others:
            if given.get(name) is not None and given.get(other) is not None:
                raise ValueError(message(name, "an array", f"None beside {other}"))
    if first_column is not None and given["cache_seqlens"] is not None:
        wanted = "None beside cache_seqlens, which says where the inputs are"
        raise ValueError(message("first_column", first_column, wanted))
    if first_column == -1 and given["num_accepted_tokens"] is not None:
        wanted = "0 or None beside num_accepted_tokens, which counts from the first column"
        raise ValueError(message("first_column", first_column, wanted))
    if given["num_accepted_tokens"] is not None:
        if given["cache_seqlens"] is not None:
            wanted = "None beside cache_seqlens: a ring takes tokens back by a smaller cache_seqlens"
            raise ValueError(message("num_accepted_tokens", "an array", wanted))
        if disable_state_update and given["token_state_indices"] is None and given["intermediate_conv_window"] is None:
            wanted = "false beside num_accepted_tokens, unless states are kept: the next call finds tokens in the state"
            raise ValueError(message("disable_state_update", "true", wanted))
    if given["intermediate_state_indices"] is not None and given["intermediate_conv_window"] is None:
        wanted = "None unless intermediate_conv_window is given"
        raise ValueError(message("intermediate_state_indices", "an array", wanted))


def _is_tree(given: Layouts) -> bool:
    """Whether each token follows one that an array names."""
    return given["parents"] is not None or given.get("retrieve_next_token") is not None


def _check_state(conv_state: Layout | None, given: Layouts, sequences: int, dim: int, seqlen: int, width: int) -> None:
    if conv_state is None:
        raise TypeError(message("conv_state", "None", "an array (slots, dim, state_len)"))
    columns = width - 1, "width - 1"
    if given["num_accepted_tokens"] is not None:
        name = "seqlen" if given["query_start_loc"] is None else "max_query_len"
        columns = width - 1 + seqlen - 1, f"width - 1 + {name} - 1, for num_accepted_tokens"
    slots = sequences if given["conv_state_indices"] is None else 0, "conv_state_indices"
    checks.pool("conv_state", conv_state, dim, columns, slots)
    checks.between("state_len of conv_state", conv_state.shape[2], 0, MAX_TOKENS)


def _check_windows(given: Layouts, live: Layout, sequences: int, dim: int, seqlen: int, width: int) -> Layout | None:
    """Checks the intermediate windows; returns their distinct elements where windows lie over each other."""
    windows = given["intermediate_conv_window"]
    if windows is None:
        return None
    checks.rank("intermediate_conv_window", windows.shape, "rows, steps, dim, width - 1")
    checks.dtype("intermediate_conv_window", windows.dtype, (live.dtype,))
    rows, steps, _, columns = windows.shape
    wanted_columns, axes = width - 1, "rows, steps, dim of x, width - 1"
    if given["cache_seqlens"] is None and given["num_accepted_tokens"] is None:
        axes += " or state_len"
        wanted_columns = columns if columns == live.shape[2] else width - 1
    checks.shape("intermediate_conv_window", windows.shape, (rows, steps, dim, wanted_columns), axes)
    if steps < seqlen:
        raise ValueError(message("steps of intermediate_conv_window", steps, f"at least {seqlen}, the tokens of x"))
    checks.between("steps of intermediate_conv_window", steps, 0, MAX_TOKENS)
    wanted = sequences if given["conv_state_indices"] is None else live.shape[0]
    if given["intermediate_state_indices"] is None and rows < wanted:
        because = f"at least {wanted}, one a slot, or intermediate_state_indices"
        raise ValueError(message("rows of intermediate_conv_window", rows, because))
    if columns != width - 1 or _is_tree(given) or not is_overlaid(windows):
        return None
    row, step, channel, _ = windows.strides
    return windows._replace(shape=(rows, dim, steps + columns - 1), strides=(row, channel, step))


def _axes(split: Split, is_packed: bool, has_tokens: bool) -> str:
    """The axes of a result, as an error names them."""
    if is_packed:
        return "tokens of x, heads, head_dim" if split.has_heads else "tokens of x, channels"
    if split.has_heads:
        return "batch, seqlen of x, heads, head_dim" if has_tokens else "batch of x, heads, head_dim"
    return "batch of x, channels, seqlen of x" if has_tokens else "batch of x, channels"


def _check_contents(o: Operands, read: Callable[[str], Any]) -> None:
    """Raise ValueError for contents of index arrays that cannot be right."""
    read = _reading_columns(o, read)
    count, state_len = o.conv_state.shape[0], o.conv_state.shape[2]
    lengths, most = np.full(o.sequences, o.seqlen), state_len - (o.weight.shape[1] - 1) + 1
    if (begins := read("query_start_loc")) is not None:
        checks.boundaries("query_start_loc", begins, o.x.shape[2])
        lengths = np.diff(begins)
        longest = min(o.seqlen, most) if o.num_accepted_tokens is not None else o.seqlen
        if (longer := np.flatnonzero(lengths > longest)).size:
            i = longer[0]
            because = "max_query_len" if longest == o.seqlen else "what the state holds"
            wanted = f"at most {longest}, {because}"
            raise ValueError(message("query_start_loc", f"{lengths[i]} tokens for sequence {i}", wanted))
    starts, pad = slots.read_starts(read, "conv_state_indices", o.sequences), o.pad_slot_id
    live = lengths > 0
    if o.conv_state_indices is not None:
        live &= ~slots.are_padding(starts, pad)
    finals, goes_on = read("dst_state_indices"), read("has_initial_state")
    reads = live if goes_on is None else goes_on[: o.sequences]
    kept = slots.check_contents("conv_state_indices", starts, finals, live, reads, count, pad, o.disable_state_update)
    if (targets := read("token_state_indices")) is not None:
        targets = targets[: o.sequences]
        tokens = np.arange(targets.shape[1])
        is_kept = live[:, None] & (tokens < lengths[:, None]) & ~slots.are_padding(targets, pad)
        checks.slots("token_state_indices", np.concatenate([targets[is_kept], kept]), count)
        readers = np.flatnonzero(live & reads)
        writers = np.nonzero(is_kept)[0]
        checks.not_read_by_others("token_state_indices", targets[is_kept], writers, starts[readers], readers)
    if (accepted := read("num_accepted_tokens")) is not None:
        accepted = accepted[: o.sequences]
        if (outside := accepted[live & (accepted > most)]).size:
            wanted = f"at most {most}, for what the state holds"
            raise ValueError(message("num_accepted_tokens", outside[0], wanted))
    if o.intermediate_conv_window is not None:
        rows = read("intermediate_state_indices")
        name, used = ("conv_state_indices", starts)
        if rows is not None:
            name, used = ("intermediate_state_indices", rows[: o.sequences])
        checks.rows(name, used[live], o.intermediate_conv_window.shape[0], pad)
    if o.parents is not None:
        trees.check_contents(read("parents")[: o.sequences][live])
    if o.retrieve_next_token is not None:
        for name in trees.LINKS[:2]:
            trees.check_links_contents(name, read(name)[: o.sequences][live], o.seqlen)


def _reference(o: Operands, arrays: Arrays) -> None:
    inputs = {name: array for name, array in arrays.items() if name not in o.split.names}
    inputs["dst_state_indices"] = _reading_columns(o, arrays.get)("dst_state_indices")
    inputs["conv_state"] = inputs["conv_state"][:, :, : o.conv_state.shape[2]]
    for name in ("x", *GATES):
        if (each := inputs.get(name)) is not None and each.ndim == 2:
            inputs[name] = each[:, :, None]
    result, is_computed = reference.convolve_step(
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
    check=_check,
    plan=plan,
    reference=_reference,
    contents=_check_contents,
    absent=EXTRAS,
)
_step_by_blocks = Operation(
    INPUTS,
    name="causal_conv1d_update_by_blocks",
    check=_check_by_blocks,
    plan=plan,
    reference=_reference,
    contents=_check_contents,
    absent=EXTRAS,
)
# An array that is absent costs a call some time, too.
_step_with_extras = Operation(
    INPUTS + EXTRAS,
    name="causal_conv1d_update_with_extras",
    check=_check,
    plan=plan,
    reference=_reference,
    contents=_check_contents,
)
