"""Forward convolution of tokens whose channels are contiguous: cuda_src/causal_conv1d_channellast_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from cuconv.dtypes import DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels.conv import channel_tile_tokens, channel_vector_bytes, conv_params, core_axes
from cuconv.launch import WARP_SIZE, LaunchConfig, ceil_div, fast_div

THREADS = 128


@dataclass(frozen=True)
class CausalConv1dChannellastFwd(Kernel):
    """A thread owns `vec` channels of `tokens` consecutive tokens."""

    unit: ClassVar[str] = "causal_conv1d_channellast_fwd"
    params: ClassVar[Params] = conv_params(
        ("block_vecs", "u4", 3), ("dim_blocks", "u4", 3), ("time_blocks", "u4", 3), ("tiles", "u4")
    )

    width: int
    input_t: DType
    weight_t: DType
    vec: int
    tokens: int
    silu: bool
    seq_idx: bool
    states: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dChannellastFwd]:
        for axes in core_axes():
            width, itemsize = axes["width"], axes["input_t"].itemsize
            if axes["vec"] * itemsize <= channel_vector_bytes(itemsize, width):
                for dim_vecs in (8, 2, 1):
                    yield cls(tokens=channel_tile_tokens(itemsize, width, dim_vecs), **axes)

    def launch_config(self, batch: int, dim: int, seqlen: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for x of (batch, dim, seqlen), and the params that divide the work so."""
        dim_vecs = ceil_div(dim, self.vec)
        # A warp's width of vectors, or an even share when the channels are no multiple of that.
        dim_blocks = ceil_div(dim_vecs, WARP_SIZE)
        block_vecs = ceil_div(dim_vecs, dim_blocks)
        tiles = THREADS // block_vecs
        time_blocks = max(1, ceil_div(seqlen, tiles * self.tokens))
        config = LaunchConfig((dim_blocks * time_blocks * batch, 1, 1), (THREADS, 1, 1))
        return config, {
            "block_vecs": fast_div(block_vecs),
            "dim_blocks": fast_div(dim_blocks),
            "time_blocks": fast_div(time_blocks),
            "tiles": tiles,
        }
