"""Selective state updates of every kind on arrays that lie anywhere: NumPy, emulated and on a GPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuconv
from tests import emulator
from tests.emulator.family import EmulatedArray
from tests.selective_state_update.cases import Case
from tests.selective_state_update.strategies import FLOATS, UpdateCall, update_calls
from tests.support.compare import ROUNDING, Between, assert_between, assert_close, check_results
from tests.support.gpu import CupyArrays
from tests.support.placement import Array, Placed
from tests.support.strategies import SEEDS

SMALL = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3))
SOME = st.tuples(st.integers(1, 6), st.integers(0, 4), st.sampled_from([1, 2, 3, 5, 8, 20]))
LARGER = st.tuples(st.integers(1, 40), st.integers(0, 8), st.sampled_from([1, 3, 8, 40, 64, 100]))

ANY_KIND = st.fixed_dictionaries(
    {
        "d_state": st.integers(1, 5),
        "dtype": FLOATS,
        "state_dtype": FLOATS,
        "A_dtype": st.sampled_from(["", "float32"]),
        "dtypes": st.sampled_from(["", "float32", "dt", "D", "dt D"]),
    }
)
VECTORS = {"lies": "fused", "pool": "slot_strided", "others": "dense"}
LARGER_WAY = {"force": "rows=2 index32=0"}
FEW_KINDS = st.sampled_from(
    [
        {"d_state": 16, "dtype": "float32"},
        {"d_state": 128, "dtypes": "float32"},
        {"d_state": 20, "state_dtype": "float32", **LARGER_WAY},
        {"d_state": 16, "dtype": "float32", **VECTORS},
        {"d_state": 128, "dtypes": "float32", **VECTORS, **LARGER_WAY},
        {"d_state": 20, "state_dtype": "float32", **VECTORS},
        {"d_state": 128, "dtype": "float16", "A_dtype": "", "seed": 3, **VECTORS},
        {"d_state": 128, "state_dtype": "int8", **VECTORS},
        {"d_state": 20, "state_dtype": "float8_e4m3fn", "scale_axis": True},
        {"d_state": 16, "dtype": "float32", "state_dtype": "int16", **VECTORS},
    ]
)
"""Kinds of calls with few specialisations, so that they are built soon; the case tables have the others."""


def softplus(v: float) -> float:
    return v if v > 20.0 else math.log1p(math.exp(v))


def sequences_of(case: Case, x: Array, starts: Array | None) -> list[list[tuple[int, ...]]]:
    """For every sequence where its tokens are in x."""
    if starts is not None:
        return [[(t,) for t in range(starts[i], starts[i + 1])] for i in range(len(starts) - 1)]
    return [[(b,)] if case.tokens is None else [(b, t) for t in range(x.shape[1])] for b in range(len(x))]


def start_of(case: Case, inputs: dict[str, Array], b: int) -> int:
    """The slot that a sequence starts from; -1 when there is none."""
    slot, slots = b, inputs.get("state_batch_indices")
    if slots is not None and slots.ndim == 1:
        slot = slots[b]
    elif slots is not None:
        column = max(int(inputs["num_accepted_tokens"][b]), 1) - 1
        slot = slots[b, column] if column < slots.shape[1] else -1
    is_padding = slots is not None and slot == case.pad_slot_id
    return -1 if is_padding or slot >= len(inputs["state"]) else int(slot)


def formula(case: Case, inputs: dict[str, Array]) -> dict[str, Array]:
    """The definition, one number at a time: the result, and states before they are rounded."""
    x, state = inputs["x"], inputs["state"]
    out = np.zeros(x.shape)
    found = {name: inputs[name].astype(np.float64) for name in Case.UPDATED if name in inputs}
    for b, tokens in enumerate(sequences_of(case, x, inputs.get("cu_seqlens"))):
        start = start_of(case, inputs, b)
        if start < 0:
            continue
        for row in np.ndindex(*state.shape[1:-1]):
            numbers = state[(start, *row)].astype(float).tolist()
            for t, at in enumerate(tokens):
                out[at + row], numbers = step(case, inputs, row, at, numbers)
                for name, place in targets_of(case, inputs, b, t, start, t + 1 == len(tokens)):
                    found[name][place + row] = numbers
    return {"out": out, **found}


def step(
    case: Case, inputs: dict[str, Array], row: tuple[int, ...], at: tuple[int, ...], numbers: list[float]
) -> tuple[float, list[float]]:
    """The result of one row at one token, and its state after it."""
    group = (row[0] // (case.heads // case.groups),) if case.heads else ()
    x, dt = float(inputs["x"][at + row]), float(inputs["dt"][at + row])
    if "dt_bias" in inputs:
        dt += float(inputs["dt_bias"][row])
    if case.softplus:
        dt = softplus(dt)
    A, B, C = inputs["A"][row], inputs["B"][at + group], inputs["C"][at + group]
    numbers = [s * math.exp(dt * float(a)) + dt * float(b) * x for s, a, b in zip(numbers, A, B, strict=True)]
    y = math.fsum(s * float(c) for s, c in zip(numbers, C, strict=True))
    if "D" in inputs:
        y += float(inputs["D"][row]) * x
    if "z" in inputs:
        z = float(inputs["z"][at + row])
        y *= z / (1.0 + math.exp(-z))
    return y, numbers


def targets_of(
    case: Case, inputs: dict[str, Array], b: int, t: int, start: int, is_last: bool
) -> list[tuple[str, tuple[int, ...]]]:
    """The arrays that the state after a token goes to, and the places in them."""
    found: list[tuple[str, tuple[int, ...]]] = []
    to = inputs.get("dst_state_batch_indices", inputs["state_batch_indices"] if case.accepted else None)
    if to is None or to.ndim == 1:
        slot = (start if to is None else int(to[b])) if is_last else -1
    else:
        slot = int(to[b, t]) if t < to.shape[1] else -1
    is_padding = to is not None and slot == case.pad_slot_id
    if 0 <= slot < len(inputs["state"]) and not is_padding and not case.frozen:
        found.append(("state", (slot,)))
    buffer, rows = (inputs.get("intermediate_states_buffer"), inputs.get("intermediate_state_indices"))
    row = start if rows is None else int(rows[b])
    if buffer is not None and 0 <= row < len(buffer) and t < buffer.shape[1]:
        found.append(("intermediate_states_buffer", (row, t)))
    return found


def place_call(call: UpdateCall, seed: int) -> dict[str, Placed]:
    """Memory for a call's arrays."""
    return {**call.case.fill(call.placements, seed), "out": Placed(call.placements["out"])}


