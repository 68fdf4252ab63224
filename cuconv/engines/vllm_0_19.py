"""vLLM's functions of vllm.model_executor.layers.mamba.ops, versions 0.12 to 0.19, by cuconv: those of 0.19.1.

They differ from later ones in how padding is marked, by the slot pad_slot_id, -1, with block 0 like any other, and in
the order of arguments.
"""

from __future__ import annotations

from typing import Any

from cuconv.engines import _conventions as conventions
from cuconv.engines import _installing as installing
from cuconv.engines import vllm

NAMES = {"null_block_id": "pad_slot_id"}
"""What these versions call arguments, by the names of later ones."""


def causal_conv1d_fn(
    x: Any,
    weight: Any,
    bias: Any,
    conv_states: Any,
    query_start_loc: Any,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    activation: Any = "silu",
    pad_slot_id: int | None = -1,
    block_idx_first_scheduled_token: Any = None,
    block_idx_last_scheduled_token: Any = None,
    initial_state_idx: Any = None,
    num_computed_tokens: Any = None,
    block_size_to_align: int | None = 0,
    metadata: Any = None,
    validate_data: bool = False,
) -> Any:
    """vLLM 0.19.1's `causal_conv1d_fn`: `cuconv.engines.vllm.causal_conv1d_fn`, padding marked by slots."""
    given = x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state, activation
    try:
        return vllm.causal_conv1d_fn(
            *given,
            null_block_id=pad_slot_id,
            block_idx_last_scheduled_token=block_idx_last_scheduled_token,
            initial_state_idx=initial_state_idx,
            num_computed_tokens=num_computed_tokens,
            block_size_to_align=block_size_to_align,
        )
    except (TypeError, ValueError) as error:
        conventions.rename(error, NAMES)
        raise


def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: Any = None,
    conv_state_indices: Any = None,
    num_accepted_tokens: Any = None,
    query_start_loc: Any = None,
    max_query_len: int = -1,
    pad_slot_id: int | None = -1,
    block_idx_last_scheduled_token: Any = None,
    initial_state_idx: Any = None,
    validate_data: bool = False,
) -> Any:
    """vLLM 0.19.1's `causal_conv1d_update`: `cuconv.engines.vllm.causal_conv1d_update`, padding marked by slots."""
    given = x, conv_state, weight, bias, activation, conv_state_indices, num_accepted_tokens, query_start_loc
    try:
        return vllm.causal_conv1d_update(
            *given,
            max_query_len,
            pad_slot_id,
            block_idx_last_scheduled_token=block_idx_last_scheduled_token,
            initial_state_idx=initial_state_idx,
        )
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
    dst_state_batch_indices: Any = None,
    pad_slot_id: int | None = -1,
    out: Any = None,
    num_accepted_tokens: Any = None,
    cu_seqlens: Any = None,
    is_blackwell: bool = False,
) -> None:
    """vLLM 0.19.1's `selective_state_update`: `cuconv.engines.vllm.selective_state_update`, z before dt_bias."""
    given = state, x, dt, A, B, C, D, dt_bias, z, dt_softplus, state_batch_indices, dst_state_batch_indices
    try:
        vllm.selective_state_update(*given, pad_slot_id, out, num_accepted_tokens, cu_seqlens)
    except (TypeError, ValueError) as error:
        conventions.rename(error, NAMES)
        raise


def selective_scan_fn(
    u: Any,
    ssm_states: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    query_start_loc: Any = None,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    pad_slot_id: int | None = -1,
    block_size: int = 1024,
    block_idx_first_scheduled_token: Any = None,
    block_idx_last_scheduled_token: Any = None,
    initial_state_idx: Any = None,
    cu_chunk_seqlen: Any = None,
    last_chunk_indices: Any = None,
) -> Any:
    """vLLM 0.19.1's `selective_scan_fn`: `cuconv.engines.vllm.selective_scan_fn`, padding marked by slots."""
    given = u, ssm_states, delta, A, B, C, D, z, delta_bias, delta_softplus, query_start_loc, cache_indices
    blocks = block_size, block_idx_first_scheduled_token, block_idx_last_scheduled_token, initial_state_idx
    try:
        return vllm.selective_scan_fn(
            *given, has_initial_state, pad_slot_id, *blocks, cu_chunk_seqlen, last_chunk_indices
        )
    except (TypeError, ValueError) as error:
        conventions.rename(error, NAMES)
        raise


MODULES: installing.Modules = {
    "vllm.model_executor.layers.mamba.ops.causal_conv1d": {
        "causal_conv1d_fn": causal_conv1d_fn,
        "causal_conv1d_update": causal_conv1d_update,
    },
    "vllm.model_executor.layers.mamba.ops.mamba_ssm": {
        "selective_scan_fn": selective_scan_fn,
        "selective_state_update": selective_state_update,
    },
}
"""The functions that `install` puts in the place of vLLM's, by module and name."""


def install() -> tuple[str, ...]:
    """Put these functions in the place of vLLM's, in this process; returns the full names of those replaced.

    Functions of other versions, the arguments of which begin otherwise, stay as they are, and a warning says so.
    """
    return installing.install(MODULES, in_order=True)
