"""The selective state update in NumPy and float64, and the errors that float32 arithmetic may make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np

from cuconv.runtime import rounding
from cuconv.runtime.rounding import Stored, random_numbers
from cuconv.runtime.state_space import Array, TokenInputs
from cuconv.selective_state_update import reference_replay

UPDATED = ("state", "intermediate_states_buffer", "state_scale", "intermediate_state_scales")
"""The arguments that a call writes to."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Token(TokenInputs):
    """One token of one sequence: x, dt, z and the result are (nheads, headdim), B and C (nheads, 1, d_state)."""

    sequence: int
    number: int
    """Number of the token in its sequence."""
    place: tuple[int, ...]
    """Index of the token in x: (token,) or (batch, token)."""
    slot: int | None
    """Slot of the pool for the state after the token; None when it is not stored."""
    row: int | None
    """Row of the buffer for the state after the token; None when it is not stored."""
    before: Array
    """The state before the token, (nheads, headdim, d_state)."""

    @cached_property
    def after(self) -> Array:
        """The state after the token."""
        return self.before * self.decay + self.added


class Results(NamedTuple):
    """The results of a call: out in float64, copies of the others in their dtypes."""

    out: Array
    state: Array
    intermediate_states_buffer: Array | None
    state_scale: Array | None
    intermediate_state_scales: Array | None


