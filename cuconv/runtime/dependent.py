"""Programmatic dependent launch: kernels that start before the preceding one on their stream has ended."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from cuconv.runtime import checks
from cuconv.runtime.launch import LaunchConfig
from cuconv.runtime.layout import HOST, View

_log = logging.getLogger("cuconv")

contexts: list[None] = []
"""One element for each `dependent_launch` that is open in any thread: while there is one, all launches are noted."""

_is_wanted = ContextVar("dependent_launch", default=False)


@contextmanager
def dependent_launch() -> Iterator[None]:
    """Let cuconv's kernels start before the kernel in front of them has ended: in `with`, or as a decorator.

    A decode step of a small batch is a chain of kernels that take a microsecond each, and half of that is the time from
    the end of one to the start of the next. In this context a kernel is launched by programmatic dependent launch: it
    starts while the preceding kernel on its stream still runs, reads its parameters, slots and states, and waits for
    that kernel before it reads anything else and before it writes. It lets the next kernel start in the same way.

    Decode steps do so (`causal_conv1d_update` and its splits, `selective_state_update`, `selective_state_update_replay`
    and what belongs to it); other functions are launched as ever. So is everything on GPUs before compute capability
    9.0, and with drivers before CUDA 12.3. Captured graphs, of torch and CuPy alike, keep how their kernels were
    launched. A launch costs the host 3 us more.

    **What the preceding kernel must not write.** A kernel may read these before the preceding one has ended: weight,
    bias, A, D, dt_bias, the states and rings that it starts from, and all arrays of numbers (slots, cu_seqlens,
    num_accepted_tokens, parents, rand_seed and so on). Where the preceding kernel is cuconv's own, this is taken care
    of: one that reads early what the launch before it writes, as in two decode steps of one layer in a row, is launched
    as ever, and so is the first one on a stream in the context. Kernels of others are not known here. So
    `slots = table[requests]` right before `causal_conv1d_update(..., conv_state_indices=slots)` breaks the contract, as
    does a copy into the pool of states; with any other kernel in between, or outside of the context, it is right. So it
    is if x, dt, B, C or z come from the preceding kernel: they are read when it has ended. Copies and memsets by the
    driver are no kernels; what follows them waits for them.

    The context holds for calls of this thread, or task of asyncio, until it ends. It can be nested.

    Example:
        with cuconv.dependent_launch(), torch.cuda.graph(graph):
            out = model(token)
    """
    token = _is_wanted.set(True)
    contexts.append(None)
    try:
        yield
    finally:
        contexts.pop()
        _is_wanted.reset(token)
        if not contexts:
            _launched.clear()


Place = tuple[int, int, int]
"""A device, a raw stream, and the number of the capture in which the stream takes part; 0 for none."""


class _Launched:
    """What the launches on a stream write, or on one stream of a capture."""

    def __init__(self) -> None:
        self.last: list[View] = []
        """The memory of the last launch."""
        self.captured: list[View] = []
        """That of all launches of a capture: those on other streams may follow any of them."""


_launched: dict[Place, _Launched] = {}
_lock = threading.Lock()


def may_overlap(device: int, stream: int, early: Sequence[View] | None, written: Sequence[View]) -> bool:
    """Whether the next launch on a stream may start before the preceding one has ended. What it writes is noted.

    Args:
        device: the number of the CUDA device.
        stream: the raw stream.
        early: what the launch reads before it waits; None for one that cannot start early.
        written: what it writes.
    """
    capture = _capture(device, stream)
    # Two handles stand for the default stream, and one for a stream of each thread.
    place = device, {1: 0, 2: -threading.get_ident()}.get(stream, stream), capture
    with _lock:
        is_first = place not in _launched
        if is_first and capture:
            for key in [key for key in _launched if key[2] not in (0, capture)]:
                del _launched[key]
        own = _launched.setdefault(place, _Launched())
        before = own.last
        for key, other in _launched.items() if capture else ():
            if key[2] == capture and key != place:
                before = before + other.captured
        own.last = list(written)
        if capture:
            own.captured += written
    if early is None or is_first or not _is_wanted.get():
        return False
    if any(checks.overlap(one, other) for one in early for other in before):
        _log.debug("a kernel waits for the one before it, which writes what it reads early")
        return False
    return True


@cache
def _driver() -> Any:
    """The driver's functions. CuPy and the bindings of CUDA's runtime have no launch with attributes."""
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int) -> None:
    from cupy_backends.cuda.api import driver

    driver.check_status(status)


def _capture(device: int, stream: int) -> int:
    """The number of the capture in which a stream takes part; 0 for none."""
    if device <= HOST:
        return 0
    status, number = ctypes.c_int(), ctypes.c_uint64()
    get = _driver().cuStreamGetCaptureInfo_v2
    _check(get(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None))
    return number.value if status.value else 0


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (("sizes", ctypes.c_uint * 7), ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p),
                ("count", ctypes.c_uint))  # fmt: skip


_SERIALIZATION = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""

_attribute = _Attribute(_SERIALIZATION)
_attribute.value[0] = 1


def launcher(function: int, config: LaunchConfig) -> Callable[[int, int, int], None]:
    """What launches a device function so that it starts early, with the stream, and the addresses of its arguments'
    addresses and of nothing.
    """
    sizes = (ctypes.c_uint * 7)(*config.flat)
    handle, attribute = ctypes.c_void_p(function), ctypes.addressof(_attribute)

    def launch(stream: int, arguments: int, extra: int) -> None:
        each = _Config(sizes, stream, attribute, 1)
        _check(_driver().cuLaunchKernelEx(ctypes.byref(each), handle, ctypes.c_void_p(arguments), None))

    return launch
