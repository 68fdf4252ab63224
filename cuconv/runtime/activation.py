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
