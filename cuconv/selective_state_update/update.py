"""The decode step of selective state space models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cuconv.runtime import checks
from cuconv.runtime.call import NO_NUMBERS, Arrays, Checked, Layouts, Operation
from cuconv.runtime.dtypes import FLOAT32, FLOATS, INDICES, INT64, DType
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout, dense
from cuconv.selective_state_update import reference
from cuconv.selective_state_update.kernels import MAX_D_STATE
from cuconv.selective_state_update.plan import Operands, plan

MAX_ROUNDS = 20
"""Rounds of Philox at most."""

MAX_TOKENS = 2**30
"""Tokens of a call at most, and sequences: the kernel counts them in 32 bits, and a little beyond the last one."""


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
    disable_state_update: bool = False,
    pad_slot_id: int = -1,
    rand_seed: Any = None,
    philox_rounds: int = 10,
    out: Any = None,
) -> Any:
    """The recurrence of Mamba and Mamba-2 for the next tokens of sequences, with the meaning it has in mamba_ssm.

    With the sequence's state S of (headdim, d_state) in every head h, for one token after the other:

        dt' = softplus(dt + dt_bias), or without dt_softplus dt + dt_bias
        S = S * exp(dt' * A) + dt' * B * x
        y = sum over d_state of S * C, + D * x
        out = y * z * sigmoid(z)

    in float32 (Gu and Dao, "Mamba", 2023, and Dao and Gu, "Transformers are SSMs", 2024). Where A, dt and dt_bias are
    the same for all rows of a head, by strides of 0 as Mamba-2 passes them, the exponential is computed once per head.

    x may hold several tokens per sequence, or with cu_seqlens packed sequences of any lengths. Arrays are NumPy, CuPy,
    torch or DLPack ones, all of one kind and on one device, of any strides. The kernel runs on the caller's
    current stream; nothing is awaited but under CUCONV_CHECK=1, which reads index arrays back and checks them.

    Args:
        state: (slots, dim, d_state) or (slots, nheads, headdim, d_state), float32, float16 or bfloat16, d_state 1 to
            512; updated in place.
        x: (batch, dim) or (batch, nheads, headdim); also, with heads, (batch, tokens, nheads, headdim), or (tokens,
            nheads, headdim) packed. Any of these dtypes.
        dt: shape of x; x's dtype or float32.
        A: (dim, d_state) or (nheads, headdim, d_state); x's dtype or float32.
        B, C: (batch, d_state), with heads (batch, [tokens,] ngroups, d_state) or (tokens, ngroups, d_state) packed;
            x's dtype. nheads is a multiple of ngroups.
        D, dt_bias: (dim,) or (nheads, headdim); x's dtype or float32. Zeros when None.
        z: shape and dtype of x; no gate when None.
        dt_softplus: apply softplus, linear above 20.
        state_batch_indices: (batch,), int32 or int64: the slots that sequences start from, their numbers when None. A
            sequence with a slot that is negative, pad_slot_id or outside the pool gives 0, and no state is read or
            written for it. (batch, columns) with num_accepted_tokens.
        dst_state_batch_indices: (batch,), int32 or int64: the slots for the states after the last token, where they
            came from when None. (batch, columns): a slot for the state after each token; states after further tokens
            are not stored, and neither are those with an index that is no slot.
        intermediate_states_buffer: (rows, steps, ...) and as state behind its slots, state's dtype: receives the state
            after each token, too. steps is at least tokens; for packed sequences states after further tokens are not
            stored.
        intermediate_state_indices: (batch,), int32 or int64: the sequences' rows there, the slots that they start from
            when None. A row outside is not written. Two sequences must not have one row.
        num_accepted_tokens: (batch,), int32 or int64, of speculative decoding: sequence i starts from slot
            state_batch_indices[i, num_accepted_tokens[i] - 1] (0 counts as 1), and the states after each of its tokens
            go to the slots in dst_state_batch_indices[i], or else state_batch_indices[i].
        cu_seqlens: (sequences + 1,), int32 or int64, from 0 up to at most tokens, never falling. Padding, tokens of no
            sequence, gives 0.
        disable_state_update: leave state as it is.
        pad_slot_id: the slot number of sequences that only fill a batch. Only given slot numbers are compared with it.
        rand_seed: round states of bfloat16 or float16 up or down at random, so that their expected value is right: a
            seed of 64 bits, or an int64 array of one element. Random numbers are Philox-4x32's (Salmon et
            al., "Parallel random numbers: as easy as 1, 2, 3", 2011) for the element's number in its slot, the
            sequence's in the batch and the token's in the sequence: the same on every GPU.
        philox_rounds: 1 to 20.
        out: shape and dtype of x: where to write the result. It may be x itself, but must not overlap any other
            argument.

    Returns:
        out, contiguous: of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit, or that has no meaning beside another one. Nothing has been
            launched or written then.
    """
    pad_slot_id = checks.integer("pad_slot_id", pad_slot_id)
    philox_rounds = checks.integer("philox_rounds", philox_rounds)
    checks.between("philox_rounds", philox_rounds, 1, MAX_ROUNDS)
    seed = None
    if rand_seed is not None and isinstance(rand_seed, int | np.integer):
        if isinstance(rand_seed, bool):
            checks.integer("rand_seed", rand_seed)
        checks.between("rand_seed", int(rand_seed), 0, 2**64 - 1)
        seed, rand_seed = int(rand_seed), None
    given = (
        *(state, x, dt, A, B, C, D, z, dt_bias, state_batch_indices, dst_state_batch_indices),
        *(intermediate_states_buffer, intermediate_state_indices, num_accepted_tokens, cu_seqlens, rand_seed, out),
    )
    softplus = checks.flag("dt_softplus", dt_softplus)
    is_read_only = checks.flag("disable_state_update", disable_state_update)
    options = (softplus, is_read_only, pad_slot_id, seed is not None, philox_rounds)
    (result,) = _update(given, options, late=NO_NUMBERS if seed is None else {"seed": seed})
    return result


def _check(
    given: Layouts,
    dt_softplus: bool,
    disable_state_update: bool,
    pad_slot_id: int,
    has_seed: bool,
    philox_rounds: int,
) -> Checked[Operands]:
    state, x = given["state"], given["x"]
    for name in ("x", "dt", "A", "B", "C"):
        if given[name] is None:
            raise TypeError(message(name, "None", "an array"))
    assert state is not None and x is not None
    if len(state.shape) not in (3, 4):
        raise ValueError(message("state", f"shape {state.shape}", "3 or 4 axes (slots[, nheads], headdim, d_state)"))
    checks.dtype("state", state.dtype, FLOATS)
    checks.dtype("x", x.dtype, FLOATS)
    slots, *rows, d_state = state.shape
    checks.between("slots of state", slots, 0, MAX_DIVIDEND)
    checks.between("d_state of state", d_state, 1, MAX_D_STATE)
    for axis, length in zip(("headdim", "nheads") if len(rows) == 2 else ("dim",), reversed(rows), strict=True):
        checks.between(f"{axis} of state", length, 0, MAX_DIVIDEND)
    tokens = _check_tokens(given, rows)
    _check_parameters(given, rows, d_state)
    _check_by_token(given, tokens, rows, d_state)
    sequences = tokens[0] if given["cu_seqlens"] is None else given["cu_seqlens"].shape[0] - 1
    _check_index_arrays(given, sequences, slots)
    _check_buffer(given, tokens[1] if len(tokens) > 1 else 1, slots, sequences)
    stochastic = has_seed or given["rand_seed"] is not None
    if stochastic and state.dtype is FLOAT32:
        raise ValueError(message("rand_seed", "a seed", "None for a float32 state, which is not rounded"))
    if given["rand_seed"] is not None:
        checks.dtype("rand_seed", given["rand_seed"].dtype, (INT64,))
        if given["rand_seed"].size != 1:
            raise ValueError(message("rand_seed", f"shape {given['rand_seed'].shape}", "one element"))
    out = given["out"] or dense(x.shape, tuple(range(len(x.shape))), x)
    given = {**given, "out": out}
    canonical = {name: _canonical(name, layout, given) for name, layout in given.items()}
    operands = Operands(
        **canonical,  # type: ignore[arg-type]
        dt_softplus=dt_softplus,
        disable_state_update=disable_state_update,
        pad_slot_id=pad_slot_id,
        has_seed=has_seed,
        philox_rounds=philox_rounds,
    )
    updated = ("intermediate_states_buffer", "state")[: 2 - disable_state_update]
    return Checked(operands, {"out": out}, updated=updated, in_place=("out", "x"))


def _check_tokens(given: Layouts, rows: list[int]) -> list[int]:
    """Checks x and cu_seqlens; returns the sizes of x before its rows: tokens, or batch and perhaps tokens."""
    x, cu_seqlens = given["x"], given["cu_seqlens"]
    assert x is not None
    wanted = (1, 2) if len(rows) == 2 and cu_seqlens is None else (1,)
    tokens = list(x.shape[: -len(rows)])
    inner = "nheads, headdim" if len(rows) == 2 else "dim"
    if len(x.shape) - len(rows) not in wanted or list(x.shape[-len(rows) :]) != rows:
        first = "tokens" if cu_seqlens is not None else "batch[, tokens]" if len(rows) == 2 else "batch"
        raise ValueError(message("x", f"shape {x.shape}", f"({first}, {inner}), {inner} as state has them: {rows}"))
    checks.between("batch of x", tokens[0], 0, MAX_TOKENS)
    checks.between("tokens of x", tokens[-1], 0, MAX_TOKENS)
    if cu_seqlens is not None:
        if len(rows) != 2:
            raise ValueError(message("cu_seqlens", "an array", "None for states without heads"))
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
    x, B = given["x"], given["B"]
    assert x is not None and B is not None
    for name in ("dt", "z", "out"):
        if (layout := given[name]) is not None:
            checks.dtype(name, layout.dtype, _or_float32(x) if name == "dt" else (x.dtype,))
            checks.shape(name, layout.shape, x.shape, "the shape of x")
    groups = [B.shape[-2]] if len(rows) == 2 and len(B.shape) >= 2 else []
    for name in ("B", "C"):
        layout = given[name]
        assert layout is not None
        checks.dtype(name, layout.dtype, (x.dtype,))
        axes = "as x before its heads, ngroups, d_state" if len(rows) == 2 else "batch of x, d_state"
        checks.shape(name, layout.shape, (*tokens, *groups, d_state), axes)
    if groups and (groups[0] == 0 or rows[0] % groups[0]):
        raise ValueError(message("ngroups of B", groups[0], f"a divisor of nheads, {rows[0]}"))


def _check_index_arrays(given: Layouts, sequences: int, slots: int) -> None:
    """Checks the arrays of slots."""
    sources, accepted = given["state_batch_indices"], given["num_accepted_tokens"]
    for name in ("state_batch_indices", "dst_state_batch_indices"):
        if (layout := given[name]) is not None:
            checks.dtype(name, layout.dtype, INDICES)
            if len(layout.shape) not in (1, 2):
                raise ValueError(message(name, f"shape {layout.shape}", "1 or 2 axes (batch[, columns])"))
            checks.shape(name, layout.shape, (sequences, *layout.shape[1:]), "sequences[, columns]")
            if layout.shape[1:] == (0,):
                raise ValueError(message(f"columns of {name}", 0, "at least 1"))
    for name in ("num_accepted_tokens", "intermediate_state_indices"):
        if (layout := given[name]) is not None:
            checks.dtype(name, layout.dtype, INDICES)
            checks.shape(name, layout.shape, (sequences,), "sequences")
    has_columns = sources is not None and len(sources.shape) == 2
    if has_columns and accepted is None:
        wanted = "1 axis (batch), or num_accepted_tokens, which says what column to start from"
        raise ValueError(message("state_batch_indices", "2 axes", wanted))
    if accepted is not None:
        if not has_columns:
            wanted = "None unless state_batch_indices has 2 axes (batch, columns)"
            raise ValueError(message("num_accepted_tokens", "an array", wanted))
        targets = given["dst_state_batch_indices"]
        if targets is not None and len(targets.shape) != 2:
            wanted = "2 axes (batch, columns) beside num_accepted_tokens"
            raise ValueError(message("dst_state_batch_indices", f"shape {targets.shape}", wanted))
    if sources is None and slots < sequences:
        wanted = f"at least {sequences}, one a sequence, or state_batch_indices"
        raise ValueError(message("slots of state", slots, wanted))


def _check_buffer(given: Layouts, tokens: int, slots: int, sequences: int) -> None:
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
    wanted_rows = sequences if given["state_batch_indices"] is None else slots
    if given["intermediate_state_indices"] is None and rows < wanted_rows:
        because = f"at least {wanted_rows}, one a slot, or intermediate_state_indices"
        raise ValueError(message("rows of intermediate_states_buffer", rows, because))


def _canonical(name: str, layout: Layout | None, given: Layouts) -> Layout | None:
    """An array with axes of length 1 for the heads, batch or tokens that a call has none of."""
    state, x = given["state"], given["x"]
    assert state is not None and x is not None
    if layout is None or name not in ("state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias", "out",
                                      "intermediate_states_buffer"):  # fmt: skip
        return layout
    has_heads = len(state.shape) == 4
    if name in ("x", "dt", "z", "out", "B", "C"):
        axes = [] if has_heads else [1]
        if given["cu_seqlens"] is not None:
            axes.insert(0, 0)
        elif len(x.shape) < 4:
            axes.insert(0, 1)
    else:
        axes = [] if has_heads else [{"state": 1, "intermediate_states_buffer": 2}.get(name, 0)]
    shape, strides = list(layout.shape), list(layout.strides)
    for axis in axes:
        shape.insert(axis, 1)
        strides.insert(axis, 0)
    return layout._replace(shape=tuple(shape), strides=tuple(strides))


def _check_contents(o: Operands, read: Callable[[str], Any]) -> None:
    """ValueError when what index arrays contain cannot be right."""
    lengths = np.full(o.sequences, o.x.shape[1])
    if (starts := read("cu_seqlens")) is not None:
        checks.boundaries("cu_seqlens", starts, o.x.shape[1])
        lengths = np.diff(starts)
    slots, sources, targets = o.state.shape[0], read("state_batch_indices"), read("dst_state_batch_indices")
    own = np.arange(o.sequences) if sources is None else sources
    if (accepted := read("num_accepted_tokens")) is not None:
        columns = sources.shape[1]
        if (many := accepted[(lengths > 0) & (accepted > columns)]).size:
            wanted = f"at most {columns}, the columns of state_batch_indices"
            raise ValueError(message("num_accepted_tokens", many[0], wanted))
        own = sources[np.arange(o.sequences), np.clip(accepted, 1, columns) - 1]
    live = lengths > 0
    if sources is not None:
        live &= own != o.pad_slot_id
    checks.inside("state_batch_indices", own[live], slots)
    if not o.disable_state_update:
        name = "state_batch_indices" if targets is None else "dst_state_batch_indices"
        written = targets if targets is not None else own if accepted is None else sources
        # A row per sequence, a column per token.
        used = written[:, None] if written.ndim == 1 else written
        column = np.arange(used.shape[1])
        is_target = True if written is own and sources is None else used != o.pad_slot_id
        is_used = live[:, None] & is_target & ((column < lengths[:, None]) | (written.ndim == 1))
        checks.slots(name, used[is_used], slots)
        sequence = np.broadcast_to(np.arange(o.sequences)[:, None], used.shape)[is_used]
        checks.not_read_by_others(name, used[is_used], sequence, own[live], np.flatnonzero(live))
    if o.intermediate_states_buffer is not None:
        rows = read("intermediate_state_indices")
        name = "state_batch_indices" if rows is None else "intermediate_state_indices"
        used = (own if rows is None else rows)[live]
        checks.rows(name, used, o.intermediate_states_buffer.shape[0], o.pad_slot_id)


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
    out = call.write(arrays["state"], arrays["intermediate_states_buffer"])
    arrays["out"][...] = out.astype(arrays["out"].dtype)


_update = Operation(
    (
        *("state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias"),
        *("state_batch_indices", "dst_state_batch_indices", "intermediate_states_buffer"),
        *("intermediate_state_indices", "num_accepted_tokens", "cu_seqlens", "rand_seed"),
    ),
    ("out",),
    name="selective_state_update",
    check=_check,
    plan=plan,
    reference=_reference,
    contents=_check_contents,
)
