"""Forward convolution of short rows of any length that lie end to end: cuda_src/causal_conv1d_oddseq_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from cuconv.dtypes import DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels.conv import axes, conv_params
from cuconv.launch import LaunchConfig, ceil_div, fast_div

THREADS = 64
SLOTS = (1, 2)
"""Batch entries that a lane serves."""


@dataclass(frozen=True)
class CausalConv1dOddseqFwd(Kernel):
    """A lane owns one vector of a batch entry, taken as one row, in `slots` consecutive batch entries."""

    unit: ClassVar[str] = "causal_conv1d_oddseq_fwd"
    params: ClassVar[Params] = conv_params(
        ("row", "u4", 3), ("blocks", "u4", 3), ("batch_vecs", "u4"), ("padding", "u4")
    )

    width: int
    input_t: DType
    weight_t: DType
    vec: int
    slots: int
    silu: bool
    seq_idx: bool
    states: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dOddseqFwd]:
        # With one element an access no row is odd.
        for a in (each for each in axes() if each.vec > 1):
            for slots in SLOTS:
                yield cls(a.width, a.input_t, a.weight_t, a.vec, slots, a.silu, a.seq_idx, a.states)

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
