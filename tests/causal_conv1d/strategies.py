"""Hypothesis strategies: valid calls of the convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from cuconv.causal_conv1d.kernels import GATES
from cuconv.runtime.dtypes import BOOL, FLOAT32, FLOATS, INDICES, INT32, DType
from tests.support.batches import Batch
from tests.support.placement import Array, Placed, Placement, place
from tests.support.strategies import SEEDS, Draw, lain_out

WIDTHS = st.integers(1, 16)
MODES = ("shift", "circular", "accepted")


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


@dataclass(frozen=True)
class UpdateCall:
    """A valid call of causal_conv1d_update: where its arrays lie, the integers in them, and what else it is given."""

    placements: dict[str, Placement]
    integers: dict[str, Array]
    options: dict[str, Any]

    def fill(self, seed: int) -> dict[str, Placed]:
        """Memory for the arrays: values from -1 to 1, NaN in what is only written."""
        random = np.random.default_rng(seed)
        placed = {}
        for name, lies in self.placements.items():
            values = self.integers[name] if name in self.integers else random.uniform(-1, 1, lies.shape)
            placed[name] = Placed(lies, None if name in ("out", "intermediate_conv_window") else values)
        return placed

    def arguments(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """All of them, by name."""
        return {**arrays, **self.options}


@st.composite
def update_calls(
    draw: Draw,
    sizes: st.SearchStrategy[tuple[int, int, int]],
    widths: st.SearchStrategy[int] = WIDTHS,
    is_mixed: bool = True,
    activations: Sequence[str | None] = (None, "silu", "swish"),
    floats: Sequence[DType] = FLOATS,
) -> UpdateCall:
    """What is optional comes and goes. Unless mixed, all floats are of one dtype.

    Every slot and every row of windows is a single sequence's; some sequences have none, or a number out of range.
    """
    (batch, dim, seqlen), width, mode = draw(sizes), draw(widths), draw(st.sampled_from(MODES))
    rank = draw(st.sampled_from([2, 3, 3])) if seqlen == 1 else 3
    shape = (batch, dim, seqlen)[:rank]
    input_t, weight_t, state_t = (draw(st.sampled_from(floats)) for _ in range(3))
    if not is_mixed:
        weight_t = state_t = input_t
    state_len = max(width - 1, 0) + draw(st.sampled_from([0, 0, 1, 2, 5]))
    if mode == "accepted":
        state_len += max(seqlen - 1, 0)
    slots, pad_slot_id = batch + draw(st.sampled_from([0, 1, 3])), draw(st.sampled_from([-1, -1, 0, 2, -100]))
    random = np.random.default_rng(draw(SEEDS))
    is_odd = draw(st.booleans())

    def chosen(count: int, *unused: int) -> Array:
        """Numbers below count, each once; in odd calls some are out of range, or one of `unused`."""
        strange = random.choice([*unused, -1, -7, count, count + 1, 2**31 - 1], batch)
        return np.where(random.uniform(size=batch) < 0.3 * is_odd, strange, random.permutation(count)[:batch])

    placed = {
        "x": draw(lain_out(input_t, shape)),
        "conv_state": draw(lain_out(state_t, (slots, dim, state_len), is_written=True)),
        "weight": draw(lain_out(weight_t, (dim, width))),
    }
    if draw(st.booleans()):
        placed["bias"] = draw(lain_out(draw(st.sampled_from([weight_t, FLOAT32])), (dim,)))
    for name in GATES:
        if draw(st.integers(0, 5)) == 0:
            placed[name] = draw(lain_out(input_t, shape))
    integers: dict[str, Array] = {}
    if has_slots := draw(st.booleans()):
        integers["conv_state_indices"] = chosen(slots, pad_slot_id)
    if mode == "circular":
        ends = [-(2**31), -state_len, -1, 0, state_len, 2**31 - 1]
        around = random.integers(-3 * state_len - 3, 3 * state_len + 3, batch)
        integers["cache_seqlens"] = np.where(random.uniform(size=batch) < 0.2, random.choice(ends, batch), around)
    if mode == "accepted":
        last = state_len - (width - 1) + 1
        integers["num_accepted_tokens"] = random.integers(-1, last + 1 + 2 * is_odd, batch)
    if draw(st.booleans()):
        rows = slots if has_slots else batch
        if draw(st.booleans()):
            rows = batch + draw(st.sampled_from([0, 2]))
            # Here pad_slot_id is a row like any other.
            integers["intermediate_state_indices"] = chosen(rows)
        steps = seqlen + draw(st.sampled_from([0, 0, 2]))
        lies = lain_out(state_t, (rows, steps, dim, width - 1), is_written=True)
        placed["intermediate_conv_window"] = draw(lies)
    for name, values in integers.items():
        placed[name] = draw(lain_out(draw(st.sampled_from(INDICES)), values.shape, is_written=True))
    if draw(st.booleans()):
        placed["out"] = place(input_t, shape, order=(0, 2, 1) if rank == 3 and placed["x"].strides[1] == 1 else ())
    else:
        placed["out"] = draw(lain_out(input_t, shape, is_written=True))
    options = {"activation": draw(st.sampled_from(activations)), "pad_slot_id": pad_slot_id}
    if mode != "accepted" and draw(st.integers(0, 3)) == 0:
        options["disable_state_update"] = True
    return UpdateCall(placed, integers, options)
