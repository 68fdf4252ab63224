"""Which launches start before the preceding one has ended, and how they are handed to the driver."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import cuconv
from cuconv.runtime import dependent
from cuconv.runtime.dtypes import FLOAT32
from cuconv.runtime.launch import LaunchConfig
from cuconv.runtime.layout import Layout, View

ROWS, OTHER = View(4096, Layout((4, 8), (8, 1), FLOAT32, 0, 0)), View(8192, Layout((4, 8), (8, 1), FLOAT32, 0, 0))
EVEN, ODD = (View(4096 + 4 * first, Layout((16,), (2,), FLOAT32, 0, 0)) for first in range(2))
EMPTY = View(4100, Layout((0, 8), (8, 1), FLOAT32, 0, 4))


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, int]]:
    """The capture that each stream takes part in."""
    captures: dict[int, int] = {}
    monkeypatch.setattr(dependent, "_capture", lambda device, stream: captures.get(stream, 0))
    yield captures
    assert not dependent.contexts and not dependent._launched


def launch(
    *written: View, early: tuple[View, ...] | None = (), stream: int = 7, device: int = 0, lets_go_first: bool = False
) -> bool:
    """Whether a launch that writes this, and reads that early, may start before the preceding one has ended."""
    extents = None if early is None else list(map(extent, early))
    return dependent.may_overlap(device, stream, extents, list(map(extent, written)), lets_go_first)


def extent(view: View) -> dependent.Extent:
    begin, end = view.layout.span
    return dependent.Extent(view.pointer + begin, view.pointer + end, view)


def test_the_first_launch_on_a_stream_waits_and_others_do_not() -> None:
    with cuconv.dependent_launch():
        assert [launch(), launch(), launch(stream=8), launch(stream=8), launch(device=1)] == [False, True] * 2 + [False]
    with cuconv.dependent_launch():
        assert not launch()


@pytest.mark.parametrize(
    ("written", "early", "expected"),
    [
        ((ROWS,), (ROWS,), False),
        ((ROWS,), (OTHER,), True),
        ((ROWS,), (), True),
        ((), (ROWS,), True),
        ((OTHER, EVEN), (OTHER, ODD), False),
        # Arrays may lie in the gaps of others: an engine's page has the states of both kinds.
        ((EVEN,), (ODD,), True),
        ((EVEN,), (ROWS,), False),
        ((ROWS,), (EMPTY,), True),
        ((ROWS,), None, False),
    ],
)
def test_a_launch_waits_that_reads_early_what_the_one_before_writes(
    written: tuple[View, ...], early: tuple[View, ...] | None, expected: bool
) -> None:
    with cuconv.dependent_launch():
        launch()
        launch(*written)
        assert launch(early=early) is expected
        # The launch before that has ended when this one reads.
        assert launch(early=written)


def test_a_launch_that_lets_the_next_one_go_first_has_two_in_front() -> None:
    with cuconv.dependent_launch():
        launch(ROWS)
        assert launch(lets_go_first=True)
        assert not launch(early=(ROWS,))
        # Where it waits as ever itself, the one in front of it has ended.
        launch(ROWS)
        assert not launch(early=(ROWS,), lets_go_first=True)
        assert launch(early=(ROWS,))
        launch(ROWS)
        for _ in range(3):
            assert launch(OTHER, lets_go_first=True)
        assert not launch(early=(ROWS,))


def test_launches_in_a_row_that_let_the_next_one_go_first_wait_in_the_end() -> None:
    with cuconv.dependent_launch():
        launch()
        found = [launch(OTHER, lets_go_first=True) for _ in range(2 * dependent.MAX_EXTENTS)]
    assert found.count(False) == 1


def test_only_calls_in_the_context_start_early() -> None:
    assert not dependent.contexts
    with cuconv.dependent_launch():
        with cuconv.dependent_launch():
            launch()
        assert launch()
        with pytest.raises(KeyError), cuconv.dependent_launch():
            raise KeyError
        assert launch() and len(dependent.contexts) == 1


def test_as_a_decorator() -> None:
    @cuconv.dependent_launch()
    def twice() -> tuple[bool, bool]:
        return launch(), launch()

    assert [twice(), twice()] == [(False, True)] * 2


def test_threads_and_tasks_outside_do_not_start_early_but_are_noted() -> None:
    results = []

    def run(function: Callable[[], Any]) -> None:
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    async def outside(ready: asyncio.Event) -> None:
        await ready.wait()
        results.append(launch(ROWS))

    async def inside(ready: asyncio.Event) -> None:
        with cuconv.dependent_launch():
            launch()
            ready.set()
            await asyncio.sleep(0.01)
            results.append(launch(early=(ROWS,)))

    async def both() -> None:
        ready = asyncio.Event()
        await asyncio.gather(outside(ready), inside(ready))

    with cuconv.dependent_launch():
        launch()
        run(lambda: results.append(launch(ROWS)))
        assert results == [False] and not launch(early=(ROWS,)) and launch()
    asyncio.run(both())
    assert results == [False] * 3


def test_handles_of_default_streams() -> None:
    with cuconv.dependent_launch():
        launch(ROWS, stream=0)
        assert not launch(early=(ROWS,), stream=1)
        launch(stream=2)
        first: list[bool] = []
        thread = threading.Thread(target=lambda: first.append((2, launch(stream=2))[1]))
        thread.start()
        thread.join()
        # Each thread has a stream of its own by this handle.
        assert first == [False] and launch(stream=2)


def test_a_captured_launch_is_not_what_precedes_one_on_the_stream(gpu: dict[int, int]) -> None:
    with cuconv.dependent_launch():
        launch(ROWS)
        gpu[7] = 3
        assert [launch(), launch(OTHER)] == [False, True]
        del gpu[7]
        assert not launch(early=(ROWS,))


def test_in_a_capture_a_launch_may_follow_any_of_another_stream(gpu: dict[int, int]) -> None:
    gpu |= {7: 3, 8: 3, 9: 4}
    with cuconv.dependent_launch():
        launch(ROWS)
        launch()
        launch(stream=8)
        assert not launch(early=(ROWS,), stream=8)
        assert launch(early=(ROWS,)) and launch(early=(OTHER,), stream=8)
        # The streams of another capture are no matter, and nothing is kept of those that are over.
        launch(stream=9)
        assert launch(early=(ROWS,), stream=9) and len(dependent._launched) == 1


def test_what_the_driver_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of CUlaunchConfig and CUlaunchAttribute in cuda.h."""
    found: dict[str, Any] = {}

    def launch_kernel(config: Any, function: Any, arguments: Any, extra: None) -> int:
        raw = ctypes.string_at(config, 56)
        found["sizes"] = [int.from_bytes(raw[at : at + 4], "little") for at in range(0, 28, 4)]
        found["stream"], found["function"] = int.from_bytes(raw[32:40], "little"), function.value
        attribute = ctypes.string_at(int.from_bytes(raw[40:48], "little"), 72)
        found["attribute"] = attribute[0], attribute[8]
        found["count"], found["arguments"] = int.from_bytes(raw[48:52], "little"), arguments.value
        return 0

    monkeypatch.setattr(dependent, "driver", lambda: SimpleNamespace(cuLaunchKernelEx=launch_kernel))
    monkeypatch.setattr(dependent, "check", lambda status: None)
    dependent.launcher(123, LaunchConfig((5, 4, 3), (32, 2, 1), 100))(2**40, 456, 0)
    assert found == {
        "sizes": [5, 4, 3, 32, 2, 1, 100], "stream": 2**40, "function": 123, "attribute": (6, 1), "count": 1,
        "arguments": 456,
    }  # fmt: skip
