"""Which slots of a pool convolutions read and write, beside the case tables: moves, and what engines pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cuconv
from tests.causal_conv1d import cases_update, cases_varlen
from tests.families.test_sequences import EACH_CALLER, Caller, uniform
from tests.support.compare import assert_same_bits
from tests.support.placement import Array
from tests.support.runners import Runner, emulated, on_gpu, prebuild

MOVED = [
    case
    for table in (cases_update.UNIT, cases_varlen.UNIT)
    for case in table
    if case.moved and not case.keep and not getattr(case, "token_slots", 0)
]
RUNS = [emulated, pytest.param(on_gpu, marks=pytest.mark.gpu)]
DIM, WIDTH, BLOCK = 6, 4, 16


def finals(case: Any, values: dict[str, Array]) -> dict[int, tuple[int, slice]]:
    """By sequence with a state to leave: the slot that it starts from, and the columns that it leaves."""
    window = slice(case.width - 1) if case.first_column == 0 else slice(-(case.width - 1), None)
    if case.FUNCTION == "causal_conv1d_varlen_fn":
        return {each.number: (each.slot, window) for each in case.live(values) if each.end > each.begin}
    columns = window if case.first_column == 0 else slice(None)
    if case.mode == "accepted":
        columns = slice(case.halo + case.tokens - 1)
    return {} if case.frozen else {i: (slot, columns) for i, (slot, _) in case.live(values).items()}


@pytest.mark.parametrize("run", RUNS)
def test_a_state_that_moves_has_the_bits_that_it_has_in_place(run: Runner) -> None:
    prebuild(run, MOVED)
    for case in MOVED:
        values = case.inputs()
        pool = "conv_states" if "conv_states" in values else "conv_state"
        moved = run(case, values)
        slots = values[pool].shape[0]
        targets = values["dst_state_indices"]
        stays = replace(case, moved=False, spare=slots - len(targets) + case.longer)
        in_place = run(stays, {name: each for name, each in values.items() if name != "dst_state_indices"})
        wanted = values[pool].copy()
        for number, (start, columns) in finals(case, values).items():
            if 0 <= (target := int(targets[number])) < slots and target != case.pad_slot_id:
                wanted[target][:, columns] = in_place[pool][start][:, columns]
        assert_same_bits(moved[pool], wanted, f"{pool} of {case.id}")
        for name in case.OUTPUTS:
            assert_same_bits(moved[name], in_place[name], f"{name} of {case.id}")


def blocks_of(begin: int, end: int) -> tuple[int, int]:
    """The columns of a block table that hold the state before and behind these tokens, as vLLM counts them."""
    return max(-(-begin // BLOCK) - 1, 0), max(-(-end // BLOCK) - 1, 0)


@EACH_CALLER
def test_the_chunks_of_a_prefix_cache_go_from_block_to_block(call: Caller) -> None:
    """vLLM's cache mode "all": every call reads the slot of one block and writes that of another."""
    lengths, table = (65, 70), np.array([[7, 1, 9, 4, 0], [3, 2, 8, 5, 6], [0, 0, 0, 0, 0]], np.int32)
    x, weight = uniform(1, 2, DIM, max(lengths)).astype(np.float32), uniform(2, DIM, WIDTH).astype(np.float32)
    pool, whole = np.zeros((10, DIM, WIDTH), np.float32), []
    for sequence, length in enumerate(lengths):
        whole.append(cuconv.causal_conv1d_fn(x[sequence : sequence + 1, :, :length], weight, activation="silu")[0])
    assert blocks_of(20, 65) == (1, 4)
    done = [0, 0]
    for ends in ((20, 16), (65, 64)):
        taken = [end - begin for begin, end in zip(done, ends, strict=True)]
        columns = np.array([blocks_of(*each) for each in zip(done, ends, strict=True)])
        out = call(
            cuconv.causal_conv1d_varlen_fn,
            {
                "x": np.concatenate([x[i, :, done[i] : ends[i]] for i in range(2)], axis=1),
                "weight": weight,
                "conv_states": pool,
                "query_start_loc": np.array([0, *np.cumsum(taken)], np.int32),
                "cache_indices": table,
                "state_column": np.array([*columns[:, 0], 9]),
                "dst_state_indices": np.array([*table[[0, 1], columns[:, 1]], -1]),
                "has_initial_state": np.array(done) > 0,
                "first_column": 0,
            },
        )
        for i, part in enumerate(np.split(out, [taken[0]], axis=1)):
            np.testing.assert_allclose(part, whole[i][:, done[i] : ends[i]], rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(pool[table[i, columns[i, 1]], :, :3], x[i, :, ends[i] - 3 : ends[i]])
        done = [*ends]
    steps = [np.array([blocks_of(done[i] + t, done[i] + t + 1) for i in (1,)]) for t in range(6)]
    for t, ((start, end),) in enumerate(steps):
        out = call(
            cuconv.causal_conv1d_update,
            {
                "x": x[1:2, :, 64 + t],
                "conv_state": pool,
                "weight": weight,
                "activation": "silu",
                "conv_state_indices": table[1:],
                "state_column": np.array([start, 0]),
                "dst_state_indices": table[1:, end],
                "first_column": 0,
            },
        )
        np.testing.assert_allclose(out[0], whole[1][:, 64 + t], rtol=1e-6, atol=1e-6)
    assert steps[0].tolist() == [[3, 4]] and not pool[table[0, 3]].any()
    np.testing.assert_array_equal(pool[table[1, 3], :, :3], x[1, :, 61:64])


@EACH_CALLER
def test_a_window_of_speculation_is_found_in_the_first_column_of_slots(call: Caller) -> None:
    """vLLM has (batch, 1 + drafts) slots: [g h s t u] in the first, two accepted, then tokens x y."""
    pool = np.zeros((4, 1, 5), np.float32)
    pool[2, 0] = [1, 2, 3, 4, 5]
    out = call(
        cuconv.causal_conv1d_update,
        {
            "x": np.array([[[6, 7]]], np.float32),
            "conv_state": pool,
            "weight": np.array([[1, 10, 100, 1000]], np.float32),
            "conv_state_indices": np.array([[2, 3], [0, 0], [1, 1]], np.int32),
            "num_accepted_tokens": np.array([2, 1, 1], np.int32),
            "null_slot": 0,
        },
    )
    assert out.tolist() == [[[6432, 7643]]]
    assert pool[:, 0].tolist() == [[0] * 5, [0] * 5, [3, 4, 6, 7, 5], [0] * 5]


@EACH_CALLER
def test_sequences_may_start_from_one_slot(call: Caller) -> None:
    pool, weight = uniform(3, 4, DIM, WIDTH - 1).astype(np.float32), uniform(4, DIM, WIDTH).astype(np.float32)
    x, before = uniform(5, 3, DIM).astype(np.float32), pool.copy()
    forks = {"conv_state_indices": np.array([1, 1, 1]), "dst_state_indices": np.array([0, 3, -1])}
    call(cuconv.causal_conv1d_update, {"x": x, "conv_state": pool, "weight": weight, **forks})
    for slot, last in ((0, x[0]), (3, x[1])):
        np.testing.assert_array_equal(pool[slot], np.concatenate([before[1][:, 1:], last[:, None]], axis=1))
    np.testing.assert_array_equal(pool[1:3], before[1:3])


@EACH_CALLER
def test_padding_keeps_what_a_result_over_x_holds(call: Caller) -> None:
    x, pool = uniform(6, 3, DIM).astype(np.float32), uniform(7, 3, DIM, WIDTH - 1).astype(np.float32)
    weight = uniform(8, DIM, WIDTH).astype(np.float32)
    slots: dict[str, Any] = {"conv_state_indices": np.array([2, 0, -1]), "null_slot": 0}
    wanted = call(cuconv.causal_conv1d_update, {"x": x, "conv_state": pool.copy(), "weight": weight, **slots})
    out = x.copy()
    arguments = {"x": x, "conv_state": pool, "weight": weight, "out": out, "pad_output": "keep", **slots}
    result = call(cuconv.causal_conv1d_update, arguments)
    np.testing.assert_array_equal(result, np.stack([wanted[0], x[1], x[2]]))
    assert not wanted[1:].any()
