"""What adapters compute on the device before cuconv's kernels, with torch: nothing is awaited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

KEPT = 4096
"""Elements that a constant array has at least."""

_constants: dict[tuple[Any, ...], Any] = {}


def positions(like: Any, count: int) -> Any:
    """The numbers 0, 1, … of the entries of a batch, int32 on the device of `like`: at least `count`."""

    def make(length: int) -> Any:
        import torch

        return torch.arange(length, dtype=torch.int32, device=like.device)

    return _constant(make, like.device, "positions", _length(count))


def ones(like: Any, count: int, dtype: Any = None) -> Any:
    """Ones on the device of `like`, int32 without a dtype: at least `count`."""

    def make(length: int) -> Any:
        import torch

        return torch.ones(length, dtype=torch.int32 if dtype is None else dtype, device=like.device)

    return _constant(make, like.device, dtype, _length(count))


def _length(count: int) -> int:
    return KEPT if count <= KEPT else 1 << (count - 1).bit_length()


def _constant(make: Callable[..., Any], device: Any, kind: Any, *sizes: int) -> Any:
    """What `make` gives for these sizes.

    It is kept for good, for CUDA graphs may read it, unless it is made while one is captured, the memory of which is
    the graph's.
    """
    key = device, kind, *sizes
    found = _constants.get(key)
    if found is None:
        import torch

        found = make(*sizes)
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _constants[key] = found
    return found


def chosen(table: Any, column: Any) -> Any:
    """The slot in one column of each row of an array of slots (rows, columns), on the device."""
    return table[: column.shape[0]].gather(1, column.long()[:, None])[:, 0]


def block_snapshots(
    table: Any, computed: Any, first: Any, last: Any, block: int, tokens: int, null_slot: int | None
) -> tuple[Any, Any]:
    """`snapshots` and `snapshot_count` of a prefix cache that keeps the state at the end of every block of tokens.

    The state at the end of block j of a sequence, for j from `first` up to but not `last`, goes to the slot in column
    j; its position is (j + 1) * block minus the tokens computed before. All of it happens on the device: the number of
    rows is a bound that the host knows.

    Args:
        table: (sequences, blocks), the slot of each block.
        computed: (sequences,), tokens of each sequence before this call.
        first, last: (sequences,), its first and last block with tokens of this call.
        block: tokens per block.
        tokens: tokens of all sequences in this call.
        null_slot: the slot number of no block.
    """
    import torch

    ends = (last - first).clamp_(min=0).cumsum(0)
    count = tokens // block + ends.shape[0]
    row = torch.arange(count, device=table.device)
    sequence = torch.searchsorted(ends, row, right=True).clamp_(max=ends.shape[0] - 1)
    column = (last.long()[sequence] - (ends[sequence] - row)).clamp_(0, table.shape[1] - 1)
    position = (column + 1) * block - computed.long()[sequence]
    slot = table[sequence, column].long()
    if null_slot is not None:
        slot = slot.masked_fill(slot == null_slot, -1)
    return torch.stack((sequence, position, slot), 1), ends[-1:]


def chunk_snapshots(
    table: Any, first: Any, starts: Any, chunks: Any, last_chunks: Any, block: int, null_slot: int | None
) -> Any:
    """`snapshots` of a prefix cache that keeps the state at the end of every block, of sequences divided into chunks.

    A block's state is that after its last chunk; the state after a sequence's last chunk is its final one. All of it
    happens on the device.

    Args:
        table: (sequences, blocks), the slot of each block.
        first: (sequences,), the first block with tokens of this call.
        starts: (sequences + 1,), the first token of each sequence.
        chunks: (chunks + 1,), the first token of each chunk.
        last_chunks: (sequences,), the last chunk of each sequence. The first chunk of a sequence with several fills up
            the block that was begun before.
        block: tokens per block.
        null_slot: the slot number of no block.
    """
    import torch

    first, starts, chunks, last_chunks = (each.long() for each in (first, starts, chunks, last_chunks))
    number = torch.arange(chunks.shape[0] - 1, device=table.device)
    sequence = torch.searchsorted(last_chunks, number).clamp_(max=last_chunks.shape[0] - 1)
    first_chunks = torch.cat((last_chunks.new_zeros(1), last_chunks[:-1] + 1))
    first_tokens = chunks[first_chunks + 1] - chunks[first_chunks]
    begun = torch.where(first_chunks < last_chunks, block - first_tokens, 0).clamp_(min=0)
    position = chunks[1:] - starts[sequence]
    column = first[sequence] + (begun[sequence] + position - 1) // block
    following = torch.cat((column[1:], column[-1:]))
    is_kept = (number < last_chunks[sequence]) & (column < following)
    slot = table[sequence, column.clamp(0, table.shape[1] - 1)].long().masked_fill(~is_kept, -1)
    if null_slot is not None:
        slot = slot.masked_fill(slot == null_slot, -1)
    return torch.stack((sequence, position, slot), 1)


def random_seed(like: Any) -> Any:
    """A new seed of 32 bits on the device of `like`, of torch's generator, as engines draw one per call."""
    import torch

    return torch.randint(0, 2**32, (1,), dtype=torch.int64, device=like.device)
