"""Forward convolution of long rows whose sequence is contiguous: cuda_src/causal_conv1d_fwd.cu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from cuconv.kernel import Params
from cuconv.kernels.conv import MAX_SLOTS, RowKernel, conv_params
from cuconv.launch import MAX_DIVIDEND, WARP_SIZE, LaunchConfig, ceil_div, fast_div

THREADS = 128


@dataclass(frozen=True)
class CausalConv1dFwd(RowKernel):
    """A warp owns a tile of one (batch, channel) row, `slots` vectors a lane."""

    SLOTS: ClassVar[tuple[int, ...]] = tuple(range(1, MAX_SLOTS + 1))

    unit: ClassVar[str] = "causal_conv1d_fwd"
    params: ClassVar[Params] = conv_params(
        ("row_tiles", "u4", 3), ("dim_div", "u4", 3), ("tiles", "u4"), ("padding", "u4"), ("row_vecs", "i8")
    )

    def launch_config(self, batch: int, dim: int, row_vecs: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for batch * dim rows of `row_vecs` vectors, and the params that divide the work so."""
        row_tiles = ceil_div(row_vecs, WARP_SIZE * self.slots)
        tiles = batch * dim * row_tiles
        if tiles > MAX_DIVIDEND:
            raise ValueError(f"the problem needs {tiles} warps; a launch takes at most {MAX_DIVIDEND}")
        config = LaunchConfig((ceil_div(tiles, THREADS // WARP_SIZE), 1, 1), (THREADS, 1, 1))
        return config, {
            "row_tiles": fast_div(row_tiles),
            "dim_div": fast_div(dim),
            "tiles": tiles,
            "padding": 0,
            "row_vecs": row_vecs,
        }
