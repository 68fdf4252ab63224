"""The slots of a pool in which sequences find and leave their states: every function names them by the same arguments.

An array of slots is (sequences,), or (sequences, columns) with the column of each sequence in `state_column`.
`dst_state_indices` names the slots of final states where they are not those that the sequences start from. Rows beyond
the sequences are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cuconv.runtime import checks
from cuconv.runtime.dtypes import FLOATS, INDICES, INT64, DType
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout, strides_or_zeros
from cuconv.runtime.plan import Layouts

Array = np.ndarray[Any, Any]


ZERO, NONE = "zero", -1
"""The defaults of pad_output and pad_slot_id, compared by identity on the path of every call."""


def padding(pad_slot_id: object, null_slot: object) -> int:
    """The slot number that is padding in addition to negative ones, which always are."""
    pad = checks.integer("pad_slot_id", pad_slot_id)
    if null_slot is None:
        return pad
    null = checks.integer("null_slot", null_slot)
    if null < 0:
        return pad
    if pad >= 0 and null != pad:
        raise ValueError(message("null_slot", null, f"None, or {pad} as pad_slot_id: one slot is for padding"))
    return null


def keeps_padding(pad_output: object) -> bool:
    """Whether results of padding keep their old contents, instead of becoming zeros."""
    # The comparison comes last: an array would compare element by element.
    if not isinstance(pad_output, str) or pad_output not in (ZERO, "keep"):
        is_told = pad_output is None or isinstance(pad_output, str)
        got = repr(pad_output) if is_told else f"a {type(pad_output).__name__}"
        raise ValueError(message("pad_output", got, "one of 'zero', 'keep'"))
    return pad_output == "keep"


def check_kept(given: Layouts, outputs: tuple[str, ...]) -> None:
    """Results keep old contents only where the caller gives them: a new array has none."""
    for name in outputs:
        if given[name] is None:
            raise ValueError(message("pad_output", "'keep'", f"'zero' unless {name} is given"))


def by_sequence(
    argument: str, layout: Layout | None, count: int, axes: str, dtypes: tuple[DType, ...] = INDICES
) -> None:
    """An array, where there is one, has an element for each of `count` sequences, and perhaps more."""
    if layout is None:
        return
    checks.dtype(argument, layout.dtype, dtypes)
    if len(layout.shape) != 1 or layout.shape[0] < count:
        raise ValueError(message(argument, f"shape {layout.shape}", f"({count},) or longer ({axes})"))


def sources(given: Layouts, argument: str, count: int, axes: str) -> Layout | None:
    """Check the arguments that name slots; returns the array of the slots that `count` sequences start from.

    It has two axes only where `state_column` chooses between its columns.
    """
    layout, column = given[argument], given["state_column"]
    by_sequence("state_column", column, count, axes)
    by_sequence("dst_state_indices", given["dst_state_indices"], count, axes)
    if column is not None and (layout is None or len(layout.shape) != 2):
        raise ValueError(message("state_column", "an array", f"None unless {argument} has 2 axes ({axes}, columns)"))
    if layout is None or len(layout.shape) != 2:
        by_sequence(argument, layout, count, axes)
        return layout
    rows, columns = layout.shape
    checks.dtype(argument, layout.dtype, INDICES)
    if rows < count or columns == 0:
        wanted = f"({count}, 1) or more ({axes}, columns)"
        raise ValueError(message(argument, f"shape {layout.shape}", wanted))
    if column is None:
        layout = layout._replace(shape=layout.shape[:1], strides=layout.strides[:1])
    return layout


def numbers(indices: Layout | None, state_column: Layout | None, dst_state_indices: Layout | None) -> dict[str, object]:
    """The fields of an argument struct that choose columns of an array of slots, and destinations."""
    has_columns = indices is not None and state_column is not None
    return {
        "slot_columns": indices.shape[1] if has_columns and indices else 0,
        "slot_column_stride": indices.strides[1] if has_columns and indices else 0,
        "state_column_stride": strides_or_zeros(state_column, 1)[0],
        "state_column_is_int64": state_column is not None and state_column.dtype is INT64,
        "dst_state_indices_stride": strides_or_zeros(dst_state_indices, 1)[0],
        "dst_state_indices_is_int64": dst_state_indices is not None and dst_state_indices.dtype is INT64,
    }


SNAPSHOTS = ("snapshots", "snapshot_count", "snapshot_out")
"""The arrays that say which states inside sequences are kept, and where."""


def check_snapshots(given: Layouts, pool: str, axes: str, dtypes: tuple[DType, ...] = FLOATS) -> Layout | None:
    """Check the arrays of snapshots, except for the shape of snapshot_out; returns the array that they go to, if any.

    Args:
        given: the layouts of a call; these arrays may be missing.
        pool: the argument that snapshots go to where there is no snapshot_out.
        axes: the names of the axes of snapshot_out.
        dtypes: the dtypes that snapshot_out may have.
    """
    rows, count, out = (given.get(name) for name in SNAPSHOTS)
    if rows is None:
        for name in SNAPSHOTS[1:]:
            if given.get(name) is not None:
                raise ValueError(message(name, "an array", "None unless snapshots is given"))
        return None
    checks.dtype("snapshots", rows.dtype, INDICES)
    if len(rows.shape) != 2 or rows.shape[1] != 3:
        raise ValueError(message("snapshots", f"shape {rows.shape}", "(rows, 3) (sequence, position, slot)"))
    checks.between("rows of snapshots", rows.shape[0], 0, MAX_DIVIDEND)
    if count is not None:
        checks.dtype("snapshot_count", count.dtype, INDICES)
        checks.shape("snapshot_count", count.shape, (1,), "one number")
    if out is None and given[pool] is None:
        raise ValueError(message("snapshots", "an array", f"None unless {pool} or snapshot_out is given"))
    if out is not None:
        checks.rank("snapshot_out", out.shape, axes)
        checks.between("slots of snapshot_out", out.shape[0], 0, MAX_DIVIDEND)
        states = next((each for name in (pool, "initial_states") if (each := given.get(name)) is not None), None)
        checks.dtype("snapshot_out", out.dtype, dtypes if states is None else (states.dtype,))
    return out or given[pool]


def snapshot_numbers(
    snapshots: Layout | None,
    snapshot_count: Layout | None,
    pool: Layout | None,
    snapshot_out: Layout | None,
    pad_slot_id: int,
) -> dict[str, object]:
    """The fields of an argument struct that describe the rows of snapshots, and where snapshots go."""
    to = snapshot_out or pool
    is_in_pool = snapshots is not None and snapshot_out is None
    return {
        "snapshots_stride": strides_or_zeros(snapshots, 2),
        "snapshots_is_int64": snapshots is not None and snapshots.dtype is INT64,
        "snapshot_count_is_int64": snapshot_count is not None and snapshot_count.dtype is INT64,
        "snapshot_rows": snapshots.shape[0] if snapshots else 0,
        "snapshot_stride": to.strides if snapshots and to else (0, 0, 0),
        "snapshot_slots": to.shape[0] if snapshots and to else 0,
        "snapshot_pad_slot": pad_slot_id if is_in_pool else -1,
        "snapshots_in_pool": is_in_pool,
    }


def live_snapshots(snapshots: Array | None, snapshot_count: Array | None, count: int, pad_slot_id: int) -> Array:
    """The rows (sequence, position, slot) that have one of `count` slots, in NumPy."""
    if snapshots is None:
        return np.zeros((0, 3), np.int64)
    rows = snapshots[: None if snapshot_count is None else max(int(snapshot_count[0]), 0)].astype(np.int64)
    found: Array = rows[are_live(rows[:, 2], count, pad_slot_id)]
    return found


def start_slots(indices: Array | None, state_column: Array | None, count: int) -> Array:
    """The slot that each of `count` sequences starts from, in NumPy; -1 where its column does not exist."""
    if indices is None:
        return np.arange(count)
    found = indices[:count].astype(np.int64)
    if found.ndim == 1:
        return found
    column = np.zeros(count, np.int64) if state_column is None else state_column[:count].astype(np.int64)
    is_column = (column >= 0) & (column < found.shape[1])
    return np.where(is_column, found[np.arange(count), np.where(is_column, column, 0)], -1)


def final_slots(starts: Array, dst_state_indices: Array | None) -> Array:
    """The slot that each sequence's final state goes to, in NumPy."""
    return starts if dst_state_indices is None else dst_state_indices[: len(starts)].astype(np.int64)


