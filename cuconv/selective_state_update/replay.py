"""Replay: decode steps that read states, and write them only when rings of the tokens since are full."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuconv.runtime import checks, slots
from cuconv.runtime.call import NO_NUMBERS, Arrays, Checked, Layouts, Operation
from cuconv.runtime.dtypes import BOOL, FLOAT32, FLOATS, INDICES, INT32, DType
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout, dense_strides
from cuconv.selective_state_update import plan as plain
from cuconv.selective_state_update import reference, reference_replay, update
from cuconv.selective_state_update.kernels_replay import MAX_WINDOW, max_tokens
from cuconv.selective_state_update.plan_replay import (
    CommitOperands,
    FoldOperands,
    Operands,
    Rings,
    plan,
    plan_commit,
    plan_fold,
)

RINGS = ("x_ring", "B_ring", "dt_ring", "cursors")


def selective_state_update_replay(
    state: Any,
    x_ring: Any,
    B_ring: Any,
    dt_ring: Any,
    cursors: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    dt_bias: Any = None,
    dt_softplus: bool = False,
    state_batch_indices: Any = None,
    *,
    window: int = 16,
    cu_seqlens: Any = None,
    has_initial_state: Any = None,
    force_flush: Any = None,
    fold: bool | None = None,
    pad_slot_id: int = -1,
    null_slot: int | None = None,
    pad_output: str = "zero",
    rand_seed: Any = None,
    philox_rounds: int = 10,
    out: Any = None,
) -> Any:
    """A step."""
    philox_rounds = checks.integer("philox_rounds", philox_rounds)
    checks.between("philox_rounds", philox_rounds, 0, update.MAX_ROUNDS)
    seed, rand_seed = update.seed_of(rand_seed)
    given = (
        *(state, x_ring, B_ring, dt_ring, cursors, x, dt, A, B, C, D, z, dt_bias, state_batch_indices),
        *(cu_seqlens, has_initial_state, force_flush, rand_seed, out),
    )
    options = (
        checks.integer("window", window),
        None if fold is None else checks.flag("fold", fold),
        checks.flag("dt_softplus", dt_softplus),
        slots.padding(pad_slot_id, null_slot),
        seed is not None,
        philox_rounds or update.DEFAULT_ROUNDS,
        slots.keeps_padding(pad_output),
    )
    (result,) = _replay(given, options, late=NO_NUMBERS if seed is None else {"seed": seed})
    return result


def _check_rings(given: Layouts, window: int, heads: int, groups: int, headdim: int, d_state: int) -> Rings:
    """Checks rings beside states of these sizes."""
    state, x_ring, B_ring, dt_ring, cursors = (given[name] for name in ("state", *RINGS))
    for name in RINGS:
        if given[name] is None:
            raise TypeError(message(name, "None", "an array"))
    assert state and x_ring and B_ring and dt_ring and cursors
    count = state.shape[0]
    checks.rank("x_ring", x_ring.shape, "slots, nheads, ring_rows, headdim")
    checks.between("window", window, 1, MAX_WINDOW)
    rows = x_ring.shape[2]
    checks.between("ring_rows of x_ring", rows, window + 1, MAX_DIVIDEND)
    for name, dtypes, shape, axes in (
        ("x_ring", FLOATS, (count, heads, rows, headdim), "slots, nheads, ring_rows, headdim"),
        ("B_ring", FLOATS, (count, groups, rows, d_state), "slots, ngroups, ring_rows, d_state"),
        ("dt_ring", (FLOAT32,), (count, heads, rows), "slots, nheads, ring_rows"),
        ("cursors", (INT32,), (count, 4), "slots, 4"),
    ):
        layout = given[name]
        assert layout is not None
        checks.dtype(name, layout.dtype, dtypes)
        checks.shape(name, layout.shape, shape, axes)
        order = tuple(range(len(shape)))
        if layout.size and layout.strides[1:] != dense_strides(shape, order)[1:]:
            raise ValueError(message(name, f"strides {layout.strides}", "an array contiguous behind its slots"))
    if cursors.offset % 8 or (count > 1 and cursors.strides[0] % 2):
        raise ValueError(message("cursors", "slots at odd places", "each slot aligned to 8 bytes"))
    return Rings(x_ring, B_ring, dt_ring, cursors, window)


def _check_decay(name: str, layout: Layout | None, axes: tuple[int, ...]) -> None:
    """An argument is the same for all rows and elements of a head."""
    if layout is not None and any(layout.active(*axes)):
        wanted = "one value a head: strides of 0 behind the axis of heads"
        raise ValueError(message(name, f"strides {layout.strides} for shape {layout.shape}", wanted))


def _check(
    given: Layouts,
    window: int,
    fold: bool | None,
    dt_softplus: bool,
    pad_slot_id: int,
    has_seed: bool,
    philox_rounds: int,
    keeps_padding: bool,
) -> Checked[Operands]:
    known = {name: given.get(name) for name in (*update._update.inputs, *update._update.outputs)}
    state = given["state"]
    if state is not None and len(state.shape) != 4:
        raise ValueError(message("state", f"shape {state.shape}", "4 axes (slots, nheads, headdim, d_state)"))
    checked = update._check(known, dt_softplus, False, pad_slot_id, has_seed, philox_rounds, keeps_padding)
    step = checked.operands
    _, nheads, headdim, d_state = step.state.shape
    rings = _check_rings(given, window, nheads, step.B.shape[2], headdim, d_state)
    for name, ring, layout in (("x_ring", rings.x, step.x), ("B_ring", rings.B, step.B)):
        assert isinstance(layout.dtype, DType)
        checks.dtype(name, ring.dtype, (layout.dtype,))
    for name, layout, axes in (("A", step.A, (1, 2)), ("dt", step.dt, (3,)), ("dt_bias", step.dt_bias, (1,))):
        _check_decay(name, layout, axes)
    indices = step.state_batch_indices
    if indices is not None and len(indices.shape) != 1:
        raise ValueError(message("state_batch_indices", f"shape {indices.shape}", "1 axis (batch)"))
    slots.by_sequence("force_flush", given["force_flush"], step.sequences, "sequences", (BOOL,))
    if step.cu_seqlens is None:
        most = min(max_tokens(), rings.x.shape[2] - window)
        if step.x.shape[1] > most:
            wanted = f"at most {most}: {max_tokens()}, and what ring_rows has beyond the window"
            raise ValueError(message("tokens of x", step.x.shape[1], wanted))
    if fold and (step.cu_seqlens is not None or step.x.shape[1] != 1):
        raise ValueError(message("fold", True, "False or None for several tokens, which may be rejected"))
    operands = Operands(step, rings, given["force_flush"], fold)
    return Checked(operands, checked.outputs, updated=("state", *RINGS), in_place=checked.in_place)


def _of(o: Operands, arrays: Arrays, seed: int | None) -> reference_replay.Replay:
    named = {name: arrays[name] for name in arrays if name not in (*RINGS, "force_flush", "out")}
    if seed is not None:
        named["rand_seed"] = seed
    call = reference.SelectiveStateUpdate(
        **named, dt_softplus=o.step.dt_softplus, pad_slot_id=o.step.pad_slot_id, philox_rounds=o.step.philox_rounds
    )
    rings = reference_replay.Rings(*(arrays[name] for name in RINGS), o.rings.window)
    return reference_replay.Replay(call, rings, arrays["force_flush"], bool(o.fold))


def _reference(o: Operands, arrays: Arrays, seed: int | None = None) -> None:
    step = _of(o, arrays, seed)
    out, written = np.zeros(arrays["x"].shape), step.is_computed if o.step.keeps_padding else ...
    step.write(out, arrays["state"], step.rings)
    arrays["out"][written] = out[written].astype(arrays["out"].dtype)


_replay = Operation(
    (
        *("state", *RINGS, "x", "dt", "A", "B", "C", "D", "z", "dt_bias"),
        *("state_batch_indices", "cu_seqlens", "has_initial_state", "force_flush", "rand_seed"),
    ),
    ("out",),
    check=_check,
    plan=plan,
    reference=_reference,
)


class ReplayRings:
    """The rings of a layer."""

    def __init__(self, x: Any, B: Any, dt: Any, cursors: Any, window: int) -> None:
        self.x, self.B, self.dt, self.cursors, self.window = x, B, dt, cursors, window

    def update(self, state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, *arguments: Any, **named: Any) -> Any:
        """A step."""
        rings = (self.x, self.B, self.dt, self.cursors)
        return selective_state_update_replay(
            state, *rings, x, dt, A, B, C, *arguments, window=self.window, **named
        )

    def commit(
        self, accepted: Any = None, state_batch_indices: Any = None, *, pad_slot_id: int = -1, null_slot: int | None = None
    ) -> None:
        """Move the cursors."""
        self._move(accepted, state_batch_indices, pad_slot_id, null_slot, False)

    def reset(self, state_batch_indices: Any = None, *, pad_slot_id: int = -1, null_slot: int | None = None) -> None:
        """Make rings empty."""
        self._move(None, state_batch_indices, pad_slot_id, null_slot, True)

    def _move(self, accepted: Any, indices: Any, pad_slot_id: int, null_slot: int | None, is_reset: bool) -> None:
        options = (self.x.shape[2], self.window, slots.padding(pad_slot_id, null_slot), is_reset)
        _commit((self.cursors, accepted, indices), options)

    def materialise(
        self, state: Any, A: Any, src_indices: Any, dst_indices: Any = None, count: Any = None, *,
        pad_slot_id: int = -1, null_slot: int | None = None,
    ) -> None:  # fmt: skip
        """Put live tokens in states."""
        given = (state, self.x, self.B, self.dt, self.cursors, A, src_indices, dst_indices, count)
        _fold(given, (self.window, slots.padding(pad_slot_id, null_slot)))


def _check_commit(
    given: Layouts, ring_rows: int, window: int, pad_slot_id: int, is_reset: bool
) -> Checked[CommitOperands]:
    cursors, accepted, indices = given["cursors"], given["accepted"], given["state_batch_indices"]
    assert cursors is not None
    batch = cursors.shape[0]
    if indices is not None:
        checks.dtype("state_batch_indices", indices.dtype, INDICES)
        checks.rank("state_batch_indices", indices.shape, "batch")
        batch = indices.shape[0]
    slots.by_sequence("accepted", accepted, batch, "sequences")
    operands = CommitOperands(cursors, accepted, indices, batch, ring_rows, window, pad_slot_id, is_reset)
    return Checked(operands, {}, updated=("cursors",))


def _reference_commit(o: CommitOperands, arrays: Arrays) -> None:
    indices = arrays["state_batch_indices"]
    named = np.arange(o.batch) if indices is None else indices
    live = (named >= 0) & (named < o.cursors.shape[0])
    if indices is not None:
        live &= named != o.pad_slot_id
    accepted = None if arrays["accepted"] is None else arrays["accepted"][: o.batch][live]
    reference_replay.commit(arrays["cursors"], named[live], accepted, o.ring_rows, o.window, o.is_reset)


_commit = Operation(
    ("cursors", "accepted", "state_batch_indices"),
    check=_check_commit,
    plan=plan_commit,
    reference=_reference_commit,
)


def _check_fold(given: Layouts, window: int, pad_slot_id: int) -> Checked[FoldOperands]:
    state, A, B_ring = given["state"], given["A"], given["B_ring"]
    assert state and A and B_ring
    checks.rank("state", state.shape, "slots, nheads, headdim, d_state")
    checks.dtype("state", state.dtype, FLOATS)
    _, nheads, headdim, d_state = state.shape
    rings = _check_rings(given, window, nheads, B_ring.shape[1], headdim, d_state)
    checks.shape("A", A.shape, (nheads, headdim, d_state), "nheads, headdim, d_state of state")
    checks.dtype("A", A.dtype, tuple(dict.fromkeys((rings.x.dtype, FLOAT32))))
    _check_decay("A", A, (1, 2))
    sources = given["state_batch_indices"]
    if sources is None:
        raise TypeError(message("src_indices", "None", "an array"))
    for name, shown in (("state_batch_indices", "src_indices"), ("dst_state_batch_indices", "dst_indices"), ("count", "count")):
        if (layout := given[name]) is not None:
            checks.dtype(shown, layout.dtype, INDICES)
            checks.shape(shown, layout.shape, (sources.shape[0],), "sequences")
    operands = FoldOperands(state, A, rings, sources, given["dst_state_batch_indices"], given["count"], pad_slot_id)
    return Checked(operands, {}, updated=("state",))


def _reference_fold(o: FoldOperands, arrays: Arrays) -> None:
    rings = reference_replay.Rings(*(arrays[name] for name in RINGS), o.rings.window)
    sources, targets, counts = (arrays[name] for name in ("state_batch_indices", "dst_state_batch_indices", "count"))
    state, found = arrays["state"], []
    for number, source in enumerate(sources):
        target = source if targets is None else targets[number]
        count = None if counts is None else int(counts[number])
        live = all(0 <= slot < len(state) and slot != o.pad_slot_id for slot in (source, target))
        if live and (count is None or count >= 0):
            found.append((target, reference_replay.folded(state, arrays["A"], rings, source, count)))
    for target, value in found:
        state[target] = value.astype(state.dtype)


_fold = Operation(
    ("state", *RINGS, "A", "state_batch_indices", "dst_state_batch_indices", "count"),
    check=_check_fold,
    plan=plan_fold,
    reference=_reference_fold,
)
