"""How calls of all families behave on a GPU: graphs, streams, allocations, new arrays, autograd, DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.fixed_calls import CALLS, LOUD, SCAN, Fixed, varied
from tests.support.foreign import Foreign
from tests.support.gpu import CYCLES, LIBRARIES, SPIN, byte_strides, to_numpy

pytestmark = pytest.mark.gpu

EACH_CALL = pytest.mark.parametrize("similar", CALLS.values(), ids=CALLS)
SEGMENTS = varied("selective_scan_fn", 1, 24, 2048, changes=LOUD, **SCAN)
"""A scan of several launches, with memory between them."""
ALSO_OF_SEGMENTS = pytest.mark.parametrize("similar", [*CALLS.values(), SEGMENTS], ids=[*CALLS, "scan_segments"])
EACH_LIBRARY = pytest.mark.parametrize("library", LIBRARIES)


@EACH_CALL
def test_a_cupy_graph_is_replayed_with_other_sequences(similar: list[Any]) -> None:
    cupy = pytest.importorskip("cupy")
    fixed = Fixed("cupy", similar[0])
    fixed()  # loads the kernel
    fixed.wait()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        fixed()
        graph = stream.end_capture()
        for case in (*similar, similar[0]):
            fixed.take(Fixed("cupy", case))
            graph.launch(stream)
            fixed.check()


@ALSO_OF_SEGMENTS
def test_a_torch_graph_is_replayed_with_other_sequences(similar: list[Any]) -> None:
    torch = pytest.importorskip("torch")
    fixed = Fixed("torch", similar[0])
    fixed()
    fixed.wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fixed()
    for case in (*similar, similar[0]):
        fixed.take(Fixed("torch", case))
        # Free memory is overwritten between the replays.
        torch.full((2**22,), float("nan"), device="cuda")
        graph.replay()
        fixed.check()


@ALSO_OF_SEGMENTS
def test_the_callers_cupy_stream_is_used_and_nothing_is_awaited(similar: list[Any]) -> None:
    """A call runs behind what is already on CuPy's current stream, and does not wait for it."""
    cupy = pytest.importorskip("cupy")
    fixed = Fixed("cupy", similar[0])
    fixed()
    spin = cupy.RawKernel(SPIN, "spin")
    spin((1,), (1,), (np.int64(1),))
    late = Fixed("cupy", similar[1])
    fixed.wait()
    side, done = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)
    with side:
        spin((1,), (1,), (np.int64(CYCLES),))
        fixed.take(late)
        fixed()
        done.record(side)
    assert not done.done, "the call waited for the device"
    done.synchronize()
    fixed.check()


@EACH_CALL
def test_the_callers_torch_stream_is_used_and_nothing_is_awaited(similar: list[Any]) -> None:
    torch = pytest.importorskip("torch")
    fixed, late = (Fixed("torch", case) for case in similar[:2])
    fixed()
    fixed.wait()
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        fixed.take(late)
        fixed()
        done.record(side)
    assert not done.query(), "the call waited for the device"
    done.synchronize()
    fixed.check()


@EACH_CALL
def test_nothing_is_allocated_when_outputs_are_given(similar: list[Any]) -> None:
    torch = pytest.importorskip("torch")
    fixed = Fixed("torch", similar[0])
    fixed()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    fixed()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@EACH_CALL
def test_no_cupy_memory_is_allocated_when_outputs_are_given(similar: list[Any]) -> None:
    cupy = pytest.importorskip("cupy")
    fixed = Fixed("cupy", similar[0])
    fixed()
    asked_for: list[int] = []

    class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc, name-defined]
        name = "asked for"

        def malloc_preprocess(self, **kwargs: Any) -> None:
            asked_for.append(kwargs["size"])

    with Hook():
        fixed()
    assert not asked_for


@ALSO_OF_SEGMENTS
@EACH_LIBRARY
def test_results_are_new_arrays_of_the_callers_kind(library: str, similar: list[Any]) -> None:
    fixed = Fixed(library, similar[0])
    x = fixed.arrays["u" if "u" in fixed.arrays else "x"]
    fixed()
    updated = {name: fixed.arrays[name] for name in similar[0].UPDATED if name in fixed.arrays}
    again = Fixed(library, similar[0])
    results = again(with_outputs=False)
    returned = results if isinstance(results, tuple) else (results,)
    given = [array for name, array in fixed.arrays.items() if name in similar[0].OUTPUTS]
    assert len(returned) == len(given)
    for result, wanted in zip(returned, given, strict=True):
        assert type(result) is type(x) and result.dtype == x.dtype and result.device == x.device
        assert tuple(result.shape) == tuple(wanted.shape) and bool((result == wanted).all())
    assert all(to_numpy(again.arrays[name]).tobytes() == to_numpy(array).tobytes() for name, array in updated.items())


