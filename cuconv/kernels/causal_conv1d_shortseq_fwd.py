"""Forward convolution of many short rows: cuda_src/causal_conv1d_shortseq_fwd.cu."""

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
"""Batch entries that a lane serves; 4 need more registers and reach 0.93 of copy on 64-step rows, 2 reach 0.95."""


@dataclass(frozen=True)
class CausalConv1dShortseqFwd(Kernel):
    """A lane owns one vector of a batch entry's list of vectors, in `slots` consecutive batch entries."""

    unit: ClassVar[str] = "causal_conv1d_shortseq_fwd"
    params: ClassVar[Params] = conv_params(
        ("row_vecs", "u4", 3), ("blocks", "u4", 3), ("batch_vecs", "u4"), ("padding", "u4")
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
    def variants(cls) -> Iterator[CausalConv1dShortseqFwd]:
        for a in axes():
            for slots in SLOTS:
                yield cls(a.width, a.input_t, a.weight_t, a.vec, slots, a.silu, a.seq_idx, a.states)

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
