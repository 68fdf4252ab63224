"""The block of Mamba, and packed functions, beside the same mathematics in plain torch: values, gradients, states."""

from __future__ import annotations

from typing import Any

import pytest

import cuconv
from cuconv.runtime.operation import Operation
from tests.support.entries import the_whole_way
from tests.torch import inputs
from tests.torch.inputs import random

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from cuconv.torch import (  # noqa: E402
    Mamba,
    causal_conv1d_packed,
    mamba_inner_fn,
    selective_scan_packed,
)
from cuconv.torch.inner import NO_NORMS, Inner, Norms, compose  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def plain_inner(xz: Any, module: Any, **norms: Any) -> Any:
    """mamba_inner_fn in torch."""
    x, z = xz.chunk(2, dim=1)
    u, _ = inputs.conv(x, module.conv1d.weight.squeeze(1), module.conv1d.bias)
    p = F.linear(u.transpose(1, 2), module.x_proj.weight)
    steps, B, C = p.split([module.dt_rank, module.d_state, module.d_state], dim=-1)

    def norm(rows: Any, weight: Any) -> Any:
        return rows if weight is None else F.rms_norm(rows, rows.shape[-1:], weight, 1e-6)

    delta = F.linear(norm(steps, norms.get("steps")), module.dt_proj.weight)
    B, C = B + norms.get("B_bias", 0), C + norms.get("C_bias", 0)
    delta, B, C = norm(delta, norms.get("dt")), norm(B, norms.get("b")), norm(C, norms.get("c"))
    rows = [each.transpose(1, 2) for each in (delta, B, C)]
    out, _ = inputs.scan(u, rows[0], -module.A_log.exp(), *rows[1:], module.D, z, module.dt_proj.bias, True)
    return F.linear(out.transpose(1, 2), module.out_proj.weight, module.out_proj.bias)


