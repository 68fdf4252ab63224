"""The workloads that have names: a model's, those of the report, small ones for checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cuconv.bench.makers import MAKERS
from cuconv.bench.models import MODELS, Model
from cuconv.runtime.workload import CHANNELS, TOKENS, Workload

PREFILL, DECODE = 4096, (1, 64, 256)
"""Tokens of a model's prefill, and batches of its decode steps, unless said otherwise."""


def of_model(
    name: str, dtype: str = "bfloat16", tokens: int = PREFILL, batches: tuple[int, ...] = DECODE
) -> Iterator[Workload]:
    """What a layer of a published model calls: prefill of one sequence, packed prefill, decode."""
    model = MODELS[name]
    for function, sizes in (*_prefill(model, tokens), *(call for batch in batches for call in _decode(model, batch))):
        yield MAKERS[function](**sizes, dtype=dtype)


def _prefill(model: Model, tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    conv, states = model.conv, model.states
    filters = {"width": conv.width, "bias": conv.bias}
    contiguous = TOKENS if model.is_mamba1 else CHANNELS
    lie = {"contiguous": contiguous, "silu": conv.silu}
    yield "causal_conv1d_fn", {"dim": conv.dim, "seqlen": tokens, **filters, **lie}
    packed = f"{tokens // 2}+{tokens - tokens // 2 - 8}+8x1" if tokens > 16 else str(tokens)
    if conv.heads:
        yield "causal_conv1d_qkv_split", {"sequences": packed, "heads": conv.heads, **filters}
    elif conv.parts:
        yield "causal_conv1d_split", {"sequences": packed, "parts": conv.parts, **filters, **lie}
    else:
        yield "causal_conv1d_varlen_fn", {"sequences": packed, "dim": conv.dim, **filters, **lie}
    if model.is_mamba1 and states is not None:
        yield "selective_scan_fn", {"dim": states.headdim, "seqlen": tokens, "d_state": states.d_state}
        yield "selective_scan_varlen_fn", {"sequences": packed, "dim": states.headdim, "d_state": states.d_state}


def _decode(model: Model, batch: int) -> Iterator[tuple[str, dict[str, Any]]]:
    conv, states = model.conv, model.states
    step = {"batch": batch, "width": conv.width, "bias": conv.bias, "silu": conv.silu}
    if conv.heads:
        yield "causal_conv1d_update_qkv_split", {**step, "heads": conv.heads}
    elif conv.parts:
        yield "causal_conv1d_update_split", {**step, "parts": conv.parts}
    else:
        yield "causal_conv1d_update", {**step, "dim": conv.dim}
    if states is not None:
        known = {"nheads": states.nheads, "headdim": states.headdim, "ngroups": states.ngroups}
        yield "selective_state_update", {"batch": batch, **known, "d_state": states.d_state, "indices": True}


_BOTH = (CHANNELS, TOKENS)
_MAMBA1: dict[str, Any] = {"nheads": 0, "d_state": 16}

REPORT: dict[str, tuple[dict[str, Any], ...]] = {
    "causal_conv1d_fn": tuple(
        {"batch": batch, "dim": dim, "seqlen": seqlen, "dtype": dtype, "contiguous": contiguous}
        for batch, dim, seqlen, dtype in (
            (1, 2048, 2048, "bfloat16"),
            (8, 4096, 2048, "bfloat16"),
            (8, 5120, 2048, "float16"),
            (8, 2048, 2048, "float32"),
            (1, 8192, 65536, "bfloat16"),
            (4096, 512, 64, "bfloat16"),
            (1, 16, 2**20, "bfloat16"),
            (8, 4096, 1000, "bfloat16"),
            (8, 4096, 2047, "bfloat16"),
            (1, 8192, 1100, "bfloat16"),
            (8, 4100, 2048, "bfloat16"),
        )
        for contiguous in _BOTH
    ),
    "causal_conv1d_varlen_fn": (
        *({"sequences": spec} for spec in ("1x8192", "16x512", "4096+16x256", "7800+392x1", "512in8192", "2048x1")),
        {"sequences": "16x512", "dtype": "float32"},
        *({"sequences": spec, "contiguous": TOKENS} for spec in ("16x512", "512in8192")),
    ),
    "causal_conv1d_split": ({"sequences": "16x512"},),
    "causal_conv1d_qkv_split": (
        *({"sequences": f"1x{tokens}"} for tokens in (512, 2048, 4096, 8192, 16384)),
        {"sequences": "1x8192", "l2norm": True},
    ),
    "causal_conv1d_varlen_states": ({"sequences": "512x16"},),
    "causal_conv1d_update": (
        *(
            {"batch": batch, "dim": dim, "contiguous": contiguous}
            for batch, dim in ((1, 6144), (8, 6144), (64, 10240), (256, 10240), (1024, 10240))
            for contiguous in _BOTH
        ),
        *({"batch": 256, "dim": 10240, "dtype": "float32", "contiguous": contiguous} for contiguous in _BOTH),
        {"batch": 64, "dim": 8192, "tokens": 4},
    ),
    "causal_conv1d_update_split": ({"batch": 256},),
    "causal_conv1d_update_qkv_split": ({"batch": 256},),
    "selective_state_update": (
        {"batch": 128, "nheads": 24, "ngroups": 1, "dtype": "float32"},
        *({"batch": batch} for batch in (1, 16, 64)),
        {"batch": 256, "indices": True},
        *({"batch": batch, "state_dtype": "float32", "indices": batch == 256} for batch in (16, 64, 256)),
        *({"batch": batch, "headdim": 1536, "dtype": "float32", **_MAMBA1} for batch in (1, 128)),
        *({"batch": batch, "headdim": 8192, **_MAMBA1} for batch in (16, 64)),
        {"batch": 32, "tokens": 4, "indices": True},
    ),
    "selective_scan_fn": (
        *({"dim": dim, "seqlen": seqlen} for seqlen in (512, 4096, 16384) for dim in (1536, 5120, 8192)),
        {"dim": 1536, "seqlen": 65536},
        *({"batch": 8, "dim": dim, "seqlen": 2048} for dim in (1536, 5120, 8192)),
        {"dim": 5120, "seqlen": 4096, "contiguous": CHANNELS},
        {"dim": 5120, "seqlen": 4096, "dtype": "float32"},
        {"dim": 64, "seqlen": 262144},
    ),
    "selective_scan_varlen_fn": tuple({"sequences": spec} for spec in ("16x512", "1x8192", "512in8192")),
}
"""The sizes that the README's tables and pictures show, by function."""

SMALL: dict[str, tuple[dict[str, Any], ...]] = {
    "causal_conv1d_fn": (
        *(
            {"batch": 2, "dim": 70, "seqlen": seqlen, "width": width, "contiguous": contiguous}
            for contiguous in _BOTH
            for seqlen, width in ((1029, 4), (64, 3), (63, 2))
        ),
        {"batch": 2, "dim": 64, "seqlen": 200, "width": 16, "bias": False, "silu": False},
    ),
    "causal_conv1d_varlen_fn": tuple(
        {"sequences": "70+0+1+3+260", "dim": 136, "width": width, "contiguous": contiguous}
        for contiguous in _BOTH
        for width in (2, 4)
    ),
    "causal_conv1d_split": ({"sequences": "70+0+1+33", "parts": "100,30,30"},),
    "causal_conv1d_qkv_split": tuple(
        {"sequences": "70+0+1+33", "heads": heads, "l2norm": l2norm}
        for heads, l2norm in (("2x64,2x64,4x32", False), ("2x64,2x64,4x32", True), ("3x7,3x7,2x11", False))
    ),
    "causal_conv1d_varlen_states": ({"sequences": "70+0+1+33", "dim": 136},),
    "causal_conv1d_update": tuple(
        {"batch": 5, "dim": 136, "tokens": tokens, "width": width, "contiguous": contiguous}
        for contiguous in _BOTH
        for tokens, width in ((1, 4), (1, 3), (3, 4))
    ),
    "causal_conv1d_update_split": ({"batch": 5, "parts": "100,30,30"},),
    "causal_conv1d_update_qkv_split": ({"batch": 5, "heads": "2x64,2x64,4x32"},),
    "selective_state_update": (
        *(
            {"batch": 3, "nheads": 4, "headdim": headdim, "ngroups": 2, "d_state": d_state, "indices": True}
            for headdim, d_state in ((64, 128), (37, 64), (8, 256), (20, 100))
        ),
        {"batch": 3, "nheads": 4, "headdim": 64, "ngroups": 2, "state_dtype": "float32"},
        {"batch": 3, "nheads": 4, "headdim": 64, "ngroups": 2, "tokens": 3, "indices": True},
        {"batch": 3, "headdim": 300, **_MAMBA1},
    ),
    "selective_scan_fn": (
        *({"batch": 2, "dim": 72, "seqlen": 1029, "contiguous": contiguous} for contiguous in _BOTH),
        {"batch": 1, "dim": 40, "seqlen": 3000, "d_state": 64},
    ),
    "selective_scan_varlen_fn": tuple(
        {"sequences": "70+0+1+3+260", "dim": 72, "contiguous": contiguous} for contiguous in _BOTH
    ),
}
"""Quick ones, odd in every way that matters, by function."""


def workloads(table: dict[str, tuple[dict[str, Any], ...]], function: str, **more: Any) -> Iterator[Workload]:
    """A function's rows of a table, all with these further sizes."""
    for sizes in table[function]:
        yield MAKERS[function](**{**sizes, **more})
