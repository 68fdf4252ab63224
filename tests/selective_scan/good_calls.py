"""Good calls of both selective scans, small and with every array given."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.causal_conv1d.bad_input_slots import snapshots
from tests.support.bad_input import Good, poisoned

BATCH, DIM, SEQLEN, N = 2, 6, 9, 5
SLOTS = 5


def good_rows(xp: Any) -> dict[str, Any]:
    """Arguments of selective_scan_fn."""
    tokens, matrix, state = (BATCH, DIM, SEQLEN), (BATCH, 2, N, SEQLEN), (BATCH, DIM, N)
    return {
        **{name: xp.ones(tokens, np.float32) for name in ("u", "delta", "z")},
        "A": -xp.ones((DIM, N), np.float32),
        **{name: xp.ones(matrix, np.float32) for name in ("B", "C")},
        **{name: xp.ones(DIM, np.float32) for name in ("D", "delta_bias")},
        "initial_state": xp.ones(state, np.float32),
        "out": poisoned(xp, *tokens),
        "last_state_out": poisoned(xp, *state),
        "chunk_states_out": poisoned(xp, BATCH, 1, DIM, N),
        "return_last_state": True,
        "delta_softplus": True,
    }


def good_packed(xp: Any) -> dict[str, Any]:
    """Arguments of selective_scan_varlen_fn."""
    tokens, matrix = (DIM, SEQLEN), (2, N, SEQLEN)
    return {
        **{name: xp.ones(tokens, np.float32) for name in ("u", "delta", "z")},
        "ssm_states": xp.ones((SLOTS, DIM, N), np.float32),
        "A": -xp.ones((DIM, N), np.float32),
        **{name: xp.ones(matrix, np.float32) for name in ("B", "C")},
        **{name: xp.ones(DIM, np.float32) for name in ("D", "delta_bias")},
        "query_start_loc": xp.asarray([0, 4, 4, 9], np.int32),
        "cache_indices": xp.asarray([3, 0, 1], np.int32),
        "has_initial_state": xp.asarray([True, False, True]),
        "out": poisoned(xp, *tokens),
    }


def backward(xp: Any, forward: dict[str, Any], sequences: int) -> dict[str, Any]:
    """Arguments of the gradient of a forward call, with states of this many sequences."""
    state = (sequences, DIM, N)
    inputs = {name: forward[name] for name in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")}
    gradients = {f"d{name}": poisoned(xp, *array.shape) for name, array in inputs.items()}
    return {
        **inputs,
        "delta_softplus": True,
        "dout": xp.ones(forward["u"].shape, np.float32),
        **{name: xp.ones(state, np.float32) for name in ("initial_state", "dlast_state")},
        "dinitial_state": poisoned(xp, *state),
        **gradients,
    }


def good_rows_bwd(xp: Any) -> dict[str, Any]:
    return {**backward(xp, good_rows(xp), BATCH), "chunk_states": xp.ones((BATCH, 1, DIM, N), np.float32)}


def good_packed_bwd(xp: Any) -> dict[str, Any]:
    forward = good_packed(xp)
    return {**backward(xp, forward, 3), "query_start_loc": forward["query_start_loc"]}


KEEPING = "selective_scan_varlen_fn:snapshots"
GOOD: Good = {
    "selective_scan_fn": good_rows, "selective_scan_varlen_fn": good_packed,
    KEEPING: lambda xp: {**good_packed(xp), **snapshots(xp)},
    "selective_scan_bwd": good_rows_bwd, "selective_scan_varlen_bwd": good_packed_bwd,
}  # fmt: skip
WRITTEN: dict[str, dict[str, Any]] = {"selective_scan_fn": {"chunk_states_out": ...}}
"""Where good calls change what they do not return."""
