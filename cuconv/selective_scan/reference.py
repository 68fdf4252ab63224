"""The selective scans in NumPy and float64, and the errors that float32 arithmetic may make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from cuconv.runtime import rounding, slots
from cuconv.runtime.activation import HALF_ULP
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


class StoredState(NamedTuple):
    """A state that a call on packed sequences stores."""

    array: str
    """The argument that the state is stored in."""
    slot: int
    sequence: int
    tokens: int
    """Tokens of the sequence before the state."""


class LiveSequence(NamedTuple):
    """A packed sequence that is computed."""

    rows: Scan
    """The sequence's tokens, as a batch of one row."""
    initial_state: Array
    """(1, dim, d_state), float64."""
    tokens: slice
    """The sequence's range of the packed tokens."""
    stored: tuple[StoredState, ...]

    @property
    def length(self) -> int:
        """Number of tokens."""
        return int(self.rows.u.shape[2])

    def first(self, tokens: int) -> Scan:
        """The first `tokens` tokens."""
        rows = self.rows
        cut = {name: getattr(rows, name)[..., :tokens] for name in ("u", "delta", "B", "C")}
        return replace(rows, **cut, z=None if rows.z is None else rows.z[..., :tokens])

    def state_after(self, tokens: int) -> Array:
        """The state (dim, d_state) after the first `tokens` tokens."""
        state = self.initial_state
        if tokens:
            state = selective_scan_fn(**vars(self.first(tokens)), initial_state=state).last_state
        only: Array = state[0]
        return only


