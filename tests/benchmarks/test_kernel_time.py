"""Kernel time of every BENCH case, as a fraction of a copy of the same bytes. Numerics first."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from cuconv.timing import Replay, copy_time, sets_needed
from tests.compare import assert_close
from tests.gpu import CupyArrays
from tests.placement import Placement
from tests.test_numerics import call, tables


def random_array(placement: Placement, seed: int) -> Any:
    """A CuPy array of uniform values from -1 to 1, made on the GPU: the largest would take minutes on the host."""
    import cupy

    values = cupy.random.RandomState(seed).uniform(-1, 1, placement.size, dtype=cupy.float32)
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


@pytest.mark.gpu
@pytest.mark.parametrize(("module", "case"), tables("BENCH"))
def test_kernel_time(benchmark: Any, report: Any, module: ModuleType, case: Any) -> None:
    nbytes = module.bytes_moved(case)
    placements = module.placements(case)
    sets = [
        {
            name: poisoned_array(lies) if name in module.OUTPUTS else random_array(lies, seed)
            for name, lies in placements.items()
        }
        for seed in range(sets_needed(nbytes))
    ]
    check_sample(module, case, sets[0])
    replay = Replay([lambda arrays=arrays: call(module, case, arrays) for arrays in sets])
    benchmark.pedantic(replay.run, rounds=5)
    seconds = replay.seconds()
    del replay, sets
    fraction = copy_time(nbytes) / seconds
    report(kernel_us=seconds * 1e6, gb_per_s=nbytes / seconds * 1e-9, fraction_of_copy=fraction)


def check_sample(module: ModuleType, case: Any, arrays: dict[str, Any]) -> None:
    """The call is right on a part that the oracle can do in a moment."""
    call(module, case, arrays)
    sample = {name: CupyArrays.fetch(arrays[name][index]) for name, index in module.sample(case).items()}
    wanted = module.oracle(case, {name: array for name, array in sample.items() if name not in module.OUTPUTS})
    relative, absolute = module.tolerance(case)
    for name, expected in wanted.items():
        assert_close(name, sample[name], expected, relative, absolute)
