"""Packed tokens of more than 2**32 elements: every element is written, and samples and states are right."""

from __future__ import annotations

import random
from bisect import bisect_right
from typing import Any

import numpy as np
import pytest

import cuconv
from tests.causal_conv1d.cases_varlen import BIG, Case
from tests.causal_conv1d.test_dense_big_memory import (
    SAMPLES,
    WINDOW,
    assert_all_written,
    check_row,
    fill,
    to_host,
    view,
)
from tests.support.batches import batch
from tests.support.compare import assert_same_bits
from tests.support.gpu import CupyArrays
from tests.support.placement import POISON, Array, Placed

pytestmark = [pytest.mark.gpu, pytest.mark.big_memory]


def places(case: Case) -> list[tuple[int, int]]:
    """(channel, token) of windows: where sequences begin and end, elements 2**31 and 2**32, and many more."""
    dim, total = case.placements()["x"].shape
    choose = random.Random(case.id)
    edges = {token + shift for token in batch(case.batch).bounds for shift in (0, 1, 3, -1, -WINDOW)}
    chosen = [(channel, token) for channel in (0, dim - 1) for token in edges]
    for element in (2**31, 2**32):
        strides = case.placements()["x"].strides
        outer = max((0, 1), key=lambda axis: strides[axis])
        at = {outer: element // strides[outer], 1 - outer: element % strides[outer]}
        chosen += [(at[0] - back, at[1] - WINDOW // 2) for back in (0, 1)]
    chosen += [(choose.randrange(dim), choose.randrange(total)) for _ in range(SAMPLES)]
    return [(channel, min(max(token, 0), total - 1)) for channel, token in chosen if 0 <= channel < dim]


@pytest.mark.parametrize("case", BIG, ids=lambda case: case.id)
def test_packed_tokens_of_billions_of_elements(case: Case) -> None:
    cupy = pytest.importorskip("cupy")
    lies, known = case.placements(), case.integers()
    count = int(np.prod(lies["x"].shape, dtype=np.int64))
    assert count > 2**32
    uniform = np.random.default_rng(0).uniform
    rest = {name: each for name, each in lies.items() if name not in ("x", "out")}
    small = {name: Placed(each, known.get(name, uniform(-1, 1, each.shape))) for name, each in rest.items()}
    words = {name: cupy.empty(lies[name].size, np.uint16) for name in ("x", "out")}
    fill(words["x"], case.dtype)
    words["out"].view(np.uint8).fill(POISON)
    arrays = {name: CupyArrays.upload(placed)[1] for name, placed in small.items()}
    x, out = (view(words[name], lies[name]) for name in ("x", "out"))
    cuconv.causal_conv1d_varlen_fn(**case.arguments({**arrays, "x": x, "out": out}))

    assert_all_written(words["out"], lies["out"].first, count)
    host = {name: placed.array for name, placed in small.items()}
    for channel, token in places(case):
        check_window(case, host, channel, token, x, out)
    pool = CupyArrays.fetch(arrays["conv_states"])
    for each in case.live(known):
        last = to_host(x[:, each.end - (case.width - 1) : each.end])
        assert_same_bits(pool[each.slot], last, f"state of sequence {each.number}")


def check_window(case: Case, host: dict[str, Array], channel: int, token: int, x: Any, out: Any) -> None:
    """Some tokens of one sequence, after what precedes them there."""
    bounds, halo = batch(case.batch).bounds, case.width - 1
    i = bisect_right(bounds, token) - 1
    end = min(token + WINDOW, bounds[i + 1])
    past = host["conv_states"][int(host["cache_indices"][i]), channel]
    before = [past, to_host(x[channel, max(bounds[i], token - halo) : token])]
    given, got = to_host(x[channel, token:end]), to_host(out[channel, token:end])
    check_row(case, host, channel, np.concatenate(before)[-halo:], given, got)
