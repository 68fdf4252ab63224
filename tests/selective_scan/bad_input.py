"""Arguments of selective scans that do not fit: the error names them, and nothing was written."""

from __future__ import annotations

import numpy as np

from cuconv.runtime.dlpack import WANTED
from tests.causal_conv1d.bad_input_contents import packed
from tests.causal_conv1d.bad_input_slots import kept, kept_contents
from tests.selective_scan.good_calls import BATCH_ROWS, CODED, CODED_KEPT, DIM, KEEPING, SLOTS, N
from tests.support import bad_input as bad
from tests.support.bad_input import FLOATS, Change, Row, Tables, zeros

STORED = "one of float32, float16, bfloat16, int16, int8, float8_e4m3fn"
OF_CODES = "None unless {} is one of int16, int8, float8_e4m3fn"
THE_SHAPE_OF_U = ("u", "delta", "z")
STATE = "(2, 6, 5) (batch, dim of u, d_state of A)"
MATRIX = "(batch of u, ngroups, d_state of A, tokens of u)"

SHARED: dict[str, Row] = {
    "u-list": (bad.value("u", [[1.0]]), TypeError, f"u: got a list; wanted {WANTED}"),
    "u-none": (bad.value("u", None), TypeError, f"u: got a NoneType; wanted {WANTED}"),
    "A-none": bad.mistyped("A", None, "an array (dim, d_state)"),
    "A-float16": bad.dtype("A", np.float16, "float32"),
    "A-complex": bad.dtype("A", np.complex64, "float32"),
    "A-rank": (zeros("A", (DIM,)), ValueError, "A: got shape (6,); wanted 2 axes (dim, d_state)"),
    "A-dim": (zeros("A", (5, N)), ValueError, "A: got shape (5, 5); wanted (6, 5) (dim of u, d_state)"),
    "A-257": bad.length("A", (DIM, 257), "d_state", 257, "1 to 256"),
    "A-0": bad.length("A", (DIM, 0), "d_state", 0, "1 to 256"),
    "D-dim": bad.shape("D", (5,), "(6,) (dim of u)"),
    "D-float16": bad.dtype("D", np.float16, "float32"),
    "bias-rank": bad.shape("delta_bias", (1, 6), "(6,) (dim of u)"),
    "delta-dtype": bad.dtype("delta", np.float16, "float32"),
    "z-dtype": bad.dtype("z", np.float16, "float32"),
    "B-dtype": bad.dtype("B", np.float16, "float32"),
    "out-dtype": bad.dtype("out", np.float16, "float32"),
    "out-meets-A": bad.overlap("out", "A", bad.of_one_memory("out", "A")),
    "C-list": bad.no_array("C", [1.0]),
}  # fmt: skip

