"""The public functions as functions of autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from cuconv.causal_conv1d.backward import causal_conv1d_bwd, causal_conv1d_varlen_bwd
from cuconv.causal_conv1d.split import Split
from cuconv.causal_conv1d.varlen import causal_conv1d_varlen_fn
from cuconv.runtime.call import Operation, is_traced
from cuconv.runtime.errors import message
from cuconv.selective_scan.backward import selective_scan_bwd, selective_scan_varlen_bwd
from cuconv.selective_scan.varlen import selective_scan_varlen_fn


def call(
    operation: Operation[Any], given: tuple[Any, ...], options: tuple[Any, ...], outputs: tuple[str, ...] | None
) -> list[Any]:
    """The results of a call, in the graph of autograd; ValueError for what has no derivative."""
    derivative = DERIVATIVES.get(operation.name)
    count = len(operation.inputs)
    if derivative is None:
        _refuse(operation, given, outputs, "there is no backward")
    for target in given[count:]:
        if target is not None:
            _refuse(operation, given, outputs, "autograd follows only what a call returns")
    results: list[Any] = derivative(operation, given[:count], options)
    return results


def _refuse(
    operation: Operation[Any], given: tuple[Any, ...], outputs: tuple[str, ...] | None, because: str
) -> NoReturn:
    """Raise for what autograd cannot follow: an operation without a derivative, or a result that the caller gives."""
    count = len(operation.inputs)
    names = (*operation.inputs, *(operation.outputs if outputs is None else outputs))
    if operation.name in DERIVATIVES:
        argument = next(name for name, each in zip(names[count:], given[count:], strict=True) if each is not None)
        got, wanted = "a tensor while another argument requires grad", f"None: {because}"
    else:
        argument = next(n for n, each in zip(names, given, strict=True) if each is not None and each.requires_grad)
        got, wanted = (
            "a tensor that requires grad while grad mode is on",
            f"torch.no_grad() or a detached tensor: {because}",
        )
    raise ValueError(message(argument, got, wanted))


_convolution = Operation.named["causal_conv1d_fn"]
_packed_convolution = Operation.named["causal_conv1d_varlen_fn"]
_scan = Operation.named["selective_scan_fn"]


class _Gradients(torch.autograd.Function):
    """A backward operation. With create_graph autograd follows it, and what differentiates again gets an error.

    `once_differentiable` would not do: it looks at the incoming gradient only, and would drop a penalty on the gradient
    where that is a constant, as y.sum() makes it.
    """

    @staticmethod
    def forward(ctx: Any, operation: Operation[Any], options: tuple[Any, ...], *given: Any) -> tuple[Any, ...]:
        ctx.name = operation.name
        return tuple(operation(given, options))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"cuconv has no second derivative: {ctx.name} cannot be differentiated")


class _Convolution(torch.autograd.Function):
    """`causal_conv1d_fn`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        seq_idx: Tensor | None,
        initial_states: Tensor | None,
        return_final_states: bool,
        silu: bool,
    ) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, bias, seq_idx, initial_states)
        ctx.activation = "silu" if silu else None
        given = (x, weight, bias, seq_idx, initial_states, None, None)
        return tuple(_convolution(given, (return_final_states, silu)))

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dfinal_states: Tensor | None = None) -> tuple[Any, ...]:
        x, weight, bias, seq_idx, initial_states = ctx.saved_tensors
        dx, dweight, dbias, dinitial_states = causal_conv1d_bwd(
            x,
            weight,
            bias,
            torch.zeros_like(x) if dout is None else dout,
            seq_idx=seq_idx,
            initial_states=initial_states,
            dfinal_states=dfinal_states,
            activation=ctx.activation,
        )
        return dx, dweight, dbias, None, dinitial_states, None, None


