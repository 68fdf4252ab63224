"""Made-up results: every row of the report with figures of its own, in the types that are on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cuconv.bench.makers import MAKERS
from cuconv.bench.results import OURS, Header, Host, Kernel, Row
from cuconv.bench.timing import Percentiles
from cuconv.bench.workloads import REPORT
from cuconv.cli.report.measured import Measured
from cuconv.cli.report.tables import HOST_KINDS
from tests.support.bench_machine import HEADER

REPORTED = [(function, sizes) for function in REPORT for sizes in REPORT[function]]


def kernel(function: str, sizes: Mapping[str, Any], time: float, library: str = OURS, share: float = 0.8) -> Kernel:
    """A row without an error: `time` microseconds, at the fraction `share` of its bounds."""
    workload = MAKERS[function](**sizes)
    return Kernel(
        function, dict(workload.sizes), library, Percentiles(time - 0.5, time, time + 0.5), share * time,
        workload.bytes_moved, workload.bytes_moved / time * 1e-3, share, workload.exponentials,
        share / 2 if workload.exponentials else None, 0.25, True,
    )  # fmt: skip


def wrong(row: Kernel) -> Kernel:
    return replace(row, kernel_us=None, gb_per_s=None, fraction_of_copy=None, error=50.0, is_right=False)


def kernels(library: str = OURS, first: float = 10.1, share: float = 0.8) -> list[Kernel]:
    """A time of every row of the report, 0.1 µs apart."""
    return [
        kernel(function, sizes, first + number / 10, library, share)
        for number, (function, sizes) in enumerate(REPORTED)
    ]


def hosts(first: float = 5.0) -> list[Host]:
    """Host times of every function's first row in the report."""
    kinds = [(arrays, *kind) for arrays in ("torch", "cupy") for kind in HOST_KINDS]
    return [
        Host(function, dict(MAKERS[function](**REPORT[function][0]).sizes), arrays, out, first + number / 100, bound)
        for number, (function, (arrays, out, bound)) in enumerate(
            (f, kind) for f in REPORT if REPORT[f] for kind in kinds
        )
    ]


def measured(rows: Iterable[Row], header: Header = HEADER) -> Measured:
    return Measured((header, row) for row in rows)
