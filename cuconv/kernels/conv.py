"""What the convolution kernels share on the host: their operands and the axes of their specialisations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from cuconv.dtypes import FLOATS, DType
from cuconv.kernel import Kernel, Params
from cuconv.launch import MAX_VECTOR_BYTES

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
