"""Arguments of every function that stores states as codes with scales, or rounds them at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuconv.runtime import checks
from cuconv.runtime.dtypes import CODES, FLOAT32, INT64
from cuconv.runtime.errors import message, one_of
from cuconv.runtime.layout import Layout
from cuconv.runtime.plan import Layouts

DEFAULT_ROUNDS = 10
"""Rounds of Philox where none are asked for, as in Triton."""

MAX_ROUNDS = 20
"""Most rounds of Philox."""


def rounds_of(philox_rounds: object) -> int:
    """The rounds of Philox; 0 stands for DEFAULT_ROUNDS."""
    rounds = checks.integer("philox_rounds", philox_rounds)
    checks.between("philox_rounds", rounds, 0, MAX_ROUNDS)
    return rounds or DEFAULT_ROUNDS


def seed_of(rand_seed: Any) -> tuple[int | None, Any]:
    """A seed that is a number, and one that is an array; at most one of them is not None."""
    if rand_seed is None or not isinstance(rand_seed, (int, np.integer)):
        return None, rand_seed
    if isinstance(rand_seed, bool):
        checks.integer("rand_seed", rand_seed)
    checks.between("rand_seed", int(rand_seed), 0, 2**64 - 1)
    return int(rand_seed), None


def check_seed(rand_seed: Layout | None) -> None:
    """Check a seed that is an array."""
    if rand_seed is not None:
        checks.dtype("rand_seed", rand_seed.dtype, (INT64,))
        if rand_seed.size != 1:
            raise ValueError(message("rand_seed", f"shape {rand_seed.shape}", "one element"))


def check_scales(given: Layouts, scales_of: dict[str, str]) -> None:
    """Check the scales of states that are codes: a float32 for each row, with or without a last axis of 1.

    Args:
        given: the layouts of a call; any of these arrays may be missing.
        scales_of: the argument that has the scales, by the argument that has the states.
    """
    for states_name, name in scales_of.items():
        states, scales = given.get(states_name), given.get(name)
        if states is None or states.dtype not in CODES:
            if scales is not None:
                wanted = f"None unless {states_name} is {one_of(CODES)}"
                raise ValueError(message(name, "an array", wanted))
            continue
        shape = states.shape[:-1]
        if scales is None:
            raise ValueError(message(name, "None", f"an array {shape} beside {states_name} of {states.dtype}"))
        checks.dtype(name, scales.dtype, (FLOAT32,))
        if scales.shape != (*shape, 1):
            checks.shape(name, scales.shape, shape, f"{states_name} before d_state")
