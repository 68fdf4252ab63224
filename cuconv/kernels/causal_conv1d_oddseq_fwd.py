"""Forward convolution of short rows of any length that lie end to end: cuda_src/causal_conv1d_oddseq_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from cuconv.kernel import Params
from cuconv.kernels.conv import RowKernel, conv_params
from cuconv.launch import LaunchConfig, ceil_div, fast_div

THREADS = 64


@dataclass(frozen=True)
class CausalConv1dOddseqFwd(RowKernel):
    """A lane owns one vector of a batch entry, taken as one row, in `slots` consecutive batch entries."""

    SLOTS: ClassVar[tuple[int, ...]] = (1, 2)
    """Batch entries that a lane serves."""

    unit: ClassVar[str] = "causal_conv1d_oddseq_fwd"
    params: ClassVar[Params] = conv_params(
        ("row", "u4", 3), ("blocks", "u4", 3), ("batch_vecs", "u4"), ("padding", "u4")
    )

    @classmethod
    def variants(cls) -> Iterator[RowKernel]:
        # With one element an access no row is odd.
        return (kernel for kernel in super().variants() if kernel.vec > 1)

    def launch_config(self, batch: int, dim: int, seqlen: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for x of (batch, dim, seqlen), and the params that divide the work so."""
        batch_vecs = ceil_div(dim * seqlen, self.vec)
        blocks = ceil_div(batch_vecs, THREADS)
        config = LaunchConfig((blocks * ceil_div(batch, self.slots), 1, 1), (THREADS, 1, 1))
        return config, {
            "row": fast_div(seqlen),
            "blocks": fast_div(blocks),
            "batch_vecs": batch_vecs,
            "padding": 0,
        }
