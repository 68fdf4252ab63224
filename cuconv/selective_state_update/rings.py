"""Rings of replay: their cursors, the states that they stand for, and the memory of a layer's rings."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np

from cuconv.runtime import arrays, checks, codes, slots
from cuconv.runtime.dtypes import CODES, FLOAT32, FLOATS, INDICES, INT32, DType
from cuconv.runtime.entry import quick
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout, dense
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import Arrays, Checked, Layouts
from cuconv.selective_state_update import reference, reference_replay, replay
from cuconv.selective_state_update.kernels_replay import MAX_WINDOW, max_tokens
from cuconv.selective_state_update.plan_replay import CommitOperands, FoldOperands, plan_commit, plan_fold
from cuconv.selective_state_update.replay import RINGS, by_row, check_decay, check_rings, selective_state_update_replay


@quick
def selective_state_update_commit(
    cursors: Any,
    accepted: Any = None,
    state_batch_indices: Any = None,
    *,
    ring_rows: int,
    window: int = 16,
    reset: bool = False,
    pad_slot_id: int = -1,
    null_slot: int | None = None,
) -> None:
    """Commit a step of `selective_state_update_replay` by moving its cursors, or make rings empty.

    Live tokens that the step has folded into states leave the rings. Of the tokens that it has appended the accepted
    ones stay; the next step overwrites the others. Slots without a step since their last commit stay as they are.
    Layers of a model may share cursors: this is then called once per step, after all of them, and they must have been
    given the same `fold`.

    Args:
        cursors: (slots, 4), int32, contiguous behind its slots; updated in place.
        accepted: (batch,), int32 or int64: how many of the step's tokens, the first ones, are accepted for each
            sequence; None: all. A larger number counts as all, a negative one as none. A token that the step has folded
            into the state stays there.
        state_batch_indices: (batch,), int32 or int64: the slot of each sequence; None: all slots. Slots that are
            negative, pad_slot_id or outside the pool are left out.
        ring_rows: rows of the rings.
        window: the most live tokens of a slot, 1 to 32, as in the step.
        reset: make the rings empty instead: for sequences that get their states in another way, such as by a prefill.
        pad_slot_id: the slot number of sequences that only fill a batch. Sequence numbers that stand in for a missing
            array of slots are not compared with it.
        null_slot: another name of pad_slot_id, as vLLM's null_block_id. If both are 0 or more, they must be equal.

    Returns:
        None.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    ring_rows, window = checks.integer("ring_rows", ring_rows), checks.integer("window", window)
    options = (ring_rows, window, checks.flag("reset", reset), slots.padding(pad_slot_id, null_slot))
    _commit((cursors, accepted, state_batch_indices), options)


