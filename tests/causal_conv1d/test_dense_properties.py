"""The NumPy path and the GPU on random arrays that lie anywhere, against the formula itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuconv
from cuconv.runtime import checks
from cuconv.runtime.arrays import family
from cuconv.runtime.dtypes import FLOAT32
from cuconv.runtime.layout import View
from tests.causal_conv1d.cases_dense import Case
from tests.causal_conv1d.strategies import calls
from tests.support.compare import check_call, check_values
from tests.support.gpu import CupyArrays
from tests.support.placement import Array, Placed, Placement
from tests.support.strategies import lain_out

SMALL = st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 9))
LARGER = st.tuples(st.integers(1, 5), st.integers(1, 150), st.integers(1, 300))
ACTIVATIONS = st.sampled_from([None, "silu", "swish"])
SEEDS = st.integers(0, 2**32 - 1)


def formula(inputs: dict[str, Array], activation: str | None) -> Array:
    """The definition, one product at a time, in the order that a reader would check it by."""
    x, weight = inputs["x"].astype(np.float64), inputs["weight"].astype(np.float64)
    bias, seq_idx, past = (inputs.get(name) for name in ("bias", "seq_idx", "initial_states"))
    (batch, dim, seqlen), width = x.shape, weight.shape[1]
    out = np.zeros(x.shape)
    for b in range(batch):
        for d in range(dim):
            for t in range(seqlen):
                terms = [0.0 if bias is None else float(bias[d])]
                for w in range(width):
                    source = t - (width - 1) + w
                    if seq_idx is not None and seq_idx[b, max(source, 0)] != seq_idx[b, t]:
                        continue
                    if source >= 0:
                        terms.append(weight[d, w] * x[b, d, source])
                    elif past is not None:
                        terms.append(weight[d, w] * float(past[b, d, width - 1 + source]))
                v = math.fsum(terms)
                out[b, d, t] = v if activation is None else v / (1.0 + math.exp(-v))
                if seq_idx is not None and seq_idx[b, t] < 0:
                    out[b, d, t] = 0.0
    return out


def last_inputs(inputs: dict[str, Array]) -> Array:
    """The final states: what a row of past and x ends with."""
    x, halo = inputs["x"], inputs["weight"].shape[1] - 1
    past = inputs.get("initial_states", np.zeros((*x.shape[:2], halo), x.dtype))
    states = np.empty((*x.shape[:2], halo), x.dtype)
    for b, d in np.ndindex(*x.shape[:2]):
        row = [*past[b, d], *x[b, d]]
        states[b, d] = row[len(row) - halo :]
    return states


def fill(placements: dict[str, Placement], seed: int) -> dict[str, Placed]:
    """Memory for a call: values from -1 to 1, few sequence numbers, NaN in the outputs."""
    random = np.random.default_rng(seed)
    placed = {}
    for name, lies in placements.items():
        values: Any = random.uniform(-1, 1, lies.shape)
        if name == "seq_idx":
            values = random.integers(-1, 3, lies.shape)
        placed[name] = Placed(lies, None if name in Case.OUTPUTS else values)
    return placed


def split(placed: dict[str, Placed]) -> tuple[dict[str, Array], dict[str, Array]]:
    arrays = {name: each.array for name, each in placed.items()}
    outputs = {name: arrays.pop(name) for name in Case.OUTPUTS if name in arrays}
    return arrays, outputs


@given(calls(SMALL, st.integers(1, 6)), ACTIVATIONS, SEEDS)
def test_numpy_follows_the_formula(placements: dict[str, Placement], activation: str | None, seed: int) -> None:
    inputs, outputs = split(fill(placements, seed))
    arguments: dict[str, Any] = inputs | outputs
    has_states = "final_states_out" in outputs
    cuconv.causal_conv1d_fn(**arguments, activation=activation, return_final_states=has_states)
    wanted = {"out": formula(inputs, activation)} | ({"final_states_out": last_inputs(inputs)} if has_states else {})
    check_call("causal_conv1d_fn", {**inputs, "activation": activation}, wanted, outputs)


@pytest.mark.gpu
@given(calls(LARGER, st.just(4), is_mixed=False), SEEDS)
def test_gpu_follows_the_oracle(placements: dict[str, Placement], seed: int) -> None:
    # Few specialisations: to compile more would take all the time, and the case tables have the others.
    activation = "silu"
    placed = fill(placements, seed)
    uploaded = {name: CupyArrays.upload(each) for name, each in placed.items()}
    views: dict[str, Any] = {name: view for name, (_, view) in uploaded.items()}
    has_states = "final_states_out" in views
    cuconv.causal_conv1d_fn(**views, activation=activation, return_final_states=has_states)
    inputs, outputs = split(placed)
    got = {name: placements[name].view(CupyArrays.download(uploaded[name][0])) for name in outputs}
    check_values(Case(1, 1, 1, activation=activation, final=has_states), inputs, got)


SHAPES = st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 5))


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Array, Array]:
    """Two views of one buffer, of any strides."""
    lies = [draw(lain_out(FLOAT32, draw(SHAPES))) for _ in range(2)]
    offsets = [draw(st.integers(0, 40)) for _ in lies]
    buffer = np.zeros(max(each.size for each in lies) + 40, np.float32)
    first, second = (each.view(buffer[offset:]) for each, offset in zip(lies, offsets, strict=True))
    return first, second


def addresses(array: Array) -> list[int]:
    """The addresses of all elements, sorted."""
    places = np.indices(array.shape).reshape(array.ndim, array.size)
    return sorted(int(array.ctypes.data + np.dot(array.strides, place)) for place in places.T)


def is_refused(check: Any, *arguments: Any) -> bool:
    try:
        check(*arguments)
    except ValueError:
        return True
    return False


def view_of(array: Array) -> View:
    kind = family(array)
    assert kind is not None
    (pointer,), (facts,) = kind.inspect(("x",), (array,))
    assert facts is not None
    return View(pointer, kind.layout("x", facts))


@given(neighbours())
def test_disjoint_is_exact(pair: tuple[Array, Array]) -> None:
    first, second = pair
    share = bool(set(addresses(first)) & set(addresses(second)))
    assert is_refused(checks.disjoint, "out", view_of(first), "x", view_of(second)) == share


@given(st.tuples(*[st.integers(0, 4)] * 3), st.tuples(*[st.integers(-40, 40)] * 3))
def test_what_may_be_written_has_an_address_for_every_element(
    shape: tuple[int, int, int], strides: tuple[int, int, int]
) -> None:
    places = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)]
    if not is_refused(checks.not_self_overlapping, "out", shape, strides):
        assert len(set(places)) == len(places)


@given(lain_out(FLOAT32, (3, 4, 5), is_written=True))
def test_slices_of_a_tensor_may_be_written(lies: Placement) -> None:
    checks.not_self_overlapping("out", lies.shape, lies.strides)


@given(lain_out(FLOAT32, (2, 3, 4)))
def test_a_span_is_from_the_first_byte_to_the_last(lies: Placement) -> None:
    array = lies.view(np.zeros(lies.size, np.float32))
    pointer, layout = view_of(array)
    begin, end = layout.span
    assert (pointer + begin, pointer + end) == (addresses(array)[0], addresses(array)[-1] + 4)
