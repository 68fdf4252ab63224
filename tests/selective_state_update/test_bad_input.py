"""Arguments of selective_state_update that do not fit, or have no meaning together: named, and nothing was written."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuconv.runtime.dlpack import WANTED
from tests.selective_state_update.good_calls import BATCH, DIM, GOOD, GROUPS, HEADS, ROWS, SLOTS, TOKENS, N
from tests.support.bad_input import (
    FLOATS,
    INDICES,
    KINDS,
    OWN_ADDRESS,
    Change,
    Row,
    also,
    broadcast,
    of_one_memory,
    overlapping,
    refuse,
    value,
    zeros,
)

BUFFER, ROW = "intermediate_states_buffer", "intermediate_state_indices"
SLOT, TARGET, ACCEPTED = "state_batch_indices", "dst_state_batch_indices", "num_accepted_tokens"
INNER, TOKEN, GROUPED = (HEADS, DIM, N), (BATCH, TOKENS, HEADS, DIM), (BATCH, TOKENS, GROUPS, N)
ROWS_WANTED, SEQUENCES = "at least 3 rows, one a sequence", "(3,) or longer (sequences)"
PARENTS = zeros("parents", (BATCH, TOKENS), np.int32)
X_AXES = "(batch[, tokens], nheads, headdim), nheads, headdim as state has them: [4, 3]"


def shape(name: str, got: tuple[int, ...], wanted: str, dtype: Any = np.float32) -> Row:
    """An array of another shape."""
    return zeros(name, got, dtype), ValueError, f"{name}: got shape {got}; wanted {wanted}"


def dtype(name: str, of: tuple[int, ...], got: Any, wanted: str) -> Row:
    """An array of another dtype."""
    return zeros(name, of, got), TypeError, f"{name}: got dtype {np.dtype(got)}; wanted {wanted}"


def with_seed(of: tuple[int, ...], got: Any) -> Change:
    """Such an array as a seed, for a state that can be rounded."""
    no_buffer = (value(BUFFER, None), value(ROW, None))
    return also(zeros("state", (SLOTS, *INNER), ml_dtypes.bfloat16), *no_buffer, zeros("rand_seed", of, got))


OF_BATCH: dict[str, Row] = {
    "state-list": (value("state", [[1.0]]), TypeError, f"state: got a list; wanted {WANTED}"),
    "state-none": (value("state", None), TypeError, f"state: got a NoneType; wanted {WANTED}"),
    "state-rank": shape("state", (9, 60), "3 or 4 axes (slots[, nheads], headdim, d_state)"),
    "state-int16": dtype("state", (SLOTS, *INNER), np.int16, FLOATS),
    "state-float64": dtype("state", (SLOTS, *INNER), np.float64, FLOATS),
    "state-broadcast": (
        broadcast("state", SLOTS, *INNER), ValueError,
        f"state: got strides (0, 15, 5, 1) for shape (9, 4, 3, 5); wanted {OWN_ADDRESS}",
    ),
    "state-wide": (
        zeros("state", (SLOTS, HEADS, DIM, 513)), ValueError, "d_state of state: got 513; wanted 1 to 512"
    ),
    "state-no-width": (
        zeros("state", (SLOTS, HEADS, DIM, 0)), ValueError, "d_state of state: got 0; wanted 1 to 512"
    ),
    "state-few-slots": (
        lambda xp, a: {"state": a["state"][:2], SLOT: None, TARGET: None}, ValueError,
        "slots of state: got 2; wanted at least 3, one a sequence, or state_batch_indices",
    ),
    "x-list": (value("x", [1.0]), TypeError, "x: got a list; wanted a {kind} array, as the first is"),
    **{f"{name}-none": (value(name, None), TypeError, f"{name}: got None; wanted an array")
       for name in ("x", "dt", "A", "B", "C")},
    "x-float64": dtype("x", TOKEN, np.float64, FLOATS),
    "x-rank-2": shape("x", (BATCH, HEADS * DIM), X_AXES),
    "x-rank-5": shape("x", (1, *TOKEN), X_AXES),
    "x-heads": shape("x", (BATCH, TOKENS, DIM, HEADS), X_AXES),
    "x-batch": (
        lambda xp, a: {"x": xp.broadcast_to(a["x"][:1], (2**30 + 1, TOKENS, HEADS, DIM))}, ValueError,
        "batch of x: got 1073741825; wanted 0 to 1073741824",
    ),
    "x-tokens": (
        lambda xp, a: {"x": xp.broadcast_to(a["x"][:, :1], (BATCH, 2**30 + 1, HEADS, DIM))}, ValueError,
        "tokens of x: got 1073741825; wanted 0 to 1073741824",
    ),
    "dt-shape": shape("dt", (BATCH, TOKENS, HEADS), f"{TOKEN} (the shape of x)"),
    "dt-float16": dtype("dt", TOKEN, np.float16, "float32"),
    "z-shape": shape("z", (BATCH, HEADS, DIM), f"{TOKEN} (the shape of x)"),
    "z-float16": dtype("z", TOKEN, np.float16, "float32"),
    "out-shape": shape("out", (BATCH, HEADS, DIM), f"{TOKEN} (the shape of x)"),
    "out-float16": dtype("out", TOKEN, np.float16, "float32"),
    "A-shape": shape("A", (HEADS,), f"{INNER} (nheads, headdim, d_state of state)"),
    "A-float16": dtype("A", INNER, np.float16, "float32"),
    "D-shape": shape("D", (HEADS,), "(4, 3) (nheads, headdim of state)"),
    "D-float16": dtype("D", (HEADS, DIM), np.float16, "float32"),
    "bias-shape": shape("dt_bias", (DIM, HEADS), "(4, 3) (nheads, headdim of state)"),
    "bias-int32": dtype("dt_bias", (HEADS, DIM), np.int32, "float32"),
    "B-d_state": shape("B", (*GROUPED[:-1], N + 1), f"{GROUPED} (as x before its heads, ngroups, d_state)"),
    "B-rank": shape("B", (BATCH, TOKENS, N), "(3, 2, 2, 5) (as x before its heads, ngroups, d_state)"),
    "B-rank-1": shape("B", (N,), "(3, 2, 5) (as x before its heads, ngroups, d_state)"),
    "B-float16": dtype("B", GROUPED, np.float16, "float32"),
    "B-groups": (
        also(zeros("B", (BATCH, TOKENS, 3, N)), zeros("C", (BATCH, TOKENS, 3, N))), ValueError,
        "ngroups of B: got 3; wanted a divisor of nheads, 4",
    ),
    "B-no-groups": (
        also(zeros("B", (BATCH, TOKENS, 0, N)), zeros("C", (BATCH, TOKENS, 0, N))), ValueError,
        "ngroups of B: got 0; wanted a divisor of nheads, 4",
    ),
    "C-groups": shape("C", (BATCH, TOKENS, 1, N), f"{GROUPED} (as x before its heads, ngroups, d_state)"),
    "C-float16": dtype("C", GROUPED, np.float16, "float32"),
    "slots-int16": dtype(SLOT, (BATCH,), np.int16, INDICES),
    "slots-count": shape(SLOT, (BATCH - 1,), ROWS_WANTED, np.int32),
    "slots-rank-3": shape(SLOT, (BATCH, 1, 1), "1 or 2 axes (batch[, columns])", np.int32),
    "slots-no-columns": (zeros(SLOT, (BATCH, 0), np.int32), ValueError, f"columns of {SLOT}: got 0; wanted at least 1"),
    "column-without-columns": (
        zeros("state_column", (BATCH,), np.int32), ValueError,
        f"state_column: got an array; wanted None unless {SLOT} has 2 axes (batch, columns)",
    ),
    "has-int32": dtype("has_initial_state", (BATCH,), np.int32, "bool"),
    "has-count": shape("has_initial_state", (BATCH - 1,), SEQUENCES, bool),
    "slots-list": (value(SLOT, [3, 0, 1]), TypeError, f"{SLOT}: got a list; wanted a {{kind}} array, as the first is"),
    "targets-float32": dtype(TARGET, (BATCH,), np.float32, INDICES),
    "targets-rank-0": shape(TARGET, (), "1 or 2 axes (batch[, columns])", np.int32),
    "targets-count": shape(TARGET, (BATCH - 1, TOKENS), ROWS_WANTED, np.int64),
    "accepted-without-columns": (
        zeros(ACCEPTED, (BATCH,), np.int32), ValueError,
        f"{ACCEPTED}: got an array; wanted None unless {SLOT} has 2 axes (batch, columns)",
    ),
    "rows-without-buffer": (
        value(BUFFER, None), ValueError, f"{ROW}: got an array; wanted None unless {BUFFER} is given"
    ),
    "rows-bool": dtype(ROW, (BATCH,), bool, INDICES),
    "rows-count": shape(ROW, (BATCH - 1,), SEQUENCES, np.int32),
    "parents-bool": dtype("parents", (BATCH, TOKENS), bool, INDICES),
    "parents-rank": shape("parents", (BATCH,), "2 axes (batch, tokens)", np.int32),
    "parents-tokens": shape("parents", (BATCH, 1), "(3, 2) or more (batch, tokens of x)", np.int32),
    "parents-batch": shape("parents", (BATCH - 1, TOKENS), "(3, 2) or more (batch, tokens of x)", np.int64),
    "parents-without-buffer": (
        also(PARENTS, value(BUFFER, None), value(ROW, None)), ValueError,
        f"parents: got an array; wanted None unless {BUFFER} is given",
    ),
    "parents-and-a-slot-a-token": (
        also(PARENTS, zeros(TARGET, (BATCH, TOKENS), np.int32)), ValueError,
        f"parents: got an array; wanted None beside a {TARGET} of 2 axes",
    ),
    "buffer-dtype": dtype(BUFFER, (ROWS, TOKENS, *INNER), np.float16, "float32"),
    "buffer-rank": shape(
        BUFFER, (ROWS, *INNER), "(4, 4, 4, 3, 5) (rows, steps, and as state behind its slots)"
    ),
    "buffer-inner": shape(
        BUFFER, (ROWS, TOKENS, HEADS, N, DIM), "(4, 2, 4, 3, 5) (rows, steps, and as state behind its slots)"
    ),
    "buffer-few-steps": (
        zeros(BUFFER, (ROWS, 1, *INNER)), ValueError, f"steps of {BUFFER}: got 1; wanted at least 2, the tokens of x"
    ),
    "buffer-few-rows": (
        value(ROW, None), ValueError, f"rows of {BUFFER}: got 4; wanted at least 9, one a slot, or {ROW}"
    ),
    "buffer-few-rows-for-sequences": (
        also(*(value(name, None) for name in (ROW, SLOT, TARGET)), zeros(BUFFER, (2, TOKENS, *INNER))), ValueError,
        f"rows of {BUFFER}: got 2; wanted at least 3, one a slot, or {ROW}",
    ),
    "buffer-broadcast": (
        broadcast(BUFFER, ROWS, TOKENS + 1, *INNER), ValueError,
        f"{BUFFER}: got strides (0, 60, 15, 5, 1) for shape (4, 3, 4, 3, 5); wanted {OWN_ADDRESS}",
    ),
    "out-broadcast": (
        broadcast("out", *TOKEN), ValueError,
        f"out: got strides (0, 12, 3, 1) for shape (3, 2, 4, 3); wanted {OWN_ADDRESS}",
    ),
    "pad-float": (value("pad_slot_id", 0.0), TypeError, "pad_slot_id: got 0.0; wanted an int"),
    "rounds-float": (value("philox_rounds", 7.0), TypeError, "philox_rounds: got 7.0; wanted an int"),
    "null-float": (value("null_slot", 0.0), TypeError, "null_slot: got 0.0; wanted an int"),
    "null-beside-pad": (
        also(value("null_slot", 0), value("pad_slot_id", 2)), ValueError,
        "null_slot: got 0; wanted None, or 2 as pad_slot_id: one slot is for padding",
    ),
    "pad_output-word": (
        value("pad_output", "skip"), ValueError, "pad_output: got 'skip'; wanted one of 'zero', 'keep'"
    ),
    "kept-without-out": (
        also(value("pad_output", "keep"), value("out", None)), ValueError,
        "pad_output: got 'keep'; wanted 'zero' unless out is given",
    ),
    "rounds-negative": (value("philox_rounds", -1), ValueError, "philox_rounds: got -1; wanted 0 to 20"),
    "rounds-many": (value("philox_rounds", 21), ValueError, "philox_rounds: got 21; wanted 0 to 20"),
    "seed-of-float32": (
        value("rand_seed", 1), ValueError,
        "rand_seed: got a seed; wanted None for a float32 state, which is not rounded",
    ),
    "seed-array-of-float32": (
        zeros("rand_seed", (1,), np.int64), ValueError,
        "rand_seed: got a seed; wanted None for a float32 state, which is not rounded",
    ),
    "seed-negative": (
        value("rand_seed", -1), ValueError, "rand_seed: got -1; wanted 0 to 18446744073709551615"
    ),
    "seed-large": (
        value("rand_seed", 2**64), ValueError, "rand_seed: got 18446744073709551616; wanted 0 to 18446744073709551615"
    ),
    "seed-float": (
        value("rand_seed", 1.5), TypeError, "rand_seed: got a float; wanted a {kind} array, as the first is"
    ),
    "seed-array-int32": (
        with_seed((1,), np.int32), TypeError, "rand_seed: got dtype int32; wanted int64"
    ),
    "seed-array-of-two": (
        with_seed((2,), np.int64), ValueError, "rand_seed: got shape (2,); wanted one element"
    ),
    # Memory that is another argument's.
    "state-with-x": (of_one_memory("state", "x"), ValueError, overlapping("state", "x")),
    "state-with-buffer": (of_one_memory("state", BUFFER), ValueError, overlapping(BUFFER, "state")),
    "out-with-state": (of_one_memory("state", "out"), ValueError, overlapping("state", "out")),
    "out-with-read-state": (
        also(of_one_memory("state", "out"), value("disable_state_update", True)), ValueError,
        overlapping("out", "state"),
    ),
    "out-with-dt": (of_one_memory("out", "dt"), ValueError, overlapping("out", "dt")),
    "out-is-z": (lambda xp, a: {"out": a["z"]}, ValueError, overlapping("out", "z")),
    "out-is-x-reversed": (lambda xp, a: {"out": a["x"][::-1]}, ValueError, overlapping("out", "x")),
    "out-is-x-and-z": (lambda xp, a: {"out": a["x"], "z": a["x"]}, ValueError, overlapping("out", "z")),
    "buffer-with-B": (of_one_memory("B", BUFFER), ValueError, overlapping(BUFFER, "B")),
}  # fmt: skip

OF_ACCEPTED: dict[str, Row] = {
    "accepted-float64": dtype(ACCEPTED, (BATCH,), np.float64, INDICES),
    "accepted-count": shape(ACCEPTED, (BATCH, 1), SEQUENCES, np.int32),
    "targets-of-one-axis": (
        zeros(TARGET, (BATCH,), np.int32), ValueError,
        f"{TARGET}: got shape (3,); wanted 2 axes (batch, columns) beside {ACCEPTED}",
    ),
    "column-beside-accepted": (
        zeros("state_column", (BATCH,), np.int32), ValueError,
        f"state_column: got an array; wanted None beside {ACCEPTED}",
    ),
    "parents": (PARENTS, ValueError, f"parents: got an array; wanted None beside {ACCEPTED}"),
}  # fmt: skip

OF_PACKED: dict[str, Row] = {
    "x-of-a-batch": (
        zeros("x", TOKEN),
        ValueError,
        f"x: got shape {TOKEN}; wanted (tokens, nheads, headdim), nheads, headdim as state has them: [4, 3]",
    ),
    "starts-float32": dtype("cu_seqlens", (4,), np.float32, INDICES),
    "starts-rank": shape("cu_seqlens", (4, 1), "1 axes (sequences + 1)", np.int32),
    "starts-none-at-all": (
        zeros("cu_seqlens", (0,), np.int32),
        ValueError,
        "sequences of cu_seqlens: got -1; wanted 0 to 1073741824",
    ),
    "slots-count": shape(SLOT, (2,), ROWS_WANTED, np.int32),
    "parents": (PARENTS, ValueError, "parents: got an array; wanted None beside cu_seqlens"),
}

OF_BARE: dict[str, Row] = {
    "x-of-heads": (
        zeros("x", (BATCH, TOKENS, 1, DIM)), ValueError,
        "x: got shape (3, 2, 1, 3); wanted (batch[, tokens], dim), dim as state has them: [3]",
    ),
    "B-of-groups": shape("B", (BATCH, 1, N), "(3, 5) (as x before dim, d_state)"),
    "D-of-heads": shape("D", (1, DIM), "(3,) (dim of state)"),
    "A-of-heads": shape("A", (1, DIM, N), "(3, 5) (dim, d_state of state)"),
}  # fmt: skip

TABLES = {"batch": OF_BATCH, "accepted": OF_ACCEPTED, "packed": OF_PACKED, "bare": OF_BARE}
BAD = [pytest.param(call, row, id=f"{call}-{key}") for call, rows in TABLES.items() for key, row in rows.items()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("call", "row"), BAD)
def test_a_bad_argument_is_named_and_nothing_is_written(call: str, row: Row, kind: str) -> None:
    refuse("selective_state_update", row, kind, {"selective_state_update": GOOD[call]})
