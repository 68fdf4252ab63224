"""What the selective scans share: checks of the arguments that both have, and what their kernels take of layouts."""

from __future__ import annotations

from typing import Any, NamedTuple

from cuconv.runtime import checks
from cuconv.runtime.call import Layouts
from cuconv.runtime.dtypes import FLOAT32, FLOATS, DType
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND, MAX_VECTOR_BYTES, fast_div, widest_vector
from cuconv.runtime.layout import Layout
from cuconv.selective_scan.kernels import (
    CONSTANT,
    MAX_STATE,
    MAX_TOKENS,
    TILE_STATES,
    TILE_TOKENS,
    matrix_accesses,
    own_tokens,
)

SHARED = ("delta", "A", "B", "C", "D", "z", "delta_bias")
"""The arrays that every scan takes besides u."""


class Operands(NamedTuple):
    """The layouts of one valid call; None stands for an argument that is absent."""

    u: Layout
    """(batch, dim, seqlen), and so are delta, z and out. Packed tokens count as one row."""
    delta: Layout
    A: Layout
    B: Layout
    """(batch, ngroups, d_state, seqlen), or (dim, d_state) of a constant; and so is C."""
    C: Layout
    D: Layout | None
    z: Layout | None
    delta_bias: Layout | None
    out: Layout
    delta_softplus: bool
    initial_state: Layout | None = None
    last_state: Layout | None = None
    chunk_states: Layout | None = None

    @property
    def d_state(self) -> int:
        """The states of a channel."""
        return self.A.shape[1]


class Packed(NamedTuple):
    """What packed sequences have besides."""

    ssm_states: Layout | None
    query_start_loc: Layout | None
    cache_indices: Layout | None
    has_initial_state: Layout | None
    pad_slot_id: int
    total: int

    @property
    def sequences(self) -> int:
        """How many there are, empty ones too."""
        return 1 if self.query_start_loc is None else self.query_start_loc.shape[0] - 1


def rows(given: Layouts, axes: str) -> tuple[int, int, int]:
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


def matrices(given: Layouts) -> tuple[Layout, Layout]:
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


def required(given: Layouts, name: str, axes: str) -> Layout:
    """An array that must be given."""
    layout = given[name]
    if layout is None:
        raise TypeError(message(name, "None", f"an array ({axes})"))
    return layout


def _or_float32(u: Layout) -> tuple[DType | str, ...]:
    return tuple(dict.fromkeys((u.dtype, FLOAT32)))


def is_variable(matrix: Layout) -> bool:
    """Whether B or C depends on the token."""
    return len(matrix.shape) == 4


def vector(o: Operands, lanes: int) -> int:
    """The most tokens an access of u and its kin, none more than a lane has in a tile."""
    rows = [row for row in (o.u, o.delta, o.z, o.out) if row is not None]
    return min(_row_vector(row, row.active(0, 1), own_tokens(lanes)) for row in rows)


def matrix_vector(matrix: Layout) -> int:
    if not is_variable(matrix):
        return CONSTANT
    vec = _row_vector(matrix, matrix.active(0, 1, 2), TILE_TOKENS)
    assert isinstance(matrix.dtype, DType)
    return vec if vec in matrix_accesses(matrix.dtype, constants=False) else 1


def _row_vector(row: Layout, strides: list[int], most: int) -> int:
    """The most tokens an access of rows so far apart."""
    # Of rows of fewer tokens than a tile no vector is ever loaded.
    if row.shape[-1] < TILE_TOKENS or row.strides[-1] != 1:
        return 1
    return widest_vector(row.itemsize, row.first, *strides, limit=min(most * row.itemsize, MAX_VECTOR_BYTES))


def numbers(o: Operands) -> dict[str, Any]:
    """What all kernels of a scan take."""
    _, dim, _ = o.u.shape
    groups = max([matrix.shape[1] for matrix in (o.B, o.C) if is_variable(matrix)], default=1)

    def matrix_strides(matrix: Layout) -> tuple[int, ...]:
        # A constant has neither batch nor tokens.
        return matrix.strides if is_variable(matrix) else (0, *matrix.strides, 0)

    found: dict[str, Any] = {
        "u_stride": o.u.strides,
        "delta_stride": o.delta.strides,
        "z_stride": o.z.strides if o.z else (0, 0, 0),
        "out_stride": o.out.strides,
        "B_stride": matrix_strides(o.B),
        "C_stride": matrix_strides(o.C),
        "A_stride": o.A.strides,
        "D_stride": o.D.strides[0] if o.D else 0,
        "delta_bias_stride": o.delta_bias.strides[0] if o.delta_bias else 0,
        "group_dim": fast_div(dim // groups),
        "dim": dim,
        "d_state": o.d_state,
        "delta_softplus": o.delta_softplus,
    }
    for name in ("D", "delta_bias"):
        found[f"{name}_is_float32"] = is_float32(getattr(o, name))
    return found


def is_float32(layout: Layout | None) -> bool:
    return layout is not None and layout.dtype is FLOAT32


def has_tiles(o: Operands, channels: int) -> bool:
    """Whether tokens can be spread over lanes, by blocks that have so many channels."""
    if o.d_state > TILE_STATES or not is_variable(o.B) or not is_variable(o.C):
        return False
    whole = MAX_VECTOR_BYTES // o.u.itemsize
    arrays = [each for each in (o.u, o.delta, o.z, o.out, o.B, o.C) if each is not None]
    if any(_row_vector(each, each.active(*range(len(each.shape) - 1)), whole) < whole for each in arrays):
        return False
    groups = max(o.B.shape[1], o.C.shape[1])
    # A block's channels are of one group.
    return groups == 1 or o.u.shape[1] // groups % channels == 0
