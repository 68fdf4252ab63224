"""What cases of packed sequences share: where sequences begin, their slots of a pool, and which have a state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from cuconv.runtime.dtypes import BOOL, BY_NAME, DType
from tests import cases
from tests.support.batches import Batch, batch
from tests.support.placement import Array

SNAPSHOTS, UNCOUNTED = 24, 2
"""Rows of snapshots that count, and rows behind them."""

COLUMNS = 3
"""Columns of index arrays with several."""

INDEX_DTYPES = {"int32": ("int32", "int32"), "int64": ("int64", "int64"), "mixed": ("int64", "int32")}
"""The dtypes of query_start_loc and cache_indices."""


def slot_table(
    table: str | None, name: str, chosen: Array, random: np.random.Generator, is_odd: bool
) -> dict[str, Array]:
    """The index arrays that give sequences the chosen slots; other columns hold slots that would be wrong."""
    if table is None:
        return {name: chosen}
    slots = random.integers(0, max(len(chosen), 1), (len(chosen), COLUMNS))
    column = random.integers(0, COLUMNS, len(chosen)) if table == "column" else np.zeros(len(chosen), np.int64)
    slots[np.arange(len(chosen)), column] = chosen
    if table == "first":
        return {name: slots}
    if is_odd:
        column[2::5] = np.resize([-1, COLUMNS, 2**31 - 1], len(column[2::5]))
    return {name: slots, "state_column": column}


def slots_in(arrays: Mapping[str, Any], name: str, count: int) -> list[int]:
    """The slot of each sequence, -1 where its column does not exist."""
    if name not in arrays:
        return list(range(count))
    rows = np.asarray(arrays[name])[:count].tolist()
    if np.ndim(arrays[name]) == 1:
        return rows
    columns = arrays.get("state_column", np.zeros(count, int))[:count].tolist()
    return [row[column] if 0 <= column < len(row) else -1 for row, column in zip(rows, columns, strict=True)]


def moved_slots(
    known: Mapping[str, Array], count: int, pool: int, pad_slot_id: int, random: np.random.Generator, name: str = ""
) -> Array:
    """Where final states go: slots that no sequence starts from, but for some that stay and some that are none."""
    starts = slots_in(known, name or "cache_indices", count)
    free = random.permutation(sorted({*range(pool)} - {*starts, pad_slot_id}))
    chosen = np.resize(free, count)
    for i in range(0, count, 4):
        chosen[i] = starts[i]
    chosen[2::4] = np.resize([-1, pad_slot_id, pool, pool + 9, -(2**31)], len(chosen[2::4]))
    return chosen


class Live(NamedTuple):
    """A sequence that has results."""

    number: int
    slot: int
    begin: int
    end: int
    starts_from_slot: bool


class OfSequences(cases.Case):
    """A case of packed sequences; a subclass places the arrays by token."""

    batch: str
    pool: str | None
    spare: int
    """Slots that no sequence has."""
    slots: str | None
    """None, "permuted", or "odd": some are padding or outside the pool."""
    index: str
    """The dtype of indices: "int32", "int64" or "mixed"."""
    initial: str | None
    """Which sequences start from their slots: "mixed" or "all"; None where has_initial_state is absent."""
    pad_slot_id: int
    table: str | None = None
    """Whether cache_indices has columns: "first", with slots in the first; "column", in each sequence's own."""
    longer: int = 0
    """Rows of the index arrays behind those of the sequences."""
    moved: bool = False
    """Whether final states go to other slots, where pool_slots has one more per sequence."""
    read_only: bool = False
    """Whether the pool is not written."""
    snapshots: str | None = None
    """Where states inside sequences go: "pool", or a name that says what the array of their own looks like."""
    every: int = 0
    """The distance of snapshots in tokens. Those of a sequence are in order then, and in the opposite order if the
    distance is negative. With 0 there are snapshots of all kinds, in any order.
    """
    dense: bool = False
    """Whether sequences, of equal lengths, are the rows of a batch."""
    STARTS_BY_DEFAULT = False
    """Whether sequences start from the slots of a pool that is written where has_initial_state is absent."""

    @property
    def packed(self) -> Batch:
        """Where sequences begin."""
        return batch(self.batch)

    @property
    def pool_slots(self) -> int:
        """One slot per sequence, or two, and spare ones."""
        return self.packed.count * (1 + self.moved) + self.spare + self.snapshot_slots * (self.snapshots == "pool")

    @property
    def counted(self) -> int:
        """Rows of snapshots that count."""
        return len(self.regular) if self.every else SNAPSHOTS

    @property
    def regular(self) -> list[tuple[int, int]]:
        """The sequence and the position of each snapshot, where they are `every` tokens apart."""
        lengths = np.diff(self.packed.bounds).tolist()
        order = 1 if self.every > 0 else -1
        return [(i, at) for i, length in enumerate(lengths) for at in range(0, length + 1, abs(self.every))[::order]]

    @property
    def snapshot_slots(self) -> int:
        """Slots for all rows, one of which may be padding."""
        return self.counted + UNCOUNTED + 1

    def indices(self) -> dict[str, tuple[DType, tuple[int, ...]]]:
        """The dtypes and shapes of the index arrays."""
        count, rows = self.packed.count, self.packed.count + self.longer
        starts_t, slots_t = (BY_NAME[name] for name in INDEX_DTYPES[self.index])
        found: dict[str, tuple[DType, tuple[int, ...]]] = {}
        if self.packed.starts is not None and not self.dense:
            found["query_start_loc"] = starts_t, (count + 1,)
        if self.slots is not None:
            found["cache_indices"] = slots_t, (rows,) if self.table is None else (rows, COLUMNS)
        if self.initial is not None:
            found["has_initial_state"] = BOOL, (rows,)
        if self.table == "column":
            found["state_column"] = slots_t, (rows,)
        if self.moved:
            found["dst_state_indices"] = starts_t, (rows,)
        if self.snapshots is not None:
            found["snapshots"] = slots_t, (self.counted + UNCOUNTED, 3)
            found["snapshot_count"] = starts_t, (1,)
        return found

    def integers(self, seed: int = 0) -> dict[str, Array]:
        random, count, pool = self.random(seed), self.packed.count, self.pool_slots
        found: dict[str, Array] = {}
        if self.packed.starts is not None and not self.dense:
            found["query_start_loc"] = np.array(self.packed.starts)
        if self.slots is not None:
            chosen = random.permutation(pool)[:count]
            if self.slots == "odd":
                strange = [self.pad_slot_id, pool, -2, pool + 7, -(2**31), 2**31 - 1]
                strange += [2**40, -(2**40)] * (self.index == "int64")
                chosen[1::3] = np.resize(strange, len(chosen[1::3]))
            found |= self.table_of(chosen, random)
        if self.initial is not None:
            has = random.permutation(np.arange(count) % 2 == 0)
            found["has_initial_state"] = has if self.initial == "mixed" else np.ones(count, bool)
        if self.moved:
            found["dst_state_indices"] = moved_slots(found, count, pool, self.pad_slot_id, random)
        for name in found.keys() - {"query_start_loc"}:
            behind = np.zeros((self.longer, *found[name].shape[1:]), found[name].dtype)
            found[name] = np.concatenate([found[name], behind])
        if self.snapshots is not None:
            found |= {"snapshots": self.snapshot_rows(found, random), "snapshot_count": np.array([self.counted])}
        return found

    def snapshot_rows(self, known: Mapping[str, Array], random: np.random.Generator) -> Array:
        """Rows of snapshots at both ends of sequences and inside; some count for nothing, some lie behind the count."""
        count, bounds = self.packed.count, self.packed.bounds
        starts = slots_in(known, "cache_indices", count)
        targets = known["dst_state_indices"][:count].tolist() if self.moved else starts
        taken = {self.pad_slot_id} | ({*starts, *targets} if self.snapshots == "pool" else set())
        places = self.pool_slots if self.snapshots == "pool" else self.snapshot_slots
        free = random.permutation(sorted({*range(places)} - taken))
        if self.every:
            # Some of the rows that count have the position of the row before, and some have no slot. Those that do not
            # are others of the last sequence.
            rows = np.array([*self.regular, *[(count - 1, 0)] * UNCOUNTED])
            same = np.flatnonzero(rows[1:-UNCOUNTED, 0] == rows[: -UNCOUNTED - 1, 0])[2::5]
            rows[same + 1] = rows[same]
            return np.column_stack([rows, np.where(np.arange(len(rows)) % 7 == 6, -1, free[: len(rows)])])
        rows = np.zeros((SNAPSHOTS + UNCOUNTED, 3), np.int64)
        for i in range(len(rows)):
            number = int(random.integers(count)) if count else 0
            length = bounds[number + 1] - bounds[number] if count else 0
            near = [*range(5), length - 1, length, length // 2, length // 3]
            rows[i] = number, min(max(int(random.choice(near)), 0), length), free[i] if i < len(free) else -1
            if self.snapshots == "pool" and targets[number] != starts[number] and starts[number] not in rows[:i, 2]:
                rows[i, 2] = starts[number]
        strange = (0, -3), (0, count), (1, 2**31 - 1), (1, -1), (2, -1), (2, places), (2, self.pad_slot_id)
        for i, (field, value) in zip(range(1, SNAPSHOTS, 3), strange, strict=False):
            rows[i, field] = value
        if count:
            # Tokens behind a sequence's last one, which are there but for the last sequence's.
            rows[2::6, 1] = np.diff(bounds)[rows[2::6, 0]] + 1
        return rows

    def table_of(self, chosen: Array, random: np.random.Generator) -> dict[str, Array]:
        """The index arrays that give sequences these slots."""
        return slot_table(self.table, "cache_indices", chosen, random, self.slots == "odd")

    def live(self, arrays: Mapping[str, Any]) -> Iterator[Live]:
        """The sequences that have results; without a pool all have."""
        slots = slots_in(arrays, "cache_indices", self.packed.count)
        has = arrays.get("has_initial_state", np.full(self.packed.count, self.STARTS_BY_DEFAULT or self.read_only))
        padding = self.pad_slot_id if "cache_indices" in arrays else None
        for i, slot in enumerate(map(int, slots)):
            if self.pool is None or (0 <= slot < self.pool_slots and slot != padding):
                yield Live(i, slot, *self.packed.bounds[i : i + 2], bool(has[i]))
