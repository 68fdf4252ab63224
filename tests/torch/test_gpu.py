"""What of cuconv.torch only a GPU can show: kernels under autograd, graphs and streams, beside the CPU's references."""

from __future__ import annotations

from typing import Any

import pytest

import cuconv
from tests.torch import inputs

torch = pytest.importorskip("torch", reason="torch is not installed")

from cuconv.selective_scan.turn import with_contiguous_tokens  # noqa: E402
from cuconv.torch import Mamba, causal_conv1d_packed, mamba_inner_fn, selective_scan_packed  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
]

TOLERANCE = {"float32": (1e-4, 1e-5), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}
"""Relative errors, and errors relative to the largest value: some roundings of results, and sums in another order."""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


def close(got: Any, wanted: Any, dtype: str) -> None:
    relative, of_largest = TOLERANCE[dtype]
    wanted = wanted.double()
    torch.testing.assert_close(
        got.double().cpu(), wanted, rtol=relative, atol=of_largest * float(wanted.abs().max()) + 1e-30
    )


def on_gpu(tensors: Any) -> list[Any]:
    return [None if each is None else each.detach().cuda().requires_grad_(each.requires_grad) for each in tensors]


def gradients(function: Any, tensors: Any) -> tuple[list[Any], list[Any]]:
    """Results, and gradients of a sum of them with weights that are the same everywhere."""
    results = function(*tensors)
    results = list(results) if isinstance(results, tuple) else [results]
    loss = sum(
        (each.float() * torch.linspace(0.5, 1.5, each.numel()).view(each.shape).to(each.device)).sum()
        for each in results
    )
    needed = [each for each in tensors if each is not None and each.requires_grad]
    return results, list(torch.autograd.grad(loss, needed))


def compare(function: Any, tensors: Any, dtype: str) -> None:
    """The GPU's results and gradients are those of the CPU's float64 references on the same numbers."""
    for got, wanted in zip(gradients(function, on_gpu(tensors)), gradients(function, tensors), strict=True):
        for one, other in zip(got, wanted, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
            close(one, other, dtype)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("dim", "seqlen"), [(64, 257), (70, 33), (5, 2)])
