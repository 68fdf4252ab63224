"""The widest accesses, and the params of all kernels: shared by the plans of both selective scans."""

from __future__ import annotations

from typing import Any

from cuconv.runtime.dtypes import FLOAT32, DType
from cuconv.runtime.launch import MAX_VECTOR_BYTES, ceil_div, fast_div, widest_vector
from cuconv.runtime.layout import Layout
from cuconv.runtime.machine import multiprocessors
from cuconv.selective_scan.check import Inputs, is_variable
from cuconv.selective_scan.kernels import (
    CONSTANT,
    WIDE,
    WIDE_FULL,
    TileShape,
    matrix_accesses,
    max_tile_states,
    own_tokens,
    tile_tokens,
    wide_shapes,
)

TOKENS, CHANNELS = 2, 1
"""Axes of u."""

FILL = 512
"""Threads per multiprocessor that keep an H200 busy."""

WIDE_TOKENS = {TOKENS: 128, CHANNELS: 256}
"""Mean tokens per sequence from which on lanes share the tokens of a tile where channels have more than 16 states, by
the contiguous axis. On an H200 64 sequences of 128 tokens of 2048 channels of 64 states take 916 us with tokens shared
and 1427 with tokens walked by all lanes; with contiguous channels 43 of 192 tokens 1128 and 975, 32 of 256 906 and 954.
"""

WIDE_ROWS = 16
"""Channels of sequences per multiprocessor beyond which they fill the GPU, where channels have more than 16 states.
With contiguous channels 2048 of 4096 tokens and 64 states take 457 us with WIDE, 513 with WIDE_FULL and 715 with tokens
walked by all lanes; 16 x 2048 of 512 tokens 924, 887 and 939.
"""


def input_dtype(inputs: Inputs) -> DType:
    """The dtype of u, delta, z, out, and of B and C that depend on the token."""
    assert isinstance(inputs.u.dtype, DType)
    return inputs.u.dtype


def vector(inputs: Inputs, lanes: int) -> int:
    """Tokens per access of u, delta, z and out: at most those of a tile that one lane owns."""
    rows = [row for row in (inputs.u, inputs.delta, inputs.z, inputs.out) if row is not None]
    return min(_row_vector(row, own_tokens(lanes)) for row in rows)


def tokens_vector(inputs: Inputs) -> int | None:
    """Tokens per access of u, delta, z, out, B and C alike; None where tokens are not contiguous in one of them, or B
    or C is constant.
    """
    arrays = _of_tokens(inputs)
    if not is_variable(inputs.B) or not is_variable(inputs.C) or any(each.strides[-1] != 1 for each in arrays):
        return None
    return min(_row_vector(each, tile_tokens()) for each in arrays)


def _of_tokens(inputs: Inputs) -> list[Layout]:
    """The arrays with an axis of tokens, if B and C have one."""
    return [each for each in (inputs.u, inputs.delta, inputs.z, inputs.out, inputs.B, inputs.C) if each is not None]


def matrix_vector(matrix: Layout) -> int:
    """Tokens per access of B or C; CONSTANT where it does not depend on the token."""
    if not is_variable(matrix):
        return CONSTANT
    assert isinstance(matrix.dtype, DType)
    vec = _row_vector(matrix, tile_tokens())
    return vec if vec in matrix_accesses(matrix.dtype, constants=False) else 1


def _row_vector(row: Layout, most: int) -> int:
    """Tokens per access of an array whose last axis is that of the tokens, at most `most`."""
    # In rows of fewer tokens than a tile no vector is ever loaded.
    if row.shape[-1] < tile_tokens() or row.strides[-1] != 1:
        return 1
    outer = row.active(*range(len(row.shape) - 1))
    return widest_vector(row.itemsize, row.first, *outer, limit=min(most * row.itemsize, MAX_VECTOR_BYTES))


def tile_axis(inputs: Inputs, channels: int) -> int | None:
    """The contiguous axis of u, if lanes can share the tokens of a tile in blocks of this many channels.

    It is TOKENS or CHANNELS; None where lanes cannot share tokens.
    """
    return None if inputs.d_state > max_tile_states() else _shared_axis(inputs, channels)