class _Scan(torch.autograd.Function):
    """`selective_scan_fn`, which leaves the states that its backward starts from."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        z: Tensor | None,
        delta_bias: Tensor | None,
        initial_state: Tensor | None,
        delta_softplus: bool,
        return_last_state: bool,
        keep_chunk_states: bool,
    ) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        given = (u, delta, A, B, C, D, z, delta_bias, initial_state)
        out, last_state, chunk_states = _scan((*given, None, None, None), (delta_softplus, return_last_state, True))
        ctx.save_for_backward(*given, chunk_states)
        ctx.delta_softplus = delta_softplus
        return out, last_state, None

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlast_state: Tensor | None, *others: Any) -> tuple[Any, ...]:
        u, delta, A, B, C, D, z, delta_bias, initial_state, chunk_states = ctx.saved_tensors
        gradients = selective_scan_bwd(
            *(u, delta, A, B, C, D, z, delta_bias),
            torch.zeros_like(u) if dout is None else dout,
            delta_softplus=ctx.delta_softplus,
            initial_state=initial_state,
            dlast_state=dlast_state,
            chunk_states=chunk_states,
        )
        return (*gradients, None, None, None)


def _refuse_states(argument: str, states: Any, instead: str) -> None:
    if states is not None:
        got = "a tensor while another argument requires grad"
        wanted = f"None: what is updated in place cannot be computed again; {instead} returns new states"
        raise ValueError(message(argument, got, wanted))


def _packed(operation: Operation[Any], inputs: tuple[Any, ...], options: tuple[Any, ...]) -> list[Any]:
    x, weight, bias, conv_states, query_start_loc, *_, initial_states = inputs
    split, silu, *_ = options
    _refuse_states("conv_states", conv_states, "cuconv.torch.causal_conv1d_packed")
    _refuse_states("initial_states", initial_states, "cuconv.torch.causal_conv1d_packed")
    return list(_Packed.apply(x, weight, bias, query_start_loc, split, silu))


class _Packed(torch.autograd.Function):
    """`causal_conv1d_varlen_fn` and its splits, on sequences that start from zeros."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        query_start_loc: Tensor | None,
        split: Split,
        silu: bool,
    ) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, bias, query_start_loc)
        ctx.split, ctx.silu = split, silu
        return tuple(_convolve_packed(x, weight, bias, query_start_loc, split, silu))

    @staticmethod
    def backward(ctx: Any, *douts: Tensor | None) -> tuple[Any, ...]:
        x, weight, bias, query_start_loc = ctx.saved_tensors
        split, silu = ctx.split, ctx.silu
        if split.normalized:
            plain = _without_norm.__wrapped__(split) if is_traced() else _without_norm(split)
            results = _convolve_packed(x, weight, bias, query_start_loc, plain, silu)
            douts = tuple(
                _l2norm_gradient(y, dout, split.eps) if number < split.normalized and dout is not None else dout
                for number, (y, dout) in enumerate(zip(results, douts, strict=True))
            )
        dout = douts[0]
        if split.ranges is not None:
            dout = _joined(x, split.ranges, douts)
        activation = "silu" if silu else None
        dx, dweight, dbias, _ = causal_conv1d_varlen_bwd(
            *(x, weight, bias, torch.zeros_like(x) if dout is None else dout),
            query_start_loc=query_start_loc,
            activation=activation,
        )
        return dx, dweight, dbias, None, None, None


# Splits are known by identity.
@lru_cache(maxsize=4096)
def _without_norm(split: Split) -> Split:
    return replace(split, normalized=0)


def _convolve_packed(
    x: Tensor, weight: Tensor, bias: Tensor | None, query_start_loc: Tensor | None, split: Split, silu: bool
) -> list[Any]:
    given = (x, weight, bias, None, query_start_loc, *[None] * 5, *[None] * len(split.names))
    return _packed_convolution(given, (split, silu, -1, None, False), split.names)


