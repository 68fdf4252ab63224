"""Numbers of a GPU: asked of the device, or assumed where a call is only planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from cuconv.runtime.layout import HOST

MULTIPROCESSORS: Mapping[str, int] = {"H200": 132, "H100": 132, "A100": 108, "B200": 148, "L40S": 142, "RTX4090": 128}
"""Multiprocessors by GPU, from their data sheets."""

REFERENCE = "H200"
"""The GPU that thresholds were measured on, assumed for arrays on no device."""

DEPENDENT_CAPABILITY, DEPENDENT_DRIVER = 90, 12030
"""The least compute capability (times 10) and the least CUDA version of the driver with which kernels can start before
the preceding one has ended, also in captured graphs (CUDA programming guide, programmatic dependent launch)."""

_assumed = ContextVar("multiprocessors", default=MULTIPROCESSORS[REFERENCE])


def multiprocessors(device: int) -> int:
    """The multiprocessors of a CUDA device, or of the GPU that a number from `assumed_device` stands for."""
    return HOST - device if device < HOST else _asked(device, "MultiProcessorCount")


def assumed_device() -> int:
    """A device number for arrays that are on no device, which encodes the number of multiprocessors for plans.

    Plans are remembered by the layouts of arrays, so everything that they depend on must be part of these.
    """
    return HOST - _assumed.get()


@cache
def has_dependent_launch(device: int) -> bool:
    """Whether kernels on a device can start before the preceding one has ended."""
    if device <= HOST:
        return False
    import cupy

    capability = int(cupy.cuda.Device(device).compute_capability)
    return capability >= DEPENDENT_CAPABILITY and cupy.cuda.runtime.driverGetVersion() >= DEPENDENT_DRIVER


def has_shared_memory(device: int, nbytes: int) -> bool:
    """Whether a block can have this many bytes of shared memory; true where a call is only planned."""
    return device <= HOST or nbytes <= _asked(device, "MaxSharedMemoryPerBlockOptin")


@cache
def has_one_device() -> bool:
    """Whether this process has only one GPU, which is then the current one."""
    import cupy

    try:
        return int(cupy.cuda.runtime.getDeviceCount()) == 1
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


@contextmanager
def assuming(count: int) -> Iterator[None]:
    """Plan calls on arrays of no device for a GPU with this many multiprocessors."""
    token = _assumed.set(count)
    try:
        yield
    finally:
        _assumed.reset(token)


@cache
def _asked(device: int, attribute: str) -> int:
    """A number that CUDA knows of a device."""
    import cupy

    number: int = cupy.cuda.Device(device).attributes[attribute]
    return number
