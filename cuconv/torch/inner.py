"""The Mamba block between its two projections and the output projection: as torch operations, and as one function.

Between the projections everything is laid out in memory as (channels, batch, seqlen): tokens are contiguous, as the
scan's vector kernels need them, and each product with a projection's weights is a single product of matrices, without
copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
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


def as_channels(rows: Tensor) -> Tensor:
    """(channels, batch * seqlen) of (batch, channels, seqlen)."""
    return rows.transpose(0, 1).flatten(1, 2)


def as_rows(channels: Tensor, batch: int, seqlen: int) -> Tensor:
    """(batch, channels, seqlen) of (channels, batch * seqlen)."""
    return channels.view(channels.shape[0], batch, seqlen).transpose(0, 1)


class Norms(NamedTuple):
    """The biases of B and C, and the weights of root mean square norms; None for those that are absent."""

    B_bias: Tensor | None
    C_bias: Tensor | None
    B: Tensor | None
    C: Tensor | None
    delta: Tensor | None
    """One weight for each channel of delta, or one for each number that delta is projected from."""
    eps: float

    def around(self, delta_weight: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The weights of the norms before and after delta's projection."""
        is_after = self.delta is not None and self.delta.shape[0] == delta_weight.shape[0]
        return (None, self.delta) if is_after else (self.delta, None)


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
    """`mamba_inner_fn` of operations that autograd follows one by one."""
    x, z = halves(xz)
    (batch, _, seqlen), rank, d_state = x.shape, delta_weight.shape[1], A.shape[-1]
    u = causal_conv1d_fn(x, conv_weight.squeeze(1), conv_bias, activation="silu")
    p = x_weight @ as_channels(u)
    before, after = norms.around(delta_weight)
    (delta,) = _delta_norm(norms.eps, delta_weight @ _rms_norm(p[:rank], before, norms.eps), after)
    if B is None:
        B = as_rows(_matrix(p[rank : rank + d_state], norms.B_bias, norms.B, norms.eps), batch, seqlen)
    if C is None:
        C = as_rows(_matrix(p[-d_state:], norms.C_bias, norms.C, norms.eps), batch, seqlen)
    # Under autocast the projections have the autocast dtype, and other arguments are converted to it.
    u, gate, delta = u.to(p.dtype), z.to(p.dtype), as_rows(delta.to(p.dtype), batch, seqlen)
    out = selective_scan_fn(u, delta, A, B, C, D, gate, delta_bias, delta_softplus)
    out_bias = None if out_bias is None else out_bias.to(out_weight.dtype)
    return F.linear(as_channels(out).t(), out_weight, out_bias).unflatten(0, (batch, seqlen))


def _parts(p: Tensor, rank: int, d_state: int) -> tuple[Tensor, ...]:
    """The input of delta's projection, B and C, each (numbers, batch * seqlen), of x_proj's results."""
    return p.split((rank, d_state, d_state))


def _normed_parts(rank: int, d_state: int, eps: float, p: Tensor, *own: Tensor | None) -> tuple[Tensor, ...]:
    """`_parts` with norms and biases, except for the norm of delta itself."""
    steps, B, C = _parts(p, rank, d_state)
    B_bias, C_bias, B_weight, C_weight, before = own
    return _rms_norm(steps, before, eps), _matrix(B, B_bias, B_weight, eps), _matrix(C, C_bias, C_weight, eps)


def _matrix(part: Tensor, bias: Tensor | None, weight: Tensor | None, eps: float) -> Tensor:
    """B or C with its bias and its norm."""
    biased = part if bias is None else part + bias.to(part.dtype)[:, None]
    return _rms_norm(biased, weight, eps).contiguous()


