"""The decode step of the causal convolution, its channels handed out in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv.form import by_sizes
from cuconv.ops.causal_conv1d_update_call import run


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
    num_accepted_tokens: Any = None,
    intermediate_conv_window: Any = None,
    intermediate_state_indices: Any = None,
    disable_state_update: bool = False,
    pad_slot_id: int = -1,
    out: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """`causal_conv1d_update` with a result for each of several ranges of channels, such as x, B and C of Mamba-2.

    One kernel writes them all; there is no intermediate result. Arguments and errors are those of
    `causal_conv1d_update`, and:

    Args:
        sizes: the channels of every range, in x's order: 1 to 16 numbers, each at least 1, that add up to dim.
        out: for every range an array (batch, size) or (batch, size, seqlen) of x's dtype and any strides, or None.

    Returns:
        For every range (batch, size) or (batch, size, seqlen), channels contiguous in memory where x's are.
    """
    inputs = (
        *(x, conv_state, weight, bias, cache_seqlens, conv_state_indices, num_accepted_tokens),
        *(intermediate_conv_window, intermediate_state_indices),
    )
    return run(by_sizes(sizes), inputs, out, activation, disable_state_update, pad_slot_id)
