"""Arguments of selective_state_update that do not fit, or have no meaning together: named, and nothing was written."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from cuconv.runtime.dlpack import WANTED
from tests.selective_state_update.good_calls import BATCH, DIM, GROUPS, HEADS, ROWS, SLOTS, TOKENS, N
from tests.support import bad_input as bad
from tests.support.bad_input import FLOATS, INDICES, Change, Row, Tables, zeros

BUFFER, ROW = "intermediate_states_buffer", "intermediate_state_indices"
SLOT, TARGET, ACCEPTED = "state_batch_indices", "dst_state_batch_indices", "num_accepted_tokens"
INNER, TOKEN, GROUPED = (HEADS, DIM, N), (BATCH, TOKENS, HEADS, DIM), (BATCH, TOKENS, GROUPS, N)
ROWS_WANTED, SEQUENCES = "at least 3 rows, one a sequence", "(3,) or longer (sequences)"
STATES = "one of float32, float16, bfloat16, int16, int8, float8_e4m3fn"
WITHOUT = "None unless {} is one of int16, int8, float8_e4m3fn"
SCALES, BUFFER_SCALES = (SLOTS, *INNER[:2]), (ROWS, TOKENS + 1, *INNER[:2])
PARENTS = zeros("parents", (BATCH, TOKENS), np.int32)
X_AXES = "(batch[, tokens], nheads, headdim), nheads, headdim as state has them: [4, 3]"


def with_seed(of: tuple[int, ...], got: Any) -> Change:
    """Such an array as a seed, for a state that can be rounded."""
    no_buffer = (bad.value(BUFFER, None), bad.value(ROW, None))
    return bad.also(zeros("state", (SLOTS, *INNER), ml_dtypes.bfloat16), *no_buffer, zeros("rand_seed", of, got))


OF_BATCH: dict[str, Row] = {
    "state-list": (bad.value("state", [[1.0]]), TypeError, f"state: got a list; wanted {WANTED}"),
    "state-none": (bad.value("state", None), TypeError, f"state: got a NoneType; wanted {WANTED}"),
    "state-rank": bad.shape("state", (9, 60), "3 or 4 axes (slots[, nheads], headdim, d_state)"),
    "state-uint8": bad.dtype("state", np.uint8, STATES),
    "state-float64": bad.dtype("state", np.float64, STATES),
    "state-int16-without-scales": (
        bad.also(zeros("state", (SLOTS, *INNER), np.int16), bad.value(BUFFER, None), bad.value(ROW, None)), ValueError,
        f"state_scale: got None; wanted an array {(SLOTS, *INNER[:2])} beside state of int16",
    ),
    "scales-of-floats": bad.array("state_scale", WITHOUT.format("state"), zeros("state_scale", (SLOTS, *INNER[:2]))),
    "scales-of-a-buffer-of-floats": bad.array(
        "intermediate_state_scales", WITHOUT.format(BUFFER), zeros("intermediate_state_scales", (ROWS, 3, *INNER[:2]))
    ),
    "state-broadcast": bad.one_address("state", SLOTS, *INNER),
    "state-wide": bad.length("state", (SLOTS, HEADS, DIM, 513), "d_state", 513, "1 to 512"),
    "state-no-width": bad.length("state", (SLOTS, HEADS, DIM, 0), "d_state", 0, "1 to 512"),
    "state-few-slots": (
        lambda xp, a: {"state": a["state"][:2], SLOT: None, TARGET: None}, ValueError,
        "slots of state: got 2; wanted at least 3, one a sequence, or state_batch_indices",
    ),
    "x-list": bad.no_array("x", [1.0]),
    **{f"{name}-none": (bad.value(name, None), TypeError, f"{name}: got None; wanted an array")
       for name in ("x", "dt", "A", "B", "C")},
    "x-float64": bad.dtype("x", np.float64, FLOATS),
    "x-rank-2": bad.shape("x", (BATCH, HEADS * DIM), X_AXES),
    "x-rank-5": bad.shape("x", (1, *TOKEN), X_AXES),
    "x-heads": bad.shape("x", (BATCH, TOKENS, DIM, HEADS), X_AXES),
    "x-batch": bad.too_long("x", 0, 2**30 + 1, "batch"),
    "x-tokens": bad.too_long("x", 1, 2**30 + 1, "tokens"),
    "dt-shape": bad.shape("dt", (BATCH, TOKENS, HEADS), f"{TOKEN} (the shape of x)"),
    "dt-float16": bad.dtype("dt", np.float16, "float32"),
    "z-shape": bad.shape("z", (BATCH, HEADS, DIM), f"{TOKEN} (the shape of x)"),
    "z-float16": bad.dtype("z", np.float16, "float32"),
    "out-shape": bad.shape("out", (BATCH, HEADS, DIM), f"{TOKEN} (the shape of x)"),
    "out-float16": bad.dtype("out", np.float16, "float32"),
    "A-shape": bad.shape("A", (HEADS,), f"{INNER} (nheads, headdim, d_state of state)"),
    "A-float16": bad.dtype("A", np.float16, "float32"),
    "D-shape": bad.shape("D", (HEADS,), "(4, 3) (nheads, headdim of state)"),
    "D-float16": bad.dtype("D", np.float16, "float32"),
    "bias-shape": bad.shape("dt_bias", (DIM, HEADS), "(4, 3) (nheads, headdim of state)"),
    "bias-int32": bad.dtype("dt_bias", np.int32, "float32"),
    "B-d_state": bad.shape("B", (*GROUPED[:-1], N + 1), f"{GROUPED} (as x before its heads, ngroups, d_state)"),
    "B-rank": bad.shape("B", (BATCH, TOKENS, N), "(3, 2, 2, 5) (as x before its heads, ngroups, d_state)"),
    "B-rank-1": bad.shape("B", (N,), "(3, 2, 5) (as x before its heads, ngroups, d_state)"),
    "B-float16": bad.dtype("B", np.float16, "float32"),
    "B-groups": (
        bad.also(zeros("B", (BATCH, TOKENS, 3, N)), zeros("C", (BATCH, TOKENS, 3, N))), ValueError,
        "ngroups of B: got 3; wanted a divisor of nheads, 4",
    ),
    "B-no-groups": (
        bad.also(zeros("B", (BATCH, TOKENS, 0, N)), zeros("C", (BATCH, TOKENS, 0, N))), ValueError,
        "ngroups of B: got 0; wanted a divisor of nheads, 4",
    ),
    "C-groups": bad.shape("C", (BATCH, TOKENS, 1, N), f"{GROUPED} (as x before its heads, ngroups, d_state)"),
    "C-float16": bad.dtype("C", np.float16, "float32"),
    "slots-int16": bad.dtype(SLOT, np.int16, INDICES),
    "slots-count": bad.shape(SLOT, (BATCH - 1,), ROWS_WANTED, np.int32),
    "slots-rank-3": bad.shape(SLOT, (BATCH, 1, 1), "1 or 2 axes (batch[, columns])", np.int32),
    "slots-no-columns": (zeros(SLOT, (BATCH, 0), np.int32), ValueError, f"columns of {SLOT}: got 0; wanted at least 1"),
    "column-without-columns": (
        zeros("state_column", (BATCH,), np.int32), ValueError,
        f"state_column: got an array; wanted None unless {SLOT} has 2 axes (batch, columns)",
    ),
    "has-int32": (
        zeros("has_initial_state", (BATCH,), np.int32), TypeError, "has_initial_state: got dtype int32; wanted bool"
    ),
    "has-count": bad.shape("has_initial_state", (BATCH - 1,), SEQUENCES, bool),
    "slots-list": bad.no_array(SLOT, [3, 0, 1]),
    "targets-float32": bad.dtype(TARGET, np.float32, INDICES),
    "targets-rank-0": bad.shape(TARGET, (), "1 or 2 axes (batch[, columns])", np.int32),
    "targets-count": bad.shape(TARGET, (BATCH - 1, TOKENS), ROWS_WANTED, np.int64),
    "accepted-without-columns": bad.array(
        ACCEPTED, f"None unless {SLOT} has 2 axes (batch, columns)", zeros(ACCEPTED, (BATCH,), np.int32)
    ),
    "rows-without-buffer": bad.array(ROW, f"None unless {BUFFER} is given", bad.value(BUFFER, None)),
    "rows-bool": bad.dtype(ROW, bool, INDICES),
    "rows-count": bad.shape(ROW, (BATCH - 1,), SEQUENCES, np.int32),
    "parents-bool": (
        zeros("parents", (BATCH, TOKENS), bool), TypeError, f"parents: got dtype bool; wanted {INDICES}"
    ),
    "parents-rank": bad.shape("parents", (BATCH,), "2 axes (batch, tokens)", np.int32),
    "parents-tokens": bad.shape("parents", (BATCH, 1), "(3, 2) or more (batch, tokens of x)", np.int32),
    "parents-batch": bad.shape("parents", (BATCH - 1, TOKENS), "(3, 2) or more (batch, tokens of x)", np.int64),
    "parents-without-buffer": (
        bad.also(PARENTS, bad.value(BUFFER, None), bad.value(ROW, None)), ValueError,
        f"parents: got an array; wanted None unless {BUFFER} is given",
    ),
    "parents-and-a-slot-a-token": (
        bad.also(PARENTS, zeros(TARGET, (BATCH, TOKENS), np.int32)), ValueError,
        f"parents: got an array; wanted None beside a {TARGET} of 2 axes",
    ),
    "buffer-dtype": bad.dtype(BUFFER, np.float16, "float32"),
    "buffer-rank": bad.shape(
        BUFFER, (ROWS, *INNER), "(4, 4, 4, 3, 5) (rows, steps, and as state behind its slots)"
    ),
    "buffer-inner": bad.shape(
        BUFFER, (ROWS, TOKENS, HEADS, N, DIM), "(4, 2, 4, 3, 5) (rows, steps, and as state behind its slots)"
    ),
    "buffer-few-steps": bad.length(BUFFER, (ROWS, 1, *INNER), "steps", 1, "at least 2, the tokens of x"),
    "buffer-few-rows": (
        bad.value(ROW, None), ValueError, f"rows of {BUFFER}: got 4; wanted at least 9, one a slot, or {ROW}"
    ),
    "buffer-few-rows-for-sequences": (
        bad.also(*(bad.value(name, None) for name in (ROW, SLOT, TARGET)), zeros(BUFFER, (2, TOKENS, *INNER))),
        ValueError,
        f"rows of {BUFFER}: got 2; wanted at least 3, one a slot, or {ROW}",
    ),
    "buffer-broadcast": bad.one_address(BUFFER, ROWS, TOKENS + 1, *INNER),
    "out-broadcast": bad.one_address("out", *TOKEN),
    "pad-float": bad.mistyped("pad_slot_id", 0.0, "an int"),
    "rounds-float": bad.mistyped("philox_rounds", 7.0, "an int"),
    "null-float": bad.mistyped("null_slot", 0.0, "an int"),
    "null-beside-pad": (
        bad.also(bad.value("null_slot", 0), bad.value("pad_slot_id", 2)), ValueError,
        "null_slot: got 0; wanted None, or 2 as pad_slot_id: one slot is for padding",
    ),
    "pad_output-word": bad.given("pad_output", "skip", "one of 'zero', 'keep'"),
    "kept-without-out": (
        bad.also(bad.value("pad_output", "keep"), bad.value("out", None)), ValueError,
        "pad_output: got 'keep'; wanted 'zero' unless out is given",
    ),
    "rounds-negative": bad.given("philox_rounds", -1, "0 to 20"),
    "rounds-many": bad.given("philox_rounds", 21, "0 to 20"),
    "seed-of-float32": (
        bad.value("rand_seed", 1), ValueError,
        "rand_seed: got a seed; wanted None for a float32 state, which is not rounded",
    ),
    "seed-array-of-float32": (
        zeros("rand_seed", (1,), np.int64), ValueError,
        "rand_seed: got a seed; wanted None for a float32 state, which is not rounded",
    ),
    "seed-negative": bad.given("rand_seed", -1, "0 to 18446744073709551615"),
    "seed-large": (
        bad.value("rand_seed", 2**64), ValueError,
        "rand_seed: got 18446744073709551616; wanted 0 to 18446744073709551615",
    ),
    "seed-float": bad.no_array("rand_seed", 1.5),
    "seed-array-int32": (with_seed((1,), np.int32), TypeError, "rand_seed: got dtype int32; wanted int64"),
    "seed-array-of-two": (with_seed((2,), np.int64), ValueError, "rand_seed: got shape (2,); wanted one element"),
    "state-with-x": bad.overlap("state", "x", bad.of_one_memory("state", "x")),
    "state-with-buffer": bad.overlap(BUFFER, "state", bad.of_one_memory("state", BUFFER)),
    "out-with-state": bad.overlap("state", "out", bad.of_one_memory("state", "out")),
    "out-with-read-state": bad.overlap(
        "out", "state", bad.also(bad.of_one_memory("state", "out"), bad.value("disable_state_update", True))
    ),
    "out-with-dt": bad.overlap("out", "dt", bad.of_one_memory("out", "dt")),
    "out-is-z": bad.overlap("out", "z", lambda xp, a: {"out": a["z"]}),
    "out-is-x-reversed": bad.overlap("out", "x", lambda xp, a: {"out": a["x"][::-1]}),
    "out-is-x-and-z": bad.overlap("out", "z", lambda xp, a: {"out": a["x"], "z": a["x"]}),
    "buffer-with-B": bad.overlap(BUFFER, "B", bad.of_one_memory("B", BUFFER)),
}  # fmt: skip

OF_ACCEPTED: dict[str, Row] = {
    "accepted-float64": bad.dtype(ACCEPTED, np.float64, INDICES),
    "accepted-count": bad.shape(ACCEPTED, (BATCH, 1), SEQUENCES, np.int32),
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
    "starts-float32": bad.dtype("cu_seqlens", np.float32, INDICES),
    "starts-rank": bad.shape("cu_seqlens", (4, 1), "1 axes (sequences + 1)", np.int32),
    "starts-none-at-all": bad.length("cu_seqlens", (0,), "sequences", -1, "0 to 1073741824", dtype=np.int32),
    "slots-count": bad.shape(SLOT, (2,), ROWS_WANTED, np.int32),
    "parents": bad.array("parents", "None beside cu_seqlens", PARENTS),
}

OF_BARE: dict[str, Row] = {
    "x-of-heads": bad.shape("x", (BATCH, TOKENS, 1, DIM), "(batch[, tokens], dim), dim as state has them: [3]"),
    "B-of-groups": bad.shape("B", (BATCH, 1, N), "(3, 5) (as x before dim, d_state)"),
    "D-of-heads": bad.shape("D", (1, DIM), "(3,) (dim of state)"),
    "A-of-heads": bad.shape("A", (1, DIM, N), "(3, 5) (dim, d_state of state)"),
}  # fmt: skip

OF_QUANTISED: dict[str, Row] = {
    "scales-none": (
        bad.value("state_scale", None), ValueError,
        f"state_scale: got None; wanted an array {SCALES} beside state of int8",
    ),
    "buffer-scales-none": (
        bad.value("intermediate_state_scales", None), ValueError,
        f"intermediate_state_scales: got None; wanted an array {BUFFER_SCALES} beside {BUFFER} of int8",
    ),
    "scales-without-a-buffer": bad.array(
        "intermediate_state_scales", WITHOUT.format(BUFFER), bad.also(bad.value(BUFFER, None), bad.value(ROW, None))
    ),
    "scales-float16": bad.dtype("state_scale", np.float16, "float32"),
    "scales-by-head": bad.shape("state_scale", (SLOTS, HEADS), f"{SCALES} (state before d_state)"),
    "scales-of-other-slots": bad.shape("state_scale", (SLOTS - 1, *INNER[:2]), f"{SCALES} (state before d_state)"),
    "scales-by-element": bad.shape("state_scale", (SLOTS, *INNER), f"{SCALES} (state before d_state)"),
    "buffer-scales-float64": bad.dtype("intermediate_state_scales", np.float64, "float32"),
    "buffer-scales-steps": bad.shape(
        "intermediate_state_scales", (ROWS, TOKENS, *INNER[:2]),
        f"{BUFFER_SCALES} ({BUFFER} before d_state)",
    ),
    "buffer-of-other-codes": bad.dtype(BUFFER, np.int16, "int8"),
    "scales-broadcast": bad.one_address("state_scale", *SCALES),
    "scales-with-out": bad.overlap("state_scale", "out", bad.of_one_memory("state_scale", "out")),
    "scales-with-scales": bad.overlap(
        "intermediate_state_scales", "state_scale", bad.of_one_memory("state_scale", "intermediate_state_scales")
    ),
}  # fmt: skip

BAD: Tables = {
    f"selective_state_update:{call}": table
    for call, table in (
        *(("batch", OF_BATCH), ("accepted", OF_ACCEPTED), ("packed", OF_PACKED)),
        *(("bare", OF_BARE), ("quantised", OF_QUANTISED)),
    )
}
