"""Equal tokens give equal bits: one by one, together or in a prefill, in every layout, in place or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.causal_conv1d import cases_varlen
from tests.causal_conv1d.cases_dense import ALL_GATES
from tests.causal_conv1d.cases_update import Case
from tests.causal_conv1d.test_varlen_bitwise import DTYPES, WIDTHS, live
from tests.support.compare import assert_same_bits
from tests.support.layouts import LAYOUTS, POOLS
from tests.support.placement import Array
from tests.support.runners import Runner, Values, prebuild

PLAIN = ("channels", "channels_longer", "columns", "columns_and_one")
DIM, BATCH = 32, 3
SMALL = 256, 5
"""Channels and sequences of a step that is as small as those of an engine with few requests."""

EACH_WIDTH = pytest.mark.parametrize("width", WIDTHS)
EACH_POOL = pytest.mark.parametrize("pool", PLAIN)


def inputs(case: Any) -> Values:
    """The case's, every column of every state a number."""
    values: Values = case.inputs()
    state = values["conv_state"]
    state[...] = np.random.default_rng(0).uniform(-1, 1, state.shape)
    return values


def prefill(run: Runner, case: Case, values: Values, x: Array, initial: bool = True) -> tuple[Array, Array]:
    """x (batch, dim, seqlen) as packed sequences after the same states: outputs in x's shape, and the pool."""
    batch, dim, seqlen = x.shape
    packed = cases_varlen.Case(
        dim, f"{batch}x{seqlen}", case.width, case.dtype, state_dtype=case.state_dtype, pool=case.pool, initial="all"
    )
    arrays = {
        "x": x.transpose(1, 0, 2).reshape(dim, -1),
        "conv_states": values["conv_state"],
        "query_start_loc": np.arange(batch + 1) * seqlen,
        "cache_indices": values["conv_state_indices"],
        "has_initial_state": np.full(batch, initial),
    }
    got = run(packed, arrays | {name: values[name] for name in ("weight", "bias")})
    return got["out"].reshape(dim, batch, seqlen).transpose(1, 0, 2), got["conv_states"]


ACCEPTED = np.array([[1, 4, 2], [4, 1, 3], [3, 2, 1], [2, 4, 4]])
"""How many of four drafts are accepted, by call and sequence."""


def drafts(x: Array, begins: Array, call: int) -> Array:
    """Four tokens of every sequence from its own begin on, and wrong ones where those to come are not accepted."""
    tokens = np.stack([each[:, begin : begin + 4] for each, begin in zip(x, begins, strict=True)])
    for i, count in enumerate(ACCEPTED[call]):
        tokens[i, :, count:] = -3
    return tokens


@EACH_WIDTH
@EACH_POOL
def test_accepted_drafts_have_the_bits_of_a_prefill(pool: str, width: int, run: Runner) -> None:
    """A state that is longer by the drafts to come keeps them until the next call says which were accepted."""
    case = Case(DIM, BATCH, 4, width, pool=pool, mode="accepted")
    values, plain = inputs(case), Case(DIM, BATCH, 16, width)
    x = plain.inputs()["x"]
    first = inputs(plain) | {name: values[name] for name in ("weight", "bias", "conv_state_indices")}
    wanted, _ = prefill(run, plain, first, x)
    values["conv_state"][:, :, : width - 1] = first["conv_state"]
    begins, accepted = np.zeros(BATCH, int), np.ones(BATCH, int)
    for call, counts in enumerate(ACCEPTED):
        given = {**values, "x": drafts(x, begins, call), "num_accepted_tokens": accepted}
        got = run(case, given)
        for i, (begin, count) in enumerate(zip(begins, counts, strict=True)):
            assert_same_bits(got["out"][i, :, :count], wanted[i, :, begin : begin + count], f"call {call}")
        values["conv_state"] = got["conv_state"]
        begins, accepted = begins + counts, counts


