"""Arguments of gradients that do not fit: the error names them, and nothing was written."""

from __future__ import annotations

import numpy as np

from tests.causal_conv1d.bad_input_contents import packed
from tests.causal_conv1d.bad_input_dense import DENSE, STATES
from tests.causal_conv1d.bad_input_varlen import SHARED as PACKED
from tests.support import bad_input as bad
from tests.support.bad_input import Row, Tables, ints

INPUTS = ("x", "weight", "width", "bias", "seq_idx", "initial_states", "activation")
"""What rows of forward calls begin with that hold for gradients, too."""

SHARED: dict[str, Row] = {
    "dout-dtype": bad.dtype("dout", np.float16, "float32"),
    "dfinal-dtype": bad.dtype("dfinal_states", np.float16, "float32"),
    "dx-dtype": bad.dtype("dx", np.float16, "float32"),
    "dweight-shape": bad.shape("dweight", (4, 6), "(6, 4) (the shape of weight)"),
    "dweight-dtype": bad.dtype("dweight", np.float16, "float32"),
    "dbias-without-bias": bad.array("dbias", "None unless bias is given", bad.value("bias", None)),
    "dx-is-x": bad.overlap("dx", "x"),
    "dx-is-dout": bad.overlap("dx", "dout"),
    "dweight-is-weight": bad.overlap("dweight", "weight"),
    "dbias-in-dweight": bad.overlap("dweight", "dbias", lambda xp, a: {"dbias": a["dweight"][:, 0]}),
    "dinitial-is-dfinal": bad.overlap("dinitial_states", "dfinal_states"),
}

POOL = "initial_states"
PACKED_STATES = "(3, 6, 3) (sequences, dim of x, width - 1)"
NO_POOL = bad.also(bad.value(POOL, None), bad.value("dinitial_states", None))
BAD: Tables = {
    "causal_conv1d_bwd": {
        # Of x and dout, which differ in x-batch, the shapes are compared first.
        **{key: row for key, row in DENSE.items() if key.startswith(INPUTS) and key != "x-batch"},
        **SHARED,
        "dout-none": bad.mistyped("dout", None, "an array (batch, dim, seqlen)"),
        "dout-shape": bad.shape("dout", (2, 9, 6), "(2, 6, 9) (the shape of x)"),
        "dfinal-shape": bad.shape("dfinal_states", (2, 3, 6), STATES),
        "dx-shape": bad.shape("dx", (2, 9, 6), "(2, 6, 9) (the shape of x)"),
        "dx-broadcast": bad.one_address("dx", 2, 6, 9),
        "dinitial-without-initial": bad.array(
            "dinitial_states", "None unless initial_states is given", bad.value(POOL, None)
        ),
        "dinitial-shape": bad.shape("dinitial_states", (2, 6, 4), STATES),
    },
    "causal_conv1d_varlen_bwd": {
        **{key: row for key, row in PACKED.items() if key.startswith(INPUTS)},
        **bad.of_sequences(POOL),
        **SHARED,
        "pool-int8": bad.dtype(POOL, np.float16, "float32"),
        "slots-count": bad.shape("cache_indices", (2,), "(3,) (sequences)", np.int32),
        "has-count": bad.shape("has_initial_state", (2,), "(3,) (sequences)", bool),
        "slots-without-pool": bad.array("cache_indices", f"None unless {POOL} is given", NO_POOL),
        "has-without-pool": bad.array(
            "has_initial_state", f"None unless {POOL} is given", bad.also(NO_POOL, bad.value("cache_indices", None))
        ),
        "dout-shape": bad.shape("dout", (9, 6), "(6, 9) (the shape of x)"),
        "pool-rank": bad.shape(POOL, (6, 3), "3 axes (slots, dim, state_len)"),
        "pool-short": bad.length(POOL, (5, 6, 2), "state_len", 2, "at least 3 (width - 1)"),
        "dfinal-shape": bad.shape("dfinal_states", (2, 6, 3), PACKED_STATES),
        "dinitial-shape": bad.shape("dinitial_states", (2, 6, 3), PACKED_STATES),
    },
}  # fmt: skip

CONTENTS: Tables = {
    "causal_conv1d_varlen_bwd": {
        **packed("query_start_loc"),
        "slot-large": (ints("cache_indices", [3, 0, 5]), ValueError, bad.outside("cache_indices", 5, 5)),
    }
}
