"""What index arrays hold, checked with CUCONV_CHECK=1 and only then; and that good calls are good."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuconv
from tests.causal_conv1d.good_calls import DECODE, GOOD, PACKED, SLOTS, STATE_LEN, WIDTH
from tests.causal_conv1d.test_update_bad_input import accepting
from tests.support.bad_input import KINDS, Row, also, assert_good, ints, module_of, refuse, rows

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
STARTS: dict[str, tuple[list[int], str]] = {
    "late": ([1, 4, 4, 9], "{name}[0]: got 1; wanted 0"),
    "negative": ([-1, 4, 4, 9], "{name}[0]: got -1; wanted 0"),
    "falling": ([0, 4, 3, 9], "{name}[2]: got 3; wanted at least 4, where the sequence begins"),
    "beyond": ([0, 4, 4, 10], "{name}[3]: got 10; wanted at most 9, the number of tokens"),
}
POOL: dict[str, tuple[list[int], str]] = {
    "large": ([3, 0, 5], "cache_indices: got slot 5; wanted 0 to 4, or pad_slot_id"),
    "negative": ([3, 0, -2], "cache_indices: got slot -2; wanted 0 to 4, or pad_slot_id"),
    "twice": ([3, 0, 3], "cache_indices: got slot 3 for several sequences; wanted a slot of its own for each"),
}
MOST = STATE_LEN - (WIDTH - 1) + 1
PAD = "or pad_slot_id"


def of_several(name: str, slot: int) -> str:
    return f"{name}: got slot {slot} for several sequences; wanted a slot of its own for each"


SLOT, ROW = "conv_state_indices", "intermediate_state_indices"
ONE_PAD = also(ints(SLOT, [3, -1, 1]), accepting(MOST + 1, MOST + 1, 1))
STEP: dict[str, Row] = {
    "slot-large": (ints(SLOT, [3, 0, 5]), ValueError, f"{SLOT}: got slot 5; wanted 0 to 4, {PAD}"),
    "slot-negative": (ints(SLOT, [-2, 0, 1]), ValueError, f"{SLOT}: got slot -2; wanted 0 to 4, {PAD}"),
    "slot-of-64-bits": (
        ints(SLOT, [3, 0, 2**32], np.int64), ValueError, f"{SLOT}: got slot 4294967296; wanted 0 to 4, {PAD}"
    ),
    "slot-twice": (ints(SLOT, [3, 0, 3]), ValueError, of_several(SLOT, 3)),
    "row-large": (ints(ROW, [5, 6, 0]), ValueError, f"{ROW}: got slot 6; wanted 0 to 5, {PAD}"),
    "row-negative": (ints(ROW, [5, 2, -7]), ValueError, f"{ROW}: got slot -7; wanted 0 to 5, {PAD}"),
    "row-twice": (ints(ROW, [2, 2, 0]), ValueError, of_several(ROW, 2)),
    "row-twice-that-is-pad_slot_id": (
        also(ints(ROW, [2, 2, 0]), lambda xp, a: {"pad_slot_id": 2}), ValueError, of_several(ROW, 2)
    ),
    "accepted-too-many": (
        accepting(1, MOST + 1, 1), ValueError,
        f"num_accepted_tokens: got {MOST + 1}; wanted at most {MOST}, for what the state holds",
    ),
    "accepted-too-many-by-one-with-a-slot": (
        ONE_PAD, ValueError, f"num_accepted_tokens: got {MOST + 1}; wanted at most {MOST}, for what the state holds"
    ),
}  # fmt: skip


def starts(name: str) -> dict[str, Row]:
    """Rows for sequences' boundaries in the argument of this name."""
    return {key: (ints(name, values), ValueError, wanted.format(name=name)) for key, (values, wanted) in STARTS.items()}


