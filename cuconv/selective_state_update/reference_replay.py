"""Replay in NumPy and float64, and the errors that float32 arithmetic may make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuconv.runtime.activation import HALF_ULP
from cuconv.runtime.state_space import TINY, Array, TokenInputs, exponential_error

MOST_TOKENS = 16
"""Most new tokens of a sequence in a step."""

START, LIVE, APPENDED, FOLDED = range(4)
"""Columns of cursors: the row of the oldest live token and the number of live ones; then, for a step that is not
committed, the numbers of tokens that it has appended and of live tokens that it has folded into the state."""


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
        return int(self.x_ring.shape[2])

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
    """A state as a sum of decayed terms, with what bounds the error of each."""

    parts: list[Array]
    """Terms of (nheads, headdim, d_state)."""
    errors: list[Array]
    """Absolute errors of the terms that come from errors of dt."""
    powers: list[Array]
    """Sums of |dt * A| over later tokens: the exponentials of a term, which round."""

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

    def copy(self) -> Terms:
        """A copy of the terms, which does not change when a token is added to these."""
        return Terms(list(self.parts), list(self.errors), list(self.powers))

    @property
    def state(self) -> Array:
        """The sum of the terms."""
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


def roundings(terms: Terms) -> int:
    """How often a term is rounded: in sums over tokens, and in products of up to four factors."""
    return len(terms.parts) + 12


@dataclass(frozen=True, eq=False)
class Step:
    """What a step does for one sequence."""

    slot: int
    start: int
    """The row of the oldest live token."""
    live: int
    tokens: Sequence[Any]
    """The new tokens, as SelectiveStateUpdate has them."""
    states: Sequence[Terms]
    """The state after each new token."""
    stored: Terms | None
    """The state that is written."""

    @property
    def marker(self) -> Any:
        """A token that leaves the written state as it is, with which SelectiveStateUpdate can round it."""
        assert self.stored is not None
        first = self.tokens[0]
        return replace(first, before=self.stored.state, x=0.0 * first.x, biased_dt=0.0 * first.dt, dt_softplus=False)


@dataclass(frozen=True, eq=False)
class Replay:
    """One step. `call` is a SelectiveStateUpdate with the same arguments, which reads and rounds states."""

    call: Any
    rings: Rings
    force_flush: Array | None = None
    fold: bool = False

    def steps(self) -> Iterator[Step]:
        """The step of every sequence that has tokens and a slot."""
        call, rings = self.call, self.rings
        for sequence, slot, places in call.live():
            is_step = 0 < len(places) <= min(MOST_TOKENS, rings.window, rings.rows - rings.window)
            if not is_step or not call.x.size:
                continue
            start, live = rings.cursor(slot)
            goes_on = call.has_initial_state is None or bool(call.has_initial_state[sequence])
            count = live if goes_on else 0
            first = call.first_state(sequence, slot)
            tokens = [call.token(sequence, number, place, slot, None, first) for number, place in enumerate(places)]
            terms = Terms.of(first)
            for old in rings.live_tokens(slot, count, tokens[0].A):
                terms.advance(old, 0.0 * old.dt)
            is_forced = self.force_flush is not None and bool(self.force_flush[sequence])
            folds = not goes_on or is_forced or count + len(tokens) > rings.window
            states = [terms.copy()]
            for token in tokens:
                terms.advance(token, token.dt_error)
                states.append(terms.copy())
            stored = states[-1] if self.fold else states[0] if folds else None
            yield Step(slot, start, live, tokens, states[1:], stored)

    @property
    def is_computed(self) -> Array:
        """Which tokens of x have a result."""
        found = np.zeros(self.call.x.shape[: 2 - self.call.state.ndim], bool)
        for step in self.steps():
            for token in step.tokens:
                found[token.place] = True
        return found

    def write(self, out: Array, state: Array, scales: Array | None, rings: Rings) -> None:
        """Write the result in float64, and what the step changes of the other arrays, which may be the call's own."""
        for step in list(self.steps()):
            for token, terms in zip(step.tokens, step.states, strict=True):
                out[token.place] = token.out(terms.state)
            if not self.fold:
                for number, token in enumerate(step.tokens):
                    row = (step.start + step.live + number) % rings.rows
                    rings.x_ring[step.slot, :, row] = self.call.x[token.place]
                    rings.B_ring[step.slot, :, row] = self.call.B[token.place]
                    if token.dt.size:
                        rings.dt_ring[step.slot, :, row] = token.dt[:, 0]
            if step.stored is not None:
                stored = self.call.stored(step.marker, step.stored.state)
                state[step.slot] = stored.states
                if scales is not None:
                    scales[step.slot] = stored.scales.reshape(scales.shape[1:])
            folded = step.live if step.stored is not None else 0
            rings.cursors[step.slot, APPENDED:] = 0 if self.fold else len(step.tokens), folded

    def stored_bounds(self, step: Step) -> Any:
        """The least and the greatest state that a step may store."""
        assert step.stored is not None
        return self.call.bounds(step.marker, step.stored.error(roundings(step.stored)))

    def errors(self) -> dict[str, Array]:
        """The errors of out, dt_ring and what is stored, before rounding to the dtypes of arrays without scales."""
        call = self.call
        found = {"out": np.zeros(call.x.shape), "dt_ring": np.zeros(self.rings.dt_ring.shape)}
        found |= {"state": np.zeros(call.state.shape)}
        if call.state_scale is not None:
            found["state_scale"] = np.zeros(call.state_scale.shape)
        for step in self.steps():
            for number, (token, terms) in enumerate(zip(step.tokens, step.states, strict=True)):
                error = terms.error(roundings(terms))
                found["out"][token.place] = token.out_error(terms.state, error)
                if token.dt.size and not self.fold:
                    row = (step.start + step.live + number) % self.rings.rows
                    found["dt_ring"][step.slot, :, row] = token.dt_error[:, 0]
            if step.stored is None:
                continue
            error = step.stored.error(roundings(step.stored))
            found["state"][step.slot], scales = call.stored_errors(step.marker, error)
            if scales is not None:
                found["state_scale"][step.slot] = scales.reshape(found["state_scale"].shape[1:])
        return found


