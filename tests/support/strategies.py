"""Hypothesis strategies: arrays that lie anywhere, and calls made of them."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import strategies as st

from cuconv.runtime.dtypes import DType
from tests.support.batches import Batch
from tests.support.placement import Placement, place

Draw = st.DrawFn

SEEDS = st.integers(0, 2**32 - 1)

ORDERS: dict[int, list[tuple[int, ...]]] = {
    1: [(0,)],
    2: [(0, 1), (1, 0)],
    3: [(0, 1, 2), (0, 2, 1), (1, 2, 0), (2, 1, 0), (1, 0, 2), (2, 0, 1)],
    4: [(0, 1, 2, 3), (0, 1, 3, 2), (1, 3, 0, 2), (3, 2, 1, 0)],
    5: [(0, 1, 2, 3, 4), (0, 1, 2, 4, 3), (1, 2, 3, 4, 0), (4, 3, 2, 1, 0)],
}
"""By rank, the usual ones first."""


@st.composite
def lain_out(draw: Draw, dtype: DType, shape: tuple[int, ...], *, is_written: bool = False) -> Placement:
    """A placement of this dtype and shape: dense as often as not, aligned as often as not."""
    rank = len(shape)
    order = draw(st.sampled_from(ORDERS[rank][: draw(st.sampled_from([2, 2, 2, None]))]))
    if draw(st.booleans()):
        return place(dtype, shape, order=order, shift=draw(st.sampled_from([0, 0, 0, 1, 2, 4])))
    axes = st.lists(st.sampled_from(range(rank)), unique=True, max_size=2)
    return place(
        dtype,
        shape,
        order=order,
        pad=draw(st.tuples(*[st.sampled_from([0, 0, 0, 1, 2, 3, 4, 8])] * rank)),
        spacing=draw(st.sampled_from([1, 1, 1, 1, 2, 3])),
        shift=draw(st.sampled_from([0, 0, 0, 1, 2, 4, 7])),
        backward=draw(st.one_of(st.just([]), axes)),
        repeated=() if is_written else draw(st.one_of(st.just([]), st.just([0]))),
    )


@st.composite
def few_sequences(draw: Draw, max_length: int = 7) -> Batch:
    """Some, empty ones among them, or one that goes unsaid."""
    if draw(st.integers(0, 4)) == 0:
        return Batch(draw(st.integers(0, max_length)), None)
    lengths = draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 4, max_length]), max_size=5))
    before, behind = (draw(st.sampled_from([0, 0, 0, 1, 5])) for _ in range(2))
    starts = tuple(accumulate([before, *lengths]))
    return Batch(starts[-1] + behind, starts)


@st.composite
def many_sequences(draw: Draw) -> Batch:
    """Up to 2,000: alike, random, or a long one among single tokens; some of them empty, and tokens of none."""
    count = draw(st.sampled_from([1, 2, 3, 17, 100, 700, 2000]))
    random = np.random.default_rng(draw(SEEDS))
    lengths = {
        "alike": np.full(count, draw(st.sampled_from([0, 1, 2, 5, 64 if count < 50 else 3]))),
        "random": random.integers(0, max(2, 4000 // count), count),
        "long": np.where(np.arange(count) == random.integers(count), draw(st.integers(1, 3000)), 1),
        "mostly empty": random.integers(0, 9, count) * (random.uniform(size=count) < 0.1),
    }[draw(st.sampled_from(["alike", "random", "long", "mostly empty"]))]
    before, behind = (draw(st.sampled_from([0, 0, 0, 1, 60])) for _ in range(2))
    starts = tuple(int(start) for start in accumulate([before, *lengths]))
    return Batch(starts[-1] + behind, starts)