def test_convolution(dim: int, seqlen: int, dtype: str, last: bool) -> None:
    x, weight, bias, states = inputs.conv_inputs(dim, 4, seqlen, dtype=getattr(torch, dtype))
    if last:
        x = x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    compare(
        lambda x, weight, bias, states: cuconv.causal_conv1d_fn(x, weight, bias, None, states, True, activation="silu"),
        (x, weight, bias, states),
        dtype,
    )


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_gated_convolutions(dtype: str, last: bool) -> None:
    kind, starts = getattr(torch, dtype), torch.tensor([0, 100, 100, 103, 250], dtype=torch.int32)
    weight, bias = inputs.random(64, 4, dtype=kind), inputs.random(64, dtype=kind)
    for shape in ((64, 257), (2, 64, 257)):
        around = [inputs.random(*shape, dtype=kind) for _ in range(4)]
        if last:
            around = [each.detach().mT.contiguous().mT.requires_grad_() for each in around]

        def call(weight: Any, bias: Any, x: Any, *gates: Any) -> Any:
            named = dict(zip(("pre_gate", "post_gate", "residual"), gates, strict=True))
            if x.dim() == 3:
                return cuconv.causal_conv1d_fn(x, weight, bias, activation="silu", **named)
            return cuconv.causal_conv1d_varlen_fn(x, weight, bias, None, starts.to(x.device), **named)

        compare(call, (weight, bias, *around), dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_packed_convolution(dtype: str) -> None:
    kind = getattr(torch, dtype)
    x, weight, bias = (inputs.random(*shape, dtype=kind) for shape in ((64, 300), (64, 4), (64,)))
    starts = torch.tensor([0, 100, 100, 103, 300], dtype=torch.int32)
    heads = {"num_q_heads": 1, "num_k_heads": 1, "num_v_heads": 2, "head_q": 16, "head_k": 16, "head_v": 16}
    for function, options in (
        (cuconv.causal_conv1d_varlen_fn, {}),
        (cuconv.causal_conv1d_split, {"sizes": (32, 16, 16)}),
        (cuconv.causal_conv1d_qkv_split, {**heads, "qk_l2norm": True}),
    ):

        def call(x: Any, weight: Any, bias: Any, function: Any = function, options: Any = options) -> Any:
            return function(x, weight, bias, None, starts.to(x.device), **options)

        compare(call, (x, weight, bias), dtype)
    states = inputs.random(4, 64, 3, dtype=kind)
    compare(
        lambda x, weight, bias, states: causal_conv1d_packed(
            x, weight, bias, starts.to(x.device), states, True, "silu"
        ),
        (x, weight, bias, states),
        dtype,
    )


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("seqlen", [1, 60, 600])
def test_scan(seqlen: int, dtype: str) -> None:
    kind = getattr(torch, dtype)
    u, delta, A, B, C, D, z, bias = inputs.scan_inputs(32, 16, seqlen, dtype=kind)
    wide = [each.detach().float().requires_grad_() for each in (A, D, bias)]
    state = inputs.random(2, 32, 16, dtype=torch.float32)

    def call(u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, bias: Any, state: Any) -> Any:
        return cuconv.selective_scan_fn(u, delta, A, B, C, D, z, bias, True, True, initial_state=state)

    compare(call, (u, delta, wide[0], B, C, wide[1], z, wide[2], state), dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_packed_scan(dtype: str) -> None:
    kind, starts = getattr(torch, dtype), torch.tensor([0, 300, 300, 307, 590], dtype=torch.int32)
    u, delta, z = (inputs.random(32, 600, dtype=kind) for _ in range(3))
    B, C = (inputs.random(16, 600, dtype=kind) for _ in range(2))
    A, D, bias = (inputs.random(*shape, low=-1.0, dtype=torch.float32, high=-0.1) for shape in ((32, 16), (32,), (32,)))

    def call(*given: Any) -> Any:
        *others, state = given
        return selective_scan_packed(*others, True, starts.to(state.device), state, True)

    compare(call, (u, delta, A, B, C, D, z, bias, inputs.random(4, 32, 16, dtype=torch.float32)), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mamba(dtype: str) -> None:
    block = Mamba(64)
    x = inputs.random(2, 300, 64, dtype=torch.float32)
    wanted = block(x)
    (wanted_gradient,) = torch.autograd.grad(wanted.sum(), x)
    block, on_device = block.cuda(), x.detach().cuda().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bfloat16"):
        got = block(on_device)
    close(got, wanted, dtype)
    (gradient,) = torch.autograd.grad(got.float().sum(), on_device)
    close(gradient, wanted_gradient, dtype)
    states = block.allocate_inference_cache(2)
    parts = [block.prefill(on_device[:, :290], *states)]
    parts += [block.step(on_device[:, t : t + 1], *states)[0] for t in range(290, 300)]
    close(torch.cat(parts, 1), wanted, "float32")


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("sizes", [(2, 32, 300), (1, 35, 257)], ids=str)
def test_the_inner_part_of_a_block_with_contiguous_channels(sizes: tuple[int, int, int], dtype: str) -> None:
    (batch, dim, seqlen), kind = sizes, getattr(torch, dtype)
    shapes = (dim, 1, 4), (dim,), (2 + 32, dim), (dim, 2), (16, dim)
    weights = [inputs.random(*shape, dtype=kind).cuda() for shape in shapes]
    A, D, bias = (inputs.random(*shape, dtype=torch.float32).cuda() for shape in ((dim, 16), (dim,), (dim,)))

    def inner(xz: Any) -> Any:
        return mamba_inner_fn(xz, *weights, None, -A.exp(), None, None, D, bias)

    by_token = inputs.random(2 * dim, batch, seqlen, dtype=kind).detach().cuda().transpose(0, 1).requires_grad_()
    by_channel = by_token.detach().mT.contiguous().mT.requires_grad_()
    for got, wanted in zip(gradients(inner, [by_channel]), gradients(inner, [by_token]), strict=True):
        assert torch.equal(got[0], wanted[0])
    (copy,), _ = gradients(with_contiguous_tokens, [by_channel])
    assert torch.equal(copy, by_channel) and copy.stride() == by_token.stride()
    compiled = gradients(torch.compile(inner, fullgraph=True), [by_channel])
    for got, wanted in zip(compiled, gradients(inner, [by_token]), strict=True):
        close(got[0], wanted[0].cpu(), dtype)


def test_gradients_of_float32_weights_are_not_rounded() -> None:
    """Under autocast products are of 16 bits, and the sums that are a weight's gradient need not be rounded to them."""
    block = Mamba(64).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        out = block(torch.randn(2, 300, 64, device="cuda"))
    out.float().square().sum().backward()
    for weight in (block.x_proj.weight, block.dt_proj.weight, block.out_proj.weight):
        assert not torch.equal(weight.grad, weight.grad.bfloat16().float())


def test_a_step_in_a_cuda_graph() -> None:
    block = Mamba(64).cuda()
    x, states = torch.randn(4, 1, 64, device="cuda"), block.allocate_inference_cache(4)
    copies = [each.clone() for each in states]
    wanted = [block.step(x, *copies)[0].clone() for _ in range(4)]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        block.step(x, *[each.clone() for each in states])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _, _ = block.step(x, *states)
    for state in states:
        state.zero_()
    for each in wanted:
        graph.replay()
        torch.testing.assert_close(out, each)
    torch.testing.assert_close(states[1], copies[1])


def test_a_training_step_in_a_cuda_graph() -> None:
    block = Mamba(64).cuda()
    x = torch.randn(2, 300, 64, device="cuda", requires_grad=True)
    wanted = torch.autograd.grad(block(x).square().sum(), (x, *block.parameters()))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(block(x).square().sum(), (x, *block.parameters()))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = torch.autograd.grad(block(x).square().sum(), (x, *block.parameters()))
    for each in got:
        each.fill_(float("nan"))
    graph.replay()
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode: str) -> None:
    block = Mamba(64).cuda()
    x = torch.randn(2, 300, 64, device="cuda", requires_grad=True)
    needed = (x, *block.parameters())
    wanted = torch.autograd.grad(block(x).square().sum(), needed)
    compiled = torch.compile(block, fullgraph=True, mode=mode)
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        got = torch.autograd.grad(compiled(x).square().sum(), needed)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_step_updates_its_states(mode: str) -> None:
    block = Mamba(64).cuda()
    x, states, others = torch.randn(4, 1, 64, device="cuda"), *(block.allocate_inference_cache(4) for _ in range(2))
    compiled = torch.compile(block.step, fullgraph=True, mode=mode)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        wanted, _, _ = block.step(x, *others)
        torch.testing.assert_close(compiled(x, *states)[0], wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states, others, rtol=1e-4, atol=1e-5)


def test_streams_of_the_backward_pass() -> None:
    x, weight, bias, _ = on_gpu(inputs.conv_inputs(64, 4, 4096, dtype=torch.float32))
    wanted = torch.autograd.grad(cuconv.causal_conv1d_fn(x, weight, bias).sin().sum(), (x, weight))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        loss = cuconv.causal_conv1d_fn(x * 1, weight, bias).sin().sum()
        got = torch.autograd.grad(loss, (x, weight))
    torch.cuda.current_stream().wait_stream(stream)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
