"""The causal convolution of packed sequences, its channels handed out in parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from cuconv import checks
from cuconv.kernels.varlen import MAX_RANGES
from cuconv.ops.causal_conv1d_varlen_call import Form, run


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
    checks.sequence("sizes", sizes)
    try:
        form = _form(*sizes)
    except TypeError:
        # A size that has no hash is none, either.
        form = _form.__wrapped__(*sizes)
    return run(form, inputs, out, activation, pad_slot_id)


# By type, too: 2.0 equals 2, but is no size.
@lru_cache(maxsize=4096, typed=True)
def _form(*sizes: int) -> Form:
    checks.between("length of sizes", len(sizes), 1, MAX_RANGES)
    for i, size in enumerate(sizes):
        checks.natural(f"sizes[{i}]", size)
    return Form("sizes", tuple((1, size) for size in sizes))
