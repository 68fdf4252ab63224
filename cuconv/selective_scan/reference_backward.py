"""The gradients of the selective scans in NumPy and float64, and the errors that float32 arithmetic may make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from cuconv.runtime.activation import HALF_ULP, SOFTPLUS_IS_LINEAR, sigmoid, silu
from cuconv.runtime.launch import ceil_div
from cuconv.runtime.state_space import TINY, Array, exponential_error
from cuconv.selective_scan.kernels import chunk_tokens
from cuconv.selective_scan.rows import SECOND_ORDER, Scan, Steps, by_token, recurrence


class Gradients(NamedTuple):
    """What a backward call leaves, in float64; None for the gradient of an argument that is not given."""

    du: Array
    ddelta: Array
    dA: Array
    dB: Array
    dC: Array
    dD: Array | None
    dz: Array | None
    ddelta_bias: Array | None
    dinitial_state: Array | None


def selective_scan_bwd(
    u: Array,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None,
    z: Array | None,
    delta_bias: Array | None,
    dout: Array,
    initial_state: Array | None = None,
    dlast_state: Array | None = None,
    delta_softplus: bool = False,
    chunk_states: Array | None = None,
) -> Gradients:
    """The gradients of rows, with the states before chunks but the first as they are given."""
    scan = Scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    dim = scan.shape[1]
    before = np.zeros(scan.shape) if initial_state is None else initial_state.astype(np.float64)
    behind = np.zeros(scan.shape) if dlast_state is None else dlast_state.astype(np.float64)
    begins = []
    chunk = chunk_tokens()
    for steps in scan.blocks(chunk):
        if chunk_states is not None and steps.begin and steps.begin % chunk == 0:
            before = chunk_states[:, steps.begin // chunk].astype(np.float64)
        begins.append((steps.begin, before))
        before = recurrence(steps.decay, steps.added, before)[-1]
    du, ddelta, dz = np.zeros(u.shape), np.zeros(u.shape), np.zeros(u.shape)
    dA, dB, dC, dD = np.zeros(A.shape), np.zeros(B.shape), np.zeros(C.shape), np.zeros(dim)
    end = u.shape[2]
    for begin, before in reversed(begins):
        steps = scan.steps(begin, end)
        tokens = slice(begin, end)
        states = recurrence(steps.decay, steps.added, before)
        kept = steps.decay * np.concatenate([before[None], states[:-1]])
        d_y = d_out = by_token(dout, begin, end)
        if steps.z is not None:
            y = steps.y(states)
            gate = sigmoid(steps.z)
            d_y = d_out * silu(steps.z)
            dz[..., tokens] = _by_channel(d_out * y * gate * (1.0 + steps.z * (1.0 - gate)))
        e = state_gradients(steps, d_y, behind)
        behind = steps.decay[0] * e[0]
        e_B, e_A_kept = (e * steps.B).sum(axis=-1), (e * kept * A.astype(np.float64)).sum(axis=-1)
        slope = softplus_slope(steps.biased_dt) if delta_softplus else 1.0
        d_u = steps.dt * e_B
        if D is not None:
            d_u = d_u + D.astype(np.float64) * d_y
        du[..., tokens] = _by_channel(d_u)
        ddelta[..., tokens] = _by_channel((e_A_kept + steps.x * e_B) * slope)
        dA += (e * kept * steps.dt[..., None]).sum(axis=(0, 1))
        dD += (d_y * steps.x).sum(axis=(0, 1))
        _add_matrix(dB, e * (steps.dt * steps.x)[..., None], tokens)
        _add_matrix(dC, states * d_y[..., None], tokens)
        end = begin
    return Gradients(
        du,
        ddelta,
        dA,
        dB,
        dC,
        None if D is None else dD,
        None if z is None else dz,
        None if delta_bias is None else ddelta.sum(axis=(0, 2)),
        None if initial_state is None else behind,
    )


def selective_scan_varlen_bwd(
    u: Array,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None,
    z: Array | None,
    delta_bias: Array | None,
    dout: Array,
    initial_state: Array | None = None,
    dlast_state: Array | None = None,
    delta_softplus: bool = False,
    query_start_loc: Array | None = None,
) -> Gradients:
    """The gradients of packed sequences."""
    starts = [0, u.shape[1]] if query_start_loc is None else [int(start) for start in query_start_loc]
    packed = Scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    arrays = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    found = Gradients(*(None if array is None else np.zeros(array.shape) for array in arrays))  # type: ignore[arg-type]
    for i, (begin, end) in enumerate(pairwise(starts)):
        tokens = slice(begin, end)
        rows = packed.sequence(begin, end)
        initial, last = (None if array is None else array[i : i + 1] for array in (initial_state, dlast_state))
        part = selective_scan_bwd(**vars(rows), dout=dout[None, :, tokens], initial_state=initial, dlast_state=last)
        _gather(found, part, i, tokens)
    return found


def state_gradients(steps: Steps, d_y: Array, behind: Array) -> Array:
    """The gradients of the states after every token; `behind` is the part of the last one that comes from later
    tokens."""
    pull = d_y[..., None] * steps.C
    e = np.empty(np.broadcast_shapes(steps.decay.shape, pull.shape))
    for t in reversed(range(len(e))):
        e[t] = pull[t] + behind
        behind = steps.decay[t] * e[t]
    return e


def softplus_slope(v: Array) -> Array:
    """The derivative of the softplus: the sigmoid, or 1 above 20, where the softplus is v itself."""
    return np.where(v > SOFTPLUS_IS_LINEAR, 1.0, sigmoid(v))


def _add_matrix(to: Array, products: Array, tokens: slice) -> None:
    """Adds (tokens, batch, dim, d_state) to the gradient of B or C."""
    if to.ndim == 2:
        to += products.sum(axis=(0, 1))
        return
    groups = to.shape[1] if to.ndim == 4 else 1
    count, batch, dim, d_state = products.shape
    sums = products.reshape(count, batch, groups, dim // groups, d_state).sum(axis=3).transpose(1, 2, 3, 0)
    to[..., tokens] += sums if to.ndim == 4 else sums[:, 0]


def _by_channel(array: Array) -> Array:
    """(tokens, batch, dim) as (batch, dim, tokens)."""
    return array.transpose(1, 2, 0)


LANE_TOKENS = 8
"""Consecutive tokens that have one decay in a kernel, the exponential of the sum of their exponents."""

LANE_STEPS = 8
"""Most roundings, on the way to one token, of what lanes hand to each other."""


class _Sizes(NamedTuple):
    """Sums of absolute values for the tokens of a block, where nothing cancels, and bounds on their rounding errors."""

    state: Array
    state_error: Array
    kept: Array
    """The part of the state that comes from the token before."""
    kept_error: Array
    decay_error: Array


def _states(steps: Steps, before: Array, before_error: Array) -> _Sizes:
    """The states of a block of tokens, from the state before it.

    A lane begins with what a scan over lanes hands it: products of decays, each the exponential of a sum of exponents,
    which rounds with every token of a lane, and sums, which round with every step.
    """
    own = steps.magnitudes()
    exponent = np.abs(steps.dt[..., None] * steps.A)
    relative = np.abs(steps.A) * steps.dt_error[..., None] + exponential_error(exponent)
    relative = relative + HALF_ULP * ((2 + LANE_TOKENS) * exponent + 1.0)
    decay_error = steps.decay * relative + TINY
    sizes = recurrence(steps.decay, own.added, before)
    earlier = np.concatenate([before[None], sizes[:-1]])
    added = np.abs(own.B * own.x[..., None]) * steps.dt_error[..., None] + 2.0 * HALF_ULP * own.added
    errors = recurrence(steps.decay, decay_error * earlier + added + LANE_STEPS * HALF_ULP * sizes + TINY, before_error)
    earlier_error = np.concatenate([before_error[None], errors[:-1]])
    kept = steps.decay * earlier
    kept_error = steps.decay * earlier_error + decay_error * earlier + HALF_ULP * kept
    return _Sizes(sizes, errors, kept, kept_error, decay_error)


def _row_errors(
    scan: Scan, dout: Array, initial: Array, last: Array, parts: int, chunk_states: Array | None
) -> Gradients:
    """The errors of rows that begin with these states and end with these gradients.

    Sums over tokens are sums of `parts` sums of chunks. States before chunks that are given have no errors.
    """
    _, dim, d_state = scan.shape
    chunk = chunk_tokens()
    size, error = np.abs(initial), np.zeros(scan.shape)
    begins = []
    for steps in scan.blocks(chunk):
        if chunk_states is not None and steps.begin and steps.begin % chunk == 0:
            size, error = np.abs(chunk_states[:, steps.begin // chunk].astype(np.float64)), np.zeros(scan.shape)
        begins.append((steps.begin, size, error))
        after = _states(steps, size, error)
        size, error = after.state[-1], after.state_error[-1]
    du, ddelta, dz = np.zeros(scan.u.shape), np.zeros(scan.u.shape), np.zeros(scan.u.shape)
    dA, dB, dC, dD, dbias = np.zeros(scan.A.shape), np.zeros(scan.B.shape), np.zeros(scan.C.shape), *np.zeros((2, dim))
    behind, behind_error = np.abs(last), np.zeros(scan.shape)
    over_tokens, over_channels = (4 * parts + 16) * HALF_ULP, (dim + 16) * HALF_ULP
    end = scan.u.shape[2]
    for begin, size, error in reversed(begins):
        steps, tokens = scan.steps(begin, end), slice(begin, end)
        h, own = _states(steps, size, error), steps.magnitudes()
        A, D = np.abs(steps.A), 0.0 if own.D is None else own.D
        gy = d_out = np.abs(by_token(dout, begin, end))
        gy_error = np.zeros(gy.shape)
        if steps.z is not None:
            z = np.abs(steps.z)
            gate, other = sigmoid(steps.z), sigmoid(-steps.z)
            gate_error = gate * (exponential_error(z) * other + 4.0 * HALF_ULP) + TINY
            gy, gy_error = d_out * z * gate, d_out * (z * gate_error + 4.0 * HALF_ULP * z * gate)
            bend = 1.0 + z * other
            slope = gate * bend
            slope_error = gate_error * (bend + z * gate) + gate * HALF_ULP * (z + 3.0 * bend)
            y = (own.C * h.state).sum(axis=-1) + D * own.x
            y_error = (own.C * h.state_error).sum(axis=-1) + (d_state + 3) * HALF_ULP * y
            dz[..., tokens] = _by_channel(
                d_out * (slope * y_error + slope_error * y + 3.0 * HALF_ULP * slope * y) + TINY
            )
        pull = gy[..., None] * own.C
        e = np.empty(h.state.shape)
        e_error = np.empty(h.state.shape)
        for t in reversed(range(len(e))):
            e[t] = pull[t] + behind
            e_error[t] = own.C[min(t, len(own.C) - 1)] * gy_error[t][..., None] + HALF_ULP * pull[t]
            e_error[t] += behind_error + LANE_STEPS * HALF_ULP * e[t] + TINY
            behind = steps.decay[t] * e[t]
            behind_error = steps.decay[t] * e_error[t] + h.decay_error[t] * e[t] + HALF_ULP * behind
        dt, dt_error = np.abs(steps.dt), steps.dt_error
        e_B = (e * own.B).sum(axis=-1)
        e_B_error = (e_error * own.B).sum(axis=-1) + (d_state + 2) * HALF_ULP * e_B
        product = e * h.kept
        product_error = e_error * h.kept + e * h.kept_error + HALF_ULP * product
        e_A = (product * A).sum(axis=-1)
        e_A_error = (product_error * A).sum(axis=-1) + (d_state + 3) * HALF_ULP * e_A
        d_u = dt * e_B + D * gy
        du[..., tokens] = _by_channel(dt * e_B_error + dt_error * e_B + D * gy_error + 3.0 * HALF_ULP * d_u + TINY)
        d_dt = e_A + own.x * e_B
        d_dt_error = e_A_error + own.x * e_B_error + 2.0 * HALF_ULP * d_dt
        if scan.delta_softplus:
            v = steps.biased_dt
            slope, other = softplus_slope(v), sigmoid(-v)
            slope_error = slope * (exponential_error(v) * other + HALF_ULP * (np.abs(v) * other + 5.0)) + TINY
            d_dt_error = slope * d_dt_error + slope_error * d_dt
            d_dt = slope * d_dt
        ddelta[..., tokens] = _by_channel(d_dt_error + HALF_ULP * d_dt)
        dbias += (d_dt_error + over_tokens * d_dt).sum(axis=(0, 1))
        step = dt[..., None]
        dA += (product_error * step + product * (dt_error[..., None] + over_tokens * step)).sum(axis=(0, 1))
        dD += (gy_error * own.x + over_tokens * gy * own.x).sum(axis=(0, 1))
        scaled = (dt * own.x)[..., None]
        scaled_error = (dt_error * own.x)[..., None] + HALF_ULP * scaled
        rounding = HALF_ULP + max(over_tokens, over_channels)
        _add_matrix(dB, e_error * scaled + e * (scaled_error + rounding * scaled), tokens)
        read = gy[..., None] * h.state
        _add_matrix(dC, gy_error[..., None] * h.state + gy[..., None] * h.state_error + rounding * read, tokens)
        end = begin
    found = (du, ddelta, dA, dB, dC, dD, dz, dbias, behind_error)
    return Gradients(*(np.asarray(SECOND_ORDER * each + TINY) for each in found))


def _errors(
    u: Array,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    z: Array | None = None,
    delta_bias: Array | None = None,
    dout: Array | None = None,
    *,
    delta_softplus: bool = False,
    initial_state: Array | None = None,
    dlast_state: Array | None = None,
    chunk_states: Array | None = None,
    **_: Any,
) -> dict[str, Array]:
    """The errors of a call on rows."""
    assert dout is not None
    scan = Scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    initial, last = (_or_zeros(state, scan.shape) for state in (initial_state, dlast_state))
    parts = scan.shape[0] * max(1, ceil_div(u.shape[2], chunk_tokens()))
    return _wanted(_row_errors(scan, dout, initial, last, parts, chunk_states), D, z, delta_bias, initial_state)


def _packed_errors(
    u: Array,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    z: Array | None = None,
    delta_bias: Array | None = None,
    dout: Array | None = None,
    query_start_loc: Array | None = None,
    *,
    delta_softplus: bool = False,
    initial_state: Array | None = None,
    dlast_state: Array | None = None,
    **_: Any,
) -> dict[str, Array]:
    """The errors of a call on packed sequences; those of padding are zero."""
    assert dout is not None
    packed = Scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    starts = [0, u.shape[1]] if query_start_loc is None else [int(start) for start in query_start_loc]
    count, total = len(starts) - 1, u.shape[1]
    shape = (count, *A.shape)
    states = [_or_zeros(state, shape) for state in (initial_state, dlast_state)]
    dim = A.shape[:1]
    shapes = (u.shape, u.shape, A.shape, B.shape, C.shape, dim, u.shape, dim, shape)
    found = Gradients(*map(np.zeros, shapes))
    parts = total // chunk_tokens() + count + 2
    for i, (begin, end) in enumerate(pairwise(starts)):
        rows = packed.sequence(begin, end)
        initial, last = (state[i : i + 1] for state in states)
        own = _row_errors(rows, dout[None, :, begin:end], initial, last, parts, None)
        _gather(found, own, i, slice(begin, end))
    return _wanted(found, D, z, delta_bias, initial_state)


def _gather(whole: Gradients, own: Gradients, i: int, tokens: slice) -> None:
    """Writes the gradients of the i-th sequence, which has these tokens, to the gradients of all sequences."""
    for name, to, each in zip(Gradients._fields, whole, own, strict=True):
        if to is None or each is None:
            continue
        if name == "dinitial_state":
            to[i] = each[0]
        elif name in ("dA", "dD", "ddelta_bias"):
            to += each
        else:
            to[..., tokens] = each[0]


def _or_zeros(state: Array | None, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape) if state is None else state.astype(np.float64)


def _wanted(found: Gradients, *optional: Array | None) -> dict[str, Array]:
    """The gradients of arguments that are given, by name."""
    names = ("dD", "dz", "ddelta_bias", "dinitial_state")
    absent = [name for name, argument in zip(names, optional, strict=True) if argument is None]
    return {name: each for name, each in found._asdict().items() if name not in absent}


ERRORS: Mapping[str, Callable[..., dict[str, Array]]] = {
    "selective_scan_bwd": _errors,
    "selective_scan_varlen_bwd": _packed_errors,
}
"""By public function, a function of its arguments except outputs that returns the errors of results in float32, by
name."""
