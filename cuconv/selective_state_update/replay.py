"""Replay: decode steps that read states, and write them only when rings of recent tokens are full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cuconv.runtime import checks, codes, slots
from cuconv.runtime.dtypes import BOOL, FLOAT32, FLOATS, INT32, DType
from cuconv.runtime.entry import quick
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout, dense_strides
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import NO_NUMBERS, Arrays, Checked, Layouts
from cuconv.selective_state_update import reference, update
from cuconv.selective_state_update.kernels_replay import MAX_WINDOW, max_tokens
from cuconv.selective_state_update.plan_replay import Operands, Rings, folds_at_once, plan
from cuconv.selective_state_update.reference_replay import LIVE, START

RINGS = ("x_ring", "B_ring", "dt_ring", "cursors")
"""The arguments that are rings and their cursors."""


@quick
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
    empty: bool = False,
    pad_slot_id: int = -1,
    null_slot: int | None = None,
    pad_output: str = "zero",
    rand_seed: Any = None,
    philox_rounds: int = 10,
    state_scale: Any = None,
    out: Any = None,
) -> Any:
    """Decode steps of Mamba-2 that read states, and write them only when rings of recent tokens are full.

    The results are those of `selective_state_update`. A state in memory is some tokens old; x, B and dt' of the tokens
    since then, the live tokens, are in rings. With a = dt' * A of each token and live tokens j from 1 to n, for the
    state S of a head:

        y_n = exp(a_1 + … + a_n) * S C_n + sum over j of exp(a_j+1 + … + a_n) * dt'_j * (B_j . C_n) * x_j + D * x_n

    in float32 (the chunked form of Dao and Gu, "Transformers are SSMs", 2024, section 6). A step appends its tokens to
    the live ones. Before there would be more than `window` of them, those in the ring are folded into the state, which
    is written: a flush. So a state of float16 or bfloat16 is rounded once per window, and nearly all steps only read
    states.

    A step moves no cursor: `selective_state_update_commit` does that, by the number of accepted tokens of each
    sequence, once per step for all layers that share cursors. It must be called before the next step. Layers that share
    cursors must be given the same `fold` in a step, True or False, because cursors record it.
    `selective_state_update_materialise` brings states up to date for other readers. `ReplayRings` makes the arrays, and
    sees to it that layers that share cursors agree.

    A, dt and dt_bias have one value per head: no axes behind that of the heads, or strides of 0 along them. Arrays are
    NumPy, CuPy, torch or DLPack ones, all of one kind and on one device, of any strides but for rings and cursors,
    which are contiguous behind their slots. The call waits for nothing, except under CUCONV_CHECK=1, which reads index
    arrays back and checks them.

    Args:
        state: (slots, nheads, headdim, d_state), float32, float16 or bfloat16, or int16, int8 or float8_e4m3fn with
            state_scale, d_state 1 to 512; updated in place.
        x_ring: (slots, nheads, ring_rows, headdim), x's dtype; updated in place. ring_rows is at least window plus the
            most tokens of a sequence in a call. Rows that are not live may hold anything.
        B_ring: (slots, ngroups, ring_rows, d_state), B's dtype; updated in place.
        dt_ring: (slots, nheads, ring_rows), float32; updated in place. It holds dt'.
        cursors: (slots, 4), int32: for each slot the row of its oldest live token, the number of live tokens, and,
            until a step is committed, the number of tokens that it has appended and the number that it has folded into
            the state. All are 0 for an empty ring.
        x: (batch, [tokens,] nheads, headdim), or (tokens, nheads, headdim) with cu_seqlens; float32, float16 or
            bfloat16. A sequence has at most min(16, window, ring_rows - window) tokens; a packed one with more gives 0.
        dt: shape of x, with or without headdim; x's dtype or float32.
        A: (nheads,) or (nheads, headdim, d_state); x's dtype or float32. Finite, not positive.
        B, C: (batch, [tokens,] ngroups, d_state), or (tokens, ngroups, d_state) with cu_seqlens. Both have x's dtype
            or, where A is float32, both float32. nheads is a multiple of ngroups. C is multiplied with states and live
            tokens separately: where C is not finite, results may be NaN where those of the plain step are infinite, and
            with states of 8-bit codes they are.
        D, dt_bias: (nheads,) or (nheads, headdim); x's dtype or float32. Zeros when None.
        z: shape of x; x's dtype or, beside float32 B and C, float32. No gate when None.
        dt_softplus: apply softplus, linear above 20.
        state_batch_indices: (batch,), int32 or int64: the slot of each sequence; None: sequence i has slot i. A
            sequence with a slot that is negative, pad_slot_id or outside the pool gives 0, and nothing is read or
            written for it.
        window: the most live tokens of a slot, 1 to 32. About sqrt(2 * bytes of a head's state / bytes of its part of a
            ring row) is best; 16 suits states of all dtypes.
        cu_seqlens: (sequences + 1,), int32 or int64, from 0 up to at most tokens, never falling. Padding (tokens of no
            sequence) gives 0.
        has_initial_state: (batch,), bool: sequences for which it is false start from zeros and an empty ring; true when
            None.
        force_flush: (batch,), bool: sequences for which it is true fold their live tokens into the state in this step,
            however few they are. The new tokens are live afterwards.
        fold: True: a step of one token per sequence folds this token into the state, too, and leaves the ring empty. It
            is the step of `selective_state_update`, which is quicker for small batches. False: no step does that. None:
            steps do it where it was measured to be quicker, by d_state, dtypes, the window and the bytes of states.
            With x, B and C of bfloat16, d_state 128, heads of a multiple of 64 rows and a window of 16, that is for
            less than 16 MiB of states in float32, 13 in bfloat16, float16 and float8_e4m3fn, 17 in int16 and 12 in
            int8; with x of float32, always unless states are float32, too; and always with a d_state other than 64, 128
            and 256. `cuconv/selective_state_update/borders.py` has all borders.
        empty: True: the caller knows that no sequence has live tokens. The step is that of `selective_state_update`:
            one token per sequence is folded into the state, rings and cursors are neither read nor written, and the
            rings stay empty.
        pad_slot_id: the slot number of sequences that only fill a batch. Sequence numbers that stand in for a missing
            array of slots are not compared with it.
        null_slot: another name of pad_slot_id, as vLLM's null_block_id. If both are 0 or more, they must be equal.
        pad_output: "zero": padding and sequences without a slot give 0. "keep": out, which must be given then, keeps
            its contents there.
        rand_seed: a seed of 64 bits, or an int64 array (1,): round states, which must not be float32, up or down at
            random when they are written, as in `selective_state_update`. Each step needs another seed.
        philox_rounds: rounds of Philox-4x32, 1 to 20; 0 stands for 10.
        state_scale: (slots, nheads, headdim), optionally with a further axis of 1, float32; only with states of codes,
            and updated with them, as in `selective_state_update`.
        out: shape and dtype of x: where to write the result. It may be x itself, but must not overlap any other
            argument.

    Returns:
        out, contiguous: of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    rounds = codes.rounds_of(philox_rounds)
    seed, rand_seed = codes.seed_of(rand_seed)
    given = (
        *(state, x_ring, B_ring, dt_ring, cursors, x, dt, A, B, C, D, z, dt_bias, state_batch_indices),
        *(cu_seqlens, has_initial_state, force_flush, rand_seed, state_scale, out),
    )
    options = (
        checks.integer("window", window),
        None if fold is None else checks.flag("fold", fold),
        checks.flag("empty", empty),
        checks.flag("dt_softplus", dt_softplus),
        slots.padding(pad_slot_id, null_slot),
        seed is not None,
        rounds,
        slots.keeps_padding(pad_output),
    )
    (result,) = _replay(given, options, late=NO_NUMBERS if seed is None else {"seed": seed})
    return result


