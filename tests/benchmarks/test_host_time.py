"""Host time of one call that is not awaited: what a serving loop pays per layer."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import cuconv
from cuconv.bench.machine import Machine
from cuconv.bench.workloads import SMALL, workloads

CALLS = 200
"""Calls that are not awaited: fewer launches than a stream takes before it makes the host wait."""


@pytest.mark.gpu
@pytest.mark.parametrize("out", ["new", "out"])
@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("function", SMALL)
def test_time(benchmark: Any, report: Any, function: str, library: str, out: str) -> None:
    machine, workload = Machine(), next(workloads(SMALL, function))
    arrays, outs = machine.arrays(workload, 0), machine.outs(workload)
    if library == "torch":
        pytest.importorskip("torch")
        arrays = machine.tensors(arrays)
        outs = list(machine.tensors(dict(enumerate(outs))).values())
    call = partial(getattr(cuconv, function), **workload.call(arrays, outs if out == "out" else None))
    benchmark.pedantic(call, setup=machine.synchronize, rounds=20, warmup_rounds=1)
    report(host_us=machine.host_time(call, CALLS) * 1e6)
