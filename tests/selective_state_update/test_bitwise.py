"""Equal steps give equal bits: one token after the other or at once, packed or not, alone or in a batch, anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cuconv.selective_state_update.kernels import FEW_ROWS, SelectiveStateUpdate, SelectiveStateUpdateSingle
from tests import emulator
from tests.selective_state_update.cases import BY_TOKENS, Case
from tests.support.compare import assert_same_bits
from tests.support.placement import Array
from tests.support.runners import Runner, Values, emulated, prebuild

gpu = pytest.mark.gpu
# Under the emulator every further specialisation is to be built.
DTYPES = pytest.mark.parametrize("dtype", ["float32", *(pytest.param(d, marks=gpu) for d in ("bfloat16", "float16"))])
STATES = pytest.mark.parametrize("d_state", [128, *(pytest.param(n, marks=gpu) for n in (1, 2, 16, 20, 64, 96, 512))])
PER_HEAD = pytest.mark.parametrize("per_head", ["all", ""], ids=["per_head", "per_element"])


def of_batch(values: Values, index: Any) -> Values:
    """The inputs with these tokens of what has a value by token."""
    return {name: array[index] if name in BY_TOKENS else array for name, array in values.items()}


def at(t: int) -> tuple[Any, int]:
    return slice(None), t


def live(case: Case, values: Values, state: Array) -> Array:
    """The states that sequences start from."""
    return state[values["state_batch_indices"]] if "state_batch_indices" in values else state[: len(case.lengths)]


@PER_HEAD
@STATES
@DTYPES
def test_several_tokens_have_the_bits_of_one_after_the_other(
    dtype: str, d_state: int, per_head: str, run: Runner
) -> None:
    case = Case(3, 4, 9, d_state, 2, tokens=4, dtype=dtype, state_dtype="float32", steps="row", per_head=per_head)
    values = case.inputs()
    wanted = run(case, values)
    one = replace(case, tokens=None, steps=None)
    single = {name: array for name, array in values.items() if not name.startswith("intermediate")}
    for t in range(4):
        got = run(one, of_batch(single, at(t)))
        assert_same_bits(got["out"], wanted["out"][:, t], f"token {t}")
        steps = wanted["intermediate_states_buffer"][values["intermediate_state_indices"], t]
        assert_same_bits(live(case, values, got["state"]), steps, f"states after token {t}")
        single["state"] = got["state"]
    assert_same_bits(single["state"], wanted["state"], "states")


@PER_HEAD
@STATES
def test_packed_sequences_have_the_bits_of_a_batch(d_state: int, per_head: str, run: Runner) -> None:
    case = Case(3, 4, 9, d_state, 2, tokens=4, steps="row", per_head=per_head)
    values = case.inputs()
    flat = {name: array.reshape(-1, *array.shape[2:]) if name in BY_TOKENS else array for name, array in values.items()}
    wanted = run(case, values)
    got = run(replace(case, batch="4+4+4", tokens=None), {**flat, "cu_seqlens": np.arange(0, 16, 4)})
    assert_same_bits(got["out"], wanted["out"].reshape(got["out"].shape), "out")
    for name in ("state", "intermediate_states_buffer"):
        assert_same_bits(got[name], wanted[name], name)


@PER_HEAD
@STATES
def test_a_sequence_alone_has_the_bits_that_it_has_in_a_batch(d_state: int, per_head: str, run: Runner) -> None:
    for case in (
        Case(6, 4, 9, d_state, 2, per_head=per_head),
        Case("1+3+0+2+off1", 4, 9, d_state, 2, per_head=per_head),
    ):
        values = case.inputs()
        wanted = run(case, values)
        starts = values.get("cu_seqlens", np.arange(len(case.lengths) + 1))
        for i, length in enumerate(case.lengths):
            tokens = slice(starts[i], starts[i + 1])
            slot = values["state_batch_indices"][i : i + 1]
            alone = {**of_batch(values, tokens), "state_batch_indices": slot}
            one = replace(case, batch=1, spare=case.pool_slots - 1)
            if "cu_seqlens" in values:
                one = replace(one, batch=str(length))
                alone["cu_seqlens"] = np.array([0, length])
            got = run(one, alone)
            assert_same_bits(got["out"], wanted["out"][tokens], f"sequence {i}")
            assert_same_bits(got["state"][slot], wanted["state"][slot], f"state of sequence {i}")


@PER_HEAD
@pytest.mark.parametrize("tokens", [None, 3], ids=["single", "several"])
def test_larger_calls_have_the_bits_of_smaller_ones(tokens: int | None, per_head: str) -> None:
    """However many rows a warp has, however states are stored, and whether 32 bits reach everywhere."""
    if (reason := emulator.available()) is not None:
        pytest.skip(reason)
    case = Case(3, 2, 37, 128, tokens=tokens, per_head=per_head, odd=True)
    others = [replace(case, force=f"rows={rows}" + " stream=0" * (rows > FEW_ROWS)) for rows in (2, 4, 8, 16)]
    if tokens is not None or not per_head:
        del others[1:]
    others += [replace(case, force="index32=0")] + [replace(case, force="stream=0")] * (tokens is None)
    prebuild(emulated, [case, *others])
    offered = {*SelectiveStateUpdate.variants(), *SelectiveStateUpdateSingle.variants()}
    assert {launch.kernel for other in others for launch in other.launches()} <= offered
    values = case.inputs()
    wanted = emulated(case, values)
    for other in others:
        for name, array in emulated(other, values).items():
            assert_same_bits(array, wanted[name], f"{name} by {other.force}")


@PER_HEAD
@STATES
def test_states_have_the_same_bits_wherever_they_go(d_state: int, per_head: str, run: Runner) -> None:
    """In place, out of place, into a slot per token, into the buffer: out does not depend on it, either."""
    case = Case(4, 4, 9, d_state, 2, tokens=3, per_head=per_head)
    values = case.inputs()
    wanted = run(case, values)
    others = {
        "out of place": replace(case, targets="one", spare=2),
        "a slot a token": replace(case, targets="each", spare=2),
        "frozen": replace(case, steps="row", frozen=True),
        "both": replace(case, steps="slot"),
    }
    for what, other in others.items():
        known = other.integers()
        pool = np.full(other.shapes()["state"], np.nan, values["state"].dtype)
        pool[known["state_batch_indices"]] = live(case, values, values["state"])
        buffer = {name: each for name, each in other.inputs().items() if name == "intermediate_states_buffer"}
        got = run(other, {**values, **known, **buffer, "state": pool})
        assert_same_bits(got["out"], wanted["out"], f"out, {what}")
        states = last_states(other, known, got)
        expected = live(case, values, wanted["state"])
        assert_same_bits(states, expected, f"states, {what}")
        if other.targets or other.frozen:
            kept = np.isin(known["state_batch_indices"], known.get("dst_state_batch_indices", []), invert=True)
            slots = known["state_batch_indices"][kept]
            assert_same_bits(got["state"][slots], pool[slots], f"what is only read, {what}")


def last_states(case: Case, known: Values, got: Values) -> Array:
    """The states after the last token, wherever they went."""
    states, at = got["state"], known["state_batch_indices"]
    if case.frozen:
        states, at = got["intermediate_states_buffer"][:, -1], known["intermediate_state_indices"]
    elif case.targets is not None:
        at = known["dst_state_batch_indices"].reshape(len(at), -1)[:, -1]
    last: Array = states[at]
    return last


@PER_HEAD
@STATES
def test_accepted_tokens_choose_a_start_and_nothing_else(d_state: int, per_head: str, run: Runner) -> None:
    case = Case(4, 4, 9, d_state, 2, tokens=2, accepted=True, columns=3, per_head=per_head)
    values = case.inputs()
    slots = values["state_batch_indices"]
    chosen = slots[np.arange(4), np.maximum(values["num_accepted_tokens"], 1) - 1]
    got = run(case, values)
    plain = replace(case, accepted=False, columns=0, targets="each", spare=case.pool_slots - 12)
    assert plain.pool_slots == case.pool_slots
    without = {name: array for name, array in values.items() if name != "num_accepted_tokens"}
    wanted = run(plain, {**without, "state_batch_indices": chosen, "dst_state_batch_indices": slots[:, :2]})
    for name, array in wanted.items():
        assert_same_bits(got[name], array, name)


@PER_HEAD
@pytest.mark.parametrize("state_dtype", ["float32", pytest.param("bfloat16", marks=gpu)])
def test_x_may_be_overwritten(state_dtype: str, per_head: str, run: Runner) -> None:
    case = Case(3, 4, 9, 128, 2, tokens=3, dtype="float32", state_dtype=state_dtype, per_head=per_head, lies="fused")
    values = case.inputs()
    wanted = run(case, values)
    got = run(case, values, {"out": "x"})
    assert_same_bits(got["out"], wanted["out"], "out")
    assert_same_bits(got["state"], wanted["state"], "states")
