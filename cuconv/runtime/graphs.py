"""Launches that are repeated with the same arguments, by CUDA graphs, which take the host less time to launch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import indent
from typing import Any

from cuconv.runtime import dependent, machine
from cuconv.runtime.generated import Part

MAX_GRAPHS = 16
"""Most graphs of one list of repeated launches, on all streams together."""

Launch = Callable[[int], None]
"""Enqueues launches on a raw stream."""


def one_by_one(launches: Sequence[Launch]) -> Part:
    """Code that makes these launches on the stream `on`."""
    each = {f"launch{number}": launch for number, launch in enumerate(launches)}
    return Part("\n".join(f"{name}(on)" for name in each) or "pass", each)


def repeated(launches: Sequence[Launch], device: int) -> Part:
    """Code that makes these launches on the stream `on`, by one call for each kernel or by one call of a graph.

    On an H200's host the launch of a kernel takes 3.9 us, and that of a graph with one kernel 1.5; on the GPU both take
    equally long. Each stream has separate graphs, because a graph waits for its own last launch. Two threads must not
    use one graph at the same time, so each takes a graph out of the stream's list and puts it back.
    """
    from cupy.cuda import runtime

    each = one_by_one(launches)
    if not launches:
        return each
    graphs: dict[int, list[int]] = {}
    made: list[Any] = []

    def launch_first(on: int) -> None:
        if len(made) < MAX_GRAPHS:
            graph = _captured(launches, on)
            made.append(graph)
            graphs.setdefault(on, []).append(graph.graphExec)
        for launch in launches:
            launch(on)

    elsewhere = "" if machine.has_one_device() else "get_device() != own_device or "
    # A graph cannot be launched during a capture, so its kernels are launched then. Stream 0 is never captured.
    text = f"""\
if {elsewhere}on and is_capturing(on):
{indent(each.text, "    ")}
else:
    try:
        graph = (idle := graphs[on]).pop()
    except LookupError:
        launch_first(on)
    else:
        try:
            launch_graph(graph, on)
        finally:
            idle.append(graph)
"""
    values = {
        **each.values, "graphs": graphs, "launch_first": launch_first, "launch_graph": runtime.graphLaunch,
        "is_capturing": runtime.streamIsCapturing,
    }  # fmt: skip
    return Part(text, values | ({"get_device": runtime.getDevice, "own_device": device} if elsewhere else {}))


def _captured(launches: Sequence[Launch], stream: int) -> Any:
    """A graph of these launches, with the priority of a stream."""
    from cupy import cuda

    with _relaxed(), cuda.Stream(non_blocking=True, priority=cuda.runtime.streamGetPriority(stream)) as own:
        own.begin_capture()
        for each in launches:
            each(own.ptr)
        return own.end_capture()


_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""


@contextmanager
def _relaxed() -> Iterator[None]:
    """Let this thread make a graph while another thread captures; without this, that capture would be invalidated."""
    mode = ctypes.c_int(_RELAXED)
    exchange = dependent.driver().cuThreadExchangeStreamCaptureMode
    dependent.check(exchange(ctypes.byref(mode)))
    try:
        yield
    finally:
        dependent.check(exchange(ctypes.byref(mode)))