OWN: dict[str, dict[str, Row]] = {
    "selective_scan_fn": {
        "out-is-u": bad.overlap("out", "u"),
        "out-is-delta": bad.overlap("out", "delta"),
        "out-is-z": bad.overlap("out", "z"),
        "u-rank-2": bad.shape("u", (6, 9), "3 axes (batch, dim, seqlen)"),
        "u-float64": bad.dtype("u", np.float64, FLOATS),
        "u-seqlen": bad.too_long("u", 2, 2**30 + 1, "seqlen"),
        "delta-none": bad.mistyped("delta", None, "an array (batch, dim, seqlen)"),
        "delta-shape": bad.shape("delta", (2, 6, 8), "(2, 6, 9) (batch, dim, seqlen of u)"),
        "z-shape": bad.shape("z", (2, 9, 6), "(2, 6, 9) (batch, dim, seqlen of u)"),
        "B-none": bad.mistyped("B", None, "an array (batch, d_state, seqlen)"),
        "B-constant-shape": bad.shape("B", (5, 6), "(6, 5) (dim of u, d_state of A)"),
        "B-state": bad.shape("B", (2, 4, 9), "(2, 5, 9) (batch of u, d_state of A, tokens of u)"),
        "C-tokens": bad.shape("C", (2, 2, 5, 8), f"(2, 2, 5, 9) {MATRIX}"),
        "C-rank-5": bad.shape("C", (1, 2, 2, 5, 9), "(2, 5, 9) (batch of u, d_state of A, tokens of u)"),
        "B-groups": bad.length("B", (2, 4, 5, 9), "ngroups", 4, "a divisor of 6 (dim of u)"),
        "B-no-groups": bad.length("B", (2, 0, 5, 9), "ngroups", 0, "a divisor of 6 (dim of u)"),
        "C-other-groups": bad.length("C", (2, 3, 5, 9), "ngroups", 3, "2, that of B"),
        "initial-dtype": bad.dtype("initial_state", np.float16, "float32"),
        "initial-shape": bad.shape("initial_state", (2, 5, 6), STATE),
        "last-shape": bad.shape("last_state_out", (2, 6, 4), STATE),
        "last-unasked": bad.array(
            "last_state_out", "None unless return_last_state is true", bad.value("return_last_state", False)
        ),
        "last-is-initial": bad.overlap("last_state_out", "initial_state"),
        "chunks-shape": bad.shape(
            "chunk_states_out", (2, 2, 6, 5), "(2, 1, 6, 5) (batch of u, chunks, dim of u, d_state of A)"
        ),
        "chunks-are-last": bad.overlap(
            "last_state_out", "chunk_states_out", lambda xp, a: {"chunk_states_out": a["last_state_out"][:, None]}
        ),
        "out-broadcast": bad.one_address("out", 2, 6, 9),
    },
    "selective_scan_varlen_fn": {
        "rounds-21": bad.given("philox_rounds", 21, "0 to 20"),
        "rounds-float": bad.mistyped("philox_rounds", 7.0, "an int"),
        **bad.of_sequences("ssm_states"),
        "u-rank-4": bad.shape("u", (1, 1, 6, 9), "2 axes (dim, total)"),
        "delta-of-rows": bad.shape("delta", (1, 6, 9), "(6, 9) (dim, total of u)"),
        **{f"out-meets-{name}": bad.overlap("out", name, bad.of_one_memory("out", name)) for name in THE_SHAPE_OF_U},
        "out-is-u-backward": bad.overlap("out", "u", lambda xp, a: {"out": a["u"][:, ::-1]}),
        "pool-int8": (
            bad.zeros("ssm_states", (SLOTS, DIM, N), np.int8), ValueError,
            "state_scale: got None; wanted an array (5, 6) beside ssm_states of int8",
        ),
        "pool-int32": bad.dtype("ssm_states", np.int32, STORED),
        "scale-of-floats": bad.array("state_scale", OF_CODES.format("ssm_states"), bad.zeros("state_scale", (5, 6))),
        "seed-of-floats": (
            bad.value("rand_seed", 1), ValueError, "rand_seed: got a seed; wanted None unless states are codes"
        ),
        "delta-shape": bad.shape("delta", (6, 8), "(6, 9) (dim, total of u)"),
        "B-rank-4": bad.shape("B", (1, 2, 5, 9), "(5, 9) (d_state of A, tokens of u)"),
        "B-constant": bad.shape("B", (6, 5), "(5, 9) (d_state of A, tokens of u)"),
        "pool-rank": bad.shape("ssm_states", (5, 30), "3 axes (slots, dim, d_state)"),
        "pool-shape": bad.shape("ssm_states", (5, 5, 6), "(5, 6, 5) (slots, dim of u, d_state of A)"),
        "pool-broadcast": bad.one_address("ssm_states", SLOTS, DIM, N),
        "pool-is-A": bad.overlap("ssm_states", "A", lambda xp, a: {"ssm_states": a["A"][None]}),
        "slots-no-columns": bad.shape(
            "cache_indices", (3, 0), "(3, 1) or more (sequences, columns)", dtype=np.int32
        ),
        "column-without-columns": bad.array(
            "state_column", "None unless cache_indices has 2 axes (sequences, columns)",
            bad.zeros("state_column", (3,), np.int32),
        ),
        "targets-count": bad.shape("dst_state_indices", (2,), "(3,) or longer (sequences)", dtype=np.int32),
        "kept-without-out": (
            bad.also(bad.value("pad_output", "keep"), bad.value("out", None)), ValueError,
            "pad_output: got 'keep'; wanted 'zero' unless out is given",
        ),
    },
}  # fmt: skip

