"""Which slots of a pool packed scans read and write, beside the case tables."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import cuconv
from tests.families.test_sequences import EACH_CALLER, Caller
from tests.selective_scan.cases_varlen import UNIT, Case
from tests.support import sampling
from tests.support.compare import assert_same_bits
from tests.support.runners import Runner, emulated, on_gpu, prebuild

MOVED = [case for case in UNIT if case.moved and not case.keep and case.snapshots is None]
RUNS = [emulated, pytest.param(on_gpu, marks=pytest.mark.gpu)]


@pytest.mark.parametrize("run", RUNS)
def test_a_state_that_moves_has_the_bits_that_it_has_in_place(run: Runner) -> None:
    prebuild(run, [*MOVED, *(replace(case, moved=False) for case in MOVED)])
    for case in MOVED:
        values = case.inputs()
        moved = run(case, values)
        slots, targets = len(values["ssm_states"]), values["dst_state_indices"]
        stays = replace(case, moved=False, spare=slots - case.packed.count)
        in_place = run(stays, {name: each for name, each in values.items() if name != "dst_state_indices"})
        wanted = values["ssm_states"].copy()
        for each in case.live(values):
            target = int(targets[each.number])
            if each.begin < each.end and 0 <= target < slots and target != case.pad_slot_id:
                wanted[target] = in_place["ssm_states"][each.slot]
        assert_same_bits(moved["ssm_states"], wanted, f"states of {case.id}")
        assert_same_bits(moved["out"], in_place["out"], f"out of {case.id}")


@EACH_CALLER
def test_slot_0_is_live_without_indices(call: Caller) -> None:
    ones = np.ones((1, 2), np.float32)
    pool = np.array([[[1.0]], [[2.0]]], np.float32)
    arguments = {"u": ones, "ssm_states": pool, "delta": ones, "A": np.full((1, 1), np.log(0.5), np.float32)}
    indices = {"query_start_loc": np.array([0, 1, 2]), "has_initial_state": np.array([True, True, False])}
    out = call(cuconv.selective_scan_varlen_fn, {**arguments, "B": ones, "C": ones, **indices, "null_slot": 0})
    np.testing.assert_allclose(out, [[1.5, 2.0]], rtol=1e-6)
    np.testing.assert_allclose(pool[:, 0, 0], [1.5, 2.0], rtol=1e-6)


INPUTS = ("u", "delta", "z")
OVER = [
    Case(dim, batch, d_state, out=layout, layout=layout, **way)
    for dim, batch, d_state, layout, way in (
        (35, "off3+8+3x1+5+40+9+7", 16, "tokens", {"slots": "odd"}),
        (35, "off3+8+3x1+5+40+9+7", 16, "channels", {"slots": "odd", "keep": True}),
        (128, "25x2+24+30+3+269", 16, "tokens", {"snapshots": "pool", "dtype": "float16"}),
        (128, "200+236+300+200", 16, "tokens", {}),
        (128, "25x2+24+30+3+269", 16, "channels", {"snapshots": "own", "matrices": "by_state", "state_dtype": "int8"}),
        (128, "200+236+300+200", 16, "channels", {"matrices": "by_state", "state_dtype": "int16"}),
        (9, "20+3+41", 40, "tokens_offset_by_1", {"dtype": "float32", "state_dtype": "int8", "snapshots": "own"}),
        (70, "3x304", 8, "channel_first", {"dense": True, "slots": "odd"}),
        (35, "3x9", 7, "channel_first", {"dense": True, "keep": True, "slots": "odd"}),
    )
]


@pytest.mark.parametrize("run", RUNS)
def test_results_over_an_input_have_the_bits_of_results_apart(run: Runner) -> None:
    """Padding keeps what was there; beside it all is read before it is overwritten.

    The emulator, which takes seconds for a case, has results over one input that is drawn anew for each.
    """
    prebuild(run, OVER)
    for case in OVER:
        values = case.inputs()
        apart = run(case, values)
        for name in INPUTS if run is on_gpu or sampling.EVERY else random.sample(INPUTS, 1):
            over = run(case, values, {"out": name})
            wanted = np.where(np.isnan(apart["out"]), values[name], apart["out"]) if case.keep else apart["out"]
            assert_same_bits(over["out"], wanted, f"out over {name} of {case.id}")
            for pool in over.keys() & set(case.UPDATED):
                assert_same_bits(over[pool], apart[pool], f"{pool} of {case.id} with out over {name}")