def inputs_of(placed: dict[str, Placed]) -> dict[str, Array]:
    return {name: each.array for name, each in placed.items() if name not in Case.OUTPUTS}


@given(update_calls(ANY_KIND, SMALL), SEEDS)
def test_numpy_follows_the_formula(call: UpdateCall, seed: int) -> None:
    before = place_call(call, seed)
    after = {name: placed.copy() for name, placed in before.items()}
    arrays = {name: placed.array for name, placed in after.items()}
    out = cuconv.selective_state_update(**call.case.arguments(arrays))
    assert out is arrays["out"]
    inputs = inputs_of(before)
    wanted = formula(call.case, inputs)
    assert_close("out", out, wanted["out"], 1.000001 * ROUNDING[call.case.dtype], 2.0**-25)
    for name in Case.UPDATED:
        if name in wanted:
            # Sums of other orders are rounded to other sides now and then.
            numbers, dtype = wanted[name], arrays[name].dtype
            low, high = (np.float32(numbers + sign * 1e-12 * (1 + np.abs(numbers))) for sign in (-1, 1))
            stays = np.isnan(numbers)
            bounds = [np.where(stays, inputs[name], limit.astype(dtype)) for limit in (low, high)]
            assert_between(name, arrays[name], Between(*bounds))
    check_results(call.case, before, {name: placed.buffer for name, placed in after.items()})


@given(update_calls(FEW_KINDS, SOME), SEEDS)
@settings(max_examples=120)
def test_emulated_kernels_follow_the_oracle(call: UpdateCall, seed: int) -> None:
    if (reason := emulator.available()) is not None:
        pytest.skip(reason)
    before = place_call(call, seed)
    after = {name: placed.copy() for name, placed in before.items()}
    arrays = {name: EmulatedArray(placed.array) for name, placed in after.items()}
    with call.case.running():
        cuconv.selective_state_update(**call.case.arguments(arrays))
    check_results(call.case, before, {name: placed.buffer for name, placed in after.items()})


@pytest.mark.gpu
@given(update_calls(FEW_KINDS, LARGER, 9), SEEDS)
def test_gpu_follows_the_oracle(call: UpdateCall, seed: int) -> None:
    before = place_call(call, seed)
    uploaded = {name: CupyArrays.upload(placed) for name, placed in before.items()}
    views = {name: view for name, (_, view) in uploaded.items()}
    cuconv.selective_state_update(**call.case.arguments(views))
    check_results(call.case, before, {name: CupyArrays.download(buffer) for name, (buffer, _) in uploaded.items()})
