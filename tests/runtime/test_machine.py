"""How many multiprocessors plans count with, a device's own or those of the GPU that is assumed, and what GPUs have."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import cuconv
from cuconv.bench import gpus
from cuconv.bench.makers import MAKERS
from cuconv.runtime import machine
from cuconv.runtime.abstract import launches_of


def test_arrays_on_no_device_count_with_the_reference_gpu() -> None:
    assert machine.multiprocessors(machine.assumed_device()) == machine.MULTIPROCESSORS[machine.REFERENCE] == 132


def test_another_gpu_can_be_assumed_for_a_while() -> None:
    with machine.assuming(66):
        with machine.assuming(7):
            assert machine.multiprocessors(machine.assumed_device()) == 7
        assert machine.multiprocessors(machine.assumed_device()) == 66
    assert machine.multiprocessors(machine.assumed_device()) == 132


def test_a_device_is_asked_once_for_each_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def device(number: int) -> Any:
        asked.append(number)
        return SimpleNamespace(attributes={"MultiProcessorCount": 100 + number, "MaxSharedMemoryPerBlockOptin": 5000})

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(Device=device)))
    machine._asked.cache_clear()
    try:
        with machine.assuming(5):
            assert [machine.multiprocessors(number) for number in (0, 3, 0, 3)] == [100, 103, 100, 103]
            assert [machine.has_shared_memory(3, nbytes) for nbytes in (5000, 5001)] == [True, False]
    finally:
        machine._asked.cache_clear()
    assert asked == [0, 3, 3]


def test_known_gpus_and_the_table_are_the_same() -> None:
    assert {name: gpu.multiprocessors for name, gpu in gpus.KNOWN.items()} == machine.MULTIPROCESSORS


def test_a_gpu_with_more_multiprocessors_cuts_rows_further() -> None:
    workload = MAKERS["selective_scan_fn"](batch=1, dim=128, seqlen=65536)
    grids = []
    for count in (66, 132):
        with machine.assuming(count):
            launches = launches_of(cuconv.selective_scan_fn, **workload.abstract())
        grids.append(launches[-1].config.grid[0])
    assert grids[1] == 2 * grids[0]


@pytest.mark.parametrize(
    ("capability", "driver", "expected"),
    [("90", 12030, True), ("120", 13000, True), ("89", 13000, False), ("90", 12020, False)],
)
def test_what_has_dependent_launches(
    monkeypatch: pytest.MonkeyPatch, capability: str, driver: int, expected: bool
) -> None:
    cupy = pytest.importorskip("cupy")
    monkeypatch.setattr(cupy.cuda, "Device", lambda number: SimpleNamespace(compute_capability=capability))
    monkeypatch.setattr(cupy.cuda.runtime, "driverGetVersion", lambda: driver)
    machine.has_dependent_launch.cache_clear()
    assert machine.has_dependent_launch(0) is expected
    machine.has_dependent_launch.cache_clear()
    assert not machine.has_dependent_launch(machine.assumed_device())
