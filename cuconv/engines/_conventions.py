"""What the adapters of several engines share: conventions of theirs, by the arguments of cuconv's functions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from cuconv.causal_conv1d import update, varlen
from cuconv.runtime.errors import message
from cuconv.runtime.trees import tree_parents
from cuconv.selective_state_update import update as state_update

Modules = Mapping[str, Mapping[str, Callable[..., Any]]]
"""By an engine's module, by name, the function to put there."""

KEPT = 4096
"""Elements that an array which is kept for later calls has at least."""

_kept: dict[tuple[Any, ...], list[Any]] = {}


def refuse(argument: str, got: object, wanted: object) -> NoReturn:
    """Raise the error for an argument of an engine that cuconv gives no meaning."""
    raise ValueError(message(argument, got, wanted))


def silu(activation: Any) -> Any:
    """An activation by its name, or whether there is one, as its name or None."""
    if isinstance(activation, bool):
        return "silu" if activation else None
    return activation


def first_column(states: Any) -> int | None:
    """Where engines have the window in longer states: in the first columns. Without states there is no such place."""
    return None if states is None else 0


def positions(like: Any, count: int) -> Any:
    """The numbers 0, 1, … of the entries of a batch, int32 on the device of `like`: at least `count`."""
    return _constant(like.device, None, count)


def ones(like: Any, count: int, dtype: Any = None) -> Any:
    """Ones on the device of `like`, int32 without a dtype: at least `count`."""
    import torch

    return _constant(like.device, torch.int32 if dtype is None else dtype, count)


def _constant(device: Any, dtype: Any, count: int) -> Any:
    """Ones of a dtype, or row numbers without one: at least `count`.

    They are kept for good, for CUDA graphs may read them, but not those that are made while one is captured, the memory
    of which is the graph's.
    """
    kept = _kept.setdefault((device, dtype), [])
    if kept and kept[-1].shape[0] >= count:
        return kept[-1]
    import torch

    length = max(count, KEPT)
    if dtype is None:
        found = torch.arange(length, dtype=torch.int32, device=device)
    else:
        found = torch.ones(length, dtype=dtype, device=device)
    if not (found.is_cuda and torch.cuda.is_current_stream_capturing()):
        kept.append(found)
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


def parents_of(next_token: Any, next_sibling: Any, parent_token: Any) -> Any:
    """The parents in a tree of drafts; `parent_token`, where given, receives them, with 0 for no parent."""
    if next_sibling is None:
        refuse("retrieve_next_sibling", None, "an array beside retrieve_next_token")
    parents = tree_parents(next_token, next_sibling)
    if parent_token is not None:
        parent_token.copy_(parents.clamp(min=0))
    return parents


def random_seed(like: Any) -> Any:
    """A new seed of 32 bits on the device of `like`, of torch's generator, as engines draw one per call."""
    import torch

    return torch.randint(0, 2**32, (1,), dtype=torch.int64, device=like.device)


def conv_in_place(
    x: Any,
    weight: Any,
    bias: Any,
    query_start_loc: Any,
    cache_indices: Any,
    has_initial_state: Any,
    conv_states: Any,
    activation: Any,
    pad_slot_id: int,
) -> Any:
    """The prefill of the CUDA kernels of SGLang and TensorRT-LLM: x is (dim, total) or (batch, dim, seqlen).

    Returns:
        x, overwritten, where its tokens are contiguous; else a new array. Padding keeps x, or in a new array gives 0.
    """
    is_over_x = x.stride(-1) == 1
    return varlen.causal_conv1d_varlen_fn(
        x,
        weight,
        bias,
        conv_states,
        query_start_loc,
        cache_indices,
        has_initial_state,
        silu(activation),
        pad_slot_id,
        pad_output="keep" if is_over_x else "zero",
        out=x if is_over_x else None,
    )


def update_in_place(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any,
    activation: Any,
    cache_seqlens: Any,
    conv_state_indices: Any,
    pad_slot_id: int,
) -> Any:
    """The decode step of the CUDA kernels of SGLang and TensorRT-LLM: the result is over x, and padding keeps x."""
    return update.causal_conv1d_update(
        x,
        conv_state,
        weight,
        bias,
        silu(activation),
        cache_seqlens,
        conv_state_indices,
        pad_slot_id=pad_slot_id,
        pad_output="keep",
        out=x,
    )


def update_with_buffer(
    state: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    z: Any,
    dt_bias: Any,
    dt_softplus: bool,
    state_batch_indices: Any,
    pad_slot_id: int,
    out: Any,
    disable_state_update: bool,
    buffer: Any,
    cache_steps: int | None,
    parents: Any,
    buffer_indices: Any,
    rand_seed: Any,
    philox_rounds: int,
) -> Any:
    """The state update of SGLang and TensorRT-LLM, which stores states of the buffer only for given slots."""
    if parents is not None and (buffer is None or state_batch_indices is None):
        refuse(
            "retrieve_parent_token", "an array", "None unless intermediate_states_buffer and state_batch_indices are"
        )
    if state_batch_indices is None:
        buffer = None
    if buffer is None:
        buffer_indices = None
    elif cache_steps is not None and cache_steps != buffer.shape[1]:
        refuse("cache_steps", cache_steps, f"{buffer.shape[1]}, the steps of intermediate_states_buffer")
    return state_update.selective_state_update(
        state,
        x,
        dt,
        A,
        B,
        C,
        D,
        z,
        dt_bias,
        dt_softplus,
        state_batch_indices,
        intermediate_states_buffer=buffer,
        intermediate_state_indices=buffer_indices,
        parents=parents,
        disable_state_update=disable_state_update,
        pad_slot_id=pad_slot_id,
        rand_seed=rand_seed,
        philox_rounds=philox_rounds,
        out=out,
    )


def install(modules: Modules) -> tuple[str, ...]:
    """Put functions in the place of an engine's, which is imported for it, wherever loaded modules have them.

    Args:
        modules: the functions. A module or name that the installed version does not have is left out.

    Returns:
        The full names of the functions that have been replaced.
    """
    replaced = {}
    for path, functions in modules.items():
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{path}.".startswith(f"{error.name}."):
                raise
            continue
        for name, function in functions.items():
            if (original := getattr(module, name, None)) is not None and original is not function:
                replaced[f"{path}.{name}"] = original, function
    by_identity = {id(original): function for original, function in replaced.values()}
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in by_identity:
                setattr(module, name, by_identity[id(value)])
    return tuple(replaced)
