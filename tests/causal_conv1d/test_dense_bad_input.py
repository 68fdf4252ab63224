"""Arguments that do not fit: the error names the argument, what came and what is wanted, and nothing was written."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cuconv
from cuconv.runtime.dlpack import WANTED
from tests.causal_conv1d.good_calls import BATCH, DIM, GOOD, SEQLEN, WIDTH, dense
from tests.support.bad_input import (
    FLOATS,
    KINDS,
    OWN_ADDRESS,
    TAPS,
    Change,
    Row,
    alias,
    broadcast,
    module_of,
    overlapping,
    refuse,
    snapshot,
    value,
    zeros,
)

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
BAD: dict[str, Row] = {
    "x-list": (value("x", [[[1.0]]]), TypeError, f"x: got a list; wanted {WANTED}"),
    "x-none": (value("x", None), TypeError, f"x: got a NoneType; wanted {WANTED}"),
    "x-rank-0": (zeros("x", ()), ValueError, "x: got shape (); wanted 3 axes (batch, dim, seqlen)"),
    "x-rank-2": (zeros("x", (6, 9)), ValueError, "x: got shape (6, 9); wanted 3 axes (batch, dim, seqlen)"),
    "x-rank-4": (zeros("x", (1, 2, 6, 9)), ValueError, "x: got shape (1, 2, 6, 9); wanted 3 axes (batch, dim, seqlen)"),
    "x-float64": (zeros("x", (2, 6, 9), np.float64), TypeError, f"x: got dtype float64; wanted {FLOATS}"),
    "x-int32": (zeros("x", (2, 6, 9), np.int32), TypeError, f"x: got dtype int32; wanted {FLOATS}"),
    "x-complex": (zeros("x", (2, 6, 9), np.complex64), TypeError, f"x: got dtype complex64; wanted {FLOATS}"),
    "x-batch": (
        lambda xp, a: {"x": xp.broadcast_to(a["x"][:1], (2**31, DIM, SEQLEN))},
        ValueError,
        "batch of x: got 2147483648; wanted 0 to 2147483647",
    ),
    "x-dim": (
        lambda xp, a: {"x": xp.broadcast_to(a["x"][:, :1], (BATCH, 2**31, SEQLEN))},
        ValueError,
        "dim of x: got 2147483648; wanted 0 to 2147483647",
    ),
    "weight-none": (value("weight", None), TypeError, "weight: got None; wanted an array (dim, width)"),
    "weight-list": (value("weight", [1.0]), TypeError, "weight: got a list; wanted a {kind} array, as the first is"),
    "weight-float": (value("weight", 1.0), TypeError, "weight: got a float; wanted a {kind} array, as the first is"),
    "weight-rank-0": (zeros("weight", ()), ValueError, f"weight: got shape (); wanted {TAPS}"),
    "weight-rank-3": (zeros("weight", (6, 1, 4)), ValueError, f"weight: got shape (6, 1, 4); wanted {TAPS}"),
    "weight-dim": (zeros("weight", (5, 4)), ValueError, "weight: got shape (5, 4); wanted (6, 4) (dim of x, width)"),
    "weight-int8": (zeros("weight", (6, 4), np.int8), TypeError, f"weight: got dtype int8; wanted {FLOATS}"),
    "width-0": (zeros("weight", (6, 0)), ValueError, "width of weight: got 0; wanted 1 to 16"),
    "width-17": (zeros("weight", (6, 17)), ValueError, "width of weight: got 17; wanted 1 to 16"),
    "bias-dim": (zeros("bias", (5,)), ValueError, "bias: got shape (5,); wanted (6,) (dim of x)"),
    "bias-rank-2": (zeros("bias", (6, 1)), ValueError, "bias: got shape (6, 1); wanted (6,) (dim of x)"),
    "bias-rank-0": (zeros("bias", ()), ValueError, "bias: got shape (); wanted (6,) (dim of x)"),
    "bias-float16": (zeros("bias", (6,), np.float16), TypeError, "bias: got dtype float16; wanted float32"),
    "bias-of-another-dtype": (
        lambda xp, a: {"weight": xp.zeros((6, 4), np.float16), "bias": xp.zeros(6, ml_dtypes.bfloat16)},
        TypeError,
        "bias: got dtype bfloat16; wanted one of float16, float32",
    ),
    "bias-list": (value("bias", [0.0] * 6), TypeError, "bias: got a list; wanted a {kind} array, as the first is"),
    "seq_idx-int64": (zeros("seq_idx", (2, 9), np.int64), TypeError, "seq_idx: got dtype int64; wanted int32"),
    "seq_idx-float32": (zeros("seq_idx", (2, 9)), TypeError, "seq_idx: got dtype float32; wanted int32"),
    "seq_idx-shape": (
        zeros("seq_idx", (2, 8), np.int32), ValueError, "seq_idx: got shape (2, 8); wanted (2, 9) (batch, seqlen of x)"
    ),
    "initial_states-width": (
        zeros("initial_states", (2, 6, 4)), ValueError, f"initial_states: got shape (2, 6, 4); wanted {STATES}"
    ),
    "initial_states-batch": (
        zeros("initial_states", (1, 6, 3)), ValueError, f"initial_states: got shape (1, 6, 3); wanted {STATES}"
    ),
    "initial_states-dtype": (
        zeros("initial_states", (2, 6, 3), np.float16), TypeError, "initial_states: got dtype float16; wanted float32"
    ),
    "final_states_out-shape": (
        zeros("final_states_out", (2, 3, 6)), ValueError, f"final_states_out: got shape (2, 3, 6); wanted {STATES}"
    ),
    "final_states_out-dtype": (
        zeros("final_states_out", (2, 6, 3), ml_dtypes.bfloat16),
        TypeError,
        "final_states_out: got dtype bfloat16; wanted float32",
    ),
    "final_states_out-unasked": (
        value("return_final_states", False),
        ValueError,
        "final_states_out: got an array; wanted None unless return_final_states is true",
    ),
    "out-shape": (zeros("out", (2, 9, 6)), ValueError, "out: got shape (2, 9, 6); wanted (2, 6, 9) (the shape of x)"),
    "out-dtype": (zeros("out", (2, 6, 9), np.float16), TypeError, "out: got dtype float16; wanted float32"),
    "activation-relu": (
        value("activation", "relu"), ValueError, "activation: got 'relu'; wanted one of None, 'silu', 'swish'"
    ),
    "activation-true": (
        value("activation", True), ValueError, "activation: got True; wanted one of None, 'silu', 'swish'"
    ),
    "activation-list": (
        value("activation", ["silu"]), ValueError, "activation: got ['silu']; wanted one of None, 'silu', 'swish'"
    ),
    "out-broadcast": (
        lambda xp, a: {"out": strided(xp, a["out"], (0, 9, 1))},
        ValueError,
        f"out: got strides (0, 9, 1) for shape (2, 6, 9); wanted {OWN_ADDRESS}",
    ),
    "out-rows-overlap": (
        lambda xp, a: {"out": strided(xp, a["out"], (54, 8, 1))},
        ValueError,
        f"out: got strides (54, 8, 1) for shape (2, 6, 9); wanted {OWN_ADDRESS}",
    ),
    "final_states_out-broadcast": (
        broadcast("final_states_out", 2, 6, 3),
        ValueError,
        f"final_states_out: got strides (0, 3, 1) for shape (2, 6, 3); wanted {OWN_ADDRESS}",
    ),
    "out-is-x": (alias("out", "x"), ValueError, overlapping("out", "x")),
    "out-is-x-transposed": (swapped_out, ValueError, overlapping("out", "x")),
    "out-one-token-on": (
        parent_slices(LOW, (slice(BATCH), slice(DIM), slice(1, SEQLEN + 1))), ValueError, overlapping("out", "x")
    ),
    "out-reversed-x": (
        parent_slices(LOW, (slice(BATCH), slice(DIM), slice(SEQLEN - 1, None, -1))), ValueError, overlapping("out", "x")
    ),
    "out-shares-one-element": (
        parent_slices(LOW, (slice(BATCH - 1, 2 * BATCH - 1), slice(DIM - 1, 2 * DIM - 1), slice(SEQLEN - 1, -1))),
        ValueError,
        overlapping("out", "x"),
    ),
    "out-holds-final_states_out": (state_inside_out, ValueError, overlapping("out", "final_states_out")),
    "final_states_out-is-initial_states": (
        alias("final_states_out", "initial_states"), ValueError, overlapping("final_states_out", "initial_states")
    ),
    "x-misaligned": (misaligned, ValueError, "…the 4-byte element"),
}  # fmt: skip

APART: dict[str, Change] = {
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


EACH_KIND = pytest.mark.parametrize("kind", KINDS)


@EACH_KIND
@pytest.mark.parametrize("row", BAD.values(), ids=BAD)
def test_a_bad_argument_is_named_and_nothing_is_written(row: Row, kind: str) -> None:
    refuse("causal_conv1d_fn", row, kind, GOOD)


@EACH_KIND
@pytest.mark.parametrize("row", APART.values(), ids=APART)
def test_slices_of_one_parent_that_share_nothing_are_taken(row: Change, kind: str) -> None:
    xp = module_of(kind)
    arguments = dense(xp)
    arguments |= row(xp, arguments)
    apart = {**arguments, "x": arguments["x"].copy(), "out": None, "final_states_out": None}
    wanted_out, wanted_states = cuconv.causal_conv1d_fn(**apart)
    cuconv.causal_conv1d_fn(**arguments)
    assert arguments["out"].tobytes() == wanted_out.tobytes()
    assert arguments["final_states_out"].tobytes() == wanted_states.tobytes()


@EACH_KIND
def test_the_good_call_is_good(kind: str) -> None:
    arguments = dense(module_of(kind))
    out, states = cuconv.causal_conv1d_fn(**arguments)
    assert out is arguments["out"] and states is arguments["final_states_out"]
    assert not bool((out != out).any()) and not bool((states != states).any())


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["weight", "bias", "seq_idx", "initial_states", "out", "final_states_out"])
@pytest.mark.parametrize(("first", "second"), [("NumPy", "CuPy"), ("CuPy", "NumPy")])
def test_arrays_of_two_kinds_are_refused(name: str, first: str, second: str) -> None:
    arguments = {**dense(module_of(first)), name: dense(module_of(second))[name]}
    before = snapshot(arguments)
    with pytest.raises(TypeError) as caught:
        cuconv.causal_conv1d_fn(**arguments)
    assert str(caught.value) == f"{name}: got a {second} array; wanted a {first} array, as the first is"
    assert snapshot(arguments) == before
