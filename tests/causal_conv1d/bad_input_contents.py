"""What index arrays of convolutions hold, when it is checked: what must not be, and what may."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.causal_conv1d.bad_input_update import accepting
from tests.causal_conv1d.good_calls import DECODE, PACKED, ROWS, SLOTS, STATE_LEN, WIDTH
from tests.support.bad_input import Fine, Row, Tables, also, ints, of_several, outside, value

STARTS: dict[str, tuple[list[int], str]] = {
    "late": ([1, 4, 4, 9], "{name}[0]: got 1; wanted 0"),
    "negative": ([-1, 4, 4, 9], "{name}[0]: got -1; wanted 0"),
    "falling": ([0, 4, 3, 9], "{name}[2]: got 3; wanted at least 4, where the sequence begins"),
    "beyond": ([0, 4, 4, 10], "{name}[3]: got 10; wanted at most 9, the number of tokens"),
}
POOL: dict[str, tuple[list[int], str]] = {
    "large": ([3, 0, 5], "cache_indices: got slot 5; wanted 0 to 4, or pad_slot_id"),
    "twice": ([3, 0, 3], "cache_indices: got slot 3 for several sequences; wanted a slot of its own for each"),
}
MOST = STATE_LEN - (WIDTH - 1) + 1
SLOT, ROW = "conv_state_indices", "intermediate_state_indices"
ONE_PAD = also(ints(SLOT, [3, -1, 1]), accepting(MOST + 1, MOST + 1, 1))
TOO_MANY = f"num_accepted_tokens: got {MOST + 1}; wanted at most {MOST}, for what the state holds"
STEP: dict[str, Row] = {
    "slot-large": (ints(SLOT, [3, 0, 5]), ValueError, outside(SLOT, 5, SLOTS)),
    "slot-of-64-bits": (ints(SLOT, [3, 0, 2**32], np.int64), ValueError, outside(SLOT, 2**32, SLOTS)),
    "slot-twice": (ints(SLOT, [3, 0, 3]), ValueError, of_several(SLOT, 3)),
    "row-large": (ints(ROW, [5, 6, 0]), ValueError, outside(ROW, 6, ROWS)),
    "row-twice": (ints(ROW, [2, 2, 0]), ValueError, of_several(ROW, 2)),
    "row-twice-that-is-pad_slot_id": (
        also(ints(ROW, [2, 2, 0]), value("pad_slot_id", 2)), ValueError, of_several(ROW, 2)
    ),
    "accepted-too-many": (accepting(1, MOST + 1, 1), ValueError, TOO_MANY),
    "accepted-too-many-by-one-with-a-slot": (ONE_PAD, ValueError, TOO_MANY),
}  # fmt: skip


def packed(starts: str, slots: str = "") -> dict[str, Row]:
    """Rows for sequences' boundaries and slots in the arguments of these names."""
    found = {key: (ints(starts, own), ValueError, wanted.format(name=starts)) for key, (own, wanted) in STARTS.items()}
    pool = POOL if slots else {}
    return found | {f"slot-{key}": (ints(slots, own), ValueError, wanted) for key, (own, wanted) in pool.items()}


CONTENTS: Tables = {
    **dict.fromkeys(PACKED, packed("query_start_loc", "cache_indices")),
    "causal_conv1d_varlen_states": packed("cu_seqlens"),
    **dict.fromkeys(DECODE, STEP),
}
ALL, MIDDLE, NONE = [True] * 3, [False, True, False], [False] * 2
FINE: Mapping[str, Mapping[str, Fine]] = {
    "causal_conv1d_varlen_fn": {
        "padded": (ints("cache_indices", [-1, 2, -(2**40)], np.int64), NONE, set()),
        "empty-one-twice": (ints("cache_indices", [3, 3, 1], np.int64), [True] * 2, {1, 3}),
        "pad-in-the-pool": (also(ints("cache_indices", [0, 2, 0], np.int64), value("pad_slot_id", 0)), NONE, set()),
        "pad-behind-the-pool": (also(ints("cache_indices", [9, 2, 9], np.int64), value("pad_slot_id", 9)), NONE, set()),
    },
    "causal_conv1d_update": {
        "padded": (ints(SLOT, [-1, 2, -3]), MIDDLE, {2}),
        "padded-in-the-pool": (also(ints(SLOT, [0, 2, 0], np.int64), value("pad_slot_id", 0)), MIDDLE, {2}),
        "padded-behind-the-pool": (also(ints(SLOT, [SLOTS, 2, SLOTS]), value("pad_slot_id", SLOTS)), MIDDLE, {2}),
        "rows-of-padded": (also(ints(SLOT, [-1, 2, -1]), ints(ROW, [4, 4, 99])), MIDDLE, {2}),
        "row-padded": (ints(ROW, [-1, 4, -7]), ALL, {0, 1, 3}),
        "most-accepted": (accepting(MOST, 0, -5), ALL, {0, 1, 3}),
        "accepted-of-padded": (also(ints(SLOT, [3, -1, 1]), accepting(1, MOST + 1, 1)), [True, False, True], {1, 3}),
    },
}
