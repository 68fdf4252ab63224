"""How a call behaves towards the library that its arrays come from: kind, device, memory, stream, graph, thread."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cuconv
from tests.causal_conv1d import cases_dense as table
from tests.causal_conv1d.cases_dense import STATES, Case
from tests.support.compare import check_values
from tests.support.gpu import CYCLES, LIBRARIES, SPIN, CupyArrays, Foreign, TorchTensors, byte_strides, to_numpy
from tests.support.placement import Placed

pytestmark = pytest.mark.gpu

CASE = Case(2, 24, 65, 4, "float32", **STATES)
LAST = Case(2, 24, 65, 4, "float32", layout="channel_last", **STATES)


class Inputs:
    """A case's input arrays on the GPU, and what comes out of them."""

    def __init__(self, library: str, case: Case = CASE) -> None:
        self.module = pytest.importorskip(library)
        self._copies = CupyArrays if library == "cupy" else TorchTensors
        self._case = case
        self._host = table.place_inputs(case)
        self.arrays = {name: self._copies.upload(placed)[1] for name, placed in self._host.items()}
        self.options = table.options(case)

    def __call__(self, **changes: Any) -> Any:
        return cuconv.causal_conv1d_fn(**{**self.arrays, **self.options, **changes})

    def empty(self, name: str) -> Any:
        """An output to be given, full of NaN."""
        return self._copies.upload(Placed(table.placements(self._case)[name]))[1]

    def check(self, out: Any, states: Any = None) -> None:
        """The results are right; waits for the device."""
        self.module.cuda.Device().synchronize() if self.module.__name__ == "cupy" else self.module.cuda.synchronize()
        case = self._case if states is not None else replace(self._case, final=False)
        results = {"out": out} if states is None else {"out": out, "final_states_out": states}
        written = {name: to_numpy(result) for name, result in results.items()}
        check_values(table, case, {name: placed.array for name, placed in self._host.items()}, written)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("case", [CASE, LAST], ids=["channel_first", "channel_last"])
def test_results_are_new_arrays_of_the_callers_kind(library: str, case: Case) -> None:
    inputs = Inputs(library, case)
    x = inputs.arrays["x"]
    out, states = inputs()
    inputs.check(out, states)
    for result, shape in ((out, (2, 24, 65)), (states, (2, 24, 3))):
        assert type(result) is type(x) and result.dtype == x.dtype and result.device == x.device
        assert tuple(result.shape) == shape
    wanted = (4 * 24 * 65, 4, 4 * 24) if case is LAST else (4 * 24 * 65, 4 * 65, 4)
    assert byte_strides(out) == wanted
    wanted = (4 * 24 * 3, 4, 4 * 24) if case is LAST else (4 * 24 * 3, 4 * 3, 4)
    assert byte_strides(states) == wanted


@pytest.mark.parametrize("library", LIBRARIES)
def test_given_outputs_are_written_and_returned(library: str) -> None:
    inputs = Inputs(library)
    out, states = inputs.empty("out"), inputs.empty("final_states_out")
    results = inputs(out=out, final_states_out=states)
    assert results[0] is out and results[1] is states
    inputs.check(out, states)
    alone = inputs.empty("out")
    assert inputs(out=alone, initial_states=inputs.arrays["initial_states"], return_final_states=False) is alone
    inputs.check(alone)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_result_of_a_slice_has_no_gaps(library: str) -> None:
    inputs = Inputs(library)
    out = inputs(x=inputs.arrays["x"][:, ::2, 3:40], **only(inputs, slice(0, None, 2)))
    assert byte_strides(out) == (4 * 12 * 37, 4 * 37, 4)


def only(inputs: Inputs, channels: slice) -> dict[str, Any]:
    arrays = inputs.arrays
    states = {"initial_states": None, "return_final_states": False}
    return {"weight": arrays["weight"][channels], "bias": arrays["bias"][channels], **states}


def test_torch_stream() -> None:
    torch = pytest.importorskip("torch")
    inputs = Inputs("torch")
    inputs()  # loads the kernel
    late = {name: torch.zeros_like(array) for name, array in inputs.arrays.items()}
    torch.cuda.synchronize()
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        for name, array in inputs.arrays.items():
            late[name].copy_(array)
        out, states = inputs(**late)
        done.record(side)
    assert not done.query(), "the call waited for the device"
    done.synchronize()
    inputs.check(out, states)


