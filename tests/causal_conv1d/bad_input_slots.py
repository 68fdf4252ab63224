"""Arrays of slots that do not fit: those with columns, those of final states, and pools that are only read."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.causal_conv1d.good_calls import DECODE, DIM, PACKED, SLOTS, WIDTH
from tests.support.bad_input import INDICES, Good, Row, also, ints, value, zeros

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
        **DECODE["causal_conv1d_update"](xp), **moved(xp), "conv_state_indices": xp.asarray(TABLE, np.int64)
    },
    READING: lambda xp: {**PACKED["causal_conv1d_varlen_fn"](xp), **read_only(xp)},
}  # fmt: skip
WRITTEN: dict[str, dict[str, Any]] = {STEP: {"intermediate_conv_window": np.s_[[5, 2, 0], :2]}}
"""Where good calls change what is not their result."""
TARGET, WAYS = "dst_state_indices", "one of 'zero', 'keep'"


def table(name: str, axes: str) -> dict[str, Row]:
    """Rows for the arrays that name slots, of which `name` has those that sequences start from."""
    one, both = f"(3,) or longer ({axes})", f"(3, 1) or more ({axes}, columns)"
    without = f"state_column: got an array; wanted None unless {name} has 2 axes ({axes}, columns)"
    return {
        "slots-few": (zeros(name, (2, 2), np.int32), ValueError, f"{name}: got shape (2, 2); wanted {both}"),
        "slots-no-columns": (zeros(name, (3, 0), np.int32), ValueError, f"{name}: got shape (3, 0); wanted {both}"),
        "slots-float": (zeros(name, (3, 2)), TypeError, f"{name}: got dtype float32; wanted {INDICES}"),
        "slots-one-axis": (ints(name, [3, 0, 2]), ValueError, without),
        "slots-none": (value(name, None), ValueError, without),
        "column-few": (
            zeros("state_column", (2,), np.int32), ValueError, f"state_column: got shape (2,); wanted {one}"
        ),
        "column-of-each-token": (
            zeros("state_column", (3, 2), np.int32), ValueError, f"state_column: got shape (3, 2); wanted {one}"
        ),
        "column-bool": (
            zeros("state_column", (3,), bool), TypeError, f"state_column: got dtype bool; wanted {INDICES}"
        ),
        "target-few": (zeros(TARGET, (2,), np.int32), ValueError, f"{TARGET}: got shape (2,); wanted {one}"),
        "target-int16": (zeros(TARGET, (3,), np.int16), TypeError, f"{TARGET}: got dtype int16; wanted {INDICES}"),
        "null-and-pad": (
            also(value("null_slot", 0), value("pad_slot_id", 2)), ValueError,
            "null_slot: got 0; wanted None, or 2 as pad_slot_id: one slot is for padding",
        ),
        "null-float": (value("null_slot", 0.0), TypeError, "null_slot: got 0.0; wanted an int"),
        "pad-output": (value("pad_output", "zeros"), ValueError, f"pad_output: got 'zeros'; wanted {WAYS}"),
        "pad-output-none": (value("pad_output", None), ValueError, f"pad_output: got None; wanted {WAYS}"),
        "kept-in-a-new-array": (
            also(value("pad_output", "keep"), value("out", None)), ValueError,
            "pad_output: got 'keep'; wanted 'zero' unless out is given",
        ),
    }  # fmt: skip


BAD: dict[str, dict[str, Row]] = {
    PREFILL: {
        **table("cache_indices", "sequences"),
        "pool-none": (
            value("conv_states", None), ValueError, f"{TARGET}: got an array; wanted None unless conv_states is given"
        ),
        "two-pools": (
            zeros("initial_states", (SLOTS, DIM, WIDTH)), ValueError,
            "initial_states: got an array; wanted None beside conv_states, which sequences start from",
        ),
    },
    STEP: table("conv_state_indices", "batch of x"),
    READING: {
        "target": (
            ints(TARGET, [1, 0, 4]), ValueError, f"{TARGET}: got an array; wanted None unless conv_states is given"
        ),
        "rank": (
            zeros("initial_states", (SLOTS, DIM)), ValueError,
            "initial_states: got shape (5, 6); wanted 3 axes (slots, dim, state_len)",
        ),
        "short": (
            zeros("initial_states", (SLOTS, DIM, 2)), ValueError,
            "state_len of initial_states: got 2; wanted at least 3 (width - 1)",
        ),
        "few": (
            also(zeros("initial_states", (2, DIM, WIDTH)), value("cache_indices", None)), ValueError,
            "slots of initial_states: got 2; wanted at least 3, one a sequence, or cache_indices",
        ),
        "out-in-states": (
            lambda xp, a: {"x": a["x"][:, :4], "query_start_loc": None, "out": a["initial_states"][2]}, ValueError,
            "out: got memory that overlaps initial_states; wanted memory of its own",
        ),
    },
}  # fmt: skip


def contents(name: str) -> dict[str, Row]:
    """Rows for contents of these arrays."""
    others = "{name}: got slot {slot}, which another sequence starts from; wanted a slot of its own"
    return {
        "slot-large": (
            ints(name, [[9, 3], [0, 9], [5, 9]]),
            ValueError,
            f"{name}: got slot 5; wanted 0 to 4, or pad_slot_id",
        ),
        "column-large": (
            ints("state_column", [1, 0, 2]),
            ValueError,
            "state_column[2]: got 2; wanted at most 1, the last column",
        ),
        "target-large": (ints(TARGET, [1, 0, 5]), ValueError, f"{TARGET}: got slot 5; wanted 0 to 4, or pad_slot_id"),
        "target-negative": (
            ints(TARGET, [1, 0, -2]),
            ValueError,
            f"{TARGET}: got slot -2; wanted 0 to 4, or pad_slot_id",
        ),
        "target-twice": (
            ints(TARGET, [4, 0, 4]),
            ValueError,
            f"{TARGET}: got slot 4 for several sequences; wanted a slot of its own for each",
        ),
        "target-of-another": (ints(TARGET, [1, 0, 3]), ValueError, others.format(name=TARGET, slot=3)),
    }


CONTENTS: dict[str, dict[str, Row]] = {PREFILL: contents("cache_indices"), STEP: contents("conv_state_indices")}
CONTENTS[PREFILL]["target-of-another"] = (
    also(ints(TARGET, [1, 4, 3]), ints("has_initial_state", [True, False, True], bool)),
    ValueError,
    f"{TARGET}: got slot 3, which another sequence starts from; wanted a slot of its own",
)
FINE: dict[str, dict[str, Any]] = {
    PREFILL: {
        "moved": (value("null_slot", None), [True, True], {1, 4}),
        "none-kept": (ints(TARGET, [-1, -1, -1]), [True, True], set()),
        "one-start": (ints("cache_indices", [[9, 2], [0, 9], [2, 9]]), [True, True], {1, 4}),
        "null-and-negative": (
            also(ints("cache_indices", [[9, -1], [0, 9], [2, 9]]), value("null_slot", 0)),
            [False, True],
            {4},
        ),
    },
    STEP: {
        "moved": (value("null_slot", None), [True, True, True], {0, 1, 4}),
        "null": (value("null_slot", 0), [True, False, True], {1, 4}),
        "null-target": (also(ints(TARGET, [0, 2, 4]), value("null_slot", 0)), [True, False, True], {4}),
        "no-column": (ints("state_column", [1, -1, 0]), [True, False, True], {1, 4}),
    },
}
