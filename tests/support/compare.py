"""What a call left in memory against what it should have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tests import cases
from tests.support.placement import Array, Placed, assert_unchanged, assert_unchanged_around, bits

ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of rounding to a dtype."""


class Between(NamedTuple):
    """The least and the greatest that elements may be, in their own dtype; what may only stay is NaN in both."""

    low: Array
    high: Array


class Kept(NamedTuple):
    """What a result should be; NaN where it must keep its old contents, which are NaN before a call."""

    values: Array


def check_results(case: Any, before: dict[str, Placed], after: dict[str, Array]) -> None:
    """What is to be written is right, and nothing else was; `after` holds the buffers that began as `before`."""
    written = take_written(case, before, after)
    check_values(case, {name: p.array for name, p in before.items() if name not in case.OUTPUTS}, written)


def take_written(case: Any, before: dict[str, Placed], after: dict[str, Array]) -> dict[str, Array]:
    """The arrays that a call may write, out of their buffers; AssertionError when anything else was.

    Instead of the case its class will do.
    """
    found = {}
    for name, placed in before.items():
        if name in (*case.OUTPUTS, *case.UPDATED):
            assert_unchanged_around(name, placed, after[name])
            found[name] = placed.placement.view(after[name])
        else:
            assert_unchanged(name, placed, after[name])
    return found


def check_values(case: Any, inputs: dict[str, Array], written: Mapping[str, Array]) -> None:
    """The arrays that a call has written are right."""
    check_within(case.oracle(inputs), case.errors(inputs), written)


def check_call(
    function: str, arguments: Mapping[str, Any], wanted: Mapping[str, Array], written: Mapping[str, Array]
) -> None:
    """What a call of a public function has written is right."""
    check_within(wanted, cases.errors_of(function)(**arguments), written)


def check_within(wanted: Mapping[str, Any], errors: Mapping[str, Array], written: Mapping[str, Array]) -> None:
    """The written arrays are right within these errors and one rounding to their dtypes; a float32 result has none."""
    assert wanted.keys() == written.keys()
    assert errors.keys() <= wanted.keys()
    for name, expected in wanted.items():
        got = written[name]
        if isinstance(expected, Kept):
            is_kept = np.isnan(expected.values)
            assert np.isnan(got[is_kept]).all(), f"{name}: padding is written"
            got, expected = np.where(is_kept, 0, got), np.where(is_kept, 0.0, expected.values)
        if isinstance(expected, Between):
            assert_between(name, got, expected)
        elif name in errors:
            relative = 0.0 if got.dtype == np.float32 else ROUNDING[got.dtype.name]
            # Where nothing is computed, as in padding, a result is exact.
            is_computed = (errors[name] > 0) | (expected != 0)
            subnormal = np.where(is_computed, 2.0**-25 if got.dtype == np.float16 else 0.0, 0.0)
            assert_close(name, got, expected, relative, errors[name] + subnormal)
        else:
            assert_close(name, got, expected, 0.0, 0.0)


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
