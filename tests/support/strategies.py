"""Hypothesis strategies: arrays that lie anywhere, and calls made of them."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from cuconv.runtime.dtypes import BOOL, FLOAT32, FLOATS, INDICES, INT32, DType
from tests.support.batches import Batch
from tests.support.placement import Array, Placement, place

Draw = st.DrawFn

WIDTHS = st.integers(1, 16)
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
def calls(
    draw: Draw,
    sizes: st.SearchStrategy[tuple[int, int, int]],
    widths: st.SearchStrategy[int] = WIDTHS,
    is_mixed: bool = True,
) -> dict[str, Placement]:
    """Placements of a valid call's arrays, by argument name; the optional ones come and go.

    Unless mixed, x and weight are of one dtype.
    """
    batch, dim, seqlen = shape = draw(sizes)
    width = draw(widths)
    input_t = draw(st.sampled_from(FLOATS))
    weight_t = draw(st.sampled_from(FLOATS)) if is_mixed else input_t
    states = batch, dim, width - 1
    placed = {"x": draw(lain_out(input_t, shape)), "weight": draw(lain_out(weight_t, (dim, width)))}
    if draw(st.booleans()):
        placed["bias"] = draw(lain_out(draw(st.sampled_from([weight_t, FLOAT32])), (dim,)))
    if draw(st.booleans()):
        placed["seq_idx"] = draw(lain_out(INT32, (batch, seqlen)))
    if draw(st.booleans()):
        placed["initial_states"] = draw(lain_out(input_t, states))
    if draw(st.booleans()):
        # Alike, as a new array would lie, so that vectors are common.
        placed["out"] = place(input_t, shape, order=(0, 2, 1) if placed["x"].strides[1] == 1 else ())
    else:
        placed["out"] = draw(lain_out(input_t, shape, is_written=True))
    if draw(st.booleans()):
        placed["final_states_out"] = draw(lain_out(input_t, states, is_written=True))
    return placed


class PackedCall(NamedTuple):
    """A valid call on packed sequences: where its arrays lie, and the integers in them."""

    placements: dict[str, Placement]
    integers: dict[str, Array]
    pad_slot_id: int

    @property
    def width(self) -> int:
        """The filter's."""
        return self.placements["weight"].shape[1]


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


@st.composite
def packed_calls(
    draw: Draw,
    batches: st.SearchStrategy[Batch],
    dims: st.SearchStrategy[int],
    widths: st.SearchStrategy[int] = WIDTHS,
    is_mixed: bool = True,
) -> PackedCall:
    """A call of causal_conv1d_varlen_fn; what is optional comes and goes. Unless mixed, all floats are of one dtype."""
    b, dim, width = draw(batches), draw(dims), draw(widths)
    input_t, weight_t, state_t = (draw(st.sampled_from(FLOATS)) for _ in range(3))
    if not is_mixed:
        weight_t = state_t = input_t
    index_t = draw(st.sampled_from(INDICES))
    random = np.random.default_rng(draw(SEEDS))
    placed = {"x": draw(lain_out(input_t, (dim, b.total))), "weight": draw(lain_out(weight_t, (dim, width)))}
    if draw(st.booleans()):
        placed["bias"] = draw(lain_out(draw(st.sampled_from([weight_t, FLOAT32])), (dim,)))
    integers: dict[str, Array] = {}
    if b.starts is not None:
        integers["query_start_loc"] = np.array(b.starts)
    pad_slot_id = draw(st.sampled_from([-1, -1, 0, 2, -100]))
    if draw(st.integers(0, 4)):
        slots = b.count + draw(st.sampled_from([0, 1, 3]))
        shape = slots, dim, width - 1 + draw(st.sampled_from([0, 0, 1, 3]))
        placed["conv_states"] = draw(lain_out(state_t, shape, is_written=True))
        if draw(st.booleans()):
            drawn = random.permutation(slots)[: b.count]
            strange = random.choice([pad_slot_id, -1, -7, slots, slots + 1, 2**31 - 1], b.count)
            is_strange = random.uniform(size=b.count) < draw(st.sampled_from([0.0, 0.3]))
            integers["cache_indices"] = np.where(is_strange, strange, drawn)
        if draw(st.integers(0, 3)):
            integers["has_initial_state"] = random.uniform(size=b.count) < 0.5
    for name, values in integers.items():
        dtype = BOOL if values.dtype == bool else index_t
        placed[name] = draw(lain_out(dtype, values.shape, is_written=True))  # every element has a value of its own
    if draw(st.booleans()):
        placed["out"] = place(input_t, (dim, b.total), order=(1, 0) if placed["x"].strides[0] == 1 else ())
    else:
        placed["out"] = draw(lain_out(input_t, (dim, b.total), is_written=True))
    return PackedCall(placed, integers, pad_slot_id)
