"""Gradients of random calls that lie anywhere: on a GPU against the oracle, and what holds of any gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuconv
from tests.causal_conv1d import cases_bwd, cases_varlen_bwd
from tests.support.compare import check_values
from tests.support.layouts import LAYOUTS, OTHERS, PACKED, POOLS
from tests.support.runners import on_gpu

FLAGS = st.booleans()
DTYPES = st.sampled_from(["float32", "float16", "bfloat16"])
# A kernel is compiled for each width.
WIDTHS = st.sampled_from([2, 4, 9])
ROWS = st.builds(
    cases_bwd.Case,
    batch=st.integers(1, 40), dim=st.integers(1, 150), seqlen=st.integers(1, 300), width=WIDTHS, dtype=DTYPES,
    layout=st.sampled_from([*LAYOUTS]), dout=st.sampled_from(["", *cases_bwd.EXPANDED, *LAYOUTS]),
    others=st.sampled_from([*OTHERS]), seq_idx=FLAGS, initial=FLAGS, final=FLAGS, float32=FLAGS,
)  # fmt: skip
BATCHES = st.lists(st.integers(0, 120), min_size=1, max_size=30).map(lambda counts: "+".join(map(str, counts)))
PACKS = st.builds(
    cases_varlen_bwd.Case,
    dim=st.integers(1, 150), batch=BATCHES, width=WIDTHS, dtype=DTYPES, layout=st.sampled_from([*PACKED]),
    dout=st.sampled_from(["", *cases_varlen_bwd.EXPANDED, *PACKED]), others=st.sampled_from([*OTHERS]),
    pool=st.sampled_from([*POOLS]), slots=st.sampled_from([None, "permuted", "odd"]),
    has=st.sampled_from([None, "mixed"]), final=FLAGS, float32=FLAGS,
)  # fmt: skip


@pytest.mark.gpu
@given(ROWS)
@settings(max_examples=60)
def test_rows_on_a_gpu(case: cases_bwd.Case) -> None:
    values = cases_bwd.inputs(case)
    check_values(cases_bwd, case, values, on_gpu(cases_bwd, case, values))


@pytest.mark.gpu
@given(PACKS)
@settings(max_examples=60)
def test_packed_sequences_on_a_gpu(case: cases_varlen_bwd.Case) -> None:
    values = cases_varlen_bwd.inputs(case)
    check_values(cases_varlen_bwd, case, values, on_gpu(cases_varlen_bwd, case, values))


SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 12), st.integers(1, 6))
SEEDS = st.integers(0, 2**32 - 1)


def random_call(shape: tuple[int, int, int, int], seed: int) -> dict[str, Any]:
    """Arguments in float32 without states, of small integers: sums of a few products of them are exact."""
    batch, dim, seqlen, width = shape
    random = np.random.default_rng(seed)
    shapes = {"x": (batch, dim, seqlen), "weight": (dim, width), "bias": (dim,), "dout": (batch, dim, seqlen)}
    return {name: random.integers(-8, 9, lengths).astype(np.float32) for name, lengths in shapes.items()}


@given(SHAPES, SEEDS)
def test_a_linear_gradient_is_the_adjoint_of_the_convolution(shape: tuple[int, int, int, int], seed: int) -> None:
    """<conv(x; weight), dout> = <x, dx> = <weight, dweight>, exactly, when there is neither bias nor activation."""
    call = random_call(shape, seed) | {"bias": None}
    dx, dweight, dbias, _ = cuconv.causal_conv1d_bwd(**call)
    out = cuconv.causal_conv1d_fn(call["x"], call["weight"])
    pairing = float((out.astype(np.float64) * call["dout"]).sum())
    assert dbias is None
    assert float((dx.astype(np.float64) * call["x"]).sum()) == pairing
    assert float((dweight.astype(np.float64) * call["weight"]).sum()) == pairing


@given(SHAPES, SEEDS)
def test_gradients_do_not_look_back(shape: tuple[int, int, int, int], seed: int) -> None:
    """What a token's dout changes lies at most width - 1 tokens before it, and not behind it."""
    call = random_call(shape, seed)
    seqlen, width = shape[2:]
    token = seed % seqlen
    before = cuconv.causal_conv1d_bwd(**call, activation="silu")[0]
    call["dout"][:, :, token] += 1.0
    changed = (cuconv.causal_conv1d_bwd(**call, activation="silu")[0] != before).any(axis=(0, 1))
    assert not changed[: max(0, token - width + 1)].any() and not changed[token + 1 :].any()
