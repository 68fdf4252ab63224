"""Replay in NumPy and float64, and the errors that float32 arithmetic may make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.runtime.activation import HALF_ULP
from cuconv.runtime.state_space import TINY, Array, TokenInputs, exponential_error
from cuconv.selective_state_update.reference import SelectiveStateUpdate, Token

START, LIVE, APPENDED, FOLDED = range(4)
"""Columns of cursors: the row of the oldest live token, the number of live ones, and what a step has done that is not
committed yet: the tokens that it has appended, and the live ones that it has put in the state."""


@dataclass(frozen=True, eq=False)
class Rings:
    """Rings of tokens."""

    x_ring: Array
    B_ring: Array
    dt_ring: Array
    cursors: Array
    window: int

    @property
    def rows(self) -> int:
        """Rows of a ring."""
        return self.x_ring.shape[2]

    def cursor(self, slot: int) -> tuple[int, int]:
        """The row of a slot's oldest live token, and the number of live ones."""
        start, live = (int(number) for number in self.cursors[slot, : LIVE + 1])
        return start if 0 <= start < self.rows else 0, min(max(live, 0), self.window)

    def live_tokens(self, slot: int, count: int, A: Array) -> list[TokenInputs]:
        """The oldest `count` live tokens of a slot; their C is zero."""
        start, _ = self.cursor(slot)
        heads, headdim = self.x_ring.shape[1], self.x_ring.shape[3]
        tokens = []
        for number in range(count):
            row = (start + number) % self.rows
            B = np.repeat(self.B_ring[slot, :, row].astype(np.float64), heads // self.B_ring.shape[1], axis=0)[:, None]
            dt = np.broadcast_to(self.dt_ring[slot, :, row, None].astype(np.float64), (heads, headdim))
            x = self.x_ring[slot, :, row].astype(np.float64)
            tokens.append(TokenInputs(x=x, biased_dt=dt, A=A, B=B, C=B * 0, D=None, z=None, dt_softplus=False))
        return tokens


@dataclass
class Terms:
    """A state as a sum of terms: by each the factor exp(`power`) with which it has decayed, and its roundings."""

    parts: list[Array]
    """Terms of (nheads, headdim, d_state)."""
    errors: list[Array]
    """Their absolute errors before they decayed."""
    powers: list[Array]
    """Sums of |dt * A|, which round, with the errors of dt."""

    @classmethod
    def of(cls, state: Array) -> Terms:
        """The terms of a state in memory."""
        return cls([state], [0.0 * state], [0.0 * state])

    def advance(self, token: TokenInputs, dt_error: Array) -> None:
        """Add a token."""
        exponent = token.dt[..., None] * token.A
        self.parts = [part * token.decay for part in self.parts]
        self.errors = [
            error * token.decay + np.abs(part) * np.abs(token.A) * dt_error[..., None]
            for part, error in zip(self.parts, self.errors, strict=True)
        ]
        self.powers = [power + np.abs(exponent) for power in self.powers]
        self.parts.append(token.added)
        self.errors.append(np.abs(token.B * token.x[..., None]) * dt_error[..., None])
        self.powers.append(0.0 * token.added)

    @property
    def state(self) -> Array:
        """The sum."""
        total: Array = np.sum(self.parts, axis=0)
        return total

    def error(self, roundings: int) -> Array:
        """The error of the sum when every term is rounded this many times besides its exponential."""
        found = [
            error + np.abs(part) * (roundings * HALF_ULP + 10.0 * HALF_ULP * power + 2.0 * exponential_error(power))
            for part, error, power in zip(self.parts, self.errors, self.powers, strict=True)
        ]
        total: Array = 1.01 * np.sum(found, axis=0) + TINY
        return total


@dataclass(frozen=True, eq=False)
class Step:
    """What a step does for one sequence."""

    sequence: int
    slot: int
    cursor: tuple[int, int]
    tokens: list[Token]
    """The new tokens; their states before and after are not filled in."""
    states: list[Terms]
    """The state after each new token."""
    folded: Terms | None
    """The state that is written."""
    is_appended: bool


@dataclass(frozen=True, eq=False)
class Replay:
    """One step."""

    call: SelectiveStateUpdate
    rings: Rings
    force_flush: Array | None = None
    fold: bool = False

    def steps(self) -> Iterator[Step]:
        """What is done for every sequence that has tokens and a slot."""
        call, rings = self.call, self.rings
        most = min(16, rings.rows - rings.window)
        for sequence, slot, places in call.live():
            if not places or len(places) > most:
                continue
            start, live = rings.cursor(slot)
            goes_on = call.has_initial_state is None or bool(call.has_initial_state[sequence])
            count = live if goes_on else 0
            forced = not goes_on or (self.force_flush is not None and bool(self.force_flush[sequence]))
            first = call.first_state(sequence, slot)
            tokens = [call.token(sequence, number, place, slot, None, first) for number, place in enumerate(places)]
            terms = Terms.of(first)
            for old in rings.live_tokens(slot, count, tokens[0].A):
                terms.advance(old, 0.0 * old.dt)
            folds = self.fold or forced or count + len(tokens) > rings.window
            folded = Terms(list(terms.parts), list(terms.errors), list(terms.powers)) if folds else None
            states = []
            for token in tokens:
                terms.advance(token, token.dt_error)
                states.append(Terms(list(terms.parts), list(terms.errors), list(terms.powers)))
            if self.fold:
                folded = states[-1]
            yield Step(sequence, slot, (start, live), tokens, states, folded, not self.fold)

    @property
    def is_computed(self) -> Array:
        """Which tokens of x have a result."""
        found = np.zeros(self.call.x.shape[: 2 - self.call.state.ndim], bool)
        for step in self.steps():
            for token in step.tokens:
                found[token.place] = True
        return found

    def write(self, out: Array, state: Array, rings: Rings) -> None:
        """Write the result in float64, and what the step changes of the other arrays, which may be the call's own."""
        for step in list(self.steps()):
            for token, terms in zip(step.tokens, step.states, strict=True):
                out[token.place] = token.out(terms.state)
            start, live = step.cursor
            if step.is_appended:
                for number, token in enumerate(step.tokens):
                    row = (start + live + number) % rings.rows
                    rings.x_ring[step.slot, :, row] = self.call.x[token.place]
                    rings.B_ring[step.slot, :, row] = self.call.B[token.place]
                    rings.dt_ring[step.slot, :, row] = token.dt[:, 0] if token.dt.shape[1] else 0.0
            if step.folded is not None:
                state[step.slot] = self.call.rounded(step.tokens[0], step.folded.state)
            rings.cursors[step.slot, APPENDED:] = len(step.tokens) * step.is_appended, live * (step.folded is not None)


def folded(
    state: Array, A: Array, rings: Rings, source: int, count: int | None
) -> Array:
    """The state of a slot in float64 after its oldest `count` live tokens, all of them when None."""
    _, live = rings.cursor(source)
    terms = Terms.of(state[source].astype(np.float64))
    for token in rings.live_tokens(source, live if count is None else min(count, live), A.astype(np.float64)):
        terms.advance(token, 0.0 * token.dt)
    return terms.state


def commit(
    cursors: Array, slots: Array, accepted: Array | None, ring_rows: int, window: int, is_reset: bool
) -> None:
    """Move the cursors of these slots, or make their rings empty."""
    for number, slot in enumerate(slots):
        start, live, appended, done = map(int, cursors[slot])
        kept = appended if accepted is None else min(max(int(accepted[number]), 0), appended)
        moved = (0, 0) if is_reset else ((start + done) % ring_rows, min(live - done + kept, window))
        cursors[slot] = (*moved, 0, 0)
