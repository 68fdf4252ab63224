"""The functions of the compiled modules of causal-conv1d, mamba_ssm and VMamba, by cuconv. Programs call these in their
own functions of autograd.

Autograd follows none of them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cuconv.causal_conv1d import backward, dense, update
from cuconv.runtime.errors import message, one_of
from cuconv.selective_scan.backward import selective_scan_bwd
from cuconv.selective_scan.dense import selective_scan_fn
from cuconv.selective_scan.kernels import chunk_tokens

PART = 2048
"""Tokens per state that mamba_ssm's kernels leave."""


def causal_conv1d_fwd_function(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    final_states_out: Tensor | None,
    silu_activation: bool,
) -> Tensor:
    """`cuconv.causal_conv1d_fn`'s result; final states are written to final_states_out where that is given."""
    return _convolved((x, weight, bias, seq_idx, initial_states), final_states_out, silu_activation)


@torch.no_grad()
def _convolved(inputs: tuple[Any, ...], final_states_out: Any, silu: bool, out: Any = None) -> Tensor:
    has_final = final_states_out is not None
    result = dense.causal_conv1d_fn(*(*inputs, has_final, final_states_out, _activation(silu)), out=out)
    made: Tensor = result[0] if has_final else result
    return made


@torch.no_grad()
def causal_conv1d_bwd_function(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dout: Tensor,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    dfinal_states: Tensor | None,
    dx: Tensor | None,
    return_dinitial_states: bool,
    silu_activation: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """`cuconv.causal_conv1d_bwd`; dx may be given. Initial states are zeros where they are not given."""
    if return_dinitial_states and initial_states is None:
        initial_states = x.new_zeros(x.shape[0], x.shape[1], weight.shape[1] - 1)
    dx, dweight, dbias, dinitial_states = backward.causal_conv1d_bwd(
        *(x, weight, bias, dout),
        seq_idx=seq_idx,
        initial_states=initial_states,
        dfinal_states=dfinal_states,
        activation=_activation(silu_activation),
        dx=dx,
    )
    return dx, dweight, dbias, dinitial_states if return_dinitial_states else None


def causal_conv1d_update_function(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu_activation: bool,
    cache_seqlens: Tensor | None,
    conv_state_indices: Tensor | None,
) -> Tensor:
    """`cuconv.causal_conv1d_update`."""
    return _stepped((x, conv_state, weight, bias), silu_activation, cache_seqlens, conv_state_indices)


@torch.no_grad()
def _stepped(inputs: tuple[Any, ...], silu: bool, cache_seqlens: Any, indices: Any, out: Any = None) -> Tensor:
    made: Tensor = update.causal_conv1d_update(*(*inputs, _activation(silu), cache_seqlens, indices), out=out)
    return made


def _activation(silu: bool) -> str | None:
    return "silu" if silu else None


def convolution_forward(x: Tensor, weight: Tensor, bias: Tensor | None, *others: Any) -> Tensor | None:
    """`causal_conv1d_cuda.causal_conv1d_fwd` of every version of causal-conv1d, told by the number of arguments.

    Behind bias and in front of silu come, from 1.1 on, seq_idx; from 1.2 on also initial_states and final_states_out;
    and from 1.5.1 on out between these two, which is written, and nothing is returned.
    """
    given: list[Any]
    *given, silu = _counted("causal_conv1d_fwd", others, (1, 2, 4, 5), 3)
    out = given.pop(2) if len(others) == 5 else None
    seq_idx, initial_states, final_states_out = (*given, None, None, None)[:3]
    made = _convolved((x, weight, bias, seq_idx, initial_states), final_states_out, silu, out)
    return made if out is None else None


def convolution_backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, dout: Tensor, *others: Any
) -> list[Tensor | None] | None:
    """`causal_conv1d_cuda.causal_conv1d_bwd` of every version of causal-conv1d, told by the number of arguments.

    Behind dout and in front of silu come dx, before that, from 1.1 on, seq_idx, and from 1.2 on also initial_states and
    dfinal_states, and behind dx whether the gradient of initial_states is returned; from 1.5.1 on instead of this
    dweight, dbias and dinitial_states, which are written, and nothing is returned.
    """
    given: list[Any]
    *given, silu = _counted("causal_conv1d_bwd", others, (2, 3, 6, 8), 4)
    if len(others) < 6:
        seq_idx, dx = (None, *given)[-2:]
        return list(causal_conv1d_bwd_function(x, weight, bias, dout, seq_idx, None, None, dx, False, silu)[:3])
    if len(others) == 6:
        seq_idx, initial_states, dfinal_states, dx, is_wanted = given
        states = seq_idx, initial_states, dfinal_states
        return list(causal_conv1d_bwd_function(x, weight, bias, dout, *states, dx, is_wanted, silu))
    names = "seq_idx", "initial_states", "dfinal_states", "dx", "dweight", "dbias", "dinitial_states"
    named = dict(zip(names, given, strict=True))
    if bias is None:
        named["dbias"] = None
    with torch.no_grad():
        backward.causal_conv1d_bwd(x, weight, bias, dout, **named, activation=_activation(silu))
    return None


