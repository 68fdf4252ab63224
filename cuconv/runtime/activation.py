"""The activations in NumPy and float64, as every reference takes them."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SOFTPLUS_IS_LINEAR = 20.0
"""Above this softplus(v) is v."""


def softplus(v: Array) -> Array:
    """log(1 + exp(v))."""
    bent: Array = np.log1p(np.exp(np.minimum(v, SOFTPLUS_IS_LINEAR)))
    return np.where(v > SOFTPLUS_IS_LINEAR, v, bent)


def sigmoid(v: Array) -> Array:
    """1 / (1 + exp(-v)), for large negative v too."""
    z = np.exp(-np.abs(v))
    return np.where(v >= 0, 1.0, z) / (1.0 + z)


def silu(v: Array) -> Array:
    """v / (1 + exp(-v)), for large negative v too."""
    return v * sigmoid(v)
