"""Kernel time of the report's workloads and of every BENCH case, beside a copy of the same bytes. Numerics first."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import pytest

from cuconv.bench.machine import Machine
from cuconv.bench.measure import on_machine, our_calls
from cuconv.bench.timing import Replay, copy_time, sets_needed
from cuconv.bench.workloads import REPORT, workloads
from cuconv.runtime.workload import Workload
from tests.families.test_numerics import call, tables
from tests.support.compare import check_values
from tests.support.gpu import CupyArrays
from tests.support.placement import Array, Placed, Placement


def name_of(workload: Workload) -> str:
    """The function and what tells the workload from others."""
    return f"{workload.function}-{workload.title}"


def random_array(placement: Placement, seed: int, low: float, high: float) -> Any:
    """A CuPy array of uniform values, made on the GPU: the largest would take minutes on the host."""
    import cupy

    values = cupy.random.RandomState(seed).uniform(low, high, placement.size, dtype=cupy.float32)
    if placement.dtype.name == "bfloat16":
        # Cut off, not rounded: these are random numbers, and not every CuPy converts to bfloat16.
        buffer = (values.view(cupy.uint32) >> 16).astype(cupy.uint16)
    else:
        buffer = values.astype(placement.dtype.numpy)
    return CupyArrays.view(buffer.view(cupy.uint8), placement)


def poisoned_array(placement: Placement) -> Any:
    """A CuPy array of NaN."""
    import cupy

    return CupyArrays.view(cupy.full(placement.size * placement.dtype.itemsize, 0xFF, cupy.uint8), placement)


def arrays_on_gpu(module: ModuleType, case: Any, seed: int) -> dict[str, Any]:
    """The arrays of a call: random numbers, NaN in the outputs, and integers as they must be."""
    integers = module.integers(case, seed)
    arrays = {}
    for name, lies in module.placements(case).items():
        if name in integers:
            arrays[name] = CupyArrays.upload(Placed(lies, integers[name]))[1]
        elif name in module.OUTPUTS:
            arrays[name] = poisoned_array(lies)
        else:
            arrays[name] = random_array(lies, seed, *getattr(module, "RANGES", {}).get(name, (-1.0, 1.0)))
    return arrays


@pytest.mark.gpu
@pytest.mark.parametrize(("module", "case"), tables("BENCH"))
def test_kernel_time(benchmark: Any, report: Any, module: ModuleType, case: Any) -> None:
    nbytes = module.bytes_moved(case)
    sets = [arrays_on_gpu(module, case, seed) for seed in range(sets_needed(nbytes))]
    check_sample(module, case, sets[0])
    run(benchmark, report, [lambda arrays=arrays: call(module, case, arrays) for arrays in sets], nbytes)


@pytest.mark.gpu
@pytest.mark.parametrize("workload", [each for name in REPORT for each in workloads(REPORT, name)], ids=name_of)
def test_report_time(benchmark: Any, report: Any, workload: Workload) -> None:
    calls, differences = our_calls(on_machine(Machine(), workload))
    assert all(difference.is_right for difference in differences), differences
    run(benchmark, report, calls, workload.bytes_moved)


def run(benchmark: Any, report: Any, calls: list[Any], nbytes: int) -> None:
    """Time calls on as many sets of arrays, which are let go before the copy has its own."""
    replay = Replay(calls)
    benchmark.pedantic(replay.run, rounds=5)
    seconds = replay.seconds()
    del replay
    calls.clear()
    fraction = copy_time(nbytes) / seconds
    report(kernel_us=seconds * 1e6, gb_per_s=nbytes / seconds * 1e-9, fraction_of_copy=fraction)


def check_sample(module: ModuleType, case: Any, arrays: dict[str, Any]) -> None:
    """The call is right on a part that the oracle can do in a moment."""
    smaller, cuts = module.sample(case)

    def fetch(names: Iterable[str]) -> dict[str, Array]:
        return {name: CupyArrays.fetch(arrays[name], cuts[name]) for name in names if name in arrays}

    inputs = fetch(arrays.keys() - {*module.OUTPUTS})
    call(module, case, arrays)
    check_values(module, smaller, inputs, fetch((*module.OUTPUTS, *module.UPDATED)))
