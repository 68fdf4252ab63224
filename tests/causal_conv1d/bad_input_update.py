"""Arguments of decode steps that do not fit, or have no meaning together: named, and nothing was written."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuconv.runtime.dlpack import WANTED
from tests.causal_conv1d.bad_input_varlen import OWN, out_at
from tests.causal_conv1d.bad_input_varlen import SHARED as PACKED
from tests.causal_conv1d.good_calls import DIM, SEQUENCES, TOKENS
from tests.support import bad_input as bad
from tests.support.bad_input import FLOATS, INDICES, Change, Row, Tables, zeros

X_AXES = "2 or 3 axes (batch, dim[, seqlen])"
STATE_AXES = "(slots, dim of x, state_len)"
EACH = "(3,) or longer (batch of x)"
WINDOW_AXES = "(rows, steps, dim of x, width - 1)"


def accepting(*counts: int) -> Change:
    """The mode in which some of the last call's tokens were accepted."""
    return bad.also(bad.value("cache_seqlens", None), bad.ints("num_accepted_tokens", list(counts)))


def sliced_x(of: Any, to: Any) -> Change:
    """x and out as two slices of a tensor with twice as many tokens."""

    def change(xp: Any, a: dict[str, Any]) -> dict[str, Any]:
        parent = xp.ones((SEQUENCES, DIM, 2 * TOKENS), np.float32)
        return {"x": parent[:, :, of], "out": parent[:, :, to]}

    return change


SAME = ("x-float64", "activation-relu", "weight-none", "weight-rank-3", "weight-dim", "width-17", "bias-dim",
        "bias-float16", "pad-float", "pad-none", "pad-true", "pad-huge")  # fmt: skip
