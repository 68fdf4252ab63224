"""SGLang's functions of sglang.kernels.ops.mamba, version 0.5.23, by cuconv.

The Triton functions are here; the functions of CUDA kernels, which have the same names, are in `sgl_kernel`. Outputs of
padding, which SGLang leaves uninitialised, are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cuconv.causal_conv1d import update, varlen
from cuconv.engines import _conventions as conventions
from cuconv.engines import _installing as installing
from cuconv.engines import _tensors as tensors

NAMES = {
    "num_accepted_tokens": "num_accept_tokens",
    "parents": "retrieve_parent_token",
    "philox_rounds": "cache_philox_rounds",
    "rand_seed": "enable_stochastic_rounding",
}
"""SGLang's names of arguments, by cuconv's names."""

GATED_NAMES = {
    "pre_gate": "b",
    "post_gate": "c",
    "conv_states": "state",
    "conv_state": "state",
    "conv_state_indices": "cache_indices",
}
"""SGLang's names of arguments of its convolutions with gates, by cuconv's names."""


def causal_conv1d_fn(
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
    block_table: Any = None,
    **kwargs: Any,
) -> Any:
    """SGLang 0.5.23's `causal_conv1d_triton.causal_conv1d_fn` by `cuconv.causal_conv1d_varlen_fn`.

    x is (dim, total), the pool (slots, dim, at least width - 1) with the window in the first columns. seq_lens_cpu,
    validate_data, block_table and further arguments have no effect.

    Returns:
        (dim, total), new.
    """
    return varlen.causal_conv1d_varlen_fn(
        x,
        weight,
        bias,
        conv_states,
        query_start_loc,
        cache_indices,
        has_initial_state,
        conventions.silu(activation),
        pad_slot_id,
        first_column=conventions.first_column(conv_states),
    )


def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: Any = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
    num_accept_tokens: Any = None,
    intermediate_conv_window: Any = None,
    intermediate_state_indices: Any = None,
    retrieve_next_token: Any = None,
    retrieve_next_sibling: Any = None,
    retrieve_parent_token: Any = None,
    pad_slot_id: int = -1,
    metadata: Any = None,
    validate_data: bool = False,
    *,
    num_accepted_tokens: Any = None,
) -> Any:
    """SGLang 0.5.23's `causal_conv1d_triton.causal_conv1d_update` by `cuconv.causal_conv1d_update`.

    x is (batch, dim) or (batch, dim, seqlen). The live slots advance by all tokens, also when intermediate windows are
    kept, which may overlap in memory; in a tree they advance by the path to the last token. retrieve_parent_token
    receives the parents of the tree. num_accepted_tokens is the older name of num_accept_tokens. Rows of intermediate
    windows are slots, as in older versions, unless intermediate_state_indices is given. cache_seqlens, metadata and
    validate_data have no effect, as in SGLang.

    Returns:
        The shape of x, new.
    """
    if num_accept_tokens is None:
        num_accept_tokens = num_accepted_tokens
    if intermediate_conv_window is None:
        intermediate_state_indices = None
    if retrieve_next_token is None:
        retrieve_next_sibling = retrieve_parent_token = None
    try:
        return update.causal_conv1d_update(
            x,
            conv_state,
            weight,
            bias,
            conventions.silu(activation),
            None,
            conv_state_indices,
            num_accepted_tokens=num_accept_tokens,
            intermediate_conv_window=intermediate_conv_window,
            intermediate_state_indices=intermediate_state_indices,
            retrieve_next_token=retrieve_next_token,
            retrieve_next_sibling=retrieve_next_sibling,
            retrieve_parent_token=retrieve_parent_token,
            pad_slot_id=pad_slot_id,
            first_column=0,
        )
    except (TypeError, ValueError) as error:
        conventions.rename(error, NAMES)
        raise


def causal_conv1d_fn_split_qkv(
    x: Any,
    weight: Any,
    bias: Any,
    conv_states: Any,
    query_start_loc: Any,
    seq_lens_cpu: Any,
    k_dim: int,
    v_dim: int,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    activation: Any = "silu",
    pad_slot_id: int = -1,
) -> tuple[Any, Any, Any]:
    """SGLang's `causal_conv1d_fwd_split_qkv.causal_conv1d_fn_split_qkv` by `cuconv.causal_conv1d_split`.

    x is (2 * k_dim + v_dim, total). seq_lens_cpu has no effect.

    Returns:
        q and k, each (total, k_dim), and v, (total, v_dim): contiguous where the channels of x are.
    """
    try:
        q, k, v = varlen.split_by_token(
            x,
            weight,
            bias,
            conv_states,
            query_start_loc,
            cache_indices,
            has_initial_state,
            conventions.silu(activation),
            pad_slot_id,
            conventions.first_column(conv_states),
            (k_dim, k_dim, v_dim),
        )
        return q, k, v
    except (TypeError, ValueError) as error:
        conventions.rename(error, {"sizes": "(k_dim, k_dim, v_dim)"})
        raise


def causal_conv1d_update_split_qkv(
    x: Any,
    conv_state: Any,
    weight: Any,
    key_dim: int,
    value_dim: int,
    bias: Any = None,
    activation: Any = "silu",
    conv_state_indices: Any = None,
    pad_slot_id: int = -1,
) -> tuple[Any, Any, Any]:
    """SGLang's `causal_conv1d_split_qkv.causal_conv1d_update_split_qkv` by `cuconv.causal_conv1d_update_split`.

    x is (batch, 2 * key_dim + value_dim[, seqlen]).

    Returns:
        q and k, each (batch, key_dim[, seqlen]), and v, (batch, value_dim[, seqlen]).
    """
    try:
        q, k, v = update.causal_conv1d_update_split(
            x,
            conv_state,
            weight,
            bias,
            conventions.silu(activation),
            None,
            conv_state_indices,
            sizes=(key_dim, key_dim, value_dim),
            pad_slot_id=pad_slot_id,
            first_column=0,
        )
        return q, k, v
    except (TypeError, ValueError) as error:
        conventions.rename(error, {"sizes": "(key_dim, key_dim, value_dim)"})
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
    enable_stochastic_rounding: bool = False,
    cache_philox_rounds: int = 0,
) -> Any:
    """SGLang 0.5.23's `triton_ops.mamba_ssm.selective_state_update` by `cuconv.selective_state_update`.

    Intermediate states are stored only where state_batch_indices is given, as in SGLang. A sequence with the slot
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
            tensors.random_seed(state) if enable_stochastic_rounding else None,
            cache_philox_rounds,
        )
    except (TypeError, ValueError) as error:
        conventions.states_have_no_scales(error, "state", state)
        conventions.rename(error, NAMES)
        raise


