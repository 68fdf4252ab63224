"""Selective scan of packed sequences with their states in a pool: cuda_src/selective_scan_varlen_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from cuconv.dtypes import FLOATS, DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels import scan
from cuconv.kernels.scan import VARLEN_PARAMS, scan_axes, with_c

THREADS = scan.THREADS


@dataclass(frozen=True)
class SelectiveScanVarlenFwd(Kernel):
    """`lanes` lanes own a channel of a sequence, each `states` of its states."""

    unit: ClassVar[str] = "selective_scan_varlen_fwd"
    params: ClassVar[Params] = VARLEN_PARAMS

    input_t: DType
    lanes: int
    states: int
    vec: int
    b_vec: int
    c_vec: int
    state_t: DType

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanVarlenFwd]:
        for axes in scan_axes(constants=False):
            for each, state_t in product(with_c(axes, constants=False), FLOATS):
                yield cls(state_t=state_t, **each)