def are_live(slots: Array, count: int, pad_slot_id: int) -> Array:
    """Which given slots are slots of a pool of `count` and not padding, in NumPy."""
    live: Array = (slots >= 0) & (slots < count) & (slots != pad_slot_id)
    return live


def are_padding(slots: Array, pad_slot_id: int) -> Array:
    """Which given slots are padding, as opposed to mistakes: pad_slot_id and, as in Megatron-LM, any negative
    number."""
    padding: Array = (slots == pad_slot_id) | (slots < 0)
    return padding


def read_starts(read: Callable[[str], Any], argument: str, count: int) -> Array:
    """The slots that sequences start from; ValueError for a column beyond the last one."""
    indices, column = read(argument), read("state_column")
    if column is not None and (beyond := np.flatnonzero(column[:count] >= indices.shape[1])).size:
        i = int(beyond[0])
        raise ValueError(message(f"state_column[{i}]", column[i], f"at most {indices.shape[1] - 1}, the last column"))
    return start_slots(indices, column, count)


def check_contents(
    argument: str,
    starts: Array,
    dst_state_indices: Array | None,
    is_live: Array,
    reads: Array,
    count: int,
    pad_slot_id: int,
    is_read_only: bool = False,
) -> Array:
    """The slots of final states; ValueError where one meets another, or the state that another sequence starts from.

    Args:
        argument: the array of slots that sequences start from.
        starts: these slots.
        dst_state_indices: the slots of final states, None where they are `starts`.
        is_live: which sequences are not padding.
        reads: which of these start from the contents of their slots.
        count: slots of the pool.
        pad_slot_id: the slot number that pads.
        is_read_only: whether no final states are kept.
    """
    checks.inside(argument, starts[is_live], count)
    if is_read_only:
        return starts[:0]
    finals, stores = final_slots(starts, dst_state_indices), is_live
    if dst_state_indices is not None:
        argument, stores = "dst_state_indices", is_live & ~are_padding(finals, pad_slot_id)
    checks.slots(argument, finals[stores], count)
    readers = np.flatnonzero(is_live & reads)
    checks.not_read_by_others(argument, finals[stores], np.flatnonzero(stores), starts[readers], readers)
    return finals[stores]