def fused_lfm_short_conv_prefill(
    b: Any,
    c: Any,
    x: Any,
    weight: Any,
    state: Any,
    query_start_loc: Any,
    cache_indices: Any,
    has_initial_state: Any,
    max_seq_len: int,
) -> Any:
    """SGLang 0.5.23's `lfm_short_conv.fused_lfm_short_conv_prefill` by `cuconv.causal_conv1d_varlen_fn`.

    c * conv(b * x), each (tokens, dim), where b * x and the convolution are rounded to the dtype of x. The pool (slots,
    dim, width - 1) keeps b * x. max_seq_len has no effect. Padding gives 0, not c * b * x.

    Returns:
        (tokens, dim), new.
    """
    given = x, weight, None, state, query_start_loc, cache_indices, has_initial_state, None
    try:
        return varlen.convolve_by_token(*given, pre_gate=b, post_gate=c)
    except (TypeError, ValueError) as error:
        conventions.rename(error, GATED_NAMES)
        raise


def fused_lfm_short_conv_decode(b: Any, c: Any, x: Any, weight: Any, state: Any, cache_indices: Any) -> Any:
    """SGLang 0.5.23's `lfm_short_conv.fused_lfm_short_conv_decode` by `cuconv.causal_conv1d_update`.

    `fused_lfm_short_conv_prefill` for the next token of each sequence: b, c and x are (batch, dim).

    Returns:
        (batch, dim), new.
    """
    try:
        return update.causal_conv1d_update(
            x, state, weight, conv_state_indices=cache_indices, first_column=0, pre_gate=b, post_gate=c
        )
    except (TypeError, ValueError) as error:
        conventions.rename(error, GATED_NAMES)
        raise


_TRITON: Mapping[str, Callable[..., Any]] = {
    "causal_conv1d_fn": causal_conv1d_fn,
    "causal_conv1d_update": causal_conv1d_update,
}
_LFM: Mapping[str, Callable[..., Any]] = {
    "fused_lfm_short_conv_prefill": fused_lfm_short_conv_prefill,
    "fused_lfm_short_conv_decode": fused_lfm_short_conv_decode,
}

MODULES: installing.Modules = {
    "sglang.kernels.ops.mamba.causal_conv1d_triton": _TRITON,
    "sglang.kernels.ops.mamba.lfm_short_conv": _LFM,
    "sglang.kernels.ops.mamba.triton_ops.mamba_ssm": {"selective_state_update": selective_state_update},
    "sglang.srt.layers.attention.mamba.causal_conv1d_fwd_split_qkv": {
        "causal_conv1d_fn_split_qkv": causal_conv1d_fn_split_qkv
    },
    "sglang.srt.layers.attention.mamba.causal_conv1d_split_qkv": {
        "causal_conv1d_update_split_qkv": causal_conv1d_update_split_qkv
    },
    "sglang.srt.layers.attention.mamba.causal_conv1d_triton": _TRITON,
    "sglang.srt.layers.attention.mamba.ops.mamba_ssm": {"selective_state_update": selective_state_update},
}
"""The functions that `install` puts in the place of SGLang's, by module and name."""


def install() -> tuple[str, ...]:
    """Put these functions in the place of SGLang's, in this process; returns the full names of those replaced."""
    return installing.install(MODULES)