@EACH_LIBRARY
@pytest.mark.parametrize(
    ("call", "strides"),
    [
        ("rows", [(24 * 65, 65, 1), (24 * 3, 3, 1)]),
        ("columns", [(24 * 65, 1, 24), (24 * 3, 1, 24)]),
        ("channels", [(1, 24)]),
        ("tokens", [(65, 1)]),
        ("split", [(1, 16), (1, 5), (1, 3)]),
        ("qkv", [(65 * 8, 8, 8, 1), (65 * 8, 8, 8, 1), (65 * 8, 8, 4, 1)]),
        ("states", [(24 * 4, 1, 24)]),
        ("step", [(24, 1)]),
        ("ring", [(24 * 3, 1, 24)]),
        ("step_split", [(16, 1), (5, 1), (3, 1)]),
        ("step_qkv", [(3 * 8, 8, 8, 1), (3 * 8, 8, 8, 1), (3 * 8, 8, 4, 1)]),
        ("scan", [(24 * 65, 65, 1), (24 * 16, 16, 1)]),
        ("scan_packed", [(65, 1)]),
        ("ssm", [(24, 1)]),
        ("ssm_tokens", [(3 * 24, 24, 6, 1)]),
        ("ssm_packed", [(24, 6, 1)]),
    ],
)
def test_new_arrays_have_no_gaps(library: str, call: str, strides: list[tuple[int, ...]]) -> None:
    similar = CALLS[call]
    fixed = Fixed(library, similar[0])
    results = fixed(with_outputs=False)
    returned = results if isinstance(results, tuple) else (results,)
    assert [byte_strides(result) for result in returned] == [tuple(4 * n for n in each) for each in strides]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        *[("rows", name) for name in ("x", "weight", "bias", "initial_states")],
        *[("channels", name) for name in ("x", "weight", "bias", "conv_states")],
        *[("ring", name) for name in ("x", "weight", "bias", "conv_state", "intermediate_conv_window")],
        *[("scan", name) for name in ("u", "A", "B", "D", "initial_state")],
        *[("scan_packed", name) for name in ("u", "ssm_states", "z")],
        *[("ssm_tokens", name) for name in ("x", "state", "A", "D", "intermediate_states_buffer")],
    ],
)
def test_a_tensor_that_requires_grad_is_refused_with_outputs_and_states(call: str, name: str) -> None:
    torch = pytest.importorskip("torch")
    similar = CALLS[call]
    fixed = Fixed("torch", similar[0])
    tracked = fixed.arrays[name].detach().requires_grad_()
    with pytest.raises(ValueError) as caught:
        fixed(**{name: tracked})
    if call in ("ring", "ssm_tokens"):
        assert str(caught.value) == (
            f"{name}: got a tensor that requires grad while grad mode is on; "
            "wanted torch.no_grad() or a detached tensor: there is no backward"
        )
    else:
        assert str(caught.value) == (
            "out: got a tensor while another argument requires grad; "
            "wanted None: autograd follows only what a call returns"
        )
    with torch.no_grad():
        fixed(**{name: tracked})
    fixed.check()


def test_dlpack_arrays_are_taken_and_their_pool_is_updated() -> None:
    cupy = pytest.importorskip("cupy")
    calls = ("rows", "channels", "split", "normalised", "step", "ring", "step_split", "step_qkv", "scan", "scan_packed")
    for call in (*calls, "ssm", "ssm_tokens", "ssm_accepted", "ssm_rounded", "ssm_packed"):
        similar = CALLS[call]
        fixed = Fixed("cupy", similar[0])
        foreign = {name: Foreign(array) for name, array in fixed.arrays.items()}
        results = similar[0].call(foreign)
        outs = [foreign[name] for name in similar[0].OUTPUTS if name in foreign]
        assert list(results if isinstance(results, tuple) else (results,)) == outs
        fixed.check()
        inputs = {name: array for name, array in foreign.items() if name not in similar[0].OUTPUTS}
        new = similar[0].call(inputs)
        assert all(isinstance(array, cupy.ndarray) for array in (new if isinstance(new, tuple) else (new,)))
