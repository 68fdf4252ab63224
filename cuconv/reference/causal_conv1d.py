"""Causal convolutions of prefills."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def silu(v: Array) -> Array:
    """v / (1 + exp(-v)), for large negative v too."""
    z = np.exp(-np.abs(v))
    return v * np.where(v >= 0, 1.0, z) / (1.0 + z)


def causal_conv1d_fn(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    seq_idx: Array | None = None,
    initial_states: Array | None = None,
    activation: str | None = None,
) -> tuple[Array, Array]:
    """Depthwise causal convolution: (out in float64, final states in x's dtype).

    out[b, d, t] = act(bias[d] + sum_w weight[d, w] * x[b, d, t - (width - 1) + w]), where x before its first token is
    the initial state or zero. With seq_idx (batch, seqlen) a token sees only inputs of its own sequence number, the
    initial state counting as the first token's, and a token with a negative one gives 0.
    """
    batch, dim, seqlen = x.shape
    width = weight.shape[1]
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
) -> tuple[Array, Array | None]:
    """The convolution of packed sequences: (out (dim, total) in float64, a copy of conv_states after the call).

    Sequence i, the tokens query_start_loc[i] to query_start_loc[i + 1] - 1, follows the last width - 1 columns of
    slot cache_indices[i] where has_initial_state[i] is true, else zeros, and leaves the last width - 1 of all these
    inputs there. A sequence whose slot is pad_slot_id or none of the pool, and a token of no sequence, give 0.
    """
    dim, total = x.shape
    width = weight.shape[1]
    starts = _starts(query_start_loc, total)
    count = len(starts) - 1
    out = np.zeros((dim, total))
    pool = None if conv_states is None else conv_states.copy()
    slots = range(count) if cache_indices is None else cache_indices.tolist()
    for i, slot in enumerate(slots):
        begin, end = starts[i], starts[i + 1]
        is_live = pool is None or (slot != pad_slot_id and 0 <= slot < len(pool))
        if end <= begin or not is_live:
            continue
        past = np.zeros((dim, width - 1))
        if pool is not None and has_initial_state is not None and has_initial_state[i]:
            past = pool[slot, :, pool.shape[2] - (width - 1) :].astype(np.float64)
        inputs = x[:, begin:end].astype(np.float64)
        result, states = causal_conv1d_fn(inputs[None], weight, bias, None, past[None], activation)
        out[:, begin:end] = result[0]
        if pool is not None:
            pool[slot, :, pool.shape[2] - (width - 1) :] = states[0].astype(pool.dtype)
    return out, pool


def causal_conv1d_varlen_states(x: Array, cu_seqlens: Array, state_len: int) -> Array:
    """The last state_len tokens of every packed sequence, zeros before its first: (n, dim, state_len) of x's dtype."""
    total, dim = x.shape
    starts = _starts(cu_seqlens, total)
    states = np.zeros((len(starts) - 1, dim, state_len), x.dtype)
    for i, (begin, end) in enumerate(pairwise(starts)):
        taken = min(max(end - begin, 0), state_len)
        states[i, :, state_len - taken :] = x[end - taken : end].T
    return states


def l2norm(heads: Array, eps: float) -> Array:
    """Every vector along the last axis, divided by the square root of its squares' sum plus eps."""
    y = heads.astype(np.float64)
    norms: Array = np.sqrt((y * y).sum(axis=-1, keepdims=True) + eps)
    return y / norms


def _starts(query_start_loc: Array | None, total: int) -> list[int]:
    """Where sequences begin and, last, end: all within the tokens there are."""
    if query_start_loc is None:
        return [0, total]
    return [min(max(int(start), 0), total) for start in query_start_loc]
