"""The causal convolutions in NumPy and float64: the oracle of all tests, and what computes NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference_backward
from cuconv.causal_conv1d.reference_convolve import causal_conv1d_fn as causal_conv1d_fn
from cuconv.causal_conv1d.reference_convolve import convolve_packed, convolve_step, gated_input
from cuconv.causal_conv1d.sequences import sequence_starts
from cuconv.runtime import slots
from cuconv.runtime.activation import HALF_ULP, silu_error

Array = np.ndarray[Any, Any]


def causal_conv1d_varlen_fn(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    conv_states: Array | None = None,
    query_start_loc: Array | None = None,
    cache_indices: Array | None = None,
    has_initial_state: Array | None = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    first_column: int | None = None,
    *,
    state_column: Array | None = None,
    dst_state_indices: Array | None = None,
    initial_states: Array | None = None,
    null_slot: int | None = None,
    pad_output: str = "zero",
    snapshots: Array | None = None,
    snapshot_count: Array | None = None,
    snapshot_out: Array | None = None,
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
    """The convolution of packed sequences: (out (dim, total) in float64, copies of the states after the call by name).

    Where `pad_output` is "keep", out is NaN at padding.
    """
    given = {"conv_states": conv_states, "snapshot_out": snapshot_out}
    updated = {name: states.copy() for name, states in given.items() if states is not None}

    def live(states: Array | None) -> Array | None:
        return states if states is None or first_column != 0 else states[:, :, : weight.shape[1] - 1]

    out, is_padding = convolve_packed(
        *(x, weight, bias, live(updated.get("conv_states")), query_start_loc, cache_indices, has_initial_state),
        *(state_column, dst_state_indices, live(initial_states), activation, slots.padding(pad_slot_id, null_slot)),
        *(snapshots, snapshot_count, updated.get("snapshot_out"), pre_gate, post_gate, residual),
    )
    out[is_padding if x.ndim == 3 else (slice(None), is_padding)] = np.nan if pad_output == "keep" else 0.0
    return out, updated


def causal_conv1d_varlen_states(
    x: Array, cu_seqlens: Array, state_len: int, previous_states: Array | None = None
) -> Array:
    """The last state_len tokens of previous_states and every packed sequence together: (n, dim, state_len)."""
    total, dim = x.shape
    starts = sequence_starts(cu_seqlens, total)
    states = np.zeros((len(starts) - 1, dim, state_len), x.dtype)
    for i, (begin, end) in enumerate(pairwise(starts)):
        taken = min(max(end - begin, 0), state_len)
        if previous_states is not None:
            states[i, :, : state_len - taken] = previous_states[i, :, taken:]
        states[i, :, state_len - taken :] = x[end - taken : end].T
    return states


def l2norm(heads: Array, eps: float) -> Array:
    """Every vector along the last axis, divided by sqrt(sum of its squares + eps)."""
    y = heads.astype(np.float64)
    norms: Array = np.sqrt((y * y).sum(axis=-1, keepdims=True) + eps)
    return y / norms


def causal_conv1d_update(
    x: Array,
    conv_state: Array,
    weight: Array,
    bias: Array | None = None,
    activation: str | None = None,
    cache_seqlens: Array | None = None,
    conv_state_indices: Array | None = None,
    num_accepted_tokens: Array | None = None,
    intermediate_conv_window: Array | None = None,
    intermediate_state_indices: Array | None = None,
    disable_state_update: bool = False,
    pad_slot_id: int = -1,
    first_column: int | None = None,
    *,
    query_start_loc: Array | None = None,
    max_query_len: int | None = None,
    token_state_indices: Array | None = None,
    parents: Array | None = None,
    retrieve_next_token: Array | None = None,
    retrieve_next_sibling: Array | None = None,
    retrieve_parent_token: Array | None = None,
    state_column: Array | None = None,
    dst_state_indices: Array | None = None,
    has_initial_state: Array | None = None,
    null_slot: int | None = None,
    pad_output: str = "zero",
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
) -> tuple[Array, Array, Array | None, Array | None]:
    """x (batch, dim, seqlen) after the states: (out in float64, copies of conv_state, windows and parents behind it).

    With query_start_loc x is (tokens, dim, 1). Where `pad_output` is "keep", out is NaN at padding.
    """
    state = conv_state.copy()
    is_row = cache_seqlens is None and num_accepted_tokens is None
    live = state[:, :, : weight.shape[1] - 1] if is_row and first_column == 0 else state
    windows = None if intermediate_conv_window is None else intermediate_conv_window.copy()
    found = None if retrieve_parent_token is None else retrieve_parent_token.copy()
    out, is_computed = convolve_step(
        *(x, live, weight, bias, activation, cache_seqlens, conv_state_indices, num_accepted_tokens, windows),
        *(intermediate_state_indices, state_column, dst_state_indices, has_initial_state, query_start_loc),
        *(token_state_indices, parents, disable_state_update, slots.padding(pad_slot_id, null_slot), max_query_len),
        *(retrieve_next_token, retrieve_next_sibling, found, pre_gate, post_gate, residual),
    )
    out[~is_computed & (pad_output == "keep")] = np.nan
    return out, state, windows, found


UNDERFLOW = 2.0**-150
"""The largest absolute error of rounding to float32, next to 0."""

FACTORS = ("x", "weight", "bias", "initial_states", "conv_states", "conv_state")
"""Arguments that a convolution multiplies and adds."""

Errors = dict[str, Array]
Heads = tuple[tuple[int, int], ...]
"""(heads, head_dim) of q, k and v."""


def _error(convolve: Callable[..., tuple[Any, ...]], activation: str | None, arguments: Mapping[str, Any]) -> Array:
    """The absolute error per element that float32 arithmetic leaves in the first result of `convolve`.

    Each of the `width` fused multiply-adds rounds a partial sum of at most the sum of all terms' sizes. Where all terms
    are 0, so is the result.
    """
    sizes = {name: np.abs(each) if name in FACTORS and each is not None else each for name, each in arguments.items()}
    terms: Array = convolve(**sizes, activation=None)[0]
    error = 1.01 * arguments["weight"].shape[1] * (HALF_ULP * terms + UNDERFLOW)
    if activation is not None:
        out = convolve(**arguments, activation=activation)[0]
        error = silu_error(out, error, arguments["x"].dtype)
    return np.where(terms > 0.0, error, 0.0)


ROUNDING = {"float32": HALF_ULP, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of rounding to a dtype."""


