"""vLLM's functions of vllm.model_executor.layers.mamba.ops, version 0.33.0, by cuconv.

Arguments that versions from 0.20 on had and 0.33.0 lacks are keywords. Versions before 0.20, whose order of arguments
and mark of padding differ, are followed by `vllm_0_19`.

Outputs of padding, which vLLM leaves uninitialised, are zeros, or keep x where results overwrite x. Inputs are used
unrounded, and rounded to the dtype of the states only where they are kept.
"""

from __future__ import annotations

from typing import Any

from cuconv.causal_conv1d import update, varlen
from cuconv.engines import _conventions as conventions
from cuconv.engines import _installing as installing
from cuconv.engines import _tensors as tensors
from cuconv.selective_scan import varlen as scan
from cuconv.selective_state_update import update as state_update

SCAN_NAMES = {
    "null_slot": "null_block_id",
    "state_column": "initial_state_idx",
    "dst_state_indices": "block_idx_last_scheduled_token",
}
"""vLLM's names of arguments of the scan, by cuconv's names."""

NAMES = SCAN_NAMES | {
    "block_size": "block_size_to_align",
    "philox_rounds": "cache_philox_rounds",
    "rand_seed": "enable_stochastic_rounding",
}
"""vLLM's names of arguments of other functions, by cuconv's names."""


def causal_conv1d_fn(
    x: Any,
    weight: Any,
    bias: Any,
    conv_states: Any,
    query_start_loc: Any,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    activation: Any = "silu",
    pad_slot_id: int = -1,
    null_block_id: int | None = 0,
    metadata: Any = None,
    validate_data: bool = False,
    *,
    block_idx_first_scheduled_token: Any = None,
    block_idx_last_scheduled_token: Any = None,
    initial_state_idx: Any = None,
    num_computed_tokens: Any = None,
    block_size_to_align: int | None = None,
) -> Any:
    """vLLM 0.33.0's `causal_conv1d_fn` by `cuconv.causal_conv1d_varlen_fn`.

    x is (dim, total), the pool (slots, dim, at least width - 1) with the window in the first columns. metadata,
    validate_data and pad_slot_id, which vLLM compares with numbers of its metadata, have no effect. The block_idx_*
    arguments are those of versions before 0.33 for prefix caches of mode "all": each sequence starts from the slot in
    column initial_state_idx of cache_indices (sequences, blocks), and leaves its state at the end of every block in
    that block's slot.

    Returns:
        (dim, total), new.
    """
    given = x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state
    silu, first_column = conventions.silu(activation), conventions.first_column(conv_states)
    try:
        if block_idx_last_scheduled_token is not None:
            if not block_size_to_align:
                conventions.refuse("block_size_to_align", block_size_to_align, "tokens per block, for block_idx_*")
            return varlen.convolve_by_blocks(
                *given,
                silu,
                null_block_id,
                first_column,
                block_size_to_align,
                state_column=initial_state_idx,
                block_idx_last_scheduled_token=block_idx_last_scheduled_token,
                num_computed_tokens=num_computed_tokens,
            )
        return varlen.causal_conv1d_varlen_fn(*given, silu, null_slot=null_block_id, first_column=first_column)
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
    null_block_id: int | None = 0,
    validate_data: bool = False,
    out: Any = None,
    *,
    pad_slot_id: int | None = None,
    block_idx_last_scheduled_token: Any = None,
    initial_state_idx: Any = None,
) -> Any:
    """vLLM 0.33.0's `causal_conv1d_update` by `cuconv.causal_conv1d_update`.

    x is (batch, dim), (batch, dim, seqlen) or, with query_start_loc, (tokens, dim). There are as many sequences as
    conv_state_indices has rows; query_start_loc may be longer. pad_slot_id, of versions before 0.20, replaces
    null_block_id. With initial_state_idx and block_idx_last_scheduled_token, of versions before 0.33, each sequence
    starts from the slot in the former column of conv_state_indices and leaves its state in that of the latter.

    Returns:
        out, or without it x, overwritten; a new array where x has another dtype than conv_state.
    """
    if out is None:
        conventions.of_rank("x", x, 2, 3)
        conventions.of_rank("conv_state", conv_state, 3)
        if x.dtype == conv_state.dtype:
            out = x
    silu, null_slot = conventions.silu(activation), null_block_id if pad_slot_id is None else pad_slot_id
    if query_start_loc is not None and conv_state_indices is not None:
        # The number of sequences is that of slots, because query_start_loc is padded to the batch of a graph.
        try:
            starts = conv_state_indices.shape[0] + 1
            query_start_loc = query_start_loc if query_start_loc.shape[0] <= starts else query_start_loc[:starts]
        except (AttributeError, IndexError):
            conventions.of_rank("conv_state_indices", conv_state_indices, 1, 2)
            conventions.of_rank("query_start_loc", query_start_loc, 1)
            raise
    most = None if query_start_loc is None or max_query_len == -1 else max_query_len
    pad_output = "zero" if out is None else "keep"
    try:
        if block_idx_last_scheduled_token is not None:
            return update.step_by_blocks(
                *(x, conv_state, weight, bias, silu, conv_state_indices, null_slot, pad_output),
                query_start_loc=query_start_loc,
                max_query_len=most,
                num_accepted_tokens=num_accepted_tokens,
                state_column=initial_state_idx,
                block_idx_last_scheduled_token=block_idx_last_scheduled_token,
                out=out,
            )
        # A tuple of arguments, unpacked, would take 0.2 us more.
        return update.causal_conv1d_update(
            x,
            conv_state,
            weight,
            bias,
            silu,
            None,
            conv_state_indices,
            query_start_loc=query_start_loc,
            max_query_len=most,
            num_accepted_tokens=num_accepted_tokens,
            null_slot=null_slot,
            pad_output=pad_output,
            first_column=0,
            out=out,
        )
    except (TypeError, ValueError) as error:
        conventions.rename(error, NAMES | conventions.OVER_X if out is x else NAMES)
        raise


