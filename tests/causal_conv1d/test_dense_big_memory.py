"""Tensors of more than 2**31 and more than 2**32 elements: every element is written, and samples are right."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cuconv
from cuconv.causal_conv1d import reference
from tests.causal_conv1d.cases_dense import BIG, Case
from tests.support.compare import check_call
from tests.support.gpu import CupyArrays
from tests.support.placement import POISON, Array, Placed, Placement

pytestmark = [pytest.mark.gpu, pytest.mark.big_memory]

CHUNK = 2**27
WINDOW = 64
SAMPLES = 200


def fill(words: Any, dtype: str) -> None:
    """Values from -1 to 1 in a long row of 16-bit words."""
    import cupy

    for begin in range(0, len(words), CHUNK):
        part = words[begin : begin + CHUNK]
        values = cupy.random.random(len(part), np.float32) * 2 - 1
        # The upper half of a float is a bfloat16.
        part[...] = values.view(np.uint32) >> 16 if dtype == "bfloat16" else values.astype(dtype).view(np.uint16)


def view(words: Any, placement: Placement) -> Any:
    import cupy

    strides = tuple(2 * stride for stride in placement.strides)
    return cupy.ndarray(placement.shape, placement.dtype.numpy, words.data + 2 * placement.first, strides)


def places(case: Case, lies: Placement) -> Iterator[tuple[int, int, int]]:
    """(batch, channel, first token) of the windows to check: corners, elements 2**31 and 2**32, and many more."""
    batch, dim, seqlen = lies.shape
    last = seqlen - WINDOW
    yield from ((b, d, t) for b in (0, batch - 1) for d in (0, dim - 1) for t in (0, last))
    for element in (2**31, 2**32):
        rest, found = element, [0, 0, 0]
        for axis in sorted(range(3), key=lambda axis: -lies.strides[axis]):
            found[axis], rest = divmod(rest, lies.strides[axis])
        b, d, t = found
        if b < batch:
            yield from ((b, max(0, d - back), min(last, max(0, t - WINDOW // 2))) for back in (0, 1))
    choose = random.Random(case.id)
    for _ in range(SAMPLES):
        yield choose.randrange(batch), choose.randrange(dim), choose.randrange(last + 1)


def to_host(array: Any) -> Array:
    import cupy

    return CupyArrays.download(cupy.ascontiguousarray(array.view(np.uint16))).view(array.dtype)


@pytest.mark.parametrize("case", BIG, ids=lambda case: case.id)
def test_tensors_of_billions_of_elements(case: Case) -> None:
    cupy = pytest.importorskip("cupy")
    lies = case.placements()
    count = int(np.prod(lies["x"].shape, dtype=np.int64))
    assert count > 2**31
    uniform = np.random.default_rng(0).uniform
    rest = {name: lies[name] for name in lies.keys() - {"x", *Case.OUTPUTS}}
    small = {name: Placed(each, uniform(-1, 1, each.shape)) for name, each in rest.items()}
    words = {name: cupy.empty(lies[name].size, np.uint16) for name in ("x", "out")}
    fill(words["x"], case.dtype)
    words["out"].view(np.uint8).fill(POISON)
    arrays = {name: CupyArrays.upload(placed)[1] for name, placed in small.items()}
    x, out = (view(words[name], lies[name]) for name in ("x", "out"))
    _, states = cuconv.causal_conv1d_fn(x, **arrays, out=out, **case.options())

    assert_all_written(words["out"], lies["out"].first, count)
    host = {name: placed.array for name, placed in small.items()}
    for b, d, t in places(case, lies["x"]):
        check_window(case, host, (b, d, t), x, out)
    tails = {(b, d) for b, d, _ in places(case, lies["x"])}
    for b, d in tails:
        np.testing.assert_array_equal(to_host(states[b, d]), to_host(x[b, d, 1 - case.width :]))


def assert_all_written(words: Any, first: int, count: int) -> None:
    """`count` words from `first` on hold numbers now, and those around them the poison that they held."""
    for begin in range(first, first + count, CHUNK):
        part = words[begin : min(begin + CHUNK, first + count)]
        assert not bool((part == 0xFFFF).any()), f"elements from {begin - first} on were not written"
    assert bool((words[:first] == 0xFFFF).all()) and bool((words[first + count :] == 0xFFFF).all())


def check_window(case: Case, host: dict[str, Array], place: tuple[int, int, int], x: Any, out: Any) -> None:
    b, d, t = place
    halo = case.width - 1
    before = to_host(x[b, d, t - halo : t]) if t >= halo else host["initial_states"][b, d, :halo]
    if 0 < t < halo:
        before = np.concatenate([host["initial_states"][b, d, t:], to_host(x[b, d, :t])])
    tokens = slice(t, t + WINDOW)
    check_row(case, host, d, before, to_host(x[b, d, tokens]), to_host(out[b, d, tokens]))


def check_row(case: Any, host: dict[str, Array], channel: int, before: Array, x: Array, out: Array) -> None:
    """One channel's tokens x, after those before, have given out."""
    taps = {name: host[name][channel : channel + 1] for name in ("weight", "bias")}
    arguments = {"x": x[None, None], **taps, "initial_states": before[None, None], "activation": case.activation}
    wanted, _ = reference.causal_conv1d_fn(**arguments)
    check_call("causal_conv1d_fn", arguments, {"out": wanted}, {"out": out[None, None]})
