"""Chains of calls with dependent launches give the bits that they give without."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.jit import nvrtc, source
from cuconv.runtime import arrays, dependent, machine
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.machine import assumed_device
from tests import emulator
from tests.emulator.family import EmulatedArray, EmulatedFamily
from tests.support import chains
from tests.support.discovery import op_kernels
from tests.support.gpu import CYCLES, SPIN


@pytest.mark.parametrize("seed", range(4))
def test_an_emulated_chain(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a launch reads early is what was there before the launch in front of it."""
    if (reason := emulator.available()) is not None:
        pytest.skip(reason)
    monkeypatch.setattr(machine, "has_dependent_launch", lambda device: True)
    steps = chains.chain(24, seed)
    # Of as many channels as small steps have kernels for.
    ours, theirs = (chains.arrays(8, 64, seed) for _ in range(2))
    family = arrays.family(EmulatedArray(ours["p"]))
    assert isinstance(family, EmulatedFamily)
    chains.run(steps, theirs, EmulatedArray)
    before = family.early
    with cuconv.dependent_launch():
        chains.run(steps, ours, EmulatedArray)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    # Enough of both kinds: launches that read early what the one before writes, and others.
    assert 6 <= family.early - before <= 20


def test_a_bound_call_starts_early(monkeypatch: pytest.MonkeyPatch) -> None:
    if (reason := emulator.available()) is not None:
        pytest.skip(reason)
    monkeypatch.setattr(machine, "has_dependent_launch", lambda device: True)
    given = {name: EmulatedArray(array) for name, array in chains.arrays(2, 8, 0).items()}
    family = arrays.family(given["p"])
    assert isinstance(family, EmulatedFamily)
    inputs = [given[name] for name in ("states0", "p", "q", "A", "r", "s")]
    step = cuconv.bind(cuconv.selective_state_update, *inputs, out=given["t"])
    before = family.early
    with cuconv.dependent_launch():
        step()
        # It reads the state early that the launch before has written.
        step()
        assert family.early == before
        dependent.may_overlap(assumed_device(), family.stream(0), None, ())
        step()
        assert family.early == before + 1
    step()
    assert family.early == before + 1


def test_the_kernels_of_decode_steps_start_early() -> None:
    """A name that is no pointer of a kernel, misspelt perhaps, would let what it means be read early unnoticed."""
    early = [kernel for kernel in op_kernels() if kernel.EARLY is not None and not kernel.FOLLOWS]
    pointers = {name for kernel in early for name in kernel.params.pointer_names}
    assert {name for kernel in early for name in kernel.EARLY or ()} <= pointers
    assert {kernel.unit for kernel in early} == {
        "causal_conv1d_update", "causal_conv1d_update_few", "causal_conv1d_update_gated", "causal_conv1d_update_rows",
        "causal_conv1d_update_several",
        "causal_conv1d_update_tree", "selective_state_update", "selective_state_update_single",
        "selective_state_update_decays", "selective_state_update_few",
        "selective_state_update_quantised", "selective_state_update_quantised_single",
        "selective_state_update_quantised_heads", "selective_state_update_replay",
        "selective_state_update_replay_few", "selective_state_update_fold", "selective_state_update_fold_single",
        "selective_state_update_quantised_fold", "selective_state_update_quantised_fold_single",
        "selective_state_update_commit",
    }  # fmt: skip


EARLY = [kind for kind in op_kernels() if kind.EARLY is not None and not kind.FOLLOWS]


@pytest.mark.parametrize("kind", EARLY, ids=lambda kind: kind.unit)
def test_only_kernels_that_start_early_wait(kind: type[Kernel]) -> None:
    """And these read nothing as constant: the compiler could do so before the wait."""
    kernel = next(iter(kind.variants()))
    for defined in ((), dependent.READS_FIRST, dependent.WAITS_FIRST):
        compiled = nvrtc.compile(source.load(), kernel.file, (kernel.expression,), "compute_90", defined)
        assert (b"griddepcontrol.wait" in compiled.image) is bool(defined)
        assert (b"griddepcontrol.launch_dependents" in compiled.image) is bool(defined)
        assert not defined or b"ld.global.nc" not in compiled.image


