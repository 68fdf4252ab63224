"""What cases of packed sequences share: where sequences begin, their slots of a pool, and which have a state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from cuconv.runtime.dtypes import BOOL, BY_NAME, DType
from tests import cases
from tests.support.batches import Batch, batch
from tests.support.placement import Array

INDEX_DTYPES = {"int32": ("int32", "int32"), "int64": ("int64", "int64"), "mixed": ("int64", "int32")}
"""The dtypes of query_start_loc and cache_indices."""


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
    STARTS_BY_DEFAULT = False
    """Whether sequences start from their slots where has_initial_state is absent."""

    @property
    def packed(self) -> Batch:
        """Where sequences begin."""
        return batch(self.batch)

    @property
    def pool_slots(self) -> int:
        """One slot per sequence, and spare ones."""
        return self.packed.count + self.spare

    def indices(self) -> dict[str, tuple[DType, tuple[int, ...]]]:
        """The dtypes and shapes of the index arrays."""
        count = self.packed.count
        starts_t, slots_t = (BY_NAME[name] for name in INDEX_DTYPES[self.index])
        found: dict[str, tuple[DType, tuple[int, ...]]] = {}
        if self.packed.starts is not None:
            found["query_start_loc"] = starts_t, (count + 1,)
        if self.slots is not None:
            found["cache_indices"] = slots_t, (count,)
        if self.initial is not None:
            found["has_initial_state"] = BOOL, (count,)
        return found

    def integers(self, seed: int = 0) -> dict[str, Array]:
        random, count, pool = self.random(seed), self.packed.count, self.pool_slots
        found: dict[str, Array] = {}
        if self.packed.starts is not None:
            found["query_start_loc"] = np.array(self.packed.starts)
        if self.slots is not None:
            chosen = random.permutation(pool)[:count]
            if self.slots == "odd":
                strange = [self.pad_slot_id, pool, -2, pool + 7, -(2**31), 2**31 - 1]
                strange += [2**40, -(2**40)] * (self.index == "int64")
                chosen[1::3] = np.resize(strange, len(chosen[1::3]))
            found["cache_indices"] = chosen
        if self.initial is not None:
            has = random.permutation(np.arange(count) % 2 == 0)
            found["has_initial_state"] = has if self.initial == "mixed" else np.ones(count, bool)
        return found

    def live(self, arrays: Mapping[str, Any]) -> Iterator[Live]:
        """The sequences that have results; without a pool all have."""
        slots = arrays.get("cache_indices", np.arange(self.packed.count))
        has = arrays.get("has_initial_state", np.full(self.packed.count, self.STARTS_BY_DEFAULT))
        padding = self.pad_slot_id if "cache_indices" in arrays else None
        for i, slot in enumerate(map(int, slots)):
            if self.pool is None or (0 <= slot < self.pool_slots and slot != padding):
                yield Live(i, slot, *self.packed.bounds[i : i + 2], bool(has[i]))
