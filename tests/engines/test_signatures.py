"""Adapters have the argument lists that engines publish; what older versions had and newer have not are keywords."""

from __future__ import annotations

import importlib
import inspect

import pytest

PUBLISHED = {
    "vllm.causal_conv1d_fn": "x, weight, bias, conv_states, query_start_loc, cache_indices=None, "
    "has_initial_state=None, activation='silu', pad_slot_id=-1, null_block_id=0, metadata=None, validate_data=False",
    "vllm.causal_conv1d_update": "x, conv_state, weight, bias=None, activation=None, conv_state_indices=None, "
    "num_accepted_tokens=None, query_start_loc=None, max_query_len=-1, null_block_id=0, validate_data=False, out=None",
    "vllm.selective_state_update": "state, x, dt, A, B, C, D, dt_bias, z=None, dt_softplus=False, "
    "state_batch_indices=None, dst_state_batch_indices=None, null_block_id=0, out=None, num_accepted_tokens=None, "
    "cu_seqlens=None, is_blackwell=False, enable_stochastic_rounding=False, cache_philox_rounds=0",
    "vllm.selective_scan_fn": "u, ssm_states, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, "
    "query_start_loc=None, cache_indices=None, has_initial_state=None, null_block_id=0, block_size=1024, "
    "block_idx_first_scheduled_token=None, block_idx_last_scheduled_token=None, initial_state_idx=None, "
    "cu_chunk_seqlen=None, last_chunk_indices=None",
    "vllm_0_19.causal_conv1d_fn": "x, weight, bias, conv_states, query_start_loc, cache_indices=None, "
    "has_initial_state=None, activation='silu', pad_slot_id=-1, block_idx_first_scheduled_token=None, "
    "block_idx_last_scheduled_token=None, initial_state_idx=None, num_computed_tokens=None, block_size_to_align=0, "
    "metadata=None, validate_data=False",
    "vllm_0_19.causal_conv1d_update": "x, conv_state, weight, bias=None, activation=None, conv_state_indices=None, "
    "num_accepted_tokens=None, query_start_loc=None, max_query_len=-1, pad_slot_id=-1, "
    "block_idx_last_scheduled_token=None, initial_state_idx=None, validate_data=False",
    "vllm_0_19.selective_state_update": "state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, "
    "state_batch_indices=None, dst_state_batch_indices=None, pad_slot_id=-1, out=None, num_accepted_tokens=None, "
    "cu_seqlens=None, is_blackwell=False",
    "vllm_0_19.selective_scan_fn": "u, ssm_states, delta, A, B, C, D=None, z=None, delta_bias=None, "
    "delta_softplus=False, query_start_loc=None, cache_indices=None, has_initial_state=None, pad_slot_id=-1, "
    "block_size=1024, block_idx_first_scheduled_token=None, block_idx_last_scheduled_token=None, "
    "initial_state_idx=None, cu_chunk_seqlen=None, last_chunk_indices=None",
    "sglang.causal_conv1d_fn": "x, weight, bias, conv_states, query_start_loc, seq_lens_cpu, cache_indices=None, "
    "has_initial_state=None, activation='silu', pad_slot_id=-1, validate_data=False, block_table=None, **kwargs",
    "sglang.causal_conv1d_update": "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, "
    "conv_state_indices=None, num_accept_tokens=None, intermediate_conv_window=None, intermediate_state_indices=None, "
    "retrieve_next_token=None, retrieve_next_sibling=None, retrieve_parent_token=None, pad_slot_id=-1, metadata=None, "
    "validate_data=False",
    "sglang.causal_conv1d_fn_split_qkv": "x, weight, bias, conv_states, query_start_loc, seq_lens_cpu, k_dim, v_dim, "
    "cache_indices=None, has_initial_state=None, activation='silu', pad_slot_id=-1",
    "sglang.causal_conv1d_update_split_qkv": "x, conv_state, weight, key_dim, value_dim, bias=None, "
    "activation='silu', conv_state_indices=None, pad_slot_id=-1",
    "sglang.selective_state_update": "state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, "
    "state_batch_indices=None, pad_slot_id=-1, out=None, disable_state_update=False, intermediate_states_buffer=None, "
    "cache_steps=None, retrieve_parent_token=None, intermediate_state_indices=None, enable_stochastic_rounding=False, "
    "cache_philox_rounds=0",
    "sglang.fused_lfm_short_conv_prefill": "b, c, x, weight, state, query_start_loc, cache_indices, "
    "has_initial_state, max_seq_len",
    "sglang.fused_lfm_short_conv_decode": "b, c, x, weight, state, cache_indices",
    "sgl_kernel.causal_conv1d_fn": "x, weight, bias=None, query_start_loc=None, cache_indices=None, "
    "has_initial_state=None, conv_states=None, activation='silu', pad_slot_id=-1, **kwargs",
    "sgl_kernel.causal_conv1d_update": "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, "
    "conv_state_indices=None, pad_slot_id=-1",
    "sgl_kernel.causal_conv1d_fwd": "x, weight, bias_, conv_states, query_start_loc, cache_indices, "
    "has_initial_state, silu_activation, pad_slot_id",
    "sgl_kernel.causal_conv1d_update_operator": "x, conv_state, weight, bias_, silu_activation, cache_seqlens, "
    "conv_state_indices, pad_slot_id",
    "tensorrt_llm.causal_conv1d_fn": "x, weight, bias=None, query_start_loc=None, cache_indices=None, "
    "has_initial_state=None, conv_states=None, activation='silu', pad_slot_id=-1",
    "tensorrt_llm.causal_conv1d_update": "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, "
    "conv_state_indices=None, pad_slot_id=-1",
    "tensorrt_llm.causal_conv1d_fwd": "x, weight, bias, conv_states, query_start_loc, cache_indices, "
    "has_initial_state, silu_activation, pad_slot_id, out=None",
    "tensorrt_llm.causal_conv1d_fn_triton": "x, weight, bias, conv_states, query_start_loc, seq_lens_cpu, "
    "cache_indices=None, has_initial_state=None, activation='silu', pad_slot_id=-1, validate_data=False, **kwargs",
    "tensorrt_llm.causal_conv1d_update_triton": "x, conv_state, weight, bias=None, activation=None, "
    "cache_seqlens=None, conv_state_indices=None, num_accepted_tokens=None, intermediate_conv_window=None, "
    "intermediate_state_indices=None, retrieve_next_token=None, retrieve_next_sibling=None, "
    "retrieve_parent_token=None, pad_slot_id=-1, metadata=None, validate_data=False, launch_dependent_kernels=False, "
    "_block_n=None, _num_warps=None, _num_stages=None",
    "tensorrt_llm.selective_state_update": "state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, "
    "state_batch_indices=None, pad_slot_id=-1, out=None, disable_state_update=False, intermediate_states_buffer=None, "
    "cache_steps=None, retrieve_parent_token=None, intermediate_state_indices=None",
    "megatron.causal_conv1d_update": "x, conv_state, weight, bias, silu_activation, conv_state_indices, "
    "intermediate_conv_states=None",
    "megatron.causal_conv1d_varlen_fn": "x, weight, bias, cu_seqlens, initial_states=None, activation='silu', "
    "precomputed_seq_idx=None, precomputed_seq_start=None",
    "megatron.causal_conv1d_varlen_carry_states": "x, cu_seqlens, previous_states",
    "megatron.selective_state_update": "state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, "
    "state_batch_indices=None, intermediate_ssm_states=None",
    "tokenspeed.causal_conv1d_fn": "x, weight, bias, conv_states, query_start_loc, cache_indices=None, "
    "has_initial_state=None, activation='silu', pad_slot_id=-1, metadata=None, validate_data=False, **kwargs",
    "tokenspeed.causal_conv1d_update": "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, "
    "conv_state_indices=None, num_accepted_tokens=None, intermediate_conv_window=None, output_state_indices=None, "
    "pad_slot_id=-1, metadata=None, validate_data=False",
    "tokenspeed.causal_conv1d_qkv_split_gdn_prefill": "x, weight, bias, conv_states, query_start_loc, seq_lens_cpu, "
    "num_q_heads, num_k_heads, num_v_heads, head_q, head_k, head_v, total_seq_len, cache_indices=None, "
    "has_initial_state=None, activation='silu', pad_slot_id=-1",
    "tokenspeed.fused_qkv_split_gdn_prefill": "mixed_qkv, num_q_heads, num_k_heads, num_v_heads, head_q, head_k, "
    "head_v, fuse_l2norm=False, replay=None",
    "flashinfer.selective_state_update": "state, x, dt, A, B, C, D, z=None, dt_bias=None, dt_softplus=False, "
    "state_batch_indices=None, pad_slot_id=-1, state_scale=None, out=None, disable_state_update=False, "
    "intermediate_states_buffer=None, intermediate_state_indices=None, intermediate_state_scales=None, "
    "rand_seed=None, philox_rounds=10, cache_steps=0, algorithm='auto', dst_state_batch_indices=None, "
    "cu_seqlens=None, num_accepted_tokens=None, backend='auto'",
    "flashinfer.checkpointing_ssu": "state, x_cache, B_cache, dt_cache, ring_start, prev_num_accepted_tokens, x, dt, "
    "A, B, C, out, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None, pad_slot_id=-1, "
    "state_scale=None, rand_seed=None, philox_rounds=10, d_split=None, cu_seqlens=None, max_seqlen=None, "
    "enable_pdl=False, cb_scaled=None, cumAdt_vec=None, cb_old=None, precompute_heads_per_cta=0, algorithm='auto'",
}
"""The parameters that the engines' sources declare, by cuconv.engines' module and function."""