class PackedWithStates(torch.autograd.Function):
    """`causal_conv1d_varlen_fn` with the states before and after each sequence as an argument and a result."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        query_start_loc: Tensor | None,
        initial_states: Tensor | None,
        activation: str | None,
    ) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, bias, query_start_loc, initial_states)
        ctx.activation = activation
        if initial_states is None:
            sequences = 1 if query_start_loc is None else query_start_loc.shape[0] - 1
            states, follows = x.new_zeros(sequences, x.shape[0], weight.shape[1] - 1), None
        else:
            states = initial_states.clone()
            follows = torch.ones(states.shape[0], dtype=torch.bool, device=x.device)
        out = causal_conv1d_varlen_fn(x, weight, bias, states, query_start_loc, None, follows, activation)
        return out, states

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dfinal_states: Tensor | None) -> tuple[Any, ...]:
        x, weight, bias, query_start_loc, initial_states = ctx.saved_tensors
        dx, dweight, dbias, dinitial_states = causal_conv1d_varlen_bwd(
            x,
            weight,
            bias,
            torch.zeros_like(x) if dout is None else dout,
            query_start_loc=query_start_loc,
            initial_states=initial_states,
            dfinal_states=dfinal_states,
            activation=ctx.activation,
        )
        return dx, dweight, dbias, None, dinitial_states, None


def _scan_packed(operation: Operation[Any], inputs: tuple[Any, ...], options: tuple[Any, ...]) -> list[Any]:
    u, ssm_states, delta, A, B, C, D, z, delta_bias, query_start_loc, *_ = inputs
    delta_softplus, *_ = options
    _refuse_states("ssm_states", ssm_states, "selective_scan_fn")
    return [_PackedScan.apply(u, delta, A, B, C, D, z, delta_bias, query_start_loc, delta_softplus)]


class _PackedScan(torch.autograd.Function):
    """`selective_scan_varlen_fn` on sequences that start from zeros."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        z: Tensor | None,
        delta_bias: Tensor | None,
        query_start_loc: Tensor | None,
        delta_softplus: bool,
    ) -> Any:
        ctx.save_for_backward(u, delta, A, B, C, D, z, delta_bias, query_start_loc)
        ctx.delta_softplus = delta_softplus
        arguments = (u, None, delta, A, B, C, D, z, delta_bias)
        return selective_scan_varlen_fn(*arguments, delta_softplus, query_start_loc)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        arguments: tuple[Any, ...] = ctx.saved_tensors
        *inputs, query_start_loc = arguments
        given: tuple[Any, ...] = (*inputs, dout, query_start_loc)
        gradients = selective_scan_varlen_bwd(*given, delta_softplus=ctx.delta_softplus)
        return (*gradients[:-1], None, None)


def _joined(x: Tensor, ranges: tuple[tuple[int, int], ...], douts: tuple[Tensor | None, ...]) -> Tensor:
    """The gradients of ranges of channels as one of (dim, total)."""
    total = x.shape[1]
    parts = []
    for (heads, head_dim), dout in zip(ranges, douts, strict=True):
        if dout is None:
            parts.append(x.new_zeros(total, heads * head_dim))
        else:
            parts.append(dout.reshape(total, heads * head_dim) if dout.dim() == 4 else dout.t())
    return torch.cat(parts, dim=1).t()


def _l2norm_gradient(y: Tensor, dout: Tensor, eps: float) -> Tensor:
    """The gradient of y, of which dout is that of y / sqrt(sum of y * y + eps) along the last axis."""
    wide = y.double() if y.dtype == torch.float64 else y.float()
    scale = torch.rsqrt((wide * wide).sum(-1, keepdim=True) + eps)
    unit = wide * scale
    grown = dout.to(wide.dtype)
    return ((grown - unit * (unit * grown).sum(-1, keepdim=True)) * scale).to(dout.dtype)


def _followed_once(operation: Operation[Any], inputs: tuple[Any, ...], options: tuple[Any, ...]) -> list[Any]:
    return list(_Gradients.apply(operation, options, *inputs, *[None] * len(operation.outputs)))


DERIVATIVES: dict[str, Callable[[Operation[Any], tuple[Any, ...], tuple[Any, ...]], list[Any]]] = {
    "causal_conv1d_fn": lambda operation, inputs, options: list(_Convolution.apply(*inputs, *options)),
    "causal_conv1d_varlen_fn": _packed,
    "selective_scan_fn": lambda operation, inputs, options: list(_Scan.apply(*inputs, *options)),
    "selective_scan_varlen_fn": _scan_packed,
    "causal_conv1d_bwd": _followed_once,
    "causal_conv1d_varlen_bwd": _followed_once,
    "selective_scan_bwd": _followed_once,
}
"""How autograd follows each operation; those of backward only once."""
