"""Time on a GPU: kernels by replay of a CUDA graph with a cold L2 cache, calls by the host's clock.

The method: a graph holds many calls over enough sets of arrays that none is still in the L2 cache when its turn comes
again; the median of its replays, measured by events and divided by the calls, is one call's kernel time. The time of a
plain copy of the same number of bytes, measured in the same way, is the practical limit at that size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.bench.copy import Copy
from cuconv.runtime.launch import ceil_div

REPLAYS = 15
MIN_REPLAYS, MAX_SECONDS = 5, 0.5
"""The fewest replays, and the seconds after which slow work, which varies less, is not replayed again."""
MIN_CALLS = 20
COLD_BYTES = 3
"""A graph's sets of arrays together hold this many times the L2 cache."""

Call = Callable[[], Any]


@dataclass(frozen=True)
class Percentiles:
    """Repeated measurements: their median, and the range of the middle three fifths of them."""

    p20: float
    p50: float
    p80: float

    @classmethod
    def of(cls, values: Sequence[float], unit: float = 1.0) -> Percentiles:
        """The percentiles of values in seconds, expressed in `unit` seconds."""
        return cls(*(float(value) / unit for value in np.percentile(values, (20, 50, 80))))


def sets_needed(nbytes: int) -> int:
    """How many sets of arrays of `nbytes` bytes each it takes to find the L2 cache cold, at least two."""
    from cupy import cuda

    l2 = cuda.Device().attributes["L2CacheSize"]
    return max(2, ceil_div(COLD_BYTES * l2, nbytes))


class Replay:
    """A CUDA graph of one call on different sets of arrays, ready to be timed."""

    def __init__(self, calls: Sequence[Call]) -> None:
        """Capture `calls`, which enqueue on CuPy's current stream, in turn and at least MIN_CALLS of them."""
        from cupy import cuda

        self._stream = cuda.Stream(non_blocking=True)
        # The graph uses the addresses of arrays that the calls hold.
        self._captured = calls
        self.calls = max(MIN_CALLS, len(calls))
        with self._stream:
            for call in calls:
                # Compiling and loading cannot be captured.
                call()
            self._stream.synchronize()
            self._stream.begin_capture()
            for index in range(self.calls):
                calls[index % len(calls)]()
            self._graph = self._stream.end_capture()
        self.run()

    def run(self) -> None:
        """Replay once and wait."""
        self._graph.launch(self._stream)
        self._stream.synchronize()

    def times(self, replays: int = REPLAYS) -> list[float]:
        """Seconds that the device spends on one call, replay by replay."""
        return by_events(lambda: self._graph.launch(self._stream), self._stream, self.calls, replays)

    def seconds(self, replays: int = REPLAYS) -> float:
        """Their median."""
        return statistics.median(self.times(replays))


def by_events(work: Call, stream: Any, calls: int, replays: int) -> list[float]:
    """Seconds of one call, replay by replay, where `work` enqueues this many calls on a CuPy stream."""
    from cupy import cuda

    times: list[float] = []
    while len(times) < replays and (len(times) < MIN_REPLAYS or sum(times) * calls < MAX_SECONDS):
        start, stop = cuda.Event(), cuda.Event()
        start.record(stream)
        work()
        stop.record(stream)
        stop.synchronize()
        times.append(cuda.get_elapsed_time(start, stop) * 1e-3 / calls)
    return times


def copy_time(nbytes: int, replays: int = REPLAYS) -> float:
    """Seconds for a plain copy that moves `nbytes` bytes, half of them read and half written."""
    import cupy

    kernel = Copy()
    half = ceil_div(nbytes // 2, 16) * 16
    sets = [(cupy.ones(half, cupy.uint8), cupy.empty(half, cupy.uint8)) for _ in range(sets_needed(2 * half))]
    config, numbers = kernel.launch_config(half)
    enqueue = kernel.load(cupy.cuda.Device().id).bound(config, kernel.params.pack_numbers(**numbers))

    def call(x: Any, out: Any) -> Call:
        pointers = x.data.ptr, out.data.ptr
        return lambda: enqueue(pointers, cupy.cuda.get_current_stream().ptr)

    return Replay([call(x, out) for x, out in sets]).seconds(replays)


def host_time(call: Call, synchronize: Call, calls: int = 500, rounds: int = 7) -> float:
    """Seconds until a call returns, without waiting for the device: the median of rounds that each begin with an idle
    device."""
    times: list[float] = []
    for _ in range(rounds + 1):
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
    synchronize()
    return statistics.median(times[1:])
