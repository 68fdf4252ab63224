"""The reference functions of causal-conv1d and mamba_ssm, in plain torch, one token after another.

Programs import them along with the functions, for tests and for use without a GPU. Autograd, torch.func and
forward-mode differentiation follow them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def causal_conv1d_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """`causal_conv1d_fn` of (batch, dim, seqlen), in weight's dtype."""
    before = x.new_zeros(*x.shape[:2], weight.shape[1] - 1) if initial_states is None else initial_states
    inputs = torch.cat([before.to(x.dtype), x], dim=2)
    out = _filtered(inputs, weight, bias, activation)
    if not return_final_states:
        return out
    final_states = inputs[:, :, x.shape[2] :]
    return out, final_states if final_states_out is None else final_states_out.copy_(final_states)


def causal_conv1d_update_ref(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
) -> Tensor:
    """`causal_conv1d_update` of (batch, dim) or (batch, dim, seqlen); conv_state is updated in place."""
    tokens = x[:, :, None] if x.dim() == 2 else x
    (_, dim, seqlen), state_len = tokens.shape, conv_state.shape[2]
    if cache_seqlens is None:
        inputs = torch.cat([conv_state.to(x.dtype), tokens], dim=2)
        conv_state.copy_(inputs[:, :, inputs.shape[2] - state_len :])
    else:
        columns = torch.arange(1 - weight.shape[1], seqlen, device=x.device) + cache_seqlens[:, None]
        columns = columns.remainder(state_len)[:, None].expand(-1, dim, -1)
        before = conv_state.gather(2, columns[:, :, : columns.shape[2] - seqlen])
        inputs = torch.cat([before.to(x.dtype), tokens], dim=2)
        conv_state.scatter_(2, columns[:, :, columns.shape[2] - seqlen :], tokens.to(conv_state.dtype))
    out = _filtered(inputs[:, :, max(0, inputs.shape[2] - seqlen - weight.shape[1] + 1) :], weight, bias, activation)
    return out[:, :, 0] if x.dim() == 2 else out


def _filtered(inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """The filter over inputs; the first width - 1 have no result."""
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError("activation must be None, silu, or swish")
    taps = weight[:, None]
    out = F.conv1d(inputs.to(weight.dtype), taps, None if bias is None else bias.to(weight.dtype), groups=len(weight))
    return (out if activation is None else F.silu(out)).to(inputs.dtype)


def causal_conv1d_varlen_states_ref(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """`causal_conv1d_varlen_states`: (sequences, dim, state_len) of (total, dim), with zeros in front."""
    borders = cu_seqlens.tolist()
    states = x.new_zeros(len(borders) - 1, state_len, x.shape[1])
    for state, begin, end in zip(states, borders[:-1], borders[1:], strict=True):
        kept = min(state_len, end - begin)
        state[state_len - kept :] = x[end - kept : end]
    return states.mT


def selective_scan_ref(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """`selective_scan_fn` in float32, or in float64 where u has that.

    Where A is complex, constant B and C are complex, too; B and C by token alternate real and imaginary parts.
    """
    wide = torch.promote_types(u.dtype, torch.float32)
    steps = delta.to(wide) if delta_bias is None else delta.to(wide) + delta_bias.to(wide)[:, None]
    steps, inputs = F.softplus(steps) if delta_softplus else steps, u.to(wide)
    into, out_of = (_by_channel(each, A, u) for each in (B, C))
    state, results = A.new_zeros(*u.shape[:2], A.shape[1], dtype=torch.promote_types(A.dtype, wide)), []
    for t in range(u.shape[2]):
        step = steps[:, :, t, None]
        state = torch.exp(step * A) * state + step * into[..., t] * inputs[:, :, t, None]
        result = (state * out_of[..., t]).sum(-1)
        # What is left out is the same with the conjugates of states.
        results.append(2 * result.real if A.is_complex() else result)
    out = torch.stack(results, dim=2) if results else inputs
    out = out if D is None else out + D.to(wide)[:, None] * inputs
    out = (out if z is None else out * F.silu(z.to(wide))).to(u.dtype)
    return (out, state) if return_last_state else out


def _by_channel(matrix: Tensor, A: Tensor, u: Tensor) -> Tensor:
    """B or C as (batch, dim, d_state, seqlen), or 1 in place of batch and expanded tokens where it is constant."""
    _, dim, seqlen = u.shape
    if matrix.dim() == 2:
        return matrix[None, :, :, None].expand(-1, -1, -1, seqlen)
    matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    if A.is_complex():
        matrix = torch.view_as_complex(matrix.unflatten(-1, (seqlen, 2)))
    groups = matrix if matrix.dim() == 4 else matrix[:, None]
    return groups.repeat_interleave(dim // groups.shape[1], dim=1)


def selective_state_update_ref(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
) -> Tensor:
    """`selective_state_update` with or without heads; state is updated in place."""
    has_heads = state.dim() == 4
    if not has_heads:
        state, x, dt, B, C = (each[:, None] for each in (state, x, dt, B, C))
        A, z = A[None], None if z is None else z[:, None]
        D, dt_bias = (None if each is None else each[None] for each in (D, dt_bias))
    wide = torch.promote_types(x.dtype, torch.float32)
    steps = dt.to(wide) if dt_bias is None else dt.to(wide) + dt_bias.to(wide)
    steps = (F.softplus(steps) if dt_softplus else steps)[..., None]
    into, out_of = (each.to(wide).repeat_interleave(state.shape[1] // each.shape[1], dim=1) for each in (B, C))
    inputs = x.to(wide)
    state.copy_(torch.exp(steps * A.to(wide)) * state.to(wide) + steps * inputs[..., None] * into[:, :, None])
    out = (state.to(wide) * out_of[:, :, None]).sum(-1)
    out = out if D is None else out + D.to(wide) * inputs
    out = (out if z is None else out * F.silu(z.to(wide))).to(x.dtype)
    return out if has_heads else out[:, 0]


def mamba_inner_ref(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
) -> Tensor:
    """`mamba_inner_fn` without norms, for real A."""
    (x, z), rank, d_state = xz.chunk(2, dim=1), delta_proj_weight.shape[1], A.shape[1]
    u = causal_conv1d_ref(x, conv1d_weight[:, 0], conv1d_bias, activation="silu")
    p = F.linear(u.mT, x_proj_weight)
    delta = F.linear(p[..., :rank], delta_proj_weight).mT
    if B is None:
        B = (p[..., rank : rank + d_state] + (0 if B_proj_bias is None else B_proj_bias)).mT
    if C is None:
        C = (p[..., -d_state:] + (0 if C_proj_bias is None else C_proj_bias)).mT
    out = selective_scan_ref(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    return F.linear(out.mT, out_proj_weight, out_proj_bias)
