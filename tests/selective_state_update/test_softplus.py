"""The softplus of the kernels against float64, over the whole range of float32."""

from __future__ import annotations

import numpy as np

from tests.selective_state_update import cases as table
from tests.support.placement import Array
from tests.support.runners import Runner

HALF_ULP = 2.0**-24

CASE = table.Case(64, 0, 40, 16, dtype="float32", without="all", slots=None)


def arguments_of(shape: tuple[int, ...]) -> Array:
    """Numbers of both signs from 2**-100 to 80, in equal steps of their logarithm, and as many from -80 to 80."""
    count = int(np.prod(shape)) // 4
    sizes = np.logspace(-30, np.log10(80.0), count)
    return np.concatenate([sizes, -sizes, np.linspace(-80.0, 80.0, 2 * count)]).astype(np.float32).reshape(shape)


def test_softplus_is_as_exact_as_it_is_said_to_be(run: Runner) -> None:
    """log(1 + exp(-|v|)) within 9 half ulp of itself, and the sum with max(v, 0) is rounded once more.

    dt' is seen in the state itself: that was zero, and x and B are 1.
    """
    values = CASE.inputs()
    for name, array in values.items():
        if CASE.is_written(name):
            array[...] = 0.0
        elif name in ("x", "B"):
            array[...] = 1.0
    v = arguments_of(values["dt"].shape)
    values["dt"][...] = v
    state = run(CASE, values)["state"]
    got = state[: len(v), :, 0].astype(np.float64)
    exact = v.astype(np.float64)
    logarithm = np.log1p(np.exp(-np.abs(exact)))
    wanted = np.maximum(exact, 0.0) + logarithm
    error = np.abs(got - wanted) / (9.0 * HALF_ULP * logarithm + HALF_ULP * wanted)
    assert error.max() <= 1.0, f"{error.max():.3g} times what it may be at {v.flat[error.argmax()]!r}"
    assert (state[: len(v)] == state[: len(v), :, :1]).all()
