"""Compiling many kernels at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed

from cuconv.bench.gpus import REFERENCE, Gpu
from cuconv.bench.makers import called
from cuconv.jit.build import build
from cuconv.jit.cache import Artifact
from cuconv.runtime.abstract import launches_of
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.machine import assuming
from cuconv.runtime.workload import Workload

MOST_JOBS = 16
"""Most kernels compiled at a time: the compiler takes some hundred megabytes for each."""

Wanted = tuple[Kernel, int]
"""A kernel, and the compute capability that it is compiled for."""

Done = Callable[[int, int, str], None]
"""A function that is told how many kernels are done, how many there are, and the name of the last one."""


def kernels_of(workloads: Iterable[Workload], gpu: Gpu = REFERENCE) -> list[Kernel]:
    """The kernels that these calls would launch on a GPU, each once."""
    kernels: dict[Kernel, None] = {}
    for workload in workloads:
        with assuming(gpu.multiprocessors):
            launches = launches_of(called(workload), **workload.abstract())
        kernels |= dict.fromkeys(launch.kernel for launch in launches)
    return list(kernels)


def compile_all(kernels: Collection[Kernel], capability: int, done: Done) -> dict[Kernel, Artifact | Exception]:
    """Every kernel for one architecture as it is on disk, or why there is none."""
    found = compile_each([(kernel, capability) for kernel in kernels], done)
    return {kernel: each for (kernel, _), each in found.items()}


def compile_each(wanted: Collection[Wanted], done: Done, jobs: int | None = None) -> dict[Wanted, Artifact | Exception]:
    """Compile each kernel for its own architecture, `jobs` at a time or one for each processor."""
    found: dict[Wanted, Artifact | Exception] = {}
    # Threads suffice, because the compiler runs without the interpreter's lock.
    pool = ThreadPoolExecutor(jobs or default_jobs())
    try:
        waiting = {pool.submit(build, kernel.file, kernel.expression, arch): (kernel, arch) for kernel, arch in wanted}
        for future in as_completed(waiting):
            each, error = waiting[future], future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            found[each] = error or future.result()
            done(len(found), len(waiting), each[0].unit)
    finally:
        # An interrupt waits for compilations that have begun, and cancels the others.
        pool.shutdown(cancel_futures=True)
    return {each: found[each] for each in wanted}


def default_jobs() -> int:
    """A kernel for every processor that this process may use, within reason."""
    # Not every system says what a single process may use.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MOST_JOBS)