def _gated_error(
    convolve: Callable[..., tuple[Any, ...]],
    activation: str | None,
    arguments: dict[str, Any],
    pre_gate: Array | None,
    post_gate: Array | None,
    residual: Array | None,
) -> Array:
    """The error of `_error` where gates and a residual surround `convolve`.

    What is rounded in front of a gate may differ from the oracle by its own error and one step of its dtype; the
    product and the sum round in float32.
    """
    x = gated_input(arguments["x"], pre_gate)
    arguments["x"] = x
    error = _error(convolve, activation, arguments)
    if post_gate is None and residual is None:
        return error
    out, is_computed = np.abs(convolve(**arguments, activation=activation)[0]), error > 0.0
    rounding = ROUNDING[x.dtype.name]
    if post_gate is not None:
        gate = np.abs(post_gate.astype(np.float64))
        error = gate * (error + 2.0 * rounding * (out + error) + (2.0**-24 if rounding == 2.0**-11 else 0.0))
        out = gate * out
    if residual is not None:
        out = out + np.abs(residual.astype(np.float64))
    return np.where(is_computed, error + 2.0 * HALF_ULP * (out + error), 0.0)


def _packed_error(
    *,
    activation: str | None = "silu",
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
    **arguments: Any,
) -> Array:
    return _gated_error(causal_conv1d_varlen_fn, activation, arguments, pre_gate, post_gate, residual)


def _step_error(
    *,
    activation: str | None = None,
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
    **arguments: Any,
) -> Array:
    arguments["x"] = np.atleast_3d(arguments["x"])
    gates = (None if each is None else np.atleast_3d(each) for each in (pre_gate, post_gate, residual))
    return _gated_error(causal_conv1d_update, activation, arguments, *gates)


def _by_sizes(whole: Array, sizes: tuple[int, ...]) -> Errors:
    """The ranges of channels of (…, dim, seqlen), by result."""
    parts = np.split(whole, np.cumsum(sizes)[:-1], axis=-2)
    return {f"out[{number}]": part for number, part in enumerate(parts)}


