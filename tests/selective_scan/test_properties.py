"""Selective scans, token by token as the formula says, in any chunks, and whatever the indices hold."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuconv
from cuconv.runtime import machine
from cuconv.selective_scan import plan_varlen, varlen
from tests.selective_scan import cases_dense as rows
from tests.selective_scan import cases_varlen as packed
from tests.support.compare import ROUNDING, assert_same_bits
from tests.support.entries import replaced
from tests.support.placement import Array
from tests.support.runners import Runner

SHAPES = st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 9), st.integers(1, 5))
SEEDS = st.integers(0, 2**32 - 1)


@given(SHAPES, SEEDS, st.booleans(), st.sets(st.sampled_from(["D", "z", "delta_bias", "initial_state"])))
def test_numpy_follows_the_formula(
    shape: tuple[int, int, int, int, int], seed: int, softplus: bool, without: set[str]
) -> None:
    batch, groups, group_dim, seqlen, d_state = shape
    dim, random = groups * group_dim, np.random.default_rng(seed)
    sizes = dict.fromkeys(("u", "delta", "z"), (batch, dim, seqlen)) | dict.fromkeys(("D", "delta_bias"), (dim,))
    sizes |= dict.fromkeys("BC", (batch, groups, d_state, seqlen)) | {"A": (dim, d_state)}
    sizes |= {"initial_state": (batch, dim, d_state)}
    a: dict[str, Any] = {name: random.uniform(-2, 2, size).astype(np.float32) for name, size in sizes.items()}
    a |= dict.fromkeys(without)
    out, last = cuconv.selective_scan_fn(**a, delta_softplus=softplus, return_last_state=True)
    assert out.shape == a["u"].shape and last.shape == (batch, dim, d_state)
    for b, d in np.ndindex(batch, dim):
        h = [0.0] * d_state if a["initial_state"] is None else [float(v) for v in a["initial_state"][b, d]]
        for t in range(seqlen):
            dt = float(a["delta"][b, d, t]) + (0.0 if a["delta_bias"] is None else float(a["delta_bias"][d]))
            dt = math.log1p(math.exp(dt)) if softplus else dt
            u, group = float(a["u"][b, d, t]), d // group_dim
            B, C = (a[name][b, group, :, t].astype(float) for name in "BC")
            h = [h[n] * math.exp(dt * float(a["A"][d, n])) + dt * B[n] * u for n in range(d_state)]
            y = math.fsum(C[n] * h[n] for n in range(d_state)) + (0.0 if a["D"] is None else float(a["D"][d]) * u)
            if a["z"] is not None:
                z = float(a["z"][b, d, t])
                y *= z / (1.0 + math.exp(-z))
            assert math.isclose(out[b, d, t], y, rel_tol=1e-5, abs_tol=1e-4)
        assert np.allclose(last[b, d], h, rtol=1e-5, atol=1e-4)


def assert_agree(got: Array, wanted: Array, off: Any, dtype: str) -> None:
    """Two results that each may be `off` and are rounded."""
    difference = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
    assert (difference <= 2 * off + 3 * ROUNDING[dtype] * np.abs(wanted.astype(np.float64)) + 2.0**-24).all()


@pytest.mark.parametrize(
    ("dtype", "cuts"), [("bfloat16", (304,)), ("bfloat16", (1, 2, 19, 301)), ("float32", (0, 256, 512))]
)
def test_chunks_agree_with_the_whole(dtype: str, cuts: tuple[int, ...], run: Runner) -> None:
    whole = rows.Case(1, 3, 520, 16, dtype=dtype, without="chunk_states_out")
    values = whole.inputs()
    wanted = run(whole, values)
    off = whole.errors(values)
    state = values["initial_state"]
    for begin, end in zip((0, *cuts), (*cuts, whole.seqlen), strict=True):
        cut = {name: values[name][..., begin:end] for name in ("u", "delta", "z", "B", "C")}
        part = run(replace(whole, seqlen=end - begin), {**values, **cut, "initial_state": state})
        assert_agree(part["out"], wanted["out"][..., begin:end], off["out"][..., begin:end], dtype)
        state = part["last_state_out"]
    assert_agree(state, wanted["last_state_out"], off["last_state_out"], "float32")


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("cuts", [(9,), (1, 3, 24)])
def test_packed_chunks_agree_with_rows(layout: str, cuts: tuple[int, ...], run: Runner) -> None:
    """A sequence in one call, in several with its state in the pool, and as a row."""
    row = rows.Case(1, 20, 40, 16, dtype="float32", without="chunk_states_out initial_state")
    values = row.inputs()
    wanted, off = run(row, values), row.errors(values)
    case = packed.Case(20, "40", dtype="float32", layout=layout, slots=None, initial="all", spare=0)
    pool = np.full((1, 20, 16), np.nan, np.float32)
    shared = {name: values[name] for name in ("A", "D", "delta_bias")}
    for begin, end in pairwise((0, *cuts, 40)):
        cut = {name: values[name][0, ..., begin:end] for name in ("u", "delta", "z", "B", "C")}
        indices = {"query_start_loc": np.array([0, end - begin]), "has_initial_state": np.array([begin > 0])}
        part = run(replace(case, batch=str(end - begin)), {**cut, **shared, **indices, "ssm_states": pool})
        assert_agree(part["out"], wanted["out"][0, :, begin:end], off["out"][0, :, begin:end], "float32")
        pool = part["ssm_states"]
    assert_agree(pool, wanted["last_state_out"], off["last_state_out"], "float32")


@pytest.mark.parametrize("layout", ["channels", "tokens"])
def test_bits_do_not_depend_on_who_takes_which_sequences(
    layout: str, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of one sequence, and of as many as can be."""
    # However many channels a GPU needs to be busy, the same sequences count as short: those are rounded otherwise.
    monkeypatch.setattr(plan_varlen, "FILL", 10**9)
    monkeypatch.setattr(plan_varlen, "MIXED", ((math.inf, math.inf),))
    case = packed.Case(140, "off3+40x1+0+2x3+30+1+4x60+9+7x1+off20", layout=layout, **packed.ODD)
    values = case.inputs()
    found = []
    for blocks, processors in ((10**4, 132), (1, 1)):
        monkeypatch.setattr(plan_varlen, "RUN_BLOCKS", blocks)
        monkeypatch.setattr(plan_varlen, "LONG_BLOCKS", blocks)
        forgetful = copy(varlen._packed_scan)
        forgetful._remembered, forgetful.recent = forgetful._prepare, ()  # type: ignore[assignment]
        with replaced(varlen, "_packed_scan", forgetful), machine.assuming(processors):
            found.append(run(case, values))
    for name, array in found[0].items():
        assert_same_bits(found[1][name], array, name)