def _rms_norm(channels: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """The root mean square norm of (channels, batch * seqlen) along channels, which should be contiguous."""
    if weight is None:
        return channels
    return F.rms_norm(channels.t(), weight.shape, weight.to(channels.dtype), eps).to(channels.dtype).t()


def _delta_norm(eps: float, delta: Tensor, weight: Tensor | None) -> tuple[Tensor]:
    """Delta after its projection, (dim, batch * seqlen), with its own norm."""
    return (_rms_norm(delta, weight, eps).contiguous(),)


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
        *norms: Any,
    ) -> Tensor:
        device = xz.device.type
        ctx.autocast = (torch.get_autocast_dtype(device), True) if torch.is_autocast_enabled(device) else (None, False)
        own = Norms._make(norms) if norms else NO_NORMS
        before, after = own.around(delta_weight)
        ctx.delta_softplus, ctx.eps = delta_softplus, own.eps
        weights = _cast((x_weight, delta_weight, out_weight), ctx.autocast)
        x, z = xz.chunk(2, dim=1)
        (batch, _, seqlen), rank, d_state = x.shape, delta_weight.shape[1], A.shape[-1]
        u = _convolved(x, conv_weight, conv_bias).to(weights[0].dtype)
        # Norms are along contiguous numbers.
        p = torch.mm(u.t(), weights[0].t()).t() if norms else torch.mm(weights[0], u)
        ctx.normed = None
        if norms:
            parts, arguments = partial(_normed_parts, rank, d_state, own.eps), (p, *own[:4], before)
            # Checkpoints drop, and offloading moves, only the tensors that are saved below.
            ctx.normed = None if _is_saved_elsewhere() else _LocalGraph(parts, *arguments)
            steps, *matrices = parts(*arguments) if ctx.normed is None else ctx.normed.results
        else:
            steps, *matrices = _parts(p, rank, d_state)
        (delta,), out = _delta_norm(own.eps, torch.mm(weights[1], steps), after), torch.empty_like(u)
        u_rows, delta_rows, B, C, out_rows = (as_rows(each, batch, seqlen) for each in (u, delta, *matrices, out))
        inputs = (u_rows, delta_rows, A, B, C, D, z.to(p.dtype), delta_bias, None)
        _, _, chunk_states = _scan((*inputs, out_rows, None, None), (delta_softplus, False, True))
        kept = (u, delta) if keep else (None, None)
        given = (xz, conv_weight, conv_bias, x_weight, delta_weight, out_weight, out_bias, A, D, delta_bias)
        ctx.save_for_backward(*given, *weights, p, out, chunk_states, *kept, *norms[:-1])
        result = F.linear(out.t(), weights[2], None if out_bias is None else out_bias.to(weights[2].dtype))
        return result.view(batch, seqlen, out_weight.shape[0])

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        # Checkpoints of torch return saved tensors only once.
        saved = ctx.saved_tensors
        w_x, w_delta, w_out, p, out, chunk_states, u, delta, *norms = saved[10:]
        given = saved[:10]
        xz, conv_weight, conv_bias, x_weight, delta_weight, out_weight, out_bias, A, D, delta_bias = given
        device = xz.device.type
        if torch.is_grad_enabled():
            # With create_graph autograd is to follow this, too. Views stand for the arguments: where one is made of
            # another or is the same tensor, autograd itself adds what reaches that one through both.
            given = [each if each is None else each.view_as(each) for each in (*given, *norms)]
            own = Norms._make((*given[10:], ctx.eps)) if norms else NO_NORMS
            with torch.autocast(device, *ctx.autocast):
                arguments: tuple[Any, ...] = (*given[:10], ctx.delta_softplus, None, None, own)
                again = compose(*arguments)
            needed = [each for each in given if each is not None and each.requires_grad]
            found = iter(torch.autograd.grad(again, needed, dout, create_graph=True))
            grads = [next(found) if each is not None and each.requires_grad else None for each in given]
            return (*grads[:10], None, None, *grads[10:], *[None] * bool(norms))
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            x, z = xz.chunk(2, dim=1)
            (batch, _, seqlen), rank, d_state = x.shape, delta_weight.shape[1], A.shape[-1]
            own = Norms._make((*norms, ctx.eps)) if norms else NO_NORMS
            normed, (before, after) = ctx.normed, own.around(delta_weight)
            if norms and normed is None:
                with torch.autocast(device, *ctx.autocast):
                    normed = _LocalGraph(partial(_normed_parts, rank, d_state, ctx.eps), p, *own[:4], before)
            steps, *matrices = _parts(p, rank, d_state) if normed is None else normed.results
            if u is None:
                u = _convolved(x, conv_weight, conv_bias).to(p.dtype)
            if delta is None or after is not None:
                delta = torch.mm(w_delta, steps)
            if after is not None:
                with torch.autocast(device, *ctx.autocast):
                    delta_graph = _LocalGraph(partial(_delta_norm, ctx.eps), delta, after)
                (delta,) = delta_graph.results
            dtokens = dout.flatten(0, 1).to(p.dtype)
            dy = torch.mm(w_out.t(), dtokens.t())
            dxz, du, ddelta = (torch.empty_like(each) for each in (xz, u, u))
            dparts = p.new_empty(p.shape)
            dx, dz = dxz.chunk(2, dim=1)
            dsteps, *dmatrices = _parts(dparts, rank, d_state)
            u_rows, delta_rows, dy_rows, du_rows, ddelta_rows, B, C, dB, dC = (
                as_rows(each, batch, seqlen) for each in (u, delta, dy, du, ddelta, *matrices, *dmatrices)
            )
            scan = selective_scan_bwd(
                *(u_rows, delta_rows, A, B, C, D, z.to(p.dtype), delta_bias, dy_rows),
                delta_softplus=ctx.delta_softplus,
                chunk_states=chunk_states,
                **{"du": du_rows, "ddelta": ddelta_rows, "dB": dB, "dC": dC},
                dz=dz if dz.dtype == p.dtype else None,
            )
            if dz.dtype != p.dtype:
                dz.copy_(scan.dz)
            ddelta, dafter = delta_graph.back((ddelta,)) if after is not None else (ddelta, None)
            torch.mm(w_delta.t(), ddelta, out=dsteps)
            dp, dnorms = dparts, []
            if normed is not None:
                dp, *dnorms, dbefore = normed.back((dsteps, *dmatrices))
                dnorms += [dbefore if after is None else dafter, None]
            du.addmm_(w_x.t(), dp)
            _, dconv_weight, dconv_bias, _ = causal_conv1d_bwd(
                x, conv_weight.squeeze(1), conv_bias, du_rows.to(x.dtype), activation="silu", dx=dx
            )
            # Weights that are frozen, as beside low-rank adapters, need no products.
            _, _, _, *needed = ctx.needs_input_grad[:7]
            factors = (dp, u.t(), x_weight), (ddelta, steps.t(), delta_weight), (dtokens.t(), out.t(), out_weight)
            products = (_product(*each) if need else None for each, need in zip(factors, needed, strict=False))
            dout_bias = dtokens.sum(0).to(out_bias.dtype) if needed[3] else None
        return (
            *(dxz, dconv_weight.view_as(conv_weight), dconv_bias, *products, dout_bias),
            *(scan.dA, scan.dD, scan.ddelta_bias, None, None, *dnorms),
        )


