"""The public functions as functions of autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from cuconv.causal_conv1d.backward import causal_conv1d_bwd, causal_conv1d_varlen_bwd
from cuconv.causal_conv1d.check_varlen import BY_TOKEN
from cuconv.causal_conv1d.dense import causal_conv1d_fn
from cuconv.causal_conv1d.kernels import GATES
from cuconv.causal_conv1d.split import WHOLE, Split
from cuconv.causal_conv1d.varlen import causal_conv1d_varlen_fn
from cuconv.runtime import checks
from cuconv.runtime.call import Call, Follower
from cuconv.runtime.errors import message
from cuconv.runtime.operation import Operation, preparing
from cuconv.runtime.tracing import is_traced
from cuconv.selective_scan.backward import selective_scan_bwd, selective_scan_varlen_bwd
from cuconv.selective_scan.varlen import selective_scan_varlen_fn


def call(
    operation: Operation[Any],
    given: tuple[Any, ...],
    options: tuple[Any, ...],
    outputs: tuple[str, ...] | None,
    traced: bool,
) -> Sequence[Any]:
    """The results of a call, in the graph of autograd; ValueError for what has no derivative."""
    derivative = DERIVATIVES.get(operation.name)
    count = len(operation.inputs)
    if derivative is None:
        _refuse(operation, given, outputs, "there is no backward")
    for target in given[count:]:
        if target is not None:
            _refuse(operation, given, outputs, "autograd follows only what a call returns")
    return derivative(operation, given, options, outputs, traced)


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


class EagerFunction(torch.autograd.Function):
    """A function of autograd with a quicker `apply` for eager calls."""

    eager: Callable[..., Any]
    """`apply` without its wrapper, which takes as long as a kernel's launch. The wrapper looks for transforms of
    torch.func, which have been refused by then, and searches every argument for traces of them."""

    def __init_subclass__(cls) -> None:
        cls.eager = super(torch.autograd.Function, cls).apply  # type: ignore[misc]

    @classmethod
    def traced(cls, *arguments: Any) -> Any:
        """`apply` for Dynamo, which takes no tensor twice: a view stands for one that came before."""
        distinct: list[Any] = []
        for each in arguments:
            is_repeated = isinstance(each, Tensor) and any(each is other for other in distinct)
            distinct.append(each.view_as(each) if is_repeated else each)
        return cls.apply(*distinct)


class Run(NamedTuple):
    """What a function of autograd needs to make a call, apart from its arrays."""

    operation: Operation[Any]
    options: tuple[Any, ...]
    outputs: tuple[str, ...] | None
    kept: int | None = None
    """The number of leading inputs that the backward needs; None for all. It never needs the residual."""
    hidden: int = 0
    """The number of last results that only the backward needs."""


class _Followed(EagerFunction):
    """A call of an operation with all of its results new; subclasses add the backward."""

    @staticmethod
    def forward(ctx: Any, run: Run, *inputs: Any) -> Any:
        names = run.operation.outputs if run.outputs is None else run.outputs
        results = run.operation((*inputs, *[None] * len(names)), run.options, run.outputs)
        count = len(results) - run.hidden
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[: run.kept], *results[count:])
        ctx.run = run
        # Autograd takes time even for results that are None.
        first, *others = results[:count]
        return (first, *others) if any(each is not None for each in others) else first

    @staticmethod
    def run(operation: Operation[Any], options: tuple[Any, ...], outputs: tuple[str, ...] | None) -> Run:
        """The call that autograd makes."""
        kept = operation.inputs.index("residual") if "residual" in operation.inputs else None
        return Run(operation, options, outputs, kept)

    @classmethod
    def call(
        cls,
        operation: Operation[Any],
        given: tuple[Any, ...],
        options: tuple[Any, ...],
        outputs: tuple[str, ...] | None,
        traced: bool,
    ) -> Sequence[Any]:
        """The results, in the graph of autograd."""
        inputs = given[: len(operation.inputs)]
        run = cls.run(operation, options, outputs)
        results = (cls.traced if traced else cls.eager)(run, *inputs)
        if not traced:
            cls._follow_next(run, given, options, outputs)
        made = results if type(results) is tuple else (results,)
        return (*made, *[None] * (len(given) - len(inputs) - len(made)))

    @classmethod
    def _follow_next(
        cls, run: Run, given: tuple[Any, ...], options: tuple[Any, ...], outputs: tuple[str, ...] | None
    ) -> None:
        """Prepare the next call on tensors like these to be made directly, if these are recognised."""
        with preparing:
            call = _recognised(run, given)
            if call is not None:
                call.follow(options, outputs, cls._follower(run, call))
                run.operation.find_known()

    @classmethod
    def _follower(cls, run: Run, call: Call[Any]) -> Follower:
        """The function that makes a prepared call. It is a separate function so that it has nothing to look up."""
        forward, places = call.forward(run.kept, run.hidden)
        made: type[_Followed] = type(cls.__name__, (cls,), {"forward": staticmethod(forward)})
        # The ordinary `apply` would look up the backward among the functions of `made` in each call.
        backward: Any = made._backward_cls
        backward.run, backward.apply = run, cls.backward
        return Follower(made.eager, places)


def _recognised(run: Run, given: tuple[Any, ...]) -> Call[Any] | None:
    """The prepared call that recognises these tensors; None for no call."""
    for call in run.operation.recent:
        known = call.recogniser if (call.options, call.outputs) == (run.options, run.outputs) else None
        if known is not None and known.addresses(given) is not None:
            return call
    return None


class _Gradients(_Followed):
    """A backward operation. With create_graph autograd follows it, and a second differentiation raises an error.

    `once_differentiable` would not do: it looks at the incoming gradient only, and would drop a penalty on the gradient
    where that is a constant, as y.sum() makes it.
    """

    @staticmethod
    def run(operation: Operation[Any], options: tuple[Any, ...], outputs: tuple[str, ...] | None) -> Run:
        return Run(operation, options, outputs, kept=0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"cuconv has no second derivative: {ctx.run.operation.name} cannot be differentiated")


def _in_memory(gradient: Tensor | None) -> Tensor | None:
    """A gradient with its values in memory: torch passes that of a conjugate's imaginary part as a lazily negated
    tensor."""
    return None if gradient is None else gradient.resolve_neg()


class _Convolution(_Followed):
    """`causal_conv1d_fn`."""

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dfinal_states: Tensor | None = None) -> tuple[Any, ...]:
        x, weight, bias, seq_idx, initial_states, *_ = ctx.saved_tensors
        dx, dweight, dbias, dinitial_states = causal_conv1d_bwd(
            x,
            weight,
            bias,
            torch.zeros_like(x) if dout is None else _in_memory(dout),
            seq_idx=seq_idx,
            initial_states=initial_states,
            dfinal_states=_in_memory(dfinal_states),
            activation="silu" if ctx.run.options[1] else None,
        )
        return None, dx, dweight, dbias, None, dinitial_states


class _Copy(_Followed):
    """A copy in another layout. Its gradient keeps its layout, which suits the products that follow."""

    @staticmethod
    def run(operation: Operation[Any], options: tuple[Any, ...], outputs: tuple[str, ...] | None) -> Run:
        return Run(operation, options, outputs, kept=0)

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None) -> tuple[Any, ...]:
        return None, dout


class _GatedConvolution(_Followed):
    """`causal_conv1d_fn` with gates and a residual.

    Only the arguments are kept: what the filter reads and, for the gradient of post_gate, its result are computed
    again. With both gates that moves 20 tensors as large as x, where `_Convolution` moves 3.
    """

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dfinal_states: Tensor | None = None) -> tuple[Any, ...]:
        x, weight, bias, seq_idx, initial_states, pre_gate, post_gate = ctx.saved_tensors
        activation = "silu" if ctx.run.options[1] else None
        is_padding = is_unread = None if seq_idx is None else (seq_idx < 0)[:, None]
        if is_padding is not None and dfinal_states is not None:
            tokens = torch.arange(x.shape[2], device=x.device)
            is_unread = is_padding & (tokens <= x.shape[2] - weight.shape[1])
        around = _Around(ctx, x, pre_gate, post_gate, dout, is_padding, is_unread)
        inner, filtered = around.inner(), None
        if around.needs_filtered():
            filtered = causal_conv1d_fn(inner, weight, bias, seq_idx, initial_states, activation=activation)
        dinner, dweight, dbias, dinitial_states = causal_conv1d_bwd(
            *(inner, weight, bias, around.dfiltered()),
            seq_idx=seq_idx,
            initial_states=initial_states,
            dfinal_states=_in_memory(dfinal_states),
            activation=activation,
        )
        dx, *dgates = around.gradients(filtered, dinner)
        return None, dx, dweight, dbias, None, dinitial_states, *dgates


class _Around(NamedTuple):
    """The gates and the residual of a convolution: filtered = act(conv(x * pre_gate)), out = filtered * post_gate +
    residual, and zeros at padding, where memory may hold anything.
    """

    ctx: Any
    x: Tensor
    pre_gate: Tensor | None
    post_gate: Tensor | None
    dout: Tensor | None
    is_padding: Tensor | None
    is_unread: Tensor | None
    """Which tokens are padding that final states do not hold."""

    def inner(self) -> Tensor:
        """What the filter reads."""
        return self.x if self.pre_gate is None else self.x * self.pre_gate

    def needs_filtered(self) -> bool:
        """Whether `gradients` needs the result of the filter."""
        return self.post_gate is not None and self.dout is not None and self._is_wanted("post_gate")

    def dfiltered(self) -> Tensor:
        """The gradient of the filter's result."""
        if self.dout is None:
            return torch.zeros_like(self.x)
        return self.dout.resolve_neg() if self.post_gate is None else self.post_gate * self.dout

    def gradients(self, filtered: Tensor | None, dinner: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, pre_gate, post_gate and residual."""
        dx: Tensor | None = dinner
        dpre_gate, dpost_gate, dresidual = None, None, None
        if self.pre_gate is not None:
            dx = _product(self.pre_gate, dinner, self.is_unread) if self._is_wanted("x") else None
            dpre_gate = _product(self.x, dinner, self.is_unread) if self._is_wanted("pre_gate") else None
        if filtered is not None and self.dout is not None:
            dpost_gate = _product(filtered, self.dout, self.is_padding)
        if self.dout is not None and self._is_wanted("residual"):
            dresidual = self.dout if self.is_padding is None else self.dout.masked_fill(self.is_padding, 0)
        return dx, dpre_gate, dpost_gate, dresidual

    def _is_wanted(self, argument: str) -> bool:
        """Whether autograd may want the gradient of an argument."""
        # Absent arguments at the end may be missing.
        inputs = ("", *self.ctx.run.operation.inputs)[: len(self.ctx.needs_input_grad)]
        return argument in inputs and bool(self.ctx.needs_input_grad[inputs.index(argument)])


def _product(a: Tensor, b: Tensor, is_padding: Tensor | None) -> Tensor:
    """a * b, laid out in memory like `a`, with zeros at padding."""
    product = a * b
    return product if is_padding is None else product.masked_fill(is_padding, 0)


class _Scan(_Followed):
    """`selective_scan_fn`, which leaves the states that its backward starts from."""

    @staticmethod
    def run(operation: Operation[Any], options: tuple[Any, ...], outputs: tuple[str, ...] | None) -> Run:
        delta_softplus, return_last_state, _ = options
        return Run(operation, (delta_softplus, return_last_state, True), outputs, hidden=1)

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlast_state: Tensor | None = None, *others: Any) -> tuple[Any, ...]:
        u, delta, A, B, C, D, z, delta_bias, initial_state, chunk_states = ctx.saved_tensors
        gradients = selective_scan_bwd(
            *(u, delta, A, B, C, D, z, delta_bias),
            _incoming(dout, u),
            delta_softplus=ctx.run.options[0],
            initial_state=initial_state,
            dlast_state=_in_memory(dlast_state),
            chunk_states=chunk_states,
        )
        return None, *gradients


def _incoming(dout: Tensor | None, u: Tensor) -> Tensor:
    """The gradient of a scan's result, with the same contiguous axis as u: a copy costs less than a kernel without
    vectors.
    """
    if dout is None:
        return torch.zeros_like(u)
    dout = dout.resolve_neg()
    # Dynamo cannot trace strides of gradients.
    is_slow = not torch.compiler.is_compiling() and 1 in u.stride()[-2:] and 1 not in dout.stride()[-2:]
    return torch.empty_like(u).copy_(dout) if is_slow else dout


def _refuse_states(argument: str, states: Any, instead: str) -> None:
    if states is not None:
        got = "a tensor while another argument requires grad"
        wanted = f"None: what is updated in place cannot be computed again; {instead} returns new states"
        raise ValueError(message(argument, got, wanted))


def _packed(
    operation: Operation[Any],
    given: tuple[Any, ...],
    options: tuple[Any, ...],
    outputs: tuple[str, ...] | None,
    traced: bool,
) -> Sequence[Any]:
    if operation.name == "causal_conv1d_varlen_with_extras" and True in options[5:7]:
        return _packed_by_token(operation, given, options, outputs, traced)
    named = dict(zip(operation.inputs, given[: len(operation.inputs)], strict=True))
    _refuse_states("conv_states", named["conv_states"], "cuconv.torch.causal_conv1d_packed")
    if named["initial_states"] is not None:
        wanted = "None: states in a pool have no gradient; cuconv.torch.causal_conv1d_packed takes one a sequence"
        raise ValueError(message("initial_states", "a tensor while another argument requires grad", wanted))
    for argument in ("snapshot_out", "payload"):
        if named.get(argument) is not None:
            wanted = "None: autograd follows only what a call returns"
            raise ValueError(message(argument, "a tensor while another argument requires grad", wanted))
    return _Packed.call(operation, given, options, outputs, traced)


def _packed_by_token(
    operation: Operation[Any],
    given: tuple[Any, ...],
    options: tuple[Any, ...],
    outputs: tuple[str, ...] | None,
    traced: bool,
) -> Sequence[Any]:
    """`_packed` of arrays (total, channels): a call on transposed arrays, which autograd follows, too."""
    *first, x_by_token, outs_by_token, keeps_padding = options
    names = (*operation.inputs, *(outputs or ()))
    turned = (BY_TOKEN if x_by_token else ()) + ((outputs or ()) if outs_by_token else ())
    given = tuple(
        each.t() if each is not None and name in turned else each for name, each in zip(names, given, strict=True)
    )
    results = _packed(operation, given, (*first, False, False, keeps_padding), outputs, traced)
    return [each.t() if outs_by_token else each for each in results]


class _Packed(_Followed):
    """`causal_conv1d_varlen_fn`, also of a batch, and its splits, on sequences that start from zeros, with gates and a
    residual as in `_GatedConvolution`.
    """

    @staticmethod
    def backward(ctx: Any, *douts: Tensor | None) -> tuple[Any, ...]:
        inputs = ctx.run.operation.inputs
        saved = ctx.saved_tensors
        named = dict(zip(inputs[: len(saved)], saved, strict=True))
        x, weight, bias, query_start_loc = (named[each] for each in ("x", "weight", "bias", "query_start_loc"))
        pre_gate, post_gate, is_padding = named.get("pre_gate"), named.get("post_gate"), None
        if "residual" in inputs and query_start_loc is not None:
            is_padding = torch.arange(x.shape[1], device=x.device) >= query_start_loc[-1]
        split, silu, *_ = ctx.run.options
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
        around = _Around(ctx, x, pre_gate, post_gate, dout, is_padding, is_padding)
        inner, filtered = around.inner(), None
        if around.needs_filtered():
            (filtered,) = _convolve_packed(inner, weight, bias, query_start_loc, WHOLE, silu)
        filtering = inner, weight, bias, around.dfiltered()
        activation = "silu" if silu else None
        if x.dim() == 3:
            dinner, dweight, dbias, _ = causal_conv1d_bwd(*filtering, activation=activation)
        else:
            dinner, dweight, dbias, _ = causal_conv1d_varlen_bwd(
                *filtering, query_start_loc=query_start_loc, activation=activation
            )
        others = zip(("x", *GATES), around.gradients(filtered, dinner), strict=True)
        gradients = {"weight": dweight, "bias": dbias, **dict(others)}
        return None, *map(gradients.get, inputs)


# Splits are compared by identity, so equal ones must be one object.
@lru_cache(maxsize=4096)
def _without_norm(split: Split) -> Split:
    return replace(split, normalized=0)


_packed_convolution = Operation.named["causal_conv1d_varlen_fn"]


def _convolve_packed(
    x: Tensor, weight: Tensor, bias: Tensor | None, query_start_loc: Tensor | None, split: Split, silu: bool
) -> Sequence[Any]:
    given = (x, weight, bias, None, query_start_loc, *[None] * 5, *[None] * len(split.names))
    return _packed_convolution(given, (split, silu, -1, None, False), split.names)


def sequences(query_start_loc: Tensor | None) -> int:
    """The number of packed sequences; ValueError for no borders."""
    if query_start_loc is None:
        return 1
    checks.rank("query_start_loc", query_start_loc.shape, "sequences + 1")
    if query_start_loc.shape[0] == 0:
        raise ValueError(message("query_start_loc", "shape (0,)", "at least 1 element (sequences + 1)"))
    return query_start_loc.shape[0] - 1


def _as_pool(initial_states: Tensor | None, shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor | None]:
    """A new pool that starts with the given states, or zeros, and has_initial_state for it."""
    if initial_states is None:
        return like.new_zeros(shape), None
    return initial_states.clone(), torch.ones(shape[0], dtype=torch.bool, device=like.device)


class PackedWithStates(EagerFunction):
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
        shape = (sequences(query_start_loc), x.shape[0], weight.shape[1] - 1)
        states, has_initial_state = _as_pool(initial_states, shape, x)
        out = causal_conv1d_varlen_fn(x, weight, bias, states, query_start_loc, None, has_initial_state, activation)
        return out, states

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dfinal_states: Tensor | None) -> tuple[Any, ...]:
        x, weight, bias, query_start_loc, initial_states = ctx.saved_tensors
        dx, dweight, dbias, dinitial_states = causal_conv1d_varlen_bwd(
            x,
            weight,
            bias,
            torch.zeros_like(x) if dout is None else _in_memory(dout),
            query_start_loc=query_start_loc,
            initial_states=initial_states,
            dfinal_states=_in_memory(dfinal_states),
            activation=ctx.activation,
        )
        return dx, dweight, dbias, None, dinitial_states, None


def _scan_packed(
    operation: Operation[Any],
    given: tuple[Any, ...],
    options: tuple[Any, ...],
    outputs: tuple[str, ...] | None,
    traced: bool,
) -> Sequence[Any]:
    u, ssm_states, delta, A, B, C, D, z, delta_bias, query_start_loc, *others = given
    delta_softplus, *_ = options
    _refuse_states("ssm_states", ssm_states, "cuconv.torch.selective_scan_packed")
    for argument, each in zip(operation.inputs[len(given) - len(others) :], others, strict=False):
        if each is not None:
            raise ValueError(message(argument, "an array", "None unless ssm_states is given"))
    if u.dim() == 3:
        raise ValueError(message("u", "a batch while an argument requires grad", "(dim, total), or selective_scan_fn"))
    apply = PackedScan.traced if traced else PackedScan.eager
    out, _ = apply(u, delta, A, B, C, D, z, delta_bias, query_start_loc, None, delta_softplus, False)
    return [out]


class PackedScan(EagerFunction):
    """`selective_scan_varlen_fn` with the states before and after each sequence as an argument and a result."""

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
        initial_state: Tensor | None,
        delta_softplus: bool,
        return_last_state: bool,
    ) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(u, delta, A, B, C, D, z, delta_bias, query_start_loc, initial_state)
        ctx.delta_softplus = delta_softplus
        states, has_initial_state = None, None
        if return_last_state or initial_state is not None:
            states, has_initial_state = _as_pool(initial_state, (sequences(query_start_loc), *A.shape), A)
        arguments = (u, states, delta, A, B, C, D, z, delta_bias, delta_softplus, query_start_loc)
        return selective_scan_varlen_fn(*arguments, has_initial_state=has_initial_state), states

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlast_state: Tensor | None) -> tuple[Any, ...]:
        u, delta, A, B, C, D, z, delta_bias, query_start_loc, initial_state = ctx.saved_tensors
        *gradients, dinitial_state = selective_scan_varlen_bwd(
            *(u, delta, A, B, C, D, z, delta_bias),
            _incoming(dout, u),
            query_start_loc,
            delta_softplus=ctx.delta_softplus,
            initial_state=initial_state,
            dlast_state=_in_memory(dlast_state),
        )
        return (*gradients, None, dinitial_state, None, None)


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
    """The gradient of y, from dout, the gradient of y / sqrt(sum of y * y + eps) along the last axis."""
    wide = y.double() if y.dtype == torch.float64 else y.float()
    scale = torch.rsqrt((wide * wide).sum(-1, keepdim=True) + eps)
    unit = wide * scale
    grown = dout.to(wide.dtype)
    return ((grown - unit * (unit * grown).sum(-1, keepdim=True)) * scale).to(dout.dtype)


DERIVATIVES: dict[str, Callable[..., Sequence[Any]]] = {
    "causal_conv1d_fn": _Convolution.call,
    "causal_conv1d_gated_fn": _GatedConvolution.call,
    "causal_conv1d_varlen_fn": _packed,
    "causal_conv1d_varlen_with_extras": _packed,
    "selective_scan_fn": _Scan.call,
    "selective_scan_varlen_fn": _scan_packed,
    "causal_conv1d_bwd": _Gradients.call,
    "causal_conv1d_varlen_bwd": _Gradients.call,
    "selective_scan_bwd": _Gradients.call,
    "with_contiguous_tokens": _Copy.call,
}
"""How autograd follows each operation; to differentiate a backward operation raises an error."""
