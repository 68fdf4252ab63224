"""Calls like earlier ones are recognised where autograd follows them, in threads, too, and have the same gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import cuconv
from cuconv.runtime import arrays, operation
from cuconv.runtime.call import Call, Known
from cuconv.runtime.operation import Operation
from tests.torch import inputs
from tests.torch.inputs import random

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def counted(family: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that had to look at their tensors one by one."""
    inspected: list[Any] = []
    inspect = family.inspect
    monkeypatch.setattr(family, "inspect", lambda *call: inspected.append(call) or inspect(*call))
    return inspected


@pytest.fixture
def inspected(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    family = arrays.family(torch.ones(1))
    assert family is not None
    if family.recogniser is None:
        pytest.skip(f"torch {torch.__version__} is not among those of which internals are used")
    return counted(family, monkeypatch)


def convolve(x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
    return cuconv.causal_conv1d_fn(x, weight, bias, activation="silu", **options)


def split(x: Any, weight: Any, bias: Any) -> Any:
    return cuconv.causal_conv1d_split(x[0], weight, bias, sizes=(1, 3, 2))


def scan(u: Any, delta: Any, A: Any, B: Any, C: Any) -> Any:
    return cuconv.selective_scan_fn(u, delta, A, B, C, delta_softplus=True)


def scan_with_state(*tensors: Any) -> Any:
    return cuconv.selective_scan_fn(*tensors, return_last_state=True)


def gated(x: Any, weight: Any, pre_gate: Any, post_gate: Any) -> Any:
    return cuconv.causal_conv1d_fn(x, weight, pre_gate=pre_gate, post_gate=post_gate)


RECOGNISED: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "convolution": (convolve, lambda: inputs.conv_inputs(seqlen=13)[:3]),
    "gated": (gated, lambda: (*inputs.conv_inputs(seqlen=13)[:2], random(2, 6, 13), random(2, 6, 13))),
    "split": (split, lambda: inputs.conv_inputs(seqlen=13)[:3]),
    "scan": (scan, lambda: inputs.scan_inputs(seqlen=11)[:5]),
    "scan with state": (scan_with_state, lambda: inputs.scan_inputs(seqlen=11)),
}


@pytest.mark.parametrize("name", RECOGNISED)
@pytest.mark.parametrize("followed", ["all", "first", "last"])
def test_equal_calls_are_recognised_and_all_have_the_same_gradients(
    name: str, followed: str, inspected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    function, make = RECOGNISED[name]
    operated: list[Any] = []
    call = Operation.__call__
    monkeypatch.setattr(Operation, "__call__", lambda self, *given: operated.append(self) or call(self, *given))
    tensors = list(make())
    for number, tensor in enumerate(tensors):
        tensor.requires_grad_(followed == "all" or number == (0 if followed == "first" else len(tensors) - 1))
    needed = [each for each in tensors if each.requires_grad]
    found, counts = [], []
    for _ in range(6):
        inspected.clear()
        operated.clear()
        results = function(*tensors)
        results = results if isinstance(results, tuple) else (results,)
        assert all(result.grad_fn is not None for result in results)
        counts.append(len(inspected))
        loss = sum((each * torch.linspace(0.5, 1.5, each.numel()).view(each.shape)).sum() for each in results)
        found.append(([each.detach() for each in results], torch.autograd.grad(loss, needed)))
        # Other tensors in other memory.
        tensors = [each.detach().clone().requires_grad_(each.requires_grad) for each in tensors]
        needed = [each for each in tensors if each.requires_grad]
    # One call more, where an earlier test has left a recogniser of tensors that autograd follows otherwise.
    assert counts[0] > 0 and counts[3:] == [0, 0, 0]
    assert not operated, "the last went from arguments to launches at once, and so did its gradient"
    for other in found[1:]:
        for one, another in zip(found[0], other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, another, strict=True))


def recognised() -> tuple[Any, Any, Any]:
    """Tensors of a convolution after calls that make the next one quick."""
    x, weight, bias, _ = inputs.conv_inputs(seqlen=17)
    x.requires_grad_(False)
    for _ in range(4):
        convolve(x, weight, bias)
    return x, weight, bias


def test_what_is_followed_otherwise_is_not_mistaken_for_calls_before(inspected: list[Any]) -> None:
    x, weight, bias = recognised()
    inspected.clear()
    wanted = convolve(x, weight, bias)
    assert not inspected
    with torch.no_grad():
        plain = convolve(x, weight, bias)
    assert plain.grad_fn is None and torch.equal(plain, wanted)
    plain = convolve(x, weight.detach(), bias.detach())
    assert plain.grad_fn is None and not plain.requires_grad and torch.equal(plain, wanted)
    for followed in ((True, False, False), (True, True, True), (False, True, True)):
        tensors = [each.detach().requires_grad_(grad) for each, grad in zip((x, weight, bias), followed, strict=True)]
        for _ in range(4):
            out = convolve(*tensors)
            assert torch.equal(out, wanted)
            out.sum().backward()
        assert tuple(each.grad is not None for each in tensors) == followed
    out, states = convolve(x, weight, bias, return_final_states=True)
    assert torch.equal(out, wanted) and torch.equal(states, x[..., -3:]) and out.grad_fn is not None
    torch.testing.assert_close(cuconv.causal_conv1d_fn(x, weight, bias), inputs.conv(x, weight, bias, silu=False)[0])


def test_calls_that_autograd_follows_and_others_by_turns_are_all_recognised(inspected: list[Any]) -> None:
    student = [each.detach().requires_grad_() for each in inputs.conv_inputs(seqlen=15)[:3]]
    teacher = [each.detach().clone() for each in student]
    for _ in range(4):
        inspected.clear()
        followed, plain = convolve(*student), convolve(*teacher)
        assert torch.equal(followed, plain) and followed.requires_grad and not plain.requires_grad
    assert not inspected


def in_another_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.mark.usefixtures("inspected")
def test_threads_make_and_drop_what_recognises_arrays_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one drops it while another writes code for it, and the call that is made fails after it has run."""
    count: Counter[str] = Counter()
    for name in ("recognise", "follow", "enter"):
        change = getattr(Call, name)

        def changed(*arguments: Any, name: str = name, change: Any = change) -> Any:
            count[name] += not in_another_thread(lambda: operation.preparing.acquire(blocking=False))
            return change(*arguments)

        monkeypatch.setattr(Call, name, changed)
    x, weight = random(2, 5, 11), random(5, 3)
    for _ in range(6):
        cuconv.causal_conv1d_fn(x, weight)
    assert count.keys() == {"recognise", "follow", "enter"} and all(count.values())


def test_what_another_thread_recognised_is_no_hint() -> None:
    operation.latest.known = known = object()  # type: ignore[assignment]
    try:
        assert in_another_thread(lambda: operation.latest.known) is None
        assert operation.latest.known is known
    finally:
        operation.latest.known = None


def test_another_thread_may_drop_what_is_known_during_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    convolution, options = Operation.named["causal_conv1d_fn"], (False, False)
    x, weight = random(2, 5, 11, grad=False), random(5, 3, grad=False)

    def run(given: tuple[Any, ...], late: Any) -> tuple[Any, ...]:
        convolution.known = ()
        return x, None

    known = [Known(options, None, each, None) for each in (lambda given, late: None, run)]  # type: ignore[arg-type]
    monkeypatch.setattr(convolution, "known", tuple(known))
    monkeypatch.setattr(operation.latest, "known", None)
    assert convolution((x, weight, None, None, None, None, None), options)[0] is x


def test_what_is_refused_is_refused_after_equal_calls() -> None:
    x, weight, bias = recognised()
    with pytest.raises(ValueError, match=r"^out: got a tensor while another argument requires grad"):
        convolve(x, weight, bias, out=torch.empty_like(x))
    with pytest.raises(RuntimeError, match="no batching rule"):
        torch.vmap(lambda row: convolve(row, weight, bias))(torch.ones(2, *x.shape, dtype=x.dtype))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward-mode derivative"):
        convolve(torch.autograd.forward_ad.make_dual(x, x), weight, bias)
    (gradient,) = torch.autograd.grad(convolve(x, weight, bias).sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="has no second derivative"):
        torch.autograd.grad(gradient.sum(), weight)


def test_a_write_to_what_is_saved_is_noticed_after_equal_calls() -> None:
    x, weight, bias = recognised()
    out = convolve(x, weight, bias)
    # Autograd does not follow x, but the gradient of weight is made of it.
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_saved_tensors_go_through_hooks_after_equal_calls() -> None:
    x, weight, bias = recognised()
    packed: list[Any] = []

    def pack(tensor: Any) -> int:
        packed.append(tensor)
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, packed.__getitem__):
        out = convolve(x, weight, bias)
    assert [id(each) for each in packed if each.dim() == 3] == [id(x)]
    out.sum().backward()
    assert weight.grad is not None


def test_compiled_autograd_after_equal_calls() -> None:
    x, weight, bias = recognised()
    (wanted,) = torch.autograd.grad(convolve(x, weight, bias).sum(), weight)
    out = convolve(x, weight, bias)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        out.sum().backward()
    assert torch.equal(weight.grad, wanted)
