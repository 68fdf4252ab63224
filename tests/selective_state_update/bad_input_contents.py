"""What index arrays of state updates hold, when it is checked: what must not be, and what may."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.selective_state_update.good_calls import SLOTS
from tests.support.bad_input import Change, Fine, Row, Tables, also, ints, of_several, outside, value

SLOT, TARGET, ACCEPTED = "state_batch_indices", "dst_state_batch_indices", "num_accepted_tokens"
ROW, STARTS = "intermediate_state_indices", "cu_seqlens"
ALL, MIDDLE = [True] * 3, [False, True, False]

ROWS: dict[str, dict[str, Row]] = {
    "batch": {
        "slot-large": (ints(SLOT, [3, 0, 9]), ValueError, outside(SLOT, 9, SLOTS)),
        "slot-of-64-bits": (ints(SLOT, [3, 2**32, 1], np.int64), ValueError, outside(SLOT, 2**32, SLOTS)),
        "slot-twice": (
            also(value(TARGET, None), ints(SLOT, [3, 0, 3])), ValueError, of_several(SLOT, 3)
        ),
        "target-large": (ints(TARGET, [3, 4, 10]), ValueError, outside(TARGET, 10, SLOTS)),
        "target-twice": (ints(TARGET, [4, 8, 4]), ValueError, of_several(TARGET, 4)),
        "row-large": (ints(ROW, [3, 4, 1]), ValueError, outside(ROW, 4, 4)),
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
    "quantised": {
        "slot-large": (ints(SLOT, [3, 0, 9]), ValueError, outside(SLOT, 9, SLOTS)),
        "target-twice": (ints(TARGET, [4, 8, 4]), ValueError, of_several(TARGET, 4)),
        "row-large": (ints(ROW, [3, 4, 1]), ValueError, outside(ROW, 4, 4)),
    },
}  # fmt: skip
CONTENTS: Tables = {f"selective_state_update:{call}": table for call, table in ROWS.items()}

MAY_BE: dict[str, dict[str, tuple[Change, list[bool], set[int]]]] = {
    "quantised": {
        "padded": (also(ints(SLOT, [-1, 2, -1]), ints(TARGET, [-1, 2, -1])), MIDDLE, {2}),
        "shared-start": (also(ints(SLOT, [3, 3, 3]), ints(TARGET, [5, 4, 8])), ALL, {4, 5, 8}),
    },
    "batch": {
        "padded": (also(ints(SLOT, [-1, 2, -3]), ints(TARGET, [-4, 2, -1])), MIDDLE, {2}),
        "padded-in-the-pool": (
            also(ints(SLOT, [0, 2, 0], np.int64), ints(TARGET, [0, 2, 0]), value("pad_slot_id", 0)), MIDDLE, {2}
        ),
        "padded-behind-the-pool": (
            also(ints(SLOT, [SLOTS, 2, SLOTS]), value(TARGET, None), value("pad_slot_id", SLOTS)), MIDDLE, {2}
        ),
        "not-stored": (also(ints(TARGET, [-1, -8, 2]), ints(ROW, [-1, 3, -7])), ALL, {2}),
        "padded-source-with-a-target": (
            also(ints(SLOT, [-1, 2, -1]), ints(TARGET, [5, 2, 5]), ints(ROW, [0, 1, 0])), MIDDLE, {2}
        ),
        "padded-source-with-a-target-outside": (
            also(ints(SLOT, [-1, 2, -1]), ints(TARGET, [99, 2, -5]), ints(ROW, [77, 1, -8])), MIDDLE, {2}
        ),
        "shared-start": (also(ints(SLOT, [3, 3, 3]), ints(TARGET, [5, 4, 8])), ALL, {4, 5, 8}),
        "shared-and-frozen": (
            also(ints(SLOT, [5, 5, 5]), value(TARGET, None), value("disable_state_update", True)), ALL, set()
        ),
        "not-read": (
            also(ints(TARGET, [3, 1, 8]), lambda xp, a: {"has_initial_state": xp.zeros(3, bool)}), ALL, {1, 3, 8}
        ),
        "rows-beyond": (
            also(ints(SLOT, [3, 0, 1, 99, -9, 3]), ints(TARGET, [3, 4, 8, 8, 99]), ints(ROW, [3, 0, 1, 1])), ALL,
            {3, 4, 8},
        ),
        "tree": (ints("parents", [[0, 0], [-1, -5], [0, 0]]), ALL, {3, 4, 8}),
        "padded-by-null_slot": (
            also(ints(SLOT, [0, 2, -7]), value(TARGET, None), value("null_slot", 0)), MIDDLE, {2}
        ),
        "columns-outside": (
            also(ints(SLOT, [[3, 0], [0, 2], [1, 5]]), ints("state_column", [2, 1, -1]), ints(TARGET, [4, 2, 8])),
            MIDDLE, {2},
        ),
    },
    "accepted": {
        "all-accepted": (ints(ACCEPTED, [2, 2, -5]), ALL, {0, 1, 2, 3, 5, 6}),
        "columns-beyond-the-tokens": (ints(SLOT, [[3, 0, 9], [1, 2, 9], [6, 5, -7]]), ALL, {0, 1, 2, 3, 5, 6}),
        "accepted-padded": (ints(SLOT, [[-1, 0], [1, 2], [6, -1]]), [False, True, True], {1, 2, 6}),
    },
    "packed": {
        "columns-beyond-a-sequence": (ints(TARGET, [[4, 5, 99], [5, 5, -7], [8, 0, 2]]), 2 * ALL, {0, 2, 4, 5, 8}),
    },
}  # fmt: skip
FINE: Mapping[str, Mapping[str, Fine]] = {f"selective_state_update:{call}": table for call, table in MAY_BE.items()}
