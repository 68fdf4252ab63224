"""Scans of more than 2**32 elements: every result is written, and samples are right."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.runtime.dtypes import BFLOAT16
from cuconv.selective_scan import reference
from tests.causal_conv1d.test_dense_big_memory import assert_all_written, fill, to_host
from tests.selective_scan import cases_dense, cases_varlen
from tests.support.batches import batch
from tests.support.compare import assert_close
from tests.support.placement import POISON, Array

pytestmark = [pytest.mark.gpu, pytest.mark.big_memory]

D_STATE = 16
WINDOW = 64
BEFORE = 448
"""Tokens after which a state is forgotten: it fades by at least exp(-softplus(-1) / 2) with each."""

RELATIVE, ABSOLUTE = 2.0**-8, 1e-5
"""A bfloat16 result, and what cancels in sums of numbers up to 2."""


def numbers(*shape: int) -> Any:
    """Random bfloat16 values of this shape."""
    cupy = pytest.importorskip("cupy")
    words = cupy.empty(int(np.prod(shape, dtype=np.int64)), np.uint16)
    fill(words, "bfloat16")
    return cupy.ndarray(shape, BFLOAT16.numpy, words.data)


def poisoned(*shape: int) -> tuple[Any, Any]:
    """An array to be written, and its words."""
    cupy = pytest.importorskip("cupy")
    words = cupy.empty(int(np.prod(shape, dtype=np.int64)), np.uint16)
    words.view(np.uint8).fill(POISON)
    return cupy.ndarray(shape, BFLOAT16.numpy, words.data), words


def places(rows: int, seqlen: int) -> Iterator[tuple[int, int]]:
    """(row, last token) of windows: corners, elements 2**31 and 2**32, and more."""
    yield from ((row, token) for row in (0, rows - 1) for token in (0, 1, seqlen - 1))
    for element in (2**31, 2**32):
        row, token = divmod(element, seqlen)
        if row < rows:
            yield from ((row - back, (token - back) % seqlen) for back in (0, 1))
    choose = random.Random(seqlen)
    for _ in range(30):
        yield choose.randrange(rows), choose.randrange(seqlen)


def parameters(dim: int) -> tuple[Any, Array]:
    cupy = pytest.importorskip("cupy")
    rates = -np.random.default_rng(0).uniform(0.5, 4.0, (dim, D_STATE)).astype(np.float32)
    return cupy.asarray(rates), rates


def check(name: str, got: Any, row: tuple[Any, Any, Array, Any, Any], begin: int, last: int) -> None:
    """The tokens up to `last` of one row that begins at `begin`, from (u, delta, A, B, C)."""
    u, delta, rates, *matrices = row
    first = max(begin, last - BEFORE - WINDOW)
    window = slice(first, last + 1)
    rows = (to_host(each[window])[None, None] for each in (u, delta))
    maps = (to_host(each[:, window])[None, None] for each in matrices)
    wanted = reference.selective_scan_fn(*rows, rates[None], *maps, delta_softplus=True).out[0, 0]
    kept = slice(max(begin, last - WINDOW) - first, None)
    assert_close(name, to_host(got[window])[kept], wanted[kept], RELATIVE, ABSOLUTE)


def test_rows_of_billions_of_tokens() -> None:
    (case,) = cases_dense.BIG
    shape = batch_size, dim, seqlen = case.batch, case.dim, case.seqlen
    u, delta, (out, words) = numbers(*shape), numbers(*shape), poisoned(*shape)
    B, C = numbers(batch_size, D_STATE, seqlen), numbers(batch_size, D_STATE, seqlen)
    A, rates = parameters(dim)
    cuconv.selective_scan_fn(u, delta, A, B, C, delta_softplus=True, out=out)
    assert_all_written(words, 0, out.size)
    for row, last in places(batch_size * dim, seqlen):
        b, d = divmod(row, dim)
        check(f"out[{b}, {d}] up to {last}", out[b, d], (u[b, d], delta[b, d], rates[d], B[b], C[b]), 0, last)


def test_packed_sequences_of_billions_of_tokens() -> None:
    cupy = pytest.importorskip("cupy")
    (case,) = cases_varlen.BIG
    bounds = batch(case.batch).bounds
    shape = dim, total = case.dim, bounds[-1]
    u, delta, (out, words) = numbers(*shape), numbers(*shape), poisoned(*shape)
    B, C = numbers(D_STATE, total), numbers(D_STATE, total)
    A, rates = parameters(dim)
    starts = cupy.asarray(bounds, np.int64)
    cuconv.selective_scan_varlen_fn(u, None, delta, A, B, C, delta_softplus=True, query_start_loc=starts, out=out)
    assert_all_written(words, 0, out.size)
    for d, last in places(dim, total):
        begin = bounds[bisect_right(bounds, last) - 1]
        check(f"out[{d}] up to {last}", out[d], (u[d], delta[d], rates[d], B, C), begin, last)
