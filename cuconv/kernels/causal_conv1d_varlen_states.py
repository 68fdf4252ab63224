"""The last tokens of packed sequences: cuda_src/causal_conv1d_varlen_states.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from cuconv.dtypes import FLOATS, DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels.conv import vectors
from cuconv.launch import MAX_DIVIDEND, LaunchConfig, ceil_div, fast_div

THREADS = 128


@dataclass(frozen=True)
class CausalConv1dVarlenStates(Kernel):
    """A thread copies `vec` channels of one column."""

    unit: ClassVar[str] = "causal_conv1d_varlen_states"
    params: ClassVar[Params] = Params(
        ("x", "cu_seqlens", "out"),
        ("x_stride", "i8", 2),
        ("out_stride", "i8", 3),
        ("cu_seqlens_stride", "i8"),
        ("total", "i8"),
        ("dim_vecs", "u4", 3),
        ("columns", "u4", 3),
        ("total_vecs", "u4"),
        ("cu_seqlens_is_int64", "i4"),
    )

    input_t: DType
    vec: int

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dVarlenStates]:
        for input_t in FLOATS:
            for vec in vectors(input_t):
                yield cls(input_t, vec)

    def launch_config(self, sequences: int, dim: int, columns: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch for out of (sequences, dim, columns), and the params that divide the work so."""
        dim_vecs = ceil_div(dim, self.vec)
        total_vecs = sequences * columns * dim_vecs
        if total_vecs > MAX_DIVIDEND:
            raise ValueError(f"the problem needs {total_vecs} threads; a launch takes at most {MAX_DIVIDEND}")
        return LaunchConfig((ceil_div(total_vecs, THREADS), 1, 1), (THREADS, 1, 1)), {
            "dim_vecs": fast_div(dim_vecs),
            "columns": fast_div(columns),
            "total_vecs": total_vecs,
        }
