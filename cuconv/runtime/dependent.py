"""Programmatic dependent launch: kernels that start before the preceding one on their stream has ended."""

from __future__ import annotations

import ctypes
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

from cuconv.runtime import checks
from cuconv.runtime.launch import LaunchConfig
from cuconv.runtime.layout import HOST, View

_log = logging.getLogger("cuconv")

READS_FIRST = ("CUCONV_STARTS_EARLY",)
WAITS_FIRST = (*READS_FIRST, "CUCONV_WAITS_FIRST")
"""The macros for compiling kernels that start early (common/platform.cuh)."""

BLOCKS_AT_ONCE = 1024
"""Most blocks of a launch that reads before it waits. On an H200 the convolution, the state update and the gated norm
of a Mamba-2 layer take, with reads first and with waits first, 4.9 and 5.1 us for one sequence (256 blocks of the state
update), 13.0 and 13.1 for 8 (2,048), 23.1 and 21.7 for 16, 83.6 and 77.1 for 64. With ordinary launches they take 6.4,
15.5, 23.8 and 78.3.
"""

contexts: list[None] = []
"""One element for each `dependent_launch` that is open in any thread: while there is one, all launches are recorded."""

_is_wanted = ContextVar("dependent_launch", default=False)


@contextmanager
def dependent_launch() -> Iterator[None]:
    """Let cuconv's kernels start before the kernel in front of them has ended: in `with`, or as a decorator.

    Decode steps of small batches are chains of kernels of one or two microseconds each, and much of that time passes
    between the end of one and the first result of the next. In this context a kernel starts while the preceding one on
    its stream still runs (programmatic dependent launch). It reads its weights, slots and states, waits for the
    preceding kernel before it reads anything else or writes, and lets the next kernel start early in the same way.

    These decode steps start early: `causal_conv1d_update` and its splits, `selective_state_update`,
    `selective_state_update_replay` and its companions. Other functions have ordinary launches, and so has everything on
    GPUs before compute capability 9.0 and with drivers before CUDA 12.3. Captured graphs, of torch and CuPy alike, keep
    the way in which their kernels were launched. These kernels are compiled separately: call once in the context before
    capturing.

    **What the preceding kernel must not write.** A kernel may read these before the preceding one has ended: weight,
    bias, A, D, dt_bias, states and their scales in pools, and the arrays that say where states and tokens are, such as
    conv_state_indices, state_batch_indices, state_column, has_initial_state and query_start_loc. If the preceding
    kernel is cuconv's own, cuconv sees to that: a kernel that would read early what the launch before it writes, as in
    two steps of one layer in a row, has an ordinary launch, and so has the first kernel on a stream in the context or
    in a capture. Other kernels are not known to cuconv. `slots = table[requests]` right before
    `causal_conv1d_update(..., conv_state_indices=slots)` breaks the contract, as does a kernel that copies a state into
    the pool; with any other kernel in between, or outside of the context, both are correct. x, dt, B, C and z may
    always come from the preceding kernel: they are read when it has ended. Copies and memsets by the driver are no
    kernels; a kernel that follows them waits for them.

    If a kernel lets the next one start before it has waited itself, the contract of the next one also covers the kernel
    in front of both. `causal_conv1d_update` of small batches does so: the kernel in front of it must not write, for
    instance, the states of a `selective_state_update` that follows. Other libraries' kernels may do so, too.

    The context holds for the calls of this thread, or of this task of asyncio, until it ends. It can be nested.

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


def defined(config: LaunchConfig) -> tuple[str, ...]:
    """The macros for a launch that starts early."""
    return READS_FIRST if math.prod(config.grid) <= BLOCKS_AT_ONCE else WAITS_FIRST


class Extent(NamedTuple):
    """The addresses of an array's first byte and of the byte behind its last one, and the array."""

    begin: int
    end: int
    view: View

    def meets(self, other: Extent) -> bool:
        """Whether two arrays share an element."""
        # Bounds come first: two comparisons rule out nearly all pairs.
        return self.begin < other.end and other.begin < self.end and checks.overlap(self.view, other.view)


Place = tuple[int, int, int]
"""A device, a raw stream, and the number of the capture in which the stream takes part; 0 for none."""


class _Launched:
    """Memory that launches on a stream write; in a capture, on one of its streams."""

    def __init__(self) -> None:
        self.last: list[Extent] = []
        """The memory written by the last launch, and by those that may not have ended when the next one starts
        early."""
        self.captured: list[Extent] = []
        """The memory written by all launches of a capture: a launch on another stream may follow any of them."""


_launched: dict[Place, _Launched] = {}
_lock = threading.Lock()


MAX_EXTENTS = 64
"""Most arrays that are remembered as written by launches that may not have ended; with more, the next launch waits."""


def may_overlap(
    device: int, stream: int, early: Sequence[Extent] | None, written: Sequence[Extent], lets_go_first: bool = False
) -> bool:
    """Whether the next launch on a stream may start before the preceding one has ended. The arrays that it writes are
    recorded.

    Args:
        device: the number of the CUDA device.
        stream: the raw stream.
        early: the arrays that the launch reads before it waits; None for one that cannot start early.
        written: the arrays that it writes.
        lets_go_first: whether it lets the next launch start before it has waited itself.
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
        starts_early = early is not None and not is_first and _is_wanted.get() and len(own.last) < MAX_EXTENTS
        if starts_early and any(one.meets(other) for one in early or () for other in before):
            _log.debug("a kernel waits for the one before it, which writes what it reads early")
            starts_early = False
        own.last = [*(own.last if starts_early and lets_go_first else ()), *written]
        if capture:
            own.captured += written
    return starts_early


@cache
def driver() -> Any:
    """The driver's functions, because neither CuPy nor the bindings of CUDA's runtime have launches with attributes."""
    return ctypes.CDLL("libcuda.so.1")


def check(status: int) -> None:
    """Raise CuPy's error for the status that a function of the driver has returned."""
    from cupy_backends.cuda.api import driver

    driver.check_status(status)


def _capture(device: int, stream: int) -> int:
    """The number of the capture in which a stream takes part; 0 for none."""
    if device <= HOST:
        return 0
    status, number = ctypes.c_int(), ctypes.c_uint64()
    get = driver().cuStreamGetCaptureInfo_v2
    check(get(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None))
    return number.value if status.value else 0


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (("sizes", ctypes.c_uint * 7), ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p),
                ("count", ctypes.c_uint))  # fmt: skip


MAX_STREAMS = 64
"""Most streams for which a kernel keeps the configurations of its launches."""

_SERIALIZATION = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""

_attribute = _Attribute(_SERIALIZATION)
_attribute.value[0] = 1


def launcher(function: int, config: LaunchConfig) -> Callable[[int, int, int], None]:
    """A function that launches a device function so that it starts early; it takes the stream, the address of the
    arguments' addresses, and 0.
    """
    sizes = (ctypes.c_uint * 7)(*config.flat)
    handle, attribute = ctypes.c_void_p(function), ctypes.addressof(_attribute)
    configs: dict[int, Any] = {}

    def launch(stream: int, arguments: int, extra: int) -> None:
        each = configs.get(stream)
        if each is None:
            if len(configs) == MAX_STREAMS:
                configs.clear()
            # Making one takes 0.6 us.
            configs[stream] = each = ctypes.byref(_Config(sizes, stream, attribute, 1))
        status = driver().cuLaunchKernelEx(each, handle, ctypes.c_void_p(arguments), None)
        if status:
            check(status)

    return launch
