"""Infinities, NaN and the least numbers in scans and state updates, as cuconv/runtime/state_space.py says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import emulator
from tests.selective_scan import cases_dense as rows
from tests.selective_scan import cases_varlen as packed
from tests.selective_state_update import cases as updates
from tests.support.compare import Between, assert_same_bits
from tests.support.placement import Array
from tests.support.runners import Runner, Values, emulated, on_gpu

STEPS = {"rows": "delta", "packed": "delta", "updates": "dt"}
INPUTS = {"rows": "u", "packed": "u", "updates": "x"}

SCANNED: tuple[tuple[str, Any], ...] = (
    # By a lane for some states, whole and in segments.
    ("rows", rows.Case(2, 35, 43, without="D z", processors=1)),
    ("rows", rows.Case(2, 35, 43, processors=1)),
    ("rows", rows.Case(2, 9, 513, constants="B", without="D z chunk_states_out")),
    # With tokens shared among lanes, whole and in segments, and in copies of rows that are not aligned.
    ("rows", rows.Case(2, 9, 513, without="D z chunk_states_out")),
    ("rows", rows.Case(2, 35, 72, 8, without="D z", processors=1)),
    ("rows", rows.Case(2, 35, 72, 8, processors=1)),
    ("rows", rows.Case(1, 3, 3072, without="D z chunk_states_out")),
    ("rows", rows.Case(3, 20, 200, without="D z", processors=24)),
    ("rows", rows.Case(2, 35, 264, without="D z chunk_states_out", processors=30)),
    # With all tokens swept by every lane of a channel.
    ("rows", rows.Case(2, 35, 72, without="D z", processors=1)),
    ("rows", rows.Case(2, 35, 72, processors=1)),
    # Of short rows, with all states and with a part.
    ("rows", rows.Case(2, 9, 77, 2, without="D z chunk_states_out")),
    ("rows", rows.Case(2, 9, 77, without="D z chunk_states_out")),
    # Packed sequences: long ones, short ones and those of few tokens.
    ("packed", packed.Case(35, "16+8+3+13", layout="channels", state_dtype="bfloat16", without="D z")),
    ("packed", packed.Case(35, "16+8+3+29", without="D z")),
    ("packed", packed.Case(35, "340+16+20", without="D z")),
    ("updates", updates.Case(9, 0, 40, 16, dtype="float32")),
    ("updates", updates.Case(9, 0, 9, 16, dtype="float32", without="all", slots=None)),
    ("updates", updates.Case(9, 4, 8, 128, 2, without="z", **updates.PER_HEAD)),
)
JOINED = ("2-9-513-without", "1-3-3072", "3-20-200", "2-35-264", "2-9-77", "16+8+3+29", "340+16+20")
"""Cases in which lanes join the states of their tokens: there an infinite state may become NaN."""

CASES = [pytest.param(name, case, id=f"{name}-{case.id}") for name, case in SCANNED]


def by_numpy(case: Any, values: Values) -> Values:
    """The public function on NumPy arrays."""
    arrays = {name: array.copy() for name, array in values.items()}
    for name, lies in case.placements().items():
        if name in case.OUTPUTS:
            arrays[name] = np.full(lies.shape, np.nan, lies.dtype.numpy)
    case.call(arrays)
    return arrays


@pytest.fixture(params=["numpy", "unit-emulated", pytest.param("unit-gpu", marks=pytest.mark.gpu)])
def run(request: pytest.FixtureRequest) -> Runner:
    """A call's way to run."""
    if request.param == "unit-emulated" and (reason := emulator.available()) is not None:
        pytest.skip(reason)
    return {"numpy": by_numpy, "unit-emulated": emulated, "unit-gpu": on_gpu}[request.param]


def least(array: Array) -> float:
    """The least number of an array's dtype."""
    bits = {2: 0xFF7F, 4: 0xFF7FFFFF}[array.itemsize]
    return float(np.array(bits, f"u{array.itemsize}").view(array.dtype))


def inputs(case: Any) -> Values:
    """A call in which no terms of opposite signs meet."""
    values: Values = case.inputs()
    kept = (*STEPS.values(), "A", "chunk_states_out")
    for each, array in values.items():
        if array.dtype.kind not in "iub" and each not in kept:
            array[...] = np.abs(array.astype(np.float32)) + 0.125
    return values


def rows_of(name: str, array: Array) -> list[Array]:
    """The channels of a scan's last sequence, each with its tokens; the sequences of an update."""
    return list(array[-1] if name == "rows" else array)


def set_token(name: str, row: Array, value: float) -> None:
    """Gives one value to a token in the middle of a row, or to all rows of the state of an update."""
    if name == "updates":
        row[...] = value
    else:
        row[row.shape[-1] // 2] = value


def classes(array: Array) -> Array:
    """A number for each element: 2 for NaN, 1 for inf, -1 for -inf and 0 for all others."""
    wide = array.astype(np.float64)
    return np.where(np.isnan(wide), 2, np.where(np.isinf(wide), np.sign(wide), 0))


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_masked_token_changes_no_state(name: str, case: Any, run: Runner) -> None:
    """-inf, the least number and a number of which the product with log2(e) is infinite."""
    values = inputs(case)
    step = values[STEPS[name]]
    masks = (-np.inf, least(step), -3e38)
    indices = np.arange(step.size).reshape(step.shape)
    step[...] = np.choose(indices % len(masks), masks).astype(step.dtype)
    written = run(case, values)
    assert np.isfinite(written["out"].astype(np.float32)).all()
    pairs = {"last_state_out": "initial_state", "ssm_states": "ssm_states", "state": "state"}
    for after, before in pairs.items():
        if after not in written or before not in values:
            continue
        got, kept = written[after], values[before].copy()
        if name == "packed":
            # Sequences that do not go on from their slot begin with zeros.
            kept[[not slot.astype(np.float32).any() for slot in got]] = 0
        assert_same_bits(got, kept, after)


@pytest.mark.parametrize(("name", "case"), CASES)
@pytest.mark.parametrize("argument", ["step", "input"])
def test_infinities_and_nan_are_those_of_the_formula(name: str, case: Any, argument: str, run: Runner) -> None:
    values = inputs(case)
    array = values[{"step": STEPS, "input": INPUTS}[argument][name]]
    with np.errstate(over="ignore"):
        specials = [np.inf, np.nan, -np.inf, least(array) if argument == "step" else np.inf]
        for row, special in zip(rows_of(name, array), specials, strict=False):
            set_token(name, row, special)
    written = run(case, values)
    with np.errstate(all="ignore"):
        wanted = case.oracle(values)
    for each, got in written.items():
        if each not in wanted or isinstance(wanted[each], Between):
            continue
        expected = np.asarray(wanted[each])
        if any(word in case.id for word in JOINED):
            assert np.array_equal(classes(got) == 0, classes(expected) == 0), each
        else:
            assert np.array_equal(classes(got), classes(expected)), each
        finite = np.isfinite(expected.astype(np.float64))
        np.testing.assert_allclose(
            got.astype(np.float64)[finite], expected.astype(np.float64)[finite], rtol=2e-2, atol=2e-2
        )
    assert (classes(written["out"]) != 0).any()
