"""What the selective scans share: checks of the arguments that both have."""

from __future__ import annotations

from cuconv import checks
from cuconv.dtypes import FLOAT32, FLOATS, DType
from cuconv.errors import message
from cuconv.kernels.scan import MAX_STATE, MAX_TOKENS
from cuconv.launch import MAX_DIVIDEND
from cuconv.layout import Layout

SHARED = ("delta", "A", "B", "C", "D", "z", "delta_bias")
"""The arrays that every scan takes besides u."""

Named = dict[str, Layout | None]


def rows(given: Named, axes: str) -> tuple[int, int, int]:
    """(batch, dim, tokens) of u, whose axes are called so, after checks of u and of all whose shapes follow from it."""
    u = required(given, "u", axes)
    checks.rank("u", u.shape, axes)
    checks.dtype("u", u.dtype, FLOATS)
    batch, dim, tokens = u.shape if len(u.shape) == 3 else (1, *u.shape)
    checks.between("batch of u", batch, 0, MAX_DIVIDEND)
    checks.between("dim of u", dim, 0, MAX_DIVIDEND)
    checks.between(f"{axes.rpartition(', ')[2]} of u", tokens, 0, MAX_TOKENS)
    required(given, "delta", axes)
    for name in ("delta", "z", "out"):
        if (layout := given[name]) is not None:
            checks.dtype(name, layout.dtype, (u.dtype,))
            checks.shape(name, layout.shape, u.shape, f"{axes} of u")
    A = required(given, "A", "dim, d_state")
    checks.rank("A", A.shape, "dim, d_state")
    checks.dtype("A", A.dtype, (FLOAT32,))
    d_state = A.shape[1]
    checks.between("d_state of A", d_state, 1, MAX_STATE)
    checks.shape("A", A.shape, (dim, d_state), "dim of u, d_state")
    for name in ("D", "delta_bias"):
        if (layout := given[name]) is not None:
            checks.dtype(name, layout.dtype, _or_float32(u))
            checks.shape(name, layout.shape, (dim,), "dim of u")
    return batch, dim, tokens


def matrices(given: Named) -> tuple[Layout, Layout]:
    """B and C after their checks: (batch, ngroups, d_state, tokens), packed ones of one row, or a constant as it is."""
    u, A = given["u"], given["A"]
    assert u is not None and A is not None
    packed = len(u.shape) == 2
    axes = "d_state, total" if packed else "batch, d_state, seqlen"
    B, C = (_matrix(name, required(given, name, axes), u, A) for name in ("B", "C"))
    if len(B.shape) == len(C.shape) == 4 and B.shape[1] != C.shape[1]:
        raise ValueError(message("ngroups of C", C.shape[1], f"{B.shape[1]}, that of B"))
    return B, C


def _matrix(name: str, matrix: Layout, u: Layout, A: Layout) -> Layout:
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


def required(given: Named, name: str, axes: str) -> Layout:
    """An array that must be given."""
    layout = given[name]
    if layout is None:
        raise TypeError(message(name, "None", f"an array ({axes})"))
    return layout


def _or_float32(u: Layout) -> tuple[DType | str, ...]:
    return tuple(dict.fromkeys((u.dtype, FLOAT32)))
