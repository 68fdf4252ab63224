"""Kernel time of every workload of the report, beside a copy of the same bytes. Numerics first."""

from __future__ import annotations

from typing import Any

import pytest

from cuconv.bench.machine import Machine
from cuconv.bench.makers import label
from cuconv.bench.measure import on_machine, our_calls
from cuconv.bench.timing import Replay, copy_time
from cuconv.bench.workloads import REPORT, workloads
from cuconv.runtime.workload import Workload

WORKLOADS = [workload for function in REPORT for workload in workloads(REPORT, function)]


def name_of(workload: Workload) -> str:
    """The function, and the sizes as the command line takes them: `cuconv bench --op causal_conv1d_fn --shape …`."""
    return f"{workload.function} {label(workload, ',')}".strip()


@pytest.mark.gpu
@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_time(benchmark: Any, report: Any, workload: Workload) -> None:
    calls, differences = our_calls(on_machine(Machine(), workload))
    assert all(difference.is_right for difference in differences), differences
    replay = Replay(calls)
    benchmark.pedantic(replay.run, rounds=5)
    seconds = replay.seconds()
    # The arrays are let go before the copy has its own.
    del replay
    calls.clear()
    nbytes = workload.bytes_moved
    fraction = copy_time(nbytes) / seconds
    report(kernel_us=seconds * 1e6, gb_per_s=nbytes / seconds * 1e-9, fraction_of_copy=fraction)