CONTENTS: dict[str, dict[str, Row]] = {
    **dict.fromkeys(
        PACKED,
        starts("query_start_loc")
        | {f"slot-{key}": (ints("cache_indices", slots), ValueError, wanted) for key, (slots, wanted) in POOL.items()},
    ),
    "causal_conv1d_varlen_states": starts("cu_seqlens"),
    **dict.fromkeys(DECODE, STEP),
}


@EACH_KIND
@pytest.mark.parametrize(("name", "row"), rows(CONTENTS))
def test_contents_are_checked_when_asked_for(name: str, row: Row, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    refuse(name, row, kind, GOOD)
    monkeypatch.delenv("CUCONV_CHECK")
    xp = module_of(kind)
    arguments = GOOD[name](xp)
    getattr(cuconv, name)(**{**arguments, **row[0](xp, arguments)})


@EACH_KIND
@pytest.mark.parametrize(
    ("slots", "pad_slot_id"),
    [([-1, 2, -1], -1), ([3, 3, 1], -1), ([0, 2, 0], 0), ([9, 2, 9], 9)],
    ids=["padded", "empty-one-twice", "pad-in-the-pool", "pad-behind-the-pool"],
)
def test_checked_contents_may_be_padded_and_empty(
    slots: list[int], pad_slot_id: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    xp = module_of(kind)
    arguments = {
        **GOOD["causal_conv1d_varlen_fn"](xp),
        "cache_indices": xp.asarray(slots, np.int64),
        "pad_slot_id": pad_slot_id,
    }
    cuconv.causal_conv1d_varlen_fn(**arguments)
    assert bool((arguments["out"][:, 4:] == 0).all()) == (slots[2] == pad_slot_id)


FINE: dict[str, tuple[Any, list[bool]]] = {
    "padded": (ints(SLOT, [-1, 2, -1]), [False, True, False]),
    "padded-in-the-pool": (
        also(ints(SLOT, [0, 2, 0], np.int64), lambda xp, a: {"pad_slot_id": 0}), [False, True, False]
    ),
    "padded-behind-the-pool": (
        also(ints(SLOT, [SLOTS, 2, SLOTS]), lambda xp, a: {"pad_slot_id": SLOTS}), [False, True, False]
    ),
    "rows-of-padded": (also(ints(SLOT, [-1, 2, -1]), ints(ROW, [4, 4, 99])), [False, True, False]),
    "row-padded": (ints(ROW, [-1, 4, -1]), [True, True, True]),
    "most-accepted": (accepting(MOST, 0, -5), [True, True, True]),
    "accepted-of-padded": (also(ints(SLOT, [3, -1, 1]), accepting(1, MOST + 1, 1)), [True, False, True]),
}  # fmt: skip


@EACH_KIND
@pytest.mark.parametrize(("change", "is_live"), FINE.values(), ids=FINE)
def test_checked_contents_of_steps_may_be_padded(
    change: Any, is_live: list[bool], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    xp = module_of(kind)
    arguments = GOOD["causal_conv1d_update"](xp)
    arguments |= change(xp, arguments)
    before = arguments["conv_state"].copy()
    arguments["x"][...] = 2
    cuconv.causal_conv1d_update(**arguments)
    assert [bool((out != 0).all()) for out in arguments["out"]] == is_live
    assert [bool((out == 0).all()) for out in arguments["out"]] == [not each for each in is_live]
    changed = [slot for slot in range(SLOTS) if bool((arguments["conv_state"][slot] != before[slot]).any())]
    used = arguments[SLOT].tolist()
    assert changed == sorted(slot for slot, each in zip(used, is_live, strict=True) if each)


@EACH_KIND
@pytest.mark.parametrize("checked", ["", "0", "1"])
@pytest.mark.parametrize("name", [*CONTENTS])
def test_the_good_call_is_good(name: str, checked: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", checked)
    arguments = GOOD[name](module_of(kind))
    assert_good(name, arguments)
    if name in DECODE:
        windows = arguments["intermediate_conv_window"]
        assert [bool((window == 1).all()) for window in windows[:, :2]] == [row in (5, 2, 0) for row in range(6)]
