"""Arguments of packed sequences that do not fit: the error names them, and nothing was written."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuconv.runtime.dlpack import WANTED
from tests.causal_conv1d.bad_input_dense import DENSE
from tests.causal_conv1d.good_calls import DIM, SLOTS, TOTAL, WIDTH
from tests.support import bad_input as bad
from tests.support.bad_input import FLOATS, INDICES, Change, Row, Tables

X_AXES = "2 axes (dim, total)"
OUT_AXES = "(channels, total of x)"
STATES_AXES = "(sequences, dim of x, state_len)"


def out_at(number: int, change: Any) -> Change:
    """One of several outputs, changed."""
    return lambda xp, a: {"out": tuple(change(xp, o) if i == number else o for i, o in enumerate(a["out"]))}


def pool_over_x(xp: Any, a: dict[str, Any]) -> dict[str, Any]:
    """The last columns of x as the only slot."""
    return {"conv_states": a["x"][None, :, -3:]}


SAME = ("weight-none", "weight-rank-3", "weight-dim", "width-17", "bias-dim", "bias-float16", "activation-relu")
SHARED: dict[str, Row] = {
    **{key: DENSE[key] for key in SAME},
    **bad.of_sequences("conv_states", "conv_states or initial_states"),
    "x-rank-4": bad.shape("x", (1, 1, 6, 9), X_AXES),
    "x-float64": bad.dtype("x", np.float64, FLOATS),
    "x-total": bad.too_long("x", 1, 2**30 + 1, "total"),
    "pool-rank-2": bad.shape("conv_states", (5, 18), "3 axes (slots, dim, state_len)"),
    "pool-dim": bad.shape("conv_states", (5, 3, 3), "(5, 6, 3) (slots, dim of x, state_len)"),
    "pool-short": bad.length("conv_states", (5, 6, 2), "state_len", 2, "at least 3 (width - 1)"),
    "pool-broadcast": bad.one_address("conv_states", SLOTS, DIM, WIDTH - 1),
    "pool-in-x": bad.overlap("conv_states", "x", pool_over_x),
    "pool-is-weight": bad.overlap("conv_states", "weight", lambda xp, a: {"conv_states": a["weight"][None, :, 1:]}),
}  # fmt: skip

SIZES_SUM = "6 in all (dim of x)"
ONLY_UNGATED = "None where x has 3 axes, where out is x, with qk_l2norm, and beside payload"
OWN: dict[str, dict[str, Row]] = {
    "causal_conv1d_varlen_fn": {
        "x-list": (bad.value("x", [[1.0]]), TypeError, f"x: got a list; wanted {WANTED}"),
        "out-shape": (
            lambda xp, a: {"out": xp.ones((9, 6), np.float32)}, ValueError,
            f"out: got shape (9, 6); wanted (6, 9) {OUT_AXES}",
        ),
        "out-dtype": bad.dtype("out", np.float16, "float32"),
        "out-in-x": bad.overlap("out", "x", lambda xp, a: {"out": a["x"][:]}),
        "out-over-x-by-one": bad.overlap("out", "x", bad.of_one_memory("x", "out")),
        "out-is-x-gated": bad.array(
            "post_gate", ONLY_UNGATED,
            lambda xp, a: {"out": a["x"], "post_gate": xp.ones((DIM, TOTAL), np.float32)},
        ),
        "dense-gated": bad.array(
            "residual", ONLY_UNGATED,
            lambda xp, a: {
                "x": xp.ones((3, DIM, TOTAL), np.float32), "query_start_loc": None, "out": None,
                "residual": xp.ones((3, DIM, TOTAL), np.float32),
            },
        ),
        "dense-packed": bad.array(
            "query_start_loc", "None where x has 3 axes (batch, dim, seqlen)", bad.zeros("x", (3, DIM, TOTAL))
        ),
        "dense-dim": (
            bad.also(bad.zeros("x", (3, 5, TOTAL)), bad.value("query_start_loc", None)), ValueError,
            "weight: got shape (6, 4); wanted (5, 4) (dim of x, width)",
        ),
        "dense-slots": (
            bad.also(bad.zeros("x", (4, DIM, 2)), bad.value("query_start_loc", None)), ValueError,
            "has_initial_state: got shape (3,); wanted (4,) or longer (sequences)",
        ),
        "dense-out": (
            bad.also(bad.zeros("x", (3, DIM, 3)), bad.value("query_start_loc", None)), ValueError,
            "out: got shape (6, 9); wanted (3, 6, 3) (the shape of x)",
        ),
        "gate-shape": bad.shape("pre_gate", (DIM, 8), "(6, 9) (the shape of x)"),
        "gate-dtype": (
            bad.zeros("post_gate", (DIM, TOTAL), np.float16), TypeError,
            "post_gate: got dtype float16; wanted float32",
        ),
        "residual-rank": bad.shape("residual", (1, DIM, TOTAL), "(6, 9) (the shape of x)"),
        "out-is-residual": bad.overlap(
            "out", "residual", lambda xp, a: {"residual": a["out"]}
        ),
        "out-in-pool": bad.overlap("conv_states", "out", bad.of_one_memory("conv_states", "out")),
        "out-broadcast": bad.one_address("out", DIM, TOTAL),
    },
    "causal_conv1d_split": {
        "sizes-sum": (bad.value("sizes", (1, 2, 4)), ValueError, f"sizes: got (1, 2, 4), in all 7; wanted {SIZES_SUM}"),
        "sizes-zero": (bad.value("sizes", (0, 3, 3)), ValueError, "sizes[0]: got 0; wanted at least 1"),
        "sizes-negative": (bad.value("sizes", (7, 2, -3)), ValueError, "sizes[2]: got -3; wanted at least 1"),
        "sizes-float": (bad.value("sizes", (1, 2.0, 3)), TypeError, "sizes[1]: got 2.0; wanted an int"),
        "sizes-list-inside": (bad.value("sizes", (1, [2], 3)), TypeError, "sizes[1]: got [2]; wanted an int"),
        "sizes-int": bad.mistyped("sizes", 6, "a tuple"),
        "sizes-none": (bad.value("sizes", ()), ValueError, "length of sizes: got 0; wanted 1 to 16"),
        "sizes-17": (bad.value("sizes", (1,) * 17), ValueError, "length of sizes: got 17; wanted 1 to 16"),
        "outs-int": bad.mistyped("out", 3, "a tuple"),
        "outs-two": (lambda xp, a: {"out": a["out"][:2]}, ValueError, "out: got 2 arrays; wanted 3"),
        "out-shape": (
            out_at(1, lambda xp, o: xp.ones((3, 9), np.float32)), ValueError,
            f"out[1]: got shape (3, 9); wanted (2, 9) {OUT_AXES}",
        ),
        "out-dtype": (
            out_at(2, lambda xp, o: o.astype(np.float16)), TypeError, "out[2]: got dtype float16; wanted float32"
        ),
        "out-twice": bad.overlap("out[0]", "out[1]", lambda xp, a: {"out": (a["out"][1][:1], *a["out"][1:])}),
        "out-in-x": bad.overlap("out[2]", "x", lambda xp, a: {"out": (*a["out"][:2], a["x"][3:])}),
        "out-in-pool": bad.overlap(
            "conv_states", "out[0]",
            lambda xp, a: {"out": (a["conv_states"].reshape(-1)[:9].reshape(1, 9), *a["out"][1:])},
        ),
        "out-broadcast": (
            out_at(1, lambda xp, o: xp.broadcast_to(o[:1], (2, TOTAL))), ValueError,
            f"out[1]: got strides (0, 1) for shape (2, 9); wanted {bad.OWN_ADDRESS}",
        ),
    },
    "causal_conv1d_qkv_split": {
        "heads-sum": (
            bad.value("num_v_heads", 3), ValueError,
            "num_q_heads * head_q, num_k_heads * head_k, num_v_heads * head_v: got (1, 1, 6), in all 8; "
            f"wanted {SIZES_SUM}",
        ),
        "heads-zero": bad.given("num_k_heads", 0, "at least 1"),
        "head-negative": bad.given("head_v", -2, "at least 1"),
        "head-list": bad.mistyped("head_q", [1], "an int"),
        "norm-gated": bad.array(
            "pre_gate", ONLY_UNGATED,
            bad.also(bad.value("qk_l2norm", True), bad.zeros("pre_gate", (DIM, TOTAL))),
        ),
        "payload-alone": bad.array(
            "payload", "None unless payload and both payload_gates are given", bad.zeros("payload", (TOTAL, 7))
        ),
        "payload-gates-alone": (
            lambda xp, a: {"payload_gates": (xp.ones((TOTAL, 1), np.float32),) * 2}, ValueError,
            "payload_gates[0]: got an array; wanted None unless payload and both payload_gates are given",
        ),
        "payload-gates-one": (
            lambda xp, a: {"payload_gates": (xp.ones((TOTAL, 1), np.float32),)}, ValueError,
            "payload_gates: got 1 arrays; wanted 2",
        ),
        "payload-gates-int": bad.mistyped("payload_gates", 2, "a tuple"),
        "payload-shape": (
            lambda xp, a: {
                "payload": xp.ones((TOTAL, 6), np.float32), "payload_gates": (xp.ones((TOTAL, 1), np.float32),) * 2
            }, ValueError,
            "payload: got shape (9, 6); wanted (9, 7) (total of x, channels of k and v, heads of both gates)",
        ),
        "payload-gates-shape": (
            lambda xp, a: {
                "payload": xp.ones((TOTAL, 7), np.float32),
                "payload_gates": (xp.ones((TOTAL, 1), np.float32), xp.ones((TOTAL, 2), np.float32)),
            }, ValueError,
            "payload_gates[1]: got shape (9, 2); wanted (9, 1) (total of x, heads)",
        ),
        "payload-dtype": (
            lambda xp, a: {
                "payload": xp.ones((TOTAL, 7), np.float16), "payload_gates": (xp.ones((TOTAL, 1), np.float32),) * 2
            }, TypeError, "payload: got dtype float16; wanted float32",
        ),
        "payload-in-x": (
            lambda xp, a: {
                "payload": a["x"].reshape(-1)[:45].reshape(9, 5),
                "payload_gates": (xp.ones((TOTAL, 0), np.float32),) * 2,
            }, ValueError, f"payload: got memory that overlaps x; wanted {bad.OWN_MEMORY}",
        ),
        "eps-none": bad.mistyped("l2norm_eps", None, "a number"),
        "head-float": bad.mistyped("head_q", 1.0, "an int"),
        "eps-negative": bad.given("l2norm_eps", -1.0, "a number of at least 0"),
        "eps-nan": (bad.value("l2norm_eps", np.nan), ValueError, "l2norm_eps: got nan; wanted a number of at least 0"),
        "outs-four": (lambda xp, a: {"out": (*a["out"], a["out"][0])}, ValueError, "out: got 4 arrays; wanted 3"),
        "out-shape": (
            out_at(2, lambda xp, o: o.reshape(1, TOTAL, 1, 4)), ValueError,
            "out[2]: got shape (1, 9, 1, 4); wanted (1, 9, 2, 2) (1, total of x, heads, head_dim)",
        ),
        "out-rank": (
            out_at(0, lambda xp, o: o[0]), ValueError,
            "out[0]: got shape (9, 1, 1); wanted (1, 9, 1, 1) (1, total of x, heads, head_dim)",
        ),
        "out-twice": bad.overlap("out[0]", "out[1]", lambda xp, a: {"out": (a["out"][1], *a["out"][1:])}),
    },
}  # fmt: skip

STATES: dict[str, Row] = {
    "x-rank-3": bad.shape("x", (1, 9, 6), "2 axes (total, dim)"),
    "x-int32": bad.dtype("x", np.int32, FLOATS),
    "starts-none": bad.mistyped("cu_seqlens", None, "an array (sequences + 1)"),
    "starts-float": bad.dtype("cu_seqlens", np.float32, INDICES),
    "starts-rank": bad.shape("cu_seqlens", (1, 3), "1 axes (sequences + 1)", dtype=np.int32),
    "starts-none-at-all": bad.length("cu_seqlens", (0,), "sequences", -1, "0 to 2147483647", dtype=np.int32),
    "length-zero": bad.given("state_len", 0, "at least 1"),
    "length-float": bad.mistyped("state_len", 3.0, "an int"),
    "previous-shape": bad.shape("previous_states", (3, 6, 4), f"(3, 6, 3) {STATES_AXES}"),
    "previous-dtype": bad.dtype("previous_states", np.float16, "float32"),
    "out-is-previous": bad.overlap("out", "previous_states"),
    "out-shape": bad.shape("out", (3, 3, 6), f"(3, 6, 3) {STATES_AXES}"),
    "out-dtype": bad.dtype("out", np.float16, "float32"),
    "out-in-x": bad.overlap("out", "x", lambda xp, a: {"out": a["x"].reshape(-1)[:54].reshape(3, 6, 3)}),
    "out-broadcast": bad.one_address("out", 3, 6, 3),
}  # fmt: skip

BAD: Tables = {name: {**SHARED, **own} for name, own in OWN.items()} | {"causal_conv1d_varlen_states": STATES}