@quick
def selective_state_update_materialise(
    state: Any,
    x_ring: Any,
    B_ring: Any,
    dt_ring: Any,
    cursors: Any,
    A: Any,
    state_batch_indices: Any,
    dst_state_batch_indices: Any = None,
    count: Any = None,
    *,
    window: int = 16,
    pad_slot_id: int = -1,
    null_slot: int | None = None,
    state_scale: Any = None,
) -> None:
    """Write states that include live tokens of `selective_state_update_replay`, for readers of states alone.

    It serves copies of sequences, prefix caches, and states that leave the GPU. All steps must be committed before.
    Rings and cursors stay as they are, so every slot that is written, from its own state or from another one, must be
    reset by `selective_state_update_commit` before its next step.

    Args:
        state: (slots, nheads, headdim, d_state), float32, float16 or bfloat16, or int16, int8 or float8_e4m3fn with
            state_scale; updated in place.
        x_ring: (slots, nheads, ring_rows, headdim), float32, float16 or bfloat16.
        B_ring: (slots, ngroups, ring_rows, d_state), x_ring's dtype or, where A is float32, float32.
        dt_ring: (slots, nheads, ring_rows), float32.
        cursors: (slots, 4), int32.
        A: (nheads,) or (nheads, headdim, d_state); x_ring's dtype or float32, finite: one value per head, as in the
            step.
        state_batch_indices: (batch,), int32 or int64: the slots of the states and rings that are read. Sequences with a
            slot that is negative, pad_slot_id or outside the pool are left out.
        dst_state_batch_indices: (batch,), int32 or int64: the slots of the states that are written; None: the slots
            that are read.
        count: (batch,), int32 or int64: how many live tokens, the oldest ones, are included; 0 copies the state, and
            sequences with a negative number are left out. None: all.
        window: the most live tokens of a slot, 1 to 32, as in the step.
        pad_slot_id: the slot number of sequences that only fill a batch. Sequence numbers that stand in for a missing
            array of slots are not compared with it.
        null_slot: another name of pad_slot_id, as vLLM's null_block_id. If both are 0 or more, they must be equal.
        state_scale: (slots, nheads, headdim), optionally with a further axis of 1, float32; only with states of codes,
            and updated with them. Codes are rounded to nearest.

    Returns:
        None.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    rings = (x_ring, B_ring, dt_ring, cursors)
    given = (state, *rings, A, state_batch_indices, dst_state_batch_indices, count, state_scale)
    _fold(given, (checks.integer("window", window), slots.padding(pad_slot_id, null_slot)))


def _check_commit(
    given: Layouts, ring_rows: int, window: int, is_reset: bool, pad_slot_id: int
) -> Checked[CommitOperands]:
    cursors, accepted, indices = given["cursors"], given["accepted"], given["state_batch_indices"]
    assert cursors is not None
    checks.dtype("cursors", cursors.dtype, (INT32,))
    checks.shape("cursors", cursors.shape, (*cursors.shape[:1], 4), "slots, 4")
    if cursors.size and cursors.strides[1] != 1:
        raise ValueError(message("cursors", f"strides {cursors.strides}", "an array contiguous behind its slots"))
    checks.between("window", window, 1, MAX_WINDOW)
    checks.between("ring_rows", ring_rows, window + 1, MAX_DIVIDEND)
    batch = cursors.shape[0]
    if indices is not None:
        checks.dtype("state_batch_indices", indices.dtype, INDICES)
        checks.rank("state_batch_indices", indices.shape, "batch")
        batch = indices.shape[0]
    slots.by_sequence("accepted", accepted, batch, "sequences")
    operands = CommitOperands(cursors, accepted, indices, batch, ring_rows, window, pad_slot_id, is_reset)
    return Checked(operands, {}, updated=("cursors",))


def _reference_commit(o: CommitOperands, given: Arrays) -> None:
    indices = given["state_batch_indices"]
    named = np.arange(o.batch) if indices is None else indices
    live = (named >= 0) & (named < o.cursors.shape[0])
    if indices is not None:
        live &= named != o.pad_slot_id
    accepted = None if given["accepted"] is None else given["accepted"][: o.batch][live]
    reference_replay.commit(given["cursors"], named[live], accepted, o.ring_rows, o.window, o.is_reset)


_commit = Operation(
    ("cursors", "accepted", "state_batch_indices"),
    name="selective_state_update_commit",
    check=_check_commit,
    plan=plan_commit,
    reference=_reference_commit,
)


def _check_fold(given: Layouts, window: int, pad_slot_id: int) -> Checked[FoldOperands]:
    for name in ("state", "A", "B_ring", "state_batch_indices"):
        if given[name] is None:
            raise TypeError(message(name, "None", "an array"))
    state, B_ring, sources = (given[name] for name in ("state", "B_ring", "state_batch_indices"))
    assert state is not None
    A = by_row(given["A"], state.shape[1:])
    assert state and A and B_ring and sources
    checks.rank("state", state.shape, "slots, nheads, headdim, d_state")
    checks.dtype("state", state.dtype, (*FLOATS, *CODES))
    _, nheads, headdim, d_state = state.shape
    checks.rank("B_ring", B_ring.shape, "slots, ngroups, ring_rows, d_state")
    ngroups = B_ring.shape[1]
    if ngroups == 0 or nheads % ngroups:
        raise ValueError(message("ngroups of B_ring", ngroups, f"a divisor of nheads, {nheads}"))
    rings = check_rings(given, window, nheads, ngroups, headdim, d_state)
    checks.shape("A", A.shape, (nheads, headdim, d_state), "nheads, headdim, d_state of state")
    checks.dtype("A", A.dtype, tuple(dict.fromkeys((rings.x.dtype, FLOAT32))))
    checks.dtype("B_ring", rings.B.dtype, tuple(dict.fromkeys((rings.x.dtype, A.dtype))))
    check_decay("A", A, (1, 2))
    checks.dtype("state_batch_indices", sources.dtype, INDICES)
    checks.rank("state_batch_indices", sources.shape, "batch")
    for name in ("dst_state_batch_indices", "count"):
        slots.by_sequence(name, given[name], sources.shape[0], "sequences")
    codes.check_scales(given, {"state": "state_scale"})
    targets, count, scales = (given[name] for name in ("dst_state_batch_indices", "count", "state_scale"))
    operands = FoldOperands(state, A, rings, sources, targets, count, scales, pad_slot_id)
    return Checked(operands, {}, updated=("state", "state_scale"))


def _reference_fold(o: FoldOperands, given: Arrays) -> None:
    call = reference.materialise(**given, window=o.rings.window, pad_slot_id=o.pad_slot_id)
    call.write(given["state"], given["state_scale"])


_fold = Operation(
    ("state", *RINGS, "A", "state_batch_indices", "dst_state_batch_indices", "count", "state_scale"),
    name="selective_state_update_materialise",
    check=_check_fold,
    plan=plan_fold,
    reference=_reference_fold,
    absent=(
        *("x", "dt", "B", "C", "D", "z", "dt_bias", "out"),
        *("cu_seqlens", "has_initial_state", "rand_seed", "force_flush", "ring_live"),
        *("intermediate_states_buffer", "intermediate_state_indices", "num_accepted_tokens", "state_column", "parents"),
    ),
)


MOST_SEQUENCES = 2**20
"""Most sequences of a step whose tokens layers with shared cursors fold into the states at once."""


class _Layers:
    """The layers that share cursors, which must all fold the tokens of a step into their states at once, or none.

    Left alone, each layer would decide that by its own arrays. So the first layer decides for all, by the number of
    sequences alone, as if its arrays had the quickest layout.
    """

    def __init__(
        self,
        state: Layout,
        x: DType | str,
        B: DType | str,
        groups: int,
        rings: tuple[Layout, ...],
        window: int,
        fold: bool | None,
    ) -> None:
        self.most: int | None = None if fold is None else fold * MOST_SEQUENCES
        """Most sequences of a step whose tokens are folded into the states at once; None while each step decides
        that."""
        self.wanted = fold
        """The caller's `fold`."""
        self._state, self._x, self._B, self._groups, self._rings, self._window = state, x, B, groups, rings, window
        self.empty: bool = rings[0].shape[2] == window + 1 and (self._folds(state.shape[0]) if fold is None else fold)
        """Whether all steps of one token fold it at once, even with as many sequences as there are slots."""

    def decide(self) -> None:
        """Find `most`, when a further layer shares the cursors: steps of more sequences never fold at once."""
        if self.most is None:
            counts = range(1, MOST_SEQUENCES + 1)
            self.most = bisect.bisect_left(counts, True, key=lambda count: not self._folds(count))

    def _folds(self, sequences: int) -> bool:
        _, nheads, headdim, d_state = self._state.shape
        shapes: dict[str, tuple[tuple[int, ...], DType | str]] = {
            "x": ((sequences, 1, nheads, headdim), self._x),
            "dt": ((sequences, 1, nheads), FLOAT32),
            "A": ((nheads,), FLOAT32),
            "B": ((sequences, 1, self._groups, d_state), self._B),
            "C": ((sequences, 1, self._groups, d_state), self._B),
            "state_batch_indices": ((sequences,), INT32),
        }
        if self._state.dtype in CODES:
            shapes["state_scale"] = self._state.shape[:3], FLOAT32
        given: dict[str, Layout | None] = {"state": self._state, **dict(zip(replay.RINGS, self._rings, strict=True))}
        given |= {name: _new(shape, dtype, self._state) for name, (shape, dtype) in shapes.items()}
        absent = (*replay._replay.inputs, *replay._replay.outputs)
        checked = replay._check(dict.fromkeys(absent) | given, self._window, None, False, False, -1, False, 10, False)
        return checked.operands.fold

    def fold(self, x: Any, cu_seqlens: Any) -> bool | None:
        """Whether a step of all these layers folds its tokens into the states at once; None if nothing is decided."""
        shape: tuple[int, ...] = getattr(x, "shape", ())
        if self.most is None or len(shape) not in (3, 4):
            return None
        return bool(cu_seqlens is None and (len(shape) == 3 or shape[1] == 1) and shape[0] <= self.most)


