"""Arguments of selective scans that do not fit: the error names them, and nothing was written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.runtime.dlpack import WANTED
from tests.causal_conv1d.test_contents import POOL, STARTS
from tests.selective_scan.good_calls import BATCH, DIM, GOOD, SEQLEN, SLOTS, N
from tests.support.bad_input import (
    FLOATS,
    KINDS,
    OWN_ADDRESS,
    Row,
    alias,
    ints,
    module_of,
    overlapping,
    refuse,
    value,
    zeros,
)

INDICES = "one of int32, int64"
STATE = "(2, 6, 5) (batch, dim of u, d_state of A)"
MATRIX = "(batch of u, ngroups, d_state of A, tokens of u)"

SHARED: dict[str, Row] = {
    "u-list": (value("u", [[1.0]]), TypeError, f"u: got a list; wanted {WANTED}"),
    "u-none": (value("u", None), TypeError, f"u: got a NoneType; wanted {WANTED}"),
    "A-none": (value("A", None), TypeError, "A: got None; wanted an array (dim, d_state)"),
    "A-float16": (zeros("A", (DIM, N), np.float16), TypeError, "A: got dtype float16; wanted float32"),
    "A-complex": (zeros("A", (DIM, N), np.complex64), TypeError, "A: got dtype complex64; wanted float32"),
    "A-rank": (zeros("A", (DIM,)), ValueError, "A: got shape (6,); wanted 2 axes (dim, d_state)"),
    "A-dim": (zeros("A", (5, N)), ValueError, "A: got shape (5, 5); wanted (6, 5) (dim of u, d_state)"),
    "A-257": (zeros("A", (DIM, 257)), ValueError, "d_state of A: got 257; wanted 1 to 256"),
    "A-0": (zeros("A", (DIM, 0)), ValueError, "d_state of A: got 0; wanted 1 to 256"),
    "D-dim": (zeros("D", (5,)), ValueError, "D: got shape (5,); wanted (6,) (dim of u)"),
    "D-float16": (zeros("D", (DIM,), np.float16), TypeError, "D: got dtype float16; wanted float32"),
    "bias-rank": (zeros("delta_bias", (1, 6)), ValueError, "delta_bias: got shape (1, 6); wanted (6,) (dim of u)"),
    "delta-dtype": (
        lambda xp, a: {"delta": a["delta"].astype(np.float16)}, TypeError, "delta: got dtype float16; wanted float32"
    ),
    "z-dtype": (lambda xp, a: {"z": a["z"].astype(np.float16)}, TypeError, "z: got dtype float16; wanted float32"),
    "B-dtype": (lambda xp, a: {"B": a["B"].astype(np.float16)}, TypeError, "B: got dtype float16; wanted float32"),
    "out-dtype": (
        lambda xp, a: {"out": a["out"].astype(np.float16)}, TypeError, "out: got dtype float16; wanted float32"
    ),
    "out-is-u": (alias("out", "u"), ValueError, overlapping("out", "u")),
    "out-is-delta": (alias("out", "delta"), ValueError, overlapping("out", "delta")),
    "out-is-z": (alias("out", "z"), ValueError, overlapping("out", "z")),
    "C-list": (value("C", [1.0]), TypeError, "C: got a list; wanted a {kind} array, as the first is"),
}  # fmt: skip

OWN: dict[str, dict[str, Row]] = {
    "selective_scan_fn": {
        "u-rank-2": (zeros("u", (6, 9)), ValueError, "u: got shape (6, 9); wanted 3 axes (batch, dim, seqlen)"),
        "u-float64": (zeros("u", (2, 6, 9), np.float64), TypeError, f"u: got dtype float64; wanted {FLOATS}"),
        "u-seqlen": (
            lambda xp, a: {"u": xp.broadcast_to(a["u"][:, :, :1], (BATCH, DIM, 2**30 + 1))}, ValueError,
            "seqlen of u: got 1073741825; wanted 0 to 1073741824",
        ),
        "delta-none": (value("delta", None), TypeError, "delta: got None; wanted an array (batch, dim, seqlen)"),
        "delta-shape": (
            zeros("delta", (2, 6, 8)), ValueError,
            "delta: got shape (2, 6, 8); wanted (2, 6, 9) (batch, dim, seqlen of u)",
        ),
        "z-shape": (
            zeros("z", (2, 9, 6)), ValueError, "z: got shape (2, 9, 6); wanted (2, 6, 9) (batch, dim, seqlen of u)"
        ),
        "B-none": (value("B", None), TypeError, "B: got None; wanted an array (batch, d_state, seqlen)"),
        "B-constant-shape": (
            zeros("B", (5, 6)), ValueError, "B: got shape (5, 6); wanted (6, 5) (dim of u, d_state of A)"
        ),
        "B-state": (
            zeros("B", (2, 4, 9)), ValueError,
            "B: got shape (2, 4, 9); wanted (2, 5, 9) (batch of u, d_state of A, tokens of u)",
        ),
        "C-tokens": (
            zeros("C", (2, 2, 5, 8)), ValueError, f"C: got shape (2, 2, 5, 8); wanted (2, 2, 5, 9) {MATRIX}"
        ),
        "C-rank-5": (
            zeros("C", (1, 2, 2, 5, 9)), ValueError,
            "C: got shape (1, 2, 2, 5, 9); wanted (2, 5, 9) (batch of u, d_state of A, tokens of u)",
        ),
        "B-groups": (
            zeros("B", (2, 4, 5, 9)), ValueError, "ngroups of B: got 4; wanted a divisor of 6 (dim of u)"
        ),
        "B-no-groups": (
            zeros("B", (2, 0, 5, 9)), ValueError, "ngroups of B: got 0; wanted a divisor of 6 (dim of u)"
        ),
        "C-other-groups": (zeros("C", (2, 3, 5, 9)), ValueError, "ngroups of C: got 3; wanted 2, that of B"),
        "initial-dtype": (
            zeros("initial_state", (2, 6, 5), np.float16), TypeError, "initial_state: got dtype float16; wanted float32"
        ),
        "initial-shape": (
            zeros("initial_state", (2, 5, 6)), ValueError, f"initial_state: got shape (2, 5, 6); wanted {STATE}"
        ),
        "last-shape": (
            zeros("last_state_out", (2, 6, 4)), ValueError, f"last_state_out: got shape (2, 6, 4); wanted {STATE}"
        ),
        "last-unasked": (
            value("return_last_state", False), ValueError,
            "last_state_out: got an array; wanted None unless return_last_state is true",
        ),
        "last-is-initial": (
            alias("last_state_out", "initial_state"), ValueError, overlapping("last_state_out", "initial_state")
        ),
        "chunks-shape": (
            zeros("chunk_states_out", (2, 2, 6, 5)), ValueError,
            "chunk_states_out: got shape (2, 2, 6, 5); "
            "wanted (2, 1, 6, 5) (batch of u, chunks, dim of u, d_state of A)",
        ),
        "chunks-are-last": (
            lambda xp, a: {"chunk_states_out": a["last_state_out"][:, None]}, ValueError,
            overlapping("last_state_out", "chunk_states_out"),
        ),
        "out-broadcast": (
            lambda xp, a: {"out": xp.broadcast_to(a["out"][:1], (2, 6, 9))}, ValueError,
            f"out: got strides (0, 9, 1) for shape (2, 6, 9); wanted {OWN_ADDRESS}",
        ),
    },
    "selective_scan_varlen_fn": {
        "u-rank-3": (zeros("u", (1, 6, 9)), ValueError, "u: got shape (1, 6, 9); wanted 2 axes (dim, total)"),
        "delta-shape": (
            zeros("delta", (6, 8)), ValueError, "delta: got shape (6, 8); wanted (6, 9) (dim, total of u)"
        ),
        "B-rank-4": (
            zeros("B", (1, 2, 5, 9)), ValueError,
            "B: got shape (1, 2, 5, 9); wanted (5, 9) (d_state of A, tokens of u)",
        ),
        "B-constant": (
            zeros("B", (6, 5)), ValueError, "B: got shape (6, 5); wanted (5, 9) (d_state of A, tokens of u)"
        ),
        "pool-rank": (
            zeros("ssm_states", (5, 30)), ValueError,
            "ssm_states: got shape (5, 30); wanted 3 axes (slots, dim, d_state)",
        ),
        "pool-int8": (
            zeros("ssm_states", (5, 6, 5), np.int8), TypeError, f"ssm_states: got dtype int8; wanted {FLOATS}"
        ),
        "pool-shape": (
            zeros("ssm_states", (5, 5, 6)), ValueError,
            "ssm_states: got shape (5, 5, 6); wanted (5, 6, 5) (slots, dim of u, d_state of A)",
        ),
        "pool-few-slots": (
            lambda xp, a: {"ssm_states": a["ssm_states"][:2], "cache_indices": None}, ValueError,
            "slots of ssm_states: got 2; wanted at least 3, one a sequence, or cache_indices",
        ),
        "pool-broadcast": (
            lambda xp, a: {"ssm_states": xp.broadcast_to(a["ssm_states"][:1], (SLOTS, DIM, N))}, ValueError,
            f"ssm_states: got strides (0, 5, 1) for shape (5, 6, 5); wanted {OWN_ADDRESS}",
        ),
        "pool-is-A": (lambda xp, a: {"ssm_states": a["A"][None]}, ValueError, overlapping("ssm_states", "A")),
        "starts-float32": (
            zeros("query_start_loc", (4,)), TypeError, f"query_start_loc: got dtype float32; wanted {INDICES}"
        ),
        "slots-count": (
            zeros("cache_indices", (4,), np.int32), ValueError, "cache_indices: got shape (4,); wanted (3,) (sequences)"
        ),
        "slots-without-pool": (
            value("ssm_states", None), ValueError,
            "cache_indices: got an array; wanted None unless ssm_states is given",
        ),
        "has-uint8": (
            zeros("has_initial_state", (3,), np.uint8), TypeError, "has_initial_state: got dtype uint8; wanted bool"
        ),
        "pad-float": (value("pad_slot_id", 0.0), TypeError, "pad_slot_id: got 0.0; wanted an int"),
    },
}  # fmt: skip

ROWS = [
    pytest.param(name, row, id=f"{name}-{key}") for name, rows in OWN.items() for key, row in {**SHARED, **rows}.items()
]
CONTENTS = {
    **{
        key: (ints("query_start_loc", each), wanted.format(name="query_start_loc"))
        for key, (each, wanted) in STARTS.items()
    },
    **{f"slots-{key}": (ints("cache_indices", each), wanted) for key, (each, wanted) in POOL.items()},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "row"), ROWS)
def test_a_bad_argument_is_named_and_nothing_is_written(name: str, row: Row, kind: str) -> None:
    refuse(name, row, kind, GOOD)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("change", "wanted"), CONTENTS.values(), ids=CONTENTS)
def test_contents_are_checked_when_asked_for(
    change: Any, wanted: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    refuse("selective_scan_varlen_fn", (change, ValueError, wanted), kind, GOOD)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GOOD)
def test_the_good_calls_are_good(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    arguments = GOOD[name](module_of(kind))
    results = getattr(cuconv, name)(**arguments)
    written = results if isinstance(results, tuple) else (results,)
    assert written[0] is arguments["out"] and len(written) == (2 if name == "selective_scan_fn" else 1)
    for array in (*written, arguments.get("chunk_states_out", written[0])):
        assert not bool((array != array).any())
    assert arguments["u"].shape[-1] == SEQLEN
