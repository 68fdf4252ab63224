"""Which slots of a pool convolutions read and write, beside the case tables: moves, and what engines pass."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
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
    if getattr(case, "snapshots", None) is None
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
    prebuild(run, [*MOVED, *(replace(case, moved=False) for case in MOVED)])
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


@EACH_CALLER
def test_states_are_carried_on_from_chunk_to_chunk(call: Caller) -> None:
    """Megatron's carry states: [a b c d] and [e f] give [c d e f], and no tokens leave them as they are."""
    previous = np.array([[[1, 2, 3, 4]], [[7, 8, 9, 10]]], np.float32)
    chunk = {"x": np.array([[5], [6]], np.float32), "cu_seqlens": np.array([0, 2, 2], np.int32), "state_len": 4}
    out = call(cuconv.causal_conv1d_varlen_states, {**chunk, "previous_states": previous})
    assert out.tolist() == [[[3, 4, 5, 6]], [[7, 8, 9, 10]]]


@EACH_CALLER
@pytest.mark.parametrize("width", [4, 7])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_snapshot_may_overwrite_what_its_sequence_starts_from(call: Caller, width: int, order: str) -> None:
    """vLLM's cache mode "all": the block that a sequence starts from is completed, and others follow.

    Three tokens, fewer than the filter reads: all states hold inputs of the old one.
    """
    x = np.asarray(uniform(9, DIM, 3).astype(np.float32), order=order)
    pool, weight = uniform(10, 6, DIM, width - 1).astype(np.float32), uniform(11, DIM, width).astype(np.float32)
    joined, before = np.concatenate([pool[2], x], axis=1), pool.copy()
    arguments = {
        "x": x,
        "weight": weight,
        "conv_states": pool,
        "query_start_loc": np.array([0, 3]),
        "cache_indices": np.array([2]),
        "has_initial_state": np.array([True]),
        "dst_state_indices": np.array([5]),
        "snapshots": np.array([[0, 1, 2], [0, 2, 4], [0, 0, 1], [0, 2, -1]]),
    }
    out = call(cuconv.causal_conv1d_varlen_fn, arguments)
    for slot, position in ((2, 1), (4, 2), (1, 0), (5, 3)):
        np.testing.assert_array_equal(pool[slot], joined[:, position : position + width - 1])
    np.testing.assert_array_equal(pool[[0, 3]], before[[0, 3]])
    plain = {name: each for name, each in arguments.items() if name != "snapshots"}
    np.testing.assert_array_equal(out, call(cuconv.causal_conv1d_varlen_fn, {**plain, "conv_states": before}))


@EACH_CALLER
def test_prefix_caches_get_states_at_the_ends_of_blocks(call: Caller) -> None:
    """vLLM's cache mode "all": 45 tokens behind 20 others, blocks of 16, of which the last one need not be full."""
    table, start, tokens = np.array([7, 1, 9, 4, 0]), 20, 45
    x = uniform(12, DIM, start + tokens).astype(np.float32)
    pool, weight = np.zeros((10, DIM, WIDTH), np.float32), uniform(13, DIM, WIDTH).astype(np.float32)
    first, last = blocks_of(start, start + tokens)
    assert (first, last) == (1, 4)
    pool[table[first], :, : WIDTH - 1] = x[:, start - (WIDTH - 1) : start]
    rows = [[0, BLOCK * (i + 1) - start, table[i]] for i in range(first, last)]
    assert [(row[1], i) for i, row in enumerate(rows, start=first)] == [(12, 1), (28, 2), (44, 3)]
    call(
        cuconv.causal_conv1d_varlen_fn,
        {
            "x": x[:, start:],
            "weight": weight,
            "conv_states": pool,
            "cache_indices": table[None],
            "state_column": np.array([first]),
            "dst_state_indices": table[[last]],
            "has_initial_state": np.array([True]),
            "snapshots": np.array(rows, np.int32),
            "first_column": 0,
        },
    )
    for block, end in ((1, 32), (2, 48), (3, 64), (4, 65)):
        np.testing.assert_array_equal(pool[table[block], :, : WIDTH - 1], x[:, end - (WIDTH - 1) : end])


@EACH_CALLER
def test_a_block_that_ends_one_token_after_the_start_holds_the_old_state_too(call: Caller) -> None:
    """The tokens before a sequence's first belong to another sequence."""
    x, pool = uniform(14, DIM, 9).astype(np.float32), uniform(15, 4, DIM, WIDTH - 1).astype(np.float32)
    before = pool.copy()
    call(
        cuconv.causal_conv1d_varlen_fn,
        {
            "x": x,
            "weight": uniform(16, DIM, WIDTH).astype(np.float32),
            "conv_states": pool,
            "query_start_loc": np.array([0, 4, 9]),
            "has_initial_state": np.array([False, True]),
            "snapshots": np.array([[1, 1, 3], [0, 1, 2]]),
        },
    )
    np.testing.assert_array_equal(pool[3], np.concatenate([before[1][:, 1:], x[:, 4:5]], axis=1))
    np.testing.assert_array_equal(pool[2], np.concatenate([np.zeros((DIM, WIDTH - 2)), x[:, :1]], axis=1))


