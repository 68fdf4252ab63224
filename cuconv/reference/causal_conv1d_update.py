"""The causal convolution of the next tokens, one or a few a sequence, after states in a pool."""

from __future__ import annotations

import numpy as np

from cuconv.reference.causal_conv1d import Array, causal_conv1d_fn


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
) -> tuple[Array, Array, Array | None]:
    """x (batch, dim, seqlen) after the states: (out in float64, copies of conv_state and of the window after the call).

    What precedes sequence b is a window of width - 1 columns of its slot: the last ones, or those before the ring's
    column cache_seqlens[b], or those from max(num_accepted_tokens[b], 1) - 1 on. Afterwards the state has moved left to
    end with x; or the ring holds x from that column on; or its first columns hold window and x but for the first
    of these. intermediate_conv_window[row, t] receives the width - 1 inputs up to token t.
    """
    batch, _, seqlen = x.shape
    slots, _, state_len = conv_state.shape
    halo = weight.shape[1] - 1
    out, state = np.zeros(x.shape), conv_state.copy()
    snapshots = None if intermediate_conv_window is None else intermediate_conv_window.copy()
    slot = np.arange(batch) if conv_state_indices is None else conv_state_indices.astype(np.int64)
    is_live = (slot >= 0) & (slot < slots) & (slot != pad_slot_id)
    first = np.full(batch, state_len - halo)
    if cache_seqlens is not None:
        first = cache_seqlens.astype(np.int64) % max(state_len, 1) - halo
    elif num_accepted_tokens is not None:
        first = np.maximum(num_accepted_tokens.astype(np.int64), 1) - 1
        is_live &= first <= state_len - halo
    live = np.flatnonzero(is_live)
    if not seqlen or not live.size:
        return out, state, snapshots

    slot, first, tokens = slot[live, None], first[live, None], x[live]
    past = state[slot, :, (first + np.arange(halo)) % max(state_len, 1)].transpose(0, 2, 1)
    out[live], _ = causal_conv1d_fn(tokens, weight, bias, None, past.astype(np.float64), activation)
    tokens = tokens.astype(state.dtype)
    joined = np.concatenate([past, tokens], axis=2)
    if snapshots is not None:
        row = slot[:, 0] if intermediate_state_indices is None else intermediate_state_indices[live]
        is_row = (row >= 0) & (row < len(snapshots))
        for t in range(seqlen):
            snapshots[row[is_row], t] = joined[is_row, :, t + 1 : t + 1 + halo]
    if disable_state_update:
        return out, state, snapshots
    if cache_seqlens is not None:
        # Of more tokens than the ring has columns, the last remain.
        for t in range(max(seqlen - state_len, 0), seqlen):
            state[slot[:, 0], :, (first[:, 0] + halo + t) % state_len] = tokens[:, :, t]
    elif num_accepted_tokens is not None:
        state[slot[:, 0], :, : halo + seqlen - 1] = joined[:, :, 1:]
    else:
        state[slot[:, 0]] = np.concatenate([state[slot[:, 0]], tokens], axis=2)[:, :, seqlen:]
    return out, state, snapshots