@dataclass(frozen=True, eq=False)
class SelectiveStateUpdate:
    """One call with the arguments of the public function."""

    state: Array
    x: Array
    dt: Array
    A: Array
    B: Array
    C: Array
    D: Array | None = None
    z: Array | None = None
    dt_bias: Array | None = None
    dt_softplus: bool = False
    state_batch_indices: Array | None = None
    dst_state_batch_indices: Array | None = None
    intermediate_states_buffer: Array | None = None
    intermediate_state_indices: Array | None = None
    num_accepted_tokens: Array | None = None
    cu_seqlens: Array | None = None
    state_column: Array | None = None
    has_initial_state: Array | None = None
    parents: Array | None = None
    disable_state_update: bool = False
    pad_slot_id: int = -1
    null_slot: int | None = None
    pad_output: str = "zero"
    rand_seed: int | Array | None = None
    philox_rounds: int = 10
    state_scale: Array | None = None
    intermediate_state_scales: Array | None = None

    @property
    def inner(self) -> tuple[int, int, int]:
        """(nheads, headdim, d_state); without heads there is one."""
        heads, headdim, d_state = (1, *self.state.shape[1:])[-3:]
        return heads, headdim, d_state

    def places(self) -> Iterator[Sequence[tuple[int, ...]]]:
        """The indices in x of the tokens of every sequence."""
        count = self.x.shape[0]
        if self.cu_seqlens is not None:
            starts = [min(max(int(start), 0), count) for start in self.cu_seqlens]
            yield from ([(place,) for place in range(begin, end)] for begin, end in pairwise(starts))
        elif self.x.ndim == self.state.ndim:
            yield from ([(i, number) for number in range(self.x.shape[1])] for i in range(count))
        else:
            yield from ([(i,)] for i in range(count))

    def live(self) -> Iterator[tuple[int, int, Sequence[tuple[int, ...]]]]:
        """The sequences that have a state, the slots that they start from, and the places of their tokens."""
        for sequence, places in enumerate(self.places()):
            source = self.source(sequence)
            # In trees states are handed on in the buffer.
            if source is not None and (self.parents is None or self.row(sequence, 0, source) is not None):
                yield sequence, source, places

    @property
    def is_computed(self) -> Array:
        """Which tokens of x are no padding."""
        found = np.zeros(self.x.shape[: 2 - self.state.ndim], bool)
        for _, _, places in self.live():
            for place in places:
                found[place] = True
        return found

    def tokens(self) -> Iterator[Token]:
        """The tokens of sequences that have a state, in order.

        Each token follows the unrounded state before it, in trees the rounded one after its parent.
        """
        for sequence, source, places in self.live():
            state = first = self.first_state(sequence, source)
            stored: list[Array] = []
            for number, place in enumerate(places):
                if self.parents is not None:
                    parent = self.parent(sequence, number)
                    state = first if parent < 0 else stored[parent]
                slot = self.target(sequence, number, source, number + 1 == len(places))
                token = self.token(sequence, number, place, slot, self.row(sequence, number, source), state)
                yield token
                state = token.after
                if self.parents is not None:
                    stored.append(self.stored(token, token.after).values)

    def token(
        self, sequence: int, number: int, place: tuple[int, ...], slot: int | None, row: int | None, before: Array
    ) -> Token:
        """A token of a sequence at a place in x."""
        heads, headdim, d_state = self.inner
        rows = (heads, headdim)
        groups = self.B.shape[-2] if self.state.ndim == 4 else 1
        grouped = [_float64(each[place], (groups, d_state)) for each in (self.B, self.C)]
        B, C = (np.repeat(each, heads // groups, axis=0)[:, None] for each in grouped)
        dt, bias = _float64(self.dt[place], rows), _float64(self.dt_bias, rows)
        return Token(
            sequence=sequence,
            number=number,
            place=place,
            slot=slot,
            row=row,
            before=before,
            x=_float64(self.x[place], rows),
            biased_dt=dt if bias is None else dt + bias,
            A=_float64(self.A, self.inner),
            B=B,
            C=C,
            D=_float64(self.D, rows),
            z=None if self.z is None else _float64(self.z[place], rows),
            dt_softplus=self.dt_softplus,
        )

    def errors(self) -> Iterator[tuple[Token, Array]]:
        """Every token, and the error that the state after it may have: it grows from token to token."""
        carried: list[Any] = []
        for token in self.tokens():
            if token.number == 0:
                carried = []
            before: Any = 0.0
            if self.parents is None and carried:
                before = carried.pop()
            elif self.parents is not None and (parent := self.parent(token.sequence, token.number)) >= 0:
                before = carried[parent]
            error = token.state_error(token.before, token.after, before)
            carried.append(error if self.parents is None else self._stored_error(token, error))
            yield token, error

    def _stored_error(self, token: Token, error: Array) -> Array:
        """The error of the state after a token as it is stored, where float32 arithmetic makes this one of it."""
        stored, (low, high) = self.stored(token, token.after).values, self.bounds(token, error)
        corners = [Stored(codes, scales) for codes in (low[0], high[0]) for scales in (low[1], high[1])]
        errors: Array = np.max([np.abs(corner.values - stored) for corner in corners], axis=0)
        return errors

    def first_state(self, sequence: int, source: int) -> Array:
        """The state before the first token of a sequence."""
        if self.has_initial_state is not None and not self.has_initial_state[sequence]:
            return np.zeros(self.inner)
        scales = None if self.state_scale is None else self.state_scale[source].reshape(self.inner[:2])
        return Stored(self.state[source].reshape(self.inner), scales).values

    def parent(self, sequence: int, number: int) -> int:
        """The token that a token of a tree follows; -1 for the state before the first."""
        assert self.parents is not None
        parent = int(self.parents[sequence, number])
        return parent if 0 <= parent < number else -1

    def source(self, sequence: int) -> int | None:
        """The slot that a sequence starts from; None when it has none."""
        if self.state_batch_indices is None:
            return _inside(sequence, len(self.state))
        columns = self.state_batch_indices[sequence].reshape(-1)
        column = 0 if self.state_column is None else int(self.state_column[sequence])
        if self.num_accepted_tokens is not None:
            column = max(int(self.num_accepted_tokens[sequence]), 1) - 1
        return self._slot(columns[column]) if 0 <= column < len(columns) else None

    def target(self, sequence: int, number: int, source: int, is_last: bool) -> int | None:
        """The slot that the state after a token goes to; None when it is not stored."""
        targets = self.dst_state_batch_indices
        if targets is None and self.num_accepted_tokens is not None:
            targets = self.state_batch_indices
        if self.disable_state_update:
            return None
        if targets is not None and targets.ndim == 2:
            return self._slot(targets[sequence, number]) if number < targets.shape[1] else None
        if not is_last:
            return None
        return source if targets is None else self._slot(targets[sequence])

    def row(self, sequence: int, number: int, source: int) -> int | None:
        """The row of the buffer that the state after a token goes to; None when it is not stored."""
        buffer, rows = self.intermediate_states_buffer, self.intermediate_state_indices
        if buffer is None or number >= buffer.shape[1]:
            return None
        return _inside(source if rows is None else rows[sequence], len(buffer))

    def _slot(self, number: Any) -> int | None:
        """The slot with a number that an index array holds."""
        return None if number in (self.pad_slot_id, self.null_slot) else _inside(number, len(self.state))

    def random(self, token: Token) -> Array | None:
        """The random bits for the states after a token; None when they are rounded to nearest."""
        if self.rand_seed is None:
            return None
        seed = int(np.asarray(self.rand_seed).reshape(())) & 0xFFFFFFFFFFFFFFFF
        size = int(np.prod(self.inner))
        return random_numbers(size, token.sequence, token.number, seed, self.philox_rounds).reshape(self.inner)

    def stored(self, token: Token, states: Array) -> Stored:
        """States after a token as they are stored."""
        return rounding.stored(states, self.state.dtype, self.random(token))

    def bounds(self, token: Token, error: Array) -> tuple[Stored, Stored]:
        """The least and the greatest states that may be stored after a token where the exact ones are off by
        `error`."""
        return rounding.bounds(token.after, error, self.state.dtype, self.random(token))

    def stored_errors(self, token: Token, error: Array) -> Stored:
        """The errors of what is stored after a token where the state is off by `error`: of states without scales, that
        before they are rounded."""
        return rounding.stored_errors(token.after, error, self.state.dtype, self.random(token))

    def results(self) -> Results:
        """What the call writes; the arrays of the call stay as they are."""
        pool, *others = (None if (given := getattr(self, name)) is None else given.copy() for name in UPDATED)
        assert pool is not None
        return Results(self.write(pool, *others), pool, *others)

    def write(
        self,
        pool: Array,
        buffer: Array | None = None,
        pool_scales: Array | None = None,
        buffer_scales: Array | None = None,
    ) -> Array:
        """The result in float64; what the call changes in the other arrays is written to these.

        They may be the call's own: all states are read before the first is written. Nothing is touched but the slots
        and rows of the sequences. Values that are too large are infinite, as on a GPU, without a warning.
        """
        out = np.zeros(self.x.shape)
        states: list[tuple[int, Stored]] = []
        with np.errstate(over="ignore", invalid="ignore"):
            for token in self.tokens():
                out[token.place] = token.out(token.after).reshape(out[token.place].shape)
                if token.slot is None and token.row is None:
                    continue
                stored = self.stored(token, token.after)
                if token.slot is not None:
                    states.append((token.slot, stored))
                if token.row is not None:
                    _put(stored, (token.row, token.number), buffer, buffer_scales)
        for slot, stored in states:
            _put(stored, (slot,), pool, pool_scales)
        return out


def _put(stored: Stored, place: tuple[int, ...], states: Array | None, scales: Array | None) -> None:
    """Write states to their place in a pool or a buffer."""
    for values, array in zip(stored, (states, scales), strict=True):
        if values is not None and array is not None:
            array[place] = values.reshape(array.shape[len(place) :])


def selective_state_update(*arguments: Any, **named: Any) -> Results:
    """The results of a call of the public function of this name."""
    return SelectiveStateUpdate(*arguments, **named).results()


def _errors(**arguments: Any) -> dict[str, Array]:
    """The errors of out, and of states before they are rounded; those of states that stay are zero.

    For codes and scales they are the errors of the stored numbers.
    """
    call = SelectiveStateUpdate(**arguments)
    found = {"out": np.zeros(call.x.shape)}
    found |= {name: np.zeros(array.shape) for name in UPDATED if (array := getattr(call, name)) is not None}
    for token, error in call.errors():
        found["out"][token.place] = token.out_error(token.after, error).reshape(call.x.shape[len(token.place) :])
        errors = call.stored_errors(token, error)
        if token.slot is not None:
            _put(errors, (token.slot,), found["state"], found.get("state_scale"))
        if token.row is not None:
            buffers = (found.get(name) for name in ("intermediate_states_buffer", "intermediate_state_scales"))
            _put(errors, (token.row, token.number), *buffers)
    return found


def replay(
    *,
    x_ring: Array,
    B_ring: Array,
    dt_ring: Array,
    cursors: Array,
    window: int = 16,
    fold: bool | None = None,
    empty: bool = False,
    force_flush: Array | None = None,
    **arguments: Any,
) -> reference_replay.Replay:
    """A call of selective_state_update_replay."""
    rings = reference_replay.Rings(x_ring, B_ring, dt_ring, cursors, window)
    inner, tokens = arguments["state"].shape[1:], arguments["x"].shape
    for name, shape in (("A", inner), ("dt", tokens), ("D", inner[:-1]), ("dt_bias", inner[:-1])):
        arguments[name] = _by_row(arguments.get(name), shape)
    return reference_replay.Replay(SelectiveStateUpdate(**arguments), rings, force_flush, bool(fold) or empty)


def materialise(
    *,
    state: Array,
    x_ring: Array,
    B_ring: Array,
    dt_ring: Array,
    cursors: Array,
    A: Array,
    state_batch_indices: Array,
    count: Array | None = None,
    window: int = 16,
    **arguments: Any,
) -> reference_replay.Materialise:
    """A call of selective_state_update_materialise."""
    sequences, (heads, headdim, d_state) = len(state_batch_indices), state.shape[1:]
    x, B = np.zeros((sequences, heads, headdim)), np.zeros((sequences, 1, d_state))
    arguments["state_batch_indices"] = state_batch_indices
    call = SelectiveStateUpdate(state, x, x, _by_row(A, state.shape[1:]), B, B, **arguments)
    rings = reference_replay.Rings(x_ring, B_ring, dt_ring, cursors, window)
    return reference_replay.Materialise(call, rings, count)


def _by_row(array: Array | None, shape: tuple[int, ...]) -> Any:
    """An array broadcast along the last axes of a shape that it lacks."""
    if array is None:
        return None
    return np.broadcast_to(array.reshape(array.shape + (1,) * (len(shape) - array.ndim)), shape)


def _no_errors(**_: Any) -> dict[str, Array]:
    return {}


ERRORS: Mapping[str, Callable[..., dict[str, Array]]] = {
    "selective_state_update": _errors,
    "selective_state_update_commit": _no_errors,
    "selective_state_update_materialise": lambda **arguments: materialise(**arguments).errors(),
    "selective_state_update_replay": lambda **arguments: replay(**arguments).errors(),
}
"""The error bounds of public functions: called with the arguments but outputs, they return by result name the absolute
error per element that float32 arithmetic may make; rounding to the result's dtype is not included.
"""


@overload
def _float64(array: Array, shape: tuple[int, ...]) -> Array: ...


@overload
def _float64(array: Array | None, shape: tuple[int, ...]) -> Array | None: ...


def _float64(array: Array | None, shape: tuple[int, ...]) -> Array | None:
    return None if array is None else array.reshape(shape).astype(np.float64)


def _inside(number: Any, count: int) -> int | None:
    return int(number) if 0 <= number < count else None
