"""Hypothesis strategies: selective state updates of every kind, on arrays that lie anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hypothesis import strategies as st

from cuconv.runtime.dtypes import CODES
from tests.selective_state_update.cases import Case
from tests.support.compare import ROUNDING
from tests.support.layouts import BY_TOKEN, PARAMETERS, SLOTS
from tests.support.placement import Placement
from tests.support.strategies import Draw, lain_out

FLOATS = st.sampled_from([*ROUNDING])
STATES = st.sampled_from([*ROUNDING, *map(str, CODES)])
PER_HEAD = ("", "all", "all", "A", "A dt", "dt", "D dt_bias", "A_n", "A_n dt dt_bias")
WITHOUT = ("", "", "all", "D", "z", "dt_bias", "D z")


class UpdateCall(NamedTuple):
    """A valid call and where its arrays lie."""

    case: Case
    placements: dict[str, Placement]


@st.composite
def packed(draw: Draw, max_length: int) -> str:
    """The name of a batch of packed sequences."""
    lengths = st.lists(st.sampled_from([0, 1, 1, 2, max_length]), min_size=1, max_size=5)
    ends = st.sampled_from(["", "", "off1"])
    words = [draw(ends), *map(str, draw(lengths)), draw(ends)]
    return "+".join(filter(None, words))


@st.composite
def indices(draw: Draw, has_tokens: bool) -> dict[str, Any]:
    """The options of a case that decide its index arrays."""
    named: dict[str, Any] = {
        "odd": draw(st.booleans()),
        "index": draw(st.sampled_from(["int32", "int64", "mixed"])),
        "pad_slot_id": draw(st.sampled_from([-1, -1, 0, 3, -100])),
        "frozen": draw(st.integers(0, 5)) == 0,
        "spare": draw(st.sampled_from([0, 1, 3])),
        "steps": draw(st.sampled_from([None, "slot", "row"])),
        "columns": draw(st.sampled_from([0, 0, 3, 9])) if has_tokens else 0,
    }
    if has_tokens and draw(st.integers(0, 2)) == 0:
        return {**named, "accepted": True, "targets": draw(st.sampled_from([None, "each"]))}
    named["targets"] = draw(st.sampled_from([None, None, "one", "each"]))
    # Nothing may be written twice: neither a slot nor what is a slot's in the buffer.
    may_share = named["steps"] != "slot" and (named["targets"] is not None or named["frozen"])
    return {**named, "slots": draw(st.sampled_from([None, "permuted", "shared"] if may_share else [None, "permuted"]))}


@st.composite
def update_calls(
    draw: Draw,
    kinds: st.SearchStrategy[Mapping[str, Any]],
    sizes: st.SearchStrategy[tuple[int, int, int]],
    max_length: int = 4,
) -> UpdateCall:
    """A call of one of these kinds and sizes (sequences, heads, rows); all other options are drawn."""
    batch, heads, dim = draw(sizes)
    is_packed, has_tokens = draw(st.booleans()), draw(st.booleans())
    tokens = draw(st.integers(0, max_length)) if has_tokens and not is_packed else None
    case = Case(
        **{
            "batch": draw(packed(max_length)) if is_packed else batch,
            "heads": heads,
            "dim": dim,
            "groups": draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0] or [1])),
            "tokens": tokens,
            "per_head": draw(st.sampled_from(PER_HEAD)) if heads else "",
            "without": draw(st.sampled_from(WITHOUT)),
            "softplus": draw(st.booleans()),
            "lies": "+".join(draw(st.lists(st.sampled_from([*BY_TOKEN]), min_size=1, max_size=6))),
            "pool": draw(st.sampled_from([*SLOTS])),
            "others": draw(st.sampled_from([*PARAMETERS])),
            "loud": draw(st.sampled_from([1.0, 1.0, 10.0])),
            **draw(indices(is_packed or has_tokens)),
            **draw(kinds),
        }
    )
    placed = case.placements()
    if draw(st.integers(0, 2)) == 0:
        placed = {name: draw(anywhere(case, name, lies)) for name, lies in placed.items()}
    return UpdateCall(case, placed)


@st.composite
def anywhere(draw: Draw, case: Case, name: str, lies: Placement) -> Placement:
    """A placement of the same dtype and shape; a parameter with one value per head keeps its own."""
    if 0 in lies.strides:
        return lies
    # Only of parameters may elements share an address: integers differ, and so do tokens that are NaN or not.
    return draw(lain_out(lies.dtype, lies.shape, is_written=name not in ("A", "D", "dt_bias")))