def selective_state_update(
    state: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    dt_bias: Any,
    z: Any = None,
    dt_softplus: bool = False,
    state_batch_indices: Any = None,
    dst_state_batch_indices: Any = None,
    null_block_id: int | None = 0,
    out: Any = None,
    num_accepted_tokens: Any = None,
    cu_seqlens: Any = None,
    is_blackwell: bool = False,
    enable_stochastic_rounding: bool = False,
    cache_philox_rounds: int = 0,
    *,
    pad_slot_id: int | None = None,
) -> None:
    """vLLM 0.33.0's `selective_state_update` of mamba_ssm by `cuconv.selective_state_update`.

    dt_bias comes before z. Index arrays of several columns without num_accepted_tokens are read in their first column.
    A sequence in the null block gives 0. pad_slot_id, of versions before 0.20, replaces null_block_id.

    Returns:
        None: the result is in out, which must be given.
    """
    if out is None:
        conventions.refuse("out", None, "an array of the shape of x, for the result")
    if num_accepted_tokens is None:
        if dst_state_batch_indices is state_batch_indices:
            dst_state_batch_indices = None
        elif getattr(dst_state_batch_indices, "ndim", None) == 2:
            try:
                dst_state_batch_indices = dst_state_batch_indices.select(1, 0)
            except (AttributeError, IndexError):
                conventions.of_rank("dst_state_batch_indices", dst_state_batch_indices, 2)
                conventions.refuse("columns of dst_state_batch_indices", 0, "at least 1")
    try:
        state_update.selective_state_update(
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
            dst_state_batch_indices=dst_state_batch_indices,
            num_accepted_tokens=num_accepted_tokens,
            cu_seqlens=cu_seqlens,
            null_slot=null_block_id if pad_slot_id is None else pad_slot_id,
            rand_seed=tensors.random_seed(state) if enable_stochastic_rounding else None,
            philox_rounds=cache_philox_rounds,
            out=out,
        )
    except (TypeError, ValueError) as error:
        conventions.states_have_no_scales(error, "state", state)
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
    null_block_id: int | None = 0,
    block_size: int = 1024,
    block_idx_first_scheduled_token: Any = None,
    block_idx_last_scheduled_token: Any = None,
    initial_state_idx: Any = None,
    cu_chunk_seqlen: Any = None,
    last_chunk_indices: Any = None,
    *,
    pad_slot_id: int | None = None,
) -> Any:
    """vLLM 0.33.0's `selective_scan_fn` by `cuconv.selective_scan_varlen_fn`.

    u is (dim, total) with query_start_loc, else (batch, dim, seqlen). With the block_idx_* arguments, of prefix caches
    of mode "all", each sequence starts from the slot in column initial_state_idx of cache_indices (sequences, blocks),
    and leaves its state at the end of every block of block_size tokens in that block's slot; cu_chunk_seqlen and
    last_chunk_indices say where its chunks end, one or more per block. Without the block_idx_* arguments these two have
    no effect. pad_slot_id, of versions before 0.20, replaces null_block_id.

    Returns:
        z, overwritten, or without it delta; padding keeps what it holds.
    """
    null_slot = null_block_id if pad_slot_id is None else pad_slot_id
    out = delta if z is None else z
    given = u, ssm_states, delta, A, B, C, D, z, delta_bias, delta_softplus, query_start_loc, cache_indices
    try:
        if block_idx_last_scheduled_token is None:
            return scan.selective_scan_varlen_fn(
                *given, has_initial_state, null_slot=null_slot, pad_output="keep", out=out
            )
        return scan.scan_by_blocks(
            *given,
            has_initial_state,
            null_slot,
            block_size,
            state_column=initial_state_idx,
            block_idx_first_scheduled_token=block_idx_first_scheduled_token,
            block_idx_last_scheduled_token=block_idx_last_scheduled_token,
            cu_chunk_seqlen=cu_chunk_seqlen,
            last_chunk_indices=last_chunk_indices,
            out=out,
        )
    except (TypeError, ValueError) as error:
        conventions.states_have_no_scales(error, "ssm_states", ssm_states)
        conventions.rename(error, SCAN_NAMES | {"out": "delta" if z is None else "z"})
        raise


_FUNCTIONS: installing.Modules = {
    "causal_conv1d": {"causal_conv1d_fn": causal_conv1d_fn, "causal_conv1d_update": causal_conv1d_update},
    "mamba_ssm": {"selective_scan_fn": selective_scan_fn, "selective_state_update": selective_state_update},
}

MODULES: installing.Modules = {
    f"{engine}.model_executor.layers.mamba.ops.{module}": functions
    for engine in ("vllm", "aphrodite")
    for module, functions in _FUNCTIONS.items()
}
"""The functions that `install` puts in the place of vLLM's, and of Aphrodite's copies of them."""


def install() -> tuple[str, ...]:
    """Put these functions in the place of vLLM's, in this process; returns the full names of those replaced.

    Functions of versions before 0.20, which have no null_block_id, stay as they are, and a warning says so: those that
    `vllm_0_19` has take their place.
    """
    return installing.install(MODULES, "null_block_id")