def convolution_step(x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, *others: Any) -> Tensor | None:
    """`causal_conv1d_cuda.causal_conv1d_update` of every version of causal-conv1d, told by the number of arguments.

    Behind bias comes silu, from 1.4 on cache_seqlens and from 1.5 on conv_state_indices; from 1.5.1 on out in front of
    these, which is written, and nothing is returned.
    """
    given = list(_counted("causal_conv1d_update", others, (1, 2, 3, 4), 4))
    out = given.pop(0) if len(others) == 4 else None
    silu, cache_seqlens, indices = (*given, None, None)[:3]
    made = _stepped((x, conv_state, weight, bias), silu, cache_seqlens, indices, out)
    return made if out is None else None


def _counted(function: str, others: tuple[Any, ...], counts: tuple[int, ...], first: int) -> tuple[Any, ...]:
    """These arguments; TypeError where no version of the function takes this number of them."""
    if len(others) not in counts:
        wanted = one_of(first + count for count in counts)
        raise TypeError(message(f"arguments of {function}", first + len(others), wanted))
    return others


@torch.no_grad()
def scan_forward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
) -> list[Tensor]:
    """`cuconv.selective_scan_fn`'s result, the states that `scan_backward` starts from, and with z the result again.

    The result before the gate is not computed: with z the gated result is returned in its place, too.

    Returns:
        out, shape and dtype of u; x, (batch, dim, ceil(seqlen / 2048), 2 * d_state) of A's dtype, which ends in pairs,
        with the state after the last token as their second numbers; and with z out once more.
    """
    shape, count = _of_states(u, A)
    both = torch.empty(math.prod(shape) + count, dtype=A.dtype, device=u.device)
    x = both[: math.prod(shape)].view(shape).zero_()
    out, _ = selective_scan_fn(
        *(u, delta, A, B, C, D, z, delta_bias, delta_softplus, True),
        last_state_out=x[:, :, -1, 1::2],
        chunk_states_out=_chunk_states(x, u, A),
    )
    return [out, x] if z is None else [out, x, out]


@torch.no_grad()
def scan_backward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    dout: Tensor,
    x: Tensor | None,
    out: Tensor | None,
    dz: Tensor | None,
    delta_softplus: bool,
    recompute_out_z: bool,
) -> list[Tensor | None]:
    """`cuconv.selective_scan_bwd`, from what `scan_forward` returned for the same arguments.

    Returns:
        du, ddelta, dA, dB, dC, dD, ddelta_bias, then with z dz, which may be given, and the result if recompute_out_z.
    """
    gradients = selective_scan_bwd(
        *(u, delta, A, B, C, D, z, delta_bias, dout),
        delta_softplus=delta_softplus,
        chunk_states=None if x is None else _chunk_states(x, u, A),
        dz=dz,
    )
    found = [*gradients[:6], gradients.ddelta_bias]
    if z is not None:
        found += [gradients.dz, *[out] * recompute_out_z]
    return found


