"""torch.compile, torch.export and fake tensors: graphs have cuconv's operators, and give what eager calls give."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.bench.workloads import SMALL, workloads
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import NO_NUMBERS
from cuconv.selective_scan.turn import with_contiguous_tokens
from tests.support.entries import the_whole_way
from tests.torch import inputs
from tests.torch.inputs import as_tensor, random

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from cuconv.torch import causal_conv1d_packed, operators, selective_scan_packed  # noqa: E402

FUNCTIONS = [name for name in cuconv.OPERATORS if name in SMALL]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Convolution(torch.nn.Module):
    """A module with parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(inputs.random(6, 4, dtype=torch.float32))

    def forward(self, x: Any) -> Any:
        out, states = cuconv.causal_conv1d_fn(x * 2, self.weight, None, None, None, True, activation="silu")
        return out.sin() + states.sum()


def call_of(function: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The function, its tensors and its options."""
    workload = next(iter(workloads(SMALL, function, dtype="float32")))
    tensors = {name: as_tensor(np.array(array)) for name, array in workload.host().items()}
    return getattr(cuconv, function), tensors, {**workload.options}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_graph_gives_what_a_call_gives(function: str) -> None:
    call, tensors, options = call_of(function)
    others = copy.deepcopy(tensors)

    def program(tensors: dict[str, Any]) -> Any:
        return call(**{name: tensor.view(tensor.shape) for name, tensor in tensors.items()}, **options)

    wanted = program(tensors)
    got = torch.compile(program, fullgraph=True, backend="aot_eager")(others)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    torch.testing.assert_close(others, tensors, rtol=0, atol=0)


def test_what_a_graph_updates_is_seen_within_it() -> None:
    state, x, weight = torch.zeros(2, 6, 3), torch.ones(2, 6), torch.ones(6, 4)

    def program(state: Any) -> Any:
        before = state.sum()
        out = cuconv.causal_conv1d_update(x, state, weight)
        return before, out, state.sum()

    before, _, after = torch.compile(program, fullgraph=True, backend="aot_eager")(state)
    assert before == 0 and after == 12 and state.sum() == 12


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_graph_has_the_gradients(backend: str) -> None:
    module, x = Convolution(), inputs.random(2, 6, 9, dtype=torch.float32)
    wanted = torch.autograd.grad(module(x).sum(), (x, module.weight))
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    got = torch.autograd.grad(compiled(x).sum(), (x, module.weight))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize("function", ["causal_conv1d_fn", "causal_conv1d_varlen_fn"])
def test_a_graph_has_the_gradients_around_a_convolution(function: str) -> None:
    shape = (2, 6, 9) if function == "causal_conv1d_fn" else (6, 9)
    arguments = [random(6, 4), *(random(*shape) for _ in range(4))]

    def program(weight: Any, x: Any, *gates: Any) -> Any:
        named = dict(zip(("pre_gate", "post_gate", "residual"), gates, strict=True))
        return getattr(cuconv, function)(x, weight, **named).sin().sum()

    wanted = torch.autograd.grad(program(*arguments), arguments)
    got = torch.autograd.grad(torch.compile(program, fullgraph=True, backend="aot_eager")(*arguments), arguments)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("packed", [False, True])
def test_a_graph_has_the_gradients_of_a_tensor_that_is_two_arguments(packed: bool) -> None:
    x, weight = random(*((5, 9) if packed else (2, 5, 9))), random(5, 4)
    A, B = random(5, 3, low=-1.0, high=-0.1), random(*((3, 9) if packed else (2, 3, 9)))

    def program(x: Any, weight: Any, A: Any, B: Any) -> Any:
        if packed:
            out = cuconv.causal_conv1d_varlen_fn(x, weight, residual=x)
            return (out * selective_scan_packed(x, x.sigmoid(), A, B, B, z=x)).sum()
        out = cuconv.causal_conv1d_fn(x, weight, residual=x)
        return (out * cuconv.selective_scan_fn(x, x.sigmoid(), A, B, B, z=x)).sum()

    arguments = x, weight, A, B
    wanted = torch.autograd.grad(program(*arguments), arguments)
    got = torch.autograd.grad(torch.compile(program, fullgraph=True, backend="aot_eager")(*arguments), arguments)
    torch.testing.assert_close(got, wanted)


def test_a_graph_has_the_gradients_of_a_batch_of_sequences() -> None:
    arguments = random(2, 6, 9), random(6, 4), random(6)

    def program(*arguments: Any) -> Any:
        return cuconv.causal_conv1d_varlen_fn(*arguments, activation="silu").sin().sum()

    wanted = torch.autograd.grad(program(*arguments), arguments)
    got = torch.autograd.grad(torch.compile(program, fullgraph=True, backend="aot_eager")(*arguments), arguments)
    torch.testing.assert_close(got, wanted)


def test_a_graph_has_the_gradients_of_a_scan() -> None:
    arguments = inputs.scan_inputs(dtype=torch.float32)

    def program(*arguments: Any) -> Any:
        out, state = cuconv.selective_scan_fn(*arguments, True, True)
        return out.sum() + state.square().sum()

    wanted = torch.autograd.grad(program(*arguments), arguments)
    got = torch.autograd.grad(torch.compile(program, fullgraph=True, backend="aot_eager")(*arguments), arguments)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_graph_has_the_gradients_of_a_split() -> None:
    x, weight = inputs.random(6, 9), inputs.random(6, 4)

    def program(x: Any, weight: Any) -> Any:
        heads = {"num_q_heads": 1, "num_k_heads": 1, "num_v_heads": 1, "head_q": 2, "head_k": 2, "head_v": 2}
        return sum(part.sin().sum() for part in cuconv.causal_conv1d_qkv_split(x, weight, **heads, qk_l2norm=True))

    wanted = torch.autograd.grad(program(x, weight), (x, weight))
    got = torch.autograd.grad(torch.compile(program, fullgraph=True, backend="aot_eager")(x, weight), (x, weight))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_a_graph_has_the_gradients_of_packed_states() -> None:
    starts = torch.tensor([0, 3, 3, 8])
    weight, states, A, state = random(6, 4), random(3, 6, 3), random(6, 3, low=-1.0, high=-0.1), random(3, 6, 3)
    x, B, C = random(6, 9), random(3, 9), random(3, 9)

    def program(x: Any, weight: Any, states: Any, A: Any, B: Any, C: Any, state: Any) -> Any:
        u, final_states = causal_conv1d_packed(x, weight, None, starts, states, True, "silu")
        out, last_state = selective_scan_packed(u, x, A, B, C, None, None, None, True, starts, state, True)
        return out.sin().sum() + final_states.square().sum() + last_state.square().sum()

    arguments = (x, weight, states, A, B, C, state)
    wanted = torch.autograd.grad(program(*arguments), arguments)
    got = torch.autograd.grad(torch.compile(program, fullgraph=True, backend="aot_eager")(*arguments), arguments)
    torch.testing.assert_close(got, wanted)


def test_a_graph_has_copies_with_contiguous_tokens() -> None:
    x = random(2, 9, 6)

    def program(x: Any) -> Any:
        return with_contiguous_tokens(x.mT).sin()

    got, wanted = torch.compile(program, fullgraph=True, backend="aot_eager")(x), program(x)
    assert torch.equal(got, wanted) and got.stride() == wanted.stride() == (9, 18, 1)
    assert torch.equal(*(torch.autograd.grad(each.square().sum(), x)[0] for each in (got, wanted)))
    operator = torch.ops.cuconv.with_contiguous_tokens
    assert set(torch.library.opcheck(operator.default, (x.detach().mT,)).values()) == {"SUCCESS"}


def test_sizes_may_change() -> None:
    module = Convolution()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for seqlen in (9, 12, 40):
        x = inputs.random(2, 6, seqlen, dtype=torch.float32)
        wanted = torch.autograd.grad(module(x).sum(), (x, module.weight))
        torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), (x, module.weight)), wanted)


def test_a_given_output_is_written_by_a_graph() -> None:
    x, weight, out = torch.ones(2, 6, 9), torch.ones(6, 4), torch.zeros(2, 6, 9)

    def program(x: Any, out: Any) -> Any:
        return cuconv.causal_conv1d_fn(x, weight, out=out) + 1

    returned = torch.compile(program, fullgraph=True, backend="aot_eager")(x, out)
    assert torch.equal(out, cuconv.causal_conv1d_fn(x, weight)) and torch.equal(returned, out + 1)


@pytest.mark.parametrize(
    ("out", "refused"),
    [
        (torch.ones(3, 6, 9), r"out: got shape \(3, 6, 9\); wanted \(1, 6, 9\)"),
        (torch.ones(1, 6, 9, dtype=torch.float16), "out: got dtype float16; wanted float32"),
    ],
    ids=["shape", "dtype"],
)
def test_a_given_output_that_does_not_fit_is_refused(out: Any, refused: str) -> None:
    x, weight = torch.ones(1, 6, 9), torch.ones(6, 4)
    compiled = torch.compile(lambda out: cuconv.causal_conv1d_fn(x, weight, out=out), backend="aot_eager")
    with pytest.raises(Exception, match=refused):
        compiled(out)
    assert (out == 1).all()


def test_an_output_for_what_a_call_does_not_compute_is_refused() -> None:
    x, weight, out = torch.ones(1, 6, 9), torch.ones(6, 4), torch.ones(6)
    program = lambda out: cuconv.causal_conv1d_bwd(x, weight, None, x, dbias=out)  # noqa: E731
    with pytest.raises(Exception, match="dbias: got a tensor; wanted None: the call has no such result"):
        torch.compile(program, fullgraph=True, backend="aot_eager")(out)
    assert (out == 1).all()


LAZY = """
import sys, types
import {0}, {1}

class Lazy(types.ModuleType):
    def __getattribute__(self, name):
        sys.modules[f"another{{len(sys.modules)}}"] = types.ModuleType("another")
        return super().__getattribute__(name)

sys.modules["lazy"] = Lazy("lazy")
x, weight = torch.ones(1, 2, 8), torch.ones(2, 4)
compiled = torch.compile(lambda *given: cuconv.causal_conv1d_fn(*given), backend="eager", fullgraph=True)
assert torch.equal(compiled(x, weight), cuconv.causal_conv1d_fn(x, weight))
"""


@pytest.mark.parametrize("order", [("cuconv", "torch"), ("torch", "cuconv")], ids=str)
def test_modules_that_import_others_when_looked_at_do_not_disturb(order: tuple[str, str]) -> None:
    """Those of transformers do, and Dynamo would look at all modules where a function reads sys.modules."""
    subprocess.run([sys.executable, "-c", LAZY.format(*order)], check=True)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    module, x = Convolution(), inputs.random(2, 6, 9, dtype=torch.float32, grad=False)
    exported = torch.export.export(
        module, (x,), strict=strict, dynamic_shapes=({2: torch.export.Dim("seqlen", min=4, max=4096)},)
    )
    assert "torch.ops.cuconv.causal_conv1d_fn.default" in str(exported.graph_module.print_readable(print_output=False))
    for seqlen in (9, 20):
        x = inputs.random(2, 6, seqlen, dtype=torch.float32, grad=False)
        torch.testing.assert_close(exported.module()(x), module(x))


def test_fake_tensors_lie_as_results_do() -> None:
    from torch._subclasses import FakeTensorMode

    x, weight = torch.ones(2, 9, 6).transpose(1, 2), torch.ones(6, 4)
    wanted = cuconv.causal_conv1d_fn(x, weight, None, None, None, True)
    mode = FakeTensorMode()
    fake, fake_weight = mode.from_tensor(x), mode.from_tensor(weight)
    for one, other in zip(cuconv.causal_conv1d_fn(fake, fake_weight, None, None, None, True), wanted, strict=True):
        assert one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype
    with pytest.raises(ValueError, match="weight: got shape"):
        cuconv.causal_conv1d_fn(fake, mode.from_tensor(torch.ones(5, 4)))


def test_states_move_between_slots_in_a_graph() -> None:
    x, weight, pool = torch.rand(2, 6), torch.rand(6, 4), torch.rand(5, 6, 3)
    slots = {"conv_state_indices": torch.tensor([[1, 3], [0, 4]]), "state_column": torch.tensor([0, 1])}

    def program(x: Any, pool: Any, **more: Any) -> Any:
        moved = {**slots, "dst_state_indices": torch.tensor([2, 0])}
        return cuconv.causal_conv1d_update(x, pool, weight, **moved, **more) + 1

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    states = pool.clone(), pool.clone()
    assert torch.equal(compiled(x, states[0]), program(x, states[1])) and torch.equal(*states)
    assert not torch.equal(states[0][2], pool[2]) and torch.equal(states[0][[1, 3, 4]], pool[[1, 3, 4]])
    with pytest.raises(Exception, match="pad_output: got 'keep'; wanted 'zero' where torch traces"):
        compiled(x, pool, out=torch.rand(2, 6), pad_output="keep")


def test_states_that_are_only_read_in_a_graph() -> None:
    x, weight, states = torch.rand(6, 9), torch.rand(6, 4), torch.rand(2, 6, 3)
    starts = torch.tensor([0, 4, 9])

    def program(x: Any, states: Any) -> Any:
        return cuconv.causal_conv1d_varlen_fn(x, weight, query_start_loc=starts, initial_states=states)

    before = states.clone()
    got = torch.compile(program, fullgraph=True, backend="aot_eager")(x, states)
    assert torch.equal(got, program(x, states)) and torch.equal(states, before)
    with pytest.raises(ValueError, match="initial_states: got a tensor while another argument requires grad"):
        program(x.requires_grad_(), states)


def test_states_of_steps_and_scans_are_chosen_in_a_graph() -> None:
    state, x, B, A = torch.rand(4, 6, 8), torch.rand(2, 3, 6), torch.rand(2, 3, 8), -torch.rand(6, 8)
    chosen = {
        "state_batch_indices": torch.tensor([[3, 1], [0, 2]]),
        "state_column": torch.tensor([1, 0]),
        "null_slot": 7,
    }
    tree = {"parents": torch.tensor([[-1, 0, 0]] * 2), "intermediate_state_indices": torch.tensor([0, 1])}
    slots = {"cache_indices": torch.tensor([1, 2]), "dst_state_indices": torch.tensor([3, 0])}
    u, starts, has = torch.rand(6, 9), torch.tensor([0, 4, 9]), torch.tensor([True, False])

    def program(state: Any, buffer: Any) -> Any:
        named = {**chosen, **tree, "intermediate_states_buffer": buffer, "has_initial_state": has}
        out = cuconv.selective_state_update(state, x, x, A, B, B, **named)
        matrix, packed = B[0, :1].expand(9, 8).t(), {"query_start_loc": starts, "has_initial_state": has}
        return out, cuconv.selective_scan_varlen_fn(u, state, u, A, matrix, matrix, **packed, **slots)

    arrays = [(state.clone(), torch.zeros(2, 3, 6, 8)) for _ in range(2)]
    got = torch.compile(program, fullgraph=True, backend="aot_eager")(*arrays[0])
    torch.testing.assert_close(got, program(*arrays[1]), rtol=0, atol=0)
    torch.testing.assert_close(arrays[0], arrays[1], rtol=0, atol=0)


def test_a_step_along_a_tree_finds_its_parents_in_a_graph() -> None:
    x, weight, found = torch.rand(2, 6, 4), torch.rand(6, 4), [torch.full((2, 4), 9) for _ in range(2)]
    links = {"retrieve_next_token": torch.tensor([[1, 3, -1, -1]] * 2)}
    links["retrieve_next_sibling"] = torch.tensor([[-1, 2, -1, -1]] * 2)

    def program(state: Any, parents: Any) -> Any:
        return cuconv.causal_conv1d_update(x, state, weight, retrieve_parent_token=parents, **links)

    states = [torch.ones(2, 6, 3) for _ in range(2)]
    got = torch.compile(program, fullgraph=True, backend="aot_eager")(states[0], found[0])
    assert torch.equal(got, program(states[1], found[1])) and torch.equal(*states)
    assert found[0].tolist() == [[0, 0, 0, 1]] * 2


def test_codes_and_scales_are_updated_in_a_graph() -> None:
    x, B, A = torch.rand(2, 3, 6), torch.rand(2, 3, 8), -torch.rand(6, 8)

    def program(state: Any, scale: Any, buffer: Any, scales: Any) -> Any:
        named = {"intermediate_states_buffer": buffer, "intermediate_state_scales": scales}
        return cuconv.selective_state_update(state, x, x, A, B, B, state_scale=scale, rand_seed=2**63, **named)

    for dtype in (torch.int8, torch.int16, torch.float8_e4m3fn):
        codes = [torch.zeros(shape, dtype=torch.int16).to(dtype) for shape in ((2, 6, 8), (2, 3, 6, 8))]
        scales = [torch.ones(each.shape[:-1]) for each in codes]
        arrays = [[each.clone() for each in (codes[0], scales[0], codes[1], scales[1])] for _ in range(2)]
        got = torch.compile(program, fullgraph=True, backend="aot_eager")(*arrays[0])
        torch.testing.assert_close(got, program(*arrays[1]), rtol=0, atol=0)
        for in_graph, eager in zip(*arrays, strict=True):
            assert torch.equal(in_graph.float(), eager.float())
        assert not torch.equal(arrays[0][1], scales[0])


class Recorder(TorchDispatchMode):
    """Keeps the calls of cuconv's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "cuconv":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_operators_keep_what_their_schemas_say(function: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Operation.__call__

    def operate(
        operation: Any,
        given: Any,
        options: Any = (),
        outputs: Any = None,
        late: Any = NO_NUMBERS,
        may_be_traced: bool = True,
    ) -> Any:
        if not may_be_traced:
            return run(operation, given, options, outputs, late, may_be_traced)
        return operators._operate(operation, given, options, outputs, late)

    call, tensors, options = call_of(function)
    monkeypatch.setattr(Operation, "__call__", operate)
    with Recorder() as recorder, the_whole_way():
        call(**{name: tensor.to(device) for name, tensor in tensors.items()}, **options)
    ((operator, arguments),) = recorder.calls
    assert set(torch.library.opcheck(operator, arguments).values()) == {"SUCCESS"}
