"""What a correct kernel may be off by: bounds of rounding errors, relative and absolute."""

from __future__ import annotations

import numpy as np

from cuconv.selective_state_update.reference import Token
from tests.support.placement import Array

ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of rounding to a dtype."""


def stored(dtype: str) -> tuple[float, float]:
    """The error of rounding a result to its dtype, relative and absolute; one in float32 has been rounded already."""
    return 0.0 if dtype == "float32" else ROUNDING[dtype], 2.0**-25 if dtype == "float16" else 0.0


HALF_ULP = ROUNDING["float32"]
TINY = 2.0**-118
"""Absolutely, where special functions and quotients flush to zero."""


def exponential(v: Array) -> Array:
    """Of exp(v), relatively: __expf is off by 2 + 1.173 |v| ulp (CUDA programming guide)."""
    return 2.0 * HALF_ULP * (2.0 + 1.173 * np.abs(v))


def sigmoid(v: Array) -> Array:
    """1 / (1 + exp(-v))."""
    z = np.exp(-np.abs(v))
    return np.where(v >= 0, 1.0, z) / (1.0 + z)


def step_length(token: Token) -> Array:
    """Of dt: of its sum with the bias, and of softplus, which feels an error of its argument by its slope, the sigmoid.

    Of max(v, 0) + log(1 + exp(-|v|)) the kernels' logarithm is off by 2**-21 and a little of itself (the exponential 2
    ulp, its division 2 ulp, a rounding each of s, the product and the sum), and the sum rounds.
    """
    v = token.biased_dt
    if not token.dt_softplus:
        return HALF_ULP * np.abs(v)
    logarithm = token.dt - np.maximum(v, 0.0)
    return sigmoid(v) * HALF_ULP * np.abs(v) + 9.0 * HALF_ULP * logarithm + HALF_ULP * token.dt + TINY


def state_after(token: Token, carried: Array | float) -> Array:
    """Of the state after a token, when the state before it is off by `carried`.

    The exponent rounds once and feels dt, the decay feels the exponent. Both terms of the sum round, dt * B * x twice,
    and so does the sum.
    """
    dt = step_length(token)[..., None]
    exponent = token.dt[..., None] * token.A
    decay = token.decay * (np.abs(token.A) * dt + HALF_ULP * np.abs(exponent) + exponential(exponent)) + TINY
    kept = token.decay * (carried + HALF_ULP * np.abs(token.before)) + np.abs(token.before) * decay
    added = np.abs(token.B * token.x[..., None]) * dt + 2.0 * HALF_ULP * np.abs(token.added)
    error: Array = 1.01 * (kept + added + HALF_ULP * np.abs(token.after)) + TINY
    return error


def result(token: Token, state: Array) -> Array:
    """Of the result of a token before it is stored, when the state after it is off by `state`.

    A sum of so many products, in any order, rounds no term more often than it has terms. The gate feels exp(-z) by at
    most its part of the divisor; that sum, the division (2 ulp) and the products with z and y round.
    """
    terms = np.abs(token.after * token.C).sum(axis=-1)
    if token.D is not None:
        terms = terms + np.abs(token.D * token.x)
    y: Array = (np.abs(token.C) * state).sum(axis=-1) + (token.C.shape[-1] + 1) * HALF_ULP * terms
    if token.z is None:
        return 1.01 * y + TINY
    z = token.z
    gate = np.abs(z) * sigmoid(z)
    off = gate * (exponential(z) * sigmoid(-z) + 9.0 * HALF_ULP)
    return 1.01 * (gate * y + np.abs(token.y) * (off + TINY)) + TINY
