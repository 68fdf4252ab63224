"""Which states a step reads and writes, beside the case tables: one way to say it gives the bits of another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.selective_state_update import update
from tests.families.test_sequences import EACH_CALLER, Caller
from tests.selective_state_update.cases import BY_TOKENS, Case
from tests.support.compare import assert_same_bits
from tests.support.placement import Array
from tests.support.runners import Runner, Values, prebuild

PER_HEAD: Any = {"per_head": "all"}


def without(values: Values, *names: str) -> Values:
    return {name: array for name, array in values.items() if name not in names}


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_a_token_of_a_tree_has_the_bits_of_single_steps_along_its_path(state_dtype: str, run: Runner) -> None:
    case = Case(2, 2, 6, 128, tokens=4, tree=True, steps="row", state_dtype=state_dtype, **PER_HEAD)
    one = replace(case, tokens=None, steps=None, tree=False)
    prebuild(run, [case, one])
    values = {**case.inputs(), "parents": np.array([[-1, 0, 0, 1], [0, 0, 0, 1]])}
    got = run(case, values)
    slots, rows = values["state_batch_indices"], values["intermediate_state_indices"]
    for path in ([0], [0, 1], [0, 2], [0, 1, 3]):
        state, out = values["state"], values["x"]
        for t in path:
            token = {name: each[:, t] if name in BY_TOKENS else each for name, each in values.items()}
            step = run(one, {**without(token, "intermediate_states_buffer", "parents"), "state": state})
            state, out = step["state"], step["out"]
        assert_same_bits(got["out"][:, path[-1]], out, f"token {path[-1]}")
        assert_same_bits(got["intermediate_states_buffer"][rows, path[-1]], state[slots], f"state {path[-1]}")
    assert_same_bits(got["state"][slots], got["intermediate_states_buffer"][rows, 3], "the last token's state")


def test_a_tree_without_branches_has_the_bits_of_a_sequence(run: Runner) -> None:
    case = Case(3, 2, 6, 128, tokens=5, steps="row", state_dtype="float32", **PER_HEAD)
    tree = replace(case, tree=True)
    prebuild(run, [case, tree])
    values = case.inputs()
    wanted = run(case, values)
    got = run(tree, {**values, "parents": np.tile(np.arange(-1, 4), (3, 1))})
    for name, array in wanted.items():
        assert_same_bits(got[name], array, name)


@pytest.mark.parametrize("targets", [None, "one"])
def test_a_chosen_column_gives_the_slot_in_it(targets: str | None, run: Runner) -> None:
    case = Case(5, 2, 6, 128, tokens=2, column="chosen", targets=targets, **PER_HEAD)
    values = case.inputs()
    slots = np.take_along_axis(values["state_batch_indices"], values["state_column"][:, None], 1)[:, 0]
    plain = replace(case, column=None, spare=case.spare + 5)
    wanted = run(plain, {**without(values, "state_column"), "state_batch_indices": slots})
    for name, array in run(case, values).items():
        assert_same_bits(array, wanted[name], name)


def test_a_sequence_without_an_initial_state_starts_from_zeros(run: Runner) -> None:
    case = Case(4, 2, 6, 128, tokens=2, fresh=True, **PER_HEAD)
    values = case.inputs()
    state = values["state"].copy()
    state[values["state_batch_indices"][~values["has_initial_state"]]] = 0
    wanted = run(replace(case, fresh=False), {**without(values, "has_initial_state"), "state": state})
    for name, array in run(case, values).items():
        assert_same_bits(array, wanted[name], name)


def test_matrices_and_gates_of_float32_give_the_bits_of_the_same_numbers_in_bfloat16(run: Runner) -> None:
    for case in (Case(3, 2, 6, 128, **PER_HEAD), Case(2, 0, 9, 16, tokens=2)):
        wide = replace(case, dtypes="B C z")
        prebuild(run, [case, wide])
        values = case.inputs()
        wanted = run(case, values)
        got = run(wide, {name: each.astype(np.float32) if name in "BCz" else each for name, each in values.items()})
        for name, array in wanted.items():
            assert_same_bits(got[name], array, name)


def test_packed_tokens_without_heads_have_the_bits_of_those_of_one_head(run: Runner) -> None:
    case = Case("off1+2+3+0+1", 0, 20, 16, dtype="float32")
    values, lies = case.inputs(), replace(case, heads=1).placements()
    wanted = run(replace(case, heads=1), {name: each.reshape(lies[name].shape) for name, each in values.items()})
    for name, array in run(case, values).items():
        assert_same_bits(array, wanted[name].reshape(array.shape), name)


@pytest.mark.parametrize("tokens", [None, 3], ids=["single", "several"])
def test_padding_keeps_what_a_result_over_x_holds(tokens: int | None, run: Runner) -> None:
    case = Case(7, 2, 6, 128, tokens=tokens, odd=True, null_slot=3, **PER_HEAD)
    values = case.inputs()
    is_padding = ~case.reference_call(values).is_computed
    assert is_padding.any() and not is_padding.all()
    wanted = run(case, values)
    got = run(replace(case, keep=True), values, {"out": "x"})
    assert_same_bits(got["out"], np.where(is_padding[..., None, None], values["x"], wanted["out"]), "out")
    assert_same_bits(got["state"], wanted["state"], "states")


def step(batch: int, slots: int) -> dict[str, Array]:
    """A step of one number a sequence: states of 1, 2, …, halved, to which 1 is added."""
    ones = np.ones((batch, 1), np.float32)
    state = np.arange(1, slots + 1, dtype=np.float32)[:, None, None]
    return {"state": state, "x": ones, "dt": ones, "A": np.full((1, 1), np.log(0.5), np.float32), "B": ones, "C": ones}


@EACH_CALLER
def test_slot_0_is_live_without_indices(call: Caller) -> None:
    out = call(cuconv.selective_state_update, {**step(2, 2), "null_slot": 0})
    np.testing.assert_allclose(out, [[1.5], [2.0]], rtol=1e-6)


@EACH_CALLER
def test_a_step_goes_from_block_to_block_of_a_table(call: Caller) -> None:
    """vLLM's cache mode "all": the state is read from one block of a sequence and written to the next one."""
    table = np.array([[3, 1, 0], [2, 4, 5], [0, 0, 0]], np.int32)
    first, last = np.array([0, 1, 0]), np.array([1, 1, 0])
    arguments = step(3, 6)
    state = arguments["state"].copy()
    slots = {"state_batch_indices": table, "state_column": first, "null_slot": 0}
    targets = np.take_along_axis(table, last[:, None], 1)[:, 0]
    out = call(cuconv.selective_state_update, {**arguments, **slots, "dst_state_batch_indices": targets})
    np.testing.assert_allclose(out[:, 0], [3.0, 3.5, 0.0], rtol=1e-6)
    state[[1, 4], 0, 0] = 3.0, 3.5
    np.testing.assert_allclose(arguments["state"], state, rtol=1e-6)


