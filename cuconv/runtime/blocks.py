"""Prefix caches that keep the state at the end of every block of tokens, as vLLM's mode "all" describes them.

An array of slots has a column per block. Each sequence starts from the slot in one column, leaves its final state in
the slot of its last block, and the state at the end of every earlier block in that block's slot. The device finds out
which snapshots these are: convolutions with contiguous channels where they store them; in front of other kernels a
small kernel writes the rows of snapshots, and the slots of final states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cuconv.runtime import checks, slots
from cuconv.runtime.dtypes import INT64
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout, index_numbers, strides_or_zeros
from cuconv.runtime.plan import Layouts

Array = np.ndarray[Any, Any]
Read = Callable[[str], Any]

FIRST, LAST = "block_idx_first_scheduled_token", "block_idx_last_scheduled_token"
"""The first and the last block with tokens of this call, by sequence."""
COMPUTED = "num_computed_tokens"
"""Tokens of each sequence before this call."""
CHUNKS, LAST_CHUNKS = "cu_chunk_seqlen", "last_chunk_indices"
"""Where chunks of all sequences begin, and the last chunk of each sequence."""

BY_SEQUENCE = (FIRST, LAST, COMPUTED, LAST_CHUNKS)

DERIVED = ("snapshots", "dst_state_indices")
"""Arrays that follow from those of a cache: rows (sequence, position, slot), and the slots of final states."""


class Blocks(NamedTuple):
    """The layouts and sizes of a call with such a cache."""

    size: int
    """Tokens per block."""
    table: Layout
    """(sequences, blocks): the slot of each block."""
    last: Layout
    """(sequences,)."""
    starts: Layout | None
    """(sequences + 1,)."""
    sequences: int
    total: int
    rows: int
    """Most snapshots of a call."""
    has_chunks: bool
    """Whether chunks say where blocks end; otherwise the numbers of tokens before this call do."""

    @property
    def derived(self) -> dict[str, Any]:
        """The layouts of DERIVED arrays, in scratch memory."""
        shapes = ((self.rows, 3), (3, 1)), ((self.sequences,), (1,))
        return {
            name: Layout(shape, strides, INT64, self.table.device, 0)
            for name, (shape, strides) in zip(DERIVED, shapes, strict=True)
        }

    @property
    def regions(self) -> dict[str, int]:
        """Where DERIVED arrays begin in scratch memory, in bytes."""
        return dict(zip(DERIVED, (0, 3 * self.rows * INT64.itemsize), strict=True))

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory for DERIVED arrays."""
        return (3 * self.rows + self.sequences) * INT64.itemsize

    @property
    def numbers(self) -> dict[str, object]:
        """The fields of BlockOperands in common/blocks.cuh behind the pointers."""
        indices = index_numbers(**{"query_start_loc": self.starts, "cache_indices": self.table, LAST: self.last})
        return {
            **indices,
            "cache_indices_stride": strides_or_zeros(self.table, 2),
            "block_size": self.size,
            "blocks": self.table.shape[1],
            "sequences": self.sequences,
            "total": self.total,
            "rows": self.rows,
        }


def check(given: Layouts, size: int, pool: str, count: int, total: int) -> Blocks:
    """Check the arrays of a cache, all of which are needed. The argument `pool` has the states of `count` sequences
    with `total` tokens, in blocks of `size` tokens.
    """
    size = checks.integer("block_size", size)
    checks.between("block_size", size, 1, MAX_DIVIDEND)
    for name in (pool, "cache_indices", "state_column", *(each for each in (*BY_SEQUENCE, CHUNKS) if each in given)):
        if given[name] is None:
            raise ValueError(message(name, "None", f"an array beside {LAST}"))
        if name in BY_SEQUENCE:
            slots.by_sequence(name, given[name], count, "sequences")
    table, last, chunks = given["cache_indices"], given[LAST], given.get(CHUNKS)
    assert table is not None and last is not None
    rows = total // size + count if chunks is None else checks.starts(CHUNKS, chunks, MAX_DIVIDEND)
    checks.between("snapshots", rows, 0, MAX_DIVIDEND)
    return Blocks(size, table, last, given["query_start_loc"], count, total, rows, chunks is not None)


def reading(read: Read, blocks: Blocks) -> Read:
    """`read`, which returns a NumPy array by its name, extended by DERIVED arrays."""
    starts = read("query_start_loc")
    starts = np.array([0, blocks.total]) if starts is None else np.clip(starts.astype(np.int64), 0, blocks.total)
    table, last = read("cache_indices"), _numbers(read(LAST), blocks.sequences)

    def slot(sequence: int, block: int) -> int:
        return int(table[sequence, block]) if 0 <= block < table.shape[1] else -1

    rows = []
    for i in range(blocks.sequences):
        ends = _of_chunks if blocks.has_chunks else _of_tokens
        found = ends(read, blocks, i, int(starts[i]) if blocks.has_chunks else last[i])
        rows += [(i, position, slot(i, block)) for position, block in found]
    known: dict[str, Any] = dict.fromkeys(slots.SNAPSHOTS) | {
        "snapshots": np.array(rows, np.int64).reshape(-1, 3),
        "dst_state_indices": np.array([slot(i, block) for i, block in enumerate(last)], np.int64),
    }
    return lambda name: known[name] if name in known else read(name)


def _numbers(array: Any, count: int) -> list[int]:
    return [int(number) for number in array[:count]]


def _of_tokens(read: Read, blocks: Blocks, sequence: int, last: int) -> list[tuple[int, int]]:
    """The positions and numbers of the blocks that end in a sequence before its last block, by its tokens before this
    call."""
    computed = int(read(COMPUTED)[sequence])
    first = max(computed, 0) // blocks.size
    return [((block + 1) * blocks.size - computed, block) for block in range(first, last)]


def _of_chunks(read: Read, blocks: Blocks, sequence: int, start: int) -> list[tuple[int, int]]:
    """The positions and numbers of these blocks by the chunks of a sequence, which begins with token `start`. The first
    of several chunks fills up the block that an earlier call has begun.
    """
    ends, last_chunks = read(CHUNKS).astype(np.int64), read(LAST_CHUNKS).astype(np.int64).clip(-1, blocks.rows - 1)
    chunks = range(last_chunks[sequence - 1] + 1 if sequence else 0, last_chunks[sequence] + 1)
    begun = max(blocks.size - int(ends[chunks[0] + 1] - ends[chunks[0]]), 0) if len(chunks) > 1 else 0
    positions = [int(ends[chunk + 1]) - start for chunk in chunks]
    of = [int(read(FIRST)[sequence]) + (begun + position - 1) // blocks.size for position in positions]
    return [(positions[i], of[i]) for i in range(len(positions) - 1) if of[i] < of[i + 1]]