class _LocalGraph:
    """A few operations that autograd follows in a separate graph, within a function of autograd."""

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], *arguments: Tensor | None) -> None:
        """Take the first argument to require grad, and others as they are."""
        self._arguments = [
            None if each is None else each.detach().requires_grad_(number == 0 or each.requires_grad)
            for number, each in enumerate(arguments)
        ]
        with torch.enable_grad():
            self._results = function(*self._arguments)
        self.results = [each.detach() for each in self._results]

    def back(self, gradients: Sequence[Tensor]) -> list[Any]:
        """The gradients of the arguments, None for one that requires none, from those of the results."""
        needed = [each for each in self._arguments if each is not None and each.requires_grad]
        # The backward of a block may run again.
        found = iter(torch.autograd.grad(self._results, needed, gradients, retain_graph=True))
        return [next(found) if each is not None and each.requires_grad else None for each in self._arguments]


_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def _is_saved_elsewhere() -> bool:
    """Whether hooks, such as those of checkpoints, take what functions of autograd save; True where torch cannot
    tell."""
    return _top_hooks is None or _top_hooks(False) is not None


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(dim, batch * seqlen): silu of the convolution of (batch, dim, seqlen), with weights (dim, 1, width)."""
    batch, dim, seqlen = x.shape
    u = x.new_empty(dim, batch * seqlen)
    causal_conv1d_fn(x, weight.squeeze(1), bias, activation="silu", out=as_rows(u, batch, seqlen))
    return u


_HAS_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()
"""Whether torch.mm gives sums in float32 without rounding them, on GPUs."""


def _product(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """a @ b, the gradient of a weight, in its dtype."""
    if _HAS_OUT_DTYPE and a.is_cuda and a.element_size() == 2 and weight.dtype == torch.float32:
        product: Tensor = torch.mm(a, b, out_dtype=torch.float32)  # type: ignore[call-overload]
        return product
    return torch.mm(a, b).to(weight.dtype)


def _cast(weights: tuple[Tensor, ...], autocast: tuple[torch.dtype | None, bool]) -> tuple[Tensor, ...]:
    """The weights of projections in the dtype that autocast multiplies them in."""
    dtype, is_on = autocast
    return tuple(weight.to(dtype) for weight in weights) if is_on else weights
