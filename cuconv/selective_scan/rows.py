"""Rows of tokens in float64: their recurrence, and bounds of the errors that float32 arithmetic may make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cuconv.runtime.activation import HALF_ULP
from cuconv.runtime.launch import ceil_div
from cuconv.runtime.state_space import Array, TokenInputs
from cuconv.selective_scan.kernels import chunk_tokens

BLOCK_ELEMENTS = 2**20
"""Elements of the largest arrays that a scan allocates at a time."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Steps(TokenInputs):
    """Consecutive tokens: x, dt and z are (tokens, batch, dim); B and C broadcast to (tokens, batch, dim, d_state)."""

    begin: int
    """Number of the first of these tokens."""


@dataclass(frozen=True, eq=False)
class Scan:
    """One call with the arguments of the public function, except for the initial state."""

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
        """A sequence of a call on packed sequences, as a batch of one row."""
        tokens = (None if array is None else array[None, ..., begin:end] for array in (self.u, self.delta, self.z))
        u, delta, z = tokens
        assert u is not None and delta is not None
        B, C = (matrix[None, ..., begin:end] for matrix in (self.B, self.C))
        return replace(self, u=u, delta=delta, B=B, C=C, z=z)

    def blocks(self, *borders: int) -> Iterator[Steps]:
        """All tokens in blocks of at most BLOCK_ELEMENTS elements; no block crosses a multiple of one of the
        borders."""
        tokens = max(1, BLOCK_ELEMENTS // max(1, int(np.prod(self.shape))))
        seqlen = self.u.shape[2]
        cuts = {cut for step in (tokens, *borders) for cut in range(0, seqlen, step)} | {seqlen}
        for begin, end in pairwise(sorted(cuts)):
            yield self.steps(begin, end)

    def steps(self, begin: int, end: int) -> Steps:
        """The tokens `begin` to `end` - 1."""
        delta = by_token(self.delta, begin, end)
        return Steps(
            begin=begin,
            x=by_token(self.u, begin, end),
            biased_dt=delta if self.delta_bias is None else delta + self.delta_bias.astype(np.float64),
            A=self.A.astype(np.float64),
            B=self._matrix(self.B, begin, end),
            C=self._matrix(self.C, begin, end),
            D=None if self.D is None else self.D.astype(np.float64),
            z=None if self.z is None else by_token(self.z, begin, end),
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
    """The results of a call in float64, or their errors."""

    out: Array
    last_state: Array
    chunk_states: Array
    """The states before every chunk, (batch, chunks, dim, d_state)."""


def by_token(array: Array, begin: int, end: int) -> Array:
    """The tokens `begin` to `end` - 1 of (batch, dim, seqlen) as (tokens, batch, dim), in float64."""
    tokens: Array = array[..., begin:end].astype(np.float64).transpose(2, 0, 1)
    return tokens


SECOND_ORDER = 1.1
"""A factor that covers products of errors: over 2**18 tokens each decay has a relative error below 2**-21, all of them
together below an eighth, and so have the states that they carry."""


def row_errors(scan: Scan, before: Array, segment_tokens: int, summed_tokens: int) -> Results:
    """The errors of rows that begin with these states.

    Rows may be cut into segments of `segment_tokens`; the state after a segment takes the exponential of the sum of dt
    over `summed_tokens`. States are bounded by their size without any cancellation, which also bounds the state that a
    segment alone leaves and the state from the segments before it.
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
            # The sum of dt rounds with every token, which changes the exponent.
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
