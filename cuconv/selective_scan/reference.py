"""The selective scans in NumPy and float64, and the errors that float32 arithmetic may make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from cuconv.runtime import slots
from cuconv.runtime.launch import ceil_div
from cuconv.runtime.state_space import Array
from cuconv.selective_scan import reference_backward
from cuconv.selective_scan.kernels import MAX_TOKENS, chunk_tokens
from cuconv.selective_scan.rows import Results, Scan, recurrence, row_errors


def selective_scan_fn(
    u: Array,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    z: Array | None = None,
    delta_bias: Array | None = None,
    delta_softplus: bool = False,
    initial_state: Array | None = None,
) -> Results:
    """The results of whole rows, and their states before every chunk and at the end."""
    chunk = chunk_tokens()
    scan = Scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    batch, dim, d_state = scan.shape
    state = np.zeros(scan.shape) if initial_state is None else initial_state.astype(np.float64)
    out = np.empty(u.shape)
    chunk_states = np.empty((batch, ceil_div(u.shape[2], chunk), dim, d_state))
    for steps in scan.blocks(chunk):
        if steps.begin % chunk == 0:
            chunk_states[:, steps.begin // chunk] = state
        states = recurrence(steps.decay, steps.added, state)
        out[..., steps.begin : steps.begin + len(states)] = steps.out(states).transpose(1, 2, 0)
        state = states[-1]
    return Results(out, state, chunk_states)


class LiveSequence(NamedTuple):
    """A packed sequence that is computed."""

    rows: Scan
    """Its tokens, as a batch of one row."""
    initial_state: Array
    """(1, dim, d_state), float64."""
    tokens: slice
    """Where its tokens are in the call's arrays."""
    slot: int | None
    """The slot of the pool that the state after it goes to; None without one."""
    snapshots: tuple[tuple[int, int], ...] = ()
    """(position, slot) of the states inside it that are kept."""


def live_sequences(
    ssm_states: Array | None,
    query_start_loc: Array | None = None,
    cache_indices: Array | None = None,
    has_initial_state: Array | None = None,
    state_column: Array | None = None,
    dst_state_indices: Array | None = None,
    pad_slot_id: int = -1,
    null_slot: int | None = None,
    snapshots: Array | None = None,
    snapshot_count: Array | None = None,
    snapshot_out: Array | None = None,
    **arguments: Any,
) -> Iterator[LiveSequence]:
    """The sequences that are not empty and, if there is a pool, have a slot of it; `arguments` are those of a Scan."""
    packed, padding = Scan(**arguments), slots.padding(pad_slot_id, null_slot)
    bounds = [0, packed.u.shape[1]] if query_start_loc is None else [int(start) for start in query_start_loc]
    starts = slots.start_slots(cache_indices, state_column, len(bounds) - 1)
    finals = slots.final_slots(starts, dst_state_indices)
    # Numbers of sequences are not compared with pad_slot_id.
    start_padding = -1 if cache_indices is None else padding
    final_padding = start_padding if dst_state_indices is None else padding
    kept_in, kept_padding = (ssm_states, padding) if snapshot_out is None else (snapshot_out, -1)
    rows = slots.live_snapshots(snapshots, snapshot_count, 0 if kept_in is None else len(kept_in), kept_padding)
    for i, (begin, end) in enumerate(pairwise(bounds)):
        slot, initial = None, np.zeros((1, *packed.A.shape))
        if ssm_states is not None:
            if not slots.are_live(starts[i], len(ssm_states), start_padding):
                continue
            if slots.are_live(finals[i], len(ssm_states), final_padding):
                slot = int(finals[i])
            if has_initial_state is not None and has_initial_state[i]:
                initial = ssm_states[starts[i]][None].astype(np.float64)
        if end > begin:
            kept = tuple((t, at) for number, t, at in rows.tolist() if number == i and 0 <= t <= end - begin)
            yield LiveSequence(packed.sequence(begin, end), initial, slice(begin, end), slot, kept)


def state_after(tokens: int, each: LiveSequence) -> Array:
    """The state (dim, d_state) after the first tokens of a sequence."""
    state = each.initial_state
    if tokens:
        state = selective_scan_fn(**vars(first_tokens(each, tokens)), initial_state=state).last_state
    only: Array = state[0]
    return only


