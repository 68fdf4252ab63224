"""Launches that are repeated by graphs: one for each stream and thread, and none where a graph is captured."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from cuconv.runtime import graphs

cupy = pytest.importorskip("cupy")


class Fake:
    """In the place of CUDA's runtime: which device is current, what is captured, and what is launched."""

    def __init__(self) -> None:
        self.device = 0
        self.capturing: set[int] = set()
        self.launched: list[tuple[str, int, int]] = []
        self.made: list[int] = []

    def kernel(self, number: int) -> Any:
        return lambda stream: self.launched.append(("kernel", number, stream))

    def graph(self, launches: Any, stream: int) -> Any:
        self.made.append(stream)
        return SimpleNamespace(graphExec=len(self.made))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    runtime = SimpleNamespace(
        getDevice=lambda: made.device,
        streamIsCapturing=lambda stream: stream in made.capturing,
        graphLaunch=lambda graph, stream: made.launched.append(("graph", graph, stream)),
    )
    monkeypatch.setattr("cupy.cuda.runtime", runtime)
    monkeypatch.setattr(graphs, "_captured", made.graph)
    return made


def taken(fake: Fake, launch: Any, stream: int) -> list[tuple[str, int, int]]:
    fake.launched.clear()
    launch(stream)
    return list(fake.launched)


def test_the_first_call_makes_a_graph_that_others_launch(fake: Fake) -> None:
    launch = graphs.repeated([fake.kernel(1), fake.kernel(2)], 0)
    assert taken(fake, launch, 7) == [("kernel", 1, 7), ("kernel", 2, 7)] and fake.made == [7]
    assert taken(fake, launch, 7) == taken(fake, launch, 7) == [("graph", 1, 7)] and fake.made == [7]


def test_streams_and_threads_have_graphs_of_their_own(fake: Fake) -> None:
    launch = graphs.repeated([fake.kernel(1)], 0)
    for stream in (7, 8):
        launch(stream)
    assert taken(fake, launch, 8) == [("graph", 2, 8)] and taken(fake, launch, 7) == [("graph", 1, 7)]
    thread = threading.Thread(target=lambda: [launch(7), fake.launched.clear(), launch(7)])
    thread.start()
    thread.join()
    assert fake.launched == [("graph", 3, 7)]


def test_kernels_are_launched_where_no_graph_can_be(fake: Fake) -> None:
    launch = graphs.repeated([fake.kernel(1)], 0)
    fake.capturing.add(7)
    assert taken(fake, launch, 7) == [("kernel", 1, 7)] and not fake.made
    fake.capturing.clear()
    launch(7)
    fake.capturing.add(7)
    assert taken(fake, launch, 7) == [("kernel", 1, 7)]
    fake.capturing.clear()
    fake.device = 1
    assert taken(fake, launch, 7) == [("kernel", 1, 7)]


def test_there_is_an_end_to_graphs(fake: Fake) -> None:
    launch = graphs.repeated([fake.kernel(1)], 0)
    for stream in range(graphs.MAX_GRAPHS + 3):
        launch(stream)
    assert len(fake.made) == graphs.MAX_GRAPHS
    assert taken(fake, launch, graphs.MAX_GRAPHS) == [("kernel", 1, graphs.MAX_GRAPHS)]


def test_a_graph_has_the_priority_of_its_stream_and_ends_no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    modes, made = [2], []

    def exchange(mode: Any) -> int:
        modes[0], mode._obj.value = mode._obj.value, modes[0]
        return 0

    @contextmanager
    def stream(non_blocking: bool, priority: int) -> Iterator[Any]:
        begin = lambda: made.append(("begin", non_blocking, priority, modes[0]))  # noqa: E731
        yield SimpleNamespace(ptr=5, begin_capture=begin, end_capture=lambda: "graph")

    monkeypatch.setattr(graphs.dependent, "driver", lambda: SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange))
    monkeypatch.setattr(graphs.dependent, "check", lambda status: None)
    monkeypatch.setattr("cupy.cuda.Stream", stream)
    monkeypatch.setattr("cupy.cuda.runtime", SimpleNamespace(streamGetPriority=lambda stream: -stream))
    modes[0] = 0
    assert graphs._captured([made.append], 3) == "graph"
    assert made == [("begin", True, -3, 2), 5] and modes == [0]
