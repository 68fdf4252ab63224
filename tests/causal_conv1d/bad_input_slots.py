"""Arrays of slots that do not fit: those with columns, those of final states, and pools that are only read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.causal_conv1d.good_calls import DECODE, DIM, PACKED, SLOTS, WIDTH
from tests.support import bad_input as bad
from tests.support.bad_input import INDICES, Fine, Good, Row, Tables, poisoned

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


def snapshots(xp: Any) -> dict[str, Any]:
    """States inside two of three sequences, which start from slots 3, 0 and 1; the last row is behind the count."""
    rows = [[2, 3, 4], [0, 1, 2], [0, 4, -1], [9, 9, 9]]
    return {"snapshots": xp.asarray(rows, np.int32), "snapshot_count": xp.asarray([3], np.int64)}


PREFILL, STEP, READING = "causal_conv1d_varlen_fn:moved", "causal_conv1d_update:moved", "causal_conv1d_varlen_fn:read"
KEEPING, KEEPING_ELSEWHERE = "causal_conv1d_varlen_fn:snapshots", "causal_conv1d_varlen_fn:snapshots_out"
GOOD: Good = {
    PREFILL: lambda xp: {
        **PACKED["causal_conv1d_varlen_fn"](xp), **moved(xp), "cache_indices": xp.asarray(TABLE, np.int32)
    },
    STEP: lambda xp: {
        **DECODE["causal_conv1d_update"](xp), **moved(xp), "conv_state_indices": xp.asarray(TABLE, np.int64),
        "has_initial_state": xp.asarray([True] * 4),
    },
    READING: lambda xp: {**PACKED["causal_conv1d_varlen_fn"](xp), **read_only(xp)},
    KEEPING: lambda xp: {**PACKED["causal_conv1d_varlen_fn"](xp), **snapshots(xp)},
    KEEPING_ELSEWHERE: lambda xp: {
        **PACKED["causal_conv1d_varlen_fn"](xp), **snapshots(xp), "snapshot_out": poisoned(xp, 6, DIM, WIDTH)
    },
}  # fmt: skip
WRITTEN: dict[str, dict[str, Any]] = {
    STEP: {"intermediate_conv_window": np.s_[[5, 2, 0], :2]}, KEEPING_ELSEWHERE: {"snapshot_out": np.s_[[4, 2]]}
}  # fmt: skip
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


def kept(pool: str, columns: str) -> dict[str, Row]:
    """Rows for snapshots of a function with this pool, which go to an array with these axes."""
    rows = "(rows, 3) (sequence, position, slot)"
    return {
        "rows-rank": bad.shape("snapshots", (3,), rows, dtype=np.int32),
        "rows-fields": bad.shape("snapshots", (3, 2), rows, dtype=np.int32),
        "rows-float": bad.dtype("snapshots", np.float32, INDICES),
        "rows-list": bad.no_array("snapshots", [[0, 1, 2]]),
        "count-two": bad.shape("snapshot_count", (2,), "(1,) (one number)", dtype=np.int32),
        "count-bool": bad.dtype("snapshot_count", bool, INDICES),
        "count-alone": bad.array("snapshot_count", "None unless snapshots is given", bad.value("snapshots", None)),
        "out-alone": bad.array(
            "snapshot_out", "None unless snapshots is given",
            bad.also(bad.value("snapshots", None), bad.value("snapshot_count", None), bad.zeros("snapshot_out", (1,))),
        ),
        "out-rank": bad.shape("snapshot_out", (5, 18), f"3 axes (slots, dim, {columns})"),
    }  # fmt: skip


def kept_contents(count: int, places: int) -> dict[str, Row]:
    """Rows for contents of snapshots that go to this many slots, of `count` sequences of 4, 0 and 5 tokens."""
    return {
        "sequence-large": (
            bad.ints("snapshots", [[count, 0, 2]] * 3), ValueError, f"snapshots[0, 0]: got {count}; wanted 0 to 2"
        ),
        "sequence-negative": (
            bad.ints("snapshots", [[0, 1, -1], [-1, 0, 2], [0, 0, -1]]), ValueError,
            "snapshots[1, 0]: got -1; wanted 0 to 2",
        ),
        "position-large": (
            bad.ints("snapshots", [[0, 4, 2], [1, 0, 4], [0, 5, 4]]), ValueError,
            "snapshots[2, 1]: got 5; wanted 0 to 4",
        ),
        "position-negative": (
            bad.ints("snapshots", [[0, -1, 2]] * 3, np.int64), ValueError, "snapshots[0, 1]: got -1; wanted 0 to 4"
        ),
        "slot-large": (
            bad.ints("snapshots", [[0, 1, 2], [2, 1, places], [0, 0, -5]]), ValueError,
            bad.outside("snapshots", places, places),
        ),
        "slot-twice": (
            bad.ints("snapshots", [[0, 1, 2], [2, 1, 2], [0, 0, -1]]), ValueError, bad.of_several("snapshots", 2)
        ),
        "count-large": (
            bad.ints("snapshot_count", [5]), ValueError, "snapshot_count: got 5; wanted 0 to 4"
        ),
        "count-negative": (
            bad.ints("snapshot_count", [-1]), ValueError, "snapshot_count: got -1; wanted 0 to 4"
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
    KEEPING: {
        **kept("conv_states", "state_len"),
        "nowhere": (
            bad.also(*(bad.value(name, None) for name in ("conv_states", "cache_indices", "has_initial_state"))),
            ValueError, "snapshots: got an array; wanted None unless conv_states or snapshot_out is given",
        ),
    },
    KEEPING_ELSEWHERE: {
        "out-dtype": bad.dtype("snapshot_out", np.float16, "float32"),
        "out-dim": bad.shape("snapshot_out", (6, 5, 4), "(6, 6, 4) (slots, dim of x, state_len)"),
        "out-short": bad.length("snapshot_out", (6, 6, 2), "state_len", 2, "at least 3 (width - 1)"),
        "out-is-pool": bad.overlap("conv_states", "snapshot_out"),
        "out-broadcast": bad.one_address("snapshot_out", 6, DIM, WIDTH),
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
        "target-twice": (bad.ints(TARGET, [4, 0, 4]), ValueError, bad.of_several(TARGET, 4)),
        "target-of-another": (
            bad.ints(TARGET, [1, 0, 3]), ValueError,
            f"{TARGET}: got slot 3, which another sequence starts from; wanted a slot of its own",
        ),
    }  # fmt: skip


CONTENTS: Tables = {
    PREFILL: contents("cache_indices"),
    STEP: contents("conv_state_indices"),
    KEEPING: {
        **kept_contents(3, SLOTS),
        "slot-of-a-final-state": (
            bad.ints("snapshots", [[0, 1, 3], [2, 1, 2], [0, 0, -1]]), ValueError,
            "snapshots: got slot 3, where a final state goes; wanted a slot of its own",
        ),
        "slot-of-another": (
            bad.also(
                bad.ints("dst_state_indices", [2, -1, 0]), bad.ints("snapshots", [[0, 1, 1], [0, 2, 3], [0, 0, -1]])
            ),
            ValueError, "snapshots: got slot 1, which another sequence starts from; wanted a slot of its own",
        ),
    },
    KEEPING_ELSEWHERE: kept_contents(3, 6),
}  # fmt: skip
AS_IT_IS = bad.value("null_slot", None)
NULL = bad.value("null_slot", 0)
FINE: Mapping[str, Mapping[str, Fine]] = {
    PREFILL: {
        "moved": (AS_IT_IS, [True] * 2, {1, 4}),
        "none-kept": (bad.ints(TARGET, [-1, -2, -9]), [True] * 2, set()),
        "one-start": (bad.ints("cache_indices", [[9, 2], [0, 9], [2, 9]]), [True] * 2, {1, 4}),
        "null-and-negative": (
            bad.also(bad.ints("cache_indices", [[9, -1], [0, 9], [2, 9]]), NULL), [False, True], {4}
        ),
        "start-that-is-not-read": (
            bad.also(bad.ints(TARGET, [1, 0, 3]), bad.ints("has_initial_state", [False, False, True], bool)),
            [True] * 2, {1, 3},
        ),
    },
    KEEPING: {
        "kept": (AS_IT_IS, [True] * 2, {1, 2, 3, 4}),
        "none": (bad.ints("snapshot_count", [0]), [True] * 2, {1, 3}),
        "over-its-own-start": (
            bad.also(
                bad.ints("dst_state_indices", [2, -1, 0]), bad.ints("snapshots", [[0, 1, 3], [2, 5, 1], [1, 0, 4]])
            ),
            [True] * 2, {0, 1, 2, 3},
        ),
        "padding": (
            bad.also(bad.ints("cache_indices", [-1, 0, 1]), bad.ints("snapshots", [[0, 1, 3], [2, 5, 4], [0, 0, -7]])),
            [False, True], {1, 4},
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
