"""Arguments of selective scans that do not fit: the error names them, and nothing was written."""

from __future__ import annotations

import numpy as np

from cuconv.runtime.dlpack import WANTED
from tests.causal_conv1d.bad_input_contents import packed
from tests.selective_scan.good_calls import BATCH, DIM, SLOTS, N
from tests.support.bad_input import (
    FLOATS,
    INDICES,
    Row,
    Tables,
    dtype,
    mistyped,
    no_array,
    one_address,
    overlap,
    shape,
    value,
    zeros,
)

STATE = "(2, 6, 5) (batch, dim of u, d_state of A)"
MATRIX = "(batch of u, ngroups, d_state of A, tokens of u)"

SHARED: dict[str, Row] = {
    "u-list": (value("u", [[1.0]]), TypeError, f"u: got a list; wanted {WANTED}"),
    "u-none": (value("u", None), TypeError, f"u: got a NoneType; wanted {WANTED}"),
    "A-none": mistyped("A", None, "an array (dim, d_state)"),
    "A-float16": dtype("A", np.float16, "float32"),
    "A-complex": dtype("A", np.complex64, "float32"),
    "A-rank": (zeros("A", (DIM,)), ValueError, "A: got shape (6,); wanted 2 axes (dim, d_state)"),
    "A-dim": (zeros("A", (5, N)), ValueError, "A: got shape (5, 5); wanted (6, 5) (dim of u, d_state)"),
    "A-257": (zeros("A", (DIM, 257)), ValueError, "d_state of A: got 257; wanted 1 to 256"),
    "A-0": (zeros("A", (DIM, 0)), ValueError, "d_state of A: got 0; wanted 1 to 256"),
    "D-dim": shape("D", (5,), "(6,) (dim of u)"),
    "D-float16": dtype("D", np.float16, "float32"),
    "bias-rank": shape("delta_bias", (1, 6), "(6,) (dim of u)"),
    "delta-dtype": dtype("delta", np.float16, "float32"),
    "z-dtype": dtype("z", np.float16, "float32"),
    "B-dtype": dtype("B", np.float16, "float32"),
    "out-dtype": dtype("out", np.float16, "float32"),
    "out-is-u": overlap("out", "u"),
    "out-is-delta": overlap("out", "delta"),
    "out-is-z": overlap("out", "z"),
    "C-list": no_array("C", [1.0]),
}  # fmt: skip

OWN: dict[str, dict[str, Row]] = {
    "selective_scan_fn": {
        "u-rank-2": shape("u", (6, 9), "3 axes (batch, dim, seqlen)"),
        "u-float64": dtype("u", np.float64, FLOATS),
        "u-seqlen": (
            lambda xp, a: {"u": xp.broadcast_to(a["u"][:, :, :1], (BATCH, DIM, 2**30 + 1))}, ValueError,
            "seqlen of u: got 1073741825; wanted 0 to 1073741824",
        ),
        "delta-none": mistyped("delta", None, "an array (batch, dim, seqlen)"),
        "delta-shape": shape("delta", (2, 6, 8), "(2, 6, 9) (batch, dim, seqlen of u)"),
        "z-shape": shape("z", (2, 9, 6), "(2, 6, 9) (batch, dim, seqlen of u)"),
        "B-none": mistyped("B", None, "an array (batch, d_state, seqlen)"),
        "B-constant-shape": shape("B", (5, 6), "(6, 5) (dim of u, d_state of A)"),
        "B-state": shape("B", (2, 4, 9), "(2, 5, 9) (batch of u, d_state of A, tokens of u)"),
        "C-tokens": shape("C", (2, 2, 5, 8), f"(2, 2, 5, 9) {MATRIX}"),
        "C-rank-5": shape("C", (1, 2, 2, 5, 9), "(2, 5, 9) (batch of u, d_state of A, tokens of u)"),
        "B-groups": (zeros("B", (2, 4, 5, 9)), ValueError, "ngroups of B: got 4; wanted a divisor of 6 (dim of u)"),
        "B-no-groups": (zeros("B", (2, 0, 5, 9)), ValueError, "ngroups of B: got 0; wanted a divisor of 6 (dim of u)"),
        "C-other-groups": (zeros("C", (2, 3, 5, 9)), ValueError, "ngroups of C: got 3; wanted 2, that of B"),
        "initial-dtype": dtype("initial_state", np.float16, "float32"),
        "initial-shape": shape("initial_state", (2, 5, 6), STATE),
        "last-shape": shape("last_state_out", (2, 6, 4), STATE),
        "last-unasked": (
            value("return_last_state", False), ValueError,
            "last_state_out: got an array; wanted None unless return_last_state is true",
        ),
        "last-is-initial": overlap("last_state_out", "initial_state"),
        "chunks-shape": shape(
            "chunk_states_out", (2, 2, 6, 5), "(2, 1, 6, 5) (batch of u, chunks, dim of u, d_state of A)"
        ),
        "chunks-are-last": overlap(
            "last_state_out", "chunk_states_out", lambda xp, a: {"chunk_states_out": a["last_state_out"][:, None]}
        ),
        "out-broadcast": one_address("out", 2, 6, 9),
    },
    "selective_scan_varlen_fn": {
        "u-rank-3": shape("u", (1, 6, 9), "2 axes (dim, total)"),
        "delta-shape": shape("delta", (6, 8), "(6, 9) (dim, total of u)"),
        "B-rank-4": shape("B", (1, 2, 5, 9), "(5, 9) (d_state of A, tokens of u)"),
        "B-constant": shape("B", (6, 5), "(5, 9) (d_state of A, tokens of u)"),
        "pool-rank": shape("ssm_states", (5, 30), "3 axes (slots, dim, d_state)"),
        "pool-int8": dtype("ssm_states", np.int8, FLOATS),
        "pool-shape": shape("ssm_states", (5, 5, 6), "(5, 6, 5) (slots, dim of u, d_state of A)"),
        "pool-few-slots": (
            lambda xp, a: {"ssm_states": a["ssm_states"][:2], "cache_indices": None}, ValueError,
            "slots of ssm_states: got 2; wanted at least 3, one a sequence, or cache_indices",
        ),
        "pool-broadcast": one_address("ssm_states", SLOTS, DIM, N),
        "pool-is-A": overlap("ssm_states", "A", lambda xp, a: {"ssm_states": a["A"][None]}),
        "starts-float32": dtype("query_start_loc", np.float32, INDICES),
        "slots-count": shape("cache_indices", (4,), "(3,) (sequences)", dtype=np.int32),
        "slots-without-pool": (
            value("ssm_states", None), ValueError, "cache_indices: got an array; wanted None unless ssm_states is given"
        ),
        "has-uint8": dtype("has_initial_state", np.uint8, "bool"),
        "pad-float": mistyped("pad_slot_id", 0.0, "an int"),
    },
}  # fmt: skip

BAD: Tables = {name: {**SHARED, **own} for name, own in OWN.items()}
CONTENTS: Tables = {"selective_scan_varlen_fn": packed("query_start_loc", "cache_indices")}
