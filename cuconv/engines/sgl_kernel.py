"""SGLang's functions of its CUDA kernels, version 0.5.23, by cuconv.

They replace sglang.srt.layers.attention.mamba.causal_conv1d. Results overwrite x, and padding keeps x.
"""

from __future__ import annotations

from typing import Any

from cuconv.engines import _conventions as conventions
from cuconv.engines import _installing as installing

OPERATOR_NAMES = {"bias": "bias_", "activation": "silu_activation"}
"""Names of arguments of SGLang's operators, by cuconv's names."""


class UnsupportedDtypeError(TypeError, RuntimeError):
    """A dtype of x that no kernel takes, for which SGLang raises a RuntimeError and cuconv a TypeError."""


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

    x is (dim, total) with query_start_loc, or (batch, dim, seqlen). Longer states have the window in the first columns.
    Further arguments have no effect.

    Returns:
        x, overwritten, where its tokens are contiguous; else a new array.
    """
    given = x, weight, bias, query_start_loc, cache_indices, has_initial_state, conv_states, activation
    try:
        return conventions.conv_in_place(*given, pad_slot_id)
    except (TypeError, ValueError) as error:
        _say_as_sglang(error)
        raise


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
    """SGLang 0.5.23's `causal_conv1d_update` of its CUDA kernels by `cuconv.causal_conv1d_update`.

    x is (batch, dim) or (batch, dim, seqlen). A state is the last columns, or with cache_seqlens a ring.

    Returns:
        x, overwritten.
    """
    given = x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices
    try:
        return conventions.update_in_place(*given, pad_slot_id)
    except (TypeError, ValueError) as error:
        _say_as_sglang(error)
        raise


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
    if conventions.of_rank("x", x, 2, 3).stride(-1) != 1 and x.shape[-1] > 1:
        conventions.refuse("x", f"strides {x.stride()}", "contiguous tokens, which the result overwrites")
    try:
        given = x, weight, bias_, query_start_loc, cache_indices, has_initial_state, conv_states, silu_activation
        conventions.conv_in_place(*given, pad_slot_id, must_be_over_x=True)
    except (TypeError, ValueError) as error:
        conventions.rename(error, OPERATOR_NAMES)
        _say_as_sglang(error)
        raise


def causal_conv1d_update_operator(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias_: Any,
    silu_activation: bool,
    cache_seqlens: Any,
    conv_state_indices: Any,
    pad_slot_id: int,
) -> None:
    """SGLang 0.5.23's operator `causal_conv1d_update` by `cuconv.causal_conv1d_update`: the result overwrites x."""
    try:
        given = x, conv_state, weight, bias_, silu_activation, cache_seqlens, conv_state_indices
        conventions.update_in_place(*given, pad_slot_id)
    except (TypeError, ValueError) as error:
        conventions.rename(error, OPERATOR_NAMES)
        _say_as_sglang(error)
        raise


def _say_as_sglang(error: Exception) -> None:
    """Let errors that programs recognise by SGLang's words contain these words, too."""
    said = str(error)
    if said.startswith("has_initial_state: got dtype"):
        error.args = (f"{said} (has_initial_state must be a bool tensor)",)
    elif said.startswith("x: got dtype"):
        raise UnsupportedDtypeError(f"{said} (Unsupported dtype)") from None


MODULES: installing.Modules = {
    "sglang.srt.layers.attention.mamba.causal_conv1d": {
        "causal_conv1d_fn": causal_conv1d_fn,
        "causal_conv1d_update": causal_conv1d_update,
    },
    "sglang.kernels.ops.mamba.causal_conv1d": {
        "causal_conv1d_fwd": causal_conv1d_fwd,
        "causal_conv1d_update": causal_conv1d_update_operator,
    },
}
"""The functions that `install` puts in the place of SGLang's, by module and name."""


def install() -> tuple[str, ...]:
    """Put these functions in the place of SGLang's, in this process; returns the full names of those replaced."""
    return installing.install(MODULES)
