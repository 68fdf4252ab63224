"""TensorRT-LLM's functions of tensorrt_llm._torch.modules.mamba, of 2026, by cuconv.

Functions of CUDA kernels have TensorRT-LLM's names; those of its causal_conv1d_triton have the suffix _triton.
"""

from __future__ import annotations

from typing import Any

from cuconv.causal_conv1d import varlen
from cuconv.engines import _conventions as conventions
from cuconv.engines import _installing as installing
from cuconv.engines import sglang


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
) -> Any:
    """TensorRT-LLM's `causal_conv1d.causal_conv1d_fn` by `cuconv.causal_conv1d_varlen_fn`.

    x is (dim, total) with query_start_loc, or (batch, dim, seqlen). Longer states have the window in the first columns.

    Returns:
        x, overwritten, where its tokens are contiguous, and padding keeps it; else a new array, with 0 for padding.
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
    """TensorRT-LLM's `causal_conv1d.causal_conv1d_update` by `cuconv.causal_conv1d_update`.

    x is (batch, dim) or (batch, dim, seqlen). A state is the last columns, or with cache_seqlens a ring.

    Returns:
        x, overwritten; padding keeps it.
    """
    given = x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices
    return conventions.update_in_place(*given, pad_slot_id)


def causal_conv1d_fwd(
    x: Any,
    weight: Any,
    bias: Any,
    conv_states: Any,
    query_start_loc: Any,
    cache_indices: Any,
    has_initial_state: Any,
    silu_activation: bool,
    pad_slot_id: int,
    out: Any = None,
) -> None:
    """TensorRT-LLM's operator `trtllm::causal_conv1d_fwd` by `cuconv.causal_conv1d_varlen_fn`.

    The result goes to out, or overwrites x, which must then have contiguous tokens. Padding keeps the contents of
    either. Longer states have the window in the first columns.
    """
    if out is None and conventions.of_rank("x", x, 2, 3).stride(-1) != 1 and x.shape[-1] > 1:
        conventions.refuse("x", f"strides {x.stride()}", "contiguous tokens, or out")
    try:
        varlen.causal_conv1d_varlen_fn(
            x,
            weight,
            bias,
            conv_states,
            query_start_loc,
            cache_indices,
            has_initial_state,
            conventions.silu(silu_activation),
            pad_slot_id,
            pad_output="keep",
            first_column=conventions.first_column(conv_states),
            out=x if out is None else out,
        )
    except (TypeError, ValueError) as error:
        over_x = conventions.OVER_X if out is None else {}
        conventions.rename(error, {"activation": "silu_activation", **over_x})
        raise


def causal_conv1d_fn_triton(
    x: Any,
    weight: Any,
    bias: Any,
    conv_states: Any,
    query_start_loc: Any,
    seq_lens_cpu: Any,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    activation: Any = "silu",
    pad_slot_id: int = -1,
    validate_data: bool = False,
    **kwargs: Any,
) -> Any:
    """TensorRT-LLM's `causal_conv1d_triton.causal_conv1d_fn`: `cuconv.engines.sglang.causal_conv1d_fn`."""
    given = x, weight, bias, conv_states, query_start_loc, seq_lens_cpu, cache_indices, has_initial_state, activation
    return sglang.causal_conv1d_fn(*given, pad_slot_id)


def causal_conv1d_update_triton(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: Any = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
    num_accepted_tokens: Any = None,
    intermediate_conv_window: Any = None,
    intermediate_state_indices: Any = None,
    retrieve_next_token: Any = None,
    retrieve_next_sibling: Any = None,
    retrieve_parent_token: Any = None,
    pad_slot_id: int = -1,
    metadata: Any = None,
    validate_data: bool = False,
    launch_dependent_kernels: bool = False,
    _block_n: int | None = None,
    _num_warps: int | None = None,
    _num_stages: int | None = None,
) -> Any:
    """TensorRT-LLM's `causal_conv1d_triton.causal_conv1d_update`: `cuconv.engines.sglang.causal_conv1d_update`.

    launch_dependent_kernels and the arguments behind it, which only choose how to launch, have no effect.
    """
    try:
        return sglang.causal_conv1d_update(
            x,
            conv_state,
            weight,
            bias,
            activation,
            cache_seqlens,
            conv_state_indices,
            num_accepted_tokens,
            intermediate_conv_window,
            intermediate_state_indices,
            retrieve_next_token,
            retrieve_next_sibling,
            retrieve_parent_token,
            pad_slot_id,
        )
    except (TypeError, ValueError) as error:
        conventions.rename(error, {"num_accept_tokens": "num_accepted_tokens"})
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
    pad_slot_id: int = -1,
    out: Any = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: Any = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Any = None,
    intermediate_state_indices: Any = None,
) -> Any:
    """TensorRT-LLM's `selective_state_update.selective_state_update` by `cuconv.selective_state_update`.

    Intermediate states are stored only where state_batch_indices is given, as in TensorRT-LLM. A sequence with the slot
    pad_slot_id gives 0.

    Returns:
        out, new where it is None.
    """
    try:
        return conventions.update_with_buffer(
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
            pad_slot_id,
            out,
            disable_state_update,
            intermediate_states_buffer,
            cache_steps,
            retrieve_parent_token,
            intermediate_state_indices,
            None,
            0,
        )
    except (TypeError, ValueError) as error:
        conventions.states_have_no_scales(error, "state", state)
        conventions.rename(error, {"parents": "retrieve_parent_token"})
        raise


MODULES: installing.Modules = {
    "tensorrt_llm._torch.modules.mamba.causal_conv1d": {
        "causal_conv1d_fn": causal_conv1d_fn,
        "causal_conv1d_update": causal_conv1d_update,
    },
    "tensorrt_llm._torch.modules.mamba.causal_conv1d_triton": {
        "causal_conv1d_fn": causal_conv1d_fn_triton,
        "causal_conv1d_update": causal_conv1d_update_triton,
    },
    "tensorrt_llm._torch.modules.mamba.selective_state_update": {"selective_state_update": selective_state_update},
}
"""The functions that `install` puts in the place of TensorRT-LLM's, by module and name."""


def install() -> tuple[str, ...]:
    """Put these functions in the place of TensorRT-LLM's, in this process; returns the full names of those replaced."""
    return installing.install(MODULES)
