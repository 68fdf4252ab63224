"""The contents of index arrays of selective state updates are checked with CUCONV_CHECK=1 and only then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuconv
from tests.selective_state_update.good_calls import BATCH, GOOD, SLOTS, TOKENS
from tests.support.bad_input import KINDS, Change, Row, also, module_of, refuse, value

SLOT, TARGET, ACCEPTED = "state_batch_indices", "dst_state_batch_indices", "num_accepted_tokens"
ROW, STARTS = "intermediate_state_indices", "cu_seqlens"


def ints(name: str, values: Any, dtype: Any = np.int32) -> Change:
    return lambda xp, a: {name: xp.asarray(values, dtype)}


def outside(name: str, slot: int, count: int) -> str:
    return f"{name}: got slot {slot}; wanted 0 to {count - 1}, or pad_slot_id"


def of_several(name: str, slot: int) -> str:
    return f"{name}: got slot {slot} for several sequences; wanted a slot of its own for each"


ROWS: dict[str, dict[str, Row]] = {
    "batch": {
        "slot-large": (ints(SLOT, [3, 0, 9]), ValueError, outside(SLOT, 9, SLOTS)),
        "slot-negative": (ints(SLOT, [-2, 0, 1]), ValueError, outside(SLOT, -2, SLOTS)),
        "slot-of-64-bits": (ints(SLOT, [3, 2**32, 1], np.int64), ValueError, outside(SLOT, 2**32, SLOTS)),
        "slot-twice": (
            also(value(TARGET, None), ints(SLOT, [3, 0, 3])), ValueError, of_several(SLOT, 3)
        ),
        "target-large": (ints(TARGET, [3, 4, 10]), ValueError, outside(TARGET, 10, SLOTS)),
        "target-twice": (ints(TARGET, [4, 8, 4]), ValueError, of_several(TARGET, 4)),
        "row-large": (ints(ROW, [3, 4, 1]), ValueError, outside(ROW, 4, 4)),
        "row-negative": (ints(ROW, [3, -7, 1]), ValueError, outside(ROW, -7, 4)),
        "row-twice": (ints(ROW, [3, 3, 1]), ValueError, of_several(ROW, 3)),
        "row-twice-that-is-pad_slot_id": (
            also(ints(ROW, [2, 2, 1]), value("pad_slot_id", 2)), ValueError, of_several(ROW, 2)
        ),
        "parent-late": (
            ints("parents", [[0, 0], [-1, 1], [0, -1]]), ValueError,
            "parents: got 1 for token 1; wanted an earlier token, or -1",
        ),
        "column-of-a-slot-outside": (
            also(ints(SLOT, [[3, 0], [0, 9], [1, 2]]), ints("state_column", [1, 1, 1]), value(TARGET, None)),
            ValueError, outside(SLOT, 9, SLOTS),
        ),
        "target-is-another's-start": (
            ints(TARGET, [3, 1, 8]), ValueError,
            f"{TARGET}: got slot 1, which another sequence starts from; wanted a slot of its own",
        ),
    },
    "accepted": {
        "slot-large": (ints(SLOT, [[3, 0], [1, 9], [6, 5]]), ValueError, outside(SLOT, 9, SLOTS)),
        "slot-twice": (ints(SLOT, [[3, 0], [1, 2], [6, 3]]), ValueError, of_several(SLOT, 3)),
        "slot-twice-in-a-row": (ints(SLOT, [[3, 0], [2, 2], [6, 5]]), ValueError, of_several(SLOT, 2)),
        "target-twice": (ints(TARGET, [[3, 0], [1, 2], [6, 3]]), ValueError, of_several(TARGET, 3)),
        "accepted-too-many": (
            ints(ACCEPTED, [0, 3, 1]), ValueError,
            f"{ACCEPTED}: got 3; wanted at most 2, the columns of {SLOT}",
        ),
    },
    "packed": {
        "target-large": (ints(TARGET, [[4, 5, 6], [7, 7, 7], [8, 0, 9]]), ValueError, outside(TARGET, 9, SLOTS)),
        "target-twice": (ints(TARGET, [[4, 5, 6], [7, 7, 7], [8, 0, 5]]), ValueError, of_several(TARGET, 5)),
        "slot-negative": (ints(SLOT, [3, 0, -3]), ValueError, outside(SLOT, -3, SLOTS)),
        "starts-late": (ints(STARTS, [1, 2, 2, 6]), ValueError, f"{STARTS}[0]: got 1; wanted 0"),
        "starts-negative": (ints(STARTS, [-1, 2, 2, 6]), ValueError, f"{STARTS}[0]: got -1; wanted 0"),
        "starts-falling": (
            ints(STARTS, [0, 2, 1, 6]), ValueError,
            f"{STARTS}[2]: got 1; wanted at least 2, where the sequence begins",
        ),
        "starts-beyond": (
            ints(STARTS, [0, 2, 2, 7], np.int64), ValueError,
            f"{STARTS}[3]: got 7; wanted at most 6, the number of tokens",
        ),
    },
}  # fmt: skip
CONTENTS = {f"{call}-{key}": (call, row) for call, rows in ROWS.items() for key, row in rows.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("call", "row"), CONTENTS.values(), ids=CONTENTS)
def test_contents_are_checked_when_asked_for(call: str, row: Row, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    refuse("selective_state_update", row, kind, {"selective_state_update": GOOD[call]})
    monkeypatch.delenv("CUCONV_CHECK")
    xp = module_of(kind)
    arguments = GOOD[call](xp)
    cuconv.selective_state_update(**{**arguments, **row[0](xp, arguments)})


FINE: dict[str, tuple[str, Change, list[bool]]] = {
    "padded": ("batch", also(ints(SLOT, [-1, 2, -1]), ints(TARGET, [-1, 2, -1])), [False, True, False]),
    "padded-in-the-pool": (
        "batch", also(ints(SLOT, [0, 2, 0], np.int64), ints(TARGET, [0, 2, 0]), value("pad_slot_id", 0)),
        [False, True, False],
    ),
    "padded-behind-the-pool": (
        "batch", also(ints(SLOT, [SLOTS, 2, SLOTS]), value(TARGET, None), value("pad_slot_id", SLOTS)),
        [False, True, False],
    ),
    "not-stored": ("batch", also(ints(TARGET, [-1, -1, 2]), ints(ROW, [-1, 3, -1])), [True, True, True]),
    "padded-source-with-a-target": (
        "batch", also(ints(SLOT, [-1, 2, -1]), ints(TARGET, [5, 2, 5]), ints(ROW, [0, 1, 0])), [False, True, False],
    ),
    "padded-source-with-a-target-outside": (
        "batch", also(ints(SLOT, [-1, 2, -1]), ints(TARGET, [99, 2, -5]), ints(ROW, [77, 1, -8])),
        [False, True, False],
    ),
    "shared-start": ("batch", also(ints(SLOT, [3, 3, 3]), ints(TARGET, [5, 4, 8])), [True, True, True]),
    "shared-and-frozen": (
        "batch", also(ints(SLOT, [5, 5, 5]), value(TARGET, None), value("disable_state_update", True)),
        [True, True, True],
    ),
    "not-read": (
        "batch", also(ints(TARGET, [3, 1, 8]), lambda xp, a: {"has_initial_state": xp.zeros(3, bool)}),
        [True, True, True],
    ),
    "rows-beyond": (
        "batch", also(ints(SLOT, [3, 0, 1, 99, -9, 3]), ints(TARGET, [3, 4, 8, 8, 99]), ints(ROW, [3, 0, 1, 1])),
        [True, True, True],
    ),
    "tree": ("batch", ints("parents", [[0, 0], [-1, -5], [0, 0]]), [True, True, True]),
    "padded-by-null_slot": (
        "batch", also(ints(SLOT, [0, 2, -7]), value(TARGET, None), value("null_slot", 0)), [False, True, False],
    ),
    "columns-outside": (
        "batch", also(ints(SLOT, [[3, 0], [0, 2], [1, 5]]), ints("state_column", [2, 1, -1]), ints(TARGET, [4, 2, 8])),
        [False, True, False],
    ),
    "all-accepted": ("accepted", ints(ACCEPTED, [2, 2, -5]), [True, True, True]),
    "columns-beyond-the-tokens": (
        "accepted", ints(SLOT, [[3, 0, 9], [1, 2, 9], [6, 5, -7]]), [True, True, True],
    ),
    "accepted-padded": ("accepted", ints(SLOT, [[-1, 0], [1, 2], [6, -1]]), [False, True, True]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("call", "change", "is_live"), FINE.values(), ids=FINE)
def test_checked_contents_may_be_padded_and_shared(
    call: str, change: Change, is_live: list[bool], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    xp = module_of(kind)
    arguments = GOOD[call](xp)
    arguments |= change(xp, arguments)
    before = arguments["state"].copy()
    cuconv.selective_state_update(**arguments)
    assert [bool((out != 0).all()) for out in arguments["out"]] == is_live
    assert [bool((out == 0).all()) for out in arguments["out"]] == [not each for each in is_live]
    changed = {slot for slot in range(SLOTS) if bool((arguments["state"][slot] != before[slot]).any())}
    assert changed == (set() if arguments.get("disable_state_update") else targets(arguments, is_live))


def targets(arguments: dict[str, Any], is_live: list[bool]) -> set[int]:
    """The slots that must have been written."""
    to = arguments.get(TARGET)
    to = (arguments[SLOT] if to is None else to).tolist()
    rows = [row[:TOKENS] if isinstance(row, list) else [row] for row, live in zip(to, is_live, strict=False) if live]
    return {slot for row in rows for slot in row if slot != arguments.get("pad_slot_id", -1)}


@pytest.mark.parametrize("kind", KINDS)
def test_checked_columns_beyond_a_packed_sequence_may_be_anything(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", "1")
    xp = module_of(kind)
    arguments = GOOD["packed"](xp) | {TARGET: xp.asarray([[4, 5, 99], [5, 5, -7], [8, 0, 2]], np.int32)}
    cuconv.selective_state_update(**arguments)
    assert [slot for slot in range(SLOTS) if bool((arguments["state"][slot] != 1).any())] == used_slots("packed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checked", ["", "0", "1"])
@pytest.mark.parametrize("call", GOOD)
def test_the_good_call_is_good(call: str, checked: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUCONV_CHECK", checked)
    arguments = GOOD[call](module_of(kind))
    assert cuconv.selective_state_update(**arguments) is arguments["out"]
    assert not bool((arguments["out"] != arguments["out"]).any())
    state, used = arguments["state"], used_slots(call)
    assert [slot for slot in range(len(state)) if bool((state[slot] != 1).any())] == used
    if "intermediate_states_buffer" in arguments:
        buffer = arguments["intermediate_states_buffer"]
        rows = {"batch": [0, 1, 3], "accepted": [2, 3, 6]}[call]
        assert [row for row in range(len(buffer)) if bool((buffer[row, :2] == buffer[row, :2]).all())] == rows


def used_slots(call: str) -> list[int]:
    """The slots that a good call writes."""
    known = {"batch": [3, 4, 8], "accepted": [0, 1, 2, 3, 5, 6], "packed": [0, 2, 4, 5, 8]}
    return known.get(call, [*range(BATCH)])