@pytest.mark.parametrize("fast", [False, True])
def test_mamba_trains_as_in_torch(fast: bool) -> None:
    block = Mamba(8, d_state=4, bias=True, use_fast_path=fast, dtype=torch.float64)
    x = random(2, 9, 8)
    arguments = (x, *block.parameters())
    wanted = plain_inner(block.in_proj(x).transpose(1, 2), block)
    got = block(x)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
    weights = torch.rand_like(got)
    for one, other in zip(
        torch.autograd.grad((got * weights).sum(), arguments),
        torch.autograd.grad((wanted * weights).sum(), arguments),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


class Copies(TorchDispatchMode):
    """Counts elements of the largest copy of a tensor."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            self.largest = max(self.largest, args[-1 if func is torch.ops.aten.copy_.default else 0].numel())
        return func(*args, **(kwargs or {}))


def test_programs_find_the_parts_of_a_block() -> None:
    """They read what is inside: its convolution, activation and projections, without the block's forward."""
    block, x = Mamba(8, d_state=4), random(2, 9, 8).float()
    u, z = block.in_proj(x).mT.chunk(2, dim=1)
    u = block.act(block.conv1d(u)[..., : x.shape[1]])
    steps, B, C = block.x_proj(u.mT).split([block.dt_rank, block.d_state, block.d_state], dim=-1)
    delta = F.softplus(block.dt_proj(steps)).mT
    y, _ = inputs.scan(u, delta, -block.A_log.exp(), B.mT, C.mT, block.D, None, None, False)
    torch.testing.assert_close(block.out_proj((y * block.act(z)).mT), block(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_tokens_stay_contiguous_between_projections(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    run = Operation.__call__

    def spied(self: Any, given: Any, *others: Any) -> Any:
        results = run(self, given, *others)
        rows = [each for each in (*given, *results) if each is not None and each.dim() == 3 and each.shape[2] == 9]
        seen.append((self.name, {each.stride(2) for each in rows}))
        return results

    monkeypatch.setattr(Operation, "__call__", spied)
    block, x = Mamba(8, d_state=4, bias=bias), random(2, 9, 8, dtype=torch.float32)
    with Copies() as copies, the_whole_way():
        block(x).sin().sum().backward()
    assert {name for name, _ in seen} == {
        *("causal_conv1d_fn", "selective_scan_fn", "selective_scan_bwd", "causal_conv1d_bwd")
    }
    assert all(strides == {1} for _, strides in seen)
    assert copies.largest == 0


@pytest.mark.parametrize("swap", [False, True])
def test_any_layout_of_the_first_projection_will_do(swap: bool) -> None:
    block, xz = Mamba(8, d_state=4, dtype=torch.float64), random(2, 32, 9)
    if swap:
        xz = xz.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    weights = (block.conv1d.weight, block.conv1d.bias, block.x_proj.weight, block.dt_proj.weight)
    others = (block.out_proj.weight, None, -block.A_log.exp(), None, None, block.D, block.dt_proj.bias)
    got, wanted = mamba_inner_fn(xz, *weights, *others), plain_inner(xz, block)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(each.sin().sum(), xz)[0] for each in (got, wanted))
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


def test_a_gpu_copies_contiguous_channels_by_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    run = Operation.__call__

    def spied(self: Any, given: Any, *others: Any) -> Any:
        called.append(self.name)
        return run(self, given, *others)

    xz, conv_weight, *others, out_bias, A, D, delta_bias, _ = inner_inputs(torch.float64)

    def gradients(xz: Any) -> Any:
        inner = mamba_inner_fn(xz, conv_weight, *others, out_bias, A, None, None, D, delta_bias)
        return inner, *torch.autograd.grad(inner.sin().sum(), (xz, conv_weight, *others))

    wanted = gradients(xz)
    by_channel = xz.detach().mT.contiguous().mT.requires_grad_()
    for is_on_gpu in (True, False):
        called.clear()
        with monkeypatch.context() as patch, the_whole_way():
            patch.setattr(Operation, "__call__", spied)
            # A tensor on the CPU stands in for one on a GPU.
            patch.setattr(torch.Tensor, "is_cuda", is_on_gpu, raising=False)
            got = gradients(by_channel)
        assert ("with_contiguous_tokens" in called) == is_on_gpu
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def inner_inputs(dtype: Any) -> tuple[Any, ...]:
    """What `compose` and, but for the last argument, `Inner` take."""
    shapes = (2, 32, 9), (16, 1, 4), (16,), (1 + 2 * 4, 16), (16, 1), (8, 16), (8,)
    A = random(16, 4, low=-1.0, high=-0.1, dtype=dtype)
    return (
        *(random(*shape, dtype=dtype) for shape in shapes),
        A,
        random(16, dtype=dtype),
        random(16, dtype=dtype),
        True,
    )


@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_one_function_is_its_operations_under_autocast(keep: bool, is_normed: bool) -> None:
    given = inner_inputs(torch.float32)
    norms = Norms(None, *(random(n, dtype=torch.float32) for n in (4, 4, 4, 16)), 1e-6) if is_normed else NO_NORMS
    arguments = *given[:-1], *[each for each in norms[1:-1] if each is not None]
    found = []
    for call in (
        lambda: Inner.eager(*given, keep, *(norms if is_normed else ())),
        lambda: compose(*given, norms=norms),
    ):
        with torch.autocast("cpu", torch.bfloat16):
            y = call()
            # The backward pass may run under autocast, too.
            found.append((y, *torch.autograd.grad(y.float().sin().sum(), arguments)))
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02 * float(other.detach().abs().max()))


def test_one_function_differentiates_what_requires_it() -> None:
    given = inner_inputs(torch.float64)
    few = tuple(each.detach() if place in (1, 3, 6, 8) else each for place, each in enumerate(given[:-1]))
    needed = [each for each in few if each.requires_grad]
    grads = (
        torch.autograd.grad(call(*few, True), needed)
        for call in (lambda *a: Inner.eager(*a, False).sum(), lambda *a: compose(*a).sum())
    )
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)


def test_frozen_weights_of_projections_take_no_products() -> None:
    """Low-rank adapters leave the weights as they are, whose gradients are a third of the backward's products."""
    given = inner_inputs(torch.float64)
    counted = {}
    for frozen in (False, True):
        few = tuple(each.detach() if frozen and place in (3, 4, 5) else each for place, each in enumerate(given[:-1]))
        loss = Inner.eager(*few, True, False).sum()
        with Products() as products:
            loss.backward()
        counted[frozen] = products.count
    assert counted == {False: 7, True: 4}


class Products(TorchDispatchMode):
    """Counts products of matrices."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func).startswith(("aten.mm", "aten.addmm"))
        return func(*args, **(kwargs or {}))


def test_a_penalty_on_the_gradient_of_a_block_is_an_error() -> None:
    block, x = Mamba(8, d_state=4, dtype=torch.float64), random(2, 5, 8)
    (plain,) = torch.autograd.grad(block(x).sum(), x)
    (gradient,) = torch.autograd.grad(block(x).sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, plain)
    with pytest.raises(RuntimeError, match="cuconv has no second derivative"):
        gradient.square().sum().backward()


def test_a_block_applied_twice_has_the_same_gradients_with_create_graph() -> None:
    block, x = Mamba(8, d_state=4, bias=True, dtype=torch.float64), random(2, 5, 8)
    arguments = x, *block.parameters()

    def gradients(create_graph: bool) -> Any:
        return torch.autograd.grad(block(block(x)).square().sum(), arguments, create_graph=create_graph)

    torch.testing.assert_close(gradients(True), gradients(False), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("derive", [lambda bias: bias, torch.exp], ids=["the same tensor", "made of it"])
def test_arguments_that_depend_on_each_other_have_the_same_gradients_with_create_graph(derive: Any) -> None:
    *given, _, bias = inner_inputs(torch.float64)[:-1]

    def gradient(create_graph: bool) -> Any:
        loss = Inner.eager(*given, derive(bias), bias, True, False).square().sum()
        return torch.autograd.grad(loss, bias, create_graph=create_graph)

    torch.testing.assert_close(gradient(True), gradient(False), rtol=1e-10, atol=1e-12)


def test_what_is_computed_again_is_not_kept() -> None:
    block = Mamba(8, d_state=2, dtype=torch.float64)
    x = random(2, 64, 8)
    kept: dict[bool, int] = {}
    for fast in (False, True):
        block.use_fast_path = fast
        seen: dict[int, int] = {}

        def pack(tensor: Any, seen: dict[int, int] = seen) -> Any:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            block(x)
        kept[fast] = sum(seen.values())
    # u and delta, each of (2, 16, 64) numbers of 8 bytes.
    assert kept[False] - kept[True] >= 2 * 2 * 16 * 64 * 8


def test_what_was_modified_is_not_computed_again() -> None:
    block = Mamba(8, d_state=2, dtype=torch.float64)
    loss = block(random(1, 5, 8)).sum()
    with torch.no_grad():
        block.conv1d.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified"):
        loss.backward()


@pytest.mark.parametrize(("level", "of_delta"), [(0, "dt"), (1, "dt"), (1, "steps")])
def test_inner_norms_and_biases(level: int, of_delta: str) -> None:
    block = Mamba(8, d_state=4, dt_rank=3, dtype=torch.float64)
    xz = random(2, 32, 9)
    norms = {"b": random(4), "c": random(4), of_delta: random(16 if of_delta == "dt" else 3)}
    biases = {"B": random(4), "C": random(4)}
    got = mamba_inner_fn(
        *(xz, block.conv1d.weight, block.conv1d.bias, block.x_proj.weight, block.dt_proj.weight, block.out_proj.weight),
        *(None, -block.A_log.exp(), None, None, block.D, block.dt_proj.bias),
        checkpoint_lvl=level,
        **{f"{name.replace('steps', 'dt')}_rms_weight": weight for name, weight in norms.items()},
        **{f"{name}_proj_bias": bias for name, bias in biases.items()},
    )
    wanted = plain_inner(xz, block, **norms, **{f"{name}_bias": bias for name, bias in biases.items()})
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
    arguments = (xz, block.x_proj.weight, block.dt_proj.weight, *norms.values(), *biases.values())
    of_wanted = torch.autograd.grad(wanted.square().sum(), arguments)
    for create_graph in (True, False):
        gradients = torch.autograd.grad(got.square().sum(), arguments, create_graph=create_graph)
        torch.testing.assert_close(gradients, of_wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("frozen", ["weights", "all but weights"])
def test_norms_and_what_they_normalise_may_be_frozen(frozen: str) -> None:
    """The weights of Falcon's norms are buffers."""
    given = inner_inputs(torch.float64)[:-1]
    weights = [random(4), random(4), random(16)]
    if frozen == "weights":
        weights = [each.detach() for each in weights]
    else:
        given = tuple(each.detach() for each in given)
    norms = Norms(None, None, *weights, 1e-6)
    needed = [each for each in (*given, *weights) if each.requires_grad]
    losses = Inner.eager(*given, True, False, *norms).sum(), compose(*given, True, norms=norms).sum()
    torch.testing.assert_close(*(torch.autograd.grad(loss, needed) for loss in losses), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("prompt", [1, 2, 7])
def test_prefill_and_steps_continue_each_other(prompt: int) -> None:
    block = Mamba(8, d_state=4, dtype=torch.float64)
    x = random(2, 9, 8, grad=False)
    wanted = block(x)
    states = block.allocate_inference_cache(2)
    parts = [block.prefill(x[:, :prompt], *states)]
    parts += [block.step(x[:, t : t + 1], *states)[0] for t in range(prompt, 9)]
    torch.testing.assert_close(torch.cat(parts, dim=1), wanted, rtol=1e-10, atol=1e-12)


def test_autograd_notices_what_a_step_writes() -> None:
    block = Mamba(8, d_state=4)
    states = block.allocate_inference_cache(2)
    products = [(each * torch.ones_like(each, requires_grad=True)).sum() for each in states]
    block.step(torch.ones(2, 1, 8), *states)
    for product in products:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


@pytest.mark.parametrize("shape", [(0, 5, 8), (2, 0, 8), (0, 0, 8)], ids=str)
@pytest.mark.parametrize("fast", [True, False])
def test_an_empty_batch_keeps_its_shape(shape: tuple[int, ...], fast: bool) -> None:
    block, x = Mamba(8, use_fast_path=fast).double(), random(*shape)
    out = block(x)
    (gradient,) = torch.autograd.grad(x + out, x, torch.ones(shape).double())
    prompt = block.prefill(x, *block.allocate_inference_cache(shape[0]))
    assert out.shape == prompt.shape == gradient.shape == shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_converted_block_computes_rates_in_float32(dtype: Any) -> None:
    torch.manual_seed(0)
    converted, exact = Mamba(8).to(dtype), Mamba(8, dtype=torch.float64)
    exact.load_state_dict(converted.state_dict())
    x = random(2, 6, 8, dtype=dtype, grad=False)
    out, wanted = converted(x), exact(x.double())
    out.sum().backward()
    assert out.dtype == converted.A_log.grad.dtype == dtype
    states = converted.allocate_inference_cache(2)
    parts = torch.cat([converted.prefill(x[:, :5], *states), converted.step(x[:, 5:], *states)[0]], 1)
    for each in (out, parts):
        torch.testing.assert_close(each.double(), wanted, rtol=0, atol=float(2 * torch.finfo(dtype).eps))


def test_a_block_has_the_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        block = Mamba(8)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {each.dtype for each in block.parameters()} == {torch.float64}
    assert block(random(2, 5, 8)).dtype == torch.float64


def test_inference_parameters() -> None:
    class Parameters:
        seqlen_offset = 0
        key_value_memory_dict: dict[Any, Any] = {}  # noqa: RUF012

    block = Mamba(8, d_state=4, layer_idx=3, dtype=torch.float64)
    x = random(2, 6, 8, grad=False)
    first = block(x[:, :5], Parameters)
    Parameters.seqlen_offset = 5
    torch.testing.assert_close(torch.cat([first, block(x[:, 5:], Parameters)], 1), block(x), rtol=1e-10, atol=1e-12)
    assert list(Parameters.key_value_memory_dict) == [3]


def test_mamba_under_autocast_and_compile() -> None:
    block, x = Mamba(8, d_state=4), random(2, 9, 8, dtype=torch.float32)
    wanted = block(x)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = block(x)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.float(), wanted, rtol=0.05, atol=0.05)
    mixed.float().sum().backward()
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for one, other in zip(
        torch.autograd.grad(compiled(x).sum(), (x, *block.parameters())),
        torch.autograd.grad(block(x).sum(), (x, *block.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_sizes_of_weights_are_checked() -> None:
    xz, conv_weight, bias, x_weight, *others, _, A, D, delta_bias, _ = inner_inputs(torch.float32)
    given = (xz, conv_weight, bias, x_weight[:-1], *others, None, A, None, None, D, delta_bias)
    with pytest.raises(ValueError, match=r"^shape of dt_rms_weight: got \(8,\); wanted \(16,\) or \(1,\)"):
        mamba_inner_fn(*given[:3], x_weight, *given[4:], dt_rms_weight=random(8))
    with pytest.raises(ValueError, match=r"^rows of x_proj_weight: got 8; wanted 9: r of delta_proj_weight"):
        mamba_inner_fn(*given)


def test_a_step_is_of_one_token() -> None:
    with pytest.raises(ValueError, match="tokens of hidden_states: got 2; wanted 1"):
        Mamba(8).step(torch.zeros(1, 2, 8), *Mamba(8).allocate_inference_cache(1))


@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize(
    ("shapes", "refused"),
    [
        (((6, 9), (6,)), r"weight: got shape \(6,\); wanted 2 axes \(dim, width\)"),
        (((6, 9), ()), r"weight: got shape \(\); wanted 2 axes \(dim, width\)"),
        (((6, 9), (6, 0)), "width of weight: got 0; wanted 1 to 16"),
        (((), (6, 4)), r"x: got shape \(\); wanted 2 axes \(dim, total\)"),
        (((1, 6, 9), (6, 4)), r"x: got shape \(1, 6, 9\); wanted 2 axes \(dim, total\)"),
        (((6, 9), (6, 4), ()), r"query_start_loc: got shape \(\); wanted 1 axes \(sequences \+ 1\)"),
        (((6, 9), (6, 4), (0,)), r"query_start_loc: got shape \(0,\); wanted at least 1 element"),
    ],
    ids=["weight of one axis", "weight of none", "no taps", "x of none", "a batch", "starts of none", "no starts"],
)
def test_packed_convolutions_name_what_does_not_fit(shapes: Any, refused: str, with_states: bool) -> None:
    x, weight, *starts = map(torch.ones, shapes)
    query_start_loc = starts[0].int() if starts else None
    states = torch.ones(1, 6, 3) if with_states else None
    with pytest.raises(ValueError, match=f"^{refused}"):
        causal_conv1d_packed(x, weight, None, query_start_loc, states)


@pytest.mark.parametrize(("shape", "refused"), [((), r"shape \(\)"), ((0,), r"shape \(0,\)")], ids=str)
def test_packed_scans_name_borders_that_do_not_fit(shape: Any, refused: str) -> None:
    u, matrix, starts = torch.ones(6, 9), torch.ones(4, 9), torch.ones(shape, dtype=torch.int32)
    with pytest.raises(ValueError, match=f"^query_start_loc: got {refused}; wanted"):
        selective_scan_packed(u, u, -torch.ones(6, 4), matrix, matrix, query_start_loc=starts, return_last_state=True)


def test_functional_names() -> None:
    assert cuconv.torch.causal_conv1d_fn is cuconv.causal_conv1d_fn
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cuconv.torch.nothing  # noqa: B018
