"""The gradients' float64 oracle against central differences of the forward oracle, which knows nothing of gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from cuconv.causal_conv1d import reference, reference_backward
from tests.support.differences import ABSOLUTE, differences
from tests.support.placement import Array


def check(gradients: reference_backward.Gradients, of: Callable[[], float], arrays: Mapping[str, Array | None]) -> None:
    names = {"dx": "x", "dweight": "weight", "dbias": "bias", "dinitial_states": "initial_states"}
    for name, got in gradients._asdict().items():
        array = arrays[names[name]]
        if array is not None:
            np.testing.assert_allclose(got, differences(of, array), rtol=0, atol=ABSOLUTE, err_msg=name)


def numbers(random: np.random.Generator, batch: int, seqlen: int) -> Array:
    return np.sort(random.integers(-1, 3, (batch, seqlen)), axis=1)[:, random.permutation(seqlen)].astype(np.int32)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("width", [1, 2, 4, 7])
@pytest.mark.parametrize("seqlen", [1, 2, 9])
@pytest.mark.parametrize("numbered", [False, True])
def test_rows(activation: str | None, width: int, seqlen: int, numbered: bool) -> None:
    random = np.random.default_rng([width, seqlen, numbered])
    batch, dim = 2, 2
    shapes = {
        "x": (batch, dim, seqlen),
        "weight": (dim, width),
        "bias": (dim,),
        "initial_states": (batch, dim, width - 1),
    }
    a: dict[str, Any] = {name: random.uniform(-2, 2, shape) for name, shape in shapes.items()}
    a["seq_idx"] = numbers(random, batch, seqlen) if numbered else None
    dout, dfinal = random.uniform(-1, 1, shapes["x"]), random.uniform(-1, 1, shapes["initial_states"])

    def of() -> float:
        out, states = reference.causal_conv1d_fn(**a, activation=activation)
        return float((out * dout).sum() + (states * dfinal).sum())

    gradients = reference_backward.causal_conv1d_bwd(**a, dout=dout, dfinal_states=dfinal, activation=activation)
    check(gradients, of, a)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("with_states", [False, True])
def test_packed_sequences(activation: str | None, width: int, with_states: bool) -> None:
    """Sequences shorter than the filter, padding before and behind them, padded slots and sequences from zeros."""
    random = np.random.default_rng([width, with_states])
    dim, halo = 2, width - 1
    starts = np.array([1, 6, 7, 7, 9, 15, 17], np.int32)
    total, count = 19, len(starts) - 1
    slots, has = np.array([4, 0, 6, -1, 2, 99], np.int32), np.array([True, True, True, True, False, True])
    is_live = np.array([True, True, False, False, True, False]) if with_states else np.ones(count, bool)
    is_live[2] = False  # empty: the forward oracle leaves its slot as it is
    a: dict[str, Any] = {name: random.uniform(-2, 2, shape) for name, shape in
                         (("x", (dim, total)), ("weight", (dim, width)), ("bias", (dim,)))}  # fmt: skip
    pool = random.uniform(-2, 2, (7, dim, halo + 1)) if with_states else None
    own = {} if pool is None else {"cache_indices": slots, "has_initial_state": has}
    dout, dfinal = random.uniform(-1, 1, (dim, total)), random.uniform(-1, 1, (count, dim, halo))

    def of() -> float:
        out, updated = reference.causal_conv1d_varlen_fn(
            **a, conv_states=pool, query_start_loc=starts, activation=activation, **own
        )
        left = 0.0
        if pool is not None:
            states = updated["conv_states"]
            left = sum(float((states[slots[i], :, 1:] * dfinal[i]).sum()) for i in np.flatnonzero(is_live))
        return float((out * dout).sum()) + left

    gradients = reference_backward.causal_conv1d_varlen_bwd(
        **a, dout=dout, query_start_loc=starts, initial_states=pool, activation=activation, **own,
        dfinal_states=None if pool is None else dfinal,
    )  # fmt: skip
    check(gradients._replace(dinitial_states=None), of, {**a, "initial_states": None})
    if pool is not None:
        by_slot = differences(of, pool)[:, :, 1:]
        for i in np.flatnonzero(is_live):
            wanted = by_slot[slots[i]] if has[i] else np.zeros((dim, halo))
            np.testing.assert_allclose(gradients.dinitial_states[i], wanted, rtol=0, atol=ABSOLUTE)
        assert not gradients.dinitial_states[[3, 5]].any()
        np.testing.assert_array_equal(gradients.dinitial_states[2], dfinal[2] if has[2] and slots[2] < 7 else 0.0)


def test_the_slope_of_silu_is_exact_far_from_zero() -> None:
    v = np.array([-800.0, -40.0, -1.2784645427610738, 0.0, 40.0, 800.0])
    weight, x = np.ones((1, 1)), v.reshape(1, 1, -1)
    dx = reference_backward.causal_conv1d_bwd(x, weight, None, np.ones_like(x), activation="silu").dx.ravel()
    np.testing.assert_allclose(dx, [0.0, -39 * np.exp(-40.0), 0.0, 0.5, 1.0, 1.0], atol=1e-15)
