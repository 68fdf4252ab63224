"""Small cases of every public function against its oracle: called as on a GPU, its device code on the CPU.

Those that together run every kernel with every value of every axis, and some of the others, drawn anew in every run;
with CUCONV_EVERY=1 in the environment all. A GPU runs all of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pytest

from cuconv.bench.copy import Copy
from cuconv.runtime import arrays
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.machine import assumed_device
from cuconv.runtime.plan import Launch
from cuconv.selective_scan.kernels import SelectiveScanTilesFwd, SelectiveScanVarlenTilesFwd
from tests import cases, emulator
from tests.emulator.family import EmulatedArray, scheduled
from tests.families.test_numerics import call, place_arguments, tables
from tests.support import sampling
from tests.support.compare import check_results
from tests.support.discovery import op_kernels
from tests.support.plans import variants

UNIT = tables("UNIT")

SHARE = 16
"""The cases that are not needed, as a multiple of those of them that are run."""


@cache
def launched() -> tuple[tuple[Launch, ...], ...]:
    """What every small case launches."""
    return tuple(tuple(parameter.values[0].launches()) for parameter in UNIT)


def launches() -> tuple[Launch, ...]:
    """Those of all small cases."""
    return tuple(launch for each in launched() for launch in each)


def emulated_cases() -> list[Any]:
    """The small cases of this run."""
    if sampling.EVERY:
        return UNIT
    chosen = set(sampling.needed(launched()))
    chosen |= set(sampling.drawn([number for number in range(len(UNIT)) if number not in chosen], SHARE))
    return [UNIT[number] for number in sorted(chosen)]


@pytest.fixture(scope="module")
def prebuilt(request: pytest.FixtureRequest) -> None:
    """What the selected tests run, all at once: one by one, builds could not share a translation unit."""
    if (reason := emulator.available()) is not None:
        pytest.skip(reason)
    selected = (item for item in request.session.items if getattr(item, "originalname", "") == test_emulated.__name__)
    called = (item.callspec.params["case"] for item in selected)
    emulator.prebuild({launch.kernel for case in called for launch in case.launches()})


@pytest.mark.usefixtures("prebuilt")
@pytest.mark.parametrize("case", emulated_cases())
def test_emulated(case: Any) -> None:
    """The first order of threads against the oracle, the others bit for bit against the first."""
    before = place_arguments(case)
    results = []
    for seed in emulator.SEEDS:
        after = {name: placed.copy() for name, placed in before.items()}
        with scheduled(seed):
            call(case, {name: EmulatedArray(placed.array) for name, placed in after.items()})
        results.append({name: placed.buffer for name, placed in after.items()})
    first, *others = results
    check_results(case, before, first)
    for seed, result in zip(emulator.SEEDS[1:], others, strict=True):
        differing = [name for name in first if not np.array_equal(result[name].view("u1"), first[name].view("u1"))]
        assert not differing, f"the order of threads of seed {seed} changes {', '.join(differing)}"


@pytest.mark.parametrize("case", UNIT)
def test_a_placement_is_what_a_call_sees_of_the_array(case: Any) -> None:
    for name, placed in place_arguments(case).items():
        numpys = arrays.family(placed.array)
        assert numpys is not None
        _, (facts,) = numpys.inspect((name,), (placed.array,))
        assert facts is not None
        assert numpys.layout(name, facts)._replace(device=assumed_device()) == placed.placement.layout


@pytest.mark.parametrize("count", [0, 4, 1020, 1024, 1028])
@pytest.mark.usefixtures("prebuilt")
def test_the_yardstick_copies(count: int) -> None:
    kernel = Copy()
    x, out = np.arange(count, dtype=np.float32), np.full(count, np.nan, np.float32)
    config, division = kernel.launch_config(x.nbytes)
    if count:
        emulator.run(kernel, config, kernel.params.pack_numbers(**division), {"x": x, "out": out})
    np.testing.assert_array_equal(out, x)


def test_the_cases_of_a_run_have_every_value_that_any_small_case_has() -> None:
    def values(chosen: list[Any]) -> set[tuple[object, ...]]:
        kernels = (launch.kernel for parameter in chosen for launch in parameter.values[0].launches())
        return {(type(kernel), f.name, getattr(kernel, f.name)) for kernel in kernels for f in fields(kernel)}

    assert values(emulated_cases()) == values(UNIT)
    assert len(emulated_cases()) < len(UNIT) / 2 or sampling.EVERY


def test_the_small_cases_run_every_kernel() -> None:
    assert {type(launch.kernel) for launch in launches()} == set(op_kernels())


@pytest.mark.parametrize("cls", op_kernels())
def test_the_small_cases_run_every_value_of_every_axis(cls: type[Kernel]) -> None:
    """Each alone, and widths over all kernels: combinations are for the compiler's tests and the larger cases."""
    run = [launch.kernel for launch in launches()]
    for field in fields(cls):
        offered = {getattr(variant, field.name) for variant in variants(cls)}
        runners = [
            kernel for kernel in run if type(kernel) is cls or (field.name == "width" and hasattr(kernel, "width"))
        ]
        ran = {getattr(kernel, field.name) for kernel in runners}
        assert offered <= ran, f"no small case has {field.name} {sorted(map(str, offered - ran))}"


@pytest.mark.parametrize("cls", [SelectiveScanTilesFwd, SelectiveScanVarlenTilesFwd])
def test_the_small_cases_have_tiles_of_one_stage_and_of_two(cls: type[Kernel]) -> None:
    """By the bytes of a tile's row of B, or of a number: TileShape::kStages of selective_scan/tiles.cuh."""
    run: Any = [launch.kernel for launch in launches() if type(launch.kernel) is cls]
    row_bytes = [kernel.lanes * kernel.tokens * kernel.input_t.itemsize for kernel in run if not kernel.by_channel]
    assert {count <= 512 for count in row_bytes} == {True, False}
    assert {kernel.input_t.itemsize for kernel in run if kernel.by_channel} == {2, 4}


def test_the_small_cases_cross_blocks() -> None:
    blocks: dict[type[Kernel], int] = defaultdict(int)
    for launch in launches():
        blocks[type(launch.kernel)] = max(blocks[type(launch.kernel)], launch.config.grid[0])
    assert all(blocks[cls] > 1 for cls in op_kernels())


@pytest.mark.parametrize("cls", op_kernels())
def test_variants_are_finite_and_unique(cls: type[Kernel]) -> None:
    listed = list(cls.variants())
    assert len(listed) == len(set(listed)) == len({kernel.expression for kernel in listed}) < 1.4 * 10**5
    assert all(type(kernel) is cls for kernel in listed)


@pytest.mark.parametrize("table", ["UNIT", "EDGE", "BIG"])
@pytest.mark.parametrize("module", cases.modules(), ids=lambda module: module.Case.FUNCTION)
def test_every_case_has_a_variant(module: Any, table: str) -> None:
    for case in getattr(module, table, ()):
        for launch in case.launches():
            assert launch.kernel in variants(type(launch.kernel))
