"""How a kernel comes from disk to a device, in the place of which stand files, and is launched by several threads."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuconv.bench.copy import Copy
from cuconv.jit.cache import Artifact
from cuconv.runtime import kernel
from cuconv.runtime.kernel import LoadedKernel, Params
from cuconv.runtime.launch import LaunchConfig

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

    def build(unit: str, expression: str, compute_capability: int, defined: tuple[str, ...]) -> Artifact:
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


class Device:
    """In the place of the driver and the runtime: what a thread launches, and on which device it is."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self.launched: list[tuple[int, int, bytes]] = []

    def get(self) -> int:
        number: int = getattr(self._thread, "number", 0)
        return number

    def set(self, number: int) -> None:
        self._thread.number = number

    def launch(self, function: int, *config: int) -> None:
        *_, stream, arguments, _ = config
        address = ctypes.c_void_p.from_address(arguments).value
        assert address is not None
        before = ctypes.string_at(address, PARAMS.dtype.itemsize)
        time.sleep(1e-4)  # lets other threads launch
        after = ctypes.string_at(address, PARAMS.dtype.itemsize)
        assert before == after
        self.launched.append((self.get(), stream, after))


PARAMS = Params(("x", "out"), ("count", "i8"))


def loaded(number: int, device: Device, starts_early: bool = False) -> LoadedKernel:
    kernel = LoadedKernel(None, 1, number, PARAMS, starts_early)
    kernel._launch, kernel.get_device, kernel._set_device = device.launch, device.get, device.set
    return kernel


def test_threads_launch_with_arguments_of_their_own() -> None:
    device = Device()
    config = LaunchConfig((1, 1, 1), (32, 1, 1))
    shared = [loaded(number, device).bound(config, PARAMS.pack_numbers(count=number)) for number in range(2)]

    def work(thread: int) -> None:
        for i in range(20):
            shared[i % 2]((thread, i), thread)
            assert device.get() == 0, "the caller's device is left as it was"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    wanted = [(i % 2, thread, struct.pack("=3Q", thread, i, i % 2)) for thread in range(8) for i in range(20)]
    assert sorted(device.launched) == sorted(wanted)


def test_a_kernel_that_starts_early_is_launched_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """On whatever device is current, with the arguments where they are for other launches."""
    device, config = Device(), LaunchConfig((5, 1, 1), (32, 1, 1))

    def launcher(function: int, given: LaunchConfig) -> Any:
        assert (function, given) == (1, config)
        return lambda stream, arguments, extra: device.launch(function, stream, arguments, extra)

    monkeypatch.setattr(kernel.dependent, "launcher", launcher)
    numbers = PARAMS.pack_numbers(count=3)
    enqueue = loaded(1, device, starts_early=True).bound(config, numbers)
    for stream in (7, 8):
        enqueue((stream, 2), stream)
    loaded(1, device, starts_early=True).fixed(config, numbers, (9, 2))(9)
    assert device.launched == [(1, stream, struct.pack("=3Q", stream, 2, 3)) for stream in (7, 8, 9)]
    assert device.get() == 0


class Leader(kernel.Kernel):
    params = PARAMS  # type: ignore[assignment]


class Follower(Leader):
    FOLLOWS = True


@pytest.mark.parametrize("is_possible", [False, True])
@pytest.mark.parametrize("cls", [Leader, Follower])
def test_a_kernel_that_follows_starts_early_where_that_is_possible(
    cls: type[kernel.Kernel], is_possible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = SimpleNamespace(get_function=lambda symbol: SimpleNamespace(kernel=SimpleNamespace(ptr=1)))
    monkeypatch.setattr(cupy, "RawModule", lambda path: module)
    monkeypatch.setattr(kernel.machine, "has_dependent_launch", lambda device: is_possible)
    found = kernel._loaded(cls(), SimpleNamespace(path="", symbol=""), 0, False)  # type: ignore[arg-type]
    assert found._starts_early is (cls.FOLLOWS and is_possible)
