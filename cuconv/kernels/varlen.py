"""What the kernels of packed sequences share on the host: their operands and the axes of their specialisations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from cuconv.dtypes import FLOATS
from cuconv.kernel import Params
from cuconv.kernels import ranges
from cuconv.kernels.conv import channel_tile_tokens, channel_vector_bytes, vectors, widths
from cuconv.launch import ceil_div

MAX_TOKENS = 2**30
"""In one call: the kernels count tokens in 32 bits, and a little beyond the last one."""

POINTERS = (
    *("x", "weight", "bias", "conv_states", "query_start_loc", "cache_indices", "has_initial_state"),
    *ranges.POINTERS,
)
"""The tensors of common/conv_varlen.cuh's CausalConv1dVarlenOperands, in order; 0 stands for one that is absent."""

OPERANDS = (
    ("x_stride", "i8", 2),
    ("conv_states_stride", "i8", 3),
    ("query_start_loc_stride", "i8"),
    ("cache_indices_stride", "i8"),
    ("has_initial_state_stride", "i8"),
    ("slots", "i8"),
    ("first_column", "i8"),
    ("pad_slot_id", "i8"),
    ("sequences", "i4"),
    ("total", "i4"),
    ("dim", "i4"),
    ("bias_is_float32", "i4"),
    ("taps_are_packed", "i4"),
    ("has_states", "i4"),
    ("states_are_packed", "i4"),
    ("query_start_loc_is_int64", "i4"),
    ("cache_indices_is_int64", "i4"),
    *ranges.FIELDS,
    ("weight_stride", "i8", 2),
    ("bias_stride", "i8"),
)


def varlen_params(*launch_fields: tuple[str, str] | tuple[str, str, int]) -> Params:
    """The argument struct of a kernel of packed sequences: the operands, then what divides the work."""
    return Params(POINTERS, *OPERANDS, *launch_fields)


def mix_groups(tile_groups: int, head_groups: int) -> tuple[int, int, int]:
    """The fields of common/conv_tile.cuh's BlockGroups: so many groups of blocks with tiles, and with heads."""
    groups = tile_groups + head_groups
    return groups, head_groups, ceil_div(head_groups << 32, groups)


def varlen_axes() -> Iterator[dict[str, Any]]:
    """Every combination of the axes that all kernels of packed sequences have."""
    for width, input_t, weight_t, state_t in product(widths(), FLOATS, FLOATS, FLOATS):
        for vec, silu in product(vectors(input_t), (False, True)):
            types = {"input_t": input_t, "weight_t": weight_t, "state_t": state_t}
            yield {"width": width, **types, "vec": vec, "silu": silu}


def channel_axes() -> Iterator[dict[str, Any]]:
    """The same for kernels whose vectors lie along channels."""
    for axes in varlen_axes():
        width, itemsize = axes["width"], axes["input_t"].itemsize
        if axes["vec"] * itemsize <= channel_vector_bytes(itemsize, width):
            for dim_vecs in (8, 2, 1):
                yield {**axes, "tokens": channel_tile_tokens(itemsize, width, dim_vecs)}
