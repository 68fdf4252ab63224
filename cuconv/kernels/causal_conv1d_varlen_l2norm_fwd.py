"""Convolution of packed sequences that normalises heads: cuda_src/causal_conv1d_varlen_l2norm_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

from cuconv.dtypes import DType
from cuconv.form import MAX_RANGES
from cuconv.kernel import Kernel, Params
from cuconv.kernels.conv import channel_tile_tokens
from cuconv.kernels.varlen import channel_axes, mix_groups, varlen_params
from cuconv.launch import WARP_SIZE, LaunchConfig, ceil_div, fast_div

THREADS = 128
WARPS = THREADS // WARP_SIZE


@dataclass(frozen=True)
class CausalConv1dVarlenL2normFwd(Kernel):
    """A warp owns `tokens` consecutive tokens, or the first of a sequence, in one or several heads of channels."""

    unit: ClassVar[str] = "causal_conv1d_varlen_l2norm_fwd"
    params: ClassVar[Params] = varlen_params(
        ("units", "u4", 3),
        ("mix", "u4", 3),
        ("unit_end", "i4", MAX_RANGES),
        ("unit_width", "i4", MAX_RANGES),
        ("unit_lanes", "i4", MAX_RANGES),
        ("normalized", "i4"),
        ("eps", "f4"),
    )

    width: int
    input_t: DType
    weight_t: DType
    state_t: DType
    vec: int
    tokens: int
    silu: bool
    wide: bool

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenL2normFwd]:
        for axes in channel_axes():
            if axes["tokens"] == channel_tile_tokens(axes["input_t"].itemsize, axes["width"], WARP_SIZE):
                for wide in (False, True):
                    yield cls(wide=wide, **axes)

    def launch_config(
        self, heads: Sequence[tuple[int, int]], normalized: int, total: int, sequences: int
    ) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for ranges of (heads, head_dim), the first ones normalised, and the params that divide it so."""
        units, widths, lanes = [], [], []
        for number, (count, head_dim) in enumerate(heads):
            width = head_dim if number < normalized else min(count * head_dim, WARP_SIZE * self.vec)
            widths.append(width)
            lanes.append(min(WARP_SIZE, 1 << (ceil_div(width, self.vec) - 1).bit_length()))
            units.append(ceil_div(ceil_div(count * head_dim, width), WARP_SIZE // lanes[-1]))
        ends = list(accumulate(units))
        head_groups = ceil_div(sequences, WARPS) if self.width > 1 else 0
        mix = mix_groups(ceil_div(total, self.tokens * WARPS), head_groups)
        absent = MAX_RANGES - len(units)
        return LaunchConfig((ends[-1] * mix[0], 1, 1), (THREADS, 1, 1)), {
            "units": fast_div(ends[-1]),
            "mix": mix,
            "unit_end": ends + [0] * absent,
            "unit_width": widths + [0] * absent,
            "unit_lanes": lanes + [1] * absent,
            "normalized": normalized,
        }
