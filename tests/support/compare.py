"""What a call left in memory against what it should have."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import cuconv
from tests import cases
from tests.support.bounds import stored
from tests.support.placement import Array, Placed, assert_unchanged, assert_unchanged_around, bits

EXACT = (0.0, 0.0)


class Between(NamedTuple):
    """The least and the greatest that elements may be, in their own dtype; what may only stay is NaN in both."""

    low: Array
    high: Array


def check_results(module: ModuleType, case: Any, before: dict[str, Placed], after: dict[str, Array]) -> None:
    """What is to be written is right, and nothing else was; `after` holds the buffers that began as `before`."""
    written = take_written(module, before, after)
    check_values(module, case, {name: p.array for name, p in before.items() if name not in module.OUTPUTS}, written)


def is_written(module: ModuleType, name: str) -> bool:
    """Whether a call may write the array of this name."""
    return name in module.OUTPUTS or name in module.UPDATED


def take_written(module: ModuleType, before: dict[str, Placed], after: dict[str, Array]) -> dict[str, Array]:
    """The arrays that may be written, out of their buffers; AssertionError when anything else was."""
    found = {}
    for name, placed in before.items():
        if is_written(module, name):
            assert_unchanged_around(name, placed, after[name])
            found[name] = placed.placement.view(after[name])
        else:
            assert_unchanged(name, placed, after[name])
    return found


def check_values(module: ModuleType, case: Any, inputs: dict[str, Array], written: dict[str, Array]) -> None:
    """The arrays that a call has written are right."""
    wanted = module.oracle(case, inputs)
    if hasattr(module, "tolerances"):
        tolerances = module.tolerances(case, inputs)
        assert wanted.keys() == written.keys()
        for name, expected in wanted.items():
            if isinstance(expected, Between):
                assert_between(name, written[name], expected)
            else:
                assert_close(name, written[name], expected, *tolerances.get(name, EXACT))
    else:
        check_call(cases.function_name(module), module.arguments(case, inputs), wanted, written)


def check_call(
    function: str, arguments: Mapping[str, Any], wanted: Mapping[str, Array], written: Mapping[str, Array]
) -> None:
    """What a call of a public function has written is right: within the errors that its family's reference allows."""
    assert wanted.keys() == written.keys()
    errors = errors_of(function)(**arguments)
    assert errors.keys() <= wanted.keys()
    for name, expected in wanted.items():
        got = written[name]
        relative, absolute = stored(got.dtype.name) if name in errors else EXACT
        assert_close(name, got, expected, relative, errors.get(name, 0.0) + absolute)


def errors_of(function: str) -> Any:
    """ERRORS of a public function."""
    family = getattr(cuconv, function).__module__.rpartition(".")[0]
    return importlib.import_module(f"{family}.reference").ERRORS[function]


def assert_close(name: str, got: Array, wanted: Array, relative: float, absolute: float | Array) -> None:
    """Within the tolerance of a float64 oracle, the same bits as one of the array's own dtype."""
    assert got.shape == wanted.shape
    if wanted.dtype == got.dtype:
        excess = np.where(bits(got) == bits(wanted), 0.0, np.inf)
    else:
        with np.errstate(over="ignore"):
            rounded = wanted.astype(got.dtype)
        with np.errstate(invalid="ignore"):
            error = np.abs(got.astype(np.float64) - wanted)
        # NaN is never within; what is too large for the dtype is infinite.
        excess = np.where((error <= absolute + relative * np.abs(wanted)) | (got == rounded), 0.0, error)
    wrong = np.argwhere(excess != 0.0)
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        within = float(np.broadcast_to(absolute, got.shape)[place])
        raise AssertionError(
            f"{name}: {len(wrong)} of {got.size} elements are wrong, the first at {place}: "
            f"got {got[place]!r}, wanted {wanted[place]!r} within {relative:.3g} of it and {within:.3g}; "
            f"the last at {tuple(int(i) for i in wrong[-1])}"
        )


def assert_between(name: str, got: Array, wanted: Between) -> None:
    """Within bounds; where these are NaN, that very NaN."""
    assert got.shape == wanted.low.shape and got.dtype == wanted.low.dtype
    value, low, high = (array.astype(np.float64) for array in (got, *wanted))
    is_wrong = ~(((low <= value) & (value <= high)) | (np.isnan(low) & (bits(got) == bits(wanted.low))))
    wrong = np.argwhere(is_wrong)
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        raise AssertionError(
            f"{name}: {len(wrong)} of {got.size} elements are wrong, the first at {place}: "
            f"got {got[place]!r}, wanted {low[place]!r} to {high[place]!r}; "
            f"the last at {tuple(int(i) for i in wrong[-1])}"
        )


def assert_same_bits(got: Array, wanted: Array, what: str) -> None:
    """NaN and the sign of zero included."""
    assert got.shape == wanted.shape
    different = bits(np.ascontiguousarray(got)) != bits(np.ascontiguousarray(wanted))
    assert not different.any(), f"{what}: {int(different.sum())} of {different.size} elements differ"
