"""Every operation in NumPy and float64: the oracle of all tests, and what runs when the arrays are NumPy's."""

from __future__ import annotations

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
