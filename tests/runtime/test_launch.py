"""The arithmetic of launches: numbers only."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuconv.runtime.launch import MAX_DIVIDEND, MAX_GRID, LaunchConfig, ceil_div, fast_div, widest_vector

DIVISORS = [1, 2, 3, 5, 7, 31, 32, 33, 64, 127, 641, 1000, 65535, 65536, 65537, 2**20 - 1, 2**30, 2**30 + 1,
            2**31 - 3, 2**31 - 2, MAX_DIVIDEND]  # fmt: skip


def divide(n: int, by: tuple[int, int, int]) -> int:
    """FastDiv::quotient of common/fastdiv.cuh, in 32-bit unsigned arithmetic."""
    divisor, multiplier, shift = by
    assert divisor < 2**32 and multiplier < 2**32 and shift < 32
    return ((((n * multiplier) >> 32) + n) % 2**32) >> shift


@pytest.mark.parametrize(
    ("numerator", "denominator", "quotient"), [(0, 3, 0), (1, 3, 1), (3, 3, 1), (4, 3, 2), (2**62 + 1, 2, 2**61 + 1)]
)
def test_ceil_div(numerator: int, denominator: int, quotient: int) -> None:
    assert ceil_div(numerator, denominator) == quotient


@pytest.mark.parametrize("divisor", DIVISORS)
def test_fast_division_is_exact_to_the_largest_dividend(divisor: int) -> None:
    by = fast_div(divisor)
    multiples = {MAX_DIVIDEND // divisor * divisor, divisor, 2**30 // divisor * divisor}
    for n in {0, 1, MAX_DIVIDEND - 1, MAX_DIVIDEND, *multiples, *(m - 1 for m in multiples if m)}:
        assert divide(n, by) == n // divisor
    for n in random.Random(divisor).choices(range(MAX_DIVIDEND), k=1000):
        assert divide(n, by) == n // divisor


@given(st.integers(1, MAX_DIVIDEND), st.integers(0, MAX_DIVIDEND))
@settings(max_examples=2000)
def test_fast_division_is_exact(divisor: int, n: int) -> None:
    assert divide(n, fast_div(divisor)) == n // divisor


@pytest.mark.parametrize("divisor", [-1, 0, MAX_DIVIDEND + 1])
def test_a_divisor_out_of_range_is_refused(divisor: int) -> None:
    with pytest.raises(ValueError, match=f"divisor is {divisor}; wanted 1 to {MAX_DIVIDEND}"):
        fast_div(divisor)


@pytest.mark.parametrize(
    ("itemsize", "quantities", "limit", "vec"),
    [
        (2, (), 16, 8),
        (4, (), 16, 4),
        (2, (), 8, 4),
        (2, (0, 16, -24), 16, 8),
        (2, (8, 12), 16, 4),
        (2, (8, -2), 16, 2),
        (2, (8, 7), 16, 1),
        (4, (2, 4), 16, 2),
        (4, (2**40 + 1,), 16, 1),
    ],
)
def test_the_widest_vector(itemsize: int, quantities: tuple[int, ...], limit: int, vec: int) -> None:
    assert widest_vector(itemsize, *quantities, limit=limit) == vec


def test_a_grid_has_a_limit() -> None:
    assert LaunchConfig((MAX_GRID, 1, 1), (32, 1, 1)).threads == 32 * MAX_GRID
    with pytest.raises(ValueError, match=f"the problem needs {MAX_GRID + 1} blocks; a launch takes at most {MAX_GRID}"):
        LaunchConfig((MAX_GRID + 1, 1, 1), (32, 1, 1))


def test_a_launch_config_is_a_value() -> None:
    config = LaunchConfig((2, 3, 4), (32, 2, 1), 1024)
    assert config == LaunchConfig((2, 3, 4), (32, 2, 1), 1024)
    assert hash(config) == hash(LaunchConfig((2, 3, 4), (32, 2, 1), 1024))
    assert config != LaunchConfig((2, 3, 4), (32, 2, 1))
    assert config.threads == 2 * 3 * 4 * 32 * 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.shared_mem = 0  # type: ignore[misc]