@quick
def replay_by_columns(
    state: Any,
    x_ring: Any,
    B_ring: Any,
    dt_ring: Any,
    ring_start: Any,
    ring_live: Any,
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
    window: int,
    cu_seqlens: Any,
    pad_slot_id: int,
    rand_seed: Any,
    philox_rounds: int,
    state_scale: Any,
    out: Any,
) -> Any:
    """`selective_state_update_replay` with cursors in two arrays, for engines; fold is false.

    ring_start and ring_live, (slots,), int32, have the row of a slot's oldest live token and the number of live ones.
    They are only read, so that a step does not record what is to be committed.

    Returns:
        out, contiguous.
    """
    rounds = codes.rounds_of(philox_rounds)
    seed, rand_seed = codes.seed_of(rand_seed)
    given = (
        *(state, x_ring, B_ring, dt_ring, ring_start, x, dt, A, B, C, D, z, dt_bias, state_batch_indices),
        *(cu_seqlens, ring_live, rand_seed, state_scale, out),
    )
    padding = slots.padding(pad_slot_id, None)
    softplus = checks.flag("dt_softplus", dt_softplus)
    options = checks.integer("window", window), False, False, softplus, padding, seed is not None, rounds, False
    (result,) = _replay_by_columns(given, options, late=NO_NUMBERS if seed is None else {"seed": seed})
    return result


