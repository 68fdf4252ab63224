"""selective_state_update_materialise: states after the tokens of rings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.runtime.dtypes import BY_NAME, CODES
from cuconv.runtime.rounding import LARGEST
from cuconv.selective_state_update import reference
from tests import cases
from tests.selective_state_update.cases import _nan
from tests.support.compare import Between
from tests.support.layouts import SLOTS
from tests.support.placement import Array, Placement, place


@dataclass(frozen=True)
class Case(cases.Case):
    """One call."""

    FUNCTION = "selective_state_update_materialise"
    OUTPUTS = ()
    UPDATED = ("state", "state_scale")

    batch: int
    heads: int
    dim: int
    d_state: int
    groups: int = 1
    dtype: str = "bfloat16"
    state_dtype: str = ""  # x's when empty
    A_dtype: str = "float32"
    B_dtype: str = ""  # x's when empty
    window: int = 4
    room: int = 2
    targets: bool = False
    count: bool = False
    odd: bool = False  # some slots and counts are none
    index: str = "int32"
    pool: str = "dense"

    def options(self) -> dict[str, Any]:
        return {"window": self.window, "pad_slot_id": 0 if self.odd else -1}

    def placements(self) -> dict[str, Placement]:
        known, index, stored = self.integers(), BY_NAME[self.index], BY_NAME[self.state_dtype or self.dtype]
        slots, rows, inner = 2 * self.batch + 2, self.window + self.room, (self.heads, self.dim, self.d_state)
        placed = {
            "state": place(stored, (slots, *inner), **SLOTS[self.pool](4)),
            "x_ring": place(BY_NAME[self.dtype], (slots, self.heads, rows, self.dim)),
            "B_ring": place(BY_NAME[self.B_dtype or self.dtype], (slots, self.groups, rows, self.d_state)),
            "dt_ring": place(BY_NAME["float32"], (slots, self.heads, rows)),
            "cursors": place(BY_NAME["int32"], (slots, 4)),
            "A": place(BY_NAME[self.A_dtype or self.dtype], inner, repeated=(1, 2)),
            **{name: place(index, known[name].shape) for name in known if name != "cursors"},
        }
        if stored in CODES:
            placed["state_scale"] = place(BY_NAME["float32"], (slots, *inner[:-1]))
        return placed

    def integers(self, seed: int = 0) -> dict[str, Array]:
        random, slots, rows = self.random(seed), 2 * self.batch + 2, self.window + self.room
        order = random.permutation(slots)
        live = random.permutation(slots) % (self.window + 1)
        cursors = np.stack([random.integers(0, rows, slots), live, *np.zeros((2, slots), int)], axis=1)
        found = {"cursors": cursors, "state_batch_indices": order[: self.batch]}
        if self.targets:
            found["dst_state_batch_indices"] = order[self.batch : 2 * self.batch]
        if self.count:
            found["count"] = random.integers(0, self.window + 2, self.batch)
        if self.odd:
            for values in list(found.values())[1:]:
                values[::3] = np.resize([-1, slots], len(values[::3]))
        return found

    def range(self, name: str) -> tuple[float, float]:
        stored = BY_NAME[self.state_dtype or self.dtype]
        if stored in CODES and name in self.UPDATED:
            largest = LARGEST[stored.numpy]
            return (0.1 / largest, 1.0 / largest) if name == "state_scale" else (-largest, largest)
        return {"A": (-1.0, 0.03), "dt_ring": (0.0, 1.0)}.get(name, (-1.0, 1.0))

    def spoil(self, arrays: dict[str, Array]) -> None:
        """Make NaN what is not live in the rings, and states that are not read."""
        rows, is_read = self.window + self.room, np.zeros(len(arrays["state"]), bool)
        for slot, (start, live, *_) in enumerate(arrays["cursors"]):
            dead = (start + np.arange(live, rows)) % rows
            for name in ("x_ring", "B_ring", "dt_ring"):
                arrays[name][slot, :, dead] = np.nan
        sources = arrays["state_batch_indices"]
        is_read[sources[(sources >= 0) & (sources < len(is_read))]] = True
        for name in self.UPDATED:
            if name in arrays:
                arrays[name][~is_read] = _nan(arrays[name])

    def errors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """None: they are in the bounds of the oracle."""
        return {}

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Any]:
        call = reference.materialise(**self.arguments(arrays))
        updated = {name: Between(arrays[name].copy(), arrays[name].copy()) for name in self.UPDATED if name in arrays}
        for token, error in call.state_errors():
            for number, bound in enumerate(call.call.bounds(token, error)):
                updated["state"][number][token.slot] = bound.states
                if bound.scales is not None:
                    updated["state_scale"][number][token.slot] = bound.scales
        return updated


UNIT = (
    Case(5, 4, 8, 128, 2),
    Case(5, 4, 8, 128, 2, dtype="float32", targets=True, count=True),
    Case(9, 2, 37, 64, targets=True, count=True, odd=True, index="int64", pool="slot_strided"),
    Case(5, 2, 9, 128, state_dtype="float32", window=32, room=1, A_dtype=""),
    Case(5, 2, 9, 16, dtype="float16", B_dtype="float32", count=True, pool="offset"),
    Case(5, 2, 9, 100, state_dtype="int8", targets=True, count=True),
    Case(5, 2, 9, 128, state_dtype="int16", window=16),
    Case(5, 2, 9, 32, state_dtype="float8_e4m3fn", targets=True, pool="transposed"),
    Case(3, 1, 5, 512, dtype="float32"),
    Case(3, 1, 5, 200, dtype="float16"),
    Case(0, 2, 3, 16),
    Case(2, 2, 0, 16),
)

EDGE = (
    Case(20, 24, 64, 128, window=16, targets=True, state_dtype="float32"),
    Case(20, 24, 64, 128, window=16, targets=True, state_dtype="int8"),
)
