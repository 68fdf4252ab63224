"""Dense, packed and decode convolutions in float64: what the references and their error bounds compute with."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuconv.causal_conv1d.sequences import sequence_starts
from cuconv.runtime import slots, trees
from cuconv.runtime.activation import silu

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
            # Where there are more tokens than the ring has columns, the last ones remain.
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
    """The state after each of the last `count` inputs; the inputs before them are the initial state."""
    columns = inputs.shape[2] - count
    if parents is None:
        return [inputs[:, :, t + 1 : t + 1 + columns] for t in range(count)]
    taken = [np.stack([_path_columns(each, t, columns, columns) for each in parents]) for t in range(count)]
    return [np.take_along_axis(inputs, each[:, None], axis=2) for each in taken]


def _path_columns(parents: Array, token: int, before: int, count: int) -> Array:
    """Indices of the last `count` inputs on the path to a token of a tree, among `before` earlier inputs and then
    tokens."""
    path: list[int] = []
    while token >= 0:
        path.insert(0, before + token)
        token = int(parents[token]) if parents[token] < token else -1
    return np.array([*range(before), *path][len(path) + before - count :], int)
