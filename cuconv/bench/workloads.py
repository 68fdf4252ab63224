"""The workloads of all families: those of tables and pictures, those of checks, and those of models."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from cuconv.bench.makers import MAKERS, MODULES
from cuconv.bench.models import MODELS, Model
from cuconv.runtime.workload import CHANNELS, TOKENS, Rows, Workload

PREFILL, DECODE = 4096, (1, 64, 256)
"""Tokens of a model's prefill and batches of its decode steps, unless given."""


def of_model(
    name: str,
    dtype: str = "bfloat16",
    tokens: int = PREFILL,
    batches: tuple[int, ...] = DECODE,
    sequences: str | None = None,
    functions: Container[str] = MAKERS,
) -> Iterator[Workload]:
    """The calls of these functions in a layer of a published model: prefill of one sequence, packed prefill and decode.

    `sequences` are the lengths of the packed ones; without it two long ones and 8 of one token.
    """
    model = MODELS[name]
    packed = sequences or (f"{tokens // 2}+{tokens - tokens // 2 - 8}+8x1" if tokens > 16 else str(tokens))
    prefill = _prefill(model, tokens, packed)
    for function, sizes in (*prefill, *(call for batch in batches for call in _decode(model, batch))):
        if function in functions:
            yield MAKERS[function](**sizes, dtype=dtype)


def _prefill(model: Model, tokens: int, packed: str) -> Iterator[tuple[str, dict[str, Any]]]:
    conv, states = model.conv, model.states
    filters = {"width": conv.width, "bias": conv.bias}
    for contiguous in model.contiguous:
        lie = {"contiguous": contiguous, "silu": conv.silu}
        yield "causal_conv1d_fn", {"dim": conv.dim, "seqlen": tokens, **filters, **lie}
        if conv.heads:
            yield "causal_conv1d_qkv_split", {"sequences": packed, "heads": conv.heads, **filters}
        elif conv.parts:
            yield "causal_conv1d_split", {"sequences": packed, "parts": conv.parts, **filters, **lie}
        else:
            yield "causal_conv1d_varlen_fn", {"sequences": packed, "dim": conv.dim, **filters, **lie}
        if model.is_mamba1 and states is not None:
            sizes = {"dim": states.headdim, "d_state": states.d_state, "contiguous": contiguous}
            # transformers has delta out of a product that gives it contiguous tokens.
            delta = TOKENS if contiguous == CHANNELS else ""
            yield "selective_scan_fn", {"seqlen": tokens, "delta": delta, **sizes}
            yield "selective_scan_varlen_fn", {"sequences": packed, **sizes}


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


REPORT: Rows = {function: getattr(MODULES[function], "REPORT", {}).get(function, ()) for function in MAKERS}
"""The sizes that tables and pictures show, by function; none of a function that was never measured."""

SMALL: Rows = {function: getattr(MODULES[function], "SMALL", {}).get(function, ()) for function in MAKERS}
"""Quick sizes, odd in every way that matters, by function: what checks run."""


def workloads(table: Rows, function: str, **more: Any) -> Iterator[Workload]:
    """The workloads of a function's rows in a table, all with these further sizes."""
    for sizes in table[function]:
        yield MAKERS[function](**{**sizes, **more})
