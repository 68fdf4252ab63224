"""How a kernel comes from disk to a device, in the place of which stand files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuconv.bench.copy import Copy
from cuconv.jit.cache import Artifact
from cuconv.runtime import kernel

cupy = pytest.importorskip("cupy")


class Module:
    """What loads a file when a function of it is wanted."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def get_function(self, name: str) -> Any:
        if self._path.read_text() == "bad":
            raise RuntimeError("invalid image")
        return SimpleNamespace(kernel=SimpleNamespace(ptr=7))


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Where kernels are built next, and a GPU that needs them."""
    paths: list[Path] = []

    def build(unit: str, expression: str, compute_capability: int) -> Artifact:
        return Artifact(paths.pop(0), "symbol", None, "cubin", True)

    @contextmanager
    def device(number: int) -> Iterator[Any]:
        yield SimpleNamespace(compute_capability="90")

    monkeypatch.setattr(kernel, "build", build)
    monkeypatch.setattr(cupy, "RawModule", Module)
    monkeypatch.setattr(cupy.cuda, "Device", device)
    kernel._load.cache_clear()
    yield paths
    kernel._load.cache_clear()


def test_a_kernel_that_is_gone_before_it_is_loaded_is_built_again(builds: list[Path], tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("good")
    builds += [tmp_path / "gone", there]
    assert Copy().load(0)._pointer == 7 and not builds


def test_a_kernel_that_cannot_be_loaded_is_an_error(builds: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("bad")
    builds += [bad, bad]
    with pytest.raises(RuntimeError, match="invalid image"):
        Copy().load(0)
    assert builds == [bad]


def test_a_kernel_that_is_always_gone_is_an_error(builds: list[Path], tmp_path: Path) -> None:
    builds += [tmp_path / "gone"] * 3
    with pytest.raises(FileNotFoundError):
        Copy().load(0)
    assert len(builds) == 1
