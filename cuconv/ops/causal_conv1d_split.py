"""The causal convolution of packed sequences, its channels handed out in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv.form import by_sizes
from cuconv.ops.causal_conv1d_varlen_call import run


def causal_conv1d_split(
    x: Any,
    weight: Any,
    bias: Any = None,
    conv_states: Any = None,
    query_start_loc: Any = None,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    *,
    sizes: Sequence[int],
    out: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """`causal_conv1d_varlen_fn` with a result for each of several ranges of channels, such as x, B and C of Mamba-2.

    One kernel writes them all; there is no intermediate result. Arguments and errors are those of
    `causal_conv1d_varlen_fn`, and:

    Args:
        sizes: the channels of every range, in x's order: 1 to 16 numbers, each at least 1, that add up to dim.
        out: for every range an array (size, total) of x's dtype and any strides, or None.

    Returns:
        For every range (size, total), laid out in memory like x.
    """
    inputs = (x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state)
    return run(by_sizes(sizes), inputs, out, activation, pad_slot_id)
