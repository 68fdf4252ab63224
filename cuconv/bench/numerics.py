"""Whether results are right: they are compared with the NumPy path, within the errors that rounding can explain.

The tolerance of an element has two parts: rounding it to its dtype once, and the error of float32 arithmetic, which
each family states beside its reference (`ERRORS`). Results that have no such error must be equal to the bit.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import ml_dtypes
import numpy as np

import cuconv
from cuconv.bench.makers import MODULES
from cuconv.runtime.dtypes import BY_NUMPY, CODES, FLOATS
from cuconv.runtime.workload import Workload

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

UNIT = 2.0**-24
"""The largest relative error of rounding to float32."""

SECOND_ORDER = 1.02
"""A factor on tolerances that covers products of errors."""


@dataclass(frozen=True)
class Difference:
    """The error of one result of a call."""

    name: str
    error: float
    """The largest |got - wanted| / size, where an element's size is chosen so that its tolerance is a relative one."""
    tolerance: float
    detail: str = ""
    """The place of the largest error, and both values there."""

    @property
    def is_right(self) -> bool:
        """Whether the error is within the tolerance; an error of NaN is not."""
        return self.error <= self.tolerance

    @property
    def used(self) -> float:
        """The error as a fraction of the tolerance."""
        if self.tolerance:
            return self.error / self.tolerance
        return 0.0 if self.is_right else np.inf


def compare(
    workload: Workload, inputs: Arrays, got: Arrays, options: Mapping[str, Any] | None = None
) -> list[Difference]:
    """The errors of the results of a call and of the arguments that it updated, those in `got` by name.

    `inputs` are the arguments as they were before the call. Both may be the parts that Workload.cuts keeps; `options`
    are those that differ for these parts.
    """
    if workload.meaning is not None:
        return compare(workload.meaning, _explicit(workload.meaning, inputs), got, options)
    wanted, allowed = _expected(workload, inputs, {**workload.options, **(options or {})})
    return [_difference(name, got[name], value, allowed.get(name)) for name, value in wanted.items() if name in got]


def _explicit(workload: Workload, inputs: Arrays) -> Arrays:
    """The arguments of a workload that are equivalent to `inputs`: its own index arrays, and all other arrays from
    `inputs`."""
    arrays = workload.arrays.items()
    return {name: inputs[name] if each.values is None else each.host(0) for name, each in arrays}


_last: deque[tuple[Any, tuple[Arrays, Arrays]]] = deque(maxlen=4)
"""The oracle's results of the last comparisons, because several libraries are compared on the same inputs one after
another, and on several parts of them.
"""


def _expected(workload: Workload, inputs: Arrays, options: Mapping[str, Any]) -> tuple[Arrays, Arrays]:
    """The results of the oracle and their errors."""
    contents = [(name, array.shape, array.dtype, sha256(array.tobytes()).digest()) for name, array in inputs.items()]
    key = workload.function, workload.updated, dict(options), contents
    for known, found in _last:
        if known == key:
            return found
    _last.append((key, (oracle(workload, inputs, options), errors(workload, inputs, options))))
    return _last[-1][1]


def oracle(workload: Workload, inputs: Arrays, options: Mapping[str, Any]) -> dict[str, Array]:
    """The results of the NumPy path, each rounded to float32 once.

    It is called on copies in float32, which holds the values of all dtypes exactly.
    """
    copies = {name: array.astype(np.float32 if _is_float(array) else array.dtype) for name, array in inputs.items()}
    results = workload.named(getattr(cuconv, workload.function)(**{**workload.call(copies), **options}))
    results |= {name: copies[name] for name in workload.updated}
    return {name: array.astype(np.float64) for name, array in results.items()}


def errors(workload: Workload, inputs: Arrays, options: Mapping[str, Any]) -> Mapping[str, Array]:
    """The absolute error per element that float32 arithmetic explains, by result; none for an exact result."""
    family = MODULES[workload.function].__package__
    stated = importlib.import_module(f"{family}.reference").ERRORS[workload.function]
    copies = {name: array.copy() for name, array in inputs.items()}
    found: Mapping[str, Array] = stated(**copies, **options)
    return {workload.over.get(name, name): error for name, error in found.items()}


def _difference(name: str, got: Array, wanted: Array, allowed: Array | None) -> Difference:
    """The error of one result; it must be equal to the oracle's when no error is allowed."""
    if got.shape != wanted.shape:
        return Difference(name, np.inf, 0.0, f"{name}: got the shape {got.shape}; wanted {wanted.shape}")
    size, tolerance = np.abs(wanted), 0.0
    if allowed is None:
        wanted = wanted.astype(got.dtype).astype(np.float64)
    elif BY_NUMPY[got.dtype] in CODES:
        # Errors of codes are differences of stored numbers, which include rounding.
        size, tolerance = allowed, 1.0
    else:
        finfo: Any = ml_dtypes.finfo
        kept = finfo(got.dtype)
        tolerance = SECOND_ORDER * float(kept.eps) / 2
        # The oracle's own rounding to float32 counts as arithmetic.
        arithmetic = SECOND_ORDER * (allowed + UNIT * np.abs(wanted))
        size = size + (arithmetic + float(kept.smallest_subnormal) / 2) / tolerance
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.abs(got.astype(np.float64) - wanted)
        # Where nothing differs the size may be 0; NaN differs from everything.
        errors = np.divide(off, size, out=np.zeros(off.shape), where=off != 0.0)
    if not errors.size:
        return Difference(name, 0.0, tolerance)
    place = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(np.isnan(errors), np.inf, errors)), errors.shape))
    found = f"{name}[{', '.join(map(str, place))}]: got {float(got[place]):.8g}; wanted {wanted[place]:.8g}"
    return Difference(name, float(errors[place]), tolerance, found)


def _is_float(array: Array) -> bool:
    return BY_NUMPY[array.dtype] in FLOATS
