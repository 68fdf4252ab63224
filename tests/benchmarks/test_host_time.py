"""Host time of one call that is not awaited: what a serving loop pays per layer."""

from __future__ import annotations

from typing import Any

import pytest

import cuconv
from cuconv.timing import host_time


def cupy_arrays() -> tuple[Any, Any]:
    import cupy

    arrays = {name: cupy.ones(shape, cupy.float16) for name, shape in SHAPES.items()}
    return arrays, cupy.cuda.Device().synchronize


def torch_tensors() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    arrays = {name: torch.ones(shape, device="cuda", dtype=torch.bfloat16) for name, shape in SHAPES.items()}
    return arrays, torch.cuda.synchronize


SHAPES = {"x": (1, 64, 64), "weight": (64, 4), "bias": (64,)}
"""So small that the device is never the one waited for."""


@pytest.mark.gpu
@pytest.mark.parametrize("given", ["new", "out"])
@pytest.mark.parametrize("library", [cupy_arrays, torch_tensors])
def test_host_time(benchmark: Any, report: Any, library: Any, given: str) -> None:
    arrays, synchronize = library()
    out = {"out": cuconv.causal_conv1d_fn(**arrays)} if given == "out" else {}

    def call() -> None:
        cuconv.causal_conv1d_fn(**arrays, activation="silu", **out)

    benchmark.pedantic(call, rounds=20, iterations=100, warmup_rounds=1)
    report(host_us=host_time(call, synchronize) * 1e6)
