"""Tokens of a state space model in float64, and bounds of the errors that float32 arithmetic may make.

Scans and state updates compute the same recurrence (Gu and Dao, "Mamba", 2023, equation 2):

    dt = biased_dt, or with dt_softplus log(1 + exp(biased_dt))
    S = S * exp(dt * A) + dt * B * x
    out = (sum over d_state of C * S + D * x) * z * sigmoid(z)

Infinities and NaN go through these formulas by the rules of IEEE 754, on every path of a scan and in state updates:

* with dt_softplus, a biased_dt of -inf, or so negative that exp(biased_dt) is 0, gives dt = 0: the token leaves the
  state's bits as they are, and adds nothing for a finite x. biased_dt = inf gives dt = inf, and NaN gives NaN;
* dt = inf makes the state infinite, or NaN where B * x is 0 or where the state was infinite before;
* NaN in dt, x or B makes the states of its channel NaN from that token on, NaN in C or z only that token's result;
* an infinite x makes the result infinite or, where terms of opposite signs or a zero meet it, NaN. Without D there is
  no term D * x, while D = 0 times an infinite x is NaN;
* A has to be finite in scans and replays: they multiply it with the dt = 0 of places that have no token, too;
* z = inf passes y times inf on; z = -inf gives NaN, for the limit 0 is not what z * sigmoid(z) computes.

Infinities and NaN in one packed sequence do not reach results of another one, except in gradients of scans: there they
reach sums over sequences, such as dA, and per-token gradients of neighbouring sequences in the same 256 tokens. Keeping
these apart would take 4 to 10 % longer on an H200.

A state that is infinite stays infinite or becomes NaN. Which of the two, and whether sums of finite terms overflow in
float32, may depend on how a kernel groups tokens.

Error bounds are absolute, per element, before a result is rounded to its dtype. They add up the roundings of every
operation; those of special functions are from the CUDA programming guide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from cuconv.runtime.activation import HALF_ULP, silu, softplus

Array = np.ndarray[Any, Any]


TINY = 2.0**-118
"""The absolute error where special functions and quotients flush to zero."""

Tokens = TypeVar("Tokens", bound="TokenInputs")


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenInputs:
    """The inputs of tokens: arrays of the shape of x, or of that shape with a last axis d_state."""

    x: Array
    biased_dt: Array
    """dt + dt_bias, the shape of x."""
    A: Array
    """(…, d_state)."""
    B: Array
    """(…, d_state)."""
    C: Array
    """(…, d_state)."""
    D: Array | None
    z: Array | None
    dt_softplus: bool

    @cached_property
    def dt(self) -> Array:
        """The step length."""
        return softplus(self.biased_dt) if self.dt_softplus else self.biased_dt

    @cached_property
    def decay(self) -> Array:
        """The factor of the state."""
        exponentials: Array = np.exp(self.dt[..., None] * self.A)
        return exponentials

    @cached_property
    def added(self) -> Array:
        """The term added to the state."""
        products: Array = (self.dt * self.x)[..., None] * self.B
        return products

    def y(self, state: Array) -> Array:
        """The results before the gate, from the states after the tokens."""
        read: Array = (state * self.C).sum(axis=-1)
        return read if self.D is None else read + self.D * self.x

    def out(self, state: Array) -> Array:
        """The results, from the states after the tokens."""
        y = self.y(state)
        return y if self.z is None else y * silu(self.z)

    def magnitudes(self: Tokens) -> Tokens:
        """The tokens with absolute values of x, B, C and D, so that sums have no cancellation."""
        return replace(
            self, x=np.abs(self.x), B=np.abs(self.B), C=np.abs(self.C), D=None if self.D is None else np.abs(self.D)
        )

    @cached_property
    def dt_error(self) -> Array:
        """The error of dt.

        The sum with the bias rounds, and softplus passes that on by its slope, the sigmoid. It is max(v, 0) +
        log(1 + exp(-|v|)): the kernels' logarithm is off by at most 9 half ulp of itself, and the sum rounds.
        """
        v = self.biased_dt
        if not self.dt_softplus:
            return HALF_ULP * np.abs(v)
        logarithm = self.dt - np.maximum(v, 0.0)
        return _sigmoid(v) * HALF_ULP * np.abs(v) + 9.0 * HALF_ULP * logarithm + HALF_ULP * self.dt + TINY

    def state_error(self, before: Array, after: Array, carried: Array | float) -> Array:
        """The error of the states after the tokens, from the states before and after them.

        The states before are off by `carried`. The exponent rounds and passes on the error of dt, the decay that of the
        exponent. Both terms of the sum round, dt * B * x twice, and so does the sum.
        """
        dt = self.dt_error[..., None]
        exponent = self.dt[..., None] * self.A
        relative = np.abs(self.A) * dt + HALF_ULP * np.abs(exponent) + exponential_error(exponent)
        decay = self.decay * relative + TINY
        kept = self.decay * (carried + HALF_ULP * np.abs(before)) + np.abs(before) * decay
        added = np.abs(self.B * self.x[..., None]) * dt + 2.0 * HALF_ULP * np.abs(self.added)
        error: Array = 1.01 * (kept + added + HALF_ULP * np.abs(after)) + TINY
        return error

    def out_error(self, state: Array, state_error: Array) -> Array:
        """The error of the results, when the states after the tokens are off by `state_error`.

        A sum over d_state, in any order, rounds no term more often than it has terms. The gate passes on the error of
        exp(-z) by that term's part of the divisor; its sum, its division (2 ulp) and the products with z and y round.
        """
        terms = np.abs(state * self.C).sum(axis=-1)
        if self.D is not None:
            terms = terms + np.abs(self.D * self.x)
        y: Array = (np.abs(self.C) * state_error).sum(axis=-1) + (self.C.shape[-1] + 1) * HALF_ULP * terms
        if self.z is None:
            return 1.01 * y + TINY
        gate = np.abs(self.z) * _sigmoid(self.z)
        error = gate * (exponential_error(self.z) * _sigmoid(-self.z) + 9.0 * HALF_ULP)
        return 1.01 * (gate * y + np.abs(self.y(state)) * (error + TINY)) + TINY


def exponential_error(v: Array) -> Array:
    """The relative error of exp(v): __expf is off by 2 + 1.173 |v| ulp."""
    return 2.0 * HALF_ULP * (2.0 + 1.173 * np.abs(v))


def _sigmoid(v: Array) -> Array:
    z = np.exp(-np.abs(v))
    return np.where(v >= 0, 1.0, z) / (1.0 + z)
