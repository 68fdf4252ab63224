"""Decode steps of packed tokens, along trees, and with the state after each token: what engines' conventions give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.runtime.trees import tree_parents
from tests.causal_conv1d.cases_update import Case
from tests.families.test_sequences import EACH_CALLER, Caller
from tests.support.compare import assert_same_bits
from tests.support.placement import Array
from tests.support.runners import Runner, Values, prebuild

LENGTHS = (3, 0, 1, 5)
EACH_POOL = pytest.mark.parametrize("pool", ["channels", "channels_longer", "columns", "columns_and_one"])
TAPS = np.array([[1, 10, 100, 1000]], np.float32)
"""With these taps the digits of a result are the last four inputs, where those are digits."""
ROWS_OF_INDICES = ("cache_seqlens", "conv_state_indices", "num_accepted_tokens", "parents")


def filled(case: Case, seed: int = 0) -> Values:
    """The case's inputs, every column of every state a number."""
    values: Values = case.inputs()
    state = values["conv_state"]
    state[...] = np.random.default_rng(seed).uniform(-1, 1, state.shape)
    return values


def alone(run: Runner, case: Case, values: Values, number: int, tokens: Array, **changes: Any) -> Values:
    """One sequence of a call, in a call of its own with these tokens (dim, count)."""
    single = replace(
        case, batch=1, spare=len(values["conv_state"]) - 1, seqlen=tokens.shape[1], lengths=(), window=None,
        whole=False, token_slots=0, tree=False, rows=False, **changes,
    )  # fmt: skip
    names = single.placements().keys() & values.keys()
    rows = {name: values[name][number : number + 1] for name in ROWS_OF_INDICES if name in names}
    return run(single, {**{name: values[name] for name in names}, **rows, "x": tokens[None]})


@pytest.mark.parametrize("mode", ["shift", "circular", "accepted"])
@EACH_POOL
def test_packed_sequences_have_the_bits_that_they_have_alone(pool: str, mode: str, run: Runner) -> None:
    case = Case(32, 4, lengths=LENGTHS, pool=pool, mode=mode, slots="permuted", behind=2)
    values = filled(case)
    if mode == "accepted":
        # As many as the shorter states of shorter sequences can hold.
        values["num_accepted_tokens"] = np.minimum(values["num_accepted_tokens"], LENGTHS)
    got = run(case, values)
    state = values["conv_state"].copy()
    for i, (begin, end) in enumerate(zip(case.starts[:-1], case.starts[1:], strict=True)):
        if begin == end:
            continue
        columns = replace(case, lengths=(end - begin,)).state_len
        short = {**values, "conv_state": values["conv_state"][:, :, :columns]}
        single = alone(run, case, short, i, values["x"][begin:end].T)
        assert_same_bits(got["out"][begin:end].T, single["out"][0], f"sequence {i}")
        slot = values["conv_state_indices"][i]
        state[slot][:, :columns] = single["conv_state"][slot]
    assert_same_bits(got["conv_state"], state, "states")
    assert not got["out"][case.starts[-1] :].any()


@EACH_POOL
@pytest.mark.parametrize("window", ["channels", "columns"])
def test_the_state_after_a_token_is_what_a_call_leaves_that_ends_there(window: str, pool: str, run: Runner) -> None:
    case = Case(32, 3, 4, pool=pool, window=window, whole=True, token_slots=4)
    values = filled(case)
    values["token_state_indices"] = np.setdiff1d(np.arange(case.pool_slots), values["conv_state_indices"])[:12]
    values["token_state_indices"] = values["token_state_indices"].reshape(3, 4)
    got = run(case, values)
    for i, slot in enumerate(values["conv_state_indices"]):
        for t in range(4):
            single = alone(run, case, values, i, values["x"][i, :, : t + 1])
            assert_same_bits(got["out"][i, :, t], single["out"][0, :, t], "results")
            kept = got["conv_state"][values["token_state_indices"][i, t]]
            assert_same_bits(kept, single["conv_state"][slot], f"slot after token {t}")
            assert_same_bits(got["intermediate_conv_window"][slot, t], single["conv_state"][slot], f"window of {t}")
        assert_same_bits(got["conv_state"][slot], single["conv_state"][slot], "last state")


@EACH_POOL
def test_a_token_of_a_tree_has_the_bits_of_its_path(pool: str, run: Runner) -> None:
    case = Case(32, 3, 6, pool=pool, window="columns", tree=True, token_slots=6)
    values = filled(case)
    free = np.setdiff1d(np.arange(case.pool_slots), values["conv_state_indices"])
    values["token_state_indices"] = free[:18].reshape(3, 6)
    got = run(case, values)
    for i, slot in enumerate(values["conv_state_indices"]):
        for t in range(6):
            path = [t]
            while (parent := int(values["parents"][i, path[0]])) >= 0 and path[0] > 0:
                path.insert(0, parent)
            single = alone(run, case, values, i, values["x"][i][:, path])
            assert_same_bits(got["out"][i, :, t], single["out"][0, :, -1], f"token {t} of sequence {i}")
            left = single["conv_state"][slot]
            assert_same_bits(got["conv_state"][values["token_state_indices"][i, t]], left, f"slot of token {t}")
            assert_same_bits(got["intermediate_conv_window"][slot, t], left[:, -case.halo :], f"window of token {t}")
        assert_same_bits(got["conv_state"][slot], left, "the last token's state")


def test_windows_that_lie_over_each_other_are_the_same_windows(run: Runner) -> None:
    for pool in ("channels", "columns"):
        apart = Case(32, 3, 4, pool=pool, window="columns")
        others = [replace(apart, window=window) for window in ("overlaid", "overlaid_dense")]
        prebuild(run, [apart, *others])
        values = filled(apart)
        wanted = run(apart, values)
        for over in others:
            got = run(over, {**values, "intermediate_conv_window": np.nan})
            for name, each in wanted.items():
                slots = values["conv_state_indices"] if name == "intermediate_conv_window" else ...
                assert_same_bits(got[name][slots], each[slots], name)