@dataclass(frozen=True, eq=False)
class Materialise:
    """States after some live tokens. `call` is a SelectiveStateUpdate of tokens that leave states as they are, which
    reads and rounds them."""

    call: Any
    rings: Rings
    count: Array | None

    def states(self) -> Iterator[tuple[Any, Terms]]:
        """The states that are written, each with the token that it follows."""
        for sequence, source, (place,) in self.call.live():
            target = self.call.target(sequence, 0, source, True)
            _, count = self.rings.cursor(source)
            if self.count is not None:
                count = min(count, int(self.count[sequence]))
            if target is None or count < 0:
                continue
            terms = Terms.of(self.call.first_state(sequence, source))
            token = self.call.token(sequence, 0, place, target, None, terms.state)
            for old in self.rings.live_tokens(source, count, token.A):
                terms.advance(old, 0.0 * old.dt)
            yield replace(token, before=terms.state), terms

    def state_errors(self) -> Iterator[tuple[Any, Array]]:
        """The tokens after which states are written, and the errors of the states before they are rounded."""
        for token, terms in self.states():
            yield token, terms.error(roundings(terms))

    def write(self, state: Array, scales: Array | None) -> None:
        """Write the states, which may be those of the call."""
        for token, terms in list(self.states()):
            stored = self.call.stored(token, terms.state)
            state[token.slot] = stored.states
            if scales is not None:
                scales[token.slot] = stored.scales.reshape(scales.shape[1:])

    def errors(self) -> dict[str, Array]:
        """The errors of what is stored, before rounding to the dtype of states without scales."""
        found = {"state": np.zeros(self.call.state.shape)}
        if self.call.state_scale is not None:
            found["state_scale"] = np.zeros(self.call.state_scale.shape)
        for token, error in self.state_errors():
            found["state"][token.slot], scales = self.call.stored_errors(token, error)
            if scales is not None:
                found["state_scale"][token.slot] = scales.reshape(found["state_scale"].shape[1:])
        return found


def commit(cursors: Array, slots: Array, accepted: Array | None, ring_rows: int, window: int, is_reset: bool) -> None:
    """Move the cursors of these slots, or make their rings empty."""
    for number, slot in enumerate(slots):
        start, live, appended, done = map(int, cursors[slot])
        kept = appended if accepted is None else min(max(int(accepted[number]), 0), appended)
        moved = (0, 0) if is_reset else ((start + done) % ring_rows, min(live - done + kept, window))
        cursors[slot] = (*moved, 0, 0)
