"""Host time of one call that is not awaited: what a serving loop pays per layer."""

from __future__ import annotations

from typing import Any

import pytest

import cuconv
from cuconv.bench.timing import host_time

ROWS = {"x": (1, 64, 64), "weight": (64, 4), "bias": (64,)}
PACKED = {"x": (64, 64), "weight": (64, 4), "bias": (64,), "conv_states": (2, 64, 3)}
STEP = {"x": (8, 64), "conv_state": (9, 64, 4), "weight": (64, 4), "bias": (64,)}
NUMBERS = [8, 1, 6, 3, 4, 5, 2, 7]
SLOTS = {"conv_state_indices": NUMBERS}
INDICES = {"query_start_loc": [0, 30, 64], "cache_indices": [1, 0]}
SSM = {
    **dict.fromkeys(("x", "dt", "z"), (8, 4, 16)),
    **dict.fromkeys("BC", (8, 1, 32)),
    **dict.fromkeys(("D", "dt_bias"), (4, 16)),
    "A": (4, 16, 32),
    "state": (9, 4, 16, 32),
}
HEADS = {"num_q_heads": 1, "num_k_heads": 1, "num_v_heads": 2, "head_q": 16, "head_k": 16, "head_v": 16}

Call = tuple[dict[str, tuple[int, ...]], dict[str, list[int]], dict[str, Any]]
CALLS: dict[str, Call] = {
    "causal_conv1d_fn": (ROWS, {}, {"activation": "silu"}),
    "causal_conv1d_varlen_fn": (PACKED, INDICES, {}),
    "causal_conv1d_split": (PACKED, INDICES, {"sizes": (32, 16, 16)}),
    "causal_conv1d_qkv_split": (PACKED, INDICES, HEADS),
    "causal_conv1d_varlen_states": ({"x": (64, 64)}, {"cu_seqlens": [0, 30, 64]}, {"state_len": 4}),
    "causal_conv1d_update": (STEP, SLOTS, {"activation": "silu"}),
    "causal_conv1d_update_split": (STEP, SLOTS, {"activation": "silu", "sizes": (32, 16, 16)}),
    "causal_conv1d_update_qkv_split": (STEP, SLOTS, {"activation": "silu", **HEADS}),
    "selective_state_update": (SSM, {"state_batch_indices": NUMBERS}, {"dt_softplus": True}),
}
"""Shapes, integers and options: so small that the device is never the one waited for."""


def cupy_arrays(call: Call) -> tuple[Any, Any]:
    import cupy

    shapes, integers, _ = call
    arrays = {name: cupy.ones(shape, cupy.float16) for name, shape in shapes.items()}
    arrays |= {name: cupy.asarray(values, cupy.int32) for name, values in integers.items()}
    return arrays, cupy.cuda.Device().synchronize


def torch_tensors(call: Call) -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    shapes, integers, _ = call
    arrays = {name: torch.ones(shape, device="cuda", dtype=torch.bfloat16) for name, shape in shapes.items()}
    arrays |= {name: torch.tensor(values, device="cuda", dtype=torch.int32) for name, values in integers.items()}
    return arrays, torch.cuda.synchronize


@pytest.mark.gpu
@pytest.mark.parametrize("given", ["new", "out"])
@pytest.mark.parametrize("library", [cupy_arrays, torch_tensors])
@pytest.mark.parametrize("name", CALLS)
def test_host_time(benchmark: Any, report: Any, name: str, library: Any, given: str) -> None:
    arrays, synchronize = library(CALLS[name])
    arguments = {**arrays, **CALLS[name][2]}
    function = getattr(cuconv, name)
    if given == "out":
        arguments["out"] = function(**arguments)

    def call() -> None:
        function(**arguments)

    benchmark.pedantic(call, rounds=20, iterations=100, warmup_rounds=1)
    report(host_us=host_time(call, synchronize) * 1e6)
