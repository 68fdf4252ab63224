"""FlashInfer's functions of flashinfer.mamba, of August 2026, by cuconv."""

from __future__ import annotations

from typing import Any

from cuconv.engines import _conventions as conventions
from cuconv.engines import _installing as installing
from cuconv.selective_state_update import replay
from cuconv.selective_state_update import update as state_update


def selective_state_update(
    state: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    z: Any = None,
    dt_bias: Any = None,
    dt_softplus: bool = False,
    state_batch_indices: Any = None,
    pad_slot_id: int = -1,
    state_scale: Any = None,
    out: Any = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: Any = None,
    intermediate_state_indices: Any = None,
    intermediate_state_scales: Any = None,
    rand_seed: Any = None,
    philox_rounds: int = 10,
    cache_steps: int = 0,
    algorithm: str = "auto",
    dst_state_batch_indices: Any = None,
    cu_seqlens: Any = None,
    num_accepted_tokens: Any = None,
    backend: str = "auto",
) -> Any:
    """FlashInfer's `flashinfer.mamba.selective_state_update` by `cuconv.selective_state_update`.

    x is (batch, [tokens,] nheads, headdim), (batch, dim) or, with cu_seqlens, (tokens, nheads, headdim). With
    intermediate_states_buffer, or a column per token in dst_state_batch_indices, no final state is stored. Slots in
    state_batch_indices that are pad_slot_id or negative give 0. States may be int16 with scales. cache_steps, algorithm
    and backend have no effect.

    Returns:
        out, new where it is None.
    """
    if intermediate_states_buffer is not None and dst_state_batch_indices is not None:
        conventions.refuse("dst_state_batch_indices", "an array", "None beside intermediate_states_buffer")
    disable_state_update = disable_state_update or intermediate_states_buffer is not None
    if (
        dst_state_batch_indices
        is num_accepted_tokens
        is cu_seqlens
        is rand_seed
        is state_scale
        is intermediate_state_scales
        is None
    ) and philox_rounds == 10:
        # All arguments by name would take 1 us more.
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
            intermediate_states_buffer=intermediate_states_buffer,
            intermediate_state_indices=intermediate_state_indices,
            disable_state_update=disable_state_update,
            pad_slot_id=pad_slot_id,
            out=out,
        )
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
        dst_state_batch_indices=dst_state_batch_indices,
        intermediate_states_buffer=intermediate_states_buffer,
        intermediate_state_indices=intermediate_state_indices,
        num_accepted_tokens=num_accepted_tokens,
        cu_seqlens=cu_seqlens,
        disable_state_update=disable_state_update,
        pad_slot_id=pad_slot_id,
        rand_seed=rand_seed,
        philox_rounds=philox_rounds,
        state_scale=state_scale,
        intermediate_state_scales=intermediate_state_scales,
        out=out,
    )


def checkpointing_ssu(
    state: Any,
    x_cache: Any,
    B_cache: Any,
    dt_cache: Any,
    ring_start: Any,
    prev_num_accepted_tokens: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    out: Any,
    D: Any = None,
    z: Any = None,
    dt_bias: Any = None,
    dt_softplus: bool = False,
    state_batch_indices: Any = None,
    pad_slot_id: int = -1,
    state_scale: Any = None,
    rand_seed: Any = None,
    philox_rounds: int = 10,
    d_split: int | None = None,
    cu_seqlens: Any = None,
    max_seqlen: int | None = None,
    enable_pdl: bool = False,
    cb_scaled: Any = None,
    cumAdt_vec: Any = None,
    cb_old: Any = None,
    precompute_heads_per_cta: int = 0,
    algorithm: str = "auto",
) -> Any:
    """FlashInfer's `flashinfer.mamba.checkpointing_ssu` by `cuconv.selective_state_update_replay`.

    x is (batch, tokens, nheads, headdim) or, with cu_seqlens and max_seqlen, (1, tokens, nheads, headdim). The rings
    x_cache, B_cache and dt_cache, contiguous behind their slots, have as many rows as live tokens may be, 1 to 32, and
    those of one call together.
    Before there would be more live tokens, those that are there are put in the state, also where batches are small; the
    caller moves ring_start and prev_num_accepted_tokens, (slots,), int32, of equal strides.
    d_split, enable_pdl, the scratch cb_scaled, cumAdt_vec and cb_old, precompute_heads_per_cta and algorithm have no
    effect.

    Returns:
        out.
    """
    if out is None:
        conventions.refuse("out", None, "an array of the shape of x, for the result")
    if (cu_seqlens is None) != (max_seqlen is None):
        conventions.refuse("max_seqlen", max_seqlen, "an int beside cu_seqlens, else None")
    tokens = x.shape[1] if max_seqlen is None else max_seqlen
    rows = x_cache.shape[2]
    if tokens >= rows:
        conventions.refuse("rows of x_cache", rows, f"more than the {tokens} tokens of a sequence in a call")
    result = out
    if cu_seqlens is not None:
        x, dt, B, C, out = x[0], dt[0], B[0], C[0], out[0]
        z = None if z is None else z[0]
    replay.replay_by_columns(
        state,
        x_cache,
        B_cache,
        dt_cache,
        ring_start,
        prev_num_accepted_tokens,
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
        rows - tokens,
        cu_seqlens,
        pad_slot_id,
        rand_seed,
        philox_rounds,
        state_scale,
        out,
    )
    return result


MODULES: installing.Modules = {
    "flashinfer.mamba": {"selective_state_update": selective_state_update, "checkpointing_ssu": checkpointing_ssu}
}
"""The functions that `install` puts in the place of FlashInfer's, by module and name."""


def install() -> tuple[str, ...]:
    """Put these functions in the place of FlashInfer's, in this process; returns the full names of those replaced."""
    return installing.install(MODULES)
