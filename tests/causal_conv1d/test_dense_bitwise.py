"""Equal inputs give equal bits: in every layout, by every kernel, whole or in chunks, again and again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cuconv.causal_conv1d.kernels import CausalConv1dChannellastFwd, CausalConv1dFwd, CausalConv1dShortseqFwd
from cuconv.runtime.kernel import Kernel
from tests import emulator
from tests.causal_conv1d.cases_dense import ALL, STATES, Case
from tests.support.compare import assert_same_bits
from tests.support.layouts import LAYOUTS
from tests.support.placement import Array
from tests.support.runners import Runner, Values, emulated

DTYPES = ("float32", "float16", "bfloat16")


def kernel_of(case: Case) -> Kernel:
    (launch,) = case.launches()
    return launch.kernel


def results(run: Runner, case: Case, values: Values) -> tuple[Array, Array]:
    """out and the final states."""
    written = run(case, values)
    return written["out"], written["final_states_out"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_gives_the_same_bits(dtype: str, run: Runner) -> None:
    case = Case(2, 6, 75, 4, dtype, **ALL)
    values = case.inputs()
    values["x"][1] = values["x"][0]  # so that the layouts with batch stride 0 hold the same, too
    others = [replace(case, layout=layout) for layout in LAYOUTS]
    kernels = {kernel_of(other) for other in others}
    if run is emulated:
        emulator.prebuild(kernels)
    out, states = results(run, case, values)
    for other in others:
        got, got_states = results(run, other, values)
        assert_same_bits(got, out, other.layout)
        assert_same_bits(got_states, states, f"states of {other.layout}")
    vectors = {(type(kernel), kernel.vec) for kernel in kernels}  # type: ignore[attr-defined]
    assert {CausalConv1dChannellastFwd, CausalConv1dShortseqFwd} <= {cls for cls, _ in vectors}
    assert {vec for _, vec in vectors} >= {1, 2, 4}


def rows_of_both_kernels(width: int, dtype: str) -> tuple[Case, Case]:
    """A batch that the kernel for short rows is chosen for, and one entry of it that the one for long rows is."""
    for seqlen in range(17, 600):
        pair = Case(2, 3, seqlen, width, dtype, **ALL), Case(1, 3, seqlen, width, dtype, **ALL)
        if tuple(map(type, map(kernel_of, pair))) == (CausalConv1dShortseqFwd, CausalConv1dFwd):
            return pair
    raise AssertionError("no length at which the batch decides between the kernels")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [4, 13])
def test_every_kernel_gives_the_same_bits(dtype: str, width: int, run: Runner) -> None:
    short, long = rows_of_both_kernels(width, dtype)
    values = short.inputs()
    out, states = results(run, short, values)
    for b in range(2):
        one = {name: array if name in ("weight", "bias") else array[b : b + 1] for name, array in values.items()}
        got, got_states = results(run, long, one)
        assert_same_bits(got, out[b : b + 1], f"batch entry {b}")
        assert_same_bits(got_states, states[b : b + 1], f"states of batch entry {b}")


@pytest.mark.parametrize("layout", ["channel_first", "channel_last", "spaced"])
@pytest.mark.parametrize("cuts", [(50,), (1, 2, 3, 97), (0, 64, 64, 80)])
def test_chunks_give_the_bits_of_the_whole(layout: str, cuts: tuple[int, ...], run: Runner) -> None:
    whole = Case(2, 6, 98, 4, layout=layout, **STATES)
    values = whole.inputs()
    out, states = results(run, whole, values)
    passed_on = values["initial_states"]
    for begin, end in zip((0, *cuts), (*cuts, whole.seqlen), strict=True):
        chunk: Any = {**values, "x": values["x"][:, :, begin:end], "initial_states": passed_on}
        got, passed_on = results(run, replace(whole, seqlen=end - begin), chunk)
        assert_same_bits(got, out[:, :, begin:end], f"tokens {begin} to {end - 1}")
    assert_same_bits(passed_on, states, "final states")
