"""Good calls of the convolutions, small and with every array given."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.bad_input import Good, poisoned

DIM, WIDTH, SLOTS = 6, 4, 5
BATCH, SEQLEN = 2, 9
"""The shape of whole sequences."""
TOTAL = 9
"""Tokens of packed sequences."""
SEQUENCES, TOKENS, STATE_LEN, ROWS, STEPS = 3, 2, 4, 6, 3
"""Sizes of a decode step."""
SIZES = (1, 2, 3)
HEADS = {"num_q_heads": 1, "num_k_heads": 1, "num_v_heads": 2, "head_q": 1, "head_k": 1, "head_v": 2}
QKV = ((1, 1), (1, 1), (2, 2))


def filters(xp: Any) -> dict[str, Any]:
    return {"weight": xp.ones((DIM, WIDTH), np.float32), "bias": xp.ones(DIM, np.float32)}


def dense(xp: Any) -> dict[str, Any]:
    return {
        "x": xp.ones((BATCH, DIM, SEQLEN), np.float32),
        **filters(xp),
        "seq_idx": xp.zeros((BATCH, SEQLEN), np.int32),
        "initial_states": xp.ones((BATCH, DIM, WIDTH - 1), np.float32),
        "return_final_states": True,
        "final_states_out": poisoned(xp, BATCH, DIM, WIDTH - 1),
        "activation": "silu",
        "out": poisoned(xp, BATCH, DIM, SEQLEN),
    }


def gradients(xp: Any, states: int) -> dict[str, Any]:
    """Where gradients of filters and of this many sequences' states go."""
    return {
        "dweight": poisoned(xp, DIM, WIDTH),
        "dbias": poisoned(xp, DIM),
        "dinitial_states": poisoned(xp, states, DIM, WIDTH - 1),
    }


def dense_bwd(xp: Any) -> dict[str, Any]:
    forward = dense(xp)
    inputs = {name: forward[name] for name in ("x", "weight", "bias", "seq_idx", "initial_states", "activation")}
    return {
        **inputs,
        "dout": xp.ones((BATCH, DIM, SEQLEN), np.float32),
        "dfinal_states": xp.ones((BATCH, DIM, WIDTH - 1), np.float32),
        "dx": poisoned(xp, BATCH, DIM, SEQLEN),
        **gradients(xp, BATCH),
    }


def packed(xp: Any) -> dict[str, Any]:
    """What all calls on packed sequences have."""
    return {
        "x": xp.ones((DIM, TOTAL), np.float32),
        **filters(xp),
        "conv_states": xp.ones((SLOTS, DIM, WIDTH - 1), np.float32),
        "query_start_loc": xp.asarray([0, 4, 4, 9], np.int32),
        "cache_indices": xp.asarray([3, 0, 1], np.int32),
        "has_initial_state": xp.asarray([True, False, True]),
    }


def packed_bwd(xp: Any) -> dict[str, Any]:
    """Two sequences start from one slot, which is only read."""
    inputs = packed(xp)
    return {
        "initial_states": inputs.pop("conv_states"),
        **inputs,
        "cache_indices": xp.asarray([3, 0, 3], np.int32),
        "dout": xp.ones((DIM, TOTAL), np.float32),
        "dfinal_states": xp.ones((SEQUENCES, DIM, WIDTH - 1), np.float32),
        "dx": poisoned(xp, DIM, TOTAL),
        **gradients(xp, SEQUENCES),
    }


def states(xp: Any) -> dict[str, Any]:
    starts = xp.asarray([0, 4, 4, 9], np.int64)
    return {
        "x": xp.ones((TOTAL, DIM), np.float32),
        "cu_seqlens": starts,
        "state_len": 3,
        "previous_states": xp.ones((3, DIM, 3), np.float32),
        "out": poisoned(xp, 3, DIM, 3),
    }


def step(xp: Any) -> dict[str, Any]:
    """What all decode steps have: every array but num_accepted_tokens, which is for another mode."""
    return {
        "x": xp.ones((SEQUENCES, DIM, TOKENS), np.float32),
        "conv_state": xp.ones((SLOTS, DIM, STATE_LEN), np.float32),
        **filters(xp),
        "activation": "silu",
        "cache_seqlens": xp.asarray([0, 7, -2], np.int32),
        "conv_state_indices": xp.asarray([3, 0, 1], np.int32),
        "intermediate_conv_window": poisoned(xp, ROWS, STEPS, DIM, WIDTH - 1),
        "intermediate_state_indices": xp.asarray([5, 2, 0], np.int64),
    }


PACKED: Good = {
    "causal_conv1d_varlen_fn": lambda xp: {**packed(xp), "out": poisoned(xp, DIM, TOTAL)},
    "causal_conv1d_split": lambda xp: {
        **packed(xp), "sizes": SIZES, "out": tuple(poisoned(xp, size, TOTAL) for size in SIZES)
    },
    "causal_conv1d_qkv_split": lambda xp: {
        **packed(xp), **HEADS, "out": tuple(poisoned(xp, 1, TOTAL, *heads) for heads in QKV)
    },
}  # fmt: skip
DECODE: Good = {
    "causal_conv1d_update": lambda xp: {**step(xp), "out": poisoned(xp, SEQUENCES, DIM, TOKENS)},
    "causal_conv1d_update_split": lambda xp: {
        **step(xp), "sizes": SIZES, "out": tuple(poisoned(xp, SEQUENCES, size, TOKENS) for size in SIZES)
    },
    "causal_conv1d_update_qkv_split": lambda xp: {
        **step(xp), **HEADS, "out": tuple(poisoned(xp, SEQUENCES, TOKENS, *heads) for heads in QKV)
    },
}  # fmt: skip
GOOD: Good = {
    "causal_conv1d_fn": dense, **PACKED, "causal_conv1d_varlen_states": states, **DECODE,
    "causal_conv1d_bwd": dense_bwd, "causal_conv1d_varlen_bwd": packed_bwd,
}  # fmt: skip
WRITTEN: dict[str, dict[str, Any]] = {name: {"intermediate_conv_window": np.s_[[5, 2, 0], :TOKENS]} for name in DECODE}
"""Where good calls change what is not their result."""
