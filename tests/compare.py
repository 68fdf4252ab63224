"""What a call left in memory against what it should have."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tests.placement import Array, Placed, assert_unchanged, assert_unchanged_around


def check_results(module: ModuleType, case: Any, before: dict[str, Placed], after: dict[str, Array]) -> None:
    """Outputs are right and nothing else was written; `after` holds the buffers that began as those of `before`."""
    for name, placed in before.items():
        if name in module.OUTPUTS:
            assert_unchanged_around(name, placed, after[name])
        else:
            assert_unchanged(name, placed, after[name])
    wanted = module.oracle(case, {name: placed.array for name, placed in before.items() if name not in module.OUTPUTS})
    assert wanted.keys() == before.keys() & set(module.OUTPUTS)
    relative, absolute = module.tolerance(case)
    for name, expected in wanted.items():
        assert_close(name, before[name].placement.view(after[name]), expected, relative, absolute)


def assert_close(name: str, got: Array, wanted: Array, relative: float, absolute: float) -> None:
    """Within the tolerance of a float64 oracle, the same bits as one of the array's own dtype."""
    assert got.shape == wanted.shape
    if wanted.dtype == got.dtype:
        excess = np.where(got.view(f"u{got.itemsize}") == wanted.view(f"u{got.itemsize}"), 0.0, np.inf)
    else:
        error = np.abs(got.astype(np.float64) - wanted)
        # NaN is never within.
        excess = np.where(error <= absolute + relative * np.abs(wanted), 0.0, error)
    wrong = np.argwhere(excess != 0.0)
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        raise AssertionError(
            f"{name}: {len(wrong)} of {got.size} elements are wrong, the first at {place}: "
            f"got {got[place]!r}, wanted {wanted[place]!r} within {relative:.3g} of it and {absolute:.3g}; "
            f"the last at {tuple(int(i) for i in wrong[-1])}"
        )
