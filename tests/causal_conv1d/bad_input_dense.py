"""Arguments that do not fit: the error names the argument, what came and what is wanted, and nothing was written."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from cuconv.runtime.dlpack import WANTED
from tests.causal_conv1d.good_calls import BATCH, DIM, SEQLEN, WIDTH
from tests.support import bad_input as bad
from tests.support.bad_input import FLOATS, Change, Row

STATES = "(2, 6, 3) (batch, dim of x, width - 1)"


def strided(xp: Any, array: Any, strides: tuple[int, ...]) -> Any:
    """out's shape over the memory of another array, with strides in elements."""
    return xp.lib.stride_tricks.as_strided(array, (BATCH, DIM, SEQLEN), [4 * stride for stride in strides])


def parent_slices(x: Any, out: Any) -> Change:
    """x and out as two slices of one tensor that is twice as long along every axis."""

    def change(xp: Any, a: dict[str, Any]) -> dict[str, Any]:
        parent = xp.ones((2 * BATCH, 2 * DIM, 2 * SEQLEN), np.float32)
        return {"x": parent[x], "out": parent[out]}

    return change


def misaligned(xp: Any, a: dict[str, Any]) -> dict[str, Any]:
    memory = xp.zeros(4 * BATCH * DIM * SEQLEN + 4, np.uint8)
    return {"x": xp.ndarray((BATCH, DIM, SEQLEN), np.float32, memory[2:].data)}


def state_inside_out(xp: Any, a: dict[str, Any]) -> dict[str, Any]:
    return {"final_states_out": a["out"][:, :, : WIDTH - 1]}


def swapped_out(xp: Any, a: dict[str, Any]) -> dict[str, Any]:
    square = xp.ones((BATCH, DIM, DIM), np.float32)
    arguments = {"x": square, "seq_idx": None, "out": square.transpose(0, 2, 1)}
    return arguments


