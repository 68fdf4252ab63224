"""What is around packed convolutions: results over x, gates, residuals, each with the bits of plain calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cuconv
from tests.causal_conv1d.cases_varlen import UNIT, Case
from tests.causal_conv1d.varlen import without
from tests.families.test_sequences import EACH_CALLER, Caller, uniform
from tests.support.compare import assert_same_bits
from tests.support.runners import Runner, emulated, on_gpu, prebuild

RUNS = [emulated, pytest.param(on_gpu, marks=pytest.mark.gpu)]
IN_PLACE = [
    *(case for case in UNIT if case.dense and case.layout == "channel_first"),
    Case(5, "off3+1029+0+2+3+500+off7", layout="tokens", pool="columns", initial="all"),
    Case(5, "off3+70+0+2+3+50+off7", 7, "float32", layout="tokens", slots="odd", keep=True),
    Case(9, "off3+70+0+2+3+50+off7", 3, "float16", moved=True, initial="all", snapshots="pool"),
    Case(3, "1+2+3+90", 16, layout="tokens_offset_by_2", snapshots="whole", initial="all", read_only=True),
    Case(3, "300+600", 4, layout="tokens_aligned", snapshots="pool", state_dtype="float32", initial="all"),
    # Channels contiguous: sequences that cross borders between tiles, that begin a few tokens before one, that end with one.
    Case(136, "off62+64+1+1+2x3+120+62+5+0+3x1+off66", initial="all", snapshots="pool", slots="odd"),
    Case(136, "63+66+127+1+63+2", 2, "float16", initial="all", moved=True, keep=True),
    Case(70, "61+200+9x13+off5", 5, "float32", pool="columns_longer", snapshots="pool", moved=True, initial="all"),
    Case(10, "50+29+49+130", 16, layout="channels_sliced_by_2", state_dtype="float32", snapshots="whole"),
    Case(12, "60+70+off5+2", 9, "float16", layout="channels_backward", initial="all", activation=None),
    Case(9, "120+70", 1, "float32", snapshots="pool", layout="channels_offset_by_1"),
    without(Case(24, "200+70+3", snapshots="whole")),
    without(Case(24, "200+70+3", 3)),
]


@pytest.mark.parametrize("run", RUNS)
def test_a_result_over_x_has_the_bits_that_it_has_elsewhere(run: Runner) -> None:
    prebuild(run, IN_PLACE)
    for case in IN_PLACE:
        values = case.inputs()
        values["x"] = case.random(1).uniform(-1, 1, values["x"].shape).astype(values["x"].dtype)
        apart = run(replace(case, out=case.layout), values)
        over = run(replace(case, out=case.layout), values, {"out": "x"})
        wanted = apart["out"]
        if case.keep:
            wanted = np.where(np.isnan(wanted.astype(np.float32)), values["x"], wanted)
        assert_same_bits(over["out"], wanted, f"out of {case.id}")
        for name in apart.keys() - {"out"}:
            assert_same_bits(over[name], apart[name], f"{name} of {case.id}")


@EACH_CALLER
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("order", ["C", "F"])
def test_gates_are_products_of_rounded_results(call: Caller, dtype: Any, order: str) -> None:
    """LFM2's gates around a convolution, and a residual behind them, as elementwise operations would compute them."""
    dim, total, width = 12, 70, 3
    arrays = [np.asarray(uniform(i, dim, total).astype(dtype), order=order) for i in range(4)]
    x, pre, post, residual = arrays
    weight, pool = uniform(5, dim, width).astype(dtype), uniform(6, 3, dim, width - 1).astype(dtype)
    common = {"weight": weight, "query_start_loc": np.array([0, 2, 40, 70]), "has_initial_state": np.array([True] * 3)}
    plain_pool, gated_pool = pool.copy(), pool.copy()
    product = np.asarray((pre.astype(np.float32) * x.astype(np.float32)).astype(dtype), order=order)
    plain = call(cuconv.causal_conv1d_varlen_fn, {**common, "x": product, "conv_states": plain_pool})
    for gates in ({}, {"post_gate": post}, {"residual": residual}, {"post_gate": post, "residual": residual}):
        wanted = plain.astype(np.float32)
        if "post_gate" in gates:
            wanted = wanted * post.astype(np.float32)
        gated_pool[...] = pool
        arguments = {**common, "x": x, "conv_states": gated_pool, "pre_gate": pre, **gates}
        out = call(cuconv.causal_conv1d_varlen_fn, arguments)
        np.testing.assert_array_equal(gated_pool.view(np.uint16), plain_pool.view(np.uint16))
        if "residual" not in gates:
            np.testing.assert_array_equal(out, wanted.astype(dtype))