def _check_shared(rings: Any, window: int, tokens: int, count: int, fold: bool | None) -> None:
    """Checks that a layer with this window and number of slots can share the cursors of another layer's rings."""
    if not isinstance(rings, ReplayRings):
        raise TypeError(message("cursors", f"a {type(rings).__name__}", "the ReplayRings of another layer, or None"))
    other = rings.window, rings._rows - rings.window, rings.cursors.shape[0]
    names = ("window", "tokens", "slots of state")
    for name, own, theirs in zip(names, (window, tokens, count), other, strict=True):
        if own != theirs:
            raise ValueError(message(name, own, f"{theirs}, as in the rings of the layer that has the cursors"))
    if fold not in (None, theirs := rings._layers.wanted):
        wanted = "None" if theirs is None else f"None or {theirs}"
        raise ValueError(message("fold", fold, f"{wanted}, as in the rings of the layer that has the cursors"))


def _new(shape: tuple[int, ...], dtype: DType | str, like: Layout) -> Layout:
    """The layout of a new array beside another one."""
    return dense(shape, tuple(range(len(shape))), like)._replace(dtype=dtype)


class ReplayRings:
    """The rings of a layer for a pool of slots, and their cursors, which the layers of a model may share.

    Attributes:
        x: (slots, nheads, ring_rows, headdim), x's dtype: x_ring of `selective_state_update_replay`.
        B: (slots, ngroups, ring_rows, d_state), B's dtype: B_ring of that function.
        dt: (slots, nheads, ring_rows), float32: dt_ring of that function.
        cursors: (slots, 4), int32.
        window: the most live tokens of a slot.
        nbytes: bytes of the rings, without the cursors.
        empty: whether the rings never hold a token. That is so if they have room for one new token, and fold is True or
            replay is never quicker with this d_state, these dtypes, this window and this number of slots. Each step is
            then that of `selective_state_update`, and `update` cannot be given fold=False.
    """

    def __init__(
        self,
        state: Any,
        x: Any,
        B: Any,
        *,
        window: int = 16,
        tokens: int = 1,
        cursors: Any = None,
        fold: bool | None = None,
    ) -> None:
        """Allocate empty rings beside a pool of states.

        Args:
            state: (slots, nheads, headdim, d_state): the states of the layer.
            x, B: x and B of any step of the layer, of which only dtypes and B's ngroups matter.
            window: 1 to 32.
            tokens: the most new tokens of a sequence in a step: 1 to 16, at most window.
            cursors: the ReplayRings of another layer with the same number of slots, window and tokens, to share its
                cursors. Unless `fold` is given, the first of the layers that share them decides for all whether a step
                folds its tokens into the states at once.
            fold: the default of `fold` in `update`. False lets rings hold tokens also where that takes more time, so
                that states of 16 bits are rounded less often. It must be the same for layers that share cursors.

        Raises:
            TypeError: cursors that are no ReplayRings, or arrays of a kind or dtype that is not supported.
            ValueError: any other argument that does not fit.
        """
        family = arrays.family(state)
        if family is None:
            raise TypeError(message("state", f"a {type(state).__name__}", "a NumPy, CuPy or torch array"))
        window, tokens = checks.integer("window", window), checks.integer("tokens", tokens)
        fold = None if fold is None else checks.flag("fold", fold)
        checks.between("window", window, 1, MAX_WINDOW)
        checks.between("tokens", tokens, 1, min(window, max_tokens()))
        names = ("state", "x", "B")
        _, facts = family.inspect(names, (state, x, B))
        for name, fact in zip(names, facts, strict=True):
            if fact is None:
                raise TypeError(message(name, "None", "an array"))
        of_state, of_x, of_B = (family.layout(name, fact or ()) for name, fact in zip(names, facts, strict=True))
        checks.rank("state", of_state.shape, "slots, nheads, headdim, d_state")
        count, nheads, headdim, d_state = of_state.shape
        for name, layout in (("x", of_x), ("B", of_B)):
            checks.dtype(name, layout.dtype, FLOATS)
        if len(of_B.shape) < 3 or of_B.shape[-1] != d_state:
            raise ValueError(message("B", f"shape {of_B.shape}", f"(batch, [tokens,] ngroups, {d_state})"))
        rows, groups = window + tokens, of_B.shape[-2]
        if cursors is not None:
            _check_shared(cursors, window, tokens, count, fold)
        layouts = [
            _new(shape, dtype, of_state)
            for shape, dtype in (
                ((count, nheads, rows, headdim), of_x.dtype),
                ((count, groups, rows, d_state), of_B.dtype),
                ((count, nheads, rows), FLOAT32),
                ((count, 4), INT32),
            )
        ]
        self.window: int = window
        self._rows: int = rows
        self.x, self.B, self.dt = (family.maker(layout)()[0] for layout in layouts[:3])
        self.nbytes: int = sum(layout.size * layout.itemsize for layout in layouts[:3])
        if cursors is None:
            self._layers = _Layers(of_state, of_x.dtype, of_B.dtype, groups, tuple(layouts), window, fold)
            self.cursors: Any = family.maker(layouts[3])()[0]
            self.reset()
        else:
            self._layers, self.cursors = cursors._layers, cursors.cursors
            self._layers.decide()
        self.empty: bool = self._layers.empty

    def update(self, state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, *others: Any, **named: Any) -> Any:
        """`selective_state_update_replay` with these rings; further arguments are those of that function behind C."""
        rings = (self.x, self.B, self.dt, self.cursors)
        if self.empty:
            named["empty"] = True
        elif named.get("fold") is None:
            named["fold"] = self._layers.fold(x, named.get("cu_seqlens"))
        return selective_state_update_replay(state, *rings, x, dt, A, B, C, *others, window=self.window, **named)

    def commit(self, accepted: Any = None, state_batch_indices: Any = None, **named: Any) -> None:
        """`selective_state_update_commit` of these rings, once a step for all layers that share the cursors."""
        selective_state_update_commit(
            self.cursors, accepted, state_batch_indices, ring_rows=self._rows, window=self.window, **named
        )

    def reset(self, state_batch_indices: Any = None, **named: Any) -> None:
        """Make the rings of these slots empty, all when None: their states are up to date, as after a prefill."""
        self.commit(None, state_batch_indices, reset=True, **named)

    def materialise(self, state: Any, A: Any, state_batch_indices: Any, *others: Any, **named: Any) -> None:
        """`selective_state_update_materialise` of these rings; further arguments are those of that function."""
        rings = (self.x, self.B, self.dt, self.cursors)
        selective_state_update_materialise(state, *rings, A, state_batch_indices, *others, window=self.window, **named)
