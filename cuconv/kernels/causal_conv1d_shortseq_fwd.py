"""Forward convolution of many short rows: cuda_src/causal_conv1d_shortseq_fwd.cu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from cuconv.kernel import Params
from cuconv.kernels.conv import RowKernel, conv_params
from cuconv.launch import LaunchConfig, ceil_div, fast_div

THREADS = 64


@dataclass(frozen=True)
class CausalConv1dShortseqFwd(RowKernel):
    """A lane owns one vector of a batch entry's list of vectors, in `slots` consecutive batch entries."""

    SLOTS: ClassVar[tuple[int, ...]] = (1, 2)
    """Batch entries that a lane serves; 4 need more registers and reach 0.93 of copy on 64-step rows, 2 reach 0.95."""

    unit: ClassVar[str] = "causal_conv1d_shortseq_fwd"
    params: ClassVar[Params] = conv_params(
        ("row_vecs", "u4", 3), ("blocks", "u4", 3), ("batch_vecs", "u4"), ("padding", "u4")
    )

    def launch_config(self, batch: int, dim: int, row_vecs: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for batch * dim rows of `row_vecs` vectors, and the params that divide the work so."""
        blocks = ceil_div(dim * row_vecs, THREADS)
        config = LaunchConfig((blocks * ceil_div(batch, self.slots), 1, 1), (THREADS, 1, 1))
        return config, {
            "row_vecs": fast_div(row_vecs),
            "blocks": fast_div(blocks),
            "batch_vecs": dim * row_vecs,
            "padding": 0,
        }