@EACH_CALLER
def test_one_array_for_starts_and_targets_is_a_step_in_place(call: Caller) -> None:
    rows = np.array([2, -1, 0], np.int32)
    results = []
    for targets in (rows, rows.copy()):
        arguments = step(3, 4)
        slots = {"state_batch_indices": rows, "dst_state_batch_indices": targets}
        results.append((call(cuconv.selective_state_update, {**arguments, **slots}), arguments["state"]))
    for got, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_allclose(results[0][1][:, 0, 0], [1.5, 2.0, 2.5, 4.0], rtol=1e-6)


def test_one_array_for_starts_and_targets_has_the_kernel_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(update, "_update", lambda given, *_: (taken.append(given), given))
    rows, table = np.arange(3), np.arange(6).reshape(3, 2)
    arguments = step(3, 6)
    for targets in (rows, table):
        cuconv.selective_state_update(**arguments, state_batch_indices=targets, dst_state_batch_indices=targets)
    assert taken[0][10] is None and taken[1][10] is table


@EACH_CALLER
def test_zero_rounds_are_those_of_triton(call: Caller) -> None:
    case = Case(2, 2, 5, 16, state_dtype="float16", seed=5)
    results = []
    for rounds in (0, 10):
        arguments = {name: array.copy() for name, array in case.inputs().items()}
        call(cuconv.selective_state_update, {**arguments, "rand_seed": 5, "philox_rounds": rounds})
        results.append(arguments["state"])
    assert_same_bits(results[0], results[1], "states")
