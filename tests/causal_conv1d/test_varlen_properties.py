"""Packed sequences on random batches and arrays that lie anywhere: the NumPy path and the GPU against the formula."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuconv
from cuconv.causal_conv1d import reference
from tests.causal_conv1d.cases_varlen import Case
from tests.causal_conv1d.strategies import PackedCall, packed_calls
from tests.support.compare import check_call, take_written
from tests.support.gpu import CupyArrays
from tests.support.placement import Array, Placed, bits
from tests.support.strategies import SEEDS, few_sequences, many_sequences

ACTIVATIONS = st.sampled_from([None, "silu", "swish"])


def formula(inputs: dict[str, Array], activation: str | None, pad_slot_id: int) -> tuple[Array, dict[str, Array]]:
    """The definition, one sequence and one product at a time."""
    x, weight = inputs["x"].astype(np.float64), inputs["weight"].astype(np.float64)
    bias, pool, slots, has = (
        inputs.get(name) for name in ("bias", "conv_states", "cache_indices", "has_initial_state")
    )
    (dim, total), width = x.shape, weight.shape[1]
    out, updated = np.zeros(x.shape), None if pool is None else pool.copy()
    for i, (begin, end) in enumerate(pairwise(inputs.get("query_start_loc", [0, total]))):
        slot = i if slots is None else int(slots[i])
        is_padding = slots is not None and slot == pad_slot_id
        if pool is not None and (is_padding or slot not in range(len(pool))):
            continue
        is_continued = pool is not None and has is not None and has[i]
        for d in range(dim):
            row = [float(pool[slot, d, j]) if is_continued else 0.0 for j in range(1 - width, 0)]
            row += x[d, begin:end].tolist()
            for t in range(end - begin):
                products = [weight[d, w] * row[t + w] for w in range(width)]
                v = math.fsum([0.0 if bias is None else float(bias[d]), *products])
                out[d, begin + t] = v if activation is None else v / (1.0 + math.exp(-v))
            for j in range(1 - width, 0):
                if updated is not None and end > begin:
                    updated[slot, d, j] = row[len(row) + j]
    return out, {} if updated is None else {"conv_states": updated}


def fill(call: PackedCall, seed: int) -> dict[str, Placed]:
    """Memory for a call: values from -1 to 1, NaN in the output and in states that no sequence starts from."""
    random = np.random.default_rng(seed)
    placed = {}
    for name, lies in call.placements.items():
        values = call.integers[name] if name in call.integers else random.uniform(-1, 1, lies.shape)
        placed[name] = Placed(lies, None if name == "out" else values)
    if "conv_states" in placed:
        pool, has = placed["conv_states"].array, call.integers.get("has_initial_state", [])
        slots = call.integers.get("cache_indices", range(len(pool)))
        read = {int(slot) for slot, reads in zip(slots, has, strict=False) if reads}
        pool[[slot for slot in range(len(pool)) if slot not in read]] = np.nan
        pool[:, :, : pool.shape[2] - (call.width - 1)] = np.nan
    return placed


def inputs_of(placed: dict[str, Placed]) -> dict[str, Array]:
    return {name: each.array for name, each in placed.items() if name != "out"}


def check(
    call: PackedCall, activation: str | None, before: dict[str, Placed], after: dict[str, Array], wanted: Any
) -> None:
    """`after` holds the buffers that began as `before`."""
    out, updated = wanted
    results = {"out": out, **updated}
    arguments = {**inputs_of(before), "activation": activation, "pad_slot_id": call.pad_slot_id}
    check_call("causal_conv1d_varlen_fn", arguments, results, take_written(Case, before, after))


@given(packed_calls(few_sequences(), st.integers(0, 3), st.integers(1, 6)), ACTIVATIONS, SEEDS)
def test_numpy_follows_the_formula(call: PackedCall, activation: str | None, seed: int) -> None:
    before = fill(call, seed)
    after = {name: placed.copy() for name, placed in before.items()}
    arguments: dict[str, Any] = {name: placed.array for name, placed in after.items()}
    out = cuconv.causal_conv1d_varlen_fn(**arguments, activation=activation, pad_slot_id=call.pad_slot_id)
    assert out is arguments["out"]
    wanted = formula(inputs_of(before), activation, call.pad_slot_id)
    check(call, activation, before, {name: placed.buffer for name, placed in after.items()}, wanted)


@given(packed_calls(few_sequences(), st.integers(0, 5)), st.integers(1, 9), SEEDS)
def test_numpy_states_are_the_last_tokens(call: PackedCall, state_len: int, seed: int) -> None:
    inputs = inputs_of(fill(call, seed))
    x = inputs["x"].T
    starts = inputs.get("query_start_loc", np.array([0, len(x)]))
    states = cuconv.causal_conv1d_varlen_states(x, starts, state_len)
    assert states.shape == (len(starts) - 1, x.shape[1], state_len) and states.dtype == x.dtype
    for i, (begin, end) in enumerate(pairwise(starts)):
        for j in range(state_len):
            token = end - state_len + j
            wanted = x[token] if token >= begin else np.zeros(x.shape[1], x.dtype)
            np.testing.assert_array_equal(bits(states[i, :, j].copy()), bits(wanted.copy()))


@given(st.integers(1, 5), st.integers(1, 40), st.floats(0.001, 1.0), SEEDS)
def test_unit_vectors_have_their_norms(count: int, length: int, eps: float, seed: int) -> None:
    heads = np.random.default_rng(seed).uniform(-2, 2, (count, length))
    for head, normalised in zip(heads, reference.l2norm(heads, eps), strict=True):
        norm = math.sqrt(math.fsum(value * value for value in head) + eps)
        np.testing.assert_allclose(normalised, [value / norm for value in head], rtol=1e-14)


@pytest.mark.gpu
@given(packed_calls(many_sequences(), st.integers(1, 150), st.just(4), is_mixed=False), SEEDS)
@settings(max_examples=150)
def test_gpu_follows_the_oracle(call: PackedCall, seed: int) -> None:
    # Few specialisations: to compile more would take all the time, and the case tables have the others.
    before = fill(call, seed)
    uploaded = {name: CupyArrays.upload(placed) for name, placed in before.items()}
    views: dict[str, Any] = {name: view for name, (_, view) in uploaded.items()}
    cuconv.causal_conv1d_varlen_fn(**views, pad_slot_id=call.pad_slot_id)
    wanted = reference.causal_conv1d_varlen_fn(**inputs_of(before), pad_slot_id=call.pad_slot_id)
    check(call, "silu", before, {name: CupyArrays.download(buffer) for name, (buffer, _) in uploaded.items()}, wanted)
