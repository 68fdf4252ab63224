"""States behind the segments of a selective scan, each by itself: cuda_src/selective_scan_chunk.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cuconv.dtypes import DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels import scan
from cuconv.kernels.scan import scan_axes, segment_params

THREADS = scan.THREADS


@dataclass(frozen=True)
class SelectiveScanChunk(Kernel):
    """`lanes` lanes own a channel, each `states` of its states."""

    unit: ClassVar[str] = "selective_scan_chunk"
    params: ClassVar[Params] = segment_params()

    input_t: DType
    lanes: int
    states: int
    vec: int
    b_vec: int

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanChunk]:
        for axes in scan_axes():
            yield cls(**axes)