def test_cupy_stream() -> None:
    cupy = pytest.importorskip("cupy")
    inputs = Inputs("cupy")
    inputs()
    spin = cupy.RawKernel(SPIN, "spin")
    spin((1,), (1,), (np.int64(1),))
    late = {name: cupy.zeros_like(array) for name, array in inputs.arrays.items()}
    cupy.cuda.Device().synchronize()
    side, done = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)
    with side:
        spin((1,), (1,), (np.int64(CYCLES),))
        for name, array in inputs.arrays.items():
            late[name][...] = array
        out, states = inputs(**late)
        done.record(side)
    assert not done.done, "the call waited for the device"
    done.synchronize()
    inputs.check(out, states)


def test_torch_graph() -> None:
    torch = pytest.importorskip("torch")
    inputs = Inputs("torch")
    inputs()
    fixed = {name: torch.zeros_like(array) for name, array in inputs.arrays.items()}
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, states = inputs(**fixed)
    out.fill_(float("nan"))
    for name, array in inputs.arrays.items():
        fixed[name].copy_(array)
    graph.replay()
    inputs.check(out, states)


def test_cupy_graph() -> None:
    cupy = pytest.importorskip("cupy")
    inputs = Inputs("cupy")
    out, states = inputs()
    fixed = {name: cupy.zeros_like(array) for name, array in inputs.arrays.items()}
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        inputs(**fixed, out=out, final_states_out=states)
        graph = stream.end_capture()
        out.fill(np.nan)
        for name, array in inputs.arrays.items():
            fixed[name][...] = array
        graph.launch(stream)
    inputs.check(out, states)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_fresh_thread_may_call(library: str) -> None:
    inputs = Inputs(library)
    inputs()  # so that the thread itself does nothing that makes a context current
    out, states = inputs.empty("out"), inputs.empty("final_states_out")
    inputs.module.cuda.Device().synchronize() if library == "cupy" else inputs.module.cuda.synchronize()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            inputs(out=out, final_states_out=states)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not raised, raised
    inputs.check(out, states)


def test_many_threads_may_call_at_once() -> None:
    inputs = Inputs("cupy")
    results: list[Any] = []

    def work() -> None:
        for _ in range(50):
            results.append(inputs())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 400
    for out, states in results[::20]:
        inputs.check(out, states)


@pytest.mark.parametrize("name", ["x", "weight", "bias", "initial_states"])
def test_a_tensor_that_requires_grad_is_refused(name: str) -> None:
    torch = pytest.importorskip("torch")
    inputs = Inputs("torch")
    wanted = (
        f"{name}: got a tensor that requires grad while grad mode is on; "
        "wanted torch.no_grad() or a detached tensor: there is no backward"
    )
    tracked = inputs.arrays[name].clone().requires_grad_()
    with pytest.raises(ValueError) as caught:
        inputs(**{name: tracked})
    assert str(caught.value) == wanted
    with torch.no_grad():
        inputs.check(*inputs(**{name: tracked}))
    inputs.check(*inputs(**{name: tracked.detach()}))


def test_dlpack_arrays_are_taken() -> None:
    cupy = pytest.importorskip("cupy")
    inputs = Inputs("cupy")
    foreign: dict[str, Any] = {name: Foreign(array) for name, array in inputs.arrays.items()}
    out, states = inputs(**foreign)
    assert isinstance(out, cupy.ndarray) and isinstance(states, cupy.ndarray)
    inputs.check(out, states)
    given = inputs.empty("out")
    wrapped = Foreign(given)
    assert inputs(**foreign, out=wrapped)[0] is wrapped
    inputs.check(given)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_second_device(library: str) -> None:
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one CUDA device")
    with cupy.cuda.Device(1):
        second = Inputs(library) if library == "cupy" else None
    if second is None:
        second = Inputs(library)
        second.arrays = {name: array.to("cuda:1") for name, array in second.arrays.items()}
    first = Inputs(library)
    out, states = second()
    assert out.device == second.arrays["x"].device != first.arrays["x"].device
    assert cupy.cuda.runtime.getDevice() == 0
    second.check(out, states)
    first.check(*first())
    with pytest.raises(ValueError) as caught:
        first(weight=second.arrays["weight"])
    assert str(caught.value) == "weight: got an array on CUDA device 1; wanted an array on CUDA device 0, where x is"
