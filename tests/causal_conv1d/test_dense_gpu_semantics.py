"""How calls behave with slices, in graphs that make their results, in threads and on a second device.

tests/families/test_fixed_calls.py has the graphs, streams, allocations and DLPack of all families' calls.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

import cuconv
from tests.causal_conv1d.cases_dense import STATES, Case
from tests.support.fixed_calls import Fixed
from tests.support.gpu import LIBRARIES, byte_strides

pytestmark = pytest.mark.gpu

CASE = Case(2, 24, 65, 4, "float32", **STATES)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_result_of_a_slice_has_no_gaps(library: str) -> None:
    arrays = Fixed(library, CASE).arrays
    out = cuconv.causal_conv1d_fn(arrays["x"][:, ::2, 3:40], arrays["weight"][::2], arrays["bias"][::2])
    assert byte_strides(out) == (4 * 12 * 37, 4 * 37, 4)


def assert_alike(fixed: Fixed, results: Any) -> None:
    """New results are what the call has written to its own arrays, bit for bit."""
    for name, result in zip(Case.OUTPUTS, results, strict=True):
        assert bool((result == fixed.arrays[name]).all())


def test_a_torch_graph_makes_its_results() -> None:
    torch = pytest.importorskip("torch")
    fixed = Fixed("torch", CASE)
    fixed()
    fixed.wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = fixed(with_outputs=False)
    for result in results:
        result.fill_(float("nan"))
    fixed.take(Fixed("torch", replace(CASE, scale=2.0)))
    graph.replay()
    fixed()
    fixed.check()
    assert_alike(fixed, results)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_fresh_thread_may_call(library: str) -> None:
    early, late = Fixed(library, CASE), Fixed(library, CASE)
    early()  # so that the thread itself does nothing that makes a context current
    early.wait()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            late()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not raised, raised
    late.check()


def test_many_threads_may_call_at_once() -> None:
    fixed = Fixed("cupy", CASE)
    results: list[Any] = []

    def work() -> None:
        for _ in range(50):
            results.append(fixed(with_outputs=False))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fixed()
    fixed.check()
    assert len(results) == 400
    for each in results[::20]:
        assert_alike(fixed, each)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_second_device(library: str) -> None:
    cupy, module = pytest.importorskip("cupy"), pytest.importorskip(library)
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one CUDA device")
    on_second = cupy.cuda.Device if library == "cupy" else module.cuda.device
    with on_second(1):
        second = Fixed(library, CASE)
    first = Fixed(library, CASE)
    out, _ = second(with_outputs=False)
    assert out.device == second.arrays["x"].device != first.arrays["x"].device
    second()
    assert cupy.cuda.runtime.getDevice() == 0
    with on_second(1):
        second.check()
    first()
    first.check()
    with pytest.raises(ValueError) as caught:
        first(weight=second.arrays["weight"])
    assert str(caught.value) == "weight: got an array on CUDA device 1; wanted an array on CUDA device 0, where x is"