def first_tokens(each: LiveSequence, tokens: int) -> Scan:
    """The rows of a sequence up to a token."""
    rows = each.rows
    cut = {name: getattr(rows, name)[..., :tokens] for name in ("u", "delta", "B", "C")}
    return replace(rows, **cut, z=None if rows.z is None else rows.z[..., :tokens])


def selective_scan_varlen_fn(
    *, u: Array, ssm_states: Array | None, pad_output: str = "zero", **arguments: Any
) -> tuple[Array, dict[int, Array], dict[int, Array]]:
    """The results of packed sequences for the public function's arguments, then new states and snapshots by slot.

    All are in float64.

    Where `pad_output` is "keep", results are NaN at padding.
    """
    out = np.full(u.shape, np.nan if pad_output == "keep" else 0.0)
    states: dict[int, Array] = {}
    kept: dict[int, Array] = {}
    for each in live_sequences(ssm_states, u=u, **arguments):
        result = selective_scan_fn(**vars(each.rows), initial_state=each.initial_state)
        out[:, each.tokens] = result.out[0]
        if each.slot is not None:
            states[each.slot] = result.last_state[0]
        kept |= {slot: state_after(tokens, each) for tokens, slot in each.snapshots}
    return out, states, kept


def _dense_errors(
    *,
    return_last_state: bool = False,
    initial_state: Array | None = None,
    chunk_states_out: Array | None = None,
    segment_tokens: int = 0,
    **arguments: Any,
) -> dict[str, Array]:
    """The errors of a call on rows that are cut into segments of `segment_tokens`, into any segments when that is 0."""
    scan = Scan(**arguments)
    before = np.zeros(scan.shape) if initial_state is None else initial_state.astype(np.float64)
    summed_tokens = segment_tokens
    if not segment_tokens:
        # Any segments: a border at every chunk, with sums over as many tokens as a segment of two can have.
        seqlen, segment_tokens = scan.u.shape[2], chunk_tokens()
        chunks = ceil_div(seqlen, segment_tokens)
        summed_tokens = ceil_div(chunks, 2) * segment_tokens if seqlen >= 2 * segment_tokens else 0
    found = row_errors(scan, before, segment_tokens, summed_tokens)
    errors = {"out": found.out}
    if return_last_state:
        errors["last_state_out"] = found.last_state
    if chunk_states_out is not None:
        errors["chunk_states_out"] = found.chunk_states
    return errors


def _packed_errors(
    *, u: Array, ssm_states: Array | None, pad_output: str = "zero", **arguments: Any
) -> dict[str, Array]:
    """The errors of a call on packed sequences; those of padding, and of states that stay, are zero."""
    errors = {"out": np.zeros(u.shape)}
    if ssm_states is not None:
        errors["ssm_states"] = np.zeros(ssm_states.shape)
    if arguments.get("snapshot_out") is not None:
        errors["snapshot_out"] = np.zeros(arguments["snapshot_out"].shape)
    for each in live_sequences(ssm_states, u=u, **arguments):
        found = row_errors(each.rows, each.initial_state, MAX_TOKENS, 0)
        errors["out"][:, each.tokens] = found.out[0]
        if each.slot is not None:
            errors["ssm_states"][each.slot] = found.last_state[0]
        for tokens, slot in each.snapshots:
            kept = np.zeros(each.initial_state.shape)
            if tokens:
                kept = row_errors(first_tokens(each, tokens), each.initial_state, MAX_TOKENS, 0).last_state
            errors["ssm_states" if arguments.get("snapshot_out") is None else "snapshot_out"][slot] = kept[0]
    return errors


ERRORS: Mapping[str, Callable[..., dict[str, Array]]] = {
    "selective_scan_fn": _dense_errors,
    "selective_scan_varlen_fn": _packed_errors,
    **reference_backward.ERRORS,
}
"""The error bounds of public functions: called with the arguments but outputs, they return by result name the absolute
error per element that float32 arithmetic may make; rounding to the result's dtype is not included.
"""