BAD: Tables = {name: {**SHARED, **own} for name, own in OWN.items()} | {
    KEEPING: {
        **kept("ssm_states", "d_state"),
        "out-shape": bad.shape("snapshot_out", (5, 6, 4), "(5, 6, 5) (slots, dim of u, d_state of A)"),
        "out-int8": (
            bad.zeros("snapshot_out", (5, 6, 5), np.int8),
            TypeError,
            "snapshot_out: got dtype int8; wanted float32",
        ),
        "scale-in-pool": bad.array(
            "snapshot_scale", OF_CODES.format("snapshot_out"), bad.zeros("snapshot_scale", (5, 6))
        ),
    },
    CODED: {
        "scale-none": (
            bad.value("state_scale", None),
            ValueError,
            "state_scale: got None; wanted an array (5, 6) beside ssm_states of int8",
        ),
        "scale-slots": bad.shape("state_scale", (4, 6), "(5, 6) (ssm_states before d_state)"),
        "scale-by-state": bad.shape("state_scale", (5, 6, 5), "(5, 6) (ssm_states before d_state)"),
        "scale-float16": bad.dtype("state_scale", np.float16, "float32"),
        "scale-one": bad.one_address("state_scale", SLOTS, DIM),
        "scale-is-bias": bad.overlap("state_scale", "D", lambda xp, a: {"D": a["state_scale"][0]}),
        "seed-int32": bad.dtype("rand_seed", np.int32, "int64"),
        "seed-two": bad.shape("rand_seed", (2,), "one element", dtype=np.int64),
        "seed-negative": bad.given("rand_seed", -1, f"0 to {2**64 - 1}"),
        "rounds-21": bad.given("philox_rounds", 21, "0 to 20"),
        "rounds-float": bad.mistyped("philox_rounds", 7.0, "an int"),
        "pool-float": (
            bad.dtype("ssm_states", np.float16, "")[0],
            ValueError,
            f"state_scale: got an array; wanted {OF_CODES.format('ssm_states')}",
        ),
    },
    CODED_KEPT: {
        "scale-none": (
            bad.value("snapshot_scale", None),
            ValueError,
            "snapshot_scale: got None; wanted an array (6, 6) beside snapshot_out of int8",
        ),
        "scale-slots": bad.shape("snapshot_scale", (5, 6), "(6, 6) (snapshot_out before d_state)"),
        "out-int32": bad.dtype("snapshot_out", np.int32, STORED),
    },
    BATCH_ROWS: {
        "starts": bad.array(
            "query_start_loc",
            "None where u has 3 axes (batch, dim, seqlen)",
            bad.ints("query_start_loc", [0, 9, 18]),
        ),
        "delta-shape": bad.shape("delta", (2, 6, 8), "(2, 6, 9) (batch, dim, seqlen of u)"),
        "B-packed": bad.shape("B", (2, 5, 8), "(2, 5, 9) (batch of u, d_state of A, tokens of u)"),
        "B-constant": bad.shape("B", (6, 5), "3 or 4 axes (batch of u, [ngroups,] d_state of A, tokens of u)"),
        "slots-few": bad.shape("cache_indices", (1,), "(2,) or longer (sequences)", dtype=np.int32),
        "u-seqlen": bad.too_long("u", 2, 2**30 + 1, "seqlen"),
        "out-meets-z": bad.overlap("out", "z", bad.of_one_memory("out", "z")),
    },
}
CONTENTS: Tables = {
    "selective_scan_varlen_fn": packed("query_start_loc", "cache_indices"),
    KEEPING: kept_contents(3, SLOTS),
}
IN_PLACE: dict[str, Change] = {f"out-is-{name}": lambda xp, a, name=name: {"out": a[name]} for name in THE_SHAPE_OF_U}
APART = {"selective_scan_varlen_fn": IN_PLACE, CODED: IN_PLACE, BATCH_ROWS: IN_PLACE}
"""Calls in which what is written shares no element with anything else, but for out that is an input of its shape."""
