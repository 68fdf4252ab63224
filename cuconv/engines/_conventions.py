"""Conventions that several engines share, in terms of the arguments of cuconv's functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from cuconv.causal_conv1d import update, varlen
from cuconv.runtime.dtypes import FLOATS
from cuconv.runtime.errors import message, one_of
from cuconv.selective_state_update import update as state_update

OVER_X = {"out": "x"}
"""An engine's name for the result that overwrites x, by cuconv's name."""


def refuse(argument: str, got: object, wanted: object) -> NoReturn:
    """Raise the error for an engine's argument that cuconv does not support."""
    raise ValueError(message(argument, got, wanted))


def rename(error: Exception, names: Mapping[str, str]) -> None:
    """Let an error name arguments as an engine does: `names` maps cuconv's names to the engine's.

    A single array of an argument may have its own name: `payload_gates[0]`.
    """

    def named(found: re.Match[str]) -> str:
        word, place = found.groups(default="")
        return names.get(found[0]) or names.get(word, word) + place

    error.args = (re.sub(r"(\w+)(\[\d+\])?", named, str(error)),)


def states_have_no_scales(error: Exception, argument: str, states: Any) -> None:
    """Replace an error for missing scales, an argument that the engine lacks, by one for states of codes."""
    if str(error).startswith("state_scale: got None"):
        got = str(states.dtype).removeprefix("torch.")
        raise TypeError(message(argument, f"dtype {got}", one_of(FLOATS))) from None


def of_rank(argument: str, array: Any, *ranks: int) -> Any:
    """An argument with one of these ranks, checked here where an adapter itself needs its shape."""
    try:
        axes = array.dim()
    except AttributeError:
        raise TypeError(message(argument, f"a {type(array).__name__}", "a torch tensor")) from None
    if axes not in ranks:
        refuse(argument, f"shape {tuple(array.shape)}", f"{' or '.join(map(str, ranks))} axes")
    return array


def silu(activation: Any) -> Any:
    """The name of an activation, or None, from a name or a flag."""
    if isinstance(activation, bool):
        return "silu" if activation else None
    return activation


def first_column(states: Any) -> int | None:
    """`first_column` of cuconv's functions: engines have the window in the first columns; None without states."""
    return None if states is None else 0


def conv_in_place(
    x: Any,
    weight: Any,
    bias: Any,
    query_start_loc: Any,
    cache_indices: Any,
    has_initial_state: Any,
    conv_states: Any,
    activation: Any,
    pad_slot_id: int,
    must_be_over_x: bool = False,
) -> Any:
    """The prefill of the CUDA kernels of SGLang and TensorRT-LLM: x is (dim, total) or (batch, dim, seqlen).

    Unlike their decode steps, these have the window in the first columns of longer states.

    Returns:
        x, overwritten, where its tokens are contiguous or it must be; else a new array. Padding keeps x, or in a new
        array gives 0.
    """
    is_over_x = must_be_over_x or of_rank("x", x, 2, 3).stride(-1) == 1
    try:
        return varlen.causal_conv1d_varlen_fn(
            x,
            weight,
            bias,
            conv_states,
            query_start_loc,
            cache_indices,
            has_initial_state,
            silu(activation),
            pad_slot_id,
            pad_output="keep" if is_over_x else "zero",
            first_column=first_column(conv_states),
            out=x if is_over_x else None,
        )
    except (TypeError, ValueError) as error:
        rename(error, OVER_X)
        raise


def update_in_place(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any,
    activation: Any,
    cache_seqlens: Any,
    conv_state_indices: Any,
    pad_slot_id: int,
) -> Any:
    """The decode step of the CUDA kernels of SGLang and TensorRT-LLM: the result is over x, and padding keeps x."""
    try:
        return update.causal_conv1d_update(
            x,
            conv_state,
            weight,
            bias,
            silu(activation),
            cache_seqlens,
            conv_state_indices,
            pad_slot_id=pad_slot_id,
            pad_output="keep",
            out=x,
        )
    except (TypeError, ValueError) as error:
        rename(error, OVER_X)
        raise


def update_with_buffer(
    state: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    z: Any,
    dt_bias: Any,
    dt_softplus: bool,
    state_batch_indices: Any,
    pad_slot_id: int,
    out: Any,
    disable_state_update: bool,
    buffer: Any,
    cache_steps: int | None,
    parents: Any,
    buffer_indices: Any,
    rand_seed: Any,
    philox_rounds: int,
) -> Any:
    """The state update of SGLang and TensorRT-LLM, which stores states of the buffer only for given slots."""
    if parents is not None and (buffer is None or state_batch_indices is None):
        refuse(
            "retrieve_parent_token", "an array", "None unless intermediate_states_buffer and state_batch_indices are"
        )
    if state_batch_indices is None:
        buffer = None
    if buffer is None:
        buffer_indices = None
    elif cache_steps is not None:
        try:
            steps = buffer.shape[1]
        except (AttributeError, IndexError):
            of_rank("intermediate_states_buffer", buffer, 4, 5)
            raise
        if cache_steps != steps:
            refuse("cache_steps", cache_steps, f"{steps}, the steps of intermediate_states_buffer")
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
        intermediate_states_buffer=buffer,
        intermediate_state_indices=buffer_indices,
        parents=parents,
        disable_state_update=disable_state_update,
        pad_slot_id=pad_slot_id,
        rand_seed=rand_seed,
        philox_rounds=philox_rounds,
        out=out,
    )