LOW = (slice(BATCH), slice(DIM), slice(SEQLEN))
DENSE: dict[str, Row] = {
    "x-list": (bad.value("x", [[[1.0]]]), TypeError, f"x: got a list; wanted {WANTED}"),
    "x-none": (bad.value("x", None), TypeError, f"x: got a NoneType; wanted {WANTED}"),
    "x-rank-0": bad.shape("x", (), "3 axes (batch, dim, seqlen)"),
    "x-rank-2": bad.shape("x", (6, 9), "3 axes (batch, dim, seqlen)"),
    "x-rank-4": bad.shape("x", (1, 2, 6, 9), "3 axes (batch, dim, seqlen)"),
    "x-float64": bad.dtype("x", np.float64, FLOATS),
    "x-int32": bad.dtype("x", np.int32, FLOATS),
    "x-complex": bad.dtype("x", np.complex64, FLOATS),
    "x-batch": bad.too_long("x", 0, 2**31, "batch"),
    "x-dim": bad.too_long("x", 1, 2**31, "dim"),
    "weight-none": bad.mistyped("weight", None, "an array (dim, width)"),
    "weight-list": bad.no_array("weight", [1.0]),
    "weight-float": bad.no_array("weight", 1.0),
    "weight-rank-0": bad.shape("weight", (), bad.TAPS),
    "weight-rank-3": bad.shape("weight", (6, 1, 4), bad.TAPS),
    "weight-dim": bad.shape("weight", (5, 4), "(6, 4) (dim of x, width)"),
    "weight-int8": bad.dtype("weight", np.int8, FLOATS),
    "width-0": bad.length("weight", (6, 0), "width", 0, "1 to 16"),
    "width-17": bad.length("weight", (6, 17), "width", 17, "1 to 16"),
    "bias-dim": bad.shape("bias", (5,), "(6,) (dim of x)"),
    "bias-rank-2": bad.shape("bias", (6, 1), "(6,) (dim of x)"),
    "bias-rank-0": bad.shape("bias", (), "(6,) (dim of x)"),
    "bias-float16": bad.dtype("bias", np.float16, "float32"),
    "bias-of-another-dtype": (
        lambda xp, a: {"weight": xp.zeros((6, 4), np.float16), "bias": xp.zeros(6, ml_dtypes.bfloat16)},
        TypeError,
        "bias: got dtype bfloat16; wanted one of float16, float32",
    ),
    "bias-list": bad.no_array("bias", [0.0] * 6),
    "seq_idx-int64": bad.dtype("seq_idx", np.int64, "int32"),
    "seq_idx-float32": bad.dtype("seq_idx", np.float32, "int32"),
    "seq_idx-shape": bad.shape("seq_idx", (2, 8), "(2, 9) (batch, seqlen of x)", dtype=np.int32),
    "initial_states-width": bad.shape("initial_states", (2, 6, 4), STATES),
    "initial_states-batch": bad.shape("initial_states", (1, 6, 3), STATES),
    "initial_states-dtype": bad.dtype("initial_states", np.float16, "float32"),
    "final_states_out-shape": bad.shape("final_states_out", (2, 3, 6), STATES),
    "final_states_out-dtype": bad.dtype("final_states_out", ml_dtypes.bfloat16, "float32"),
    "final_states_out-unasked": bad.array(
        "final_states_out", "None unless return_final_states is true", bad.value("return_final_states", False)
    ),
    "out-shape": bad.shape("out", (2, 9, 6), "(2, 6, 9) (the shape of x)"),
    "out-dtype": bad.dtype("out", np.float16, "float32"),
    "activation-relu": bad.given("activation", "relu", "one of None, 'silu', 'swish'"),
    "activation-true": bad.given("activation", True, "one of None, 'silu', 'swish'"),
    "activation-list": bad.given("activation", ["silu"], "one of None, 'silu', 'swish'"),
    "out-broadcast": (
        lambda xp, a: {"out": strided(xp, a["out"], (0, 9, 1))},
        ValueError,
        f"out: got strides (0, 9, 1) for shape (2, 6, 9); wanted {bad.OWN_ADDRESS}",
    ),
    "out-rows-overlap": (
        lambda xp, a: {"out": strided(xp, a["out"], (54, 8, 1))},
        ValueError,
        f"out: got strides (54, 8, 1) for shape (2, 6, 9); wanted {bad.OWN_ADDRESS}",
    ),
    "final_states_out-broadcast": bad.one_address("final_states_out", 2, 6, 3),
    "out-is-x": bad.overlap("out", "x"),
    "out-is-x-transposed": bad.overlap("out", "x", swapped_out),
    "out-one-token-on": bad.overlap("out", "x", parent_slices(LOW, (slice(BATCH), slice(DIM), slice(1, SEQLEN + 1)))),
    "out-reversed-x": bad.overlap(
        "out", "x", parent_slices(LOW, (slice(BATCH), slice(DIM), slice(SEQLEN - 1, None, -1)))
    ),
    "out-shares-one-element": bad.overlap(
        "out", "x",
        parent_slices(LOW, (slice(BATCH - 1, 2 * BATCH - 1), slice(DIM - 1, 2 * DIM - 1), slice(SEQLEN - 1, -1))),
    ),
    "out-holds-final_states_out": bad.overlap("out", "final_states_out", state_inside_out),
    "final_states_out-is-initial_states": bad.overlap("final_states_out", "initial_states"),
    "x-misaligned": (misaligned, ValueError, "…the 4-byte element"),
}  # fmt: skip

BAD = {"causal_conv1d_fn": DENSE}

SLICES: dict[str, Change] = {
    "every-second-channel": parent_slices(
        (slice(BATCH), slice(0, None, 2), slice(SEQLEN)), (slice(BATCH), slice(1, None, 2), slice(SEQLEN))
    ),
    "every-second-token": parent_slices(
        (slice(BATCH), slice(DIM), slice(0, None, 2)), (slice(BATCH), slice(DIM), slice(1, None, 2))
    ),
    "every-second-token-backward": parent_slices(
        (slice(BATCH), slice(DIM), slice(None, None, -2)), (slice(BATCH), slice(DIM), slice(0, None, 2))
    ),
    "halves-of-the-channels": parent_slices(
        (slice(BATCH), slice(DIM), slice(SEQLEN)), (slice(BATCH), slice(DIM, None), slice(SEQLEN))
    ),
    "halves-of-the-tokens": parent_slices(
        (slice(BATCH), slice(DIM), slice(SEQLEN)), (slice(BATCH), slice(DIM), slice(SEQLEN, None))
    ),
    "halves-of-the-batch": parent_slices(
        (slice(BATCH), slice(DIM), slice(SEQLEN)), (slice(BATCH, None), slice(DIM), slice(SEQLEN))
    ),
}
APART = {"causal_conv1d_fn": SLICES}
"""Calls in which what is written shares no element with anything else."""