ENGINES = ("vllm", "vllm_0_19", "sglang", "sgl_kernel", "tensorrt_llm", "megatron", "tokenspeed", "flashinfer")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_function_has_the_published_parameters(name: str) -> None:
    engine, _, function = name.partition(".")
    module = importlib.import_module(f"cuconv.engines.{engine}")
    parameters = inspect.signature(getattr(module, function)).parameters.values()
    published = [each for each in parameters if each.kind is not each.KEYWORD_ONLY]
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in published]
    assert ", ".join(map(str, bare)) == PUBLISHED[name]
    assert {each.default for each in parameters if each.kind is each.KEYWORD_ONLY} <= {None}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_function_is_in_the_table(engine: str) -> None:
    module = importlib.import_module(f"cuconv.engines.{engine}")
    public = {
        name
        for name, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == module.__name__ and not name.startswith("_")
    }
    listed = {name.partition(".")[2] for name in PUBLISHED if name.startswith(f"{engine}.")}
    assert public - {"install"} == listed


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_installed_is_the_engine_s_own(engine: str) -> None:
    module = importlib.import_module(f"cuconv.engines.{engine}")
    installed = {each for functions in module.MODULES.values() for each in functions.values()}
    assert installed and all(each.__module__ == module.__name__ for each in installed)
