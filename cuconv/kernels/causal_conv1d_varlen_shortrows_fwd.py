"""Convolution of short packed sequences with contiguous tokens: cuda_src/causal_conv1d_varlen_shortrows_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from cuconv.dtypes import DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels.varlen import varlen_axes, varlen_params
from cuconv.launch import MAX_VECTOR_BYTES, WARP_SIZE, LaunchConfig, ceil_div, fast_div

THREADS = 128
CHANNELS = 32
"""Of a block."""
PART_VECS = 4
"""Of the widest vectors along a channel, those that a warp convolves: with more, too few tiles are in shared memory."""
WIDTHS = range(2, 6)
"""A filter of one tap needs no states, and the states of wide ones are too many for registers."""


@dataclass(frozen=True)
class CausalConv1dVarlenShortrowsFwd(Kernel):
    """A block owns 32 channels of a tile of tokens, and of the sequences that begin in it their states."""

    unit: ClassVar[str] = "causal_conv1d_varlen_shortrows_fwd"
    params: ClassVar[Params] = varlen_params(("tiles", "u4", 3), ("padding", "u4"))

    width: int
    input_t: DType
    weight_t: DType
    state_t: DType
    vec: int
    silu: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenShortrowsFwd]:
        for axes in varlen_axes():
            if axes["width"] in WIDTHS:
                yield cls(**axes)

    @property
    def tile(self) -> int:
        """Tokens of a block."""
        return THREADS // WARP_SIZE * PART_VECS * MAX_VECTOR_BYTES // self.input_t.itemsize

    def launch_config(self, dim: int, total: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for x of (dim, total), and the params that divide the work so."""
        tiles = ceil_div(total, self.tile)
        config = LaunchConfig((ceil_div(dim, CHANNELS) * tiles, 1, 1), (THREADS, 1, 1))
        return config, {"tiles": fast_div(tiles), "padding": 0}