def _take_heads(arguments: dict[str, Any]) -> Heads:
    """Remove and return the numbers of heads, and of channels per head, among the arguments of a call."""
    return tuple((arguments.pop(f"num_{name}_heads"), arguments.pop(f"head_{name}")) for name in "qkv")


def _by_heads(whole: Array, heads: Heads) -> Errors:
    """The ranges of channels of (…, dim, seqlen) as (…, seqlen, heads, head_dim), by result."""
    parts = _by_sizes(whole, tuple(count * head_dim for count, head_dim in heads))
    return {
        name: part.swapaxes(-1, -2).reshape(*part.shape[:-2], part.shape[-1], *shape)
        for (name, part), shape in zip(parts.items(), heads, strict=True)
    }


def _normalized(heads: Array, error: Array, eps: float) -> Array:
    """The error of heads that are divided by their norms, along the last axis.

    An error of y moves y / n, n = sqrt(sum(y^2) + eps), by itself over n, and n by at most the norm of the errors of
    the head. The squares and their sum round once an addend, the reciprocal root is off by 2 ulp, the product by 1/2.
    """
    squares = (heads * heads).sum(axis=-1, keepdims=True)
    norms = np.sqrt(squares + eps)
    size = np.abs(heads) / norms
    moved = np.sqrt((error * error).sum(axis=-1, keepdims=True))
    result: Array = 1.01 * (error + size * moved) / norms + (heads.shape[-1] / 2 + 6) * HALF_ULP * size
    return result


def _fn_errors(
    *,
    return_final_states: bool = False,
    activation: str | None = None,
    pre_gate: Array | None = None,
    post_gate: Array | None = None,
    residual: Array | None = None,
    **arguments: Any,
) -> Errors:
    return {"out": _gated_error(causal_conv1d_fn, activation, arguments, pre_gate, post_gate, residual)}


def _varlen_errors(**arguments: Any) -> Errors:
    return {"out": _packed_error(**arguments)}


def _split_errors(*, sizes: tuple[int, ...], **arguments: Any) -> Errors:
    return _by_sizes(_packed_error(**arguments), sizes)


def _qkv_split_errors(*, qk_l2norm: bool = False, l2norm_eps: float = 1e-6, **arguments: Any) -> Errors:
    heads = _take_heads(arguments)
    errors = _by_heads(_packed_error(**arguments)[None], heads)
    if qk_l2norm:
        results = _by_heads(causal_conv1d_varlen_fn(**arguments)[0][None], heads)
        errors |= {name: _normalized(results[name], errors[name], l2norm_eps) for name in ("out[0]", "out[1]")}
    return errors


def _states_errors(**arguments: Any) -> Errors:
    return {}


def _update_errors(**arguments: Any) -> Errors:
    return {"out": _step_error(**arguments).reshape(arguments["x"].shape)}


def _update_split_errors(*, sizes: tuple[int, ...], **arguments: Any) -> Errors:
    errors = _by_sizes(_step_error(**arguments), sizes)
    return errors if arguments["x"].ndim == 3 else {name: error[:, :, 0] for name, error in errors.items()}


def _update_qkv_split_errors(**arguments: Any) -> Errors:
    heads = _take_heads(arguments)
    errors = _by_heads(_step_error(**arguments), heads)
    return errors if arguments["x"].ndim == 3 else {name: error[:, 0] for name, error in errors.items()}


ERRORS: Mapping[str, Callable[..., Errors]] = {
    "causal_conv1d_fn": _fn_errors,
    "causal_conv1d_varlen_fn": _varlen_errors,
    "causal_conv1d_split": _split_errors,
    "causal_conv1d_qkv_split": _qkv_split_errors,
    "causal_conv1d_varlen_states": _states_errors,
    "causal_conv1d_update": _update_errors,
    "causal_conv1d_update_split": _update_split_errors,
    "causal_conv1d_update_qkv_split": _update_qkv_split_errors,
    **reference_backward.ERRORS,
}
"""By public function, a function of its arguments except outputs that returns, by result, the largest absolute error
per element that float32 arithmetic of a correct kernel can have. Results that are only copied or rounded are absent.
The rounding of a result to its dtype is not included.
"""