def numbers(*values: Any) -> Array:
    return np.array(values, np.float32)


@EACH_CALLER
def test_vllm_packs_steps_of_speculation(call: Caller) -> None:
    """Slots [g h s t u], two accepted, then tokens x y; an empty sequence; a step behind a null slot."""
    pool = np.zeros((4, 1, 5), np.float32)
    pool[2, 0] = pool[1, 0] = [1, 2, 3, 4, 5]
    out = numbers([6], [7], [8], [9])
    arguments = {
        **{"x": out.copy(), "conv_state": pool, "weight": TAPS, "pad_output": "keep", "null_slot": 0, "out": out},
        "query_start_loc": np.array([0, 2, 2, 3, 3], np.int32),
        "max_query_len": 2,
        "conv_state_indices": np.array([[2, 9], [1, 9], [0, 9], [3, 9], [8, 8]], np.int32),
        "num_accepted_tokens": np.array([2, 1, 1, 1, 7], np.int32),
    }
    assert call(cuconv.causal_conv1d_update, arguments).ravel().tolist() == [6432, 7643, 8, 9]
    assert pool[:, 0].tolist() == [[0] * 5, [1, 2, 3, 4, 5], [3, 4, 6, 7, 5], [0] * 5]


@EACH_CALLER
def test_tokenspeed_leaves_the_window_after_each_token_in_a_slot(call: Caller) -> None:
    """The state that is read stays, unless it is that of a token itself; negative slots are none."""
    pool = np.zeros((6, 1, 3), np.float32)
    pool[1, 0] = pool[4, 0] = [1, 2, 3]
    arguments = {
        **{"x": numbers([[4, 5, 6]], [[7, 8, 9]]), "conv_state": pool, "weight": TAPS},
        "conv_state_indices": np.array([1, 4]),
        "token_state_indices": np.array([[0, -1, 2], [4, 5, -1]]),
        "disable_state_update": True,
    }
    out = call(cuconv.causal_conv1d_update, arguments)
    assert out.tolist() == [[[4321, 5432, 6543]], [[7321, 8732, 9873]]]
    assert pool[:, 0].tolist() == [[2, 3, 4], [1, 2, 3], [4, 5, 6], [0] * 3, [2, 3, 7], [3, 7, 8]]


@EACH_CALLER
def test_megatron_keeps_whole_states(call: Caller) -> None:
    """States of all columns after each token, in the row of the slot, while the state itself moves on."""
    pool = numbers([[9, 9, 9, 9]], [[0, 1, 2, 3]])
    windows = np.zeros((2, 2, 1, 4), np.float32)
    arguments = {
        **{"x": numbers([[4, 5]], [[6, 7]]), "conv_state": pool, "weight": TAPS},
        **{"conv_state_indices": np.array([1, -5]), "intermediate_conv_window": windows},
    }
    assert call(cuconv.causal_conv1d_update, arguments).tolist() == [[[4321, 5432]], [[0, 0]]]
    assert pool[:, 0].tolist() == [[9, 9, 9, 9], [2, 3, 4, 5]]
    assert windows[:, :, 0].tolist() == [[[0] * 4] * 2, [[1, 2, 3, 4], [2, 3, 4, 5]]]


@EACH_CALLER
def test_sglang_follows_trees(call: Caller) -> None:
    """First children [1 3 -1 -1] and next siblings [-1 2 -1 -1]: parents are none, 0, 0 and 1."""
    parents = tree_parents(np.array([[1, 3, -1, -1]]), np.array([[-1, 2, -1, -1]]))
    assert parents.tolist() == [[-1, 0, 0, 1]]
    pool, windows = numbers([[1, 2, 3]]), np.zeros((1, 4, 1, 3), np.float32)
    arguments = {
        **{"x": numbers([[4, 5, 6, 7]]), "conv_state": pool, "weight": TAPS, "parents": parents},
        **{"intermediate_conv_window": windows, "first_column": 0},
    }
    assert call(cuconv.causal_conv1d_update, arguments).tolist() == [[[4321, 5432, 6432, 7543]]]
    assert windows[0, :, 0].tolist() == [[2, 3, 4], [3, 4, 5], [3, 4, 6], [4, 5, 7]]
    assert pool.tolist() == [[[4, 5, 7]]]


@EACH_CALLER
def test_sglangs_windows_are_views_of_one_row(call: Caller) -> None:
    """Step t is columns t to t + width - 2 of a buffer by row and channel."""
    buffer, pool = np.zeros((2, 1, 4), np.float32), numbers([[1, 2, 3]], [[0, 0, 0]])
    windows = np.lib.stride_tricks.sliding_window_view(buffer, 3, axis=2, writeable=True).transpose(0, 2, 1, 3)
    if call.__name__ == "on_gpu":
        cupy = pytest.importorskip("cupy")
        memory = cupy.zeros((2, 1, 4), np.float32)
        windows = cupy.lib.stride_tricks.as_strided(memory, (2, 2, 1, 3), [4 * each for each in (4, 1, 4, 1)])
    arguments = {
        **{"x": numbers([[4, 5]]), "conv_state": pool, "weight": TAPS, "intermediate_conv_window": windows},
        "intermediate_state_indices": np.array([1]),
    }
    assert call(cuconv.causal_conv1d_update, arguments).tolist() == [[[4321, 5432]]]
    written = buffer if call.__name__ != "on_gpu" else memory.get()
    assert written[:, 0].tolist() == [[0] * 4, [2, 3, 4, 5]]
