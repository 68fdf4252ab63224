"""The table at the end of a timing run."""

from __future__ import annotations

from typing import Any

import pytest

ROWS = pytest.StashKey[list[dict[str, Any]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Rows are collected on the side: the times in pytest-benchmark's own table are those of whole graphs of calls."""
    config.stash[ROWS] = []
    config.option.benchmark_quiet = True


@pytest.fixture
def report(request: pytest.FixtureRequest, benchmark: Any) -> Any:
    """Adds a row of figures to the table and to pytest-benchmark's own record."""

    def add(**figures: Any) -> None:
        benchmark.extra_info.update(figures)
        request.config.stash[ROWS].append({"case": request.node.callspec.id, **figures})

    return add


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Kernels by case, then host times."""
    rows = config.stash[ROWS]
    kernels = [row for row in rows if "kernel_us" in row]
    if kernels:
        terminalreporter.section("kernel times: graph replay, cold L2 cache, median of 15")
        terminalreporter.write_line(f"{'us':>9} {'of copy':>8} {'GB/s':>6}  call")
        for row in kernels:
            figures = f"{row['kernel_us']:9.2f} {row['fraction_of_copy']:8.2f} {row['gb_per_s']:6.0f}"
            terminalreporter.write_line(f"{figures}  {row['case']}")
    hosts = [row for row in rows if "host_us" in row]
    if hosts:
        terminalreporter.section("host time of one call, nothing awaited")
        for row in hosts:
            terminalreporter.write_line(f"{row['host_us']:9.2f} us  {row['case']}")