def check_rings(given: Layouts, window: int, heads: int, groups: int, headdim: int, d_state: int) -> Rings:
    """Checks rings beside states of these sizes."""
    state, x_ring, B_ring, dt_ring, cursors = (given[name] for name in ("state", *RINGS))
    live = given.get("ring_live")
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
        *((("cursors", (INT32,), (count, 4), "slots, 4"),) if live is None else ()),
    ):
        layout = given[name]
        assert layout is not None
        checks.dtype(name, layout.dtype, dtypes)
        checks.shape(name, layout.shape, shape, axes)
        order = tuple(range(len(shape)))
        contiguous = layout._replace(strides=dense_strides(shape, order))
        if layout.size and layout.active(*order[1:]) != contiguous.active(*order[1:]):
            raise ValueError(message(name, f"strides {layout.strides}", "an array contiguous behind its slots"))
    if live is not None:
        for name, layout in (("cursors", cursors), ("ring_live", live)):
            checks.dtype(name, layout.dtype, (INT32,))
            checks.shape(name, layout.shape, (count,), "slots")
        if count > 1 and live.strides != cursors.strides:
            raise ValueError(message("ring_live", f"strides {live.strides}", f"{cursors.strides}, those of cursors"))
    elif cursors.offset % 8 or (count > 1 and cursors.strides[0] % 2):
        raise ValueError(message("cursors", "slots at odd places", "each slot aligned to 8 bytes"))
    return Rings(x_ring, B_ring, dt_ring, cursors, window, live)


def by_row(layout: Layout | None, shape: tuple[int, ...], least: int = 1) -> Layout | None:
    """The layout of an argument, broadcast to this shape by strides of 0 along missing last axes. One with fewer than
    `least` axes is returned as it is.
    """
    if layout is None or not least <= len(layout.shape) < len(shape):
        return layout
    missing = shape[len(layout.shape) :]
    return layout._replace(shape=(*layout.shape, *missing), strides=(*layout.strides, *[0] * len(missing)))


def most_tokens(rings: Rings) -> int:
    """Most new tokens of a sequence in a step."""
    return min(max_tokens(), rings.window, rings.x.shape[2] - rings.window)


def check_decay(name: str, layout: Layout | None, axes: tuple[int, ...]) -> None:
    """Check that an argument has one value per head."""
    if layout is not None and any(layout.active(*axes)):
        wanted = "one value a head: no axes behind that of the heads, or strides of 0 along them"
        raise ValueError(message(name, f"strides {layout.strides} for shape {layout.shape}", wanted))


