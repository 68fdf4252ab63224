"""CUDA's runtime for calls that repeat launches by graphs, where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cuconv.runtime import graphs


class FakeRuntime:
    """In the place of CUDA's runtime: which device is current, what is captured, and what is launched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = 0
        self.capturing: set[int] = set()
        self.asked: list[int] = []
        """The streams that were asked whether they are captured."""
        self.launched: list[tuple[Any, ...]] = []
        """("kernel", which, stream) and ("graph", which, stream)."""
        self.made: list[int] = []
        """The stream of each graph."""
        self.during_launch: Callable[[], None] = lambda: None
        """What happens while a graph is launched."""
        runtime = SimpleNamespace(
            getDevice=lambda: self.device, streamIsCapturing=self._is_capturing, graphLaunch=self._launch_graph
        )
        monkeypatch.setattr("cupy.cuda.runtime", runtime)
        monkeypatch.setattr(graphs, "_captured", self._captured)

    def kernel(self, which: Any) -> Callable[[int], None]:
        """What launches a kernel on a stream."""
        return lambda stream: self.launched.append(("kernel", which, stream))

    def taken(self, call: Callable[..., Any], *given: Any) -> list[tuple[Any, ...]]:
        """What a call launches."""
        self.launched.clear()
        call(*given)
        return list(self.launched)

    def _is_capturing(self, stream: int) -> bool:
        self.asked.append(stream)
        return stream in self.capturing

    def _captured(self, launches: Any, stream: int) -> Any:
        self.made.append(stream)
        return SimpleNamespace(graphExec=len(self.made))

    def _launch_graph(self, graph: int, stream: int) -> None:
        self.during_launch()
        self.launched.append(("graph", graph, stream))
