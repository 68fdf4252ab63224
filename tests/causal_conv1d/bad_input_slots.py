"""Arrays of slots that do not fit: those with columns, those of final states, and pools that are only read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.causal_conv1d.good_calls import DECODE, DIM, PACKED, SLOTS, WIDTH
from tests.support import bad_input as bad
from tests.support.bad_input import INDICES, Fine, Good, Row, Tables

TABLE = [[9, 3], [0, 9], [2, 9], [9, 9]]
"""Slots 3, 0 and 2 in the columns below, and a row of no sequence."""


def moved(xp: Any) -> dict[str, Any]:
    """Sequences that start from slots 3, 0 and 2, and go to slots 1, 0 and 4."""
    return {
        "state_column": xp.asarray([1, 0, 0, 7], np.int64),
        "dst_state_indices": xp.asarray([1, 0, 4], np.int32),
    }


def read_only(xp: Any) -> dict[str, Any]:
    """A pool that is only read, in the place of the other one."""
    states = xp.ones((SLOTS, DIM, WIDTH), np.float32)
    return {"conv_states": None, "has_initial_state": None, "initial_states": states, "first_column": 0}


PREFILL, STEP, READING = "causal_conv1d_varlen_fn:moved", "causal_conv1d_update:moved", "causal_conv1d_varlen_fn:read"
GOOD: Good = {
    PREFILL: lambda xp: {
        **PACKED["causal_conv1d_varlen_fn"](xp), **moved(xp), "cache_indices": xp.asarray(TABLE, np.int32)
    },
    STEP: lambda xp: {
        **DECODE["causal_conv1d_update"](xp), **moved(xp), "conv_state_indices": xp.asarray(TABLE, np.int64),
        "has_initial_state": xp.asarray([True] * 4),
    },
    READING: lambda xp: {**PACKED["causal_conv1d_varlen_fn"](xp), **read_only(xp)},
}  # fmt: skip
WRITTEN: dict[str, dict[str, Any]] = {STEP: {"intermediate_conv_window": np.s_[[5, 2, 0], :2]}}
"""Where good calls change what is not their result."""
TARGET = "dst_state_indices"


def table(name: str, axes: str) -> dict[str, Row]:
    """Rows for the arrays that name slots, of which `name` has those that sequences start from."""
    one, both = f"(3,) or longer ({axes})", f"(3, 1) or more ({axes}, columns)"
    without = f"state_column: got an array; wanted None unless {name} has 2 axes ({axes}, columns)"
    return {
        "slots-few": bad.shape(name, (2, 2), both, dtype=np.int32),
        "slots-no-columns": bad.shape(name, (3, 0), both, dtype=np.int32),
        "slots-float": bad.dtype(name, np.float32, INDICES),
        "slots-one-axis": (bad.ints(name, [3, 0, 2]), ValueError, without),
        "slots-none": (bad.value(name, None), ValueError, without),
        "column-few": bad.shape("state_column", (2,), one, dtype=np.int32),
        "column-of-each-token": bad.shape("state_column", (3, 2), one, dtype=np.int32),
        "column-bool": bad.dtype("state_column", bool, INDICES),
        "target-few": bad.shape(TARGET, (2,), one, dtype=np.int32),
        "target-int16": bad.dtype(TARGET, np.int16, INDICES),
        "null-and-pad": (
            bad.also(bad.value("null_slot", 0), bad.value("pad_slot_id", 2)), ValueError,
            "null_slot: got 0; wanted None, or 2 as pad_slot_id: one slot is for padding",
        ),
        "null-float": bad.mistyped("null_slot", 0.0, "an int"),
        "pad-output": bad.given("pad_output", "zeros", "one of 'zero', 'keep'"),
        "pad-output-none": bad.given("pad_output", None, "one of 'zero', 'keep'"),
        "kept-in-a-new-array": (
            bad.also(bad.value("pad_output", "keep"), bad.value("out", None)), ValueError,
            "pad_output: got 'keep'; wanted 'zero' unless out is given",
        ),
    }  # fmt: skip


ONLY_WRITTEN = f"{TARGET}: got an array; wanted None unless conv_states is given"
BAD: Tables = {
    PREFILL: {
        **table("cache_indices", "sequences"),
        "pool-none": (bad.value("conv_states", None), ValueError, ONLY_WRITTEN),
        "two-pools": (
            bad.zeros("initial_states", (SLOTS, DIM, WIDTH)), ValueError,
            "initial_states: got an array; wanted None beside conv_states, which sequences start from",
        ),
    },
    STEP: {
        **table("conv_state_indices", "batch of x"),
        "has-few": bad.shape("has_initial_state", (2,), "(3,) or longer (batch of x)", dtype=bool),
        "has-int8": bad.dtype("has_initial_state", np.int8, "bool"),
    },
    READING: {
        "target": (bad.ints(TARGET, [1, 0, 4]), ValueError, ONLY_WRITTEN),
        "rank": bad.shape("initial_states", (SLOTS, DIM), "3 axes (slots, dim, state_len)"),
        "short": (
            bad.zeros("initial_states", (SLOTS, DIM, 2)), ValueError,
            "state_len of initial_states: got 2; wanted at least 3 (width - 1)",
        ),
        "few": (
            bad.also(bad.zeros("initial_states", (2, DIM, WIDTH)), bad.value("cache_indices", None)), ValueError,
            "slots of initial_states: got 2; wanted at least 3, one a sequence, or cache_indices",
        ),
        "out-in-states": bad.overlap(
            "out", "initial_states",
            lambda xp, a: {"x": a["x"][:, :4], "query_start_loc": None, "out": a["initial_states"][2]},
        ),
    },
}  # fmt: skip


def contents(name: str) -> dict[str, Row]:
    """Rows for contents of these arrays, of which `name` has the slots that sequences start from."""
    return {
        "slot-large": (bad.ints(name, [[9, 3], [0, 9], [5, 9]]), ValueError, bad.outside(name, 5, SLOTS)),
        "column-large": (
            bad.ints("state_column", [1, 0, 2]), ValueError, "state_column[2]: got 2; wanted at most 1, the last column"
        ),
        "target-large": (bad.ints(TARGET, [1, 0, 5]), ValueError, bad.outside(TARGET, 5, SLOTS)),
        "target-negative": (bad.ints(TARGET, [1, 0, -2]), ValueError, bad.outside(TARGET, -2, SLOTS)),
        "target-twice": (bad.ints(TARGET, [4, 0, 4]), ValueError, bad.of_several(TARGET, 4)),
        "target-of-another": (
            bad.ints(TARGET, [1, 0, 3]), ValueError,
            f"{TARGET}: got slot 3, which another sequence starts from; wanted a slot of its own",
        ),
    }  # fmt: skip


CONTENTS: Tables = {PREFILL: contents("cache_indices"), STEP: contents("conv_state_indices")}
AS_IT_IS = bad.value("null_slot", None)
NULL = bad.value("null_slot", 0)
FINE: Mapping[str, Mapping[str, Fine]] = {
    PREFILL: {
        "moved": (AS_IT_IS, [True] * 2, {1, 4}),
        "none-kept": (bad.ints(TARGET, [-1, -1, -1]), [True] * 2, set()),
        "one-start": (bad.ints("cache_indices", [[9, 2], [0, 9], [2, 9]]), [True] * 2, {1, 4}),
        "null-and-negative": (
            bad.also(bad.ints("cache_indices", [[9, -1], [0, 9], [2, 9]]), NULL), [False, True], {4}
        ),
        "start-that-is-not-read": (
            bad.also(bad.ints(TARGET, [1, 0, 3]), bad.ints("has_initial_state", [False, False, True], bool)),
            [True] * 2, {1, 3},
        ),
    },
    STEP: {
        "moved": (AS_IT_IS, [True] * 3, {0, 1, 4}),
        "null": (NULL, [True, False, True], {1, 4}),
        "null-target": (bad.also(bad.ints(TARGET, [0, 2, 4]), NULL), [True, False, True], {4}),
        "start-that-is-not-read": (
            bad.also(bad.ints(TARGET, [1, 0, 3]), bad.ints("has_initial_state", [False, True, True], bool)),
            [True] * 3, {0, 1, 3},
        ),
        "no-column": (bad.ints("state_column", [1, -1, 0]), [True, False, True], {1, 4}),
    },
}  # fmt: skip
