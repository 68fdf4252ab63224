"""Arguments of gradients that do not fit: the error names them, and nothing was written."""

from __future__ import annotations

import numpy as np

from tests.causal_conv1d.bad_input_contents import packed
from tests.selective_scan.bad_input import OWN, SHARED
from tests.support import bad_input as bad
from tests.support.bad_input import Row, Tables

INPUTS = ("u", "A", "D", "bias", "delta", "z", "B", "C", "starts")
"""What rows of forward calls begin with that hold for gradients, too."""

GRADIENTS: dict[str, Row] = {
    "dout-dtype": bad.dtype("dout", np.float16, "float32"),
    "dlast-dtype": bad.dtype("dlast_state", np.float64, "float32"),
    "dB-dtype": bad.dtype("dB", np.float16, "float32"),
    "dD-without-D": bad.array("dD", "None unless D is given", bad.value("D", None)),
    "du-is-u": bad.overlap("du", "u"),
    "du-is-ddelta": bad.overlap("du", "ddelta"),
}


def rows_of(function: str) -> dict[str, Row]:
    """Rows of a forward call that hold for its gradient, and of all gradients."""
    forward = {**SHARED, **OWN[function]}
    return {key: row for key, row in forward.items() if key.partition("-")[0] in INPUTS} | GRADIENTS


BAD: Tables = {
    "selective_scan_bwd": {
        **rows_of("selective_scan_fn"),
        "dout-none": bad.mistyped("dout", None, "an array (batch, dim, seqlen)"),
        "dout-shape": bad.shape("dout", (2, 6, 8), "(2, 6, 9) (batch, dim, seqlen of u)"),
        "dlast-shape": bad.shape("dlast_state", (2, 6, 4), "(2, 6, 5) (batch of u, dim of u, d_state of A)"),
        "chunks": bad.shape(
            "chunk_states", (2, 2, 6, 5), "(2, 1, 6, 5) (batch of u, chunks, dim of u, d_state of A)"
        ),
        "du-shape": bad.shape("du", (2, 6, 10), "(2, 6, 9) (the shape of u)"),
        "du-broadcast": bad.one_address("du", 2, 6, 9),
    },
    "selective_scan_varlen_bwd": {
        **rows_of("selective_scan_varlen_fn"),
        "initial-count": bad.shape("initial_state", (4, 6, 5), "(3, 6, 5) (sequences, dim of u, d_state of A)"),
        "dlast-count": bad.shape("dlast_state", (1, 6, 5), "(3, 6, 5) (sequences, dim of u, d_state of A)"),
    },
}  # fmt: skip
CONTENTS: Tables = {"selective_scan_varlen_bwd": packed("query_start_loc")}
