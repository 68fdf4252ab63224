"""Every public function on small workloads against the oracle, by any way to run a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cuconv.bench import device
from cuconv.bench.makers import called
from cuconv.bench.numerics import Arrays, Difference, compare
from cuconv.bench.workloads import SMALL, workloads
from cuconv.runtime.dtypes import BFLOAT16, FLOAT32, FLOATS
from cuconv.runtime.workload import Workload

MIXED = "mixed"
"""bfloat16 beside filters and states of float32."""

DTYPES = (*(dtype.name for dtype in FLOATS), MIXED)

Runner = Callable[[Workload, Arrays], Arrays]
"""A way to run a call: takes its arguments, which it may write to, and returns them as they are afterwards, and with
them the results by name (Workload.outs).
"""


class DeviceLost(Exception):
    """Raised when nothing runs on the device any more in this process."""


class Case(NamedTuple):
    """One call to check. `dtype` is also here because a workload's sizes do not say that its dtypes are mixed."""

    dtype: str
    workload: Workload


@dataclass(frozen=True)
class Row:
    """The outcome of one call."""

    case: Case
    differences: tuple[Difference, ...] = ()
    overwritten: tuple[str, ...] = ()
    """Arguments that changed, but must not."""
    error: str | None = None
    """Why there is no result."""

    @property
    def is_right(self) -> bool:
        """Whether all results are there, each within its tolerance, and nothing else was written."""
        return self.error is None and not self.overwritten and all(each.is_right for each in self.differences)

    @property
    def worst(self) -> float:
        """The largest error as a fraction of its tolerance."""
        return max((each.used for each in self.differences), default=np.inf)

    @property
    def reasons(self) -> list[str]:
        """Why the outcome is wrong."""
        wrong = [
            f"{each.detail}, {each.used:.3g} times the tolerance" if each.tolerance else f"{each.detail}, to the bit"
            for each in self.differences
            if not each.is_right
        ]
        written = [f"{name} was written to" for name in self.overwritten]
        return [*([] if self.error is None else [self.error]), *wrong, *written]


def cases(functions: Iterable[str], dtypes: Iterable[str]) -> Iterator[Case]:
    """The small workloads of these functions in these dtypes."""
    chosen = list(dtypes)
    for function in functions:
        for dtype in chosen:
            if dtype != MIXED:
                yield from (Case(dtype, workload) for workload in workloads(SMALL, function, dtype=dtype))
            else:
                yield from (Case(dtype, workload) for workload in _mixed(function))


def _mixed(function: str) -> Iterator[Workload]:
    for workload in workloads(SMALL, function, dtype=BFLOAT16.name):
        wider = {
            name: replace(array, dtype=FLOAT32)
            for name, array in workload.arrays.items()
            if array.dtype is BFLOAT16 and name in ("weight", "bias", "state", "intermediate_states_buffer")
        }
        if wider:
            # The gradient of an argument has its dtype.
            outs = {
                name: replace(array, dtype=FLOAT32) if name.removeprefix("d") in wider else array
                for name, array in workload.outs.items()
            }
            yield replace(workload, arrays={**workload.arrays, **wider}, outs=outs)


def check(case: Case, runner: Runner) -> Row:
    """Run one call and compare; any exception becomes its outcome."""
    workload = case.workload
    try:
        after = runner(workload, workload.host())
    except DeviceLost:
        raise
    except Exception as error:
        return Row(case, error=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    before = workload.host()
    overwritten = [
        n for n in before if n not in workload.updated and not np.array_equal(_bits(before[n]), _bits(after[n]))
    ]
    return Row(case, tuple(compare(workload, before, after)), tuple(overwritten))


def on_gpu(number: int) -> Runner:
    """Runs calls with CuPy arrays on a device, with results that are full of NaN before."""

    def run(workload: Workload, arrays: Arrays) -> Arrays:
        import cupy

        try:
            with cupy.cuda.Device(number):
                given = {name: device.upload(array) for name, array in arrays.items()}
                outs = device.outs(workload)
                called(workload)(**workload.call(given, outs))
                cupy.cuda.runtime.deviceSynchronize()
                written: Mapping[str, Any] = dict(zip(workload.outs, outs, strict=True))
                return {name: device.fetch(array) for name, array in (*given.items(), *written.items())}
        except Exception as error:
            if not device.is_alive(number):
                raise DeviceLost(str(error).partition("\n")[0]) from error
            raise

    return run


def _bits(array: Any) -> Any:
    return array.view(f"u{array.dtype.itemsize}")
