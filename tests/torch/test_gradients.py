"""Derivatives: by differences in float64, beside torch's own, and the errors where there are none."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import cuconv
from cuconv.causal_conv1d import varlen
from cuconv.selective_scan.turn import with_contiguous_tokens
from tests.torch import inputs
from tests.torch.inputs import random

torch = pytest.importorskip("torch", reason="torch is not installed")

from cuconv.torch import causal_conv1d_packed, selective_scan_packed  # noqa: E402

HEADS = {"num_q_heads": 1, "num_k_heads": 1, "num_v_heads": 2, "head_q": 2, "head_k": 2, "head_v": 1}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("seqlen", [1, 2, 3, 9])
def test_convolution(seqlen: int, silu: bool) -> None:
    x, weight, bias, states = inputs.conv_inputs(seqlen=seqlen)
    activation = "silu" if silu else None

    def with_states(*arguments: Any) -> Any:
        x, weight, bias, states = arguments
        return cuconv.causal_conv1d_fn(x, weight, bias, None, states, True, activation=activation)

    assert torch.autograd.gradcheck(with_states, (x, weight, bias, states))
    assert torch.autograd.gradcheck(lambda *few: cuconv.causal_conv1d_fn(*few, activation=activation), (x, weight))


def test_convolution_of_numbered_tokens() -> None:
    x, weight, bias, states = inputs.conv_inputs()
    seq_idx = torch.tensor([[0, 0, 1, 1, 1, 2, 2, -1, -1], [3, 3, 3, 3, 3, 3, 4, 4, 4]], dtype=torch.int32)
    assert torch.autograd.gradcheck(
        lambda x, weight, bias, states: cuconv.causal_conv1d_fn(x, weight, bias, seq_idx, states, activation="silu"),
        (x, weight, bias, states),
    )


@pytest.mark.parametrize("starts", [None, [0, 2, 2, 9], [0, 5, 8]])
def test_packed_convolution(starts: list[int] | None) -> None:
    x, weight, bias = random(6, 9), random(6, 4), random(6)
    query_start_loc = None if starts is None else torch.tensor(starts, dtype=torch.int32)

    def call(function: Any, **options: Any) -> Callable[..., Any]:
        return lambda x, weight, bias: function(x, weight, bias, None, query_start_loc, **options)

    assert torch.autograd.gradcheck(call(cuconv.causal_conv1d_varlen_fn), (x, weight, bias))
    assert torch.autograd.gradcheck(call(cuconv.causal_conv1d_split, sizes=(1, 3, 2)), (x, weight, bias))
    for norm in (False, True):
        heads = call(cuconv.causal_conv1d_qkv_split, **HEADS, qk_l2norm=norm)
        assert torch.autograd.gradcheck(heads, (x, weight, bias))


@pytest.mark.parametrize("lies_by_token", [False, True])
def test_packed_convolution_of_a_batch(lies_by_token: bool) -> None:
    x, weight, bias = random(2, 6, 9), random(6, 4), random(6)

    def call(x: Any, weight: Any, bias: Any) -> Any:
        lies = x.mT.contiguous().mT if lies_by_token else x
        return cuconv.causal_conv1d_varlen_fn(lies, weight, bias, activation="silu")

    assert torch.autograd.gradcheck(call, (x, weight, bias))
    assert torch.autograd.gradcheck(lambda x, weight: call(x, weight, None), (x, weight))
    wanted = torch.autograd.grad(cuconv.causal_conv1d_fn(x, weight, bias, activation="silu").sin().sum(), (x, weight))
    got = torch.autograd.grad(call(x, weight, bias).sin().sum(), (x, weight))
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_packed_convolution_of_arrays_by_token() -> None:
    """x has equally many tokens and channels. So its shape does not tell whether a call forgot to transpose it."""
    x, weight, bias, *gates = random(6, 6), random(6, 4), random(6), random(6, 6), random(6, 6)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    filters = weight, bias, None, starts, None, None, "silu"

    def gated(x: Any, weight: Any, bias: Any, pre_gate: Any, post_gate: Any) -> Any:
        around = {"pre_gate": pre_gate, "post_gate": post_gate}
        return varlen.convolve_by_token(x, weight, bias, None, starts, None, None, "silu", **around)

    assert torch.autograd.gradcheck(gated, (x, weight, bias, *gates))
    assert torch.autograd.gradcheck(
        lambda x, weight, bias: varlen.split_by_token(x, weight, bias, *filters[2:], -1, None, (1, 3, 2)),
        (x, weight, bias),
    )
    heads = tuple(HEADS.values())
    assert torch.autograd.gradcheck(
        lambda x: varlen.qkv_split_by_token(x, weight[:, :1], heads, True, None, None, None), (x,)
    )
    given = x.detach().requires_grad_(), weight.detach(), bias.detach()
    parts = varlen.split_by_token(*given, *filters[2:], -1, None, (1, 3, 2))
    whole = cuconv.causal_conv1d_varlen_fn(*given, *filters[2:])
    assert torch.equal(torch.cat(parts, 1), whole.t())
    gradients = [torch.autograd.grad(each.square().sum(), given[0])[0] for each in (torch.cat(parts, 1), whole)]
    torch.testing.assert_close(*gradients)


GATES = ("pre_gate", "post_gate", "residual")
SOME_GATES = [names for count in (1, 2, 3) for names in itertools.combinations(GATES, count)]


@pytest.mark.parametrize("gates", SOME_GATES, ids="+".join)
@pytest.mark.parametrize("silu", [False, True])
def test_gated_convolution(gates: tuple[str, ...], silu: bool) -> None:
    x, weight, bias, states = inputs.conv_inputs()
    seq_idx = torch.tensor([[0, 0, 1, 1, 1, 2, 2, -1, -1], [3, 3, 3, 3, 3, 3, 4, 4, 4]], dtype=torch.int32)
    around, activation = [random(2, 6, 9) for _ in gates], "silu" if silu else None

    def with_states(x: Any, weight: Any, bias: Any, states: Any, *around: Any) -> Any:
        named = dict(zip(gates, around, strict=True))
        return cuconv.causal_conv1d_fn(x, weight, bias, seq_idx, states, True, activation=activation, **named)

    assert torch.autograd.gradcheck(with_states, (x, weight, bias, states, *around))


@pytest.mark.parametrize("gates", SOME_GATES, ids="+".join)
def test_gated_packed_convolution(gates: tuple[str, ...]) -> None:
    x, weight, bias = random(6, 9), random(6, 4), random(6)
    starts, around = torch.tensor([0, 2, 2, 8], dtype=torch.int32), [random(6, 9) for _ in gates]

    def call(function: Any, **options: Any) -> Callable[..., Any]:
        def gated(x: Any, weight: Any, bias: Any, *around: Any) -> Any:
            named = dict(zip(gates, around, strict=True))
            return function(x, weight, bias, query_start_loc=starts, **named, **options)

        return gated

    assert torch.autograd.gradcheck(call(cuconv.causal_conv1d_varlen_fn), (x, weight, bias, *around))
    assert torch.autograd.gradcheck(call(cuconv.causal_conv1d_split, sizes=(1, 3, 2)), (x, weight, bias, *around))
    assert torch.autograd.gradcheck(call(cuconv.causal_conv1d_qkv_split, **HEADS), (x, weight, bias, *around))


@pytest.mark.parametrize("followed", range(4))
def test_single_gradients_of_a_gated_convolution(followed: int) -> None:
    x, weight, _, _ = inputs.conv_inputs()
    tensors = [x, *(random(2, 6, 9) for _ in GATES)]

    def call() -> Any:
        return cuconv.causal_conv1d_fn(tensors[0], weight, None, **dict(zip(GATES, tensors[1:], strict=True))).sin()

    wanted = torch.autograd.grad(call().sum(), tensors[followed])
    for number, each in enumerate([*tensors, weight]):
        each.requires_grad_(number == followed)
    for _ in range(5):
        torch.testing.assert_close(torch.autograd.grad(call().sum(), tensors[followed]), wanted, rtol=0, atol=0)


def test_what_memory_holds_in_padding_has_no_gradient_around_a_convolution() -> None:
    def gradients(filler: float) -> Any:
        weight, bias, dout = random(6, 4), random(6), random(6, 9, grad=False)
        tensors = [random(6, 9) for _ in range(4)]
        for each in (dout, *tensors):
            each.data[:, 7:] = filler
        x, *around = tensors
        named = dict(zip(GATES, around, strict=True))
        out = cuconv.causal_conv1d_varlen_fn(x, weight, bias, query_start_loc=torch.tensor([0, 3, 7]), **named)
        of_packed = torch.autograd.grad(out, (*tensors, weight, bias), dout)
        seq_idx = torch.tensor([[0, 0, 0, 1, 1, 1, 1, -1, -1]], dtype=torch.int32)
        named = {name: each[None] for name, each in named.items()}
        out = cuconv.causal_conv1d_fn(x[None], weight, bias, seq_idx, activation="silu", **named)
        return of_packed, torch.autograd.grad(out, (*tensors, weight, bias), dout[None])

    found = {}
    for filler in (1.0, float("nan")):
        torch.manual_seed(0)
        found[filler] = gradients(filler)
    for with_ones, with_nan in zip(*found.values(), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(with_ones, with_nan, strict=True))
    plain, numbered = found[1.0]
    torch.testing.assert_close(
        plain, tuple(each.reshape(like.shape) for each, like in zip(numbered, plain, strict=True))
    )
    assert not any(each[:, 7:].any() for each in plain[:4]) and all(each[:, 6].any() for each in plain[:4])


def test_a_gated_convolution_keeps_no_residual_alive() -> None:
    x, weight, _, _ = inputs.conv_inputs()
    out = cuconv.causal_conv1d_fn(x, weight, residual=(residual := random(2, 6, 9)), pre_gate=random(2, 6, 9))
    assert all(each is not residual for each in out.grad_fn.saved_tensors)
    assert any(each is x for each in out.grad_fn.saved_tensors)


def test_gradients_around_a_convolution_lie_as_their_arguments() -> None:
    x, weight, _, _ = inputs.conv_inputs(dtype=torch.float32)
    tensors = [random(2, 9, 6, dtype=torch.float32).transpose(1, 2).detach().requires_grad_() for _ in range(4)]
    x, *around = tensors
    out = cuconv.causal_conv1d_fn(x, weight, **dict(zip(GATES, around, strict=True)))
    for each in torch.autograd.grad(out, tensors[:3], torch.ones_like(out)):
        assert each.stride() == x.stride()


def test_unused_results_cost_nothing() -> None:
    x, weight, bias = random(6, 9), random(6, 4), random(6)
    _, k, _ = cuconv.causal_conv1d_qkv_split(x, weight, bias, **HEADS, qk_l2norm=True)
    k.sum().backward()
    assert not x.grad[:2].any() and x.grad[2:4].any() and not x.grad[4:].any()


@pytest.mark.parametrize("softplus", [False, True])
def test_scan(softplus: bool) -> None:
    state = random(2, 4, 3)
    arguments = inputs.scan_inputs()

    def call(*arguments: Any) -> Any:
        *others, state = arguments
        return cuconv.selective_scan_fn(*others, softplus, True, initial_state=state)

    assert torch.autograd.gradcheck(call, (*arguments, state))
    assert torch.autograd.gradcheck(cuconv.selective_scan_fn, arguments[:5])


def test_scan_of_groups_and_constants() -> None:
    u, delta, A = inputs.scan_inputs()[:3]
    groups = random(2, 2, 3, 7), random(2, 2, 3, 7)
    assert torch.autograd.gradcheck(cuconv.selective_scan_fn, (u, delta, A, *groups))
    assert torch.autograd.gradcheck(cuconv.selective_scan_fn, (u, delta, A, random(4, 3), random(4, 3)))


def packed_scan_inputs() -> tuple[list[Any], Any]:
    """u, delta, A, B, C, D, z and delta_bias of nine tokens, and where three sequences of them begin and end."""
    matrices = random(4, 3, low=-1.0, high=-0.1), random(3, 9), random(3, 9)
    return [random(4, 9), random(4, 9), *matrices, random(4), random(4, 9), random(4)], torch.tensor([0, 3, 3, 8])


def test_packed_scan() -> None:
    arguments, starts = packed_scan_inputs()

    def call(u: Any, *others: Any) -> Any:
        return cuconv.selective_scan_varlen_fn(u, None, *others, query_start_loc=starts)

    assert torch.autograd.gradcheck(call, tuple(arguments))
    u, *others = arguments
    with pytest.raises(ValueError, match=r"^ssm_states: got .* requires grad; .* cuconv\.torch\.selective_scan_packed"):
        cuconv.selective_scan_varlen_fn(u, torch.zeros(1, 4, 3), *others)


@pytest.mark.parametrize("argument", ["cache_indices", "has_initial_state", "state_column", "dst_state_indices"])
@pytest.mark.parametrize("grad", [False, True])
def test_what_says_something_of_states_is_refused_without_them(argument: str, grad: bool) -> None:
    u, delta, A, B, C, *_ = inputs.scan_inputs(grad=grad)
    value = torch.zeros(1, dtype=torch.bool if argument == "has_initial_state" else torch.int32)
    with pytest.raises(ValueError, match=f"^{argument}: got an array; wanted None unless ssm_states is given$"):
        cuconv.selective_scan_varlen_fn(u[0], None, delta[0], A, B[0], C[0], **{argument: value})


@pytest.mark.parametrize("softplus", [False, True])
def test_packed_scan_with_states(softplus: bool) -> None:
    arguments, starts = packed_scan_inputs()
    states = random(3, 4, 3)

    def call(*given: Any) -> Any:
        *inputs, states = given
        return selective_scan_packed(*inputs, softplus, starts, states, True)

    assert torch.autograd.gradcheck(call, (*arguments, states))
    before = states.detach().clone()
    out, last = call(*arguments, states)
    assert torch.equal(states, before) and torch.equal(last[1], states[1])
    rows = [each.detach()[None] for each in arguments]
    for number, (begin, end) in enumerate(itertools.pairwise(starts.tolist())):
        if begin == end:
            continue
        u, delta, B, C, z = (rows[place][:, :, begin:end] for place in (0, 1, 3, 4, 6))
        A, D, delta_bias = (arguments[place] for place in (2, 5, 7))
        wanted = inputs.scan(u, delta, A, B, C, D, z, delta_bias, softplus, states[number : number + 1])
        torch.testing.assert_close(out[None, :, begin:end], wanted[0])
        torch.testing.assert_close(last[number : number + 1], wanted[1])
    assert not out[:, 8:].any()


def test_packed_scan_with_some_states() -> None:
    arguments, starts = packed_scan_inputs()
    given = (*arguments[:5], None, None, None, False, starts)
    out, last = selective_scan_packed(*given, None, True)
    assert torch.equal(selective_scan_packed(*given), out)
    zeros = torch.zeros_like(last, requires_grad=True)
    assert torch.equal(selective_scan_packed(*given, zeros), out)
    (gradient,) = torch.autograd.grad(selective_scan_packed(*given, zeros, True)[1].sum(), zeros)
    assert torch.equal(gradient[1], torch.ones(4, 3))
    with pytest.raises(ValueError, match=r"^initial_state: got shape \(2, 4, 3\)"):
        selective_scan_packed(*given, zeros[:2])
    with pytest.raises(TypeError, match=r"^initial_state: got dtype torch\.float32; wanted torch\.float64"):
        selective_scan_packed(*given, zeros.float())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_have_the_dtypes_and_shapes_of_their_arguments(dtype: str) -> None:
    x, weight, bias, states = inputs.conv_inputs(dtype=getattr(torch, dtype))
    weight = weight.detach().float().requires_grad_()
    x = x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    out, final = cuconv.causal_conv1d_fn(x, weight, bias.detach().float().requires_grad_(), None, states, True)
    (out.float().sum() + final.float().sum()).backward()
    assert x.grad.dtype == x.dtype and x.grad.stride() == x.stride()
    assert weight.grad.dtype == torch.float32 and states.grad.dtype == states.dtype


def test_incoming_gradients_of_any_strides() -> None:
    x, weight, bias, _ = inputs.conv_inputs()
    for reduce in (lambda y: y.sum(), lambda y: y.mean(1).sum(), lambda y: y.flip(2).transpose(1, 2).prod(0).sum()):
        got = torch.autograd.grad(
            reduce(cuconv.causal_conv1d_fn(x, weight, bias, activation="silu")), (x, weight, bias)
        )
        wanted = torch.autograd.grad(reduce(inputs.conv(x, weight, bias)[0]), (x, weight, bias))
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("by_channel", [False, True])
def test_gradients_of_scans_whose_arrays_lie_otherwise(by_channel: bool) -> None:
    u, delta, A, B, C, D, z, bias = (each.detach() for each in inputs.scan_inputs())

    def lies(x: Any, by_channel: bool) -> Any:
        return (x.mT.contiguous().mT if by_channel else x.contiguous()).requires_grad_()

    given = lies(u, by_channel), lies(delta, not by_channel), lies(z, not by_channel)
    alike = lies(u, False), lies(delta, False), lies(z, False)
    factor = lies(torch.rand_like(u), not by_channel).detach()

    def gradients(u: Any, delta: Any, z: Any) -> tuple[Any, ...]:
        out = cuconv.selective_scan_fn(u, delta, A, B, C, D, z, bias, True)
        return torch.autograd.grad((out * factor).sum(), (u, delta, z))

    for got, wanted in zip(gradients(*given), gradients(*alike), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_the_gradient_of_a_copy_stays_as_it_lies() -> None:
    x, factor = random(2, 7, 5), random(2, 5, 7, grad=False)
    copy = with_contiguous_tokens(x.mT)
    assert torch.equal(copy, x.mT) and copy.stride() == (7, 14, 1)
    (copy * factor).sum().backward()
    assert torch.equal(x.grad, factor.mT)
    turned = x.detach().mT.requires_grad_()
    (gradient,) = torch.autograd.grad(with_contiguous_tokens(turned), turned, factor)
    assert gradient.data_ptr() == factor.data_ptr()


def convolved() -> tuple[Any, Any, Any]:
    x, weight, *_ = inputs.conv_inputs()
    return x, *cuconv.causal_conv1d_fn(x, weight, return_final_states=True)


def convolved_with_a_residual() -> tuple[Any, Any, Any]:
    x, weight, *_ = inputs.conv_inputs()
    return x, *cuconv.causal_conv1d_fn(x, weight, return_final_states=True, residual=x)


def packed() -> tuple[Any, Any, Any]:
    x, weight = random(6, 9), random(6, 4)
    return x, *causal_conv1d_packed(x, weight, return_final_states=True)


def packed_without_states() -> tuple[Any, Any, Any]:
    x, weight = random(6, 9), random(6, 4)
    return x, cuconv.causal_conv1d_varlen_fn(x, weight), x


def scanned() -> tuple[Any, Any, Any]:
    u, delta, A, B, C, *_ = inputs.scan_inputs()
    return u, *cuconv.selective_scan_fn(u, delta, A, B, C, return_last_state=True)


def scanned_in_a_pack() -> tuple[Any, Any, Any]:
    u, delta, A, B, C, *_ = inputs.scan_inputs()
    return u, *selective_scan_packed(u[0], delta[0], A, B[0], C[0], return_last_state=True)


@pytest.mark.parametrize(
    "call", [convolved, convolved_with_a_residual, packed, packed_without_states, scanned, scanned_in_a_pack]
)
def test_incoming_gradients_may_be_negated_on_reading(call: Callable[[], tuple[Any, Any, Any]]) -> None:
    """torch sets the negative bit instead of negating, for example in complex conjugates."""
    x, *results = call()
    gradients = [torch.randn_like(each, dtype=torch.complex128).conj().imag for each in results]
    assert all(each.is_neg() for each in gradients)
    (got,) = torch.autograd.grad(results, x, gradients, retain_graph=True)
    (wanted,) = torch.autograd.grad(results, x, [each.resolve_neg() for each in gradients])
    torch.testing.assert_close(got, wanted)


def test_only_final_states_are_used() -> None:
    x, weight, _, states = inputs.conv_inputs(seqlen=2)
    _, final = cuconv.causal_conv1d_fn(x, weight, None, None, states, True)
    final.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x)) and not weight.grad.any()
    assert torch.equal(states.grad, torch.tensor([0.0, 0.0, 1.0]).double().expand(2, 6, 3))


def call_conv(x: Any) -> Any:
    return cuconv.causal_conv1d_fn(x, torch.ones(x.shape[1], 4, dtype=x.dtype), activation="silu")


def test_a_penalty_on_the_gradient_is_an_error_and_not_dropped() -> None:
    x = random(2, 6, 9)
    (gradient,) = torch.autograd.grad(call_conv(x).sum(), x, create_graph=True)
    (plain,) = torch.autograd.grad(call_conv(x).sum(), x)
    assert torch.equal(gradient, plain)
    with pytest.raises(RuntimeError, match="cuconv has no second derivative"):
        (call_conv(x).sum() + (gradient**2).sum()).backward()
    u, *others = inputs.scan_inputs()
    (gradient,) = torch.autograd.grad(cuconv.selective_scan_fn(u, *others).sum(), u, create_graph=True)
    with pytest.raises(RuntimeError, match="cuconv has no second derivative"):
        gradient.sum().backward()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "transform",
    [
        lambda x: torch.vmap(call_conv)(x[None]),
        lambda x: torch.func.grad(lambda x: call_conv(x).sum())(x),
        lambda x: torch.func.jvp(call_conv, (x,), (x,)),
        lambda x: torch.func.functionalize(call_conv)(x),
        lambda x: torch.vmap(lambda x: causal_conv1d_packed(x, torch.ones(6, 4, dtype=x.dtype)))(x),
        lambda x: torch.vmap(lambda x: selective_scan_packed(x, x, x[:, :3], x[:3], x[:3]))(x),
    ],
    ids=["vmap", "grad", "jvp", "functionalize", "vmap of packed convolutions", "vmap of packed scans"],
)
def test_transforms_are_refused(transform: Callable[[Any], Any], grad: bool) -> None:
    with pytest.raises(RuntimeError, match="cuconv has no batching rule and no forward-mode derivative"):
        transform(random(2, 6, 9, grad=grad))


def test_eager_calls_leave_out_the_wrapper_of_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = random(2, 6, 9), random(6, 4), random(6)
    wanted = torch.autograd.grad(cuconv.causal_conv1d_fn(x, weight, bias).sum(), (x, weight, bias))

    def wrapper(*arguments: Any) -> Any:
        raise AssertionError("it takes as long as a launch")

    monkeypatch.setattr(torch.autograd.Function, "apply", wrapper)
    out = cuconv.causal_conv1d_fn(x, weight, bias)
    for got, want in zip(torch.autograd.grad(out.sum(), (x, weight, bias)), wanted, strict=True):
        assert torch.equal(got, want)
    assert causal_conv1d_packed(x[0], weight, bias).grad_fn is not None
    assert selective_scan_packed(x[0], x[0], -weight, x[0, :4], x[0, 2:]).grad_fn is not None


def test_a_tangent_is_not_dropped() -> None:
    x = random(2, 6, 9, grad=False)
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(call_conv(x), call_conv(x.clone()))
        with pytest.raises(RuntimeError, match="forward-mode derivative"):
            call_conv(torch.autograd.forward_ad.make_dual(x, x))


def test_what_is_updated_in_place_is_refused() -> None:
    x, weight, pool = random(6, 9), random(6, 4), torch.zeros(1, 6, 3, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"^conv_states: got a tensor while another argument requires grad; wanted None"
    ):
        cuconv.causal_conv1d_varlen_fn(x, weight, None, pool)
    with pytest.raises(ValueError, match=r"^weight: got a tensor that requires grad .* there is no backward$"):
        cuconv.causal_conv1d_update(x[None, :, 0].detach(), pool, weight)
    with pytest.raises(ValueError, match=r"^out: got a tensor while another argument requires grad; wanted None"):
        cuconv.causal_conv1d_fn(x[None], weight, out=torch.empty(1, 6, 9, dtype=torch.float64))
    gated = {"pre_gate": random(6, 9), "snapshots": torch.tensor([[0, 3, 0]]), "snapshot_out": pool}
    with pytest.raises(ValueError, match=r"^snapshot_out: got a tensor while another argument requires grad"):
        cuconv.causal_conv1d_varlen_fn(x, weight, None, **gated)
    A, B = -torch.ones(6, 2, dtype=torch.float64), torch.ones(1, 2, 9, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^u: got a batch while an argument requires grad; wanted \(dim, total\)"):
        cuconv.selective_scan_varlen_fn(x[None], None, x[None], A, B, B)
    assert not pool.any()
    with torch.no_grad():
        cuconv.causal_conv1d_varlen_fn(x, weight, None, pool)
    assert pool.any()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    x, weight, bias, _ = inputs.conv_inputs()
    wanted = torch.autograd.grad(cuconv.causal_conv1d_fn(x, weight, bias).sin().sum(), (x, weight))
    checkpoint(lambda x: cuconv.causal_conv1d_fn(x, weight, bias).sin(), x, use_reentrant=reentrant).sum().backward()
    assert torch.equal(x.grad, wanted[0]) and torch.equal(weight.grad, wanted[1])


def test_autocast_mixes_dtypes() -> None:
    x, weight, bias, _ = inputs.conv_inputs(dtype=torch.float32)
    project = random(9, 9, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = cuconv.causal_conv1d_fn(x @ project, weight, bias, activation="silu")
        assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert weight.grad.dtype == project.grad.dtype == torch.float32 and project.grad.abs().sum() > 0


def test_views_and_parameters() -> None:
    module = torch.nn.Conv1d(6, 6, 4, groups=6).double()
    x = random(2, 9, 12)[..., :6].transpose(1, 2)
    out = cuconv.causal_conv1d_fn(x, module.weight.squeeze(1), module.bias)
    out.square().sum().backward()
    got, module.weight.grad = module.weight.grad, None
    inputs.conv(x, module.weight.squeeze(1), module.bias, silu=False)[0].square().sum().backward()
    torch.testing.assert_close(got, module.weight.grad, rtol=1e-9, atol=1e-12)
