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


def good_codes(xp: Any) -> dict[str, Any]:
    """The same with states of codes."""
    return {
        **good_packed(xp),
        "ssm_states": xp.full((SLOTS, DIM, N), 100, np.int8),
        "state_scale": xp.full((SLOTS, DIM), 0.01, np.float32),
        "rand_seed": xp.asarray([-3], np.int64),
        "philox_rounds": 7,
    }


def good_batch(xp: Any) -> dict[str, Any]:
    """Arguments of selective_scan_varlen_fn with the rows of a batch as sequences."""
    rows = good_rows(xp)
    names = ("u", "delta", "z", "A", "B", "C", "D", "delta_bias", "out", "delta_softplus")
    return {
        **{name: rows[name] for name in names},
        "ssm_states": xp.ones((SLOTS, DIM, N), np.float32),
        "cache_indices": xp.asarray([3, 0], np.int32),
        "has_initial_state": xp.asarray([True, False]),
    }


def good_codes_kept(xp: Any) -> dict[str, Any]:
    """Arguments of selective_scan_varlen_fn with snapshots as codes, and no pool."""
    without = dict.fromkeys(("ssm_states", "state_scale", "cache_indices", "has_initial_state"))
    out = {"snapshot_out": xp.full((6, DIM, N), -1, np.int8), "snapshot_scale": poisoned(xp, 6, DIM)}
    return {**good_codes(xp), **without, **snapshots(xp), **out}


KEEPING, CODED = "selective_scan_varlen_fn:snapshots", "selective_scan_varlen_fn:codes"
CODED_KEPT, BATCH_ROWS = "selective_scan_varlen_fn:kept_codes", "selective_scan_varlen_fn:batch"
GOOD: Good = {
    "selective_scan_fn": good_rows, "selective_scan_varlen_fn": good_packed,
    KEEPING: lambda xp: {**good_packed(xp), **snapshots(xp)},
    CODED: good_codes, CODED_KEPT: good_codes_kept, BATCH_ROWS: good_batch,
    "selective_scan_bwd": good_rows_bwd, "selective_scan_varlen_bwd": good_packed_bwd,
}  # fmt: skip
WRITTEN: dict[str, dict[str, Any]] = {
    "selective_scan_fn": {"chunk_states_out": ...},
    CODED_KEPT: {"snapshot_out": np.s_[[4, 2]], "snapshot_scale": np.s_[[4, 2]]},
}
"""Where good calls change what they do not return."""
