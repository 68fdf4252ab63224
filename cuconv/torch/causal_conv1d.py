"""causal-conv1d's functions, with its names, parameters and meaning, by cuconv."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cuconv.causal_conv1d import dense, states, update
from cuconv.torch.operators import copied


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """`cuconv.causal_conv1d_fn`; final_states_out may be given while autograd follows, too.

    The activation may also be passed as the argument seq_idx, its position in causal-conv1d 1.0, or as initial_states,
    its position in 1.1. return_final_states may be None, which counts as false.
    """
    if isinstance(seq_idx, str):
        seq_idx, activation = None, seq_idx
    elif isinstance(initial_states, str):
        initial_states, activation = None, initial_states
    _check_activation(activation)
    inputs = (x, weight, bias, seq_idx, initial_states)
    if final_states_out is None or not return_final_states:
        return dense.causal_conv1d_fn(*inputs, bool(return_final_states), activation=activation)
    if not torch.is_grad_enabled():
        return dense.causal_conv1d_fn(*inputs, True, final_states_out, activation)
    out, final_states = dense.causal_conv1d_fn(*inputs, True, activation=activation)
    return out, copied("final_states_out", final_states_out, final_states)


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Any:
    """`cuconv.causal_conv1d_update`; autograd does not follow it, whatever requires grad."""
    _check_activation(activation)
    given = (x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices)
    if not torch.is_grad_enabled():
        return update.causal_conv1d_update(*given)
    with torch.no_grad():
        return update.causal_conv1d_update(*given)


def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """`cuconv.causal_conv1d_varlen_states`."""
    with torch.no_grad():
        result: Tensor = states.causal_conv1d_varlen_states(x, cu_seqlens, state_len)
    return result


def _check_activation(activation: str | None) -> None:
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError("activation must be None, silu, or swish")
