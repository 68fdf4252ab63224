"""Hypothesis strategies: arrays that lie anywhere, and calls made of them."""

from __future__ import annotations

from hypothesis import strategies as st

from cuconv.dtypes import FLOAT32, FLOATS, INT32, DType
from tests.placement import Placement, place

Draw = st.DrawFn

WIDTHS = st.integers(1, 16)

ORDERS: dict[int, list[tuple[int, ...]]] = {
    1: [(0,)],
    2: [(0, 1), (1, 0)],
    3: [(0, 1, 2), (0, 2, 1), (1, 2, 0), (2, 1, 0), (1, 0, 2), (2, 0, 1)],
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
