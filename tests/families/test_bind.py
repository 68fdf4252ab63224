"""Calls prepared by `cuconv.bind`: each gives what the function gives then, whatever the arrays hold."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import cuconv
from cuconv.bench import device
from cuconv.bench.makers import MAKERS
from cuconv.bench.workloads import SMALL, workloads
from cuconv.runtime.workload import Workload
from tests import emulator
from tests.emulator.family import EmulatedArray
from tests.support.foreign import StandardForeign

Array = np.ndarray[Any, Any]


class Library(NamedTuple):
    """How NumPy arrays become those of a library, in memory of their own, and what these hold."""

    upload: Callable[[Array], Any]
    fetch: Callable[[Any], Array]


def torch_cpu(array: Array) -> Any:
    return pytest.importorskip("torch").from_numpy(array.copy())


def torch_gpu(array: Array) -> Any:
    return pytest.importorskip("torch").from_numpy(array).cuda()


LIBRARIES = {
    "numpy": Library(np.copy, np.copy),
    "foreign": Library(lambda array: StandardForeign(array.copy()), lambda array: array.array.copy()),
    "torch-cpu": Library(torch_cpu, lambda array: array.numpy().copy()),
    "emulated": Library(lambda array: EmulatedArray(array.copy()), lambda array: array.array.copy()),
    # Changing an array in place is no good where several elements are one.
    "cupy": Library(lambda array: device.upload(np.ascontiguousarray(array)), device.fetch),
    "torch": Library(torch_gpu, lambda array: array.cpu().numpy()),
}
EMULATED: dict[str, dict[str, int]] = {
    "causal_conv1d_bwd": {"batch": 2, "dim": 12, "seqlen": 300},
    "causal_conv1d_update_qkv_split": {},
    "selective_scan_fn": {"batch": 1, "dim": 12, "seqlen": 514},
    "selective_scan_bwd": {"batch": 1, "dim": 12, "seqlen": 260},
    "selective_state_update": {},
}
"""Functions with several launches and results, scratch memory, and arrays that are updated: to build all takes minutes.
By function: the sizes that are smaller in the emulator, with the same kernels.
"""

EVERYWHERE = [
    pytest.param(function, library, marks=pytest.mark.gpu if library in ("cupy", "torch") else ())
    for library in LIBRARIES
    for function in (EMULATED if library == "emulated" else cuconv.OPERATORS)
]


def small(function: str, library: str = "") -> Workload:
    workload = next(iter(workloads(SMALL, function, dtype="float32")))
    return MAKERS[function](**{**workload.sizes, **EMULATED[function]}) if library == "emulated" else workload


def halve(array: Any) -> None:
    """Change what an array of numbers holds, in place."""
    memory = getattr(array, "array", array)
    if "float" in str(memory.dtype):
        memory *= 0.5


def returned(results: Any) -> list[Any]:
    return [each for each in (results if isinstance(results, tuple) else (results,)) if each is not None]


@pytest.mark.parametrize(("function", "library"), EVERYWHERE)
def test_a_bound_call_does_what_the_function_does_then(function: str, library: str) -> None:
    if library == "emulated" and (reason := emulator.available()) is not None:
        pytest.skip(reason)
    upload, fetch = LIBRARIES[library]
    workload = small(function, library)
    ours, theirs = ({name: upload(array) for name, array in workload.host().items()} for _ in range(2))
    step = cuconv.bind(getattr(cuconv, function), **workload.call(ours))
    for name in workload.updated:
        np.testing.assert_array_equal(fetch(ours[name]), fetch(theirs[name]))
    before = None
    for _ in range(3):
        got, wanted = returned(step()), returned(getattr(cuconv, function)(**workload.call(theirs)))
        for one, other in zip(got, wanted, strict=True):
            assert type(one) is type(other)
            np.testing.assert_array_equal(fetch(one), fetch(other))
        for name in workload.updated:
            np.testing.assert_array_equal(fetch(ours[name]), fetch(theirs[name]))
        assert before is None or all(one is other for one, other in zip(got, before, strict=True))
        before = got
        for arrays in (ours, theirs):
            for array in arrays.values():
                halve(array)


@pytest.mark.parametrize("function", cuconv.OPERATORS)
def test_results_that_are_given_are_written_and_returned(function: str) -> None:
    workload = small(function)
    arrays, outs = workload.host(), [np.full(out.shape, np.nan, np.float32) for out in workload.outs.values()]
    step = cuconv.bind(getattr(cuconv, function), **workload.call(arrays, outs))
    assert all(np.isnan(out).all() for out in outs)
    assert all(one is other for one, other in zip(returned(step()), outs, strict=True))
    for out, wanted in zip(outs, returned(getattr(cuconv, function)(**workload.call(workload.host()))), strict=True):
        np.testing.assert_array_equal(out, wanted)


def test_results_may_go_over_an_argument_as_in_the_function() -> None:
    x, weight = np.ones((3, 8), np.float32), np.ones((3, 4), np.float32)
    wanted = cuconv.causal_conv1d_varlen_fn(x, weight)
    step = cuconv.bind(cuconv.causal_conv1d_varlen_fn, x, weight, out=x)
    assert step() is x
    np.testing.assert_array_equal(x, wanted)


def convolution() -> tuple[Array, Array]:
    return np.ones((2, 3, 8), np.float32), np.ones((3, 4), np.float32)


def test_what_the_function_refuses_is_refused_at_once() -> None:
    x, weight = convolution()
    with pytest.raises(ValueError, match=r"^weight: got shape"):
        cuconv.bind(cuconv.causal_conv1d_fn, x, weight[:2])
    with pytest.raises(ValueError, match=r"^activation: got 'relu'"):
        cuconv.bind(cuconv.causal_conv1d_fn, x, weight, activation="relu")
    with pytest.raises(TypeError, match=r"^weight: got a NumPy array; wanted a emulated|wanted an emulated"):
        cuconv.bind(cuconv.causal_conv1d_fn, EmulatedArray(x), weight)
    with pytest.raises(TypeError, match=r"^x: got a int; wanted"):
        cuconv.bind(cuconv.causal_conv1d_fn, 3, weight)
    state, rows = np.ones((2, 8, 4), np.float32), np.ones((2, 8), np.float32)
    with pytest.raises(TypeError, match=r"^x: got None; wanted an array"):
        cuconv.bind(cuconv.selective_state_update, state, None, rows, state[0], rows[:, :4], rows[:, :4])
    with pytest.raises(ValueError, match="overlaps x"):
        cuconv.bind(cuconv.causal_conv1d_fn, x, weight, out=x)


@pytest.mark.parametrize(
    "function", [np.add, print, None, "causal_conv1d_fn", cuconv.bind], ids=["ufunc", "print", "none", "name", "bind"]
)
def test_only_functions_of_cuconv_can_be_bound(function: Any) -> None:
    with pytest.raises(TypeError, match=r"^function: got .*; wanted a function of cuconv that takes arrays$"):
        cuconv.bind(function, *convolution())


def test_contents_are_checked_in_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = np.ones((3, 8), np.float32), np.ones((3, 4), np.float32)
    starts = np.array([0, 3, 8], np.int32)
    monkeypatch.setenv("CUCONV_CHECK", "1")
    step = cuconv.bind(cuconv.causal_conv1d_varlen_fn, x, weight, None, None, starts)
    step()
    starts[1] = 9
    with pytest.raises(ValueError, match=r"^query_start_loc"):
        step()
    with pytest.raises(ValueError, match=r"^query_start_loc"):
        cuconv.bind(cuconv.causal_conv1d_varlen_fn, x, weight, None, None, starts)


def test_a_call_keeps_its_arrays() -> None:
    def bound() -> Any:
        x, weight = convolution()
        return cuconv.bind(cuconv.causal_conv1d_fn, x, weight)

    step = bound()
    spoiled = [np.full((2, 3, 8), np.nan, np.float32) for _ in range(50)]
    np.testing.assert_array_equal(step(), cuconv.causal_conv1d_fn(*convolution()))
    assert len(spoiled) == 50


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def tensors(device: str) -> tuple[Any, ...]:
    torch = pytest.importorskip("torch")
    return torch, torch.ones(2, 3, 8, device=device), torch.ones(3, 4, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("move", ["resize_", "set_", "data"])
def test_tensors_with_other_memory_are_noticed(move: str, device: str) -> None:
    torch, x, weight = tensors(device)
    step = cuconv.bind(cuconv.causal_conv1d_fn, x, weight)
    if device == "cuda":
        # Where it is not the first call. Memory that NumPy has seen, as in a call on the CPU, cannot be resized.
        step()
        step()
    other = torch.ones(2, 3, 8, device=device)
    if move == "resize_":
        x.resize_(200, 300, 8)
    elif move == "set_":
        x.set_(other)
    else:
        x.data = other
    with pytest.raises(ValueError, match=r"^x: got an array with other memory than in bind; wanted"):
        step()


@pytest.mark.parametrize("device", DEVICES)
def test_what_autograd_would_have_to_follow_is_refused(device: str) -> None:
    torch, x, weight = tensors(device)
    weight.requires_grad_()
    refused = r"^weight: got a tensor that requires grad while grad mode is on; wanted torch.no_grad\(\) or"
    with pytest.raises(ValueError, match=refused):
        cuconv.bind(cuconv.causal_conv1d_fn, x, weight)
    with torch.no_grad():
        step = cuconv.bind(cuconv.causal_conv1d_fn, x, weight)
        wanted = step().clone()
    step.results.zero_()
    with pytest.raises(ValueError, match=refused):
        step()
    assert not step.results.any()
    with torch.no_grad():
        assert torch.equal(step(), wanted)
    weight.requires_grad_(False)
    assert torch.equal(step(), wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["enable_grad", "no_grad", "inference_mode"])
def test_autograd_notices_what_a_call_writes(mode: str, device: str) -> None:
    torch, x, weight = tensors(device)
    state, factor = torch.zeros(2, 3, 4, device=device), torch.ones(2, 3, device=device, requires_grad=True)
    step = cuconv.bind(cuconv.causal_conv1d_update, x[:, :, 0].contiguous(), state, weight)
    out = step()
    for written in (out, state[..., 0]):
        product = written * factor
        with getattr(torch, mode)():
            step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


@pytest.mark.gpu
def test_a_call_runs_on_the_stream_that_is_current() -> None:
    cupy = pytest.importorskip("cupy")
    x, weight = map(cupy.asarray, convolution())
    step = cuconv.bind(cuconv.causal_conv1d_fn, x, weight)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        step()
        graph = stream.end_capture()
    step.results[...] = 0
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(step.results), cuconv.causal_conv1d_fn(*convolution()))


@pytest.mark.gpu
def test_a_call_runs_on_the_stream_of_torch_that_is_current() -> None:
    torch, x, weight = tensors("cuda")
    step = cuconv.bind(cuconv.causal_conv1d_fn, x, weight)
    wanted = step().clone()
    other, *streams = torch.cuda.Stream(), torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
    for stream in streams * 3:
        with torch.cuda.stream(stream):
            step()
            torch.cuda.synchronize()
            step.results.zero_()
            torch.cuda.synchronize()
            torch.cuda._sleep(100_000_000)
            step()
            ended = stream.record_event()
        with torch.cuda.stream(other):
            # The call waits for what is in front of it on its stream.
            assert not step.results.cpu().any() and not ended.query()
        torch.cuda.synchronize()
        assert torch.equal(step.results, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("is_default", [True, False])
def test_threads_may_repeat_a_call_on_one_stream(is_default: bool) -> None:
    torch, x, weight = tensors("cuda")
    step = cuconv.bind(cuconv.causal_conv1d_fn, x, weight)
    wanted = step().clone()
    torch.cuda.synchronize()
    stream = torch.cuda.default_stream() if is_default else torch.cuda.Stream()

    def work(_: int) -> bool:
        with torch.cuda.stream(stream):
            results = [step() for _ in range(300)]
            stream.synchronize()
            return all(each is results[0] for each in results) and torch.equal(results[0], wanted)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


@pytest.mark.gpu
def test_a_call_runs_beside_a_capture() -> None:
    """The default stream is not the one that is captured."""
    torch, x, weight = tensors("cuda")
    step = cuconv.bind(cuconv.causal_conv1d_fn, x, weight)
    wanted = step().clone()
    captured, default = torch.zeros(4, device="cuda"), torch.cuda.current_stream()
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        step.results.zero_()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured += 1
            with torch.cuda.stream(default):
                step()
        torch.cuda.synchronize()
        assert torch.equal(step.results, wanted)
        graph.replay()
    torch.cuda.synchronize()
    assert captured.tolist() == [2.0] * 4


@pytest.mark.gpu
@pytest.mark.parametrize("function", EMULATED)
def test_a_graph_of_torch_repeats_a_bound_call(function: str) -> None:
    torch = pytest.importorskip("torch")
    workload = small(function)
    ours, theirs = ({name: torch_gpu(array) for name, array in workload.host().items()} for _ in range(2))
    step = cuconv.bind(getattr(cuconv, function), **workload.call(ours))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(2):
        graph.replay()
        wanted = returned(getattr(cuconv, function)(**workload.call(theirs)))
        for one, other in zip(returned(step.results), wanted, strict=True):
            assert torch.equal(one, other)
        for arrays in (ours, theirs):
            for array in arrays.values():
                halve(array)
