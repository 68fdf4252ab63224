"""The numbers of GPUs, and lower bounds of the time of calls predicted from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cuconv.runtime import machine
from cuconv.runtime.machine import MULTIPROCESSORS


@dataclass(frozen=True)
class Gpu:
    """The speed and size of a GPU's memory and multiprocessors."""

    name: str
    capability: int
    multiprocessors: int
    bandwidth: float
    """Bytes per second of the device memory, from the data sheet."""
    l2_bytes: int
    clock: float
    """Boost clock of the multiprocessors, in Hz."""

    def exponential_seconds(self, count: int) -> float | None:
        """Seconds for `count` exponentials; None when the clock is not known."""
        if not self.clock:
            return None
        return (
            count / _EXPONENTIALS * (REFERENCE.multiprocessors * REFERENCE.clock) / (self.multiprocessors * self.clock)
        )

    def copy_seconds(self, nbytes: int) -> float | None:
        """Seconds for a plain copy that moves `nbytes`, read and written together, with a cold cache.

        The time that REFERENCE takes, scaled by the bandwidths of both. None when the bandwidth is not known.
        """
        if not self.bandwidth:
            return None
        scaled = nbytes * REFERENCE.bandwidth / self.bandwidth
        sizes, seconds = zip(*_COPIES, strict=True)
        if scaled <= sizes[-1]:
            return float(np.interp(scaled, sizes, seconds))
        return float(seconds[-1] * scaled / sizes[-1])


_MIB = 2**20

KNOWN = {
    gpu.name: gpu
    for gpu in (
        Gpu("H200", 90, MULTIPROCESSORS["H200"], 4.8e12, 50 * _MIB, 1.98e9),
        Gpu("H100", 90, MULTIPROCESSORS["H100"], 3.35e12, 50 * _MIB, 1.98e9),
        Gpu("A100", 80, MULTIPROCESSORS["A100"], 2.039e12, 40 * _MIB, 1.41e9),
        Gpu("B200", 100, MULTIPROCESSORS["B200"], 8.0e12, 126 * _MIB, 1.965e9),
        Gpu("L40S", 89, MULTIPROCESSORS["L40S"], 0.864e12, 96 * _MIB, 2.52e9),
        Gpu("RTX4090", 89, MULTIPROCESSORS["RTX4090"], 1.008e12, 72 * _MIB, 2.52e9),
    )
}
"""GPUs by name, from their data sheets; where there are several variants, the SXM module with at least 80 GB."""

REFERENCE = KNOWN[machine.REFERENCE]
"""The GPU of the measurements below: calls in a CUDA graph over more memory than the cache holds."""

EMPTY_KERNEL = 0.5e-6
"""Seconds of a kernel that does nothing."""

_COPIES = (
    (0, EMPTY_KERNEL),
    (_MIB, 1.8e-6),
    (8 * _MIB, 3.7e-6),
    (16 * _MIB, 5.4e-6),
    (64 * _MIB, 18.5e-6),
    (256 * _MIB, 67e-6),
    (512 * _MIB, 131e-6),
    (2048 * _MIB, 518e-6),
)
"""Bytes that a copy moves, half of them read and half written, and its seconds."""

_EXPONENTIALS = 3.6e12
"""Exponentials per second; special-function units of 16 per clock and multiprocessor would do 4.2e12."""


def present(number: int | None = None) -> Gpu:
    """A device of this machine, CuPy's current one if None, with the numbers of its data sheet where that is known."""
    from cupy import cuda

    device = cuda.Device(number)
    attributes = device.attributes
    found = Gpu(
        cuda.runtime.getDeviceProperties(device.id)["name"].decode(),
        int(device.compute_capability),
        attributes["MultiProcessorCount"],
        # Two transfers a clock; kilohertz and bits.
        2e3 * attributes.get("MemoryClockRate", 0) * attributes.get("GlobalMemoryBusWidth", 0) / 8,
        attributes["L2CacheSize"],
        1e3 * attributes.get("ClockRate", 0),
    )
    return as_known(found)


def as_known(gpu: Gpu) -> Gpu:
    """The GPU with the numbers of its data sheet, if its name and what it reports are those of a known one."""
    for known in KNOWN.values():
        is_named = known.name in gpu.name.replace(" ", "")
        # A smaller or slower variant may have the same name. A GPU that does not report its numbers is taken for the
        # known one.
        is_as_fast = not gpu.bandwidth or abs(gpu.bandwidth / known.bandwidth - 1) < 0.1
        if is_named and gpu.multiprocessors == known.multiprocessors and is_as_fast:
            return replace(known, name=gpu.name)
    return gpu
