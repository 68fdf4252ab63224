"""Selective scan of rows or of their segments: cuda_src/selective_scan_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cuconv.dtypes import DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels import scan
from cuconv.kernels.scan import scan_axes, segment_params, with_c

THREADS = scan.THREADS


@dataclass(frozen=True)
class SelectiveScanFwd(Kernel):
    """`lanes` lanes own a channel, each `states` of its states."""

    unit: ClassVar[str] = "selective_scan_fwd"
    params: ClassVar[Params] = segment_params()

    input_t: DType
    lanes: int
    states: int
    vec: int
    b_vec: int
    c_vec: int

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanFwd]:
        for axes in scan_axes():
            yield from (cls(**each) for each in with_c(axes))
