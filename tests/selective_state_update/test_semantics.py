"""Selective state updates on the caller's arrays: results that are new, and sequences apart from each other.

Graphs, streams, allocations and DLPack are tested in tests/families/test_fixed_calls.py, also for these updates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuconv
from tests.support.bad_input import KINDS, module_of
from tests.support.gpu import byte_strides

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
BATCH, TOKENS, HEADS, DIM, N, GROUPS, SLOTS = 3, 4, 4, 6, 16, 2, 7


def inputs(xp: Any, *lead: int, heads: bool = True, seed: int = 0) -> dict[str, Any]:
    """A call with these axes before the heads, a slot of its own for every sequence, and every parameter."""
    rows = (HEADS, DIM) if heads else (DIM,)
    grouped = (*lead, GROUPS, N) if heads else (*lead, N)
    shapes = dict.fromkeys(("x", "dt", "z"), (*lead, *rows)) | dict.fromkeys("BC", grouped)
    shapes |= {"state": (SLOTS, *rows, N), "A": (*rows, N), "D": rows, "dt_bias": rows}
    uniform = np.random.default_rng(seed).uniform
    return {name: xp.asarray(uniform(-1, 1, shape), np.float32) for name, shape in shapes.items()}


def copies(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: given.copy() if hasattr(given, "copy") else given for name, given in arguments.items()}


@EACH_KIND
@pytest.mark.parametrize(
    ("lead", "heads"),
    [((BATCH,), False), ((BATCH,), True), ((BATCH, TOKENS), True)],
    ids=["no-heads", "heads", "tokens"],
)
def test_a_new_result_has_no_gaps(lead: tuple[int, ...], heads: bool, kind: str) -> None:
    xp = module_of(kind)
    arguments = inputs(xp, *lead, heads=heads)
    shape = arguments["x"].shape
    wide = xp.zeros((*shape[:-1], shape[-1] + 3), np.float32)[..., :-3]
    wide[...] = arguments["x"]
    out = cuconv.selective_state_update(**{**arguments, "x": wide})
    assert out.shape == shape and out.dtype == np.float32 and type(out) is type(wide)
    strides = np.cumprod([4, *shape[:0:-1]])[::-1]
    assert byte_strides(out) == tuple(strides.tolist())


@EACH_KIND
@pytest.mark.parametrize("name", ["x", "dt", "B", "C", "z", "state"])
def test_nan_stays_in_its_sequence(name: str, kind: str) -> None:
    xp = module_of(kind)
    arguments = inputs(xp, BATCH, TOKENS)
    wanted = cuconv.selective_state_update(**copies(arguments))
    arguments[name][1] = np.nan
    got = cuconv.selective_state_update(**arguments)
    assert bool(xp.isnan(got[1]).all())
    assert got[0].tobytes() == wanted[0].tobytes() and got[2].tobytes() == wanted[2].tobytes()
    assert bool(xp.isfinite(arguments["state"][2]).all())
