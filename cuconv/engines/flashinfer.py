"""FlashInfer's functions of flashinfer.mamba, of August 2026, by cuconv."""

from __future__ import annotations

from typing import Any

from cuconv.engines import _conventions as conventions
from cuconv.engines import _installing as installing
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
        disable_state_update=disable_state_update or intermediate_states_buffer is not None,
        pad_slot_id=pad_slot_id,
        rand_seed=rand_seed,
        philox_rounds=philox_rounds,
        state_scale=state_scale,
        intermediate_state_scales=intermediate_state_scales,
        out=out,
    )


MODULES: installing.Modules = {"flashinfer.mamba": {"selective_state_update": selective_state_update}}
"""The functions that `install` puts in the place of FlashInfer's, by module and name."""


def install() -> tuple[str, ...]:
    """Put these functions in the place of FlashInfer's, in this process; returns the full names of those replaced."""
    return installing.install(MODULES)