SHARED: dict[str, Row] = {
    **{key: PACKED[key] for key in SAME},
    "x-rank-1": bad.shape("x", (6,), X_AXES),
    "x-rank-4": bad.shape("x", (1, 3, 6, 2), X_AXES),
    "x-batch": bad.too_long("x", 0, 2**30 + 1, "batch"),
    "x-seqlen": bad.too_long("x", 2, 2**30 + 1, "seqlen"),
    "state-none": bad.mistyped("conv_state", None, "an array (slots, dim, state_len)"),
    "state-list": bad.no_array("conv_state", [0.0]),
    "state-rank-2": bad.shape("conv_state", (5, 24), "3 axes (slots, dim, state_len)"),
    "state-int8": bad.dtype("conv_state", np.int8, FLOATS),
    "state-dim": bad.shape("conv_state", (5, 4, 6), f"(5, 6, 6) {STATE_AXES}"),
    "state-short": bad.length("conv_state", (5, 6, 2), "state_len", 2, "at least 3 (width - 1)"),
    "state-short-for-accepted": (
        bad.also(accepting(1, 1, 1), zeros("conv_state", (5, 6, 3))), ValueError,
        "state_len of conv_state: got 3; wanted at least 4 (width - 1 + seqlen - 1, for num_accepted_tokens)",
    ),
    "state-few-slots": (
        lambda xp, a: {"conv_state": a["conv_state"][:2], "conv_state_indices": None}, ValueError,
        "slots of conv_state: got 2; wanted at least 3, one a sequence, or conv_state_indices",
    ),
    "state-broadcast": bad.one_address("conv_state", 5, 6, 4),
    "state-in-x": bad.overlap("conv_state", "x", lambda xp, a: {"x": a["conv_state"][1:4, :, 1:3]}),
    "state-is-weight": bad.overlap(
        "conv_state", "weight",
        lambda xp, a: {"conv_state": a["weight"][None], "conv_state_indices": xp.asarray([-1, 0, -1], np.int32)},
    ),
    "state-with-window": bad.overlap(
        "conv_state", "intermediate_conv_window", bad.of_one_memory("conv_state", "intermediate_conv_window")
    ),
    "seen-float32": bad.dtype("cache_seqlens", np.float32, INDICES),
    "seen-count": bad.shape("cache_seqlens", (2,), EACH, dtype=np.int32),
    "slots-int16": bad.dtype("conv_state_indices", np.int16, INDICES),
    "slots-rank-3": bad.shape("conv_state_indices", (3, 1, 1), EACH, dtype=np.int32),
    "slots-list": bad.no_array("conv_state_indices", [3, 0, 1]),
    "accepted-float64": (
        bad.also(bad.value("cache_seqlens", None), zeros("num_accepted_tokens", (3,), np.float64)), TypeError,
        f"num_accepted_tokens: got dtype float64; wanted {INDICES}",
    ),
    "accepted-count": (accepting(1, 1), ValueError, f"num_accepted_tokens: got shape (2,); wanted {EACH}"),
    "accepted-in-a-ring": (
        zeros("num_accepted_tokens", (3,), np.int32), ValueError,
        "num_accepted_tokens: got an array; wanted None beside cache_seqlens: "
        "a ring takes tokens back by a smaller cache_seqlens",
    ),
    "accepted-and-left": (
        bad.also(
            accepting(1, 1, 1),
            bad.value("disable_state_update", True),
            bad.value("intermediate_conv_window", None),
            bad.value("intermediate_state_indices", None),
        ),
        ValueError,
        "disable_state_update: got true; wanted false beside num_accepted_tokens, unless states are kept: "
        "the next call finds tokens in the state",
    ),
    "rows-without-window": (
        bad.value("intermediate_conv_window", None), ValueError,
        "intermediate_state_indices: got an array; wanted None unless intermediate_conv_window is given",
    ),
    "rows-bool": bad.dtype("intermediate_state_indices", bool, INDICES),
    "rows-count": bad.shape("intermediate_state_indices", (2,), EACH, dtype=np.int32),
    "window-rank-3": bad.shape("intermediate_conv_window", (6, 6, 3), "4 axes (rows, steps, dim, width - 1)"),
    "window-dtype": bad.dtype("intermediate_conv_window", np.float16, "float32"),
    "window-dim": bad.shape("intermediate_conv_window", (6, 3, 3, 6), f"(6, 3, 6, 3) {WINDOW_AXES}"),
    "window-state_len": bad.shape("intermediate_conv_window", (6, 3, 6, 4), f"(6, 3, 6, 3) {WINDOW_AXES}"),
    "window-few-steps": bad.length("intermediate_conv_window", (6, 1, 6, 3), "steps", 1, "at least 2, the tokens of x"),
    "window-few-rows-for-slots": (
        bad.also(bad.value("intermediate_state_indices", None), zeros("intermediate_conv_window", (4, 2, 6, 3))),
        ValueError,
        "rows of intermediate_conv_window: got 4; wanted at least 5, one a slot, or intermediate_state_indices",
    ),
    "window-few-rows-for-sequences": (
        bad.also(
            bad.value("intermediate_state_indices", None),
            bad.value("conv_state_indices", None),
            zeros("intermediate_conv_window", (2, 2, 6, 3)),
        ),
        ValueError,
        "rows of intermediate_conv_window: got 2; wanted at least 3, one a slot, or intermediate_state_indices",
    ),
    "gate-shape": bad.shape("pre_gate", (3, 6), "(3, 6, 2) (the shape of x)"),
    "gate-dtype": (
        zeros("post_gate", (3, 6, 2), np.float16), TypeError, "post_gate: got dtype float16; wanted float32"
    ),
    "gate-list": bad.no_array("pre_gate", [1.0]),
    "residual-rank": bad.shape("residual", (1, 3, 6, 2), "(3, 6, 2) (the shape of x)"),
    "gated-tree": (
        bad.also(
            bad.value("cache_seqlens", None), zeros("parents", (3, 2), np.int32), zeros("residual", (3, 6, 2))
        ),
        ValueError, "residual: got an array; wanted None beside parents",
    ),
    "window-broadcast": bad.one_address("intermediate_conv_window", 6, 3, 6, 3),
    "window-with-x": bad.overlap("intermediate_conv_window", "x", bad.of_one_memory("x", "intermediate_conv_window")),
}  # fmt: skip

OF_SIZES = ("sizes-sum", "sizes-zero", "sizes-negative", "sizes-float", "sizes-list-inside", "sizes-int", "sizes-none",
            "sizes-17", "outs-int", "outs-two", "out-dtype", "out-twice")  # fmt: skip
