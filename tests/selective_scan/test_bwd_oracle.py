"""The gradients' float64 oracle against central differences of the forward oracle, which knows nothing of gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from cuconv.selective_scan import reference, reference_backward
from tests.support.differences import ABSOLUTE, differences
from tests.support.placement import Array

NAMES = dict(
    zip(
        reference_backward.Gradients._fields,
        ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state"),
        strict=True,
    )
)
"""Arguments by their gradients."""


def check(got: reference_backward.Gradients, of: Callable[[], float], arrays: Mapping[str, Array | None]) -> None:
    for name, gradient in got._asdict().items():
        array = arrays[NAMES[name]]
        assert (gradient is None) == (array is None)
        if array is not None:
            np.testing.assert_allclose(gradient, differences(of, array), rtol=0, atol=ABSOLUTE, err_msg=name)


def arrays_of(
    random: np.random.Generator, lead: tuple[int, ...], seqlen: int, constants: str, groups: int | None, without: str
) -> dict[str, Any]:
    """The arguments of a scan of four channels and three states."""
    dim, d_state = 4, 3
    row = (*lead, dim, seqlen)
    matrix = (*lead, *(() if groups is None else (groups,)), d_state, seqlen)
    states = lead[0] if lead else 3
    found = {
        "u": random.uniform(-1, 1, row),
        "delta": random.uniform(0.1, 1, row),
        "A": random.uniform(-1, -0.1, (dim, d_state)),
        "B": random.uniform(-1, 1, (dim, d_state) if "B" in constants else matrix),
        "C": random.uniform(-1, 1, (dim, d_state) if "C" in constants else matrix),
        "D": random.uniform(-1, 1, dim),
        "z": random.uniform(-2, 2, row),
        "delta_bias": random.uniform(0, 0.3, dim),
        "initial_state": random.uniform(-1, 1, (states, dim, d_state)),
    }
    return {name: None if name in without.split() else array for name, array in found.items()}


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("seqlen", [1, 6])
@pytest.mark.parametrize(
    ("constants", "groups", "without"),
    [("", None, ""), ("B", None, ""), ("C", 2, "z"), ("BC", None, "D"), ("", 4, "delta_bias initial_state")],
)
def test_rows(softplus: bool, seqlen: int, constants: str, groups: int | None, without: str) -> None:
    random = np.random.default_rng(seqlen)
    a = arrays_of(random, (2,), seqlen, constants, groups, without)
    dout, dlast = random.uniform(-1, 1, (2, 4, seqlen)), random.uniform(-1, 1, (2, 4, 3))

    def of() -> float:
        result = reference.selective_scan_fn(**a, delta_softplus=softplus)
        return float((result.out * dout).sum() + (result.last_state * dlast).sum())

    got = reference_backward.selective_scan_bwd(**a, dout=dout, dlast_state=dlast, delta_softplus=softplus)
    check(got, of, a)


def test_steps_longer_than_those_whose_softplus_is_bent() -> None:
    random = np.random.default_rng(0)
    a = arrays_of(random, (2,), 4, "", None, "")
    a["delta"] = random.uniform(20.5, 21.5, a["delta"].shape)
    a["A"] *= 0.05
    dout = random.uniform(-0.1, 0.1, (2, 4, 4))

    def of() -> float:
        return float((reference.selective_scan_fn(**a, delta_softplus=True).out * dout).sum())

    got = reference_backward.selective_scan_bwd(**a, dout=dout, delta_softplus=True)
    np.testing.assert_allclose(got.ddelta, differences(of, a["delta"]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("groups", [None, 2])
def test_packed_sequences(groups: int | None) -> None:
    """A sequence, an empty one and another, between padding."""
    random = np.random.default_rng(1)
    starts = (1, 4, 4, 8)
    a = arrays_of(random, (), 9, "", groups, "")
    dout, dlast = random.uniform(-1, 1, (4, 9)), random.uniform(-1, 1, (3, 4, 3))

    def of() -> float:
        total = 0.0
        for i, (begin, end) in enumerate(pairwise(starts)):
            cut = {name: a[name][None, ..., begin:end] for name in ("u", "delta", "B", "C", "z")}
            whole = {name: a[name] for name in ("A", "D", "delta_bias")}
            one = reference.selective_scan_fn(**cut, **whole, initial_state=a["initial_state"][i : i + 1])
            total += float((one.out[0] * dout[:, begin:end]).sum() + (one.last_state[0] * dlast[i]).sum())
        return total

    got = reference_backward.selective_scan_varlen_bwd(
        **a, dout=dout, dlast_state=dlast, query_start_loc=np.array(starts)
    )
    check(got, of, a)
