"""What the convolution kernels share on the host: their operands and the axes of their specialisations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from cuconv.dtypes import FLOATS, DType
from cuconv.kernel import Kernel, Params
from cuconv.launch import MAX_VECTOR_BYTES, WARP_SIZE, ceil_div, widest_vector
from cuconv.layout import Layout

MIN_WIDTH = 1
MAX_WIDTH = 16

POINTERS = ("x", "weight", "bias", "seq_idx", "initial_states", "out", "final_states")
"""The tensors of common/conv.cuh's CausalConv1dOperands, in order; 0 stands for one that is absent."""

OPERANDS = (
    ("x_stride", "i8", 3),
    ("out_stride", "i8", 3),
    ("initial_states_stride", "i8", 3),
    ("final_states_stride", "i8", 3),
    ("weight_stride", "i8", 2),
    ("seq_idx_stride", "i8", 2),
    ("bias_stride", "i8"),
    ("seqlen", "i8"),
    ("batch", "i4"),
    ("dim", "i4"),
    ("bias_is_float32", "i4"),
    ("taps_are_packed", "i4"),
)


def conv_params(*launch_fields: tuple[str, str] | tuple[str, str, int]) -> Params:
    """The argument struct of a convolution kernel: the operands, then what divides the work."""
    return Params(POINTERS, *OPERANDS, *launch_fields)


def widths() -> range:
    """Every filter width that the kernels are specialised for."""
    return range(MIN_WIDTH, MAX_WIDTH + 1)


def vectors(dtype: DType) -> list[int]:
    """The vector widths of a dtype, the scalar fallback first."""
    return [vec for vec in (1, 2, 4, 8) if vec * dtype.itemsize <= MAX_VECTOR_BYTES]


def channel_vector_bytes(itemsize: int, width: int) -> int:
    """The widest access along channels: what a thread's taps and window leave registers for.

    Measured on an H200: width 4 with 16 bytes reaches 0.77 of copy instead of 0.97, width 16 in bfloat16 with 8 bytes
    0.44 instead of 0.52.
    """
    return 4 if itemsize == 2 and width > 6 else 8


def channel_tile_tokens(itemsize: int, width: int, dim_vecs: int) -> int:
    """Tokens of a thread that has a channel vector.

    With fewer the halo costs more loads, with more registers run short. Fewer also when a token is only a few vectors
    long: the lanes of a warp would lie too far apart in memory.
    """
    tokens = 8 if width <= (4 if itemsize == 2 else 8) else 16
    return tokens if dim_vecs >= 8 else tokens // 2 if dim_vecs > 1 else tokens // 4


MAX_SLOTS = 4
"""Vectors of a row that a lane has in flight: causal_conv1d_fwd falls from 0.96 of copy to 0.87 with 2, 0.94 with 8."""


def slots_for(row_vecs: int) -> int:
    """How many of a lane's slots rows of this many vectors fill evenly."""
    tiles = ceil_div(row_vecs, WARP_SIZE * MAX_SLOTS)
    return ceil_div(ceil_div(row_vecs, tiles), WARP_SIZE)


def taps_are_packed(weight: Layout, bias: Layout | None, vec: int) -> bool:
    """Whether the taps and biases of `vec` channels can be read by the widest accesses that divide them."""
    dim, width = weight.shape
    access = widest_vector(weight.itemsize, vec * width)
    if (width > 1 and weight.strides[1] != 1) or (dim > 1 and weight.strides[0] != width):
        return False
    if bias is not None and ((dim > 1 and bias.strides[0] != 1) or bias.first % vec):
        return False
    return weight.first % access == 0


def core_axes() -> Iterator[dict[str, Any]]:
    """Every combination of the axes that all forward kernels have."""
    flags = (False, True)
    for width, input_t, weight_t in product(widths(), FLOATS, FLOATS):
        for vec, silu, seq_idx, states in product(vectors(input_t), flags, flags, flags):
            yield {
                "width": width,
                "input_t": input_t,
                "weight_t": weight_t,
                "vec": vec,
                "silu": silu,
                "seq_idx": seq_idx,
                "states": states,
            }


@dataclass(frozen=True)
class RowKernel(Kernel):
    """Base of the kernels whose vectors lie along the sequence: their template parameters."""

    SLOTS: ClassVar[tuple[int, ...]]

    width: int
    input_t: DType
    weight_t: DType
    vec: int
    slots: int
    silu: bool
    seq_idx: bool
    states: bool

    @classmethod
    def variants(cls) -> Iterator[RowKernel]:
        for axes in core_axes():
            for slots in cls.SLOTS:
                yield cls(slots=slots, **axes)
