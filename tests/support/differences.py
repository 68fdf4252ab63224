"""Derivatives by central differences: what gradients must be, from a function that knows nothing of gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.placement import Array

STEP = 1e-5
ABSOLUTE = 1e-6
"""A central difference is off by STEP**2 / 6 of a third derivative, and by rounding over STEP: below 1e-7 of numbers
around 1, of which a gradient adds up a few dozen.
"""


def differences(of: Callable[[], float], array: Array) -> Array:
    """The derivative of a number by every element of an array that it is computed from."""
    found = np.zeros(array.shape)
    for place in np.ndindex(*array.shape):
        kept = array[place]
        array[place] = kept + STEP
        above = of()
        array[place] = kept - STEP
        found[place] = (above - of()) / (2.0 * STEP)
        array[place] = kept
    return found