@EACH_WIDTH
@EACH_POOL
@pytest.mark.parametrize("window", ["channels", "columns"])
def test_windows_of_drafts_are_the_states_of_a_prefill(window: str, pool: str, width: int, run: Runner) -> None:
    """Drafts that leave the states alone, but leave windows: that of the last accepted one is the next state."""
    case = Case(DIM, BATCH, 4, width, pool=pool, window=window, rows=True, frozen=True)
    values = inputs(case)
    x = replace(case, seqlen=16).inputs()["x"]
    wanted, _ = prefill(run, case, values, x)
    begins = np.zeros(BATCH, int)
    for call, counts in enumerate(ACCEPTED):
        got = run(case, {**values, "x": drafts(x, begins, call)})
        assert_same_bits(got["conv_state"], values["conv_state"], "states")
        for i, (begin, count) in enumerate(zip(begins, counts, strict=True)):
            assert_same_bits(got["out"][i, :, :count], wanted[i, :, begin : begin + count], f"call {call}")
            row, slot = values["intermediate_state_indices"][i], values["conv_state_indices"][i]
            live(values["conv_state"], case)[slot] = got["intermediate_conv_window"][row, count - 1]
        begins = begins + counts
    for i, slot in enumerate(values["conv_state_indices"]):
        past = [live(inputs(case)["conv_state"], case)[slot], x[i, :, : begins[i]]]
        wanted_state = np.concatenate(past, axis=1)[:, begins[i] :]
        assert_same_bits(live(values["conv_state"], case)[slot], wanted_state, f"state of sequence {i}")


ALIKE = [name for name, (x, out) in LAYOUTS.items() if x == out and name != "last_broadcast_batch"]


@pytest.mark.parametrize("seqlen", [None, 1, 3, 6])
@EACH_POOL
@pytest.mark.parametrize("layout", ALIKE)
def test_out_may_be_x(layout: str, pool: str, seqlen: int | None, run: Runner) -> None:
    for mode in ("shift", "circular", "accepted"):
        case = Case(DIM, BATCH, seqlen, layout=layout, pool=pool, mode=mode, window="channels", slots="odd")
        assert case.placements()["x"] == case.placements()["out"]
        values = case.inputs()
        apart, in_place = run(case, values), run(case, values, {"out": "x"})
        for name, wanted in apart.items():
            assert_same_bits(in_place[name], wanted, f"{name} of {mode}")


@pytest.mark.parametrize("pool", ["channels", "columns_and_one"])
@pytest.mark.parametrize("gates", ["", ALL_GATES])
def test_out_of_small_steps_may_be_x(gates: str, pool: str, run: Runner) -> None:
    case = Case(*SMALL, None, pool=pool, slots="odd", gates=gates)
    values = case.inputs()
    apart, in_place = run(case, values), run(case, values, {"out": "x"})
    for name, wanted in apart.items():
        assert_same_bits(in_place[name], wanted, name)


@pytest.mark.parametrize("sizes", [(DIM, 4, 3), (*SMALL, None)])
@pytest.mark.parametrize("pool", ["channels", "columns"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gates_and_residuals_are_products_and_sums_apart(dtype: str, pool: str, sizes: Any, run: Runner) -> None:
    """Products of 16 bits by 16 bits are exact in float32, so that a sum with them rounds once in either way."""
    case = Case(*sizes, 4, dtype, pool=pool, gates=ALL_GATES)
    values = case.inputs()
    x, pre, post, residual = (values[name].astype(np.float32) for name in ("x", *ALL_GATES.split()))
    rounded = values["x"].dtype
    got = run(case, values)
    plain = run(replace(case, gates=""), {**values, "x": (pre * x).astype(rounded)})
    wanted = plain["out"].astype(np.float32) * post + residual
    assert_same_bits(got["out"], wanted.astype(rounded), "out")
    assert_same_bits(got["conv_state"], plain["conv_state"], "states")


@pytest.mark.parametrize("sizes", [(DIM, BATCH, None), (*SMALL, None), (DIM, BATCH, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_gives_the_same_bits(dtype: str, sizes: Any, run: Runner) -> None:
    case = Case(*sizes, 4, dtype)
    others = [replace(case, layout=layout) for layout in LAYOUTS if "broadcast" not in layout]
    others += [
        replace(case, layout=layout, pool=pool) for layout in ("channel_first", "channel_last") for pool in POOLS
    ]
    prebuild(run, others)
    values = case.inputs()
    wanted = run(case, values)
    for other in others:
        state = np.zeros(other.placements()["conv_state"].shape, values["conv_state"].dtype)
        live(state, case)[...] = values["conv_state"]
        got = run(other, {**values, "conv_state": state})
        assert_same_bits(got["out"], wanted["out"], other.id)
        assert_same_bits(live(got["conv_state"], case), wanted["conv_state"], f"states of {other.id}")
