"""The selective scan of Mamba, over whole rows and over packed sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from cuconv.runtime.activation import silu, softplus

Array = np.ndarray[Any, Any]

BLOCK_ELEMENTS = 2**20
"""Of the largest arrays that a scan has at a time."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Consecutive tokens, in float64: arrays of (tokens, batch, dim), those that every state has of (…, d_state)."""

    begin: int
    u: Array
    biased_dt: Array
    dt: Array
    decay: Array
    B: Array
    C: Array
    z: Array | None

    @property
    def added(self) -> Array:
        """What is added to the states."""
        products: Array = (self.dt * self.u)[..., None] * self.B
        return products


@dataclass(frozen=True, eq=False)
class Scan:
    """One call with its arguments as a user gives them."""

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
        """Of a state: (batch, dim, d_state)."""
        return (*self.u.shape[:2], self.A.shape[1])

    def blocks(self, *borders: int) -> Iterator[Steps]:
        """All tokens, so many at a time as fit, and none on both sides of a multiple of the borders."""
        tokens = max(1, BLOCK_ELEMENTS // max(1, int(np.prod(self.shape))))
        seqlen = self.u.shape[2]
        cuts = {cut for step in (tokens, *borders) for cut in range(0, seqlen, step)} | {seqlen}
        for begin, end in pairwise(sorted(cuts)):
            yield self.steps(begin, end)

    def steps(self, begin: int, end: int) -> Steps:
        """Some tokens."""
        u, delta = _by_token(self.u, begin, end), _by_token(self.delta, begin, end)
        biased = delta if self.delta_bias is None else delta + self.delta_bias.astype(np.float64)
        dt = softplus(biased) if self.delta_softplus else biased
        B, C = (self._matrix(matrix, begin, end) for matrix in (self.B, self.C))
        z = None if self.z is None else _by_token(self.z, begin, end)
        return Steps(begin, u, biased, dt, np.exp(dt[..., None] * self.A.astype(np.float64)), B, C, z)

    def _matrix(self, matrix: Array, begin: int, end: int) -> Array:
        """B or C, (tokens or 1, batch or 1, dim or 1, d_state)."""
        if matrix.ndim == 2:
            return matrix.astype(np.float64)[None, None]
        grouped = matrix if matrix.ndim == 4 else matrix[:, None]
        rows = grouped[..., begin:end].astype(np.float64).transpose(3, 0, 1, 2)
        return rows if rows.shape[2] == 1 else np.repeat(rows, self.u.shape[1] // rows.shape[2], axis=2)

    def results(self, steps: Steps, states: Array) -> Array:
        """The outputs of some tokens from the states after them, (tokens, batch, dim)."""
        y: Array = (states * steps.C).sum(axis=-1)
        if self.D is not None:
            y = y + self.D.astype(np.float64) * steps.u
        return y if steps.z is None else y * silu(steps.z)


def recurrence(decay: Array, added: Array, before: Array) -> Array:
    """The states after every token, out of the state before the first."""
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
    chunk: int = 256,
) -> Results:
    """The results of rows, and the states before chunks of so many tokens."""
    scan = Scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    batch, dim, d_state = scan.shape
    state = np.zeros(scan.shape) if initial_state is None else initial_state.astype(np.float64)
    out = np.empty(u.shape)
    chunk_states = np.empty((batch, -(-u.shape[2] // chunk), dim, d_state))
    for steps in scan.blocks(chunk):
        if steps.begin % chunk == 0:
            chunk_states[:, steps.begin // chunk] = state
        states = recurrence(steps.decay, steps.added, state)
        out[..., steps.begin : steps.begin + len(states)] = scan.results(steps, states).transpose(1, 2, 0)
        state = states[-1]
    return Results(out, state, chunk_states)


class LiveSequence(NamedTuple):
    """A packed sequence that is computed."""

    begin: int
    end: int
    slot: int | None
    """Of the pool, where the state after it is stored."""
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
    """Those that are not empty and whose slot, if there is a pool, is one of it."""
    starts = [0, total] if query_start_loc is None else [int(start) for start in query_start_loc]
    for i, (begin, end) in enumerate(pairwise(starts)):
        slot, initial = None, None
        if ssm_states is not None:
            slot = i if cache_indices is None else int(cache_indices[i])
            if slot == pad_slot_id or not 0 <= slot < len(ssm_states):
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
    out, states = np.zeros(u.shape), {}
    indices = (query_start_loc, cache_indices, has_initial_state)
    for sequence in live_sequences(u.shape[1], ssm_states, *indices, pad_slot_id):
        tokens = slice(sequence.begin, sequence.end)
        cut = [None if array is None else array[None, ..., tokens] for array in (u, delta, B, C, z)]
        rows = Scan(cut[0], cut[1], A, cut[2], cut[3], D, cut[4], delta_bias, delta_softplus)  # type: ignore[arg-type]
        result = selective_scan_fn(**vars(rows), initial_state=sequence.initial_state)
        out[:, tokens] = result.out[0]
        if sequence.slot is not None:
            states[sequence.slot] = result.last_state[0]
    return out, states


def _by_token(array: Array, begin: int, end: int) -> Array:
    tokens: Array = array[..., begin:end].astype(np.float64).transpose(2, 0, 1)
    return tokens