def _check(
    given: Layouts,
    window: int,
    fold: bool | None,
    empty: bool,
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
    if state is not None and given["x"] is not None:
        rows = state.shape[1:3]
        shapes = {"A": state.shape[1:], "D": rows, "dt_bias": rows}
        known |= {name: by_row(given[name], shape) for name, shape in shapes.items()}
        known["dt"] = by_row(given["dt"], given["x"].shape, len(given["x"].shape) - 1)
    checked = update._check(known, dt_softplus, False, pad_slot_id, has_seed, philox_rounds, keeps_padding)
    step = checked.operands
    _, nheads, headdim, d_state = step.state.shape
    rings = check_rings(given, window, nheads, step.B.shape[2], headdim, d_state)
    for name, ring, layout in (("x_ring", rings.x, step.x), ("B_ring", rings.B, step.B)):
        assert isinstance(layout.dtype, DType)
        checks.dtype(name, ring.dtype, (layout.dtype,))
    by_head: tuple[tuple[str, Layout | None, tuple[int, ...]], ...] = (
        ("A", step.A, (1, 2)), ("dt", step.dt, (3,)), ("dt_bias", step.dt_bias, (1,)),
    )  # fmt: skip
    for name, given_layout, axes in by_head:
        check_decay(name, given_layout, axes)
    indices = step.state_batch_indices
    if indices is not None and len(indices.shape) != 1:
        raise ValueError(message("state_batch_indices", f"shape {indices.shape}", "1 axis (batch)"))
    forced = given.get("force_flush")
    slots.by_sequence("force_flush", forced, step.sequences, "sequences", (BOOL,))
    if step.cu_seqlens is None:
        most = most_tokens(rings)
        if step.x.shape[1] > most:
            wanted = f"at most {most}: {max_tokens()}, the window, and what ring_rows has beyond it"
            raise ValueError(message("tokens of x", step.x.shape[1], wanted))
    if fold and (step.cu_seqlens is not None or step.x.shape[1] != 1):
        raise ValueError(message("fold", True, "False or None for several tokens, which may be rejected"))
    if empty and fold is False:
        wanted = "True or None for rings that stay empty; those of ReplayRings(..., fold=False) do not"
        raise ValueError(message("fold", False, wanted))
    if empty and (most_tokens(rings) if step.cu_seqlens is not None else step.x.shape[1]) != 1:
        raise ValueError(message("empty", True, "False where sequences may have several tokens, which may be rejected"))
    folds = empty or (folds_at_once(step, rings) if fold is None else fold)
    operands = Operands(step, rings, forced, folds, empty)
    updated = RINGS if rings.live is None else RINGS[:-1]
    return Checked(operands, checked.outputs, updated=("state", *updated, "state_scale"), in_place=checked.in_place)


def _reference(o: Operands, arrays: Arrays, seed: int | None = None) -> None:
    named = {name: array for name, array in arrays.items() if name != "out"}
    if o.rings.live is not None:
        named["cursors"] = _side_by_side(named["cursors"], named.pop("ring_live"))
    if seed is not None:
        named["rand_seed"] = seed
    step = reference.replay(
        **named,
        window=o.rings.window,
        fold=o.fold,
        dt_softplus=o.step.dt_softplus,
        pad_slot_id=o.step.pad_slot_id,
        philox_rounds=o.step.philox_rounds,
    )
    out, written = np.zeros(arrays["x"].shape), step.is_computed if o.step.keeps_padding else ...
    step.write(out, arrays["state"], arrays["state_scale"], step.rings)
    arrays["out"][written] = out[written].astype(arrays["out"].dtype)


def _side_by_side(start: Any, live: Any) -> Any:
    """Cursors, (slots, 4), from the arrays of oldest rows and of numbers of live tokens."""
    return np.stack([start, live, 0 * start, 0 * start], axis=1)


def check_cursors(cursors: Any, slots_used: Any, rows: int, window: int) -> None:
    """ValueError when cursors of these slots cannot be right."""
    for column, most, what in ((START, rows - 1, "row"), (LIVE, window, "live tokens")):
        found = cursors[slots_used, column]
        if (wrong := np.flatnonzero((found < 0) | (found > most))).size:
            slot = slots_used[wrong[0]]
            raise ValueError(message(f"cursors[{slot}, {column}]", found[wrong[0]], f"0 to {most} ({what})"))


def _check_contents(o: Operands, read: Callable[[str], Any]) -> None:
    """ValueError when what index arrays or cursors contain cannot be right."""
    others = ("dst_state_batch_indices", "intermediate_state_indices", "num_accepted_tokens", "state_column", "parents")
    update.check_contents(o.step, lambda name: None if name in others else read(name))
    step, rows = o.step, o.rings.x.shape[2]
    lengths = np.full(step.sequences, step.x.shape[1])
    if (starts := read("cu_seqlens")) is not None:
        lengths = np.diff(starts)
        most = most_tokens(o.rings)
        if (longer := np.flatnonzero(lengths > most)).size:
            i = int(longer[0])
            wanted = f"at most {starts[i] + most}, {most} tokens on"
            raise ValueError(message(f"cu_seqlens[{i + 1}]", starts[i + 1], wanted))
    sources = read("state_batch_indices")
    used = np.arange(step.sequences) if sources is None else sources[: step.sequences].astype(np.int64)
    live = (used >= 0) & (used < step.state.shape[0]) & (lengths > 0)
    if sources is not None:
        live &= used != step.pad_slot_id
    cursors = read("cursors") if o.rings.live is None else _side_by_side(read("cursors"), read("ring_live"))
    check_cursors(cursors, used[live], rows, 0 if o.empty else o.rings.window)


_replay = Operation(
    (
        *("state", *RINGS, "x", "dt", "A", "B", "C", "D", "z", "dt_bias"),
        *("state_batch_indices", "cu_seqlens", "has_initial_state", "force_flush", "rand_seed", "state_scale"),
    ),
    ("out",),
    name="selective_state_update_replay",
    check=_check,
    plan=plan,
    reference=_reference,
    contents=_check_contents,
    absent=(
        *("dst_state_batch_indices", "intermediate_states_buffer", "intermediate_state_indices"),
        *("num_accepted_tokens", "state_column", "parents", "count", "intermediate_state_scales", "ring_live"),
    ),
)
# Each argument costs a call some time, even when it is None.
_replay_by_columns = replace(
    _replay,
    inputs=(
        *("state", *RINGS, "x", "dt", "A", "B", "C", "D", "z", "dt_bias"),
        *("state_batch_indices", "cu_seqlens", "ring_live", "rand_seed", "state_scale"),
    ),
    name="selective_state_update_replay_by_columns",
    absent=(*_replay.absent[:-1], "has_initial_state", "force_flush"),
)