OF_HEADS = ("heads-sum", "heads-zero", "head-negative", "head-list", "head-float", "outs-four", "out-twice")
FORMS: dict[str, dict[str, Row]] = {
    "causal_conv1d_update": {
        "x-list": (bad.value("x", [[1.0]]), TypeError, f"x: got a list; wanted {WANTED}"),
        "out-shape": bad.shape("out", (3, 2, 6), "(3, 6, 2) (batch of x, channels, seqlen of x)"),
        "out-rank": (
            lambda xp, a: {"x": a["x"][:, :, 0]}, ValueError,
            "out: got shape (3, 6, 2); wanted (3, 6) (batch of x, channels)",
        ),
        "out-dtype": bad.dtype("out", np.float16, "float32"),
        "out-broadcast": bad.one_address("out", 3, 6, 2),
        "out-one-token-on": bad.overlap("out", "x", sliced_x(slice(2), slice(1, 3))),
        "out-reversed-x": bad.overlap("out", "x", sliced_x(slice(2), slice(1, None, -1))),
        "out-with-state": bad.overlap("conv_state", "out", bad.of_one_memory("conv_state", "out")),
        "out-with-read-state": bad.overlap(
            "out", "conv_state",
            bad.also(bad.of_one_memory("conv_state", "out"), bad.value("disable_state_update", True)),
        ),
        "out-with-window": bad.overlap(
            "intermediate_conv_window", "out", bad.of_one_memory("out", "intermediate_conv_window")
        ),
        "out-is-residual": bad.overlap("out", "residual", lambda xp, a: {"residual": a["out"]}),
        "out-is-x-and-residual": bad.overlap("out", "residual", lambda xp, a: {"residual": a["x"], "out": a["x"]}),
        "out-is-x-broadcast": bad.overlap(
            "out", "x", lambda xp, a: {"x": xp.broadcast_to(a["x"][:1], a["x"].shape)} | {"out": a["x"]}
        ),
    },
    "causal_conv1d_update_split": {
        **{key: OWN["causal_conv1d_split"][key] for key in OF_SIZES if key != "out-twice"},
        "out-shape": (
            out_at(1, lambda xp, o: xp.ones((3, 3, 2), np.float32)), ValueError,
            "out[1]: got shape (3, 3, 2); wanted (3, 2, 2) (batch of x, channels, seqlen of x)",
        ),
        "out-twice": bad.overlap("out[0]", "out[1]", lambda xp, a: {"out": (a["out"][1][:, :1], *a["out"][1:])}),
        "out-in-x": bad.overlap("out[2]", "x", lambda xp, a: {"out": (*a["out"][:2], a["x"][:, 3:])}),
        "out-is-x": bad.overlap("out[0]", "x", lambda xp, a: {"sizes": (6,), "out": (a["x"],)}),
    },
    "causal_conv1d_update_qkv_split": {
        **{key: OWN["causal_conv1d_qkv_split"][key] for key in OF_HEADS},
        "out-shape": (
            out_at(2, lambda xp, o: o.reshape(3, 2, 1, 4)), ValueError,
            "out[2]: got shape (3, 2, 1, 4); wanted (3, 2, 2, 2) (batch, seqlen of x, heads, head_dim)",
        ),
        "out-rank": (
            lambda xp, a: {"x": a["x"][:, :, 0]}, ValueError,
            "out[0]: got shape (3, 2, 1, 1); wanted (3, 1, 1) (batch of x, heads, head_dim)",
        ),
    },
}  # fmt: skip

BAD: Tables = {name: {**SHARED, **own} for name, own in FORMS.items()}

MEMORY: dict[str, Change] = {
    "every-second-token": sliced_x(slice(None, None, 2), slice(1, None, 2)),
    "half-of-the-tokens": sliced_x(slice(2, None), slice(2)),
    "state-behind-window": bad.of_one_memory("intermediate_conv_window", "conv_state", shared=0),
    "out-behind-state": bad.of_one_memory("conv_state", "out", shared=0),
    "out-is-x": lambda xp, a: {"out": a["x"]},
    "out-is-x-gated": lambda xp, a: {"out": a["x"], "pre_gate": xp.ones((3, 6, 2), np.float32)},
    "residual-is-x": lambda xp, a: {"residual": a["x"], "post_gate": a["x"]},
    "out-is-x-backward": lambda xp, a: {"x": a["x"][:, ::-1], "out": a["x"][:, ::-1]},
    "state-read-where-x-is": lambda xp, a: {"x": a["conv_state"][1:4, :, 1:3], "disable_state_update": True},
    "windows-of-sequences": bad.also(
        bad.value("intermediate_state_indices", None),
        bad.value("conv_state_indices", None),
        zeros("intermediate_conv_window", (3, 2, 6, 3)),
    ),
}
APART = {"causal_conv1d_update": MEMORY}
"""Calls in which what is written shares no element with anything else, but for out that is x."""