def check_packed(
    read: Callable[[str], Any],
    total: int,
    pool_slots: int | None,
    pad_slot_id: int,
    lengths: Array | None = None,
    *,
    is_read_only: bool = False,
    snapshot_slots: int | None = None,
) -> None:
    """Raise ValueError for index arrays of packed sequences with contents that cannot be right.

    Args:
        read: reads an array back by its name.
        total: tokens of all sequences and of padding.
        pool_slots: slots of the pool of states, None where there is none.
        pad_slot_id: the slot number that pads.
        lengths: the tokens of each sequence of a dense batch, None where query_start_loc says so.
        is_read_only: whether no final states are kept, and sequences start from their slots by default.
        snapshot_slots: slots of the array that snapshots go to, None where there are none.
    """
    if lengths is None:
        begins = read("query_start_loc")
        begins = np.array([0, total]) if begins is None else begins
        checks.boundaries("query_start_loc", begins, total)
        lengths = np.diff(begins)
    if pool_slots is None:
        if snapshot_slots is not None:
            _check_snapshots(read, lengths, snapshot_slots, -1)
        return
    starts = read_starts(read, "cache_indices", len(lengths))
    is_live = lengths > 0
    if read("cache_indices") is not None:
        is_live &= ~are_padding(starts, pad_slot_id)
    has = read("has_initial_state")
    reads = np.full(len(starts), is_read_only) if has is None else has[: len(starts)]
    finals = read("dst_state_indices")
    check_contents("cache_indices", starts, finals, is_live, reads, pool_slots, pad_slot_id, is_read_only)
    if snapshot_slots is None:
        return
    if read("snapshot_out") is not None:
        _check_snapshots(read, lengths, snapshot_slots, -1)
        return
    kept = _check_snapshots(read, lengths, snapshot_slots, pad_slot_id)
    kept = kept[is_live[kept[:, 0]]]
    targets = final_slots(starts, finals)
    stores = is_live if finals is None else is_live & ~are_padding(targets, pad_slot_id)
    if (shared := np.flatnonzero(np.isin(kept[:, 2], targets[stores]))).size:
        slot = kept[shared[0], 2]
        raise ValueError(message("snapshots", f"slot {slot}, where a final state goes", "a slot of its own"))
    readers = np.flatnonzero(is_live & reads)
    checks.not_read_by_others("snapshots", kept[:, 2], kept[:, 0], starts[readers], readers)


def _check_snapshots(read: Callable[[str], Any], lengths: Array, count: int, pad_slot_id: int) -> Array:
    """Raise ValueError for rows of snapshots that cannot be right; returns those that have a slot and tokens.

    Args:
        read: reads an array back by its name.
        lengths: the tokens of each sequence.
        count: slots of the array that the snapshots go to.
        pad_slot_id: the slot number that pads.
    """
    rows, number = read("snapshots").astype(np.int64), read("snapshot_count")
    if number is not None:
        checks.between("snapshot_count", int(number[0]), 0, len(rows))
        rows = rows[: int(number[0])]
    is_kept = (rows[:, 2] >= 0) & (rows[:, 2] != pad_slot_id)
    for i in np.flatnonzero(is_kept).tolist():
        sequence, position, _ = rows[i].tolist()
        checks.between(f"snapshots[{i}, 0]", sequence, 0, len(lengths) - 1)
        checks.between(f"snapshots[{i}, 1]", position, 0, int(lengths[sequence]))
    rows = rows[is_kept]
    checks.slots("snapshots", rows[:, 2], count)
    found: Array = rows[lengths[rows[:, 0]] > 0]
    return found
