"""Runs the kernels of cuda_src on the CPU, under sanitizers: every thread is a fiber, every tensor lies between fences.

Blocks run one after the other. In a block one thread runs at a time, until it waits for others; which one goes on then
is drawn from a seed. An asynchronous copy happens when its thread waits for it, and its target holds NaN until then.
So there is no waiting for another block, no weak memory, and there are no tensor cores. What a kernel must not touch
before it waits for the preceding one is closed until all threads of a block wait.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import LaunchConfig
from tests.emulator import compiler, report, translation
from tests.emulator.compiler import BuildError
from tests.emulator.memory import Memory
from tests.emulator.process import TIME_LIMIT, Crash, Process

__all__ = ["SEEDS", "BuildError", "EmulationError", "available", "last_launch", "pointer_names", "prebuild", "run"]

SEEDS = (0, 3, 4)
"""One seed for each way to schedule a block: all threads by turns, one warp always as far as it gets before another may
go on, and random warps for random stretches. A missing barrier between warps may only show in the last two. The odd one
also runs kernels that ask how they start as in ordinary launches.
"""


class EmulationError(AssertionError):
    """The launch did what a kernel must not; the text says what, where in the .cu, and on which tensor."""


def available() -> str | None:
    """Why kernels cannot be emulated on this machine, or None."""
    return compiler.missing()


def prebuild(kernels: Iterable[Kernel], odd_seeds: bool = True) -> None:
    """Build many kernels at once, on all cores, for runs with even seeds and perhaps odd ones; `run` builds what is
    missing one by one.
    """
    compiler.build(kernels, ordinary=odd_seeds)


def run(
    kernel: Kernel,
    config: LaunchConfig,
    numbers: bytes,
    tensors: Mapping[str, np.ndarray | None],
    *,
    seed: int = 0,
    early: bool = False,
    time_limit: float = TIME_LIMIT,
) -> None:
    """One launch. `tensors` has an array of any strides, or None, for each pointer of the kernel's params.

    Results are written into the arrays. The seed decides in which order blocks and threads run: 2k and 2k + 1 are
    opposite orders, and k % 3 says how threads take turns (see SEEDS).

    Kernels run as those that start early, with the check of what they do before they wait. With odd seeds one whose own
    file asks for kStartsEarly runs as in an ordinary launch, unless the caller says that it starts early.
    """
    pointers = pointer_names(kernel)
    if tuple(tensors) != pointers:
        raise TypeError(f"tensors are {', '.join(tensors)}, want {', '.join(pointers)}")
    if len(numbers) != kernel.params.numbers.itemsize:
        raise TypeError(f"numbers has {len(numbers)} bytes, want {kernel.params.numbers.itemsize}")
    memory = Memory(tensors)
    ordinary = seed % 2 == 1 and not early and compiler.asks_how_it_starts(kernel)
    waits = kernel.is_follower if kernel.FOLLOWS else kernel.EARLY is not None and not ordinary
    job: dict[str, Any] = {
        "source_folder": str(compiler.source_folder(kernel)),
        "runtime": str(compiler.runtime()),
        "library": str(compiler.library(kernel, ordinary)),
        "entry": translation.entry(kernel),
        "grid": config.grid,
        "block": config.block,
        "shared_mem": config.shared_mem,
        "seed": seed,
        "memory": memory.bytes.tobytes(),
        "windows": [(window.begin, window.end - window.begin) for window in memory.windows],
        "open_ranges": memory.open_ranges(),
        "early_ranges": memory.open_ranges(kernel.EARLY or ()) if waits else [],
        "pointers": [memory.pointer(name) for name in pointers],
        "numbers": numbers,
    }
    last_launch().write_bytes(pickle.dumps(job))
    try:
        written = _process().run(job, time_limit)
    except Crash as crash:
        raise EmulationError(f"{kernel.expression}\n{report.summary(str(crash), memory)}") from None
    if wrong := memory.take(written):
        raise EmulationError(f"{kernel.expression}\n{wrong}")


def pointer_names(kernel: Kernel) -> tuple[str, ...]:
    """The names of the kernel's tensors, in order."""
    return kernel.params.pointer_names


def last_launch() -> Path:
    """Where the last launch is kept, for `python -m tests.emulator` to debug."""
    return compiler.root() / "last_launch"


@functools.cache
def _process() -> Process:
    return Process()
