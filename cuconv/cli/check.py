"""`cuconv check`: every public function against the oracle, on the GPUs of this machine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cuconv.bench import device
from cuconv.bench.checking import DTYPES, MIXED, Case, DeviceLost, Row, Runner, cases, check, on_gpu
from cuconv.bench.compiling import compile_all, kernels_of
from cuconv.bench.gpus import Gpu, present
from cuconv.bench.makers import MAKERS
from cuconv.cli.arguments import whole
from cuconv.cli.console import OK, WRONG, CannotRun, Console
from cuconv.runtime.errors import message
from cuconv.runtime.kernel import Kernel

MOST_LISTED = 20
"""The most wrong calls that are listed one by one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--op", action="append", choices=list(MAKERS), metavar="NAME", help="check this function; may be repeated"
    )
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="check this dtype; may be repeated")
    parser.add_argument("--device", type=whole(0), metavar="N", help="check this GPU, not all that are visible")


def run(options: argparse.Namespace, console: Console) -> int:
    """Check all functions on each GPU in turn. Returns WRONG when a result is wrong or a GPU is lost."""
    if (reason := device.missing()) is not None:
        raise CannotRun(f"no GPU can be used ({reason}), so nothing was checked; `cuconv doctor` says what is missing")
    numbers = _devices(options.device)
    gpus = {number: present(number) for number in numbers}
    # This is asked before the checks, because a lost GPU does not answer.
    machines = {number: _machine(number) for number in numbers}
    chosen = list(cases(options.op or MAKERS, options.dtype or DTYPES))
    # Kernels are chosen for each different GPU, because the choice depends on its multiprocessors.
    planned = {(gpu.capability, gpu.multiprocessors): gpu for gpu in gpus.values()}
    kernels: set[Kernel] = set()
    start = time.perf_counter()
    for gpu in planned.values():
        wanted = kernels_of((case.workload for case in chosen), gpu)
        kernels.update(wanted)
        console.line(f"compiling {len(wanted)} kernels for sm_{gpu.capability}, or finding them in the cache")
        # A kernel that fails to compile fails again in the call that needs it, and is reported there.
        compile_all(wanted, gpu.capability, console.progress)
    compiled = time.perf_counter()
    found = {number: check_all(chosen, on_gpu(number), console) for number in gpus}
    seconds = {"compiling": compiled - start, "checking": time.perf_counter() - compiled}
    for number, gpu in gpus.items():
        console.line()
        console.line(f"device {number}: {gpu.name}, sm_{gpu.capability}")
        report(*found[number], gpu, console)
    is_right = all(lost is None and all(row.is_right for row in rows) for rows, lost in found.values())
    console.line()
    console.line(f"compiled in {seconds['compiling']:.1f} s, checked in {seconds['checking']:.1f} s")
    console.finish(
        {
            "is_right": is_right,
            "kernels": len(kernels),
            "seconds": seconds,
            "devices": [{"device": number, **machines[number], **as_json(*found[number])} for number in gpus],
        }
    )
    return OK if is_right else WRONG


def _devices(asked: int | None) -> Sequence[int]:
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if asked is None:
        return range(count)
    if not 0 <= asked < count:
        raise ValueError(message("device", asked, f"0 to {count - 1}"))
    return [asked]


def check_all(chosen: Sequence[Case], runner: Runner, console: Console) -> tuple[list[Row], str | None]:
    """The outcome of every call, up to the one that lost the device if one did, and then the reason."""
    rows: list[Row] = []
    for number, case in enumerate(chosen):
        console.progress(number, len(chosen), case.workload.function)
        try:
            rows.append(check(case, runner))
        except DeviceLost as error:
            return [*rows, Row(case, error=str(error))], str(error)
    return rows, None


def report(rows: Sequence[Row], lost: str | None, gpu: Gpu, console: Console) -> None:
    """Print one line for each function, then the calls that are wrong."""
    console.line(f"{'function':<32}{'calls':>6}{'worst':>8}  verdict")
    for function in dict.fromkeys(row.case.workload.function for row in rows):
        own = [row for row in rows if row.case.workload.function == function]
        count = sum(not row.is_right for row in own)
        worst = max(row.worst for row in own)
        figures = f"{len(own):>6}{f'{worst:.2f}' if np.isfinite(worst) else '-':>8}"
        console.line(f"{function:<32}{figures}  {f'{count} WRONG' if count else 'right'}")
    wrong = [row for row in rows if not row.is_right]
    console.line("worst: the largest error as a part of what rounding explains; above 1.00 a result is wrong")
    for row in wrong[:MOST_LISTED]:
        workload = row.case.workload
        console.line()
        mixed = " mixed" if row.case.dtype == MIXED else ""
        console.line(f"WRONG: {workload.function} {workload.title}{mixed} on sm_{gpu.capability}")
        for reason in row.reasons:
            console.line(f"  {reason}")
    if len(wrong) > MOST_LISTED:
        console.line(f"and {len(wrong) - MOST_LISTED} more, all in the output of `cuconv check --json`")
    if lost is not None:
        console.line()
        console.line(f"The GPU was lost in the last of these calls ({lost}): the calls after it were not checked.")
    if wrong:
        first = wrong[0].case
        repeat = f"cuconv check --op {first.workload.function} --dtype {first.dtype}"
        console.line()
        console.line(f"The first again: `{repeat}`.")
        console.line("A report needs the output of `cuconv check --json` and of `cuconv doctor --json`.")


def as_json(rows: Sequence[Row], lost: str | None) -> dict[str, Any]:
    """All rows as JSON, in which null stands for a number that is not finite."""
    return {
        "lost": lost,
        "rows": [
            {
                "function": row.case.workload.function,
                "dtype": row.case.dtype,
                "sizes": dict(row.case.workload.sizes),
                "is_right": row.is_right,
                "reasons": row.reasons,
                "results": [
                    {
                        "name": each.name,
                        "error": _finite(each.error),
                        "tolerance": each.tolerance,
                        "is_right": each.is_right,
                    }
                    for each in row.differences
                ],
            }
            for row in rows
        ],
    }


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _machine(number: int) -> dict[str, Any]:
    """A device's properties and the versions of the libraries that run on it."""
    import cupy

    from cuconv.bench.machine import Machine

    with cupy.cuda.Device(number):
        return asdict(Machine().header())
