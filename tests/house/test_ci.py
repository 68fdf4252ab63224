"""What CI runs is what a user runs: the same checks, then the same tests, with examples that are new each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.support.discovery import ROOT

PROGRAM = """
import json, tests.conftest
from hypothesis import settings
print(json.dumps([settings.default.derandomize, settings.default.print_blob]))
"""


def test_property_tests_draw_anew_in_ci_and_print_what_reproduces_a_failure() -> None:
    env = {**os.environ, "CI": "true", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, True]


def test_ci_checks_and_then_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-2:] == ["make check", "make test"]
    assert not any("CI=" in line for line in lines)


class Item:
    """A collected test with these markers."""

    def __init__(self, *markers: str) -> None:
        self._markers = markers
        self.skipped: list[str] = []

    def iter_markers(self, name: str) -> list[str]:
        return [marker for marker in self._markers if marker == name]

    def add_marker(self, marker: Any) -> None:
        self.skipped.append(marker.kwargs["reason"])


def collected(items: list[Any]) -> list[Any]:
    """The tests that are left out."""
    left_out: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    conftest.pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)  # type: ignore[arg-type]
    return left_out


def test_without_a_gpu_one_skip_counts_all_tests_that_need_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "missing_gpu", lambda: "no CUDA device")
    first, other, large, last = items = [Item("gpu"), Item(), Item("big_memory"), Item("gpu", "parametrize")]
    assert collected(items) == [large, last]
    assert items == [first, other]
    assert (first.skipped, other.skipped) == (["no CUDA device (3 tests need one)"], [])


def test_on_a_gpu_all_tests_run_that_it_has_the_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "missing_gpu", lambda: None)
    monkeypatch.setattr(conftest, "missing_memory", lambda: "too little memory")
    items = [Item("gpu"), Item(), Item("gpu", "big_memory")]
    assert collected(items) == [] and len(items) == 3
    assert [item.skipped for item in items] == [[], [], ["too little memory"]]
