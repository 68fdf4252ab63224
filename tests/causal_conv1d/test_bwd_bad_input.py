"""Arguments of backward convolutions that do not fit: the error names the argument, what came and what is wanted, and
nothing was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuconv
from tests.support.placement import POISON

BATCH, DIM, SEQLEN, WIDTH = 2, 6, 9, 4
FLOATS = "one of float32, float16, bfloat16"
OWN_MEMORY = "memory of its own"

Arguments = dict[str, Any]
Change = Callable[[Arguments], Arguments]


def poisoned(*shape: int) -> Any:
    array = np.empty(shape, np.float32)
    array.view(np.uint8)[...] = POISON
    return array


def dense() -> Arguments:
    """Arguments of causal_conv1d_bwd with every array."""
    ones = np.ones((BATCH, DIM, SEQLEN), np.float32)
    return {
        "x": ones.copy(), "weight": np.ones((DIM, WIDTH), np.float32), "bias": np.ones(DIM, np.float32),
        "dout": ones.copy(), "seq_idx": np.zeros((BATCH, SEQLEN), np.int32),
        "initial_states": np.ones((BATCH, DIM, WIDTH - 1), np.float32),
        "dfinal_states": np.ones((BATCH, DIM, WIDTH - 1), np.float32), "activation": "silu",
        "dx": poisoned(BATCH, DIM, SEQLEN), "dweight": poisoned(DIM, WIDTH), "dbias": poisoned(DIM),
        "dinitial_states": poisoned(BATCH, DIM, WIDTH - 1),
    }  # fmt: skip


def packed() -> Arguments:
    """Arguments of causal_conv1d_varlen_bwd with every array: two sequences of 4 and 5 tokens."""
    ones = np.ones((DIM, SEQLEN), np.float32)
    return {
        "x": ones.copy(), "weight": np.ones((DIM, WIDTH), np.float32), "bias": np.ones(DIM, np.float32),
        "dout": ones.copy(), "query_start_loc": np.array([0, 4, 9], np.int32),
        "initial_states": np.ones((3, DIM, WIDTH), np.float32), "cache_indices": np.array([2, 0], np.int32),
        "has_initial_state": np.ones(2, bool), "dfinal_states": np.ones((2, DIM, WIDTH - 1), np.float32),
        "dx": poisoned(DIM, SEQLEN), "dweight": poisoned(DIM, WIDTH), "dbias": poisoned(DIM),
        "dinitial_states": poisoned(2, DIM, WIDTH - 1),
    }  # fmt: skip


OUTPUTS = ("dx", "dweight", "dbias", "dinitial_states")


def zeros(name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Change:
    return lambda a: {name: np.zeros(shape, dtype)}


def value(**given: Any) -> Change:
    return lambda a: given


def alias(written: str, of: str) -> Change:
    return lambda a: {written: a[of]}


def overlapping(argument: str, other: str) -> str:
    return f"{argument}: got memory that overlaps {other}; wanted {OWN_MEMORY}"


STATES = "(2, 6, 3) (batch, dim of x, width - 1)"
BAD_DENSE: dict[str, tuple[Change, type[Exception], str]] = {
    "x-rank": (zeros("x", (6, 9)), ValueError, "x: got shape (6, 9); wanted 3 axes (batch, dim, seqlen)"),
    "x-float64": (zeros("x", (2, 6, 9), np.float64), TypeError, f"x: got dtype float64; wanted {FLOATS}"),
    "x-seqlen": (
        lambda a: {"x": np.broadcast_to(a["x"][:, :, :1], (BATCH, DIM, 2**30 + 1))},
        ValueError,
        "seqlen of x: got 1073741825; wanted 0 to 1073741824",
    ),
    "weight-none": (value(weight=None), TypeError, "weight: got None; wanted an array (dim, width)"),
    "weight-width": (zeros("weight", (6, 17)), ValueError, "width of weight: got 17; wanted 1 to 16"),
    "bias-dim": (zeros("bias", (5,)), ValueError, "bias: got shape (5,); wanted (6,) (dim of x)"),
    "dout-none": (value(dout=None), TypeError, "dout: got None; wanted an array (batch, dim, seqlen)"),
    "dout-shape": (
        zeros("dout", (2, 9, 6)), ValueError, "dout: got shape (2, 9, 6); wanted (2, 6, 9) (the shape of x)"
    ),
    "dout-dtype": (zeros("dout", (2, 6, 9), np.float16), TypeError, "dout: got dtype float16; wanted float32"),
    "seq_idx-int64": (zeros("seq_idx", (2, 9), np.int64), TypeError, "seq_idx: got dtype int64; wanted int32"),
    "seq_idx-shape": (
        zeros("seq_idx", (2, 8), np.int32), ValueError, "seq_idx: got shape (2, 8); wanted (2, 9) (batch, seqlen of x)"
    ),
    "initial_states-shape": (
        zeros("initial_states", (2, 6, 4)), ValueError, f"initial_states: got shape (2, 6, 4); wanted {STATES}"
    ),
    "dfinal_states-shape": (
        zeros("dfinal_states", (2, 3, 6)), ValueError, f"dfinal_states: got shape (2, 3, 6); wanted {STATES}"
    ),
    "dfinal_states-dtype": (
        zeros("dfinal_states", (2, 6, 3), np.float16), TypeError, "dfinal_states: got dtype float16; wanted float32"
    ),
    "dx-shape": (zeros("dx", (2, 9, 6)), ValueError, "dx: got shape (2, 9, 6); wanted (2, 6, 9) (the shape of x)"),
    "dx-dtype": (zeros("dx", (2, 6, 9), np.float16), TypeError, "dx: got dtype float16; wanted float32"),
    "dweight-shape": (
        zeros("dweight", (4, 6)), ValueError, "dweight: got shape (4, 6); wanted (6, 4) (the shape of weight)"
    ),
    "dweight-dtype": (zeros("dweight", (6, 4), np.float16), TypeError, "dweight: got dtype float16; wanted float32"),
    "dbias-without-bias": (
        value(bias=None), ValueError, "dbias: got an array; wanted None unless bias is given"
    ),
    "dinitial_states-without-initial_states": (
        value(initial_states=None),
        ValueError,
        "dinitial_states: got an array; wanted None unless initial_states is given",
    ),
    "dinitial_states-shape": (
        zeros("dinitial_states", (2, 6, 4)), ValueError, f"dinitial_states: got shape (2, 6, 4); wanted {STATES}"
    ),
    "activation": (value(activation="relu"), ValueError, "activation: got 'relu'; wanted one of None, 'silu', 'swish'"),
    "dx-is-x": (alias("dx", "x"), ValueError, overlapping("dx", "x")),
    "dx-is-dout": (alias("dx", "dout"), ValueError, overlapping("dx", "dout")),
    "dweight-is-weight": (alias("dweight", "weight"), ValueError, overlapping("dweight", "weight")),
    "dinitial_states-is-dfinal_states": (
        alias("dinitial_states", "dfinal_states"), ValueError, overlapping("dinitial_states", "dfinal_states")
    ),
    "dbias-in-dweight": (lambda a: {"dbias": a["dweight"][:, 0]}, ValueError, "memory of its own"),
    "dx-expanded": (
        lambda a: {"dx": np.lib.stride_tricks.as_strided(a["dx"], a["dx"].shape, (0, 36, 4))},
        ValueError,
        "dx: got strides (0, 9, 1) for shape (2, 6, 9); wanted an address of its own for every element",
    ),
}  # fmt: skip

PACKED_STATES = "(2, 6, 3) (sequences, dim of x, width - 1)"
BAD_PACKED: dict[str, tuple[Change, type[Exception], str]] = {
    "x-rank": (zeros("x", (1, 6, 9)), ValueError, "x: got shape (1, 6, 9); wanted 2 axes (dim, total)"),
    "dout-shape": (zeros("dout", (9, 6)), ValueError, "dout: got shape (9, 6); wanted (6, 9) (the shape of x)"),
    "query_start_loc-rank": (
        zeros("query_start_loc", (2, 2), np.int32),
        ValueError,
        "query_start_loc: got shape (2, 2); wanted 1 axes (sequences + 1)",
    ),
    "query_start_loc-dtype": (
        zeros("query_start_loc", (3,)), TypeError, "query_start_loc: got dtype float32; wanted one of int32, int64"
    ),
    "query_start_loc-empty": (
        zeros("query_start_loc", (0,), np.int32), ValueError, "sequences of query_start_loc: got -1; wanted 0 to"
    ),
    "cache_indices-count": (
        zeros("cache_indices", (3,), np.int32), ValueError, "cache_indices: got shape (3,); wanted (2,) (sequences)"
    ),
    "cache_indices-alone": (
        value(initial_states=None, dinitial_states=None),
        ValueError,
        "cache_indices: got an array; wanted None unless initial_states is given",
    ),
    "has_initial_state-dtype": (
        zeros("has_initial_state", (2,), np.int32), TypeError, "has_initial_state: got dtype int32; wanted bool"
    ),
    "initial_states-rank": (
        zeros("initial_states", (6, 3)),
        ValueError,
        "initial_states: got shape (6, 3); wanted 3 axes (slots, dim, state_len)",
    ),
    "initial_states-short": (
        zeros("initial_states", (3, 6, 2)),
        ValueError,
        "state_len of initial_states: got 2; wanted at least 3 (width - 1)",
    ),
    "initial_states-few": (
        lambda a: {"initial_states": a["initial_states"][:1], "cache_indices": None},
        ValueError,
        "slots of initial_states: got 1; wanted at least 2, one a sequence, or cache_indices",
    ),
    "initial_states-dtype": (
        zeros("initial_states", (3, 6, 3), np.float16), TypeError, "initial_states: got dtype float16; wanted float32"
    ),
    "dfinal_states-shape": (
        zeros("dfinal_states", (3, 6, 3)), ValueError, f"dfinal_states: got shape (3, 6, 3); wanted {PACKED_STATES}"
    ),
    "dinitial_states-shape": (
        zeros("dinitial_states", (3, 6, 3)), ValueError, f"dinitial_states: got shape (3, 6, 3); wanted {PACKED_STATES}"
    ),
    "pad_slot_id": (value(pad_slot_id=1.5), TypeError, "pad_slot_id: got 1.5; wanted an int"),
    "dx-is-x": (alias("dx", "x"), ValueError, overlapping("dx", "x")),
}  # fmt: skip


def check(function: str, arguments: Arguments, change: Change, error: type[Exception], text: str) -> None:
    given = {**arguments, **change(arguments)}
    before = {name: np.array(given[name]).tobytes() for name in OUTPUTS if given[name] is not None}
    with pytest.raises(error) as caught:
        getattr(cuconv, function)(**given)
    assert text in str(caught.value)
    assert {name: np.array(given[name]).tobytes() for name in before} == before


@pytest.mark.parametrize("name", BAD_DENSE)
def test_rows(name: str) -> None:
    check("causal_conv1d_bwd", dense(), *BAD_DENSE[name])


@pytest.mark.parametrize("name", BAD_PACKED)
def test_packed_sequences(name: str) -> None:
    check("causal_conv1d_varlen_bwd", packed(), *BAD_PACKED[name])


@pytest.mark.parametrize(("function", "make"), [("causal_conv1d_bwd", dense), ("causal_conv1d_varlen_bwd", packed)])
def test_what_is_changed_was_good(function: str, make: Callable[[], Arguments]) -> None:
    arguments = make()
    results = getattr(cuconv, function)(**arguments)
    assert [id(result) for result in results] == [id(arguments[name]) for name in OUTPUTS]
    assert all(np.isfinite(result).all() for result in results)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (zeros("query_start_loc", (3,), np.int32), None),
        (value(query_start_loc=np.array([1, 4, 9], np.int32)), "query_start_loc[0]: got 1; wanted 0"),
        (value(query_start_loc=np.array([0, 9, 4], np.int32)), "query_start_loc[2]: got 4; wanted at least 9"),
        (value(query_start_loc=np.array([0, 4, 10], np.int32)), "query_start_loc[2]: got 10; wanted at most 9"),
        (value(cache_indices=np.array([0, 3], np.int32)), "cache_indices: got slot 3; wanted 0 to 2, or pad_slot_id"),
        (value(cache_indices=np.array([1, 1], np.int32)), None),
    ],
)
def test_contents_are_checked_when_asked_to(change: Change, text: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sequences may start from one slot: it is only read."""
    monkeypatch.setenv("CUCONV_CHECK", "1")
    arguments = packed()
    if text is None:
        cuconv.causal_conv1d_varlen_bwd(**{**arguments, **change(arguments)})
    else:
        check("causal_conv1d_varlen_bwd", arguments, change, ValueError, text)
