"""The causal convolutions in NumPy and float64: the oracle of all tests, and what computes NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference_backward
from cuconv.causal_conv1d.sequences import sequence_starts
from cuconv.runtime import slots, trees
from cuconv.runtime.activation import HALF_ULP, silu, silu_error

Array = np.ndarray[Any, Any]


def causal_conv1d_fn(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    seq_idx: Array | None = None,
    initial_states: Array | None = None,
    activation: str | None = None,
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
) -> tuple[Array, Array]:
    """Depthwise causal convolution: (out in float64, final states in x's dtype).

    out[b, d, t] = act(bias[d] + sum_w weight[d, w] * x[b, d, t - (width - 1) + w]), where x before its first token is
    the initial state or zero. With seq_idx (batch, seqlen) a token sees only inputs of its own sequence number, the
    initial state counting as the first token's, and a token with a negative one gives 0.
    """
    batch, dim, seqlen = x.shape
    width = weight.shape[1]
    x = gated_input(x, pre_gate)
    past = np.zeros((batch, dim, width - 1), x.dtype) if initial_states is None else initial_states
    inputs = np.concatenate([past, x], axis=2)
    out = np.zeros((batch, dim, seqlen))
    if bias is not None:
        out += bias.astype(np.float64)[:, None]
    if seq_idx is not None and seqlen:
        sequences = np.concatenate([np.repeat(seq_idx[:, :1], width - 1, axis=1), seq_idx], axis=1)
    for w in range(width):
        term = weight[:, w, None].astype(np.float64) * inputs[:, :, w : w + seqlen].astype(np.float64)
        if seq_idx is not None and seqlen:
            term = np.where((sequences[:, w : w + seqlen] == seq_idx)[:, None], term, 0.0)
        out += term
    if activation is not None:
        out = silu(out)
    out = gated_output(out, x.dtype, post_gate, residual)
    if seq_idx is not None:
        out = np.where((seq_idx < 0)[:, None], 0.0, out)
    return out, inputs[:, :, seqlen:]


def causal_conv1d_varlen_fn(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    conv_states: Array | None = None,
    query_start_loc: Array | None = None,
    cache_indices: Array | None = None,
    has_initial_state: Array | None = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    first_column: int | None = None,
    *,
    state_column: Array | None = None,
    dst_state_indices: Array | None = None,
    initial_states: Array | None = None,
    null_slot: int | None = None,
    pad_output: str = "zero",
    snapshots: Array | None = None,
    snapshot_count: Array | None = None,
    snapshot_out: Array | None = None,
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
    """The convolution of packed sequences: (out (dim, total) in float64, copies of the states after the call by name).

    Where `pad_output` is "keep", out is NaN at padding.
    """
    given = {"conv_states": conv_states, "snapshot_out": snapshot_out}
    updated = {name: states.copy() for name, states in given.items() if states is not None}

    def live(states: Array | None) -> Array | None:
        return states if states is None or first_column != 0 else states[:, :, : weight.shape[1] - 1]

    out, is_padding = convolve_packed(
        *(x, weight, bias, live(updated.get("conv_states")), query_start_loc, cache_indices, has_initial_state),
        *(state_column, dst_state_indices, live(initial_states), activation, slots.padding(pad_slot_id, null_slot)),
        *(snapshots, snapshot_count, updated.get("snapshot_out"), pre_gate, post_gate, residual),
    )
    out[is_padding if x.ndim == 3 else (slice(None), is_padding)] = np.nan if pad_output == "keep" else 0.0
    return out, updated


def convolve_packed(
    x: Array,
    weight: Array,
    bias: Array | None,
    conv_states: Array | None,
    query_start_loc: Array | None,
    cache_indices: Array | None,
    has_initial_state: Array | None,
    state_column: Array | None,
    dst_state_indices: Array | None,
    initial_states: Array | None,
    activation: str | None,
    pad_slot_id: int,
    snapshots: Array | None = None,
    snapshot_count: Array | None = None,
    snapshot_out: Array | None = None,
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
) -> tuple[Array, Array]:
    """The convolution of packed sequences: ((dim, total) in float64, which tokens are padding).

    Of a dense batch ((batch, dim, seqlen), which entries are padding).

    Sequence i, the tokens query_start_loc[i] to query_start_loc[i + 1] - 1, follows the last width - 1 columns of
    slot cache_indices[i] of conv_states where has_initial_state[i] is true, else zeros. It leaves the last width - 1 of
    all these inputs, in place, in slot dst_state_indices[i], unless that is padding; the same slot when None. Without
    conv_states it follows initial_states, unless has_initial_state[i] is false, and leaves nothing. A sequence with
    slot pad_slot_id or a slot outside the pool gives 0, and so does padding. A row (sequence, position, slot) of
    snapshots leaves in its slot of snapshot_out, or of conv_states, the last of the inputs before that position.
    Nothing else of the pool is read or written.
    """
    if x.ndim == 3:
        batch, dim, seqlen = x.shape
        flat, starts = x.swapaxes(0, 1).reshape(dim, batch * seqlen), np.arange(batch + 1) * seqlen
        packed, is_padding = convolve_packed(
            *(flat, weight, bias, conv_states, starts, cache_indices, has_initial_state, state_column),
            *(dst_state_indices, initial_states, activation, pad_slot_id, snapshots, snapshot_count, snapshot_out),
        )
        entries: Array = np.all(is_padding.reshape(batch, seqlen), axis=1)
        return packed.reshape(dim, batch, seqlen).swapaxes(0, 1), entries
    dim, total = x.shape
    width = weight.shape[1]
    x = gated_input(x, pre_gate)
    begins = sequence_starts(query_start_loc, total)
    count = len(begins) - 1
    out, is_padding = np.zeros((dim, total)), np.ones(total, bool)
    pool = initial_states if conv_states is None else conv_states
    starts = slots.start_slots(cache_indices, state_column, count)
    pad_given = pad_slot_id if cache_indices is not None else -1
    is_live = np.ones(count, bool) if pool is None else slots.are_live(starts, len(pool), pad_given)
    finals = slots.final_slots(starts, dst_state_indices)
    stores = np.zeros(count, bool)
    if conv_states is not None:
        stores = slots.are_live(finals, len(conv_states), pad_given if dst_state_indices is None else pad_slot_id)
    first = 0 if pool is None else pool.shape[2] - (width - 1)
    goes_on = np.full(count, initial_states is not None) if has_initial_state is None else has_initial_state[:count]
    # All states are read before the first one is written.
    pasts: dict[int, Array] = {}
    if pool is not None:
        pasts = {i: pool[starts[i]].astype(np.float64) for i in np.flatnonzero(is_live & goes_on).tolist()}
    kept_in, kept_pad, kept_from = snapshot_out, -1, 0
    if kept_in is None and conv_states is not None:
        kept_in, kept_pad, kept_from = conv_states, pad_slot_id, first
    rows = slots.live_snapshots(snapshots, snapshot_count, 0 if kept_in is None else len(kept_in), kept_pad)
    for i in np.flatnonzero(is_live).tolist():
        begin, end = begins[i], begins[i + 1]
        if end <= begin:
            continue
        past = pasts.get(i, np.zeros((dim, first + width - 1)))
        inputs = x[:, begin:end].astype(np.float64)
        result, states = causal_conv1d_fn(inputs[None], weight, bias, None, past[None, :, first:], activation)
        out[:, begin:end] = result[0]
        is_padding[begin:end] = False
        if conv_states is not None and stores[i]:
            conv_states[finals[i], :, first:] = states[0].astype(conv_states.dtype)
        for _, position, slot in rows[rows[:, 0] == i]:
            if kept_in is not None and 0 <= position <= end - begin:
                columns = kept_in.shape[2] - kept_from
                joined = np.concatenate([np.zeros((dim, columns)), past, inputs[:, :position]], axis=1)
                kept_in[slot, :, kept_from:] = joined[:, joined.shape[1] - columns :].astype(kept_in.dtype)
    out = gated_output(out, x.dtype, post_gate, residual)
    out[:, is_padding] = 0.0
    return out, is_padding


def gated_input(x: Array, pre_gate: Array | None) -> Array:
    """What a filter reads: pre_gate * x, rounded to x's dtype."""
    if pre_gate is None:
        return x
    product: Array = (pre_gate.astype(np.float64) * x.astype(np.float64)).astype(x.dtype)
    return product


def gated_output(out: Array, dtype: Any, post_gate: Array | None, residual: Array | None) -> Array:
    """post_gate * out + residual in float64, with `out` rounded to x's dtype before a gate."""
    if post_gate is not None:
        out = out.astype(dtype).astype(np.float64) * post_gate.astype(np.float64)
    return out if residual is None else out + residual.astype(np.float64)


def causal_conv1d_varlen_states(
    x: Array, cu_seqlens: Array, state_len: int, previous_states: Array | None = None
) -> Array:
    """The last state_len tokens of every packed sequence, behind those of previous_states: (n, dim, state_len)."""
    total, dim = x.shape
    starts = sequence_starts(cu_seqlens, total)
    states = np.zeros((len(starts) - 1, dim, state_len), x.dtype)
    for i, (begin, end) in enumerate(pairwise(starts)):
        taken = min(max(end - begin, 0), state_len)
        if previous_states is not None:
            states[i, :, : state_len - taken] = previous_states[i, :, taken:]
        states[i, :, state_len - taken :] = x[end - taken : end].T
    return states


def l2norm(heads: Array, eps: float) -> Array:
    """Every vector along the last axis, divided by the square root of its squares' sum plus eps."""
    y = heads.astype(np.float64)
    norms: Array = np.sqrt((y * y).sum(axis=-1, keepdims=True) + eps)
    return y / norms


def causal_conv1d_update(
    x: Array,
    conv_state: Array,
    weight: Array,
    bias: Array | None = None,
    activation: str | None = None,
    cache_seqlens: Array | None = None,
    conv_state_indices: Array | None = None,
    num_accepted_tokens: Array | None = None,
    intermediate_conv_window: Array | None = None,
    intermediate_state_indices: Array | None = None,
    disable_state_update: bool = False,
    pad_slot_id: int = -1,
    first_column: int | None = None,
    *,
    query_start_loc: Array | None = None,
    max_query_len: int | None = None,
    token_state_indices: Array | None = None,
    parents: Array | None = None,
    retrieve_next_token: Array | None = None,
    retrieve_next_sibling: Array | None = None,
    retrieve_parent_token: Array | None = None,
    state_column: Array | None = None,
    dst_state_indices: Array | None = None,
    has_initial_state: Array | None = None,
    null_slot: int | None = None,
    pad_output: str = "zero",
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
) -> tuple[Array, Array, Array | None, Array | None]:
    """x (batch, dim, seqlen) after the states: (out in float64, copies of conv_state, windows and parents behind it).

    With query_start_loc x is (tokens, dim, 1). Where `pad_output` is "keep", out is NaN at padding.
    """
    state = conv_state.copy()
    is_row = cache_seqlens is None and num_accepted_tokens is None
    live = state[:, :, : weight.shape[1] - 1] if is_row and first_column == 0 else state
    windows = None if intermediate_conv_window is None else intermediate_conv_window.copy()
    found = None if retrieve_parent_token is None else retrieve_parent_token.copy()
    out, is_computed = convolve_step(
        *(x, live, weight, bias, activation, cache_seqlens, conv_state_indices, num_accepted_tokens, windows),
        *(intermediate_state_indices, state_column, dst_state_indices, has_initial_state, query_start_loc),
        *(token_state_indices, parents, disable_state_update, slots.padding(pad_slot_id, null_slot), max_query_len),
        *(retrieve_next_token, retrieve_next_sibling, found, pre_gate, post_gate, residual),
    )
    out[~is_computed & (pad_output == "keep")] = np.nan
    return out, state, windows, found


def convolve_step(
    x: Array,
    conv_state: Array,
    weight: Array,
    bias: Array | None,
    activation: str | None,
    cache_seqlens: Array | None,
    conv_state_indices: Array | None,
    num_accepted_tokens: Array | None,
    intermediate_conv_window: Array | None,
    intermediate_state_indices: Array | None,
    state_column: Array | None,
    dst_state_indices: Array | None,
    has_initial_state: Array | None,
    query_start_loc: Array | None,
    token_state_indices: Array | None,
    parents: Array | None,
    disable_state_update: bool,
    pad_slot_id: int,
    max_query_len: int | None,
    retrieve_next_token: Array | None = None,
    retrieve_next_sibling: Array | None = None,
    retrieve_parent_token: Array | None = None,
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
) -> tuple[Array, Array]:
    """x (batch, dim, seqlen) after the states: (in float64, which entries of x are no padding).

    With query_start_loc x is (tokens, dim, 1), and sequence b has the tokens query_start_loc[b] to query_start_loc[b +
    1] - 1, but at most max_query_len.

    What precedes sequence b is a window of width - 1 columns of its slot: the last ones, or those before the ring's
    column cache_seqlens[b], or those from max(num_accepted_tokens[b], 1) - 1 on. Where has_initial_state[b] is false
    all columns count as zeros. Afterwards the state has moved left to end with x; or the ring holds x from that column
    on; or its first columns hold window and x but for the first of these. It is left in place, in slot
    dst_state_indices[b] unless that is padding; the same slot when None. intermediate_conv_window[row, t] receives the
    last inputs up to token t, as many as it has columns, and slot token_state_indices[b, t] the state after token t:
    all columns or, with num_accepted_tokens, the window in the first ones.
    With parents token t of sequence b follows token parents[b, t], or the state; with retrieve_next_token and
    retrieve_next_sibling these follow from the links, and go to retrieve_parent_token. Nothing else of the pool and of
    the windows is read or written.
    """
    is_packed = query_start_loc is not None
    x = gated_input(x, pre_gate)
    begins, counts = np.arange(len(x)), np.full(len(x), x.shape[2])
    if is_packed:
        starts = np.array(sequence_starts(query_start_loc, len(x)))
        begins, counts = starts[:-1], np.clip(np.diff(starts), 0, max_query_len)
    sequences = len(counts)
    count, _, state_len = conv_state.shape
    halo = weight.shape[1] - 1
    out, state, is_computed = np.zeros(x.shape), conv_state, np.zeros(len(x), bool)
    slot = slots.start_slots(conv_state_indices, state_column, sequences)
    target = slots.final_slots(slot, dst_state_indices)
    is_live = slots.are_live(slot, count, -1 if conv_state_indices is None else pad_slot_id)
    has_target = is_live if dst_state_indices is None else slots.are_live(target, count, pad_slot_id)
    first = np.full(sequences, state_len - halo)
    if cache_seqlens is not None:
        first = cache_seqlens[:sequences].astype(np.int64) % max(state_len, 1) - halo
    elif num_accepted_tokens is not None:
        first = np.maximum(num_accepted_tokens[:sequences].astype(np.int64), 1) - 1
        is_live &= (first <= state_len - halo) & (counts <= state_len - halo + 1)
    is_fresh = np.zeros(sequences, bool) if has_initial_state is None else ~has_initial_state[:sequences]
    # All states are read before the first one is written.
    live = np.flatnonzero(is_live & (counts > 0))
    if retrieve_next_token is not None and retrieve_next_sibling is not None:
        links = (each[:sequences, : x.shape[2]] for each in (retrieve_next_token, retrieve_next_sibling))
        parents = trees.parents_of_links(*links)
        if retrieve_parent_token is not None:
            retrieve_parent_token[live, : x.shape[2]] = parents[live]
    wholes = np.where(is_fresh[live, None, None], np.zeros((), state.dtype), state[slot[live]])
    for number in np.unique(counts[live]).tolist():
        is_chosen = counts[live] == number
        chosen, whole = live[is_chosen], wholes[is_chosen]
        entries = begins[chosen, None] + np.arange(number)
        tokens = x[entries, :, 0].transpose(0, 2, 1) if is_packed else x[chosen]
        columns = (first[chosen, None] + np.arange(halo)) % max(state_len, 1)
        past = np.take_along_axis(whole, columns[:, None], axis=2)
        of_tree = None if parents is None else parents[chosen]
        results = _after_past(past, tokens, weight, bias, activation, of_tree)
        tokens = tokens.astype(state.dtype)
        if is_packed:
            out[entries, :, 0], is_computed[entries] = results.transpose(0, 2, 1), True
        else:
            out[chosen], is_computed[chosen] = results, True
        if intermediate_conv_window is not None:
            width = intermediate_conv_window.shape[3]
            row = slot[chosen] if intermediate_state_indices is None else intermediate_state_indices[chosen]
            is_row = (row >= 0) & (row < len(intermediate_conv_window))
            inputs = np.concatenate([whole if width > halo else past, tokens], axis=2)
            for t, after in enumerate(_states_after(inputs, number, of_tree)[: intermediate_conv_window.shape[1]]):
                intermediate_conv_window[row[is_row], t] = after[is_row]
        states = _states_after(np.concatenate([whole, tokens], axis=2), number, of_tree)
        if token_state_indices is not None:
            if num_accepted_tokens is not None:
                states = _states_after(np.concatenate([past, tokens], axis=2), number, of_tree)
            goes_to = token_state_indices[chosen, :number].astype(np.int64).T
            for after, slots_of_token in zip(states, goes_to, strict=False):
                stores = slots.are_live(slots_of_token, count, pad_slot_id)
                state[slots_of_token[stores], :, : after.shape[2]] = after[stores]
        if disable_state_update:
            continue
        stores = has_target[chosen]
        final, start = target[chosen][stores], slot[chosen][stores]
        ring = first[chosen][stores] + halo
        if cache_seqlens is not None:
            is_moved = (final != start) | is_fresh[chosen][stores]
            state[final[is_moved]] = whole[stores][is_moved]
            # Of more tokens than the ring has columns, the last remain.
            for t in range(max(number - state_len, 0), number):
                state[final, :, (ring + t) % state_len] = tokens[stores][:, :, t]
        elif num_accepted_tokens is not None:
            joined = np.concatenate([past, tokens], axis=2)[stores]
            state[final, :, : halo + number - 1] = joined[:, :, 1:]
        else:
            state[final] = states[-1][stores]
    out = gated_output(out, x.dtype, post_gate, residual)
    out[~is_computed] = 0.0
    return out, is_computed


def _after_past(
    past: Array, tokens: Array, weight: Array, bias: Array | None, activation: str | None, parents: Array | None
) -> Array:
    """Results of (n, dim, tokens) after past inputs (n, dim, width - 1)."""
    if parents is None:
        return causal_conv1d_fn(tokens, weight, bias, None, past.astype(np.float64), activation)[0]
    halo, inputs = past.shape[2], np.concatenate([past.astype(np.float64), tokens.astype(np.float64)], axis=2)
    results = []
    for t in range(tokens.shape[2]):
        taken = np.stack([_path_columns(each, t, halo, halo + 1) for each in parents])
        seen = np.take_along_axis(inputs, taken[:, None], axis=2)
        results.append(causal_conv1d_fn(seen[:, :, halo:], weight, bias, None, seen[:, :, :halo], activation)[0])
    return np.concatenate(results, axis=2)


def _states_after(inputs: Array, count: int, parents: Array | None) -> list[Array]:
    """The states after each of the last `count` of these inputs, of which the others are the state before them."""
    columns = inputs.shape[2] - count
    if parents is None:
        return [inputs[:, :, t + 1 : t + 1 + columns] for t in range(count)]
    taken = [np.stack([_path_columns(each, t, columns, columns) for each in parents]) for t in range(count)]
    return [np.take_along_axis(inputs, each[:, None], axis=2) for each in taken]


def _path_columns(parents: Array, token: int, before: int, count: int) -> Array:
    """The last `count` inputs up to a token of a tree: numbers of `before` earlier inputs and of tokens behind them."""
    path: list[int] = []
    while token >= 0:
        path.insert(0, before + token)
        token = int(parents[token]) if parents[token] < token else -1
    return np.array([*range(before), *path][len(path) + before - count :], int)


UNDERFLOW = 2.0**-150
"""The largest absolute error of rounding to float32, next to 0."""

FACTORS = ("x", "weight", "bias", "initial_states", "conv_states", "conv_state")
"""Arguments that a convolution multiplies and adds."""

Errors = dict[str, Array]
Heads = tuple[tuple[int, int], ...]
"""(heads, head_dim) of q, k and v."""


def _error(convolve: Callable[..., tuple[Any, ...]], activation: str | None, arguments: Mapping[str, Any]) -> Array:
    """The absolute error per element that float32 arithmetic leaves in the first result of `convolve`.

    Each of the `width` fused multiply-adds rounds a partial sum of at most the sum of all terms' sizes. Where all terms
    are 0, so is the result.
    """
    sizes = {name: np.abs(each) if name in FACTORS and each is not None else each for name, each in arguments.items()}
    terms: Array = convolve(**sizes, activation=None)[0]
    error = 1.01 * arguments["weight"].shape[1] * (HALF_ULP * terms + UNDERFLOW)
    if activation is not None:
        out = convolve(**arguments, activation=activation)[0]
        error = silu_error(out, error, arguments["x"].dtype)
    return np.where(terms > 0.0, error, 0.0)


ROUNDING = {"float32": HALF_ULP, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of rounding to a dtype."""


def _gated_error(
    convolve: Callable[..., tuple[Any, ...]],
    activation: str | None,
    arguments: dict[str, Any],
    pre_gate: Array | None,
    post_gate: Array | None,
    residual: Array | None,
) -> Array:
    """The same where gates and residuals are around `convolve`.

    What is rounded in front of a gate may differ from the oracle by its own error and one step of its dtype; the
    product and the sum round in float32.
    """
    x = gated_input(arguments["x"], pre_gate)
    arguments["x"] = x
    error = _error(convolve, activation, arguments)
    if post_gate is None and residual is None:
        return error
    out, is_computed = np.abs(convolve(**arguments, activation=activation)[0]), error > 0.0
    rounding = ROUNDING[x.dtype.name]
    if post_gate is not None:
        gate = np.abs(post_gate.astype(np.float64))
        error = gate * (error + 2.0 * rounding * (out + error) + (2.0**-24 if rounding == 2.0**-11 else 0.0))
        out = gate * out
    if residual is not None:
        out = out + np.abs(residual.astype(np.float64))
    return np.where(is_computed, error + 2.0 * HALF_ULP * (out + error), 0.0)


def _packed_error(
    *,
    activation: str | None = "silu",
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
    **arguments: Any,
) -> Array:
    return _gated_error(causal_conv1d_varlen_fn, activation, arguments, pre_gate, post_gate, residual)


def _step_error(
    *,
    activation: str | None = None,
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
    **arguments: Any,
) -> Array:
    arguments["x"] = np.atleast_3d(arguments["x"])
    gates = (None if each is None else np.atleast_3d(each) for each in (pre_gate, post_gate, residual))
    return _gated_error(causal_conv1d_update, activation, arguments, *gates)


def _by_sizes(whole: Array, sizes: tuple[int, ...]) -> Errors:
    """The ranges of channels of (…, dim, seqlen), by result."""
    parts = np.split(whole, np.cumsum(sizes)[:-1], axis=-2)
    return {f"out[{number}]": part for number, part in enumerate(parts)}


def _take_heads(arguments: dict[str, Any]) -> Heads:
    """The numbers of heads and of their channels, which are removed from the arguments of a call."""
    return tuple((arguments.pop(f"num_{name}_heads"), arguments.pop(f"head_{name}")) for name in "qkv")


def _by_heads(whole: Array, heads: Heads) -> Errors:
    """The ranges of channels of (…, dim, seqlen) as (…, seqlen, heads, head_dim), by result."""
    parts = _by_sizes(whole, tuple(count * head_dim for count, head_dim in heads))
    return {
        name: part.swapaxes(-1, -2).reshape(*part.shape[:-2], part.shape[-1], *shape)
        for (name, part), shape in zip(parts.items(), heads, strict=True)
    }


def _normalized(heads: Array, error: Array, eps: float) -> Array:
    """The error of heads that are divided by their norms, along the last axis.

    An error of y moves y / n, n = sqrt(sum(y^2) + eps), by itself over n, and n by at most the norm of the errors of
    the head. The squares and their sum round once an addend, the reciprocal root is off by 2 ulp, the product by 1/2.
    """
    squares = (heads * heads).sum(axis=-1, keepdims=True)
    norms = np.sqrt(squares + eps)
    size = np.abs(heads) / norms
    moved = np.sqrt((error * error).sum(axis=-1, keepdims=True))
    result: Array = 1.01 * (error + size * moved) / norms + (heads.shape[-1] / 2 + 6) * HALF_ULP * size
    return result


def _fn_errors(
    *,
    return_final_states: bool = False,
    activation: str | None = None,
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
    **arguments: Any,
) -> Errors:
    return {"out": _gated_error(causal_conv1d_fn, activation, arguments, pre_gate, post_gate, residual)}


def _varlen_errors(**arguments: Any) -> Errors:
    return {"out": _packed_error(**arguments)}


def _split_errors(*, sizes: tuple[int, ...], **arguments: Any) -> Errors:
    return _by_sizes(_packed_error(**arguments), sizes)


def _qkv_split_errors(*, qk_l2norm: bool = False, l2norm_eps: float = 1e-6, **arguments: Any) -> Errors:
    heads = _take_heads(arguments)
    errors = _by_heads(_packed_error(**arguments)[None], heads)
    if qk_l2norm:
        results = _by_heads(causal_conv1d_varlen_fn(**arguments)[0][None], heads)
        errors |= {name: _normalized(results[name], errors[name], l2norm_eps) for name in ("out[0]", "out[1]")}
    return errors


def _states_errors(**arguments: Any) -> Errors:
    return {}


def _update_errors(**arguments: Any) -> Errors:
    return {"out": _step_error(**arguments).reshape(arguments["x"].shape)}


def _update_split_errors(*, sizes: tuple[int, ...], **arguments: Any) -> Errors:
    errors = _by_sizes(_step_error(**arguments), sizes)
    return errors if arguments["x"].ndim == 3 else {name: error[:, :, 0] for name, error in errors.items()}


def _update_qkv_split_errors(**arguments: Any) -> Errors:
    heads = _take_heads(arguments)
    errors = _by_heads(_step_error(**arguments), heads)
    return errors if arguments["x"].ndim == 3 else {name: error[:, 0] for name, error in errors.items()}


ERRORS: Mapping[str, Callable[..., Errors]] = {
    "causal_conv1d_fn": _fn_errors,
    "causal_conv1d_varlen_fn": _varlen_errors,
    "causal_conv1d_split": _split_errors,
    "causal_conv1d_qkv_split": _qkv_split_errors,
    "causal_conv1d_varlen_states": _states_errors,
    "causal_conv1d_update": _update_errors,
    "causal_conv1d_update_split": _update_split_errors,
    "causal_conv1d_update_qkv_split": _update_qkv_split_errors,
    **reference_backward.ERRORS,
}
"""By public function: from its arguments but outputs, the absolute error per element that float32 arithmetic of a
correct kernel can have, by result. Results that are copied or rounded once are absent. To round a result to its dtype
comes on top.
"""