@EACH_CALLER
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dim", [DIM, 32])
def test_states_after_every_token_are_the_inputs_before_them(call: Caller, order: str, dim: int) -> None:
    """Every token has a snapshot, some have two, and their rows come in any order."""
    total, random = 292, np.random.default_rng(0)
    x = np.asarray(uniform(19, dim, total).astype(np.float32), order=order)
    ends = random.permutation([*range(1, total + 1), *range(130, 170)])
    out = np.full((len(ends), dim, WIDTH - 1), np.nan, np.float32)
    rows = np.stack([np.zeros(len(ends), np.int64), ends, np.arange(len(ends))], axis=1)
    call(
        cuconv.causal_conv1d_varlen_fn,
        {"x": x, "weight": uniform(21, dim, WIDTH).astype(np.float32), "snapshots": rows, "snapshot_out": out},
    )
    padded = np.concatenate([np.zeros((dim, WIDTH - 1), np.float32), x], axis=1)
    for end, state in zip(ends, out, strict=True):
        np.testing.assert_array_equal(state, padded[:, end : end + WIDTH - 1])


@EACH_CALLER
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dim", [DIM, 32])
def test_states_that_hold_inputs_of_the_old_one_are_found_among_many_rows(call: Caller, order: str, dim: int) -> None:
    """Every token of three sequences has a snapshot, in any order; some overwrite what their sequence starts from."""
    lengths, last, random = (150, 3, 100), (0, 9), np.random.default_rng(0)
    places = [(i, t) for i, length in enumerate(lengths) for t in range(length + 1) if (i, t) != last]
    places = [*random.permutation(places), last]
    rows = np.concatenate([places, np.arange(len(places))[:, None] + 2 * len(lengths)], axis=1)
    for i, position in enumerate((9, 1, 80)):
        rows[(rows[:, 0] == i) & (rows[:, 1] == position), 2] = i
    x = np.asarray(uniform(23, dim, sum(lengths)).astype(np.float32), order=order)
    pool = uniform(24, 2 * len(lengths) + len(places), dim, WIDTH - 1).astype(np.float32)
    starts = np.array([0, *np.cumsum(lengths)])
    parts = [x[:, begin:end] for begin, end in pairwise(starts)]
    joined = [np.concatenate([state, part], axis=1) for state, part in zip(pool, parts, strict=False)]
    arguments = {
        "x": x,
        "weight": uniform(25, dim, WIDTH).astype(np.float32),
        "conv_states": pool,
        "query_start_loc": starts,
        "has_initial_state": np.ones(len(lengths), np.bool_),
        "dst_state_indices": np.arange(3, 6),
        "snapshots": rows,
    }
    call(cuconv.causal_conv1d_varlen_fn, arguments)
    for i, position, slot in [*rows, *((i, length, 3 + i) for i, length in enumerate(lengths))]:
        np.testing.assert_array_equal(pool[slot], joined[i][:, position : position + WIDTH - 1])


@EACH_CALLER
def test_whole_states_inside_a_sequence_are_the_inputs_before_them(call: Caller) -> None:
    """Megatron's scatter: columns are the inputs p - W to p - 1, and how many there are only the GPU knows."""
    x, out = uniform(17, DIM, 30).astype(np.float32), np.full((3, DIM, WIDTH), 7, np.float32)
    call(
        cuconv.causal_conv1d_varlen_fn,
        {
            "x": x,
            "weight": uniform(18, DIM, WIDTH).astype(np.float32),
            "snapshots": np.array([[0, 8, 0], [0, 2, 1], [0, 9, 2]]),
            "snapshot_count": np.array([2]),
            "snapshot_out": out,
        },
    )
    np.testing.assert_array_equal(out[0], x[:, 4:8])
    np.testing.assert_array_equal(out[1], np.concatenate([np.zeros((DIM, 2)), x[:, :2]], axis=1))
    assert (out[2] == 7).all()


@EACH_CALLER
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("seed", range(3))
def test_chunks_and_restores_from_snapshots_give_the_bits_of_one_prefill(call: Caller, order: str, seed: int) -> None:
    """Two sequences in chunks; after some of these they go back to a snapshot inside one, in the slot where it is."""
    random, total = np.random.default_rng(seed), 70
    x = uniform(20 + seed, 2, DIM, total).astype(np.float32)
    weight, pool = uniform(30, DIM, WIDTH).astype(np.float32), np.full((9, DIM, WIDTH - 1), np.nan, np.float32)
    whole = [call(cuconv.causal_conv1d_varlen_fn, {"x": x[i], "weight": weight}) for i in range(2)]
    at, slot = [0, 0], [0, 1]
    while min(at) < total:
        taken = [min(int(random.integers(0, 14)), total - each) for each in at]
        kept = [int(random.integers(0, each + 1)) for each in taken]
        free = random.permutation(sorted({*range(9)} - {*slot}))
        out = call(
            cuconv.causal_conv1d_varlen_fn,
            {
                "x": np.asarray(np.concatenate([x[i, :, at[i] : at[i] + taken[i]] for i in range(2)], 1), order=order),
                "weight": weight,
                "conv_states": pool,
                "query_start_loc": np.array([0, taken[0], sum(taken)]),
                "cache_indices": np.array(slot),
                "dst_state_indices": free[:2],
                "has_initial_state": np.array(at) > 0,
                "snapshots": np.array([[i, kept[i], free[2 + i]] for i in (1, 0)]),
            },
        )
        for i, part in enumerate(np.split(out, [taken[0]], axis=1)):
            np.testing.assert_array_equal(part, whole[i][:, at[i] : at[i] + taken[i]])
            if taken[i] == 0:
                continue
            goes_back = kept[i] > 0 and random.uniform() < 0.4
            at[i] += kept[i] if goes_back else taken[i]
            slot[i] = int(free[2 + i] if goes_back else free[i])
