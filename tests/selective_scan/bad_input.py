"""Arguments of selective scans that do not fit: the error names them, and nothing was written."""

from __future__ import annotations

import numpy as np

from cuconv.runtime.dlpack import WANTED
from tests.causal_conv1d.bad_input_contents import packed
from tests.causal_conv1d.bad_input_slots import kept, kept_contents
from tests.selective_scan.good_calls import DIM, KEEPING, SLOTS, N
from tests.support import bad_input as bad
from tests.support.bad_input import FLOATS, Row, Tables, zeros

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
    "out-is-u": bad.overlap("out", "u"),
    "out-is-delta": bad.overlap("out", "delta"),
    "out-is-z": bad.overlap("out", "z"),
    "C-list": bad.no_array("C", [1.0]),
}  # fmt: skip

OWN: dict[str, dict[str, Row]] = {
    "selective_scan_fn": {
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
        **bad.of_sequences("ssm_states"),
        "u-rank-3": bad.shape("u", (1, 6, 9), "2 axes (dim, total)"),
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
    }
}
CONTENTS: Tables = {
    "selective_scan_varlen_fn": packed("query_start_loc", "cache_indices"),
    KEEPING: kept_contents(3, SLOTS),
}
