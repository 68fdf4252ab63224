"""Prefix caches that keep the state at the end of every block, and the snapshots that they stand for."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Any

import numpy as np

from cuconv.runtime.dtypes import BOOL, BY_NAME, DType
from tests.support.placement import Array

NULL = 5
"""A slot for no state: that of a sequence, and of single blocks of others."""

MOST = 80
"""Blocks of a sequence at most."""

USUAL: Any = {"lengths": (45, 3, 0, 33, 16, 1, 40, 7), "computed": (20, 0, 32, 15, 16, 31, 3, 0)}
"""Sequences that begin and end at the borders of blocks and between them; one is empty, and one is padding."""


class Cache:
    """The arrays of vLLM's mode "all" by its formulas: `size` tokens per block, for sequences of these lengths after
    tokens computed before.
    """

    lengths: tuple[int, ...]
    computed: tuple[int, ...]
    size: int
    behind: int
    """Tokens of no sequence."""

    @property
    def total(self) -> int:
        """Tokens of all sequences and of none."""
        return sum(self.lengths) + self.behind

    @property
    def starts(self) -> Array:
        """Where sequences begin, and where the last one ends."""
        return np.cumsum([0, *self.lengths], dtype=np.int64)

    @property
    def first(self) -> Array:
        """The first block with tokens of the call."""
        return np.array(self.computed, np.int64) // self.size

    @property
    def last(self) -> Array:
        """The last one."""
        ends = np.array(self.computed, np.int64) + np.array(self.lengths, np.int64)
        return np.maximum(-(-ends // self.size) - 1, 0)

    @cached_property
    def table(self) -> Array:
        """The slot of each block."""
        count = len(self.lengths)
        found: Array = np.random.default_rng(self.size).permutation(count * MOST).reshape(count, MOST) + NULL + 1
        if self.has_null_slots:
            found[-1] = NULL
            found[0, self.last[0] // 2] = NULL
        return found

    @property
    def has_null_slots(self) -> bool:
        """Whether the last sequence is padding, for which at least three are needed."""
        return len(self.lengths) > 2

    @property
    def has_padding(self) -> bool:
        """Whether there are tokens without results."""
        return self.has_null_slots or self.behind > 0

    @property
    def slots(self) -> int:
        """Slots of the pool."""
        return len(self.lengths) * MOST + NULL + 1

    @property
    def snapshots(self) -> Array:
        """Rows (sequence, position, slot)."""
        rows = [
            (i, (block + 1) * self.size - self.computed[i], self.table[i, block])
            for i in range(len(self.lengths))
            for block in range(self.first[i], self.last[i])
        ]
        return np.array(rows, np.int64).reshape(-1, 3)

    @property
    def chunks(self) -> tuple[Array, Array]:
        """The first token of each chunk, and the last chunk of each sequence.

        The first chunk ends where a block does; in every other sequence later blocks have two chunks.
        """
        starts, last = [0], []
        for i, begin in enumerate(self.starts[:-1].tolist()):
            own = [position for sequence, position, _ in self.snapshots.tolist() if sequence == i]
            if i % 2 == 0:
                own = sorted({*own, *((a + b) // 2 for a, b in itertools.pairwise(own))})
            starts += [begin + end for end in (*own, self.lengths[i])]
            last.append(len(starts) - 2)
        return np.array(starts, np.int64), np.array(last, np.int64)

    @property
    def known(self) -> dict[str, Array]:
        """All arrays, by their names."""
        (chunks, last_chunks), computed = self.chunks, np.array(self.computed, np.int64)
        return {
            "query_start_loc": self.starts,
            "cache_indices": self.table,
            "has_initial_state": computed > 0,
            "state_column": np.maximum(-(-computed // self.size) - 1, 0),
            "block_idx_first_scheduled_token": self.first,
            "block_idx_last_scheduled_token": self.last,
            "num_computed_tokens": computed,
            "cu_chunk_seqlen": chunks,
            "last_chunk_indices": last_chunks,
        }

    @property
    def named(self) -> dict[str, Any]:
        """The arguments of public functions that mean the same."""
        finals = self.table[np.arange(len(self.lengths)), self.last]
        return {"snapshots": self.snapshots, "dst_state_indices": finals, "null_slot": NULL}

    def dtype_of(self, name: str, index: str) -> DType:
        """The dtype of an array, where that of "mixed" indices differs from array to array."""
        if name == "has_initial_state":
            return BOOL
        return BY_NAME[("int64" if len(name) % 2 else "int32") if index == "mixed" else index]
