"""Arguments of packed sequences that do not fit: the error names them, and nothing was written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuconv.runtime.dlpack import WANTED
from tests.causal_conv1d.good_calls import DIM, GOOD, SLOTS, TOTAL, WIDTH
from tests.causal_conv1d.test_dense_bad_input import BAD as DENSE
from tests.support.bad_input import (
    FLOATS,
    INDICES,
    KINDS,
    OWN_ADDRESS,
    Change,
    Row,
    alias,
    broadcast,
    of_one_memory,
    overlapping,
    refuse,
    rows,
    value,
    zeros,
)

X_AXES = "2 axes (dim, total)"
OUT_AXES = "(channels, total of x)"
STATES_AXES = "(sequences, dim of x, state_len)"
ONLY_WITH_POOL = "None unless conv_states or initial_states is given"


def out_at(number: int, change: Any) -> Change:
    """One of several outputs, changed."""
    return lambda xp, a: {"out": tuple(change(xp, o) if i == number else o for i, o in enumerate(a["out"]))}


def pool_over_x(xp: Any, a: dict[str, Any]) -> dict[str, Any]:
    """The last columns of x as the only slot."""
    return {"conv_states": a["x"][None, :, -3:]}


SAME = ("weight-none", "weight-rank-3", "weight-dim", "width-17", "bias-dim", "bias-float16", "activation-relu")
SHARED: dict[str, Row] = {
    **{key: DENSE[key] for key in SAME},
    "x-rank-3": (zeros("x", (1, 6, 9)), ValueError, f"x: got shape (1, 6, 9); wanted {X_AXES}"),
    "x-float64": (zeros("x", (6, 9), np.float64), TypeError, f"x: got dtype float64; wanted {FLOATS}"),
    "x-total": (
        lambda xp, a: {"x": xp.broadcast_to(a["x"][:, :1], (DIM, 2**30 + 1))}, ValueError,
        "total of x: got 1073741825; wanted 0 to 1073741824",
    ),
    "pool-rank-2": (
        zeros("conv_states", (5, 18)),
        ValueError,
        "conv_states: got shape (5, 18); wanted 3 axes (slots, dim, state_len)",
    ),
    "pool-int8": (
        zeros("conv_states", (5, 6, 3), np.int8), TypeError, f"conv_states: got dtype int8; wanted {FLOATS}"
    ),
    "pool-dim": (
        zeros("conv_states", (5, 3, 3)), ValueError,
        "conv_states: got shape (5, 3, 3); wanted (5, 6, 3) (slots, dim of x, state_len)",
    ),
    "pool-short": (
        zeros("conv_states", (5, 6, 2)), ValueError, "state_len of conv_states: got 2; wanted at least 3 (width - 1)"
    ),
    "pool-few-slots": (
        lambda xp, a: {"conv_states": a["conv_states"][:2], "cache_indices": None},
        ValueError,
        "slots of conv_states: got 2; wanted at least 3, one a sequence, or cache_indices",
    ),
    "pool-broadcast": (
        broadcast("conv_states", SLOTS, DIM, WIDTH - 1), ValueError,
        f"conv_states: got strides (0, 3, 1) for shape (5, 6, 3); wanted {OWN_ADDRESS}",
    ),
    "pool-in-x": (pool_over_x, ValueError, overlapping("conv_states", "x")),
    "pool-is-weight": (
        lambda xp, a: {"conv_states": a["weight"][None, :, 1:]}, ValueError, overlapping("conv_states", "weight")
    ),
    "starts-float32": (
        zeros("query_start_loc", (4,)), TypeError, f"query_start_loc: got dtype float32; wanted {INDICES}"
    ),
    "starts-rank-2": (
        zeros("query_start_loc", (4, 1), np.int32),
        ValueError,
        "query_start_loc: got shape (4, 1); wanted 1 axes (sequences + 1)",
    ),
    "starts-none-at-all": (
        zeros("query_start_loc", (0,), np.int32),
        ValueError,
        "sequences of query_start_loc: got -1; wanted 0 to 1073741824",
    ),
    "slots-int16": (
        zeros("cache_indices", (3,), np.int16), TypeError, f"cache_indices: got dtype int16; wanted {INDICES}"
    ),
    "slots-count": (
        zeros("cache_indices", (2,), np.int32), ValueError,
        "cache_indices: got shape (2,); wanted (3,) or longer (sequences)",
    ),
    "slots-without-pool": (
        lambda xp, a: {"conv_states": None, "has_initial_state": None},
        ValueError,
        f"cache_indices: got an array; wanted {ONLY_WITH_POOL}",
    ),
    "has-uint8": (
        zeros("has_initial_state", (3,), np.uint8), TypeError, "has_initial_state: got dtype uint8; wanted bool"
    ),
    "has-count": (
        zeros("has_initial_state", (2,), bool), ValueError,
        "has_initial_state: got shape (2,); wanted (3,) or longer (sequences)",
    ),
    "has-without-pool": (
        lambda xp, a: {"conv_states": None, "cache_indices": None},
        ValueError,
        f"has_initial_state: got an array; wanted {ONLY_WITH_POOL}",
    ),
    "slots-list": (
        value("cache_indices", [3, 0, 1]),
        TypeError,
        "cache_indices: got a list; wanted a {kind} array, as the first is",
    ),
    "pad-float": (value("pad_slot_id", 0.0), TypeError, "pad_slot_id: got 0.0; wanted an int"),
    "pad-none": (value("pad_slot_id", None), TypeError, "pad_slot_id: got None; wanted an int"),
    "pad-true": (value("pad_slot_id", True), TypeError, "pad_slot_id: got True; wanted an int"),
    "pad-huge": (
        value("pad_slot_id", 2**63), ValueError, "pad_slot_id: got 9223372036854775808; wanted an int of 64 bits"
    ),
}  # fmt: skip

SIZES_SUM = "6 in all (dim of x)"
OWN: dict[str, dict[str, Row]] = {
    "causal_conv1d_varlen_fn": {
        "x-list": (value("x", [[1.0]]), TypeError, f"x: got a list; wanted {WANTED}"),
        "out-shape": (
            lambda xp, a: {"out": xp.ones((9, 6), np.float32)}, ValueError,
            f"out: got shape (9, 6); wanted (6, 9) {OUT_AXES}",
        ),
        "out-dtype": (zeros("out", (6, 9), np.float16), TypeError, "out: got dtype float16; wanted float32"),
        "out-is-x": (alias("out", "x"), ValueError, overlapping("out", "x")),
        "out-in-pool": (of_one_memory("conv_states", "out"), ValueError, overlapping("conv_states", "out")),
        "out-broadcast": (
            broadcast("out", DIM, TOTAL), ValueError, f"out: got strides (0, 1) for shape (6, 9); wanted {OWN_ADDRESS}",
        ),
    },
    "causal_conv1d_split": {
        "sizes-sum": (value("sizes", (1, 2, 4)), ValueError, f"sizes: got (1, 2, 4), in all 7; wanted {SIZES_SUM}"),
        "sizes-zero": (value("sizes", (0, 3, 3)), ValueError, "sizes[0]: got 0; wanted at least 1"),
        "sizes-negative": (value("sizes", (7, 2, -3)), ValueError, "sizes[2]: got -3; wanted at least 1"),
        "sizes-float": (value("sizes", (1, 2.0, 3)), TypeError, "sizes[1]: got 2.0; wanted an int"),
        "sizes-list-inside": (value("sizes", (1, [2], 3)), TypeError, "sizes[1]: got [2]; wanted an int"),
        "sizes-int": (value("sizes", 6), TypeError, "sizes: got 6; wanted a tuple"),
        "sizes-none": (value("sizes", ()), ValueError, "length of sizes: got 0; wanted 1 to 16"),
        "sizes-17": (value("sizes", (1,) * 17), ValueError, "length of sizes: got 17; wanted 1 to 16"),
        "outs-int": (value("out", 3), TypeError, "out: got 3; wanted a tuple"),
        "outs-two": (lambda xp, a: {"out": a["out"][:2]}, ValueError, "out: got 2 arrays; wanted 3"),
        "out-shape": (
            out_at(1, lambda xp, o: xp.ones((3, 9), np.float32)), ValueError,
            f"out[1]: got shape (3, 9); wanted (2, 9) {OUT_AXES}",
        ),
        "out-dtype": (
            out_at(2, lambda xp, o: o.astype(np.float16)), TypeError, "out[2]: got dtype float16; wanted float32"
        ),
        "out-twice": (
            lambda xp, a: {"out": (a["out"][1][:1], *a["out"][1:])}, ValueError, overlapping("out[0]", "out[1]")
        ),
        "out-in-x": (
            lambda xp, a: {"out": (*a["out"][:2], a["x"][3:])}, ValueError, overlapping("out[2]", "x")
        ),
        "out-in-pool": (
            lambda xp, a: {"out": (a["conv_states"].reshape(-1)[:9].reshape(1, 9), *a["out"][1:])}, ValueError,
            overlapping("conv_states", "out[0]"),
        ),
        "out-broadcast": (
            out_at(1, lambda xp, o: xp.broadcast_to(o[:1], (2, TOTAL))), ValueError,
            f"out[1]: got strides (0, 1) for shape (2, 9); wanted {OWN_ADDRESS}",
        ),
    },
    "causal_conv1d_qkv_split": {
        "heads-sum": (
            value("num_v_heads", 3), ValueError,
            "num_q_heads * head_q, num_k_heads * head_k, num_v_heads * head_v: got (1, 1, 6), in all 8; "
            f"wanted {SIZES_SUM}",
        ),
        "heads-zero": (value("num_k_heads", 0), ValueError, "num_k_heads: got 0; wanted at least 1"),
        "head-negative": (value("head_v", -2), ValueError, "head_v: got -2; wanted at least 1"),
        "head-list": (value("head_q", [1]), TypeError, "head_q: got [1]; wanted an int"),
        "eps-none": (value("l2norm_eps", None), TypeError, "l2norm_eps: got None; wanted a number"),
        "head-float": (value("head_q", 1.0), TypeError, "head_q: got 1.0; wanted an int"),
        "eps-negative": (value("l2norm_eps", -1.0), ValueError, "l2norm_eps: got -1.0; wanted a number of at least 0"),
        "eps-nan": (value("l2norm_eps", np.nan), ValueError, "l2norm_eps: got nan; wanted a number of at least 0"),
        "outs-four": (
            lambda xp, a: {"out": (*a["out"], a["out"][0])}, ValueError, "out: got 4 arrays; wanted 3"
        ),
        "out-shape": (
            out_at(2, lambda xp, o: o.reshape(1, TOTAL, 1, 4)), ValueError,
            "out[2]: got shape (1, 9, 1, 4); wanted (1, 9, 2, 2) (1, total of x, heads, head_dim)",
        ),
        "out-rank": (
            out_at(0, lambda xp, o: o[0]), ValueError,
            "out[0]: got shape (9, 1, 1); wanted (1, 9, 1, 1) (1, total of x, heads, head_dim)",
        ),
        "out-twice": (
            lambda xp, a: {"out": (a["out"][1], *a["out"][1:])}, ValueError, overlapping("out[0]", "out[1]")
        ),
    },
}  # fmt: skip

STATES: dict[str, Row] = {
    "x-rank-3": (zeros("x", (1, 9, 6)), ValueError, "x: got shape (1, 9, 6); wanted 2 axes (total, dim)"),
    "x-int32": (zeros("x", (9, 6), np.int32), TypeError, f"x: got dtype int32; wanted {FLOATS}"),
    "starts-none": (value("cu_seqlens", None), TypeError, "cu_seqlens: got None; wanted an array (sequences + 1)"),
    "starts-float": (zeros("cu_seqlens", (3,)), TypeError, f"cu_seqlens: got dtype float32; wanted {INDICES}"),
    "starts-rank": (
        zeros("cu_seqlens", (1, 3), np.int32), ValueError,
        "cu_seqlens: got shape (1, 3); wanted 1 axes (sequences + 1)",
    ),
    "starts-none-at-all": (
        zeros("cu_seqlens", (0,), np.int32), ValueError, "sequences of cu_seqlens: got -1; wanted 0 to 2147483647"
    ),
    "length-zero": (value("state_len", 0), ValueError, "state_len: got 0; wanted at least 1"),
    "length-float": (value("state_len", 3.0), TypeError, "state_len: got 3.0; wanted an int"),
    "out-shape": (
        zeros("out", (3, 3, 6)), ValueError, f"out: got shape (3, 3, 6); wanted (3, 6, 3) {STATES_AXES}"
    ),
    "out-dtype": (zeros("out", (3, 6, 3), np.float16), TypeError, "out: got dtype float16; wanted float32"),
    "out-in-x": (
        lambda xp, a: {"out": a["x"].reshape(-1)[:54].reshape(3, 6, 3)}, ValueError, overlapping("out", "x")
    ),
    "out-broadcast": (
        broadcast("out", 3, 6, 3), ValueError,
        f"out: got strides (0, 3, 1) for shape (3, 6, 3); wanted {OWN_ADDRESS}",
    ),
}  # fmt: skip

TABLES = {name: {**SHARED, **own} for name, own in OWN.items()} | {"causal_conv1d_varlen_states": STATES}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "row"), rows(TABLES))
def test_a_bad_argument_is_named_and_nothing_is_written(name: str, row: Row, kind: str) -> None:
    refuse(name, row, kind, GOOD)