SCALES = {"ssm_states": "state_scale", "snapshot_out": "snapshot_scale"}
"""The arguments that have the scales of states."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedScan:
    """One call of selective_scan_varlen_fn with the arguments of the public function."""

    u: Array
    ssm_states: Array | None
    delta: Array
    A: Array
    B: Array
    C: Array
    D: Array | None = None
    z: Array | None = None
    delta_bias: Array | None = None
    delta_softplus: bool = False
    query_start_loc: Array | None = None
    cache_indices: Array | None = None
    has_initial_state: Array | None = None
    pad_slot_id: int = -1
    state_column: Array | None = None
    dst_state_indices: Array | None = None
    null_slot: int | None = None
    pad_output: str = "zero"
    snapshots: Array | None = None
    snapshot_count: Array | None = None
    snapshot_out: Array | None = None
    state_scale: Array | None = None
    snapshot_scale: Array | None = None
    rand_seed: int | Array | None = None
    philox_rounds: int = 10

    @cached_property
    def packed(self) -> Scan:
        """The tokens of all sequences; the rows of a batch are packed, too."""

        def pack(array: Array | None) -> Any:
            if array is None or self.u.ndim == 2:
                return array
            return np.moveaxis(array, 0, -2).reshape(*array.shape[1:-1], -1)

        by_token = {name: pack(getattr(self, name)) for name in ("u", "delta", "B", "C", "z")}
        named = ("A", "D", "delta_bias", "delta_softplus")
        return Scan(**by_token, **{name: getattr(self, name) for name in named})

    def unpacked(self, by_token: Array) -> Array:
        """An array (…, total) with the axes of the call's tokens: (…, total), or (batch, …, seqlen)."""
        if self.u.ndim == 2:
            return by_token
        batch, _, seqlen = self.u.shape
        return np.moveaxis(by_token.reshape(*by_token.shape[:-1], batch, seqlen), -2, 0)

    @property
    def borders(self) -> list[int]:
        """Where sequences begin, and the token behind the last one."""
        if self.u.ndim == 3:
            batch, _, seqlen = self.u.shape
            return [row * seqlen for row in range(batch + 1)]
        if self.query_start_loc is None:
            return [0, self.u.shape[1]]
        return [int(start) for start in self.query_start_loc]

    def live(self) -> Iterator[LiveSequence]:
        """The sequences that are not empty and, if there is a pool, have a slot of it."""
        padding, borders, pool = slots.padding(self.pad_slot_id, self.null_slot), self.borders, self.ssm_states
        starts = slots.start_slots(self.cache_indices, self.state_column, len(borders) - 1)
        finals = slots.final_slots(starts, self.dst_state_indices)
        # Numbers of sequences are not compared with pad_slot_id.
        start_padding = -1 if self.cache_indices is None else padding
        final_padding = start_padding if self.dst_state_indices is None else padding
        kept_in = "ssm_states" if self.snapshot_out is None else "snapshot_out"
        count, kept_padding = len(_or_empty(getattr(self, kept_in))), padding if kept_in == "ssm_states" else -1
        rows = slots.live_snapshots(self.snapshots, self.snapshot_count, count, kept_padding)
        for i, (begin, end) in enumerate(pairwise(borders)):
            stored, initial = [], np.zeros((1, *self.A.shape))
            if pool is not None:
                if not slots.are_live(starts[i], len(pool), start_padding):
                    continue
                if slots.are_live(finals[i], len(pool), final_padding):
                    stored.append(StoredState("ssm_states", int(finals[i]), i, end - begin))
                if self.has_initial_state is not None and self.has_initial_state[i]:
                    scales = None if self.state_scale is None else self.state_scale[starts[i]].reshape(-1)
                    initial = rounding.Stored(pool[starts[i]], scales).values[None]
            if end > begin:
                inside = [(t, at) for number, t, at in rows.tolist() if number == i and 0 <= t <= end - begin]
                stored += [StoredState(kept_in, at, i, t) for t, at in inside]
                yield LiveSequence(self.packed.sequence(begin, end), initial, slice(begin, end), tuple(stored))

    def random(self, state: StoredState) -> Array | None:
        """The random bits for a state; None when it is rounded to nearest."""
        if self.rand_seed is None:
            return None
        seed = int(np.asarray(self.rand_seed).reshape(()))
        token = (state.tokens - 1) & 0xFFFFFFFF
        numbers = rounding.random_numbers(self.A.size, state.sequence, token, seed, self.philox_rounds or 10)
        return numbers.reshape(self.A.shape)

    def results(self) -> tuple[Array, list[tuple[StoredState, Array]]]:
        """The results, and the states (dim, d_state) that are stored, all in float64."""
        out = np.zeros(self.packed.u.shape)
        states = []
        for each in self.live():
            result = selective_scan_fn(**vars(each.rows), initial_state=each.initial_state)
            out[:, each.tokens] = result.out[0]
            for state in each.stored:
                is_last = state.tokens == each.length
                states.append((state, result.last_state[0] if is_last else each.state_after(state.tokens)))
        return self.unpacked(out), states

    def is_computed(self) -> Array:
        """Which tokens are no padding, as an array that broadcasts to the results."""
        found = np.zeros((1, self.packed.u.shape[1]), bool)
        for each in self.live():
            found[:, each.tokens] = True
        return self.unpacked(found)

    def write(self, out: Array) -> None:
        """Write the results to `out` and states to the call's own arrays; all is read before."""
        result, states = self.results()
        where = self.is_computed() if self.pad_output == "keep" else True
        np.copyto(out, result.astype(out.dtype), where=where)
        for state, values in states:
            pool = getattr(self, state.array)
            stored = rounding.stored(values, pool.dtype, self.random(state))
            pool[state.slot] = stored.states
            if stored.scales is not None:
                scales = getattr(self, SCALES[state.array])
                scales[state.slot] = stored.scales.reshape(scales.shape[1:])

    def state_errors(self) -> Iterator[tuple[LiveSequence, Array, list[tuple[StoredState, Array]]]]:
        """For every sequence the errors of its results, and the stored states with their errors, before rounding."""
        for each in self.live():
            found = row_errors(each.rows, each.initial_state, MAX_TOKENS, 0)
            states = []
            for state in each.stored:
                # The product of codes that are read with their scale is rounded.
                error = HALF_ULP * np.abs(each.initial_state[0]) * (self.state_scale is not None)
                if state.tokens == each.length:
                    error = found.last_state[0]
                elif state.tokens:
                    error = row_errors(each.first(state.tokens), each.initial_state, MAX_TOKENS, 0).last_state[0]
                states.append((state, error))
            yield each, found.out[0], states

    def errors(self) -> dict[str, Array]:
        """The errors of a call; errors of padding, and of states that are not written, are zero.

        For codes and scales they are the errors of the stored numbers.
        """
        out = np.zeros(self.packed.u.shape)
        names = [*SCALES, *SCALES.values()]
        errors = {name: np.zeros(array.shape) for name in names if (array := getattr(self, name)) is not None}
        for each, of_out, states in self.state_errors():
            out[:, each.tokens] = of_out
            for state, error in states:
                errors[state.array][state.slot] = error
                if (scales := errors.get(SCALES[state.array])) is not None:
                    values, dtype = each.state_after(state.tokens), getattr(self, state.array).dtype
                    found = rounding.stored_errors(values, error, dtype, self.random(state))
                    assert found.scales is not None
                    errors[state.array][state.slot] = found.states
                    scales[state.slot] = found.scales.reshape(scales.shape[1:])
        return {"out": self.unpacked(out), **errors}


def _or_empty(array: Array | None) -> Array:
    return np.zeros(0) if array is None else array


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


ERRORS: Mapping[str, Callable[..., dict[str, Array]]] = {
    "selective_scan_fn": _dense_errors,
    "selective_scan_varlen_fn": lambda **arguments: PackedScan(**arguments).errors(),
    **reference_backward.ERRORS,
}
"""The error bounds of public functions: called with the arguments but outputs, they return by result name the absolute
error per element that float32 arithmetic may make; rounding to the result's dtype is not included.
"""
