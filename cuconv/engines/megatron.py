"""Megatron-LM's functions of megatron.core.ssm.ops, of August 2026, by cuconv."""

from __future__ import annotations

from typing import Any

from cuconv.causal_conv1d import states, update, varlen
from cuconv.engines import _conventions as conventions
from cuconv.engines import _installing as installing
from cuconv.selective_state_update import update as state_update

NAMES = {
    "query_start_loc": "cu_seqlens",
    "intermediate_conv_window": "intermediate_conv_states",
    "intermediate_states_buffer": "intermediate_ssm_states",
    "cache_indices": "fewer sequences",
    "intermediate_state_indices": "fewer slots",
}
"""Megatron-LM's names of arguments, by cuconv's names; for arguments that it lacks, what to change instead."""


def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any,
    silu_activation: Any,
    conv_state_indices: Any,
    intermediate_conv_states: Any = None,
) -> Any:
    """Megatron-LM's `common.causal_conv1d_triton.causal_conv1d_update` by `cuconv.causal_conv1d_update`.

    x is (batch, dim) or (batch, seqlen, dim), conv_state (slots, dim, state_len) with the window in the last columns.
    intermediate_conv_states (slots, seqlen, dim, state_len) receives the whole state after each token, by slot.
    silu_activation "silu" is SiLU; anything else, even true, is no activation. A negative slot gives 0.

    Returns:
        The shape of x, new.
    """
    activation = "silu" if isinstance(silu_activation, str) and silu_activation == "silu" else None
    given = x, conv_state, weight, bias, activation, conv_state_indices, intermediate_conv_states
    try:
        return update.step_by_token(*given)
    except (TypeError, ValueError) as error:
        conventions.rename(error, NAMES)
        raise


def causal_conv1d_varlen_fn(
    x: Any,
    weight: Any,
    bias: Any,
    cu_seqlens: Any,
    initial_states: Any = None,
    activation: Any = "silu",
    precomputed_seq_idx: Any = None,
    precomputed_seq_start: Any = None,
) -> Any:
    """Megatron-LM's `common.causal_conv1d_varlen.causal_conv1d_varlen_fn` by `cuconv.causal_conv1d_varlen_fn`.

    x is (total, dim), initial_states (sequences, dim, width - 1), which is only read. precomputed_seq_idx and
    precomputed_seq_start have no effect.

    Returns:
        (total, dim), new.
    """
    if activation != "silu":
        conventions.refuse("activation", repr(activation), "'silu'")
    given = x, weight, bias, None, cu_seqlens, None, None, activation
    try:
        return varlen.convolve_by_token(*given, initial_states=initial_states)
    except (TypeError, ValueError) as error:
        conventions.rename(error, NAMES)
        raise


def causal_conv1d_varlen_carry_states(
    x: Any,
    cu_seqlens: Any,
    previous_states: Any,
    *,
    token_indices: Any = None,
    prev_columns: Any = None,
    from_slice: Any = None,
) -> Any:
    """Megatron-LM's `common.causal_conv1d_varlen.causal_conv1d_varlen_carry_states` by cuconv's varlen_states.

    x is (total, dim), previous_states (sequences, dim, width), of any dtype, as Megatron-LM lets one choose it.
    token_indices, prev_columns and from_slice, which other versions compute from cu_seqlens beforehand, have no effect.

    Returns:
        (sequences, dim, width), new: the last inputs of each sequence, preceded by those of previous_states.
    """
    width = conventions.of_rank("previous_states", previous_states, 3).shape[2]
    if conventions.of_rank("x", x, 2).dtype != previous_states.dtype:
        x = x.to(previous_states.dtype)
    try:
        return states.causal_conv1d_varlen_states(x, cu_seqlens, width, previous_states=previous_states)
    except (TypeError, ValueError) as error:
        conventions.rename(error, NAMES)
        raise


def selective_state_update(
    state: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    dt_bias: Any = None,
    dt_softplus: bool = False,
    state_batch_indices: Any = None,
    intermediate_ssm_states: Any = None,
) -> Any:
    """Megatron-LM's `mamba2.mamba_ssm.selective_state_update` by `cuconv.selective_state_update`.

    x is (batch, [seqlen,] dim) or (batch, [seqlen,] nheads, headdim). intermediate_ssm_states (slots, seqlen, …)
    receives the state after each token, by slot; state advances, too. A negative slot gives 0.

    Returns:
        The shape of x, new.
    """
    try:
        return state_update.selective_state_update(
            state,
            x,
            dt,
            A,
            B,
            C,
            D,
            z,
            dt_bias,
            dt_softplus,
            state_batch_indices,
            intermediate_states_buffer=intermediate_ssm_states,
        )
    except (TypeError, ValueError) as error:
        conventions.states_have_no_scales(error, "state", state)
        conventions.rename(error, NAMES)
        raise


MODULES: installing.Modules = {
    "megatron.core.ssm.ops.common.causal_conv1d_triton": {"causal_conv1d_update": causal_conv1d_update},
    "megatron.core.ssm.ops.common.causal_conv1d_varlen": {
        "causal_conv1d_varlen_fn": causal_conv1d_varlen_fn,
        "causal_conv1d_varlen_carry_states": causal_conv1d_varlen_carry_states,
    },
    "megatron.core.ssm.ops.mamba2.mamba_ssm": {"selective_state_update": selective_state_update},
}
"""The functions that `install` puts in the place of Megatron-LM's, by module and name."""


def install() -> tuple[str, ...]:
    """Put these functions in the place of Megatron-LM's, in this process; returns the full names of those replaced."""
    return installing.install(MODULES)
