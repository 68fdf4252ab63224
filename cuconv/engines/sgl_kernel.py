"""SGLang's functions of its CUDA kernels, version 0.5.23, by cuconv.

They are those of sglang.srt.layers.attention.mamba.causal_conv1d. Results overwrite x, and padding keeps x.
"""

from __future__ import annotations

from typing import Any

from cuconv.engines import _conventions as conventions
from cuconv.engines import _installing as installing


def causal_conv1d_fn(
    x: Any,
    weight: Any,
    bias: Any = None,
    query_start_loc: Any = None,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    conv_states: Any = None,
    activation: Any = "silu",
    pad_slot_id: int = -1,
    **kwargs: Any,
) -> Any:
    """SGLang 0.5.23's `causal_conv1d_fn` of its CUDA kernels by `cuconv.causal_conv1d_varlen_fn`.

    x is (dim, total), with query_start_loc packed, or (batch, dim, seqlen). Further arguments have no effect.

    Returns:
        x, overwritten, where its tokens are contiguous; else a new array.
    """
    given = x, weight, bias, query_start_loc, cache_indices, has_initial_state, conv_states, activation
    return conventions.conv_in_place(*given, pad_slot_id)


def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: Any = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
    pad_slot_id: int = -1,
) -> Any:
    """SGLang 0.5.23's `causal_conv1d_update` of its CUDA kernels, and their operator, by `cuconv.causal_conv1d_update`.

    x is (batch, dim) or (batch, dim, seqlen), the live columns the last ones, or with cache_seqlens a ring.

    Returns:
        x, overwritten.
    """
    given = x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices
    return conventions.update_in_place(*given, pad_slot_id)


def causal_conv1d_fwd(
    x: Any,
    weight: Any,
    bias_: Any,
    conv_states: Any,
    query_start_loc: Any,
    cache_indices: Any,
    has_initial_state: Any,
    silu_activation: bool,
    pad_slot_id: int,
) -> None:
    """SGLang 0.5.23's operator `causal_conv1d_fwd` by `cuconv.causal_conv1d_varlen_fn`: the result overwrites x."""
    if conventions.of_rank("x", x, 2, 3).stride(-1) != 1:
        conventions.refuse("x", f"strides {x.stride()}", "contiguous tokens, which the result overwrites")
    try:
        given = x, weight, bias_, query_start_loc, cache_indices, has_initial_state, conv_states, silu_activation
        conventions.conv_in_place(*given, pad_slot_id)
    except (TypeError, ValueError) as error:
        conventions.rename(error, {"bias": "bias_", "activation": "silu_activation"})
        raise


MODULES: installing.Modules = {
    "sglang.srt.layers.attention.mamba.causal_conv1d": {
        "causal_conv1d_fn": causal_conv1d_fn,
        "causal_conv1d_update": causal_conv1d_update,
    },
    "sglang.kernels.ops.mamba.causal_conv1d": {
        "causal_conv1d_fwd": causal_conv1d_fwd,
        "causal_conv1d_update": causal_conv1d_update,
    },
}
"""The functions that `install` puts in the place of SGLang's, by module and name."""


def install() -> tuple[str, ...]:
    """Put these functions in the place of SGLang's, in this process; returns the full names of those replaced."""
    return installing.install(MODULES)
