"""Convolution of packed sequences whose channels are contiguous: cuda_src/causal_conv1d_varlen_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from cuconv.dtypes import DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels.varlen import channel_axes, mix_groups, varlen_params
from cuconv.launch import WARP_SIZE, LaunchConfig, ceil_div, fast_div

THREADS = 128


@dataclass(frozen=True)
class CausalConv1dVarlenFwd(Kernel):
    """A thread owns `vec` channels of `tokens` consecutive tokens, or of the first tokens of a sequence."""

    unit: ClassVar[str] = "causal_conv1d_varlen_fwd"
    params: ClassVar[Params] = varlen_params(
        ("block_vecs", "u4", 3), ("dim_blocks", "u4", 3), ("mix", "u4", 3), ("tiles", "u4")
    )

    width: int
    input_t: DType
    weight_t: DType
    state_t: DType
    vec: int
    tokens: int
    silu: bool
    routed: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenFwd]:
        for axes in channel_axes():
            for routed in (False, True)[: axes["vec"]]:
                yield cls(routed=routed, **axes)

    def launch_config(self, dim: int, total: int, sequences: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for x of (dim, total), and the params that divide the work so."""
        dim_vecs = ceil_div(dim, self.vec)
        # A warp's width of vectors, or an even share when the channels are no multiple of that.
        dim_blocks = ceil_div(dim_vecs, WARP_SIZE)
        block_vecs = ceil_div(dim_vecs, dim_blocks)
        tiles = THREADS // block_vecs
        head_groups = ceil_div(sequences, tiles) if self.width > 1 else 0
        mix = mix_groups(ceil_div(total, self.tokens * tiles), head_groups)
        config = LaunchConfig((dim_blocks * mix[0], 1, 1), (THREADS, 1, 1))
        return config, {
            "block_vecs": fast_div(block_vecs),
            "dim_blocks": fast_div(dim_blocks),
            "mix": mix,
            "tiles": tiles,
        }