@torch.no_grad()
def ungated_forward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    nrows: int,
    out_float: bool = False,
) -> list[Tensor]:
    """`scan_forward` without a gate, as VMamba's modules have it: neighbouring channels may share delta.

    Args:
        u, A, B, C, D, delta_softplus: as `scan_forward` takes them.
        delta: (batch, a divisor of dim, seqlen), u's dtype.
        delta_bias: (channels of delta,).
        nrows: rows per block of VMamba's kernels, ignored here.
        out_float: return out in float32, not rounded to u's dtype.

    Returns:
        out and x, as of `scan_forward`.
    """
    if out_float:
        u, delta, B, C = (each.float() for each in (u, delta, B, C))
    steps, bias = _of_all_channels(delta, delta_bias, u.shape[1])
    return scan_forward(u, steps, A, B, C, D, None, bias, delta_softplus)


@torch.no_grad()
def ungated_backward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    delta_bias: Tensor | None,
    dout: Tensor,
    x: Tensor | None,
    delta_softplus: bool,
    nrows: int,
) -> list[Tensor | None]:
    """`scan_backward` from what `ungated_forward` returned; dout may be of float32.

    Returns:
        du, ddelta, dA, dB, dC, dD, ddelta_bias, each of its argument's shape and dtype.
    """
    given = u, delta, B, C
    wide_u, wide_delta, wide_B, wide_C = (each.to(dout.dtype) for each in given)
    steps, bias = _of_all_channels(wide_delta, delta_bias, u.shape[1])
    found = scan_backward(wide_u, steps, A, wide_B, wide_C, D, None, bias, dout, x, None, None, delta_softplus, False)
    du, ddelta, dA, dB, dC, dD, dbias = found
    assert du is not None and ddelta is not None and dB is not None and dC is not None
    if (channels := delta.shape[1]) != u.shape[1]:
        ddelta = ddelta.unflatten(1, (channels, -1)).sum(2)
        dbias = None if dbias is None else dbias.unflatten(0, (channels, -1)).sum(1)
    du, ddelta, dB, dC = (one.to(of.dtype) for one, of in zip((du, ddelta, dB, dC), given, strict=True))
    return [du, ddelta, dA, dB, dC, dD, dbias]


def _of_all_channels(delta: Tensor, delta_bias: Tensor | None, dim: int) -> tuple[Tensor, Tensor | None]:
    """delta and its bias, repeated for neighbouring channels that share them."""
    repeats, rest = divmod(dim, delta.shape[1]) if delta.shape[1] else (1, 0)
    if rest:
        raise ValueError(message("channels of delta", delta.shape[1], f"a divisor of dim of u, {dim}"))
    if repeats == 1:
        return delta, delta_bias
    bias = None if delta_bias is None else delta_bias.repeat_interleave(repeats)
    return delta.repeat_interleave(repeats, dim=1), bias


def _of_states(u: Tensor, A: Tensor) -> tuple[tuple[int, ...], int]:
    """The shape of x, and the number of elements of the states before chunks, which follow it in memory."""
    (batch, dim, seqlen), d_state = u.shape, A.shape[1]
    chunks = -(-seqlen // chunk_tokens())
    return (batch, dim, max(1, -(-seqlen // PART)), 2 * d_state), batch * chunks * dim * d_state


def _chunk_states(x: Tensor, u: Tensor, A: Tensor) -> Tensor | None:
    """The states before chunks, which follow x in memory; None where x has been copied elsewhere, as by offloading."""
    shape, count = _of_states(u, A)
    size = math.prod(shape)
    if x.untyped_storage().nbytes() != (size + count) * x.element_size() or x.storage_offset() or x.shape != shape:
        return None
    (batch, dim, _), d_state = u.shape, A.shape[1]
    chunks = count // max(1, batch * dim * d_state)
    return x.as_strided((batch, chunks, dim, d_state), (chunks * dim * d_state, dim * d_state, d_state, 1), size)
