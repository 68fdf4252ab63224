"""The decode step of selective state space models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cuconv.runtime import checks, codes, slots, trees
from cuconv.runtime.dtypes import BOOL, FLOAT32, FLOATS, INDICES, STATES, DType
from cuconv.runtime.entry import quick
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout, dense
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import NO_NUMBERS, Arrays, Checked, Layouts
from cuconv.selective_state_update import reference
from cuconv.selective_state_update.kernels import MAX_D_STATE
from cuconv.selective_state_update.plan import Operands, plan

SCALES = {"state": "state_scale", "intermediate_states_buffer": "intermediate_state_scales"}
"""The arguments that have the scales of states."""

MAX_TOKENS = 2**30
"""Most tokens, and most sequences, of a call: the kernel counts them in 32 bits, and a little beyond the last one."""


@quick
def selective_state_update(
    state: Any,
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
    dst_state_batch_indices: Any = None,
    intermediate_states_buffer: Any = None,
    intermediate_state_indices: Any = None,
    num_accepted_tokens: Any = None,
    cu_seqlens: Any = None,
    state_column: Any = None,
    has_initial_state: Any = None,
    parents: Any = None,
    disable_state_update: bool = False,
    pad_slot_id: int = -1,
    null_slot: int | None = None,
    pad_output: str = "zero",
    rand_seed: Any = None,
    philox_rounds: int = 10,
    state_scale: Any = None,
    intermediate_state_scales: Any = None,
    out: Any = None,
) -> Any:
    """The recurrence of Mamba and Mamba-2 for the next tokens of sequences, with the meaning it has in mamba_ssm.

    With S the state of a sequence in a head, (headdim, d_state), for one token after the other:

        dt' = softplus(dt + dt_bias), or without dt_softplus dt + dt_bias
        S = S * exp(dt' * A) + dt' * B * x
        y = sum over d_state of S * C, + D * x
        out = y * z * sigmoid(z)

    in float32 (Gu and Dao, "Mamba", 2023, and Dao and Gu, "Transformers are SSMs", 2024). Where A, dt and dt_bias are
    the same for all rows of a head, by strides of 0 as Mamba-2 passes them, the exponential is computed once per head.

    x may hold several tokens per sequence, or with cu_seqlens packed sequences of any lengths. With parents the tokens
    of a sequence form a tree: each continues from the state after an earlier one, as it is stored in
    intermediate_states_buffer.

    Arrays are NumPy, CuPy, torch or DLPack ones, all of one kind and on one device, of any strides; arrays with a row
    per sequence may have further rows, which are ignored. The kernel runs on the caller's current stream, and the call
    waits for nothing, except under CUCONV_CHECK=1, which reads index arrays back and checks them.

    Args:
        state: (slots, dim, d_state) or (slots, nheads, headdim, d_state), float32, float16 or bfloat16, or codes of
            int16, int8 or float8_e4m3fn with state_scale, d_state 1 to 512; updated in place. CuPy, like NumPy, has
            float8_e4m3fn by ml_dtypes: `cupy.zeros(shape, "uint8").view(ml_dtypes.float8_e4m3fn)`.
        x: (batch, [tokens,] dim) or (batch, [tokens,] nheads, headdim); with cu_seqlens (tokens, dim) or (tokens,
            nheads, headdim); float32, float16 or bfloat16.
        dt: shape of x; x's dtype or float32.
        A: (dim, d_state) or (nheads, headdim, d_state); x's dtype or float32.
        B, C: (batch, [tokens,] d_state), with heads (batch, [tokens,] ngroups, d_state); with cu_seqlens (tokens,
            d_state) or (tokens, ngroups, d_state). Both have x's dtype or, where A is float32, both float32. nheads is
            a multiple of ngroups.
        D, dt_bias: (dim,) or (nheads, headdim); x's dtype or float32. Zeros when None.
        z: shape of x; x's dtype or, beside float32 B and C, float32. No gate when None.
        dt_softplus: apply softplus, linear above 20.
        state_batch_indices: (batch,), int32 or int64: the slot that each sequence starts from; None: sequence i has
            slot i. A sequence with a slot that is negative, pad_slot_id or outside the pool gives 0, and no state is
            read or written for it. (batch, columns): column 0, unless num_accepted_tokens or state_column chooses one.
        dst_state_batch_indices: (batch,), int32 or int64: the slot for the state after the last token; None: the slot
            that the sequence starts from. (batch, columns): a slot for the state after each token. States after further
            tokens, or with a slot that is negative, pad_slot_id or outside the pool, are not stored.
        intermediate_states_buffer: (rows, steps, ...), the axes of state behind its slots, state's dtype: also receives
            the state after each token. steps is at least tokens; for packed sequences states after further tokens are
            not stored.
        intermediate_state_indices: (batch,), int32 or int64: the row of intermediate_states_buffer for each sequence;
            None: the slot that it starts from. A row outside the buffer is not written. Two sequences must not share a
            row.
        num_accepted_tokens: (batch,), int32 or int64, of speculative decoding: sequence i starts from slot
            state_batch_indices[i, num_accepted_tokens[i] - 1] (0 counts as 1), and the states after each of its tokens
            go to the slots in dst_state_batch_indices[i], or else state_batch_indices[i].
        cu_seqlens: (sequences + 1,), int32 or int64, from 0 up to at most tokens, never falling. Padding (tokens of no
            sequence) gives 0.
        state_column: (batch,), int32 or int64: sequence i starts from slot state_batch_indices[i, state_column[i]]; a
            column that does not exist is padding.
        has_initial_state: (batch,), bool: sequences for which it is false start from zeros; true when None.
        parents: (batch, tokens), int32 or int64: the number of the token that each token follows, at least 0 and less
            than its own number. With any other number it follows the state in the slot, as the first token always does.
            `cuconv.runtime.trees.tree_parents` finds these numbers. States are handed on in intermediate_states_buffer,
            in its dtype; a sequence without a row there gives 0.
        disable_state_update: leave state as it is.
        pad_slot_id: the slot number of sequences that only fill a batch. Sequence numbers that stand in for a missing
            array of slots are not compared with it.
        null_slot: another name of pad_slot_id, as vLLM's null_block_id. If both are 0 or more, they must be equal.
        pad_output: "zero": padding and sequences without a slot give 0. "keep": out, which must be given then, keeps
            its contents there.
        rand_seed: a seed of 64 bits, or an int64 array of one element: round states, which must not be float32, up or
            down at random, so that their expected value is right. Random numbers are Philox-4x32's (Salmon et al.,
            "Parallel random numbers: as easy as 1, 2, 3", 2011): with the seed as key, the counter (n // 8 of 64 bits
            in the first two words, then sequence in the batch, token in the sequence) gives 16 bits for each element n
            of the slot, from the low half of the first word to the high half of the last. They are added below the last
            bit that is kept, for codes below the last bit of S / scale, and the rest is cut off. The result is the same
            on every GPU.
        philox_rounds: rounds of Philox-4x32, 1 to 20; 0 stands for 10.
        state_scale: (slots, nheads, headdim) or (slots, dim), optionally with a further axis of 1, float32; only with
            states of codes, and updated with them: S = state * state_scale. When a state is stored, the scale of a row
            is its largest magnitude divided by m = 32767 (int16), 127 (int8) or 448 (float8_e4m3fn), computed as 1 / f
            with f = m / magnitude. The codes are S * f, rounded to nearest even or at random. out follows from S before
            it is rounded. A row with no magnitude of 2**-111 or more becomes zeros with the scale 1; a row with a
            magnitude above 2**126, or that is not finite, gets the scale NaN, and its codes have no meaning.
        intermediate_state_scales: (rows, steps, ...), the axes of state_scale behind its slots, float32: receives the
            scales of intermediate_states_buffer.
        out: shape and dtype of x: where to write the result. It may be x itself, but must not overlap any other
            argument.

    Returns:
        out, contiguous: of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit, or that has no meaning beside another one. Nothing has been
            launched or written then.
    """
    seed = None
    # The usual arguments are recognised without calling a function: this is on the path of every call.
    if rand_seed is not None:
        seed, rand_seed = codes.seed_of(rand_seed)
    targets = dst_state_batch_indices
    if targets is not None and targets is state_batch_indices and getattr(targets, "ndim", 0) == 1:
        # Engines without a prefix cache give one array for both, and small steps are fastest in place.
        dst_state_batch_indices = None
    given = (
        state, x, dt, A, B, C, D, z, dt_bias, state_batch_indices, dst_state_batch_indices, intermediate_states_buffer,
        intermediate_state_indices, num_accepted_tokens, cu_seqlens, state_column, has_initial_state, parents,
        rand_seed, state_scale, intermediate_state_scales, out,
    )  # fmt: skip
    if (
        disable_state_update is False
        and pad_slot_id is slots.NONE
        and null_slot is None
        and pad_output is slots.ZERO
        and philox_rounds is codes.DEFAULT_ROUNDS
    ):
        softplus = checks.flag("dt_softplus", dt_softplus)
        options = softplus, False, slots.NONE, seed is not None, codes.DEFAULT_ROUNDS, False
    else:
        rounds = codes.rounds_of(philox_rounds)
        softplus = checks.flag("dt_softplus", dt_softplus)
        is_read_only = checks.flag("disable_state_update", disable_state_update)
        padding, keeps_padding = slots.padding(pad_slot_id, null_slot), slots.keeps_padding(pad_output)
        options = softplus, is_read_only, padding, seed is not None, rounds, keeps_padding
    return _update(given, options, None, NO_NUMBERS if seed is None else {"seed": seed})[0]


def _check(
    given: Layouts,
    dt_softplus: bool,
    disable_state_update: bool,
    pad_slot_id: int,
    has_seed: bool,
    philox_rounds: int,
    keeps_padding: bool,
) -> Checked[Operands]:
    state, x = given["state"], given["x"]
    for name in ("x", "dt", "A", "B", "C"):
        if given[name] is None:
            raise TypeError(message(name, "None", "an array"))
    assert state is not None and x is not None
    if len(state.shape) not in (3, 4):
        raise ValueError(message("state", f"shape {state.shape}", "3 or 4 axes (slots[, nheads], headdim, d_state)"))
    checks.dtype("state", state.dtype, STATES)
    checks.dtype("x", x.dtype, FLOATS)
    pool_slots, *rows, d_state = state.shape
    checks.between("slots of state", pool_slots, 0, MAX_DIVIDEND)
    checks.between("d_state of state", d_state, 1, MAX_D_STATE)
    for axis, length in zip(("headdim", "nheads") if len(rows) == 2 else ("dim",), reversed(rows), strict=True):
        checks.between(f"{axis} of state", length, 0, MAX_DIVIDEND)
    tokens = _check_tokens(given, rows)
    _check_parameters(given, rows, d_state)
    _check_by_token(given, tokens, rows, d_state)
    sequences = tokens[0] if given["cu_seqlens"] is None else given["cu_seqlens"].shape[0] - 1
    _check_index_arrays(given, sequences, pool_slots)
    _check_buffer(given, tokens[1] if len(tokens) > 1 else 1, pool_slots, sequences)
    codes.check_scales(given, SCALES)
    _check_parents(given, tokens)
    stochastic = has_seed or given["rand_seed"] is not None
    if stochastic and state.dtype is FLOAT32:
        raise ValueError(message("rand_seed", "a seed", "None for a float32 state, which is not rounded"))
    codes.check_seed(given["rand_seed"])
    if keeps_padding:
        slots.check_kept(given, ("out",))
    out = given["out"] or dense(x.shape, tuple(range(len(x.shape))), x)
    given = {**given, "out": out}
    canonical = {name: _canonical(name, layout, given) for name, layout in given.items()}
    operands = Operands(
        **canonical,  # type: ignore[arg-type]
        dt_softplus=dt_softplus,
        disable_state_update=disable_state_update,
        pad_slot_id=pad_slot_id,
        keeps_padding=keeps_padding,
        has_seed=has_seed,
        philox_rounds=philox_rounds,
    )
    pool = () if disable_state_update else ("state", "state_scale")
    updated = ("intermediate_states_buffer", "intermediate_state_scales", *pool)
    return Checked(operands, {"out": out}, updated=updated, in_place=("out", "x"))


def _check_tokens(given: Layouts, rows: list[int]) -> list[int]:
    """Checks x and cu_seqlens; returns the sizes of x before its rows: tokens, or batch and perhaps tokens."""
    x, cu_seqlens = given["x"], given["cu_seqlens"]
    assert x is not None
    wanted = (1, 2) if cu_seqlens is None else (1,)
    tokens = list(x.shape[: -len(rows)])
    inner = "nheads, headdim" if len(rows) == 2 else "dim"
    if len(x.shape) - len(rows) not in wanted or list(x.shape[-len(rows) :]) != rows:
        first = "tokens" if cu_seqlens is not None else "batch[, tokens]"
        raise ValueError(message("x", f"shape {x.shape}", f"({first}, {inner}), {inner} as state has them: {rows}"))
    checks.between("batch of x", tokens[0], 0, MAX_TOKENS)
    checks.between("tokens of x", tokens[-1], 0, MAX_TOKENS)
    if cu_seqlens is not None:
        checks.starts("cu_seqlens", cu_seqlens, MAX_TOKENS)
    return tokens


def _check_parameters(given: Layouts, rows: list[int], d_state: int) -> None:
    """Checks A, D and dt_bias."""
    x = given["x"]
    assert x is not None
    inner = "nheads, headdim" if len(rows) == 2 else "dim"
    for name, shape, axes in (
        ("A", (*rows, d_state), f"{inner}, d_state of state"),
        ("D", tuple(rows), f"{inner} of state"),
        ("dt_bias", tuple(rows), f"{inner} of state"),
    ):
        if (layout := given[name]) is not None:
            checks.dtype(name, layout.dtype, _or_float32(x))
            checks.shape(name, layout.shape, shape, axes)


def _or_float32(x: Layout) -> tuple[DType | str, ...]:
    return tuple(dict.fromkeys((x.dtype, FLOAT32)))


def _check_by_token(given: Layouts, tokens: list[int], rows: list[int], d_state: int) -> None:
    """Checks dt, z, out, B and C."""
    x, A, B = given["x"], given["A"], given["B"]
    assert x is not None and A is not None and B is not None
    for name in ("dt", "z", "out"):
        if (layout := given[name]) is not None:
            wanted = {"dt": _or_float32(x), "z": tuple(dict.fromkeys((x.dtype, B.dtype)))}.get(name, (x.dtype,))
            checks.dtype(name, layout.dtype, wanted)
            checks.shape(name, layout.shape, x.shape, "the shape of x")
    groups = [B.shape[-2]] if len(rows) == 2 and len(B.shape) >= 2 else []
    for name in ("B", "C"):
        layout = given[name]
        assert layout is not None
        dtypes = dict.fromkeys((x.dtype, A.dtype) if name == "B" else (B.dtype,))
        checks.dtype(name, layout.dtype, tuple(dtypes))
        axes = "as x before its heads, ngroups, d_state" if len(rows) == 2 else "as x before dim, d_state"
        checks.shape(name, layout.shape, (*tokens, *groups, d_state), axes)
    if groups and (groups[0] == 0 or rows[0] % groups[0]):
        raise ValueError(message("ngroups of B", groups[0], f"a divisor of nheads, {rows[0]}"))


def _check_index_arrays(given: Layouts, sequences: int, pool_slots: int) -> None:
    """Checks the arrays of slots."""
    sources, accepted, column = given["state_batch_indices"], given["num_accepted_tokens"], given["state_column"]
    for name in ("state_batch_indices", "dst_state_batch_indices"):
        if (layout := given[name]) is not None:
            checks.dtype(name, layout.dtype, INDICES)
            if len(layout.shape) not in (1, 2):
                raise ValueError(message(name, f"shape {layout.shape}", "1 or 2 axes (batch[, columns])"))
            if layout.shape[0] < sequences:
                raise ValueError(message(name, f"shape {layout.shape}", f"at least {sequences} rows, one a sequence"))
            if layout.shape[1:] == (0,):
                raise ValueError(message(f"columns of {name}", 0, "at least 1"))
    for name in ("num_accepted_tokens", "intermediate_state_indices", "state_column"):
        slots.by_sequence(name, given[name], sequences, "sequences")
    slots.by_sequence("has_initial_state", given["has_initial_state"], sequences, "sequences", (BOOL,))
    has_columns = sources is not None and len(sources.shape) == 2
    for name in ("num_accepted_tokens", "state_column"):
        if given[name] is not None and not has_columns:
            wanted = "None unless state_batch_indices has 2 axes (batch, columns)"
            raise ValueError(message(name, "an array", wanted))
    if accepted is not None:
        if column is not None:
            raise ValueError(message("state_column", "an array", "None beside num_accepted_tokens"))
        targets = given["dst_state_batch_indices"]
        if targets is not None and len(targets.shape) != 2:
            wanted = "2 axes (batch, columns) beside num_accepted_tokens"
            raise ValueError(message("dst_state_batch_indices", f"shape {targets.shape}", wanted))
    if sources is None and pool_slots < sequences:
        wanted = f"at least {sequences}, one a sequence, or state_batch_indices"
        raise ValueError(message("slots of state", pool_slots, wanted))


def _check_parents(given: Layouts, tokens: list[int]) -> None:
    """Checks parents, and what it cannot be beside."""
    parents, targets = given["parents"], given["dst_state_batch_indices"]
    if parents is None:
        return
    for name in ("cu_seqlens", "num_accepted_tokens"):
        if given[name] is not None:
            raise ValueError(message("parents", "an array", f"None beside {name}"))
    if targets is not None and len(targets.shape) == 2:
        raise ValueError(message("parents", "an array", "None beside a dst_state_batch_indices of 2 axes"))
    if given["intermediate_states_buffer"] is None:
        raise ValueError(message("parents", "an array", "None unless intermediate_states_buffer is given"))
    batch, count = (*tokens, 1)[:2]
    trees.check(parents, batch, count, "batch, tokens of x")


def _check_buffer(given: Layouts, tokens: int, pool_slots: int, sequences: int) -> None:
    """Checks the buffer for the state after every token."""
    buffer, state = given["intermediate_states_buffer"], given["state"]
    assert state is not None
    if buffer is None:
        if given["intermediate_state_indices"] is not None:
            wanted = "None unless intermediate_states_buffer is given"
            raise ValueError(message("intermediate_state_indices", "an array", wanted))
        return
    checks.dtype("intermediate_states_buffer", buffer.dtype, (state.dtype,))
    shape = (*buffer.shape[:2], *state.shape[1:])
    checks.shape("intermediate_states_buffer", buffer.shape, shape, "rows, steps, and as state behind its slots")
    rows, steps = buffer.shape[:2]
    checks.between("steps of intermediate_states_buffer", steps, 0, MAX_DIVIDEND)
    if given["cu_seqlens"] is None and steps < tokens:
        raise ValueError(message("steps of intermediate_states_buffer", steps, f"at least {tokens}, the tokens of x"))
    wanted_rows = sequences if given["state_batch_indices"] is None else pool_slots
    if given["intermediate_state_indices"] is None and rows < wanted_rows:
        because = f"at least {wanted_rows}, one a slot, or intermediate_state_indices"
        raise ValueError(message("rows of intermediate_states_buffer", rows, because))


def _canonical(name: str, layout: Layout | None, given: Layouts) -> Layout | None:
    """The layout of an argument, with axes of length 1 for heads, batch or tokens where the call has none."""
    state, x = given["state"], given["x"]
    assert state is not None and x is not None
    if layout is None or name not in ("state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias", "out", "state_scale",
                                      "intermediate_states_buffer", "intermediate_state_scales"):  # fmt: skip
        return layout
    has_heads = len(state.shape) == 4
    behind = {scales: states for states, scales in SCALES.items()}.get(name)
    if behind is not None and (states := given[behind]) is not None and len(layout.shape) == len(states.shape):
        layout = layout._replace(shape=layout.shape[:-1], strides=layout.strides[:-1])
    if name in ("x", "dt", "z", "out", "B", "C"):
        axes = [] if has_heads else [len(layout.shape) - 1]
        if given["cu_seqlens"] is not None:
            axes.append(0)
        elif len(x.shape) == len(state.shape) - 1:
            axes.append(1)
    else:
        axes = [] if has_heads else [1 if name.startswith("state") else 2 if name.startswith("intermediate") else 0]
    for axis in axes:
        layout = layout.with_axis(axis)
    return layout


def check_contents(o: Operands, read: Callable[[str], Any]) -> None:
    """ValueError when what index arrays contain cannot be right."""
    lengths = np.full(o.sequences, o.x.shape[1])
    if (starts := read("cu_seqlens")) is not None:
        checks.boundaries("cu_seqlens", starts, o.x.shape[1])
        lengths = np.diff(starts)
    pool_slots = o.state.shape[0]

    def read_rows(name: str) -> Any:
        array = read(name)
        return None if array is None else array[: o.sequences]

    sources, targets = read_rows("state_batch_indices"), read_rows("dst_state_batch_indices")
    own = slots.start_slots(sources, read("state_column"), o.sequences)
    if (accepted := read_rows("num_accepted_tokens")) is not None:
        columns = sources.shape[1]
        if (many := accepted[(lengths > 0) & (accepted > columns)]).size:
            wanted = f"at most {columns}, the columns of state_batch_indices"
            raise ValueError(message("num_accepted_tokens", many[0], wanted))
        own = sources[np.arange(o.sequences), np.clip(accepted, 1, columns) - 1]
    live = lengths > 0
    if sources is not None:
        live &= ~slots.are_padding(own, o.pad_slot_id)
    checks.inside("state_batch_indices", own[live], pool_slots)
    if not o.disable_state_update:
        name = "state_batch_indices" if targets is None else "dst_state_batch_indices"
        written = targets if targets is not None else own if accepted is None else sources
        # A row per sequence, a column per token.
        used = written[:, None] if written.ndim == 1 else written
        column = np.arange(used.shape[1])
        is_target = True if written is own and sources is None else ~slots.are_padding(used, o.pad_slot_id)
        is_used = live[:, None] & is_target & ((column < lengths[:, None]) | (written.ndim == 1))
        checks.slots(name, used[is_used], pool_slots)
        sequence = np.broadcast_to(np.arange(o.sequences)[:, None], used.shape)[is_used]
        starts_there = live if o.has_initial_state is None else live & read_rows("has_initial_state")
        checks.not_read_by_others(name, used[is_used], sequence, own[starts_there], np.flatnonzero(starts_there))
    if o.intermediate_states_buffer is not None:
        rows = read_rows("intermediate_state_indices")
        name = "state_batch_indices" if rows is None else "intermediate_state_indices"
        used = (own if rows is None else rows)[live]
        checks.rows(name, used, o.intermediate_states_buffer.shape[0], o.pad_slot_id)
    if o.parents is not None:
        trees.check_contents(read_rows("parents")[live])


def _reference(o: Operands, arrays: Arrays, seed: int | None = None) -> None:
    named = {name: array for name, array in arrays.items() if name != "out"}
    if seed is not None:
        named["rand_seed"] = seed
    call = reference.SelectiveStateUpdate(
        **named,
        dt_softplus=o.dt_softplus,
        disable_state_update=o.disable_state_update,
        pad_slot_id=o.pad_slot_id,
        philox_rounds=o.philox_rounds,
    )
    written = call.is_computed if o.keeps_padding else ...
    out = call.write(*(arrays[name] for name in reference.UPDATED))
    arrays["out"][written] = out[written].astype(arrays["out"].dtype)


_update = Operation(
    (
        *("state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias"),
        *("state_batch_indices", "dst_state_batch_indices", "intermediate_states_buffer"),
        *("intermediate_state_indices", "num_accepted_tokens", "cu_seqlens"),
        *("state_column", "has_initial_state", "parents", "rand_seed"),
        *("state_scale", "intermediate_state_scales"),
    ),
    ("out",),
    name="selective_state_update",
    check=_check,
    plan=plan,
    reference=_reference,
    contents=check_contents,
)
