"""The selective scans in NumPy and float64, and the errors that float32 arithmetic may make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cuconv.runtime.launch import ceil_div
from cuconv.runtime.state_space import HALF_ULP, Array, TokenInputs
from cuconv.selective_scan.kernels import MAX_TOKENS, chunk_tokens

BLOCK_ELEMENTS = 2**20
"""Elements of the largest arrays that a scan allocates at a time."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Steps(TokenInputs):
    """Consecutive tokens: x, dt and z are (tokens, batch, dim); B and C broadcast to (tokens, batch, dim, d_state)."""

    begin: int
    """The number of the first one."""


@dataclass(frozen=True, eq=False)
class Scan:
    """One call with the arguments of the public function, but the initial state."""

    u: Array
    delta: Array
    A: Array
    B: Array
    C: Array
    D: Array | None = None
    z: Array | None = None
    delta_bias: Array | None = None
    delta_softplus: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a state: (batch, dim, d_state)."""
        return (*self.u.shape[:2], self.A.shape[1])

    def sequence(self, begin: int, end: int) -> Scan:
        """A sequence of a call on packed ones, as a batch of one row."""
        tokens = (None if array is None else array[None, ..., begin:end] for array in (self.u, self.delta, self.z))
        u, delta, z = tokens
        assert u is not None and delta is not None
        B, C = (matrix[None, ..., begin:end] for matrix in (self.B, self.C))
        return replace(self, u=u, delta=delta, B=B, C=C, z=z)

    def blocks(self, *borders: int) -> Iterator[Steps]:
        """All tokens, as many at a time as BLOCK_ELEMENTS allows, none on both sides of a multiple of the borders."""
        tokens = max(1, BLOCK_ELEMENTS // max(1, int(np.prod(self.shape))))
        seqlen = self.u.shape[2]
        cuts = {cut for step in (tokens, *borders) for cut in range(0, seqlen, step)} | {seqlen}
        for begin, end in pairwise(sorted(cuts)):
            yield self.steps(begin, end)

    def steps(self, begin: int, end: int) -> Steps:
        """The tokens `begin` to `end` - 1."""
        delta = _by_token(self.delta, begin, end)
        return Steps(
            begin=begin,
            x=_by_token(self.u, begin, end),
            biased_dt=delta if self.delta_bias is None else delta + self.delta_bias.astype(np.float64),
            A=self.A.astype(np.float64),
            B=self._matrix(self.B, begin, end),
            C=self._matrix(self.C, begin, end),
            D=None if self.D is None else self.D.astype(np.float64),
            z=None if self.z is None else _by_token(self.z, begin, end),
            dt_softplus=self.delta_softplus,
        )

    def _matrix(self, matrix: Array, begin: int, end: int) -> Array:
        """B or C, (tokens or 1, batch or 1, dim or 1, d_state)."""
        if matrix.ndim == 2:
            return matrix.astype(np.float64)[None, None]
        grouped = matrix if matrix.ndim == 4 else matrix[:, None]
        rows = grouped[..., begin:end].astype(np.float64).transpose(3, 0, 1, 2)
        return rows if rows.shape[2] == 1 else np.repeat(rows, self.u.shape[1] // rows.shape[2], axis=2)


def recurrence(decay: Array, added: Array, before: Array) -> Array:
    """The states after every token, from the state before the first."""
    states = np.empty(np.broadcast_shapes(decay.shape, added.shape))
    state = before
    for t in range(len(states)):
        state = decay[t] * state + added[t]
        states[t] = state
    return states


class Results(NamedTuple):
    """What a call leaves, in float64."""

    out: Array
    last_state: Array
    chunk_states: Array
    """Before every chunk: (batch, chunks, dim, d_state)."""


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

    begin: int
    end: int
    slot: int | None
    """The slot of the pool that the state after it goes to; None without a pool."""
    initial_state: Array | None
    """(1, dim, d_state), float64."""


def live_sequences(
    total: int,
    ssm_states: Array | None,
    query_start_loc: Array | None,
    cache_indices: Array | None,
    has_initial_state: Array | None,
    pad_slot_id: int,
) -> Iterator[LiveSequence]:
    """The sequences that are not empty and, if there is a pool, have a slot of it."""
    starts = [0, total] if query_start_loc is None else [int(start) for start in query_start_loc]
    for i, (begin, end) in enumerate(pairwise(starts)):
        slot, initial = None, None
        if ssm_states is not None:
            slot = i if cache_indices is None else int(cache_indices[i])
            is_padding = cache_indices is not None and slot == pad_slot_id
            if is_padding or not 0 <= slot < len(ssm_states):
                continue
            if has_initial_state is not None and has_initial_state[i]:
                initial = ssm_states[slot][None].astype(np.float64)
        if end > begin:
            yield LiveSequence(begin, end, slot, initial)


def selective_scan_varlen_fn(
    u: Array,
    ssm_states: Array | None,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    z: Array | None = None,
    delta_bias: Array | None = None,
    delta_softplus: bool = False,
    query_start_loc: Array | None = None,
    cache_indices: Array | None = None,
    has_initial_state: Array | None = None,
    pad_slot_id: int = -1,
) -> tuple[Array, dict[int, Array]]:
    """The results of packed sequences, and the new states by slot, both in float64."""
    packed = Scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    out, states = np.zeros(u.shape), {}
    indices = (query_start_loc, cache_indices, has_initial_state)
    for sequence in live_sequences(u.shape[1], ssm_states, *indices, pad_slot_id):
        rows = packed.sequence(sequence.begin, sequence.end)
        result = selective_scan_fn(**vars(rows), initial_state=sequence.initial_state)
        out[:, sequence.begin : sequence.end] = result.out[0]
        if sequence.slot is not None:
            states[sequence.slot] = result.last_state[0]
    return out, states


def _by_token(array: Array, begin: int, end: int) -> Array:
    tokens: Array = array[..., begin:end].astype(np.float64).transpose(2, 0, 1)
    return tokens


SECOND_ORDER = 1.1
"""Products of errors: over 2**18 tokens each decay is off by less than 2**-21 of itself, all of them together by less
than an eighth, and so is what they carry on."""


def _row_errors(scan: Scan, before: Array, segment_tokens: int, summed_tokens: int) -> Results:
    """The errors of rows that begin with these states.

    Rows may be cut into segments of `segment_tokens`, the state behind which takes the exponential of the sum of dt
    over `summed_tokens`. States are bounded by their size without any cancellation: the state that a segment by itself
    leaves, and that which the segments before it leave, are parts of that.
    """
    batch, dim, d_state = scan.shape
    chunk, seqlen = chunk_tokens(), scan.u.shape[2]
    out = np.empty(scan.u.shape)
    chunk_states = np.zeros((batch, ceil_div(seqlen, chunk), dim, d_state))
    size, error = np.abs(before), np.zeros(scan.shape)
    begin_size, dt_sum = size, np.zeros(scan.shape[:2])
    for signed in scan.blocks(segment_tokens, chunk):
        steps, end = signed.magnitudes(), signed.begin + len(signed.x)
        if steps.begin and steps.begin % segment_tokens == 0:
            # The sum of dt rounds with every token, and the exponent feels that.
            exponent = dt_sum[..., None] * scan.A
            error = error + begin_size * np.exp(exponent) * np.abs(exponent) * (summed_tokens * HALF_ULP)
            begin_size, dt_sum = size, np.zeros(scan.shape[:2])
        if steps.begin % chunk == 0:
            chunk_states[:, steps.begin // chunk] = error
        dt_sum = dt_sum + steps.dt.sum(axis=0)
        sizes = recurrence(steps.decay, np.abs(steps.added), size)
        own = steps.state_error(np.concatenate([size[None], sizes[:-1]]), sizes, 0.0)
        errors = recurrence(steps.decay, own, error)
        out[..., steps.begin : end] = steps.out_error(sizes, errors).transpose(1, 2, 0)
        size, error = sizes[-1], errors[-1]
    return Results(SECOND_ORDER * out, SECOND_ORDER * error, SECOND_ORDER * chunk_states)


def _dense_errors(
    u: Array,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    z: Array | None = None,
    delta_bias: Array | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    initial_state: Array | None = None,
    chunk_states_out: Array | None = None,
    segment_tokens: int = 0,
) -> dict[str, Array]:
    """The errors of a call on rows that are cut into segments of `segment_tokens`, into any segments when that is 0."""
    scan = Scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    before = np.zeros(scan.shape) if initial_state is None else initial_state.astype(np.float64)
    summed_tokens = segment_tokens
    if not segment_tokens:
        # Any segments: a border at every chunk, with sums over as many tokens as a segment of two can have.
        segment_tokens, chunks = chunk_tokens(), ceil_div(u.shape[2], chunk_tokens())
        summed_tokens = ceil_div(chunks, 2) * segment_tokens if u.shape[2] >= 2 * segment_tokens else 0
    found = _row_errors(scan, before, segment_tokens, summed_tokens)
    errors = {"out": found.out}
    if return_last_state:
        errors["last_state_out"] = found.last_state
    if chunk_states_out is not None:
        errors["chunk_states_out"] = found.chunk_states
    return errors


def _packed_errors(
    u: Array,
    ssm_states: Array | None,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    z: Array | None = None,
    delta_bias: Array | None = None,
    delta_softplus: bool = False,
    query_start_loc: Array | None = None,
    cache_indices: Array | None = None,
    has_initial_state: Array | None = None,
    pad_slot_id: int = -1,
) -> dict[str, Array]:
    """The errors of a call on packed sequences; those of padding, and of states that stay, are zero."""
    packed = Scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    errors = {"out": np.zeros(u.shape)}
    if ssm_states is not None:
        errors["ssm_states"] = np.zeros(ssm_states.shape)
    indices = (query_start_loc, cache_indices, has_initial_state)
    for sequence in live_sequences(u.shape[1], ssm_states, *indices, pad_slot_id):
        rows = packed.sequence(sequence.begin, sequence.end)
        before = np.zeros(rows.shape) if sequence.initial_state is None else sequence.initial_state
        found = _row_errors(rows, before, MAX_TOKENS, 0)
        errors["out"][:, sequence.begin : sequence.end] = found.out[0]
        if sequence.slot is not None:
            errors["ssm_states"][sequence.slot] = found.last_state[0]
    return errors


ERRORS: Mapping[str, Callable[..., dict[str, Array]]] = {
    "selective_scan_fn": _dense_errors,
    "selective_scan_varlen_fn": _packed_errors,
}
"""By public function: its arguments but outputs give the absolute errors of results in float32, by name."""