def wide_shape(inputs: Inputs, sequences: int, *, snapshots: bool = False) -> tuple[TileShape, bool] | None:
    """The shape in which lanes share tokens where channels have more states than a tile has B and C for at a time, and
    whether channels are contiguous; None where lanes do not share tokens.
    """
    if inputs.d_state <= max_tile_states() or inputs.d_state % (WIDE.parts * WIDE.at_once):
        return None
    axis = _shared_axis(inputs, WIDE.channels)
    batch, dim, seqlen = inputs.u.shape
    if axis is None or batch * seqlen < WIDE_TOKENS[axis] * sequences:
        return None
    by_channel = axis == CHANNELS
    is_full = by_channel and sequences * dim > WIDE_ROWS * multiprocessors(inputs.u.device)
    shape = WIDE_FULL if is_full else WIDE
    shapes = wide_shapes(input_dtype(inputs), by_channel=by_channel, snapshots=snapshots)
    return (shape, by_channel) if shape in shapes else None


def _shared_axis(inputs: Inputs, channels: int) -> int | None:
    if not is_variable(inputs.B) or not is_variable(inputs.C):
        return None
    dim = inputs.u.shape[1]
    # The channels of a block are of one group.
    if inputs.groups > 1 and dim // inputs.groups % (channels * period(inputs)):
        return None
    if inputs.phases is not None:
        return TOKENS
    whole = MAX_VECTOR_BYTES // inputs.u.itemsize
    arrays = _of_tokens(inputs)
    if all(_row_vector(each, whole) == whole for each in arrays):
        return TOKENS
    # Channels and states have to be whole vectors.
    if dim % whole == 0 and inputs.d_state % whole == 0 and all(_is_turned(each, whole) for each in arrays):
        return CHANNELS
    return None


def period(inputs: Inputs) -> int:
    """Channels from one channel of a block to the next one."""
    return 1 if inputs.phases is None else inputs.phases.period


def channels_of_blocks(inputs: Inputs, channels: int) -> int:
    """The number of channels to divide over blocks of this many. Where rows have phases it is rounded up, so that each
    phase has as many blocks.
    """
    dim, together = inputs.u.shape[1], channels * period(inputs)
    return dim if inputs.phases is None else ceil_div(dim, together) * together


def _is_turned(array: Layout, whole: int) -> bool:
    """Whether this many elements along the axis before the last can be accessed as a vector."""
    outer = array.active(*range(len(array.shape) - 2), -1)
    return array.strides[-2] == 1 and widest_vector(array.itemsize, array.first, *outer) >= whole


def numbers(inputs: Inputs) -> dict[str, Any]:
    """The params behind the pointers that all kernels of a scan take."""
    _, dim, _ = inputs.u.shape

    def matrix_strides(matrix: Layout) -> tuple[int, ...]:
        # A constant has no axes of batch and tokens.
        return matrix.strides if is_variable(matrix) else (0, *matrix.strides, 0)

    return {
        "u_stride": inputs.u.strides,
        "delta_stride": inputs.delta.strides,
        "z_stride": inputs.z.strides if inputs.z else (0, 0, 0),
        "out_stride": inputs.out.strides,
        "B_stride": matrix_strides(inputs.B),
        "C_stride": matrix_strides(inputs.C),
        "A_stride": inputs.A.strides,
        "D_stride": inputs.D.strides[0] if inputs.D else 0,
        "delta_bias_stride": inputs.delta_bias.strides[0] if inputs.delta_bias else 0,
        "group_dim": fast_div(dim // inputs.groups),
        "dim": dim,
        "d_state": inputs.d_state,
        "delta_softplus": inputs.delta_softplus,
        "D_is_float32": is_float32(inputs.D),
        "delta_bias_is_float32": is_float32(inputs.delta_bias),
    }


def is_float32(layout: Layout | None) -> bool:
    """Whether an optional array is given in float32."""
    return layout is not None and layout.dtype is FLOAT32
