"""The Mamba block between its two projections and the output projection: as torch operations, and as one function.

Between the projections everything is laid out in memory as (channels, batch, seqlen): tokens are contiguous, as the
scan's vector kernels need them, and products with the projections' weights are single ones of matrices, without copies.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cuconv.causal_conv1d.backward import causal_conv1d_bwd
from cuconv.causal_conv1d.dense import causal_conv1d_fn
from cuconv.runtime.operation import Operation
from cuconv.selective_scan.backward import selective_scan_bwd
from cuconv.selective_scan.dense import selective_scan_fn
from cuconv.selective_scan.turn import with_contiguous_tokens
from cuconv.torch.derivatives import EagerFunction


def turned(xz: Tensor) -> Tensor:
    """A copy of (batch, channels, seqlen) in the layout of this module."""
    if xz.is_cuda and xz.stride(1) == 1:
        # On an H200 a copy by PyTorch takes 7 times as long.
        copy: Tensor = with_contiguous_tokens(xz)
        return copy
    return xz.transpose(0, 1).contiguous().transpose(0, 1)


def halves(xz: Tensor) -> list[Tensor]:
    """x and z, each (batch, dim, seqlen), of (batch, 2 * dim, seqlen); their gradients are joined without a copy."""
    return [half.transpose(0, 1) for half in xz.transpose(0, 1).chunk(2)]


def as_tokens(rows: Tensor) -> Tensor:
    """(batch * seqlen, channels) of (batch, channels, seqlen)."""
    return rows.transpose(1, 2).flatten(0, 1)


def as_channels(rows: Tensor) -> Tensor:
    """(channels, batch * seqlen) of (batch, channels, seqlen)."""
    return rows.transpose(0, 1).flatten(1, 2)


def as_rows(channels: Tensor, batch: int, seqlen: int) -> Tensor:
    """(batch, channels, seqlen) of (channels, batch * seqlen)."""
    return channels.unflatten(1, (batch, seqlen)).transpose(0, 1)


class Norms(NamedTuple):
    """What is added to B and C, and the weights of root mean square norms, where there are any."""

    B_bias: Tensor | None
    C_bias: Tensor | None
    B: Tensor | None
    C: Tensor | None
    delta: Tensor | None
    eps: float


NO_NORMS = Norms(None, None, None, None, None, 0.0)


def compose(
    xz: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    x_weight: Tensor,
    delta_weight: Tensor,
    out_weight: Tensor,
    out_bias: Tensor | None,
    A: Tensor,
    D: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    B: Tensor | None = None,
    C: Tensor | None = None,
    norms: Norms = NO_NORMS,
) -> Tensor:
    """`mamba_inner_fn` of operations that autograd follows one by one; conv_weight is (dim, width)."""
    x, z = halves(xz)
    (batch, _, seqlen), rank, d_state = x.shape, delta_weight.shape[1], A.shape[-1]
    u = causal_conv1d_fn(x, conv_weight, conv_bias, activation="silu")
    p = F.linear(as_tokens(u), x_weight)
    delta = delta_weight @ p[:, :rank].t()
    if norms.delta is not None:
        delta = _rms_norm(delta.t(), norms.delta, norms.eps).t()
    if B is None:
        B = _matrix(p[:, rank : rank + d_state], norms.B_bias, norms.B, norms.eps, batch, seqlen)
    if C is None:
        C = _matrix(p[:, -d_state:], norms.C_bias, norms.C, norms.eps, batch, seqlen)
    # Under autocast the projections are of the autocast dtype, and what comes from elsewhere follows.
    u, gate, delta = u.to(p.dtype), z.to(p.dtype), as_rows(delta.to(p.dtype), batch, seqlen)
    out = selective_scan_fn(u, delta, A, B, C, D, gate, delta_bias, delta_softplus)
    out_bias = None if out_bias is None else out_bias.to(out_weight.dtype)
    return F.linear(as_tokens(out), out_weight, out_bias).unflatten(0, (batch, seqlen))


def _matrix(
    tokens: Tensor, bias: Tensor | None, rms_weight: Tensor | None, eps: float, batch: int, seqlen: int
) -> Tensor:
    """(batch, d_state, seqlen) with contiguous tokens of (batch * seqlen, d_state) from x_proj."""
    if bias is not None:
        tokens = tokens + bias.to(tokens.dtype)
    if rms_weight is not None:
        tokens = _rms_norm(tokens, rms_weight, eps)
    return as_rows(tokens.t().contiguous(), batch, seqlen)


def _rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = rows.double() if rows.dtype == torch.float64 else rows.float()
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.to(wide.dtype)).to(rows.dtype)


_scan = Operation.named["selective_scan_fn"]


class Inner(EagerFunction):
    """`compose` as one function, which takes the host less time, and may compute u and delta again in the backward."""

    @staticmethod
    def forward(
        ctx: Any,
        xz: Tensor,
        conv_weight: Tensor,
        conv_bias: Tensor | None,
        x_weight: Tensor,
        delta_weight: Tensor,
        out_weight: Tensor,
        out_bias: Tensor | None,
        A: Tensor,
        D: Tensor | None,
        delta_bias: Tensor | None,
        delta_softplus: bool,
        keep: bool,
    ) -> Tensor:
        device = xz.device.type
        ctx.autocast = (torch.get_autocast_dtype(device), True) if torch.is_autocast_enabled(device) else (None, False)
        ctx.delta_softplus = delta_softplus
        weights = _cast((x_weight, delta_weight, out_weight), ctx.autocast)
        x, z = halves(xz)
        (batch, _, seqlen), rank, d_state = x.shape, delta_weight.shape[1], A.shape[-1]
        u = causal_conv1d_fn(x, conv_weight, conv_bias, activation="silu").to(weights[0].dtype)
        p = F.linear(as_tokens(u), weights[0])
        delta = as_rows(weights[1] @ p[:, :rank].t(), batch, seqlen)
        parts = p[:, rank : rank + d_state], p[:, -d_state:]
        B, C = (_matrix(each, None, None, 0.0, batch, seqlen) for each in parts)
        inputs = (u, delta, A, B, C, D, z.to(p.dtype), delta_bias, None)
        out, _, chunk_states = _scan((*inputs, None, None, None), (delta_softplus, False, True))
        kept = (u, delta) if keep else (None, None)
        given = (xz, conv_weight, conv_bias, x_weight, delta_weight, out_weight, out_bias, A, D, delta_bias)
        ctx.save_for_backward(*given, p, B, C, out, chunk_states, *kept)
        result = F.linear(as_tokens(out), weights[2], None if out_bias is None else out_bias.to(weights[2].dtype))
        return result.unflatten(0, (batch, seqlen))

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        *given, p, B, C, out, chunk_states, u, delta = ctx.saved_tensors
        xz, conv_weight, conv_bias, x_weight, delta_weight, out_weight, out_bias, A, D, delta_bias = given
        device = xz.device.type
        if torch.is_grad_enabled():
            # With create_graph autograd is to follow this, too. Views stand for the arguments: where one is made of
            # another or is the same tensor, autograd itself adds what reaches that one through both.
            given = [each if each is None else each.view_as(each) for each in given]
            with torch.autocast(device, *ctx.autocast):
                arguments: tuple[Any, ...] = (*given, ctx.delta_softplus)
                again = compose(*arguments)
            needed = [each for each in given if each is not None and each.requires_grad]
            found = iter(torch.autograd.grad(again, needed, dout, create_graph=True))
            grads = [next(found) if each is not None and each.requires_grad else None for each in given]
            return (*grads, None, None)
        with torch.autocast(device, enabled=False):
            weights = _cast((x_weight, delta_weight, out_weight), ctx.autocast)
            x, z = halves(xz)
            (batch, _, seqlen), rank = x.shape, delta_weight.shape[1]
            if u is None:
                u = causal_conv1d_fn(x, conv_weight, conv_bias, activation="silu").to(p.dtype)
                delta = as_rows(weights[1] @ p[:, :rank].t(), batch, seqlen)
            dtokens = dout.flatten(0, 1).to(p.dtype)
            dxz = torch.empty_like(xz)
            dx, dz = halves(dxz)
            scan = selective_scan_bwd(
                *(u, delta, A, B, C, D, z.to(p.dtype), delta_bias),
                as_rows(weights[2].t() @ dtokens.t(), batch, seqlen),
                delta_softplus=ctx.delta_softplus,
                chunk_states=chunk_states,
                dz=dz if dz.dtype == p.dtype else None,
            )
            if dz.dtype != p.dtype:
                dz.copy_(scan.dz)
            ddelta = as_channels(scan.ddelta)
            dp = torch.cat([ddelta.t() @ weights[1], as_tokens(scan.dB), as_tokens(scan.dC)], dim=1)
            du = torch.addmm(as_channels(scan.du), weights[0].t(), dp.t())
            _, dconv_weight, dconv_bias, _ = causal_conv1d_bwd(
                x, conv_weight, conv_bias, as_rows(du, batch, seqlen).to(x.dtype), activation="silu", dx=dx
            )
            dx_weight = (dp.t() @ as_tokens(u)).to(x_weight.dtype)
            ddelta_weight = (ddelta @ p[:, :rank]).to(delta_weight.dtype)
            dout_weight = (dtokens.t() @ as_tokens(out)).to(out_weight.dtype)
            dout_bias = None if out_bias is None else dtokens.sum(0).to(out_bias.dtype)
        return (
            *(dxz, dconv_weight, dconv_bias, dx_weight, ddelta_weight, dout_weight, dout_bias),
            *(scan.dA, scan.dD, scan.ddelta_bias, None, None),
        )


def _cast(weights: tuple[Tensor, ...], autocast: tuple[torch.dtype | None, bool]) -> tuple[Tensor, ...]:
    """The weights of projections in the dtype that autocast multiplies them in."""
    dtype, is_on = autocast
    return tuple(weight.to(dtype) for weight in weights) if is_on else weights
