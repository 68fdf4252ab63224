"""How calls behave with slices, in graphs that make their results, in threads and on a second device.

tests/families/test_fixed_calls.py has the graphs, streams, allocations and DLPack of all families' calls.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

import cuconv
from tests.causal_conv1d.cases_dense import STATES, Case
from tests.support.compare import check_values
from tests.support.gpu import LIBRARIES, CupyArrays, TorchTensors, byte_strides, to_numpy
from tests.support.placement import Placed

pytestmark = pytest.mark.gpu

CASE = Case(2, 24, 65, 4, "float32", **STATES)


class Inputs:
    """A case's input arrays on the GPU, and what comes out of them."""

    def __init__(self, library: str) -> None:
        self.module = pytest.importorskip(library)
        self._copies = CupyArrays if library == "cupy" else TorchTensors
        self._host = CASE.place_inputs()
        self.arrays = {name: self._copies.upload(placed)[1] for name, placed in self._host.items()}
        self.options = CASE.options()

    def __call__(self, **changes: Any) -> Any:
        return cuconv.causal_conv1d_fn(**{**self.arrays, **self.options, **changes})

    def empty(self, name: str) -> Any:
        """An output to be given, full of NaN."""
        return self._copies.upload(Placed(CASE.placements()[name]))[1]

    def check(self, out: Any, states: Any) -> None:
        """The results are right; waits for the device."""
        self.module.cuda.Device().synchronize() if self.module.__name__ == "cupy" else self.module.cuda.synchronize()
        written = {"out": to_numpy(out), "final_states_out": to_numpy(states)}
        check_values(CASE, {name: placed.array for name, placed in self._host.items()}, written)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_result_of_a_slice_has_no_gaps(library: str) -> None:
    inputs = Inputs(library)
    out = inputs(x=inputs.arrays["x"][:, ::2, 3:40], **only(inputs, slice(0, None, 2)))
    assert byte_strides(out) == (4 * 12 * 37, 4 * 37, 4)


def only(inputs: Inputs, channels: slice) -> dict[str, Any]:
    arrays = inputs.arrays
    states = {"initial_states": None, "return_final_states": False}
    return {"weight": arrays["weight"][channels], "bias": arrays["bias"][channels], **states}


def test_a_torch_graph_makes_its_results() -> None:
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
