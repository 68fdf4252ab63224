"""The arguments of a decode step of a state space model: checked, and brought into one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cuconv import checks
from cuconv.dtypes import FLOAT32, FLOATS, INDICES, INT64, DType
from cuconv.errors import message
from cuconv.kernels.selective_state_update import MAX_D_STATE, POINTERS
from cuconv.launch import MAX_DIVIDEND
from cuconv.layout import Layout, dense

ARGUMENTS = POINTERS
"""The arrays of a call, in the order of the kernel's pointers."""

MAX_TOKENS = 2**30


class Operands(NamedTuple):
    """The layouts of one valid call; None stands for an argument that is absent.

    Whatever has no heads has one here. Packed tokens are those of one batch entry.
    """

    state: Layout
    """(slots, nheads, headdim, d_state)."""
    x: Layout
    """(batch, tokens, nheads, headdim), and so dt, z and out."""
    dt: Layout
    A: Layout
    """(nheads, headdim, d_state)."""
    B: Layout
    """(batch, tokens, ngroups, d_state), and so C."""
    C: Layout
    D: Layout | None
    """(nheads, headdim), and so dt_bias."""
    z: Layout | None
    dt_bias: Layout | None
    state_batch_indices: Layout | None
    """(batch,) or (batch, columns), and so dst_state_batch_indices."""
    dst_state_batch_indices: Layout | None
    intermediate_states_buffer: Layout | None
    """(rows, steps, nheads, headdim, d_state)."""
    intermediate_state_indices: Layout | None
    num_accepted_tokens: Layout | None
    cu_seqlens: Layout | None
    rand_seed: Layout | None
    out: Layout
    dt_softplus: bool
    disable_state_update: bool
    pad_slot_id: int
    seed: int | None
    philox_rounds: int

    @property
    def sequences(self) -> int:
        """How many there are, empty ones too."""
        return self.x.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def targets(self) -> Layout | None:
        """The slots of the states after every token; None when only the last one is stored."""
        targets = self.dst_state_batch_indices
        if targets is None and self.num_accepted_tokens is not None:
            targets = self.state_batch_indices
        return targets if targets is not None and len(targets.shape) == 2 else None

    @property
    def stochastic(self) -> bool:
        """States are rounded at random."""
        return self.seed is not None or self.rand_seed is not None


def operands(
    layouts: Sequence[Layout | None],
    dt_softplus: bool,
    disable_state_update: bool,
    pad_slot_id: int,
    seed: int | None,
    philox_rounds: int,
) -> Operands:
    """What a call is planned from; `layouts` are in the order of ARGUMENTS. Raises for what is wrong."""
    given = dict(zip(ARGUMENTS, layouts, strict=True))
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
    tokens = _check_tokens(given, rows)
    _check_parameters(given, rows, d_state)
    _check_by_token(given, tokens, rows, d_state)
    sequences = tokens[0] if given["cu_seqlens"] is None else given["cu_seqlens"].shape[0] - 1
    _check_indices_arrays(given, sequences, slots)
    _check_buffer(given, tokens[1] if len(tokens) > 1 else 1, slots, sequences)
    stochastic = seed is not None or given["rand_seed"] is not None
    if stochastic and state.dtype is FLOAT32:
        raise ValueError(message("rand_seed", "a seed", "None for a float32 state, which is not rounded"))
    if given["rand_seed"] is not None:
        checks.dtype("rand_seed", given["rand_seed"].dtype, (INT64,))
        if given["rand_seed"].size != 1:
            raise ValueError(message("rand_seed", f"shape {given['rand_seed'].shape}", "one element"))
    for argument, layout in given.items():
        if layout is not None:
            checks.device(argument, layout.device, state.device, "state")
    for argument in ("state", "intermediate_states_buffer", "out"):
        if (layout := given[argument]) is not None:
            checks.not_self_overlapping(argument, layout.shape, layout.strides)
    given["out"] = given["out"] or dense(x.shape, tuple(range(len(x.shape))), x)
    canonical = (_canonical(name, layout, given) for name, layout in given.items())
    return Operands._make((*canonical, dt_softplus, disable_state_update, pad_slot_id, seed, philox_rounds))


def _check_tokens(given: dict[str, Layout | None], rows: list[int]) -> list[int]:
    """The axes of x before those of the state's rows: tokens, or batch and perhaps tokens."""
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
        checks.rank("cu_seqlens", cu_seqlens.shape, "sequences + 1")
        checks.dtype("cu_seqlens", cu_seqlens.dtype, INDICES)
        checks.between("sequences of cu_seqlens", cu_seqlens.shape[0] - 1, 0, MAX_TOKENS)
    return tokens


def _check_parameters(given: dict[str, Layout | None], rows: list[int], d_state: int) -> None:
    """A, D and dt_bias."""
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


def _check_by_token(given: dict[str, Layout | None], tokens: list[int], rows: list[int], d_state: int) -> None:
    """dt, z, out, B and C."""
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


def _check_indices_arrays(given: dict[str, Layout | None], sequences: int, slots: int) -> None:
    """The slots that sequences have."""
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


def _check_buffer(given: dict[str, Layout | None], tokens: int, slots: int, sequences: int) -> None:
    """The buffer for the state after every token."""
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
    if given["cu_seqlens"] is None and steps < tokens:
        raise ValueError(message("steps of intermediate_states_buffer", steps, f"at least {tokens}, the tokens of x"))
    wanted_rows = sequences if given["state_batch_indices"] is None else slots
    if given["intermediate_state_indices"] is None and rows < wanted_rows:
        because = f"at least {wanted_rows}, one a slot, or intermediate_state_indices"
        raise ValueError(message("rows of intermediate_states_buffer", rows, because))


def _canonical(name: str, layout: Layout | None, given: dict[str, Layout | None]) -> Layout | None:
    """An array with an axis for heads, and for a batch and tokens where it has any."""
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
