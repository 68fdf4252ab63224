"""Measurements, found by a workload's sizes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from cuconv.bench.makers import MAKERS
from cuconv.bench.results import OURS, Drift, Header, Host, Kernel, Row, Step
from cuconv.bench.workloads import REPORT

Sizes = Mapping[str, Any]


def whole(function: str, sizes: Sizes) -> dict[str, Any]:
    """Sizes, completed by the defaults of the workload's maker."""
    return _defaults(function) | dict(sizes)


@cache
def _defaults(function: str) -> dict[str, Any]:
    known = inspect.signature(MAKERS[function]).parameters if function in MAKERS else {}
    return {name: each.default for name, each in known.items()}


def report(function: str) -> Iterator[dict[str, Any]]:
    """The sizes that tables and pictures show, in order."""
    for sizes in REPORT[function]:
        yield whole(function, sizes)


class Measured:
    """The newest row of every workload and library."""

    def __init__(self, rows: Iterable[tuple[Header, Row]]) -> None:
        self._kernels: dict[Hashable, dict[str, tuple[Header, Kernel]]] = {}
        self._hosts: dict[Hashable, dict[Hashable, Host]] = {}
        self.steps: dict[tuple[str, str], dict[str, Step]] = {}
        """The newest row of each library, by model and step."""
        self.drifts: dict[tuple[str, bool, str, float], Drift] = {}
        """The newest errors after many steps, by dtype of states, whether rounding is random, inputs and decay."""
        self.headers: list[Header] = []
        """Headers of the runs, oldest first."""
        for header, row in sorted(rows, key=lambda pair: pair[0].time):
            if header not in self.headers:
                self.headers.append(header)
            if isinstance(row, Step):
                self.steps.setdefault((row.model, row.step), {})[row.library] = row
            elif isinstance(row, Drift):
                self.drifts[row.state_dtype, row.is_random, row.inputs, row.decay] = row
            elif isinstance(row, Kernel):
                self._kernels.setdefault(_key(row.function, row.sizes), {})[row.library] = header, row
            else:
                hosts = self._hosts.setdefault((row.function, row.arrays, row.out, row.bound), {})
                hosts[_key(row.function, row.sizes)] = row

    def kernel(self, function: str, sizes: Sizes) -> Kernel | None:
        """The row of cuconv."""
        return self._kernels.get(_key(function, sizes), {}).get(OURS, (None, None))[1]

    def peers(self, function: str, sizes: Sizes) -> list[Kernel]:
        """Rows of the other libraries that were right in the same run, the fastest first."""
        found = self._kernels.get(_key(function, sizes), {})
        times = [
            (time, library, row)
            for library, (header, row) in found.items()
            if library != OURS and OURS in found and header == found[OURS][0] and (time := microseconds(row))
        ]
        return [row for _, _, row in sorted(times)]

    def kernels(self, function: str) -> Iterator[tuple[Kernel, list[Kernel]]]:
        """Rows of cuconv that are right, each with its peers, in the order of the report."""
        for sizes in report(function):
            row = self.kernel(function, sizes)
            if row is not None and microseconds(row):
                yield row, self.peers(function, sizes)

    def host(self, function: str, arrays: str, out: bool, bound: bool = False) -> Host | None:
        """The host time for the first sizes of the report that have one, because it hardly depends on sizes."""
        found = self._hosts.get((function, arrays, out, bound), {})
        keys = [key for key in (_key(function, sizes) for sizes in report(function)) if key in found]
        return found[keys[0]] if keys else None


def microseconds(row: Kernel | None) -> float | None:
    """The median time of a kernel that is right; None without one."""
    return row.kernel_us.p50 if row and row.is_right and row.kernel_us else None


def batch_text(spec: str) -> str:
    """Packed sequences in words."""
    return ", ".join(_term_text(term) for term in filter(None, spec.split("+")))


def _term_text(term: str) -> str:
    if "in" in term:
        return f"{term.partition('in')[0]} of random lengths"
    times, _, length = term.rpartition("x")
    return f"{times or 1} of {length}"


def _key(function: str, sizes: Sizes) -> Hashable:
    return function, json.dumps(whole(function, sizes), sort_keys=True)
