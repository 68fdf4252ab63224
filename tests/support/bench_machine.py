"""A machine to measure on whose arrays are NumPy's and whose clock tells what the test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cuconv.bench.peers.found import Loaded
from cuconv.bench.peers.peer import Peer, Ready, ready
from cuconv.bench.results import Header
from cuconv.runtime.workload import Array, Workload

HEADER = Header(
    time="2026-01-02T03:04:05+00:00", gpu="A GPU", compute_capability=90, driver="580.1", cuda="12.9", cupy="14.2",
    torch=None, peers={}, python="3.12.1", cuconv="0.1.0", source_digest="0123456789ab",
)  # fmt: skip


def poisoned(array: Array) -> np.ndarray[Any, Any]:
    """NaN, with the strides that the workload wants."""
    full = np.full([array.shape[axis] for axis in array.axes], np.nan, array.dtype.numpy)
    return full.transpose(np.argsort(array.axes))


class FakeMachine:
    """Calls run on the CPU, once when they are timed: the times are those of the lists."""

    def __init__(self) -> None:
        self.seconds: list[float] = [3e-6, 1e-6, 2e-6, 5e-6, 4e-6]
        self.torch_seconds: dict[int, tuple[list[float], str]] = {}
        """By how many times calls of peers were timed before; else ten times as long as our own."""
        self.copy_s = 1.5e-6
        self.free = 2**30
        self.needed = 3
        self.alive = True
        self.has_torch = True
        self.exponentials_per_second = 1e12
        self.memory = 10**9
        """How many arrays can be made before there is no memory left."""
        self.timed: list[int] = []
        """How many calls were timed, each time."""
        self.torch_timed = 0
        self.host_calls: list[int] = []
        self.copied: list[int] = []

    def header(self, peers: dict[str, str] | None = None) -> Header:
        return replace(HEADER, peers=peers or {})

    def clocks(self) -> str:
        return "1980 MHz of 1980 MHz"

    def arrays(self, workload: Workload, number: int) -> dict[str, Any]:
        self.memory -= 1
        if self.memory < 0:
            raise MemoryError
        return workload.host(number)

    def outs(self, workload: Workload) -> list[Any]:
        return [poisoned(out) for out in workload.outs.values()]

    def renew(self, workload: Workload, number: int, arrays: Mapping[str, Any], outs: Sequence[Any]) -> None:
        for name, array in workload.host(number).items():
            if not array.flags.writeable:
                continue
            arrays[name][...] = array
        for out, fresh in zip(outs, self.outs(workload), strict=True):
            out[...] = fresh

    def tensors(self, arrays: Mapping[Any, Any]) -> dict[Any, Any]:
        if not self.has_torch:
            raise ImportError("no torch")
        return dict(arrays)

    def cut(self, workload: Workload, name: str, array: Any) -> Any:
        return workload.cut(name, array).copy()

    def is_alive(self) -> bool:
        return self.alive

    def release(self) -> None:
        pass

    def free_bytes(self) -> int:
        return self.free

    def sets_needed(self, nbytes: int) -> int:
        return self.needed

    def times(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        self.timed.append(len(calls))
        for call in calls:
            call()
        return self.seconds

    def torch_times(self, calls: Sequence[Callable[[], Any]]) -> tuple[list[float], str]:
        for call in calls:
            call()
        self.torch_timed += 1
        return self.torch_seconds.get(self.torch_timed - 1, ([10 * each for each in self.seconds], ""))

    def copy_time(self, nbytes: int) -> float:
        self.copied.append(nbytes)
        return self.copy_s

    def host_time(self, call: Callable[[], Any], calls: int) -> float:
        self.host_calls.append(calls)
        call()
        return 7e-6


def peer(function: Callable[..., Any], library: str = "other", ours: str = "causal_conv1d_fn") -> Loaded:
    """A library whose function takes what ours does, without `out`."""

    def prepare(function: Any, workload: Workload, tensors: Any, outs: Any) -> Ready:
        return ready(workload, tensors, lambda: function(**tensors, **workload.options), note="a note")

    return Loaded(Peer(library, ours, lambda: function, prepare), function)
