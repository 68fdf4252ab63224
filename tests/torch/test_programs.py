"""What training programs do around layers and models: checkpoints, adapters, hooks, shards, transforms, traces."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cuconv
from tests.torch.inputs import Adapted, random

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts  # noqa: E402

from cuconv.torch import Mamba, ShortConvolution, mamba_inner_fn  # noqa: E402
from cuconv.torch.inner import Inner  # noqa: E402

F = torch.nn.functional

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def falcon(block: Mamba, xz: Any) -> Any:
    """A block with the norms of FalconMamba."""
    return mamba_inner_fn(
        *(xz, block.conv1d.weight, block.conv1d.bias, block.x_proj.weight, block.dt_proj.weight, block.out_proj.weight),
        *(None, -block.A_log.exp(), None, None, block.D, block.dt_proj.bias),
        **{f"{name}_rms_weight": torch.ones(size, dtype=xz.dtype) for name, size in (("b", 4), ("c", 4), ("dt", 3))},
    )


SELECTED = [torch.ops.aten.mm.default]


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant", "selective"])
@pytest.mark.parametrize("is_normed", [False, True])
def test_a_block_may_be_in_a_checkpoint(kind: str, is_normed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint gives each tensor that it has dropped once only, and computes the block once more for all."""
    block, x = Mamba(8, d_state=4, dt_rank=3, dtype=torch.float64), random(2, 9, 8)
    runs, compute = [], Inner.eager
    monkeypatch.setattr(Inner, "eager", lambda *given: runs.append(given) or compute(*given))

    def loss(x: Any) -> Any:
        return (falcon(block, block.in_proj(x).mT) if is_normed else block(x)).sin().sum()

    named: dict[str, Any] = {"use_reentrant": kind == "reentrant"}
    if kind == "selective":
        named["context_fn"] = lambda: create_selective_checkpoint_contexts(SELECTED)
    arguments = (x, *block.parameters())
    wanted = torch.autograd.grad(loss(x), arguments, allow_unused=True)
    runs.clear()
    checkpoint(loss, x, **named).backward()
    assert len(runs) == 2
    for argument, gradient in zip(arguments, wanted, strict=True):
        torch.testing.assert_close(argument.grad, gradient, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("is_normed", [False, True])
def test_what_a_block_keeps_may_be_kept_elsewhere(is_normed: bool) -> None:
    """Where hooks take saved tensors, as `save_on_cpu` does, the block keeps none, and asks for each of them once."""
    block, x = Mamba(8, d_state=4, dt_rank=3, dtype=torch.float64), random(2, 9, 8)
    taken: list[Any] = []
    given: list[int] = []

    def take(tensor: Any) -> int:
        taken.append(tensor.clone())
        return len(taken) - 1

    def give(number: int) -> Any:
        given.append(number)
        return taken[number]

    xz = block.in_proj(x).mT
    with torch.autograd.graph.saved_tensors_hooks(take, give):
        out = falcon(block, xz) if is_normed else block(x)
    node = out.grad_fn
    kept = [each for each in vars(node).values() if isinstance(each, torch.Tensor)]
    assert not kept and getattr(node, "normed", None) is None
    out.sum().backward()
    assert len(given) == len(set(given))


@pytest.mark.parametrize("names", [["in_proj"], ["x_proj"], ["dt_proj"], ["out_proj"], ["in_proj", "x_proj"]])
def test_adapters_of_a_block_count(names: list[str]) -> None:
    """In training, for prompts and in steps: mamba_ssm's block would read the weights below them."""
    block, x = Mamba(8, d_state=4, bias=True, dtype=torch.float64), random(2, 6, 8)
    for name in names:
        setattr(block, name, Adapted(getattr(block, name)))
    got = block(x)
    got.sin().sum().backward()
    for name in names:
        assert getattr(block, name).down.weight.grad.abs().sum() > 0
    states = block.allocate_inference_cache(2)
    prompt = block.prefill(x[:, :4], *states)
    steps = [block.step(x[:, n : n + 1], *states)[0] for n in (4, 5)]
    for name in names:
        setattr(block, name, getattr(block, name).merged())
    wanted = block(x)
    for each in (got, torch.cat((prompt, *steps), dim=1)):
        torch.testing.assert_close(each, wanted, rtol=1e-9, atol=1e-11)


class Quantised(torch.nn.Module):
    """A linear layer whose weight and bias have to be unpacked, as torch.ao's quantised ones."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def weight(self) -> Any:
        return self.layer.weight

    def bias(self) -> Any:
        return self.layer.bias

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def test_projections_of_a_block_may_be_quantised() -> None:
    block, x = Mamba(8, d_state=4, bias=True, dtype=torch.float64), random(2, 6, 8, grad=False)
    wanted = block(x)
    for name in ("in_proj", "x_proj", "dt_proj", "out_proj"):
        setattr(block, name, Quantised(getattr(block, name)))
    states = block.allocate_inference_cache(2)
    prompt = block.prefill(x[:, :5], *states)
    for each in (block(x), torch.cat((prompt, block.step(x[:, 5:], *states)[0]), dim=1)):
        torch.testing.assert_close(each, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["in_proj", "x_proj", "dt_proj", "out_proj"])
def test_hooks_of_a_block_run(name: str) -> None:
    block, x = Mamba(8, d_state=4, dtype=torch.float64), random(2, 6, 8)
    wanted = block(x)
    handle = getattr(block, name).register_forward_hook(lambda module, given, result: result * 2)
    assert (block(x) - wanted).abs().max() > 1e-6
    handle.remove()
    torch.testing.assert_close(block(x), wanted, rtol=1e-12, atol=0)


class Doubled(torch.Tensor):
    """A weight that is more than its numbers, as quantised ones are: products with it are twice as large."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        return result.as_subclass(torch.Tensor) * 2 if func is F.linear else result


@pytest.mark.parametrize("name", ["in_proj", "x_proj", "out_proj"])
def test_weights_of_other_kinds_are_used_by_their_layers(name: str) -> None:
    block, x = Mamba(8, d_state=4, dtype=torch.float64), random(2, 6, 8)
    wanted = Mamba(8, d_state=4, dtype=torch.float64)
    wanted.load_state_dict(block.state_dict())
    with torch.no_grad():
        getattr(wanted, name).weight *= 2
    weight = getattr(block, name).weight.detach().as_subclass(Doubled)
    getattr(block, name).weight = torch.nn.Parameter(weight, requires_grad=False)
    torch.testing.assert_close(block(x), wanted(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_may_resize_storages_after_a_call(dtype: Any) -> None:
    """FSDP frees parameters between layers in this way. `Tensor.numpy` forbids it for as long as the storage lives."""
    x, weight, state = (torch.ones(*shape, dtype=dtype) for shape in ((2, 6, 5), (6, 4), (2, 6, 3)))
    slots = torch.tensor([1, 0])
    results = [
        cuconv.causal_conv1d_fn(x, weight),
        cuconv.causal_conv1d_update(x[:, :, 0], state, weight, conv_state_indices=slots),
    ]
    for tensor in (x, weight, state, slots, *results):
        assert tensor.untyped_storage().resizable()
    weight.untyped_storage().resize_(0)


@pytest.fixture
def group(tmp_path: Any) -> Iterator[None]:
    """A process group of one."""
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backend, init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("reentrant", [None, False])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("group")
def test_sharded_blocks_train(device: str, reentrant: bool | None) -> None:
    """`fully_shard` gathers a layer's parameters when it is called, and frees their memory behind it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList([Mamba(8, d_state=4), ShortConvolution(8, 4), Mamba(8, d_state=4)])

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                out = block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)
                x = x + (out[0] if isinstance(out, tuple) else out)
            return x

    model, x = Model().to(device), torch.randn(2, 9, 8, device=device)
    model(x).square().mean().backward()
    wanted = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    mesh = init_device_mesh(device, (1,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(x).square().mean().backward()
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), gradient, rtol=1e-5, atol=1e-6)


def conv(x: Any) -> Any:
    return cuconv.causal_conv1d_fn(x, torch.ones(6, 4), activation="silu")


def scan(u: Any) -> Any:
    B = u[:, :3]
    return cuconv.selective_scan_fn(u, u, -torch.ones(6, 3), B, B, delta_softplus=True)


def step(x: Any) -> Any:
    state = torch.zeros(x.shape[0], 6, 3)
    return cuconv.causal_conv1d_update(x[:, :, 0], state, torch.ones(6, 4)), state


def gradient(x: Any) -> Any:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(conv(x).square().sum(), x)


def parts(x: Any) -> Any:
    return tuple(cuconv.causal_conv1d_split(x[0], torch.ones(6, 4), None, None, torch.tensor([0, 2, 5]), sizes=[2, 4]))


@pytest.mark.parametrize("function", [conv, scan, step, parts])
@pytest.mark.parametrize("is_known", [False, True])
def test_functions_are_operators_in_traces(function: Callable[[Any], Any], is_known: bool) -> None:
    """torch.jit.trace records operators only: what ran beside them would be a number of the example in the program."""
    example, x = torch.rand(2, 6, 5), torch.rand(2, 6, 5)
    for _ in range(3 if is_known else 0):
        function(example)
    traced = torch.jit.trace(function, example)
    program = io.BytesIO()
    torch.jit.save(traced, program)
    program.seek(0)
    torch.testing.assert_close(torch.jit.load(program)(x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("function", [conv, scan, step, parts, gradient])
@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_functions_are_operators_in_graphs_of_make_fx(
    function: Callable[[Any], Any], pre_dispatch: bool, is_known: bool
) -> None:
    """make_fx traces ordinary tensors. What ran beside operators would be memory without contents in its graph."""
    example, x = torch.rand(2, 6, 5), torch.rand(2, 6, 5)
    for _ in range(3 if is_known else 0):
        function(example)
    graph = make_fx(function, pre_dispatch=pre_dispatch)(example)
    torch.testing.assert_close(graph(x), function(x), rtol=0, atol=0)


def test_a_trace_binds_no_call() -> None:
    """The program would have the numbers of the example in it."""
    weight = torch.ones(6, 4)
    with pytest.raises(RuntimeError, match=r"cuconv.bind cannot be traced"):
        torch.jit.trace(lambda x: cuconv.bind(cuconv.causal_conv1d_fn, x, weight)(), torch.rand(1, 6, 5))


@pytest.mark.parametrize("grad", [False, True])
def test_a_block_can_be_traced(grad: bool) -> None:
    block = Mamba(8, d_state=4)
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(block, torch.rand(2, 9, 8))
        x = torch.rand(3, 11, 8)
        torch.testing.assert_close(traced(x), block(x))