@pytest.mark.parametrize("kind", [kind for kind in op_kernels() if kind.FOLLOWS], ids=lambda kind: kind.unit)
def test_kernels_that_follow_wait(kind: type[Kernel]) -> None:
    """They have no such wait where GPUs know none, and the sum reads nothing as constant: it could do so too early."""
    kernel = next(iter(kind.variants()))
    for arch, waits in (("compute_80", False), ("compute_90", True)):
        image = nvrtc.compile(source.load(), kernel.file, (kernel.expression,), arch).image
        assert (b"griddepcontrol.wait" in image) is waits
        assert kind.unit != "causal_conv1d_bwd_sum" or b"ld.global.nc" not in image or not waits


def loaded(library: str, held: dict[str, Any]) -> dict[str, Any]:
    """Arrays on the GPU."""
    if library == "cupy":
        cupy = pytest.importorskip("cupy")
        return {name: cupy.asarray(array) for name, array in held.items()}
    torch = pytest.importorskip("torch")
    return {name: torch.from_numpy(array).cuda() for name, array in held.items()}


def fetched(held: dict[str, Any]) -> dict[str, Any]:
    return {name: array.get() if hasattr(array, "get") else array.cpu().numpy() for name, array in held.items()}


def captured(library: str, steps: list[chains.Step], held: dict[str, Any], is_early: bool) -> Any:
    """What replays a graph of a chain on the library's current stream."""
    if library == "cupy":
        cupy = pytest.importorskip("cupy")
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            record(steps, held, is_early)
            graph = stream.end_capture()
        return lambda: graph.launch(cupy.cuda.get_current_stream())
    torch = pytest.importorskip("torch")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        record(steps, held, is_early)
    return graph.replay


def record(steps: list[chains.Step], held: dict[str, Any], is_early: bool) -> None:
    with cuconv.dependent_launch() if is_early else nullcontext():
        chains.run(steps, held)


