"""Bound calls on tensors that stand for a GPU's: what each call asks, launches and marks, and on which stream."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import cuconv
from cuconv.bench.workloads import SMALL, workloads
from cuconv.runtime import arrays
from cuconv.runtime.arrays import Facts, TorchFamily
from cuconv.runtime.call import Call
from cuconv.runtime.dtypes import DType
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.layout import HOST, Layout
from cuconv.runtime.operation import Operation, _prepared
from tests.support.graphs import FakeRuntime

torch = pytest.importorskip("torch")
pytest.importorskip("cupy")


class OnGpu(TorchFamily):
    """Tensors on the CPU as if they were on a GPU, where launches are noted."""

    def __init__(self, runtime: FakeRuntime) -> None:
        super().__init__()
        # What these take would be compiled for a GPU.
        self._empty = self.recogniser = None
        self.runtime = runtime
        self.current_stream = 7
        self.stream = lambda device: self.current_stream + device

    def inspect(self, arguments: Sequence[str], given: Sequence[Any]) -> tuple[list[int], list[Facts | None]]:
        pointers, facts = super().inspect(arguments, given)
        return pointers, [None if each is None else (*each[:3], 0, *each[4:]) for each in facts]

    def _dispatched_maker(self, layout: Layout) -> Callable[[], Any]:
        assert isinstance(layout.dtype, DType)
        return super()._dispatched_maker(layout._replace(device=HOST))

    def load(self, kernel: Kernel, device: int, defined: tuple[str, ...] = ()) -> Any:
        return Loaded(kernel, self.runtime)


class Loaded:
    """A kernel of which launches are noted."""

    def __init__(self, kernel: Kernel, runtime: FakeRuntime) -> None:
        self._kernel, self._runtime = kernel, runtime

    def fixed(self, config: Any, numbers: bytes, pointers: Sequence[int]) -> Callable[[int], None]:
        return self._runtime.kernel((self._kernel.unit, tuple(pointers)))


@dataclass
class Bound:
    """A bound call and what it is of."""

    step: Any
    given: dict[str, Any]
    """Its arguments that are arrays, by name."""
    written: list[Any]
    """The arrays that it writes."""
    family: OnGpu
    runtime: FakeRuntime

    def taken(self) -> list[tuple[Any, ...]]:
        """What a call launches."""
        return self.runtime.taken(self.step)


Bind = Callable[..., Bound]


@pytest.fixture
def bind(monkeypatch: pytest.MonkeyPatch) -> Bind:
    """Binds the smallest call of a function."""
    known = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 227 * 1024}
    monkeypatch.setattr("cuconv.runtime.machine._asked", lambda device, attribute: known[attribute])
    monkeypatch.setattr("cuconv.runtime.machine.has_one_device", lambda: False)
    runtime = FakeRuntime(monkeypatch)
    family = OnGpu(runtime)
    monkeypatch.setitem(arrays._family_of_type, torch.Tensor, family)
    _prepared.cache_clear()
    for operation in Operation.named.values():
        operation.recent = operation.known = ()

    def bound(function: str, given: bool = True) -> Bound:
        workload = next(iter(workloads(SMALL, function, dtype="float32")))
        tensors = {name: torch.from_numpy(array.copy()) for name, array in workload.host().items()}
        outs = {name: torch.zeros(out.shape) for name, out in workload.outs.items()} if given else {}
        step = cuconv.bind(getattr(cuconv, function), **workload.call(tensors, list(outs.values()) or None))
        results = [each for each in returned(step.results) if each is not None]
        written = {id(each): each for each in (*(tensors[name] for name in workload.updated), *outs.values(), *results)}
        return Bound(step, tensors | outs, list(written.values()), family, runtime)

    return bound


def returned(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


EACH_FUNCTION = pytest.mark.parametrize("function", cuconv.OPERATORS)
UPDATE = "causal_conv1d_update"


@EACH_FUNCTION
@pytest.mark.parametrize("given", [True, False], ids=["out", "new"])
def test_a_call_launches_a_graph_of_what_the_first_one_launches(function: str, given: bool, bind: Bind) -> None:
    bound = bind(function, given)
    first = bound.taken()
    assert first and {kind for kind, *_ in first} == {"kernel"} and {stream for *_, stream in first} == {7}
    assert bound.taken() == bound.taken() == [("graph", 1, 7)] and bound.runtime.made == [7]
    assert bound.step() is bound.step.results


def test_a_call_runs_on_the_stream_that_is_current(bind: Bind) -> None:
    bound = bind(UPDATE)
    bound.step()
    bound.family.current_stream = 0
    assert [(kind, stream) for kind, _, stream in bound.taken()] == [("kernel", 0)]
    assert bound.taken() == [("graph", 2, 0)]
    bound.family.current_stream = 7
    assert bound.taken() == [("graph", 1, 7)] and bound.runtime.made == [7, 0]


def test_kernels_are_launched_in_a_capture_and_beside_another_device(bind: Bind) -> None:
    bound = bind(UPDATE)
    kernels = bound.taken()
    bound.runtime.capturing.add(7)
    assert bound.taken() == kernels
    bound.runtime.capturing.clear()
    bound.runtime.device = 1
    assert bound.taken() == kernels
    bound.runtime.device = 0
    assert bound.taken() == [("graph", 1, 7)]


def test_a_dependent_launch_is_noticed(bind: Bind, monkeypatch: pytest.MonkeyPatch) -> None:
    bound, early = bind(UPDATE), []
    monkeypatch.setattr(Call, "launch_early", lambda self, pointers, stream, late: early.append((pointers, stream)))
    (kernel,) = bound.taken()
    with cuconv.dependent_launch():
        versions = [each._version for each in bound.written]
        assert bound.taken() == [] and bound.step() is bound.step.results
        assert [each._version for each in bound.written] == [version + 2 for version in versions]
    assert bound.taken() == [("graph", 1, 7)]
    _, (_, passed), _ = kernel
    assert [stream for _, stream in early] == [7, 7] and all(set(passed) <= set(pointers) for pointers, _ in early)


@EACH_FUNCTION
def test_every_tensor_that_moves_is_noticed(function: str, bind: Bind) -> None:
    bound = bind(function)
    bound.step()
    for name, tensor in bound.given.items():
        before = tensor.data
        tensor.data = tensor.clone()
        for mode in (torch.enable_grad, torch.no_grad):
            bound.runtime.launched.clear()
            with mode(), pytest.raises(ValueError, match="got an array with other memory than in bind") as raised:
                bound.step()
            assert str(raised.value).startswith(f"{name}: ") and not bound.runtime.launched
        tensor.data = before
        assert bound.taken() == [("graph", 1, 7)]


@EACH_FUNCTION
def test_every_tensor_that_autograd_would_follow_is_noticed(function: str, bind: Bind) -> None:
    bound = bind(function)
    bound.step()
    for name, tensor in bound.given.items():
        if not tensor.is_floating_point():
            continue
        tensor.requires_grad_()
        bound.runtime.launched.clear()
        versions = [each._version for each in bound.written]
        with pytest.raises(ValueError, match="got a tensor that requires grad while grad mode is on") as raised:
            bound.step()
        assert str(raised.value).startswith(f"{name}: ") and not bound.runtime.launched
        assert [each._version for each in bound.written] == versions
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert bound.taken() == [("graph", 1, 7)]
        tensor.requires_grad_(False)
        assert bound.taken() == [("graph", 1, 7)]


def test_what_autograd_follows_may_be_bound_without_grad_mode(bind: Bind) -> None:
    with torch.no_grad():
        bound = bind(UPDATE)
        bound.given["weight"].requires_grad_()
        assert bound.taken() and bound.taken() == [("graph", 1, 7)]
    with pytest.raises(ValueError, match=r"^weight: got a tensor that requires grad"):
        bound.step()


@EACH_FUNCTION
@pytest.mark.parametrize("given", [True, False], ids=["out", "new"])
def test_every_call_marks_what_it_writes_and_nothing_else(function: str, given: bool, bind: Bind) -> None:
    bound = bind(function, given)
    others = [each for each in bound.given.values() if not any(each is one for one in bound.written)]
    assert bound.written and others
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        before = [[each._version for each in part] for part in (bound.written, others)]
        with mode():
            bound.step()
        after = [[each._version for each in part] for part in (bound.written, others)]
        assert after == [[version + 1 for version in before[0]], before[1]]


def test_inference_tensors_have_no_versions_to_mark(bind: Bind) -> None:
    with torch.inference_mode():
        bound = bind(UPDATE)
    assert all(each.is_inference() for each in bound.written)
    for _ in range(2):
        assert bound.taken()


def test_contents_are_checked_in_every_call(bind: Bind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    bound = bind("causal_conv1d_varlen_fn")
    assert bound.taken() and bound.taken() == [("graph", 1, 7)]
    starts = bound.given["query_start_loc"]
    good, starts[1] = int(starts[1]), 10**6
    bound.runtime.launched.clear()
    with pytest.raises(ValueError, match=r"^query_start_loc"):
        bound.step()
    assert not bound.runtime.launched
    starts[1] = good
    assert bound.taken() == [("graph", 1, 7)]


def test_contents_are_not_read_unless_that_is_asked_for(bind: Bind, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = bind("causal_conv1d_varlen_fn")
    monkeypatch.setattr(bound.family, "to_host", lambda array: pytest.fail("contents were read"))
    bound.given["query_start_loc"][1] = 10**6
    bound.step()
    monkeypatch.setenv("CUCONV_CHECK", "1")
    bound.step()


def test_a_call_holds_its_memory_as_long_as_it_lives_and_no_longer(bind: Bind, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    maker = OnGpu._dispatched_maker

    def noted(self: OnGpu, layout: Layout) -> Callable[[], Any]:
        make = maker(self, layout)

        def make_noted() -> Any:
            array = make()
            made.append(weakref.ref(array))
            return array

        return make_noted

    monkeypatch.setattr(OnGpu, "_dispatched_maker", noted)
    bound = bind("selective_scan_bwd", given=False)
    # The results, and the scratch memory that nothing but the launches knows.
    results = {id(each) for each in returned(bound.step.results)}
    assert any(id(each()) not in results for each in made)
    held = [*made, *(weakref.ref(each) for each in bound.given.values())]
    step = bound.step
    del bound
    gc.collect()
    assert all(each() is not None for each in held)
    step()
    gc.disable()
    try:
        del step
        assert all(each() is None for each in held), "no cycle holds them"
    finally:
        gc.enable()


def test_a_bound_call_takes_no_arguments_and_says_what_it_is_of(bind: Bind) -> None:
    step = bind(UPDATE).step
    with pytest.raises(TypeError):
        step(3)
    assert f"bound {UPDATE}" in repr(step)
