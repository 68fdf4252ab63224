"""Launches that are repeated by graphs: some for each stream, and none where a graph is captured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from cuconv.runtime import generated, graphs
from tests.support.graphs import FakeRuntime

cupy = pytest.importorskip("cupy")


@pytest.fixture(params=[False, True], ids=["devices", "one-device"])
def fake(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeRuntime:
    monkeypatch.setattr("cuconv.runtime.machine.has_one_device", lambda: request.param)
    return FakeRuntime(monkeypatch)


def repeated(*launches: Callable[[int], None]) -> Callable[[int], None]:
    part = graphs.repeated(launches, 0)
    return generated.function("on", part.text.splitlines(), part.values)


def test_the_first_call_makes_a_graph_that_others_launch(fake: FakeRuntime) -> None:
    launch = repeated(fake.kernel(1), fake.kernel(2))
    assert fake.taken(launch, 7) == [("kernel", 1, 7), ("kernel", 2, 7)] and fake.made == [7]
    assert fake.taken(launch, 7) == fake.taken(launch, 7) == [("graph", 1, 7)] and fake.made == [7]


def test_streams_have_graphs_of_their_own(fake: FakeRuntime) -> None:
    launch = repeated(fake.kernel(1))
    for stream in (7, 8):
        launch(stream)
    assert fake.taken(launch, 8) == [("graph", 2, 8)] and fake.taken(launch, 7) == [("graph", 1, 7)]


def test_no_graph_is_launched_by_two_threads_at_the_same_time(fake: FakeRuntime) -> None:
    launch = repeated(fake.kernel(1))
    launch(7)

    def meanwhile() -> None:
        fake.during_launch = lambda: None
        other = threading.Thread(target=lambda: [launch(7), launch(7)])
        other.start()
        other.join()

    fake.during_launch = meanwhile
    # The other thread makes a graph with its first call, and launches it with its second one.
    assert fake.taken(launch, 7) == [("kernel", 1, 7), ("graph", 2, 7), ("graph", 1, 7)]
    # One after another they may use the same graph.
    fake.launched.clear()
    for _ in range(3):
        thread = threading.Thread(target=launch, args=(7,))
        thread.start()
        thread.join()
    assert {kind for kind, *_ in fake.launched} == {"graph"} and fake.made == [7, 7]


def test_a_graph_that_could_not_be_launched_is_launched_again(fake: FakeRuntime) -> None:
    launch = repeated(fake.kernel(1))
    launch(7)

    def fails() -> None:
        raise RuntimeError("not now")

    fake.during_launch = fails
    for _ in range(3):
        with pytest.raises(RuntimeError, match="not now"):
            launch(7)
    fake.during_launch = lambda: None
    assert fake.taken(launch, 7) == [("graph", 1, 7)] and fake.made == [7]


def test_kernels_are_launched_where_no_graph_can_be(fake: FakeRuntime) -> None:
    launch = repeated(fake.kernel(1), fake.kernel(2))
    kernels = [("kernel", 1, 7), ("kernel", 2, 7)]
    fake.capturing.add(7)
    assert fake.taken(launch, 7) == kernels and not fake.made
    fake.capturing.clear()
    launch(7)
    fake.capturing.add(7)
    assert fake.taken(launch, 7) == kernels
    fake.capturing.clear()
    assert fake.taken(launch, 7) == [("graph", 1, 7)]


def test_kernels_are_launched_while_another_device_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuconv.runtime.machine.has_one_device", lambda: False)
    fake = FakeRuntime(monkeypatch)
    launch = repeated(fake.kernel(1))
    for stream in (0, 7):
        launch(stream)
        fake.device = 1
        assert fake.taken(launch, stream) == [("kernel", 1, stream)]
        fake.device = 0
        assert fake.taken(launch, stream) == [("graph", len(fake.made), stream)]


def test_the_default_stream_is_not_asked_whether_it_is_captured(fake: FakeRuntime) -> None:
    launch = repeated(fake.kernel(1))
    for stream in (0, 0, 7, 7):
        launch(stream)
    assert fake.asked == [7, 7] and fake.made == [0, 7]


def test_there_is_an_end_to_graphs(fake: FakeRuntime) -> None:
    launch = repeated(fake.kernel(1))
    for stream in range(graphs.MAX_GRAPHS + 3):
        launch(stream)
    assert len(fake.made) == graphs.MAX_GRAPHS
    for _ in range(2):
        assert fake.taken(launch, graphs.MAX_GRAPHS) == [("kernel", 1, graphs.MAX_GRAPHS)]


def test_where_nothing_is_launched_there_is_no_graph(fake: FakeRuntime) -> None:
    launch = repeated()
    for _ in range(2):
        assert fake.taken(launch, 7) == [] and not fake.made


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
