"""The gradients of the selective scans in NumPy and float64."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cuconv.runtime.activation import SOFTPLUS_IS_LINEAR, sigmoid, silu
from cuconv.runtime.state_space import Array
from cuconv.selective_scan.reference import Scan, Steps, recurrence


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
) -> Gradients:
    """The gradients of rows."""
    scan = Scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    batch, dim, d_state = scan.shape
    before = np.zeros(scan.shape) if initial_state is None else initial_state.astype(np.float64)
    behind = np.zeros(scan.shape) if dlast_state is None else dlast_state.astype(np.float64)
    begins = []
    for steps in scan.blocks():
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
        d_y = d_out = _by_token(dout, begin, end)
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
    arrays = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    found = Gradients(*(None if array is None else np.zeros(array.shape) for array in arrays))  # type: ignore[arg-type]
    for i, (begin, end) in enumerate(pairwise(starts)):
        tokens = slice(begin, end)
        row = [None if array is None else array[None, ..., tokens] for array in (u, delta, B, C, z, dout)]
        states = [None if array is None else array[i : i + 1] for array in (initial_state, dlast_state)]
        part = selective_scan_bwd(
            row[0], row[1], A, row[2], row[3], D, row[4], delta_bias, row[5], *states, delta_softplus  # type: ignore[arg-type]
        )
        for name, whole, own in zip(Gradients._fields, found, part, strict=True):
            if whole is None or own is None:
                continue
            if name == "dinitial_state":
                whole[i] = own[0]
            elif name in ("dA", "dD", "ddelta_bias"):
                whole += own
            else:
                whole[..., tokens] = own[0]
    return found


def state_gradients(steps: Steps, d_y: Array, behind: Array) -> Array:
    """The gradients of the states after every token, out of what comes to the last one from behind."""
    pull = d_y[..., None] * steps.C
    e = np.empty(np.broadcast_shapes(steps.decay.shape, pull.shape))
    for t in reversed(range(len(e))):
        e[t] = pull[t] + behind
        behind = steps.decay[t] * e[t]
    return e


def softplus_slope(v: Array) -> Array:
    """The derivative of the softplus: the sigmoid, and above 20, where that is v itself, 1."""
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


def _by_token(array: Array, begin: int, end: int) -> Array:
    tokens: Array = array[..., begin:end].astype(np.float64).transpose(2, 0, 1)
    return tokens
