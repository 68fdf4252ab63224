"""tokenspeed's functions of its linear attention, of August 2026, by cuconv."""

from __future__ import annotations

from typing import Any

from cuconv.causal_conv1d import update, varlen
from cuconv.engines import _conventions as conventions
from cuconv.engines import _installing as installing
from cuconv.engines import _tensors as tensors
from cuconv.engines import sglang

NAMES = {
    "x": "mixed_qkv",
    "qk_l2norm": "fuse_l2norm",
    "payload": "replay[0]",
    "payload_gates[0]": "replay[1]",
    "payload_gates[1]": "replay[2]",
    "payload_gates": "replay[1:]",
}
"""tokenspeed's names of arguments of a split without a convolution, by cuconv's names."""


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
    metadata: Any = None,
    validate_data: bool = False,
    **kwargs: Any,
) -> Any:
    """tokenspeed's `causal_conv1d.causal_conv1d_fn`, which is SGLang's: `cuconv.engines.sglang.causal_conv1d_fn`.

    Padding, which tokenspeed leaves uninitialised, gives 0. metadata, validate_data and further arguments have no
    effect.

    Returns:
        (dim, total), new.
    """
    given = x, weight, bias, conv_states, query_start_loc, None, cache_indices, has_initial_state, activation
    return sglang.causal_conv1d_fn(*given, pad_slot_id)


def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: Any = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
    num_accepted_tokens: Any = None,
    intermediate_conv_window: Any = None,
    output_state_indices: Any = None,
    pad_slot_id: int = -1,
    metadata: Any = None,
    validate_data: bool = False,
) -> Any:
    """tokenspeed's `causal_conv1d.causal_conv1d_update` by `cuconv.causal_conv1d_update`.

    x is (batch, dim) or (batch, dim, seqlen). Windows after each token go to row i of intermediate_conv_window for
    sequence i, or to the slots of output_state_indices (batch, seqlen); the live slot then stays as it is. Without
    output_state_indices it moves by one column, as with one accepted token. cache_seqlens, metadata and validate_data
    have no effect, as in tokenspeed.

    Returns:
        x, overwritten; padding keeps it.
    """
    keeps_state = intermediate_conv_window is not None or output_state_indices is not None
    shape = conventions.of_rank("x", x, 2, 3).shape
    rows = None
    if intermediate_conv_window is not None:
        try:
            count = intermediate_conv_window.shape[0]
        except (AttributeError, IndexError):
            conventions.of_rank("intermediate_conv_window", intermediate_conv_window, 4)
            raise
        if count < shape[0]:
            conventions.refuse("rows of intermediate_conv_window", count, f"at least {shape[0]}, one a sequence")
        rows = tensors.positions(x, shape[0])
    if not keeps_state and num_accepted_tokens is None and len(shape) == 3 and shape[2] > 1:
        num_accepted_tokens = tensors.ones(x, shape[0])
    try:
        return update.causal_conv1d_update(
            x,
            conv_state,
            weight,
            bias,
            conventions.silu(activation),
            None,
            conv_state_indices,
            num_accepted_tokens=num_accepted_tokens,
            intermediate_conv_window=intermediate_conv_window,
            intermediate_state_indices=rows,
            token_state_indices=output_state_indices,
            disable_state_update=keeps_state,
            pad_slot_id=pad_slot_id,
            pad_output="keep",
            first_column=0,
            out=x,
        )
    except (TypeError, ValueError) as error:
        conventions.rename(error, {"token_state_indices": "output_state_indices", **conventions.OVER_X})
        raise


def causal_conv1d_qkv_split_gdn_prefill(
    x: Any,
    weight: Any,
    bias: Any,
    conv_states: Any,
    query_start_loc: Any,
    seq_lens_cpu: Any,
    num_q_heads: int,
    num_k_heads: int,
    num_v_heads: int,
    head_q: int,
    head_k: int,
    head_v: int,
    total_seq_len: int,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    activation: Any = "silu",
    pad_slot_id: int = -1,
) -> tuple[Any, Any, Any]:
    """The `causal_conv1d_qkv_split_gdn_prefill` of tokenspeed's pull request 382 by `cuconv.causal_conv1d_qkv_split`.

    x is (dim, total). seq_lens_cpu and total_seq_len have no effect.

    Returns:
        q, k and v, each (1, total, heads, head_dim).
    """
    return varlen.causal_conv1d_qkv_split(
        x,
        weight,
        bias,
        conv_states,
        query_start_loc,
        num_q_heads=num_q_heads,
        num_k_heads=num_k_heads,
        num_v_heads=num_v_heads,
        head_q=head_q,
        head_k=head_k,
        head_v=head_v,
        cache_indices=cache_indices,
        has_initial_state=has_initial_state,
        activation=conventions.silu(activation),
        pad_slot_id=pad_slot_id,
        first_column=conventions.first_column(conv_states),
    )


def fused_qkv_split_gdn_prefill(
    mixed_qkv: Any,
    num_q_heads: int,
    num_k_heads: int,
    num_v_heads: int,
    head_q: int,
    head_k: int,
    head_v: int,
    fuse_l2norm: bool = False,
    replay: tuple[Any, Any, Any] | None = None,
) -> tuple[Any, Any, Any]:
    """tokenspeed's `gdn_qkv_split.fused_qkv_split_gdn_prefill` by `cuconv.causal_conv1d_qkv_split`, width 1, taps 1.

    mixed_qkv is (total, dim), after its convolution. With replay, (payload, a, b), row t of payload receives k and v of
    token t as they are in mixed_qkv, then a[t] and b[t].

    Returns:
        q, k and v, each (1, total, heads, head_dim); with fuse_l2norm heads of q and k are normalised.
    """
    heads = num_q_heads, num_k_heads, num_v_heads, head_q, head_k, head_v
    conventions.of_rank("mixed_qkv", mixed_qkv, 2)
    try:
        given = 3 if replay is None else len(replay)
    except TypeError:
        conventions.refuse("replay", f"a {type(replay).__name__}", "3 arrays: payload, a and b")
    if given != 3:
        conventions.refuse("replay", f"{given} arrays", "3 arrays: payload, a and b")
    taps = tensors.unit_taps(mixed_qkv, mixed_qkv.shape[1])
    try:
        return varlen.qkv_split_by_token(
            mixed_qkv, taps, heads, fuse_l2norm, *((None, None, None) if replay is None else replay)
        )
    except (TypeError, ValueError) as error:
        conventions.rename(error, NAMES)
        raise


MODULES: installing.Modules = {
    "tokenspeed.runtime.layers.attention.linear.causal_conv1d": {
        "causal_conv1d_fn": causal_conv1d_fn,
        "causal_conv1d_update": causal_conv1d_update,
    },
    "tokenspeed_kernel.ops.attention.triton.gdn_qkv_split": {
        "fused_qkv_split_gdn_prefill": fused_qkv_split_gdn_prefill
    },
}
"""The functions that `install` puts in the place of tokenspeed's, by module and name."""


def install() -> tuple[str, ...]:
    """Put these functions in the place of tokenspeed's, in this process; returns the full names of those replaced."""
    return installing.install(MODULES)
