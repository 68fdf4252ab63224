"""The machine that is measured: arrays on its GPU, times of calls on them, and its description."""

from __future__ import annotations

import gc
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar

import numpy as np

from cuconv.bench import device
from cuconv.bench.gpus import present
from cuconv.bench.peers import tensors
from cuconv.bench.results import Header
from cuconv.bench.timing import REPLAYS, Call, Replay, copy_time, host_time, sets_needed
from cuconv.jit import source
from cuconv.runtime import distribution
from cuconv.runtime.workload import Workload

Name = TypeVar("Name")

QUICK_REPLAYS, QUICK_ROUNDS = 5, 2


class Machine:
    """CuPy's current device and the libraries around it."""

    def __init__(self, quick: bool = False) -> None:
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device()
        self._replays = QUICK_REPLAYS if quick else REPLAYS
        self._rounds = {"rounds": QUICK_ROUNDS} if quick else {}
        self._copies: dict[int, float] = {}

    def header(self, peers: dict[str, str] | None = None) -> Header:
        """The header of a run: this machine, the time, and the versions of other libraries."""
        properties = self._cupy.cuda.runtime.getDeviceProperties(self._device.id)
        runtime = self._cupy.cuda.runtime.runtimeGetVersion()
        return Header(
            time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            gpu=properties["name"].decode(),
            compute_capability=int(self._device.compute_capability),
            driver=self._ask("driver_version") or "unknown",
            cuda=f"{runtime // 1000}.{runtime % 1000 // 10}",
            cupy=self._cupy.__version__,
            torch=tensors.torch_version(),
            peers=peers or {},
            python=platform.python_version(),
            cuconv=_version(),
            source_digest=source.load().digest[:12],
        )

    def clocks(self) -> str:
        """The present and the highest clock of the multiprocessors; empty where nvidia-smi does not say."""
        now, most = self._ask("clocks.sm"), self._ask("clocks.max.sm")
        return f"{now} of {most}" if now and most else ""

    def _ask(self, field: str) -> str:
        """A field that nvidia-smi reports for this GPU."""
        command = ["nvidia-smi", f"--id={self._device.pci_bus_id}", f"--query-gpu={field}", "--format=csv,noheader"]
        try:
            return subprocess.run(command, capture_output=True, check=True, timeout=10, text=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return ""

    @property
    def exponentials_per_second(self) -> float:
        """Exponentials per second of this GPU; 0 when its clock is not known."""
        seconds = present().exponential_seconds(1)
        return 1.0 / seconds if seconds else 0.0

    def arrays(self, workload: Workload, number: int) -> dict[str, Any]:
        """The arrays of a call, with other random numbers for each `number`."""
        return device.arrays(workload, number)

    def outs(self, workload: Workload) -> list[Any]:
        """Arrays for the results of a call, full of NaN."""
        return device.outs(workload)

    def renew(self, workload: Workload, number: int, arrays: Mapping[str, Any], outs: Sequence[Any]) -> None:
        """Restore the arrays of a call, and those for its results, to the contents that `arrays` and `outs` gave
        them."""
        device.renew(workload, number, arrays, outs)

    def tensors(self, arrays: Mapping[Name, Any]) -> dict[Name, Any]:
        """Torch tensors over the memory of arrays; ImportError without a torch that has this GPU."""
        tensors.check()
        return {name: tensors.to_torch(array) for name, array in arrays.items()}

    def cut(self, workload: Workload, name: str, array: Any) -> np.ndarray[Any, Any]:
        """A copy on the host of what the workload keeps of a CuPy array or a torch tensor."""
        return device.cut(workload, name, array if isinstance(array, self._cupy.ndarray) else tensors.to_cupy(array))

    def synchronize(self) -> None:
        """Wait for everything."""
        self._device.synchronize()

    def is_alive(self) -> bool:
        """Whether calls still work: after a bad memory access none works in this process."""
        return device.is_alive(self._device.id)

    def release(self) -> None:
        """Free the memory that no array needs."""
        gc.collect()
        self.synchronize()
        self._cupy.get_default_memory_pool().free_all_blocks()
        tensors.release()

    def free_bytes(self) -> int:
        """Memory that new arrays can have."""
        free: int = self._cupy.cuda.runtime.memGetInfo()[0]
        return free

    def sets_needed(self, nbytes: int) -> int:
        """How many sets of this many bytes find the L2 cache cold."""
        return sets_needed(nbytes)

    def times(self, calls: Sequence[Call]) -> list[float]:
        """Seconds of one call on CuPy's current stream, replay by replay."""
        self.synchronize()
        return Replay(calls).times(self._replays)

    def torch_times(self, calls: Sequence[Call]) -> tuple[list[float], str]:
        """Seconds of one call on torch's current stream, replay by replay, and a note on how they were timed."""
        self.synchronize()
        return tensors.times(calls, self._replays)

    def copy_time(self, nbytes: int) -> float:
        """Seconds for a copy that moves this many bytes; measured once."""
        if nbytes not in self._copies:
            self._copies[nbytes] = copy_time(nbytes, self._replays)
        return self._copies[nbytes]

    def host_time(self, call: Call, calls: int) -> float:
        """Seconds until a call returns, without waiting for the GPU."""
        return host_time(call, self.synchronize, calls, **self._rounds)


def _version() -> str:
    return distribution.version() or "source tree"
