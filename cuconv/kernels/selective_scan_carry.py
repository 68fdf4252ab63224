"""States before the segments of a selective scan, one out of the other: cuda_src/selective_scan_carry.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from cuconv.kernel import Kernel, Params
from cuconv.kernels.scan import segment_params
from cuconv.launch import LaunchConfig, ceil_div, fast_div

THREADS = 128


@dataclass(frozen=True)
class SelectiveScanCarry(Kernel):
    """A thread owns a state of a channel, and loads `ahead` segments' at a time."""

    unit: ClassVar[str] = "selective_scan_carry"
    params: ClassVar[Params] = segment_params(("states", "u4", 3), ("channels", "u4", 3))

    ahead: int = 8

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanCarry]:
        yield cls()

    def launch_config(self, batch: int, dim: int, d_state: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for so many states, and the params that divide them so."""
        config = LaunchConfig((ceil_div(batch * dim * d_state, THREADS), 1, 1), (THREADS, 1, 1))
        return config, {"states": fast_div(d_state), "channels": fast_div(dim)}