REPLAYS = 300


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["graph", "calls"])
@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize(("batch", "dim"), [(3, 8), (2, 128), (40, 128)])
@pytest.mark.parametrize("seed", range(2))
def test_a_chain(seed: int, batch: int, dim: int, library: str, way: str) -> None:
    steps, host = chains.chain(40, seed), chains.arrays(batch, dim, seed)
    results = []
    for is_early in (False, True):
        held = loaded(library, host)
        chains.run(steps, loaded(library, host))
        synchronize(library)
        again = captured(library, steps, held, is_early) if way == "graph" else partial(record, steps, held, is_early)
        for _ in range(REPLAYS if way == "graph" else REPLAYS // 10):
            again()
        synchronize(library)
        results.append(fetched(held))
    for name, wanted in results[0].items():
        np.testing.assert_array_equal(results[1][name], wanted, err_msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["graph", "calls"])
def test_a_chain_over_two_streams(way: str) -> None:
    """Each launch follows one on the other stream."""
    cupy = pytest.importorskip("cupy")
    steps, host = chains.chain(40, 5), chains.arrays(2, 128, 5)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]

    def run(held: dict[str, Any]) -> None:
        for number, step in enumerate(steps):
            with streams[number % 2] as stream:
                chains.run([step], held)
            streams[(number + 1) % 2].wait_event(stream.record())

    results = []
    for is_early in (False, True):
        held = loaded("cupy", host)
        chains.run(steps, loaded("cupy", host))
        with cuconv.dependent_launch() if is_early else nullcontext():
            chains.run(steps, loaded("cupy", host))
            synchronize("cupy")
            if way == "graph":
                streams[0].begin_capture()
                run(held)
                graph = streams[0].end_capture()
        for _ in range(30):
            if way == "graph":
                graph.launch(streams[0])
            else:
                with cuconv.dependent_launch() if is_early else nullcontext():
                    run(held)
        synchronize("cupy")
        results.append(fetched(held))
    for name, wanted in results[0].items():
        np.testing.assert_array_equal(results[1][name], wanted, err_msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("function", ["causal_conv1d_update", "selective_state_update"])
def test_inputs_may_come_from_the_preceding_kernel(function: str) -> None:
    cupy = pytest.importorskip("cupy")
    held = loaded("cupy", chains.arrays(2, 128, 0))
    given = cupy.stack([held[name] for name in "pqrst"])
    inputs, wait = cupy.empty_like(given), cupy.RawKernel(SPIN, "spin")
    expected, out = cupy.empty_like(held["p"]), cupy.empty_like(held["p"])

    def call(inputs: Any, out: Any) -> None:
        if function == "causal_conv1d_update":
            cuconv.causal_conv1d_update(inputs[0], held["windows0"], held["weight"], out=out, disable_state_update=True)
        else:
            x, dt, B, C, z = inputs
            cuconv.selective_state_update(
                held["states0"], x, dt, held["A"], B, C, z=z, dt_softplus=True, out=out, disable_state_update=True
            )

    call(given, expected)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, cuconv.dependent_launch():
        call(given, out)
        cupy.multiply(given, 1, out=inputs)
        wait((1,), (1,), (0,))
        stream.synchronize()
        stream.begin_capture()
        call(given, out)
        call(given, out)
        wait((1,), (1,), (CYCLES // 1000,))
        cupy.multiply(given, 1, out=inputs)
        call(inputs, out)
        graph = stream.end_capture()
    for _ in range(20):
        for array in (inputs, out):
            array.fill(np.nan)
        synchronize("cupy")
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(out.get(), expected.get())


def synchronize(library: str) -> None:
    module = pytest.importorskip(library)
    module.cuda.Device().synchronize() if library == "cupy" else module.cuda.synchronize()


class Edge(ctypes.Structure):
    """CUgraphEdgeData."""

    _fields_ = (("from_port", ctypes.c_ubyte), ("to_port", ctypes.c_ubyte), ("kind", ctypes.c_ubyte),
                ("reserved", ctypes.c_ubyte * 5))  # fmt: skip


PROGRAMMATIC = 1


def edges(graph: int) -> list[bool]:
    """For each edge of a graph, whether its second kernel may start before the first has ended."""
    get, count = ctypes.CDLL("libcuda.so.1").cuGraphGetEdges_v2, ctypes.c_size_t()
    assert get(ctypes.c_void_p(graph), None, None, None, ctypes.byref(count)) == 0
    ends, found = (ctypes.c_void_p * count.value)(), (Edge * count.value)()
    assert get(ctypes.c_void_p(graph), ends, (ctypes.c_void_p * count.value)(), found, ctypes.byref(count)) == 0
    return [edge.kind == PROGRAMMATIC for edge in found]


@pytest.mark.gpu
def test_edges_of_a_graph_are_programmatic_where_that_is_right() -> None:
    cupy = pytest.importorskip("cupy")
    if not machine.has_dependent_launch(0):
        pytest.skip("this GPU has no dependent launches")
    held = loaded("cupy", chains.arrays(3, 8, 0))

    def update(x: str, states: str, out: str) -> None:
        rest = [held[name] for name in ("p", "A", "p", "p")]
        cuconv.selective_state_update(held[states], held[x], *rest, out=held[out])

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        with cuconv.dependent_launch():
            update("q", "states0", "r")
            stream.synchronize()
            stream.begin_capture()
            update("q", "states0", "r")
            update("r", "states1", "s")
            update("s", "states1", "t")
            update("t", "states0", "u")
        update("u", "states1", "q")
        graph = stream.end_capture()
    # The third reads the states that the second writes, and the last is outside of the context.
    assert sorted(edges(graph.graph)) == [False, False, True, True]


@pytest.mark.gpu
def test_sums_of_parameters_start_early_in_graphs() -> None:
    """No context asks for it, because both kernels are those of one call."""
    cupy = pytest.importorskip("cupy")
    if not machine.has_dependent_launch(0):
        pytest.skip("this GPU has no dependent launches")
    x, dout, weight = cupy.ones((1, 64, 512)), cupy.ones((1, 64, 512)), cupy.ones((64, 4))
    given = [each.astype(np.float32) for each in (x.transpose(0, 2, 1).copy().transpose(0, 2, 1), weight)]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(2):
            cuconv.causal_conv1d_bwd(*given, None, dout.astype(np.float32))
        stream.synchronize()
        stream.begin_capture()
        for _ in range(2):
            cuconv.causal_conv1d_bwd(*given, None, given[0])
        graph = stream.end_capture()
    assert edges(graph.graph) == [True, False, True]
