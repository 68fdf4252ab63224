"""Arguments of gradients that do not fit: the error names them, and nothing was written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuconv
from tests.selective_scan import cases_bwd, cases_varlen_bwd
from tests.support.placement import Array

Arguments = dict[str, Any]

DENSE = cases_bwd.Case(2, 6, 300, 5, dtype="float32")
PACKED = cases_varlen_bwd.Case(6, "30+10", 5, dtype="float32")


def zeros(name: str, shape: tuple[int, ...], dtype: type = np.float32) -> Callable[[Arguments], Arguments]:
    return lambda a: {name: np.zeros(shape, dtype)}


ROWS: dict[str, tuple[Callable[[Arguments], Arguments], type[Exception], str]] = {
    "dout-none": (lambda a: {"dout": None}, TypeError, "dout: got None; wanted an array (batch, dim, seqlen)"),
    "dout-dtype": (
        lambda a: {"dout": a["dout"].astype(np.float16)}, TypeError, "dout: got dtype float16; wanted float32"
    ),
    "dout-shape": (
        zeros("dout", (2, 6, 299)), ValueError,
        "dout: got shape (2, 6, 299); wanted (2, 6, 300) (batch, dim, seqlen of u)",
    ),
    "z-shape": (
        zeros("z", (2, 5, 300)), ValueError, "z: got shape (2, 5, 300); wanted (2, 6, 300) (batch, dim, seqlen of u)"
    ),
    "dlast-dtype": (
        zeros("dlast_state", (2, 6, 5), np.float64), TypeError, "dlast_state: got dtype float64; wanted float32"
    ),
    "dlast-shape": (
        zeros("dlast_state", (2, 6, 4)), ValueError,
        "dlast_state: got shape (2, 6, 4); wanted (2, 6, 5) (batch of u, dim of u, d_state of A)",
    ),
    "chunks": (
        zeros("chunk_states", (2, 1, 6, 5)), ValueError,
        "chunk_states: got shape (2, 1, 6, 5); wanted (2, 2, 6, 5) (batch of u, chunks, dim of u, d_state of A)",
    ),
    "du-shape": (
        zeros("du", (2, 6, 301)), ValueError, "du: got shape (2, 6, 301); wanted (2, 6, 300) (the shape of u)"
    ),
    "dB-dtype": (zeros("dB", (2, 5, 300), np.float16), TypeError, "dB: got dtype float16; wanted float32"),
    "dD-without-D": (
        lambda a: {"D": None, "dD": np.zeros(6, np.float32)}, ValueError, "dD: got an array; wanted None unless D is"
    ),
    "du-is-u": (lambda a: {"du": a["u"]}, ValueError, "du: got memory that overlaps u"),
    "du-is-ddelta": (
        lambda a: dict.fromkeys(("du", "ddelta"), np.zeros((2, 6, 300), np.float32)), ValueError,
        "du: got memory that overlaps ddelta",
    ),
    "du-expanded": (
        lambda a: {"du": np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2, 6, 300), (0, 0, 0))}, ValueError,
        "du: got strides (0, 0, 0) for shape (2, 6, 300)",
    ),
}  # fmt: skip

PACKED_ROWS: dict[str, tuple[Callable[[Arguments], Arguments], type[Exception], str]] = {
    "starts-float": (
        lambda a: {"query_start_loc": a["query_start_loc"].astype(np.float32)}, TypeError,
        "query_start_loc: got dtype float32; wanted one of int32, int64",
    ),
    "starts-rank": (
        lambda a: {"query_start_loc": a["query_start_loc"][None]}, ValueError,
        "query_start_loc: got shape (1, 3); wanted 1 axes (sequences + 1)",
    ),
    "starts-none": (
        zeros("query_start_loc", (0,), np.int32), ValueError, "sequences of query_start_loc: got -1; wanted 0 to"
    ),
    "initial-count": (
        zeros("initial_state", (3, 6, 5)), ValueError,
        "initial_state: got shape (3, 6, 5); wanted (2, 6, 5) (sequences, dim of u, d_state of A)",
    ),
    "dlast-count": (
        zeros("dlast_state", (1, 6, 5)), ValueError,
        "dlast_state: got shape (1, 6, 5); wanted (2, 6, 5) (sequences, dim of u, d_state of A)",
    ),
    "B-constant": (zeros("B", (6, 5)), ValueError, "B: got shape (6, 5); wanted (5, 40)"),
}  # fmt: skip


def refuse(function: str, good: dict[str, Array], change: Any, error: type[Exception], text: str) -> None:
    arguments = {**good, **change(good)}
    before = {name: array.copy() for name, array in arguments.items() if isinstance(array, np.ndarray)}
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        getattr(cuconv, function)(**arguments)
    for name, array in before.items():
        np.testing.assert_array_equal(arguments[name], array)


@pytest.mark.parametrize(("change", "error", "text"), ROWS.values(), ids=ROWS)
def test_rows(change: Any, error: type[Exception], text: str) -> None:
    refuse("selective_scan_bwd", cases_bwd.inputs(DENSE), change, error, text)


@pytest.mark.parametrize(("change", "error", "text"), PACKED_ROWS.values(), ids=PACKED_ROWS)
def test_packed_sequences(change: Any, error: type[Exception], text: str) -> None:
    refuse("selective_scan_varlen_bwd", cases_varlen_bwd.inputs(PACKED), change, error, text)


@pytest.mark.parametrize("starts", [(0, 30, 20), (-1, 30, 40), (0, 30, 41)])
def test_boundaries_that_cannot_be_right_are_found_when_asked_for(
    starts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    arguments = {**cases_varlen_bwd.inputs(PACKED), "query_start_loc": np.array(starts, np.int32)}
    with pytest.raises(ValueError, match=r"^query_start_loc"):
        cuconv.selective_scan_varlen_bwd(**arguments)
