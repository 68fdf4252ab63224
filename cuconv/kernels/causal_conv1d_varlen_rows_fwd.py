"""Convolution of packed sequences whose tokens are contiguous: cuda_src/causal_conv1d_varlen_rows_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from cuconv.dtypes import DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels.conv import MAX_SLOTS
from cuconv.kernels.varlen import varlen_axes, varlen_params
from cuconv.launch import MAX_DIVIDEND, WARP_SIZE, LaunchConfig, ceil_div, fast_div

THREADS = 128
WARPS = THREADS // WARP_SIZE
GROUP = 32
"""Channels whose blocks follow each other."""


@dataclass(frozen=True)
class CausalConv1dVarlenRowsFwd(Kernel):
    """A warp owns a tile of one channel's tokens, `slots` vectors a lane, or the heads of 32 channels of a sequence."""

    unit: ClassVar[str] = "causal_conv1d_varlen_rows_fwd"
    params: ClassVar[Params] = varlen_params(
        ("group_blocks", "u4", 3), ("row_tiles", "u4", 3), ("row_blocks", "u4"), ("padding", "u4")
    )

    width: int
    input_t: DType
    weight_t: DType
    state_t: DType
    vec: int
    slots: int
    silu: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenRowsFwd]:
        for axes in varlen_axes():
            for slots in range(1, MAX_SLOTS + 1):
                yield cls(slots=slots, **axes)

    def launch_config(self, dim: int, row_vecs: int, sequences: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for `dim` rows of `row_vecs` vectors, and the params that divide the work so."""
        row_tiles = ceil_div(row_vecs, WARP_SIZE * self.slots)
        group = min(dim, GROUP)
        if group * row_tiles + WARPS > MAX_DIVIDEND:
            raise ValueError(f"the problem needs {group * row_tiles} warps; a launch takes at most {MAX_DIVIDEND}")
        row_blocks = ceil_div(group * row_tiles, WARPS)
        head_blocks = ceil_div(sequences, WARPS) if self.width > 1 else 0
        blocks = row_blocks + head_blocks
        config = LaunchConfig((ceil_div(dim, GROUP) * blocks, 1, 1), (THREADS, 1, 1))
        return config, {
            "group_blocks": fast_div(blocks),
            "row_tiles": fast_div(row_tiles),
            "row_blocks": row_blocks,
            "padding": 0,
        }
