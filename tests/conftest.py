"""What a test needs of the machine: without it the test is skipped, and counted under one reason."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from cuconv.jit import cache
from tests import emulator
from tests.support.processors import processors
from tests.support.runners import Runner, emulated, on_gpu

BIG_MEMORY_GIB = 24
MOST_PROCESSES = 8


@functools.cache
def missing_gpu() -> str | None:
    """Why no GPU can be used, None when one can."""
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        # Without a driver CuPy fails in more than one way.
        return f"no CUDA device: {str(error).partition(chr(10))[0]}"
    return None if count else "no CUDA device"


@functools.cache
def missing_memory() -> str | None:
    """Why the largest tensors do not fit, None when they do."""
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    return None if free >= BIG_MEMORY_GIB * 2**30 else f"less than {BIG_MEMORY_GIB} GiB of GPU memory are free"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what the machine cannot run. Without a GPU the first test that needs one stands for all of them."""
    needing = [item for item in items if any(item.iter_markers("gpu")) or any(item.iter_markers("big_memory"))]
    if not needing:
        return
    if (reason := missing_gpu()) is not None:
        first, *others = needing
        first.add_marker(pytest.mark.skip(reason=f"{reason} ({len(needing)} tests need one)"))
        # To skip each of more than ten thousand tests takes half a minute.
        dropped = set(others)
        items[:] = [item for item in items if item not in dropped]
        config.hook.pytest_deselected(items=others)
        return
    for item in needing:
        if any(item.iter_markers("big_memory")) and (reason := missing_memory()) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Processes of `make test`: one for each processor, each with a gigabyte. A GPU has no room for two."""
    return min(processors(), MOST_PROCESSES) if missing_gpu() else 0


@pytest.fixture(params=["unit-emulated", pytest.param("unit-gpu", marks=pytest.mark.gpu)])
def run(request: pytest.FixtureRequest) -> Runner:
    """A call's way to run."""
    if request.param == "unit-gpu":
        return on_gpu
    if (reason := emulator.available()) is not None:
        pytest.skip(reason)
    return emulated


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A kernel cache folder that is not there yet, also for the processes that a test starts.

    This process has no private folder in its place, and has warned of nothing yet.
    """
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "cache"))
    private = cache._PrivateFolder()
    monkeypatch.setattr(cache, "_private", private)
    monkeypatch.setattr(cache, "_warned", set())
    yield tmp_path / "cache"
    private._remove(os.getpid())


def pytest_configure() -> None:
    """Give every array an allocation of its own under compute-sanitizer, so that the tool knows its bounds."""
    if os.environ.get("CUCONV_SANITIZE") and missing_gpu() is None:
        import cupy

        cupy.cuda.set_allocator(None)


# Every run draws new examples, also where CI is set in the environment: there Hypothesis by itself would always draw
# the same. A failure prints the decorator that reproduces it.
settings.register_profile(
    "cuconv",
    deadline=None,
    max_examples=200,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no failure
)
settings.load_profile("cuconv")
