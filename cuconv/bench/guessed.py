"""The error of families that do not yet state theirs beside their reference, guessed from the names of inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import cuconv
from cuconv.runtime.activation import softplus
from cuconv.runtime.dtypes import BY_NUMPY, FLOATS
from cuconv.runtime.workload import Workload

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Oracle = Callable[[Workload, Arrays, Mapping[str, Any]], dict[str, Array]]
"""The results of a workload on NumPy arrays with these options."""

UNIT = 2.0**-24
"""The largest relative error of rounding to float32, in which kernels compute."""

SECOND_ORDER = 1.02
"""Products of errors."""

SILU_SLOPE = 1.1
TANH_SILU_ERROR = 1.1e-5
"""The absolute error of silu for results of 16 bits (common/activation.cuh)."""
EXPONENTIAL_SILU_ERROR = 2.0**-23
"""And for float32, beside five units of the result: __expf is off by 2 + 1.173 |v| ulp (CUDA programming guide), which
silu feels as at most 0.92 ulp of 1.
"""

STEPS = ("dt", "dt_bias", "delta", "delta_bias", "A", "z")
"""Arguments that exponentials are taken of; results are sums of products of all others."""


def errors(oracle: Oracle, workload: Workload, inputs: Arrays, options: Mapping[str, Any]) -> dict[str, Array]:
    """The absolute error per element that arithmetic explains, by result; none for a result that is copied."""
    make = _state_space if "A" in inputs else _convolution
    return make(oracle, workload, inputs, options)


def _sizes(oracle: Oracle, workload: Workload, inputs: Arrays, options: Mapping[str, Any]) -> dict[str, Array]:
    """The sums of the sizes of the terms that results are sums of."""
    positive = {
        name: np.abs(array) if _is_float(array) and name not in STEPS else array for name, array in inputs.items()
    }
    return {name: np.abs(array) for name, array in oracle(workload, positive, options).items()}


def _convolution(oracle: Oracle, workload: Workload, inputs: Arrays, options: Mapping[str, Any]) -> dict[str, Array]:
    """By result, the absolute error that arithmetic explains; nothing for what is copied."""
    if "weight" not in inputs:
        return {}
    linear = {**options, "activation": None}
    normalized = 2 if linear.pop("qk_l2norm", False) else 0
    # One rounding a tap; of silu in float32 its own five, of the oracle one.
    units = inputs["weight"].shape[1] + 8
    silu = TANH_SILU_ERROR if inputs["x"].dtype.itemsize == 2 else EXPONENTIAL_SILU_ERROR
    sizes = _sizes(oracle, workload, inputs, linear)
    errors = {
        name: SECOND_ORDER * (SILU_SLOPE * units * UNIT * size + silu)
        for name, size in sizes.items()
        if name not in workload.updated
    }
    if normalized:
        raw = oracle(workload, inputs, {**options, "qk_l2norm": False})
        eps = {**_defaults(workload.function), **options}["l2norm_eps"]
        for name in list(workload.outs)[:normalized]:
            errors[name] = _normalized(raw[name], errors[name], eps)
    return errors


def _defaults(function: str) -> dict[str, Any]:
    return {name: each.default for name, each in inspect.signature(getattr(cuconv, function)).parameters.items()}


def _normalized(heads: Array, error: Array, eps: float) -> Array:
    """Of vectors divided by their norms: what errors do to an element, and all together to the norm.

    Squares and their sum round once an addend, and root and quotient a few times.
    """
    norms = np.sqrt((heads * heads).sum(axis=-1, keepdims=True) + eps)
    off = np.sqrt((error * error).sum(axis=-1, keepdims=True)) + (heads.shape[-1] / 2 + 6) * UNIT * norms
    bound: Array = SECOND_ORDER * (error + np.abs(heads) / norms * off) / norms
    return bound


def _state_space(oracle: Oracle, workload: Workload, inputs: Arrays, options: Mapping[str, Any]) -> dict[str, Array]:
    """By result, the absolute error that arithmetic explains, in units of the sum of its terms' sizes.

    64: what a token adds feels dt, which is off by up to 20; decays feel it the more the more they decay, so that the
    terms that are left of all tokens feel it about once again; the gate is off by up to 20. 16 for every unit of a
    single step's exponent. 8 for every token that a term is carried on: 2 + 1.173 |v| ulp of an exponential, and the
    roundings of product and sum. One a state: they are added up.
    """
    exponents = _exponents(inputs, options)
    units = 64.0 + inputs["A"].shape[-1] + 16.0 * exponents[1] + 8.0 * _carried(inputs, exponents[0])
    sizes = _sizes(oracle, workload, inputs, options)
    return {name: SECOND_ORDER * units * UNIT * size for name, size in sizes.items()}


def _exponents(inputs: Arrays, options: Mapping[str, Any]) -> tuple[float, float]:
    """The least and the largest -dt * A there can be."""
    name, is_softplus = ("delta", "delta_softplus") if "delta" in inputs else ("dt", "dt_softplus")
    low, high = (
        sum(float(pick(inputs[each])) for each in (name, f"{name}_bias") if each in inputs) for pick in (np.min, np.max)
    )
    A = np.abs(inputs["A"].astype(np.float64))
    steps = softplus(np.array([low, high])) if options.get(is_softplus) else np.maximum(0.0, [low, high])
    return float(steps[0] * A.min()), float(steps[1] * A.max())


def _carried(inputs: Arrays, slowest: float) -> float:
    """Over how many tokens terms are carried on, their mean: 1 / (1 - decay), or as many as there are."""
    if "query_start_loc" in inputs:
        longest = int(np.diff(inputs["query_start_loc"]).max(initial=1))
    elif "u" in inputs:
        longest = inputs["u"].shape[-1]
    else:
        longest = inputs["x"].shape[1] if inputs["x"].ndim == 4 else 1
    decayed = -np.expm1(-slowest)
    return float(min(longest, 1.0 / decayed if decayed > 0.0 else np.inf))


def _is_float(array: Array) -> bool:
    return BY_NUMPY[array.dtype] in FLOATS
