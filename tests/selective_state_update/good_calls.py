"""Good calls of selective_state_update, small and with nearly every array: one per kind of call."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.bad_input import Good, poisoned

BATCH, TOKENS, HEADS, DIM, N, GROUPS, SLOTS, ROWS = 3, 2, 4, 3, 5, 2, 9, 4


def by_token(xp: Any, *lead: int) -> dict[str, Any]:
    """The arrays with a value per token, with these axes before that of the heads."""
    rows, grouped = (*lead, HEADS, DIM), (*lead, GROUPS, N)
    arrays = {name: xp.ones(shape, np.float32) for name, shape in zip("xz", (rows, rows), strict=True)}
    arrays |= {"dt": xp.ones(rows, np.float32), "B": xp.ones(grouped, np.float32), "C": xp.ones(grouped, np.float32)}
    return {**arrays, "out": poisoned(xp, *rows)}


def good(xp: Any, *lead: int) -> dict[str, Any]:
    """The arguments that all calls have."""
    return {
        **by_token(xp, *lead),
        "state": xp.ones((SLOTS, HEADS, DIM, N), np.float32),
        "A": xp.ones((HEADS, DIM, N), np.float32),
        "D": xp.ones((HEADS, DIM), np.float32),
        "dt_bias": xp.ones((HEADS, DIM), np.float32),
        "dt_softplus": True,
    }


def good_batch(xp: Any) -> dict[str, Any]:
    """Several tokens, read from one slot and written to another."""
    return {
        **good(xp, BATCH, TOKENS),
        "state_batch_indices": xp.asarray([3, 0, 1], np.int32),
        "dst_state_batch_indices": xp.asarray([3, 4, 8], np.int64),
        "intermediate_states_buffer": poisoned(xp, ROWS, TOKENS + 1, HEADS, DIM, N),
        "intermediate_state_indices": xp.asarray([3, 0, 1], np.int32),
    }


def good_accepted(xp: Any) -> dict[str, Any]:
    """A slot for every token, of which some were accepted."""
    return {
        **good(xp, BATCH, TOKENS),
        "state_batch_indices": xp.asarray([[3, 0], [1, 2], [6, 5]], np.int32),
        "num_accepted_tokens": xp.asarray([0, 2, 1], np.int32),
        "intermediate_states_buffer": poisoned(xp, SLOTS, TOKENS, HEADS, DIM, N),
    }


def good_packed(xp: Any) -> dict[str, Any]:
    """Sequences of 2, 0 and 4 tokens; of the last one the fourth is not stored."""
    return {
        **good(xp, 6),
        "cu_seqlens": xp.asarray([0, 2, 2, 6], np.int32),
        "state_batch_indices": xp.asarray([3, 0, 1], np.int32),
        "dst_state_batch_indices": xp.asarray([[4, 5, 6], [7, 7, 7], [8, 0, 2]], np.int32),
    }


def good_heads(xp: Any) -> dict[str, Any]:
    """One token, by head, every sequence in the slot of its number."""
    return good(xp, BATCH)


def good_quantised(xp: Any) -> dict[str, Any]:
    """Several tokens with states of codes."""
    scales = ROWS, TOKENS + 1, HEADS, DIM
    return {
        **good_batch(xp),
        "state": xp.ones((SLOTS, HEADS, DIM, N), np.int8),
        "state_scale": xp.ones((SLOTS, HEADS, DIM), np.float32),
        "intermediate_states_buffer": xp.zeros((*scales, N), np.int8),
        "intermediate_state_scales": poisoned(xp, *scales, 1),
    }


def good_bare(xp: Any) -> dict[str, Any]:
    """Without heads and options."""
    shapes: dict[str, tuple[int, ...]] = {**dict.fromkeys(("x", "dt"), (BATCH, DIM))}
    shapes |= dict.fromkeys("BC", (BATCH, N))
    shapes |= {"state": (BATCH, DIM, N), "A": (DIM, N)}
    return {**{name: xp.ones(shape, np.float32) for name, shape in shapes.items()}, "out": poisoned(xp, BATCH, DIM)}


GOOD: Good = {
    "selective_state_update:batch": good_batch,
    "selective_state_update:accepted": good_accepted,
    "selective_state_update:packed": good_packed,
    "selective_state_update:heads": good_heads,
    "selective_state_update:bare": good_bare,
    "selective_state_update:quantised": good_quantised,
}
WRITTEN: dict[str, dict[str, Any]] = {
    "selective_state_update:batch": {"state": [3, 4, 8], "intermediate_states_buffer": np.s_[[0, 1, 3], :TOKENS]},
    "selective_state_update:accepted": {
        "state": [0, 1, 2, 3, 5, 6], "intermediate_states_buffer": np.s_[[2, 3, 6], :TOKENS]
    },
    "selective_state_update:packed": {"state": [0, 2, 4, 5, 8]},
    "selective_state_update:heads": {"state": [*range(BATCH)]},
    "selective_state_update:bare": {"state": [*range(BATCH)]},
    "selective_state_update:quantised": {
        "state": [3, 4, 8],
        "state_scale": [3, 4, 8],
        "intermediate_states_buffer": np.s_[[0, 1, 3], :TOKENS],
        "intermediate_state_scales": np.s_[[0, 1, 3], :TOKENS],
    },
}  # fmt: skip
"""Where good calls change what is not their result."""
