"""Decode steps on random states and arrays that lie anywhere: NumPy, emulated and on the GPU against the formula."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuconv
from cuconv.causal_conv1d import reference
from cuconv.causal_conv1d.kernels import GATES
from cuconv.runtime.dtypes import BFLOAT16, FLOATS
from tests import emulator
from tests.causal_conv1d.cases_update import Case
from tests.causal_conv1d.strategies import UpdateCall, update_calls
from tests.emulator.family import EmulatedArray
from tests.support.compare import check_call, take_written
from tests.support.gpu import CupyArrays
from tests.support.placement import Array, Placed
from tests.support.strategies import SEEDS

SMALL = st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 4))
SOME = st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 3, 4, 6, 8, 12, 40]), st.sampled_from([1, 1, 2, 3, 6]))
LARGER = st.tuples(st.integers(1, 40), st.integers(1, 300), st.sampled_from([1, 1, 2, 3, 9]))
SILU = ("silu",)


class Columns:
    """One channel of one state, by the definition: lists of numbers, read and written one at a time."""

    def __init__(self, state: Array, tokens: int, halo: int, seen: int | None, accepted: int | None) -> None:
        self.state, self.tokens, self.halo, self.seen = state, tokens, halo, seen
        self.accepted = None if accepted is None else max(accepted, 1)

    @property
    def is_valid(self) -> bool:
        return self.accepted is None or self.accepted - 1 + self.halo <= len(self.state)

    def window(self) -> list[Any]:
        """What precedes the first token."""
        length = len(self.state)
        if self.seen is not None:
            return [self.state[(self.seen - self.halo + k) % length] for k in range(self.halo)]
        first = length - self.halo if self.accepted is None else self.accepted - 1
        return [self.state[first + k] for k in range(self.halo)]

    def after(self, row: list[Any]) -> list[Any]:
        """The state after these tokens, which are of its dtype."""
        length, joined, state = len(self.state), [*self.window(), *row], list(self.state)
        if self.accepted is not None:
            for j in range(self.halo + self.tokens - 1):
                state[j] = joined[j + 1]
        elif self.seen is None:
            state = [*state, *row][self.tokens :]
        elif length:
            for t, value in enumerate(row):
                state[(self.seen + t) % length] = value
        return state


def formula(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """The definition, one channel of one sequence and one product at a time."""
    x, weight, before = np.atleast_3d(inputs["x"]), inputs["weight"].astype(np.float64), inputs["conv_state"]
    pre, post, residual = (np.atleast_3d(inputs[name]).astype(float) if name in inputs else None for name in GATES)
    if pre is not None:
        x = (pre * x.astype(float)).astype(x.dtype)
    (batch, dim, seqlen), halo = x.shape, weight.shape[1] - 1
    given = {name: inputs.get(name, [None] * batch) for name in ("cache_seqlens", "num_accepted_tokens")}
    slots = inputs.get("conv_state_indices", range(batch))
    out, state = np.zeros(x.shape), before.copy()
    windows = inputs.get("intermediate_conv_window")
    found = {"out": out, "conv_state": state}
    if windows is not None:
        found["intermediate_conv_window"] = windows = windows.copy()
    for b, d in np.ndindex(batch, dim):
        slot, seen, accepted = (
            None if each is None else int(each) for each in (slots[b], *(numbers[b] for numbers in given.values()))
        )
        is_padding = "conv_state_indices" in inputs and slot == options["pad_slot_id"]
        if slot not in range(len(state)) or is_padding or seqlen == 0:
            continue
        columns = Columns(before[slot, d], seqlen, halo, seen, accepted)
        if not columns.is_valid:
            continue
        row = [*map(float, columns.window()), *x[b, d].astype(float)]
        for t in range(seqlen):
            products = [weight[d, w] * row[t + w] for w in range(halo + 1)]
            v = math.fsum([float(inputs["bias"][d]) if "bias" in inputs else 0.0, *products])
            y = v if options["activation"] is None else v / (1.0 + math.exp(-v))
            if post is not None:
                y = float(np.array(y).astype(x.dtype)) * post[b, d, t]
            out[b, d, t] = y if residual is None else y + residual[b, d, t]
        rounded = list(x[b, d].astype(state.dtype))
        if not options.get("disable_state_update"):
            state[slot, d] = columns.after(rounded)
        index = int(inputs["intermediate_state_indices"][b]) if "intermediate_state_indices" in inputs else slot
        if windows is not None and index in range(len(windows)):
            joined = [*columns.window(), *rounded]
            for t in range(seqlen):
                windows[index, t, d] = joined[t + 1 : t + 1 + halo]
    return found | {"out": out.reshape(inputs["x"].shape)}


def inputs_of(placed: dict[str, Placed]) -> dict[str, Array]:
    return {name: each.array for name, each in placed.items() if name != "out"}


def by_reference(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """The oracle, which is quick."""
    given: Any = inputs | {name: np.atleast_3d(inputs[name]) for name in ("x", *GATES) if name in inputs}
    out, state, windows, _ = reference.causal_conv1d_update(**given, **options)
    found = {"out": out.reshape(inputs["x"].shape), "conv_state": state}
    return found if windows is None else {**found, "intermediate_conv_window": windows}


def check(call: UpdateCall, before: dict[str, Placed], after: dict[str, Array], wanted: dict[str, Array]) -> None:
    """`after` holds the buffers that began as `before`."""
    arguments = call.arguments(inputs_of(before))
    check_call("causal_conv1d_update", arguments, wanted, take_written(Case, before, after))


@given(update_calls(SMALL, st.integers(1, 6)), SEEDS)
def test_numpy_follows_the_formula(call: UpdateCall, seed: int) -> None:
    before = call.fill(seed)
    after = {name: placed.copy() for name, placed in before.items()}
    arguments = call.arguments({name: placed.array for name, placed in after.items()})
    assert cuconv.causal_conv1d_update(**arguments) is arguments["out"]
    wanted = formula(inputs_of(before), call.options)
    check(call, before, {name: placed.buffer for name, placed in after.items()}, wanted)


@given(update_calls(SOME, st.just(4), is_mixed=False, activations=SILU, floats=(BFLOAT16,)), SEEDS)
@settings(max_examples=150)
def test_emulated_follows_the_formula(call: UpdateCall, seed: int) -> None:
    # Few specialisations: to compile more would take all the time, and the case tables have the others.
    if (reason := emulator.available()) is not None:
        pytest.skip(reason)
    before = call.fill(seed)
    after = {name: placed.copy() for name, placed in before.items()}
    cuconv.causal_conv1d_update(**call.arguments({name: EmulatedArray(each.array) for name, each in after.items()}))
    wanted = formula(inputs_of(before), call.options)
    check(call, before, {name: placed.buffer for name, placed in after.items()}, wanted)


@pytest.mark.gpu
@given(update_calls(LARGER, st.just(4), is_mixed=False, activations=SILU), SEEDS)
@settings(max_examples=300)
def test_gpu_follows_the_oracle(call: UpdateCall, seed: int) -> None:
    before = call.fill(seed)
    uploaded = {name: CupyArrays.upload(placed) for name, placed in before.items()}
    cuconv.causal_conv1d_update(**call.arguments({name: view for name, (_, view) in uploaded.items()}))
    after = {name: CupyArrays.download(buffer) for name, (buffer, _) in uploaded.items()}
    check(call, before, after, by_reference(inputs_of(before), call.options))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_state_of_more_bits_is_not_rounded(dtype: Any) -> None:
    """A float32 state beside an x of 16 bits counts with all of its bits, in a decode step and in a prefill."""
    x, weight = np.zeros((1, 1), dtype.numpy), np.array([[2.0**20, 0]], np.float32)
    bias, states = np.array([-(2.0**20)], np.float32), [np.full((1, 1, 1), 1 + 2.0**-20, np.float32) for _ in range(2)]
    continued: Any = {"has_initial_state": np.ones(1, bool), "activation": None}
    outs = (
        cuconv.causal_conv1d_update(x, states[0], weight, bias),
        cuconv.causal_conv1d_varlen_fn(x, weight, bias, states[1], **continued),
    )
    for out, state in zip(outs, states, strict=True):
        assert float(out[0, 0]) == 1.0 and float(state[0, 0, 0]) == 0.0


def test_tokens_of_one_call_are_not_rounded_to_the_states_dtype() -> None:
    """The second token sees the first as it came; a second call sees it as the state has kept it."""
    x = np.array([[[1 + 2.0**-20, 0]]], np.float32)
    weight, bias = np.array([[2.0**20, 0]], np.float32), np.array([-(2.0**20)], np.float32)
    states = [np.zeros((1, 1, 1), np.float16) for _ in range(2)]
    at_once = cuconv.causal_conv1d_update(x, states[0], weight, bias)
    in_turn = [cuconv.causal_conv1d_update(x[:, :, t], states[1], weight, bias) for t in range(2)]
    assert float(at_once[0, 0, 1]) == 1.0 and float(in_turn[1][0, 0]) == 0.0
