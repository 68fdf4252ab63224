"""selective_state_update_commit: cursors of rings after steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.runtime.dtypes import BY_NAME
from tests import cases
from tests.support.placement import Array, Placement, place


@dataclass(frozen=True)
class Case(cases.Case):
    """One call."""

    FUNCTION = "selective_state_update_commit"
    OUTPUTS = ()
    UPDATED = ("cursors",)

    batch: int | None  # None: every slot
    slots: int
    window: int = 5
    room: int = 4
    accepted: bool = True
    reset: bool = False
    odd: bool = False  # some slots and numbers of tokens are none
    index: str = "int32"
    spread: bool = False  # arrays with gaps

    def options(self) -> dict[str, Any]:
        sizes = {"ring_rows": self.window + self.room, "window": self.window}
        return {**sizes, "reset": self.reset, "pad_slot_id": self.slots - 1 if self.odd else -1}

    def placements(self) -> dict[str, Placement]:
        known, index = self.integers(), BY_NAME[self.index]
        way: Any = {"spacing": 3} if self.spread else {}
        return {
            "cursors": place(BY_NAME["int32"], (self.slots, 4), pad=(0, 2) if self.spread else ()),
            **{name: place(index, known[name].shape, **way) for name in known if name != "cursors"},
        }

    def integers(self, seed: int = 0) -> dict[str, Array]:
        random, rows = self.random(seed), self.window + self.room
        start, live = random.integers(0, rows, self.slots), random.integers(0, self.window + 1, self.slots)
        appended = random.integers(0, self.room + 1, self.slots)
        # Tokens find room: where the live ones do not leave it, they are in the state.
        folded = np.where(live + appended > self.window, live, 0)
        found = {"cursors": np.stack([start, live, appended, folded], axis=1)}
        count = self.slots if self.batch is None else self.batch
        if self.batch is not None:
            found["state_batch_indices"] = random.permutation(self.slots)[:count]
            rest = np.setdiff1d(np.arange(self.slots), found["state_batch_indices"])
            found["cursors"][rest] = 2**20
        if self.accepted:
            found["accepted"] = random.integers(0, self.room + 1, count + 1)
        if self.odd:
            outside = [-1, self.slots, self.slots - 1]
            for values, strange in zip(list(found.values())[1:], (outside, [-3, 99]), strict=False):
                values[::2] = np.resize(strange, len(values[::2]))
        return found

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Any]:
        cursors, rows = arrays["cursors"].copy(), self.window + self.room
        slots = arrays.get("state_batch_indices", np.arange(self.slots))
        for number, slot in enumerate(slots):
            if not 0 <= slot < self.slots or (slot == self.options()["pad_slot_id"] and self.batch is not None):
                continue
            start, live, appended, folded = cursors[slot]
            accepted = min(max(int(arrays["accepted"][number]), 0), appended) if self.accepted else appended
            after = ((start + folded) % rows, live - folded + accepted, 0, 0)
            cursors[slot] = (0, 0, 0, 0) if self.reset else after
        return {"cursors": cursors}


UNIT = (
    Case(7, 12),
    Case(7, 12, accepted=False, index="int64", spread=True),
    Case(7, 12, window=1, room=1),
    Case(300, 500, window=32, room=16, odd=True),
    Case(300, 500, odd=True, index="int64", reset=True),
    Case(None, 9),
    Case(None, 300, accepted=False, reset=True, spread=True),
    Case(0, 3),
)

EDGE = (Case(70000, 100000, odd=True), Case(None, 200000, window=16, room=1, accepted=False))
