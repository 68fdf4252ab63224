"""The arrays that both selective scans take, and their checks."""

from __future__ import annotations

from typing import NamedTuple

from cuconv.runtime import checks
from cuconv.runtime.dtypes import FLOAT32, FLOATS, DType
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout, dense, order_like
from cuconv.runtime.plan import Layouts
from cuconv.selective_scan.kernels import MAX_STATE, MAX_TOKENS


class Phases(NamedTuple):
    """How rows of contiguous tokens lie in vectors, and copies of B and C whose rows lie alike (plan_phases.py)."""

    period: int
    """Channels from one channel to the next one with the same phase, a power of two."""
    first: int
    """The phase of the first copies."""
    step: int
    """Elements from one copy to another, divided by the difference of their phases."""


class Inputs(NamedTuple):
    """The layouts of the arrays that every scan takes, and of its result; None for one that is absent.

    Packed tokens are the one row of a batch.
    """

    u: Layout
    """(batch, dim, tokens)."""
    delta: Layout
    """The shape of u."""
    A: Layout
    """(dim, d_state)."""
    B: Layout
    """(batch, ngroups, d_state, tokens), or a constant (dim, d_state)."""
    C: Layout
    """The shape of B, or a constant (dim, d_state)."""
    D: Layout | None
    """(dim,)."""
    z: Layout | None
    """The shape of u."""
    delta_bias: Layout | None
    """(dim,)."""
    out: Layout
    """The shape of u."""
    delta_softplus: bool
    phases: Phases | None = None
    """Given where rows have phases; B and C are the first copies then."""

    @property
    def d_state(self) -> int:
        """States per channel."""
        return self.A.shape[1]

    @property
    def groups(self) -> int:
        """Groups of channels that share B and C; 1 where both are constants."""
        return max([matrix.shape[1] for matrix in (self.B, self.C) if is_variable(matrix)], default=1)


def is_variable(matrix: Layout) -> bool:
    """Whether B or C depends on the token."""
    return len(matrix.shape) == 4


def inputs(given: Layouts, axes: str, delta_softplus: bool) -> Inputs:
    """The arrays of a call after their checks; `axes` names those of u: "batch, dim, seqlen" or "dim, total"."""
    u = _required(given, "u", axes)
    checks.rank("u", u.shape, axes)
    checks.dtype("u", u.dtype, FLOATS)
    *batch, dim, tokens = u.shape
    checks.between("batch of u", batch[0] if batch else 1, 0, MAX_DIVIDEND)
    checks.between("dim of u", dim, 0, MAX_DIVIDEND)
    checks.between(f"{axes.rpartition(', ')[2]} of u", tokens, 0, MAX_TOKENS)
    delta = _required(given, "delta", axes)
    for name in ("delta", "z", "out"):
        if (layout := given[name]) is not None:
            checks.dtype(name, layout.dtype, (u.dtype,))
            checks.shape(name, layout.shape, u.shape, f"{axes} of u")
    A = _required(given, "A", "dim, d_state")
    checks.rank("A", A.shape, "dim, d_state")
    checks.dtype("A", A.dtype, (FLOAT32,))
    d_state = A.shape[1]
    checks.between("d_state of A", d_state, 1, MAX_STATE)
    checks.shape("A", A.shape, (dim, d_state), "dim of u, d_state")
    for name in ("D", "delta_bias"):
        if (layout := given[name]) is not None:
            checks.dtype(name, layout.dtype, _or_float32(u))
            checks.shape(name, layout.shape, (dim,), "dim of u")
    matrix_axes = "batch, d_state, seqlen" if batch else "d_state, total"
    B, C = (_matrix(name, _required(given, name, matrix_axes), u, A) for name in ("B", "C"))
    if is_variable(B) and is_variable(C) and B.shape[1] != C.shape[1]:
        raise ValueError(message("ngroups of C", C.shape[1], f"{B.shape[1]}, that of B"))
    z, out = given["z"], given["out"] or dense(u.shape, order_like(u), u)
    return Inputs(
        u=_with_batch(u),
        delta=_with_batch(delta),
        A=A,
        B=B,
        C=C,
        D=given["D"],
        z=None if z is None else _with_batch(z),
        delta_bias=given["delta_bias"],
        out=_with_batch(out),
        delta_softplus=delta_softplus,
    )


def _with_batch(layout: Layout) -> Layout:
    """(dim, total) as the one row of a batch; (batch, dim, seqlen) as it is."""
    if len(layout.shape) == 3:
        return layout
    return layout._replace(shape=(1, *layout.shape), strides=(0, *layout.strides))


def _matrix(name: str, matrix: Layout, u: Layout, A: Layout) -> Layout:
    """B or C after its checks, with axes for the batch and for groups unless it is a constant."""
    *batch, dim, tokens = u.shape
    rank, d_state = len(matrix.shape), A.shape[1]
    if rank == 2 and batch:
        checks.dtype(name, matrix.dtype, _or_float32(u))
        checks.shape(name, matrix.shape, (dim, d_state), "dim of u, d_state of A")
        return matrix
    checks.dtype(name, matrix.dtype, (u.dtype,))
    has_groups = rank == len(batch) + 3
    groups = matrix.shape[len(batch)] if has_groups else 1
    axes = ("batch of u, " * len(batch)) + ("ngroups, " * has_groups) + "d_state of A, tokens of u"
    checks.shape(name, matrix.shape, (*batch, *(groups,) * has_groups, d_state, tokens), axes)
    if groups < 1 or dim % groups:
        raise ValueError(message(f"ngroups of {name}", groups, f"a divisor of {dim} (dim of u)"))
    batch_stride = matrix.strides[:1] if batch else (0,)
    inner = matrix.strides[len(batch) :]
    strides = (*batch_stride, *inner) if has_groups else (*batch_stride, 0, *inner)
    return matrix._replace(shape=(*(batch or (1,)), groups, d_state, tokens), strides=strides)


def _required(given: Layouts, name: str, axes: str) -> Layout:
    layout = given[name]
    if layout is None:
        raise TypeError(message(name, "None", f"an array ({axes})"))
    return layout


def _or_float32(u: Layout) -> tuple[DType | str, ...]:
    return tuple(dict.fromkeys((u.dtype, FLOAT32)))
