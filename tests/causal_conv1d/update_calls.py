"""Good calls of the decode step, small, with a ring, windows of their own rows and outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.causal_conv1d.test_dense_bad_input import Change
from tests.causal_conv1d.varlen_calls import HEADS, SIZES, poisoned

BATCH, DIM, SEQLEN, WIDTH = 3, 6, 2, 4
SLOTS, STATE_LEN, ROWS, STEPS = 5, 4, 6, 3


def good(xp: Any) -> dict[str, Any]:
    """What all calls have: every array but num_accepted_tokens, which is for another mode."""
    return {
        "x": xp.ones((BATCH, DIM, SEQLEN), np.float32),
        "conv_state": xp.ones((SLOTS, DIM, STATE_LEN), np.float32),
        "weight": xp.ones((DIM, WIDTH), np.float32),
        "bias": xp.ones(DIM, np.float32),
        "activation": "silu",
        "cache_seqlens": xp.asarray([0, 7, -2], np.int32),
        "conv_state_indices": xp.asarray([3, 0, 1], np.int32),
        "intermediate_conv_window": poisoned(xp, ROWS, STEPS, DIM, WIDTH - 1),
        "intermediate_state_indices": xp.asarray([5, 2, 0], np.int64),
    }


def good_whole(xp: Any) -> dict[str, Any]:
    return {**good(xp), "out": poisoned(xp, BATCH, DIM, SEQLEN)}


def good_split(xp: Any) -> dict[str, Any]:
    return {**good(xp), "sizes": SIZES, "out": tuple(poisoned(xp, BATCH, size, SEQLEN) for size in SIZES)}


def good_qkv(xp: Any) -> dict[str, Any]:
    outs = tuple(poisoned(xp, BATCH, SEQLEN, *heads) for heads in ((1, 1), (1, 1), (2, 2)))
    return {**good(xp), **HEADS, "out": outs}


GOOD: dict[str, Any] = {
    "causal_conv1d_update": good_whole,
    "causal_conv1d_update_split": good_split,
    "causal_conv1d_update_qkv_split": good_qkv,
}


def accepting(*counts: int) -> Change:
    """The mode in which some of the last call's tokens were accepted."""
    return lambda xp, a: {"cache_seqlens": None, "num_accepted_tokens": xp.asarray(counts, np.int32)}


def also(*changes: Change) -> Change:
    """Several changes at once."""
    return lambda xp, a: {name: new for change in changes for name, new in change(xp, a).items()}


def broadcast(name: str, *lengths: int) -> Change:
    """An array that is to be written, with one address for all along its first axis."""
    return lambda xp, a: {name: xp.broadcast_to(a[name][:1], lengths)}


def of_one_memory(first: str, second: str, *, shared: int = 1) -> Change:
    """Two arrays, one behind the other but for so many shared elements."""

    def change(xp: Any, a: dict[str, Any]) -> dict[str, Any]:
        one, other = a[first], a[second]
        memory = xp.ones(one.size + other.size - shared, np.float32)
        return {
            first: memory[: one.size].reshape(one.shape),
            second: memory[one.size - shared :].reshape(other.shape),
        }

    return change


def sliced_x(of: Any, to: Any) -> Change:
    """x and out as two slices of a tensor with twice as many tokens."""

    def change(xp: Any, a: dict[str, Any]) -> dict[str, Any]:
        parent = xp.ones((BATCH, DIM, 2 * SEQLEN), np.float32)
        return {"x": parent[:, :, of], "out": parent[:, :, to]}

    return change
