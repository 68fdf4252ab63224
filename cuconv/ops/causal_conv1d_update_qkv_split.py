"""The decode step of the causal convolution of queries, keys and values, written apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv.form import by_heads
from cuconv.ops.causal_conv1d_update_call import run


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
    num_accepted_tokens: Any = None,
    intermediate_conv_window: Any = None,
    intermediate_state_indices: Any = None,
    disable_state_update: bool = False,
    pad_slot_id: int = -1,
    out: Sequence[Any] | None = None,
) -> tuple[Any, Any, Any]:
    """`causal_conv1d_update` on the channels q | k | v of linear attention, as Gated DeltaNet and Kimi have it.

    One kernel convolves and writes all three; there is no intermediate result. Arguments and errors are those of
    `causal_conv1d_update`, and:

    Args:
        num_q_heads, num_k_heads, num_v_heads: heads, each at least 1.
        head_q, head_k, head_v: channels of a head; x has num_q_heads * head_q + num_k_heads * head_k + num_v_heads *
            head_v.
        out: (q, k, v) of the shapes below, x's dtype and any strides, or None.

    Returns:
        q, k and v, each (batch, heads, head_dim), or (batch, seqlen, heads, head_dim) when x has an axis for tokens;
        contiguous.
    """
    inputs = (
        *(x, conv_state, weight, bias, cache_seqlens, conv_state_indices, num_accepted_tokens),
        *(intermediate_conv_window, intermediate_state_indices),
    )
    form = by_heads(num_q_heads, num_k_heads, num_v_heads, head_q, head_k, head_v)
    q, k, v = run(form, inputs, out, activation, disable_state_update, pad_slot_id)
    return q, k, v
