"""The activations in NumPy and float64, for the references."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SOFTPLUS_IS_LINEAR = 20.0
"""Argument above which softplus(v) is v."""


def softplus(v: Array) -> Array:
    """log(1 + exp(v))."""
    bent: Array = np.log1p(np.exp(np.minimum(v, SOFTPLUS_IS_LINEAR)))
    return np.where(v > SOFTPLUS_IS_LINEAR, v, bent)


def sigmoid(v: Array) -> Array:
    """1 / (1 + exp(-v)), without overflow for large negative v."""
    z = np.exp(-np.abs(v))
    return np.where(v >= 0, 1.0, z) / (1.0 + z)


def silu(v: Array) -> Array:
    """v / (1 + exp(-v)), without overflow for large negative v."""
    return v * sigmoid(v)


HALF_ULP = 2.0**-24
"""The largest relative error of rounding to float32, in which kernels compute."""

SILU_SLOPE = 1.1
"""The largest slope of silu."""

TANH_SILU_ERROR = 1.1e-5
"""The largest absolute error of silu for 16-bit results (common/activation.cuh)."""


def silu_error(out: Array, error: Array | float, dtype: np.dtype[Any]) -> Array | float:
    """The absolute error of silu's results `out`, for arrays of this dtype, when its arguments are off by `error`.

    In float32, with error bounds of the CUDA programming guide: division 2 ulp and the sum below it 1/2 ulp,
    relatively; __expf 2 + 1.173 |v| ulp, which changes silu(v) by at most 0.92 ulp of 1, at |v| = 2.
    """
    if dtype == np.float32:
        own: Array | float = 5.0 * HALF_ULP * np.abs(out) + 2.0 * HALF_ULP
    else:
        own = 1.01 * TANH_SILU_ERROR
    return SILU_SLOPE * error + own
