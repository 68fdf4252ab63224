"""The libraries whose arrays tests pass: NumPy, the emulator of kernels, and CuPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests import emulator
from tests.emulator.family import EmulatedArray

Array = np.ndarray[Any, Any]


@dataclass
class Library:
    """Arrays of one library."""

    upload: Callable[[Array], Any]
    download: Callable[[Any], Array]


def numpy() -> Library:
    return Library(lambda array: array, lambda array: array)


def emulated() -> Library:
    if (reason := emulator.available()) is not None:
        pytest.skip(reason)
    return Library(EmulatedArray, lambda array: array.array)


def on_gpu() -> Library:
    import cupy

    return Library(cupy.asarray, cupy.asnumpy)


LIBRARIES = [numpy, emulated, pytest.param(on_gpu, marks=pytest.mark.gpu)]
