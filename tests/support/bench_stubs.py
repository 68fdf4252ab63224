"""Functions of other libraries' signatures that insist on what those do, and compute with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import cuconv


def strides(array: Any) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


def dao_forward(
    x: Any, weight: Any, bias: Any = None, seq_idx: Any = None, initial_states: Any = None,
    return_final_states: bool = False, final_states_out: Any = None, activation: Any = None,
) -> Any:  # fmt: skip
    is_channel_last = strides(x)[1] == 1 and strides(x)[2] > 1
    assert is_channel_last or strides(x)[2] == 1
    if is_channel_last and (x.shape[1] % 8 or strides(x)[0] % 8 or strides(x)[2] % 8):
        raise RuntimeError("causal_conv1d only supports multiples of 8")
    if weight.shape[1] not in (2, 3, 4):
        raise RuntimeError("causal_conv1d only supports width between 2 and 4")
    assert seq_idx is initial_states is final_states_out is None and not return_final_states
    return cuconv.causal_conv1d_fn(x, weight, bias, activation=activation)


def dao_backward(
    x: Any, weight: Any, bias: Any, dout: Any, seq_idx: Any, initial_states: Any, dfinal_states: Any, dx: Any,
    return_dinitial_states: bool, silu_activation: bool,
) -> Any:  # fmt: skip
    is_channel_last = strides(x)[1] == 1 and strides(x)[2] > 1
    assert strides(dout)[1 if is_channel_last else 2] == 1 and not return_dinitial_states
    if is_channel_last and x.shape[1] % 8:
        raise RuntimeError("causal_conv1d only supports multiples of 8")
    if weight.shape[1] not in (2, 3, 4):
        raise RuntimeError("causal_conv1d only supports width between 2 and 4")
    assert seq_idx is initial_states is dfinal_states is None and isinstance(silu_activation, bool)
    activation = "silu" if silu_activation else None
    return cuconv.causal_conv1d_bwd(x, weight, bias, dout, activation=activation, dx=dx)


def dao_update(
    x: Any, conv_state: Any, weight: Any, bias: Any = None, activation: Any = None, cache_seqlens: Any = None,
    conv_state_indices: Any = None,
) -> Any:  # fmt: skip
    if weight.shape[1] not in (2, 3, 4):
        raise RuntimeError("causal_conv1d only supports width between 2 and 4")
    return cuconv.causal_conv1d_update(x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices)


def dao_states(x: Any, cu_seqlens: Any, state_len: int) -> Any:
    return cuconv.causal_conv1d_varlen_states(x, cu_seqlens, state_len)


def mamba_scan(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None, delta_bias: Any = None,
    delta_softplus: bool = False, return_last_state: bool = False,
) -> Any:  # fmt: skip
    assert A.shape[1] <= 256 and B.ndim == 3 and not return_last_state
    return cuconv.selective_scan_fn(u, delta, A, B, C, D, z, delta_bias, delta_softplus)


def mamba_forward(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, delta_bias: Any, delta_softplus: bool
) -> Any:
    assert B.ndim == C.ndim == 4 and B.shape[1] == C.shape[1] == 1
    gated = cuconv.selective_scan_fn(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    return cuconv.selective_scan_fn(u, delta, A, B, C, D, None, delta_bias, delta_softplus), np.arange(3.0), gated


def mamba_backward(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, delta_bias: Any, dout: Any, x: Any, out: Any, dz: Any,
    delta_softplus: bool, recompute_out_z: bool,
) -> Any:  # fmt: skip
    wanted, states, _ = mamba_forward(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    assert (out == wanted).all() and (x == states).all() and dz is None and not recompute_out_z
    du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, _ = cuconv.selective_scan_bwd(
        u, delta, A, B, C, D, z, delta_bias, dout, delta_softplus=delta_softplus
    )
    return [du, ddelta, dA, dB, dC, dD, ddelta_bias, dz]


def mamba_update(
    state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None, dt_bias: Any = None,
    dt_softplus: bool = False, state_batch_indices: Any = None,
) -> Any:  # fmt: skip
    assert x.ndim == state.ndim - 1
    return cuconv.selective_state_update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, state_batch_indices)


def flashinfer_update(
    state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any = None, dt_bias: Any = None,
    dt_softplus: bool = False, state_batch_indices: Any = None, pad_slot_id: int = -1, state_scale: Any = None,
    out: Any = None, disable_state_update: bool = False, intermediate_states_buffer: Any = None,
    intermediate_state_indices: Any = None, intermediate_state_scales: Any = None, rand_seed: Any = None,
    philox_rounds: int = 10, cache_steps: int = 0, algorithm: str = "auto", dst_state_batch_indices: Any = None,
    cu_seqlens: Any = None, num_accepted_tokens: Any = None, backend: str = "auto",
) -> Any:  # fmt: skip
    assert strides(A)[1:] == [0, 0] and strides(D)[1] == strides(dt)[2] == strides(dt_bias)[1] == 0
    assert B.shape[2] % 32 == 0 and intermediate_states_buffer is None
    result = cuconv.selective_state_update(
        state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, state_batch_indices, pad_slot_id=pad_slot_id
    )
    if out is None:
        return result
    out[...] = result
    return out


def fla_forward(
    x: Any, weight: Any = None, bias: Any = None, residual: Any = None, initial_state: Any = None,
    output_final_state: bool = False, activation: Any = None, backend: str = "triton", cu_seqlens: Any = None,
    cu_seqlens_cpu: Any = None, chunk_indices: Any = None, cp_context: Any = None, **kwargs: Any,
) -> Any:  # fmt: skip
    assert residual is None and strides(x)[2] == 1 and not kwargs
    if cu_seqlens is None:
        return cuconv.causal_conv1d_fn(x.swapaxes(1, 2), weight, bias, activation=activation).swapaxes(1, 2), None
    count, width = len(cu_seqlens) - 1, weight.shape[1]
    assert x.shape[0] == 1 and output_final_state
    assert initial_state.shape == (count, x.shape[2], width) and initial_state.flags.c_contiguous
    states = initial_state[:, :, 1:].copy()
    y = cuconv.causal_conv1d_varlen_fn(
        x[0].T, weight, bias, states, cu_seqlens, np.arange(count, dtype=np.int32), np.ones(count, bool), activation
    )
    final = np.concatenate([np.zeros_like(states[:, :, :1]), states], axis=2)
    return y.T[None], final


def fla_backward(
    x: Any, dy: Any, dht: Any, weight: Any = None, bias: Any = None, residual: Any = None, initial_state: Any = None,
    activation: Any = None, cu_seqlens: Any = None, cu_seqlens_cpu: Any = None, chunk_indices: Any = None, BT: int = 64,
) -> Any:  # fmt: skip
    assert strides(x)[2] == strides(dy)[2] == 1
    assert dht is residual is initial_state is cu_seqlens is cu_seqlens_cpu is chunk_indices is None
    dx, dw, db, _ = cuconv.causal_conv1d_bwd(x.swapaxes(1, 2), weight, bias, dy.swapaxes(1, 2), activation=activation)
    return dx.swapaxes(1, 2), dw, db, None, None


def fla_update(
    x: Any, cache: Any, residual: Any = None, weight: Any = None, bias: Any = None, activation: Any = None
) -> Any:
    assert cache.shape == (*x.shape, weight.shape[1]) and cache.flags.c_contiguous
    return cuconv.causal_conv1d_update(x, cache, weight, bias, activation), cache


def megatron_update(
    x: Any, conv_state: Any, weight: Any, bias: Any, silu_activation: Any, conv_state_indices: Any,
    intermediate_conv_states: Any = None,
) -> Any:  # fmt: skip
    # True would not do: it must be the word.
    activation = "silu" if silu_activation == "silu" else None
    assert x.ndim == 2
    return cuconv.causal_conv1d_update(x, conv_state, weight, bias, activation, conv_state_indices=conv_state_indices)


def vllm_forward(
    x: Any, weight: Any, bias: Any, conv_states: Any, query_start_loc: Any, cache_indices: Any = None,
    has_initial_state: Any = None, activation: Any = "silu", pad_slot_id: int = -1,
    block_idx_first_scheduled_token: Any = None, block_idx_last_scheduled_token: Any = None,
    initial_state_idx: Any = None, num_computed_tokens: Any = None, block_size_to_align: int = 0, metadata: Any = None,
    validate_data: bool = False,
) -> Any:  # fmt: skip
    assert strides(x)[0] == 1 and strides(conv_states)[1] == 1
    return cuconv.causal_conv1d_varlen_fn(
        x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state, activation
    )


def vllm_update(
    x: Any, conv_state: Any, weight: Any, bias: Any = None, activation: Any = None, conv_state_indices: Any = None,
    num_accepted_tokens: Any = None, query_start_loc: Any = None, max_query_len: int = -1, null_block_id: int = 0,
    block_idx_last_scheduled_token: Any = None, initial_state_idx: Any = None, validate_data: bool = False,
) -> Any:  # fmt: skip
    # A slot that is none leaves its row as it is; the window is in the first columns.
    rows = conv_state_indices != null_block_id
    window, slots = conv_state[:, :, : weight.shape[1] - 1], conv_state_indices[rows]
    x[rows] = cuconv.causal_conv1d_update(x[rows], window, weight, bias, activation, conv_state_indices=slots)
    return x


def vllm_scan(
    u: Any, ssm_states: Any, delta: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None, delta_bias: Any = None,
    delta_softplus: bool = False, query_start_loc: Any = None, cache_indices: Any = None,
    has_initial_state: Any = None, pad_slot_id: int = -1, block_size: int = 1024,
) -> Any:  # fmt: skip
    assert strides(u)[1] == strides(B)[2] == 1 and B.ndim == C.ndim == 3
    z[...] = cuconv.selective_scan_varlen_fn(
        u, ssm_states, delta, A, B[0], C[0], D, z.copy(), delta_bias, delta_softplus, query_start_loc, cache_indices,
        has_initial_state,
    )  # fmt: skip
    return z


def vllm_state_update(
    state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None, dt_bias: Any = None,
    dt_softplus: bool = False, state_batch_indices: Any = None, dst_state_batch_indices: Any = None,
    null_block_id: int = 0, out: Any = None, num_accepted_tokens: Any = None, cu_seqlens: Any = None,
    is_blackwell: bool = False,
) -> None:  # fmt: skip
    if state_batch_indices is not None:
        assert null_block_id not in state_batch_indices
    out[...] = cuconv.selective_state_update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, state_batch_indices)


STUBS: dict[str, dict[str, Callable[..., Any]]] = {
    "causal_conv1d": {"causal_conv1d_fn": dao_forward, "causal_conv1d_update": dao_update},
    "causal_conv1d.cpp_functions": {"causal_conv1d_bwd_function": dao_backward},
    "causal_conv1d.causal_conv1d_varlen": {"causal_conv1d_varlen_states": dao_states},
    "mamba_ssm.ops.selective_scan_interface": {"selective_scan_fn": mamba_scan},
    "selective_scan_cuda": {"fwd": mamba_forward, "bwd": mamba_backward},
    "mamba_ssm.ops.triton.selective_state_update": {"selective_state_update": mamba_update},
    "flashinfer.mamba": {"selective_state_update": flashinfer_update},
    "fla.modules.conv.triton.ops": {"causal_conv1d_bwd": fla_backward},
    "fla.modules.convolution": {"causal_conv1d": fla_forward, "causal_conv1d_update": fla_update},
    "megatron.core.ssm.ops.common.causal_conv1d_triton": {"causal_conv1d_update": megatron_update},
    "vllm.model_executor.layers.mamba.ops.causal_conv1d": {
        "causal_conv1d_fn": vllm_forward,
        "causal_conv1d_update": vllm_update,
    },
    "vllm.model_executor.layers.mamba.ops.mamba_ssm": {
        "selective_scan_fn": vllm_scan,
        "selective_state_update": vllm_state_update,
    },
}
