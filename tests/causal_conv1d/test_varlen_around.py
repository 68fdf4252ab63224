"""What is around packed convolutions: results over x, gates, residuals, each with the bits of plain calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cuconv
from cuconv.causal_conv1d import update, varlen
from tests.causal_conv1d.cases_varlen import UNIT, Case
from tests.emulator.family import EmulatedArray
from tests.families.test_sequences import EACH_CALLER, Caller, uniform
from tests.support.compare import assert_same_bits
from tests.support.runners import Runner, emulated, on_gpu, prebuild

RUNS = [emulated, pytest.param(on_gpu, marks=pytest.mark.gpu)]
IN_PLACE = [case for case in UNIT if case.over or (case.dense and case.layout == "channel_first")]


@pytest.mark.parametrize("run", RUNS)
def test_a_result_over_x_has_the_bits_that_it_has_elsewhere(run: Runner) -> None:
    apart_cases = [replace(case, over=False, out=case.layout) for case in IN_PLACE]
    prebuild(run, [*apart_cases, *IN_PLACE])
    for case in apart_cases:
        values = case.inputs()
        values["x"] = case.random(1).uniform(-1, 1, values["x"].shape).astype(values["x"].dtype)
        apart = run(case, values)
        over = run(case, values, {"out": "x"})
        wanted = apart["out"]
        if case.keep:
            wanted = np.where(np.isnan(wanted.astype(np.float32)), values["x"], wanted)
        assert_same_bits(over["out"], wanted, f"out of {case.id}")
        for name in apart.keys() - {"out"}:
            assert_same_bits(over[name], apart[name], f"{name} of {case.id}")


def test_snapshots_of_no_sequence_read_no_border() -> None:
    """query_start_loc has one element then, and the rows of snapshots name no sequence."""
    kept = np.full((5, 4, 3), 7, np.float32)
    given = {"query_start_loc": np.zeros(1, np.int32), "snapshots": np.array([[0, 1, 2]])}
    out = cuconv.causal_conv1d_varlen_fn(
        EmulatedArray(np.ones((4, 2), np.float32)),
        EmulatedArray(np.ones((4, 4), np.float32)),
        snapshot_out=EmulatedArray(kept),
        **{name: EmulatedArray(array) for name, array in given.items()},
    )
    assert not out.array.any() and (kept == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("batch", ["off3+500in7000+300x1", "5000+40in900+300x1+1500", "2000x4"])
def test_many_blocks_over_x_give_the_same_bits_again_and_again(batch: str) -> None:
    """Several waves of blocks, which read what others overwrite unless each keeps to its own."""
    case = Case(4104, batch, initial="all")
    values = case.inputs()
    wanted = on_gpu(case, values)
    for repeat in range(8):
        got = on_gpu(case, values, {"out": "x"})
        for name, array in wanted.items():
            assert_same_bits(got[name], array, f"{name} of {case.id}, repeat {repeat}")


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


@EACH_CALLER
@pytest.mark.parametrize("gated", [False, True])
def test_arrays_by_token_are_the_same_call_transposed(call: Caller, gated: bool) -> None:
    dim, total, width = 12, 70, 4
    x, *gates = (uniform(i, dim, total).astype(np.float32) for i in range(3))
    pool, weight = (uniform(5, *shape).astype(np.float32) for shape in ((3, dim, width - 1), (dim, width)))
    has, names = np.array([True, False, True]), ("pre_gate", "post_gate") if gated else ()
    shared = {
        "weight": weight,
        "bias": None,
        "query_start_loc": np.array([0, 2, 40, 66]),
        "cache_indices": np.array([2, 0, 1]),
    }
    shared |= {"has_initial_state": has, "activation": "silu"}
    pools = pool.copy(), pool.copy()
    named = dict(zip(names, gates, strict=False))
    wanted = call(cuconv.causal_conv1d_varlen_fn, {**shared, **named, "x": x, "conv_states": pools[0]})
    named = {name: np.ascontiguousarray(each.T) for name, each in named.items()}
    arguments = {**shared, **named, "x": np.ascontiguousarray(x.T), "conv_states": pools[1]}
    got = call(varlen.convolve_by_token, arguments)
    np.testing.assert_array_equal(got, wanted.T)
    np.testing.assert_array_equal(*pools)


@EACH_CALLER
@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("tokens", [(), (1,), (3,)])
def test_steps_by_token_are_the_same_call_transposed(call: Caller, tokens: tuple[int, ...], windows: bool) -> None:
    batch, dim, width, seqlen = 3, 12, 4, *(tokens or (1,))
    x, weight = (uniform(i, *shape).astype(np.float32) for i, shape in enumerate(((batch, *tokens, dim), (dim, width))))
    states = [uniform(5, 5, dim, width).astype(np.float32) for _ in range(2)]
    buffers = [np.zeros((5, seqlen, dim, width), np.float32) if windows else None for _ in range(2)]
    shared = {"weight": weight, "bias": None, "activation": "silu", "conv_state_indices": np.array([4, -2, 1])}
    turned = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    own = {"x": turned, "conv_state": states[0], "intermediate_conv_window": buffers[0]}
    wanted = call(cuconv.causal_conv1d_update, {**shared, **own})
    own = {"x": x, "conv_state": states[1], "intermediate_conv_window": buffers[1]}
    got = call(update.step_by_token, {**shared, **own})
    np.testing.assert_array_equal(got, np.moveaxis(wanted, 1, -1))
    np.testing.assert_array_equal(*states)
    if windows:
        np.testing.assert_array_equal(*buffers)
