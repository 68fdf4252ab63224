"""FlashInfer's functions of flashinfer.mamba, of August 2026, by cuconv."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuconv.engines import _conventions as conventions
from cuconv.engines import _installing as installing
from cuconv.runtime import checks
from cuconv.runtime.errors import message, one_of
from cuconv.selective_state_update import kernels_replay, replay
from cuconv.selective_state_update import update as state_update

ALGORITHMS = ("auto", "simple", "vertical", "horizontal", "async_horizontal")
CHECKPOINTING_ALGORITHMS = ("auto", "monolith", "two-kernel")
BACKENDS = ("auto", "flashinfer", "cake")

NAMES = {
    "state_column": "num_accepted_tokens",
    "x_ring": "x_cache",
    "B_ring": "B_cache",
    "dt_ring": "dt_cache",
    "cursors": "ring_start",
    "ring_live": "prev_num_accepted_tokens",
    "window": "max_window",
}
"""FlashInfer's names of arguments, by cuconv's names."""


class TooManyTokensError(ValueError, AssertionError):
    """More tokens than a call can take, for which FlashInfer raises an AssertionError and cuconv a ValueError."""


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

    x is (batch, nheads, headdim) or (batch, dim); (batch, tokens, nheads, headdim); or with cu_seqlens (tokens, nheads,
    headdim). Without heads in x there is one head, and with cache_steps an x without tokens has one token. The states
    after several tokens go to intermediate_states_buffer, which has cache_steps steps where these are given; or to
    dst_state_batch_indices, whatever disable_state_update is. Otherwise the last one goes to the slot that it came
    from, which num_accepted_tokens chooses among the columns of state_batch_indices. With a single token and without
    cache_steps, the buffer and num_accepted_tokens have no effect. Slots in state_batch_indices that are pad_slot_id or
    negative give 0. States may be int16 with scales. algorithm and backend only choose kernels of FlashInfer.

    Returns:
        out, new where it is None.
    """
    if algorithm != "auto" and algorithm not in ALGORITHMS:
        conventions.refuse("algorithm", repr(algorithm), one_of(ALGORITHMS))
    if backend != "auto" and backend not in BACKENDS:
        conventions.refuse("backend", repr(backend), one_of(BACKENDS))
    if cache_steps.__class__ is not int or cache_steps < 0:
        if not isinstance(cache_steps, np.integer) or cache_steps < 0:
            conventions.refuse("cache_steps", cache_steps, "an int, at least 0")
        cache_steps = int(cache_steps)
    result = out
    try:
        axes = x.dim()
    except AttributeError:
        # cuconv's function raises the error for such an x.
        axes = 3
    if axes == 2 or (cache_steps and axes == 3 and cu_seqlens is None):
        has_tokens = cache_steps > 0 and cu_seqlens is None
        given = state, x, dt, A, B, C, D, z, dt_bias, out
        try:
            state, x, dt, A, B, C, D, z, dt_bias, out = _with_axes(has_tokens, *given)
        except AttributeError:
            names = "state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias", "out"
            for name, array in zip(names, given, strict=True):
                if array is not None:
                    conventions.of_rank(name, array, *range(1, 5))
            raise
    column = None
    if intermediate_states_buffer is not None or dst_state_batch_indices is not None or num_accepted_tokens is not None:
        if intermediate_states_buffer is not None and dst_state_batch_indices is not None:
            conventions.refuse("dst_state_batch_indices", "an array", "None beside intermediate_states_buffer")
        if axes < 4 and cu_seqlens is None and not cache_steps:
            intermediate_states_buffer = intermediate_state_indices = intermediate_state_scales = None
            num_accepted_tokens = None
        elif intermediate_states_buffer is not None:
            disable_state_update = True
            steps = conventions.of_rank("intermediate_states_buffer", intermediate_states_buffer, 3, 4, 5).shape[1]
            if cache_steps not in (0, steps):
                conventions.refuse("cache_steps", cache_steps, f"{steps}, the steps of intermediate_states_buffer")
        elif dst_state_batch_indices is not None:
            disable_state_update = False
        if num_accepted_tokens is not None and getattr(dst_state_batch_indices, "ndim", 1) == 1:
            # Beside slots for the states after every token cuconv's function finds the column itself.
            conventions.of_rank("num_accepted_tokens", num_accepted_tokens, 1)
            column, num_accepted_tokens = (num_accepted_tokens - 1).clamp(min=0), None
    try:
        if (
            dst_state_batch_indices
            is num_accepted_tokens
            is column
            is cu_seqlens
            is rand_seed
            is state_scale
            is intermediate_state_scales
            is None
        ):
            # All arguments by name would take 1 us more.
            found = state_update.selective_state_update(
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
        else:
            found = state_update.selective_state_update(
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
                state_column=column,
                disable_state_update=disable_state_update,
                pad_slot_id=pad_slot_id,
                rand_seed=rand_seed,
                philox_rounds=philox_rounds if rand_seed is not None else 0,
                state_scale=state_scale,
                intermediate_state_scales=intermediate_state_scales,
                out=out,
            )
    except (TypeError, ValueError) as error:
        conventions.rename(error, NAMES)
        raise
    return found if result is None else result


def _with_axes(has_tokens: bool, *arrays: Any) -> list[Any]:
    """Arrays with the axis of heads, if they have none, and with one of tokens if `has_tokens`.

    arrays: state, x, dt, A, B, C, D, z, dt_bias and out.
    """
    whole = {0: 4, 3: 3, 6: 2, 8: 2}
    found = []
    for place, array in enumerate(arrays):
        axes = getattr(array, "ndim", None)
        if axes is not None:
            if axes == whole.get(place, 3) - 1:
                array = array.unsqueeze(1 if place not in (3, 6, 8) else 0)
            if place not in whole and has_tokens and array.ndim == 3:
                array = array.unsqueeze(1)
        found.append(array)
    return found


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
    x_cache, B_cache and dt_cache are contiguous behind their slots. Their rows are the most live tokens, 1 to 32, plus
    the tokens of one call. Before there would be more live tokens, those in the rings are folded into the state, also
    in small batches. The caller moves ring_start and prev_num_accepted_tokens, (slots,), int32, of equal strides.
    d_split, enable_pdl, the scratch cb_scaled, cumAdt_vec and cb_old, precompute_heads_per_cta and algorithm must be
    valid for FlashInfer, but have no effect.

    Returns:
        out.
    """
    if out is None:
        conventions.refuse("out", None, "an array of the shape of x, for the result")
    if (cu_seqlens is None) != (max_seqlen is None):
        conventions.refuse("max_seqlen", max_seqlen, "an int beside cu_seqlens, else None")
    if algorithm not in CHECKPOINTING_ALGORITHMS:
        conventions.refuse("algorithm", repr(algorithm), one_of(CHECKPOINTING_ALGORITHMS))
    if (cb_scaled is None) != (cumAdt_vec is None) or (cb_scaled is None) != (cb_old is None):
        conventions.refuse("cb_scaled, cumAdt_vec and cb_old", "some of them", "all or none")
    if algorithm == "two-kernel" and cb_scaled is None:
        conventions.refuse("cb_scaled", None, "an array beside algorithm 'two-kernel'")
    if d_split not in (None, 1, 2):
        conventions.refuse("d_split", d_split, "1, 2 or None")
    tokens = conventions.of_rank("x", x, 4).shape[1] if max_seqlen is None else checks.integer("max_seqlen", max_seqlen)
    if tokens < 0:
        conventions.refuse("max_seqlen", tokens, "at least 0")
    rows = conventions.of_rank("x_cache", x_cache, 4).shape[2]
    conventions.of_rank("prev_num_accepted_tokens", prev_num_accepted_tokens, 1)
    if tokens >= rows:
        conventions.refuse("rows of x_cache", rows, f"more than the {tokens} tokens of a sequence in a call")
    result = out
    if cu_seqlens is not None:
        packed = {"x": x, "dt": dt, "B": B, "C": C, "out": out, "z": z}
        for name, array in packed.items():
            if array is not None and conventions.of_rank(name, array, 4).shape[0] != 1:
                conventions.refuse(name, f"shape {tuple(array.shape)}", "a batch of 1 beside cu_seqlens")
        x, dt, B, C, out, z = (None if array is None else array[0] for array in packed.values())
    try:
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
    except (TypeError, ValueError) as error:
        if tokens > (most := kernels_replay.max_tokens()):
            name = "tokens of x" if max_seqlen is None else "max_seqlen"
            raise TooManyTokensError(message(name, tokens, f"at most {most} cache tokens in a call")) from None
        conventions.rename(error, NAMES)
        raise
    return result


MODULES: installing.Modules = {
    "flashinfer.mamba": {"selective_state_update": selective_state_update, "checkpointing_ssu": checkpointing_ssu}
}
"""The functions that `install` puts in the place of FlashInfer's, by module and name."""


def install() -> tuple[str, ...]:
    """Put these functions in the place of FlashInfer's, in this process; returns the full names of those replaced."""
    return installing.install(MODULES)
