"""The causal convolution of packed queries, keys and values, written apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv.form import by_heads
from cuconv.ops.causal_conv1d_varlen_call import run


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
    l2norm_eps: float = 1e-6,
    out: Sequence[Any] | None = None,
) -> tuple[Any, Any, Any]:
    """`causal_conv1d_varlen_fn` on the channels q | k | v of linear attention, as Gated DeltaNet and Kimi have it.

    One kernel convolves and writes all three; there is no intermediate result. Arguments and errors are those of
    `causal_conv1d_varlen_fn`, and:

    Args:
        num_q_heads, num_k_heads, num_v_heads: heads, each at least 1.
        head_q, head_k, head_v: channels of a head; x has num_q_heads * head_q + num_k_heads * head_k + num_v_heads *
            head_v.
        qk_l2norm: divide every head y of q and k, after the activation, by sqrt(sum of y * y + l2norm_eps), computed in
            float32 (Yang et al., "Gated Delta Networks", 2024).
        l2norm_eps: at least 0; without meaning unless qk_l2norm.
        out: (q, k, v), each (1, total, heads, head_dim) of x's dtype and any strides, or None.

    Returns:
        q, k and v, each (1, total, heads, head_dim), contiguous.
    """
    inputs = (x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state)
    form = by_heads(num_q_heads, num_k_heads, num_v_heads, head_q, head_k, head_v, qk_l2norm, l2norm_eps)
    q, k, v = run(form, inputs, out, activation, pad_slot_id)
    return q, k, v
