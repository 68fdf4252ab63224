"""What the kernels of a convolution's decode step share on the host: their operands and the axes of their variants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from cuconv.dtypes import FLOATS, DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels import ranges
from cuconv.kernels.conv import vectors, widths
from cuconv.launch import MAX_VECTOR_BYTES, WARP_SIZE, LaunchConfig, ceil_div, fast_div

THREADS = 128
WARPS = THREADS // WARP_SIZE

SEQUENCES = (1, 2)
"""Sequences a thread."""

MANY_TOKENS_CHANNELS = 4
"""The most channels of a thread that takes several tokens: what it keeps between them leaves registers for no more."""

MAX_SEQUENCES = 2**30
MAX_TOKENS = 2**30
"""In one call: the kernels count in 32 bits, and a little beyond the last one."""

POINTERS = (
    *("x", "conv_state", "weight", "bias", "cache_seqlens", "conv_state_indices", "num_accepted_tokens"),
    *("intermediate_conv_window", "intermediate_state_indices"),
    *ranges.POINTERS,
)
"""The tensors of common/conv_update.cuh's CausalConv1dUpdateOperands, in order; 0 stands for one that is absent."""

OPERANDS = (
    ("x_stride", "i8", 3),
    ("conv_state_stride", "i8", 3),
    ("conv_state_indices_stride", "i8"),
    ("slots", "i8"),
    ("pad_slot_id", "i8"),
    ("block_vecs", "u4", 3),
    ("dim_blocks", "u4", 3),
    ("rows", "u4"),
    ("batch", "i4"),
    ("dim", "i4"),
    ("seqlen", "i4"),
    ("state_len", "i4"),
    ("bias_is_float32", "i4"),
    ("taps_are_packed", "i4"),
    ("states_are_packed", "i4"),
    ("windows_are_packed", "i4"),
    ("is_read_only", "i4"),
    ("conv_state_indices_is_int64", "i4"),
    ("cache_seqlens_is_int64", "i4"),
    ("num_accepted_tokens_is_int64", "i4"),
    ("intermediate_state_indices_is_int64", "i4"),
    *ranges.FIELDS,
    ("intermediate_conv_window_stride", "i8", 4),
    ("weight_stride", "i8", 2),
    ("bias_stride", "i8"),
    ("cache_seqlens_stride", "i8"),
    ("num_accepted_tokens_stride", "i8"),
    ("intermediate_state_indices_stride", "i8"),
    ("intermediate_rows", "i8"),
)


@dataclass(frozen=True)
class UpdateKernel(Kernel):
    """Base of the kernels of the decode step: the template parameters that all have."""

    params: ClassVar[Params] = Params(POINTERS, *OPERANDS)

    width: int
    input_t: DType
    weight_t: DType
    state_t: DType
    vec: int
    silu: bool
    ranges: int


def widest_channels(itemsize: int, width: int) -> int:
    """The most channels of a thread: what one access has, and whose taps fit the registers."""
    channels = MAX_VECTOR_BYTES // itemsize
    while channels > 1 and channels * width > 32:
        channels //= 2
    return channels


def update_axes() -> Iterator[dict[str, Any]]:
    """Every combination of the axes that all kernels of the decode step have."""
    for width, input_t, weight_t, state_t in product(widths(), FLOATS, FLOATS, FLOATS):
        types = {"input_t": input_t, "weight_t": weight_t, "state_t": state_t}
        for vec, silu in product(vectors(input_t), (False, True)):
            if vec <= widest_channels(max(input_t.itemsize, state_t.itemsize), width):
                for kind in (ranges.ONE, ranges.MANY, ranges.ROUTED)[: 1 + vec]:
                    yield {"width": width, **types, "vec": vec, "silu": silu, "ranges": kind}


def launch_config(dim: int, batch: int, vec: int, sequences: int) -> tuple[LaunchConfig, dict[str, Any]]:
    """The launch for x of (batch, dim), a thread `vec` channels of `sequences`, and the params that divide it so."""
    dim_vecs = ceil_div(dim, vec)
    # Sequences that share a block find each other's taps in the L1 cache.
    rows = min(batch, WARPS)
    dim_blocks = ceil_div(dim_vecs, THREADS // rows)
    block_vecs = ceil_div(dim_vecs, dim_blocks)
    rows = THREADS // block_vecs
    config = LaunchConfig((dim_blocks * ceil_div(batch, rows * sequences), 1, 1), (THREADS, 1, 1))
    return config, {"block_vecs": fast_div(block_vecs), "dim_blocks": fast_div(dim_blocks), "rows": rows}
