"""Arguments of steps with rings that do not fit: named, and nothing was written."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuconv.runtime.dlpack import WANTED
from tests.selective_state_update.good_calls import BATCH, DIM, GROUPS, HEADS, SLOTS, TOKENS, N
from tests.support import bad_input as bad
from tests.support.bad_input import INDICES, Good, Row, Tables, ints, poisoned, zeros

WINDOW, RING_ROWS = 4, 6
SLOT = "state_batch_indices"
PER_HEAD = "one value a head: no axes behind that of the heads, or strides of 0 along them"


def rings(xp: Any) -> dict[str, Any]:
    """A pool of states with rings, which hold one token each."""
    cursors = xp.zeros((SLOTS, 4), np.int32)
    cursors[:, 1] = 1
    return {
        "state": xp.ones((SLOTS, HEADS, DIM, N), np.float32),
        "x_ring": xp.ones((SLOTS, HEADS, RING_ROWS, DIM), np.float32),
        "B_ring": xp.ones((SLOTS, GROUPS, RING_ROWS, N), np.float32),
        "dt_ring": xp.ones((SLOTS, HEADS, RING_ROWS), np.float32),
        "cursors": cursors,
    }


def good_step(xp: Any, *lead: int) -> dict[str, Any]:
    """A step with as many options as go together."""
    grouped = (*lead, GROUPS, N)
    return {
        **rings(xp),
        **{name: xp.ones((*lead, HEADS, DIM), np.float32) for name in "xz"},
        "dt": xp.ones((*lead, HEADS), np.float32),
        **{name: xp.ones(grouped, np.float32) for name in "BC"},
        "A": -xp.ones(HEADS, np.float32),
        "D": xp.ones(HEADS, np.float32),
        "dt_bias": xp.ones(HEADS, np.float32),
        SLOT: xp.asarray([3, 0, 1], np.int32),
        "force_flush": xp.zeros(BATCH, bool),
        "has_initial_state": xp.ones(BATCH, bool),
        "window": WINDOW,
        "out": poisoned(xp, *lead, HEADS, DIM),
    }


def good_batch(xp: Any) -> dict[str, Any]:
    """Several tokens a sequence."""
    return good_step(xp, BATCH, TOKENS)


def good_token(xp: Any) -> dict[str, Any]:
    """A token a sequence."""
    return good_step(xp, BATCH)


def good_packed(xp: Any) -> dict[str, Any]:
    """Sequences of 2, 0 and 1 tokens, and padding."""
    return {**good_step(xp, 4), "cu_seqlens": xp.asarray([0, 2, 2, 3], np.int32)}


def good_commit(xp: Any) -> dict[str, Any]:
    """Cursors with a token to be committed."""
    cursors = xp.zeros((SLOTS, 4), np.int32)
    cursors[:, 2] = 1
    indices = {"accepted": xp.ones(BATCH, np.int32), SLOT: xp.asarray([3, 0, 1], np.int64)}
    return {"cursors": cursors, **indices, "ring_rows": RING_ROWS, "window": WINDOW}


def good_materialise(xp: Any) -> dict[str, Any]:
    """States of three slots to three others."""
    return {
        **rings(xp),
        "A": -xp.ones(HEADS, np.float32),
        SLOT: xp.asarray([3, 0, 1], np.int32),
        "dst_state_batch_indices": xp.asarray([4, 5, 6], np.int64),
        "count": xp.asarray([0, 1, -1], np.int32),
        "window": WINDOW,
    }


GOOD: Good = {
    "selective_state_update_replay:batch": good_batch,
    "selective_state_update_replay:token": good_token,
    "selective_state_update_replay:packed": good_packed,
    "selective_state_update_commit:slots": good_commit,
    "selective_state_update_materialise:slots": good_materialise,
}

X_RING, B_RING = (SLOTS, HEADS, RING_ROWS, DIM), (SLOTS, GROUPS, RING_ROWS, N)

OF_RINGS: dict[str, Row] = {
    **{
        f"{name}-none": (bad.value(name, None), TypeError, f"{name}: got None; wanted an array")
        for name in ("x_ring", "B_ring", "dt_ring", "cursors", "A")
    },
    "x_ring-rank": bad.shape("x_ring", (SLOTS, HEADS, DIM), "4 axes (slots, nheads, ring_rows, headdim)"),
    "x_ring-slots": bad.shape("x_ring", (2, *X_RING[1:]), f"{X_RING} (slots, nheads, ring_rows, headdim)"),
    "x_ring-rows": bad.length("x_ring", (SLOTS, HEADS, WINDOW, DIM), "ring_rows", WINDOW, f"5 to {2**31 - 1}"),
    "dt_ring-float16": bad.dtype("dt_ring", np.float16, "float32"),
    "cursors-int64": bad.dtype("cursors", np.int64, "int32"),
    "cursors-columns": bad.shape("cursors", (SLOTS, 3), f"({SLOTS}, 4) (slots, 4)", np.int32),
    "cursors-strided": (
        lambda xp, a: {"cursors": xp.zeros((SLOTS, 8), np.int32)[:, ::2]}, ValueError,
        "cursors: got strides (8, 2); wanted an array contiguous behind its slots",
    ),
    "window-0": bad.given("window", 0, "1 to 32"),
    "window-33": bad.given("window", 33, "1 to 32"),
    "A-by-row": (
        lambda xp, a: {"A": xp.ones((HEADS, DIM, N), np.float32)}, ValueError,
        f"A: got strides ({DIM * N}, {N}, 1) for shape {(HEADS, DIM, N)}; wanted {PER_HEAD}",
    ),
}  # fmt: skip

OF_STEPS: dict[str, Row] = {
    "B_ring-groups": bad.shape("B_ring", (SLOTS, 3, RING_ROWS, N), f"{B_RING} (slots, ngroups, ring_rows, d_state)"),
    "state-without-heads": bad.shape("state", (SLOTS, DIM, N), "4 axes (slots, nheads, headdim, d_state)"),
    "x_ring-float16": bad.dtype("x_ring", np.float16, "float32"),
    "B_ring-float16": bad.dtype("B_ring", np.float16, "float32"),
    "dt-by-row": (
        lambda xp, a: {"dt": xp.ones((BATCH, TOKENS, HEADS, DIM), np.float32)}, ValueError,
        f"dt: got strides ({TOKENS * HEADS * DIM}, {HEADS * DIM}, {DIM}, 1) for shape "
        f"{(BATCH, TOKENS, HEADS, DIM)}; wanted {PER_HEAD}",
    ),
    "dt-by-token": bad.shape("dt", (BATCH, TOKENS), f"{(BATCH, TOKENS, HEADS, DIM)} (the shape of x)"),
    "dt_bias-of-one": bad.shape("dt_bias", (), f"{(HEADS, DIM)} (nheads, headdim of state)"),
    "A-of-one": bad.shape("A", (), f"{(HEADS, DIM, N)} (nheads, headdim, d_state of state)"),
    "dt_bias-by-row": (
        lambda xp, a: {"dt_bias": xp.ones((HEADS, DIM), np.float32)}, ValueError,
        f"dt_bias: got strides ({DIM}, 1) for shape {(HEADS, DIM)}; wanted {PER_HEAD}",
    ),
    "slots-of-two-axes": bad.shape(SLOT, (BATCH, 2), "1 axis (batch)", np.int32),
    "flush-int": bad.dtype("force_flush", np.int32, "bool"),
    "flush-count": bad.shape("force_flush", (2,), "(3,) or longer (sequences)", bool),
    "fold-of-many": bad.given("fold", True, "False or None for several tokens, which may be rejected"),
    "tokens-beyond-the-window": (
        bad.value("window", 1), ValueError,
        "tokens of x: got 2; wanted at most 1: 16, the window, and what ring_rows has beyond it",
    ),
    "x_ring-with-state": bad.overlap("state", "x_ring", bad.of_one_memory("state", "x_ring")),
}  # fmt: skip

OF_COMMITS: dict[str, Row] = {
    "cursors-none": (bad.value("cursors", None), TypeError, f"cursors: got a NoneType; wanted {WANTED}"),
    "cursors-float32": bad.dtype("cursors", np.float32, "int32"),
    "cursors-columns": bad.shape("cursors", (SLOTS, 3), f"({SLOTS}, 4) (slots, 4)", np.int32),
    "accepted-float32": bad.dtype("accepted", np.float32, INDICES),
    "accepted-count": bad.shape("accepted", (2,), "(3,) or longer (sequences)", np.int32),
    "slots-rank": bad.shape(SLOT, (BATCH, 1), "1 axes (batch)", np.int32),
    "rows-few": bad.given("ring_rows", WINDOW, f"5 to {2**31 - 1}"),
    "window-0": bad.given("window", 0, "1 to 32"),
    "reset-2": bad.mistyped("reset", 2, "True or False"),
}

OF_MATERIALISED: dict[str, Row] = {
    "B_ring-groups": (
        zeros("B_ring", (SLOTS, 3, RING_ROWS, N)),
        ValueError,
        "ngroups of B_ring: got 3; wanted a divisor of nheads, 4",
    ),
    "slots-none": (bad.value(SLOT, None), TypeError, f"{SLOT}: got None; wanted an array"),
    "slots-float32": bad.dtype(SLOT, np.float32, INDICES),
    "targets-count": bad.shape("dst_state_batch_indices", (2,), "(3,) or longer (sequences)", np.int32),
    "count-bool": bad.dtype("count", bool, INDICES),
    "state-float64": bad.dtype("state", np.float64, "one of float32, float16, bfloat16, int16, int8, float8_e4m3fn"),
}

BAD: Tables = {
    "selective_state_update_replay:batch": {**OF_RINGS, **OF_STEPS},
    "selective_state_update_commit:slots": OF_COMMITS,
    "selective_state_update_materialise:slots": {**OF_RINGS, **OF_MATERIALISED},
}


def cursor(column: int, got: int, most: int, what: str) -> Row:
    """A cursor of slot 0 that cannot be right."""

    def change(xp: Any, a: dict[str, Any]) -> dict[str, Any]:
        cursors = a["cursors"].copy()
        cursors[0, column] = got
        return {"cursors": cursors}

    return change, ValueError, f"cursors[0, {column}]: got {got}; wanted 0 to {most} ({what})"


CONTENTS: Tables = {
    "selective_state_update_replay:token": {
        "slot-large": (ints(SLOT, [3, 0, 9]), ValueError, bad.outside(SLOT, 9, SLOTS)),
        "slot-twice": (ints(SLOT, [3, 0, 3]), ValueError, bad.of_several(SLOT, 3)),
        "row-large": cursor(0, RING_ROWS, RING_ROWS - 1, "row"),
        "row-negative": cursor(0, -1, RING_ROWS - 1, "row"),
        "live-many": cursor(1, WINDOW + 1, WINDOW, "live tokens"),
    },
    "selective_state_update_replay:packed": {
        "sequence-long": (
            ints("cu_seqlens", [0, 3, 3, 4]), ValueError, "cu_seqlens[1]: got 3; wanted at most 2, 2 tokens on"
        ),
    },
}  # fmt: skip
