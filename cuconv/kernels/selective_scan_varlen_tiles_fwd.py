"""Selective scan of packed sequences of many tokens: cuda_src/selective_scan_varlen_tiles_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from cuconv.dtypes import FLOATS, DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels import scan
from cuconv.kernels.scan import VARLEN_PARAMS

THREADS = scan.TILE_THREADS

LANES = 8
"""That share a channel of a sequence that is not short."""


@dataclass(frozen=True)
class SelectiveScanVarlenTilesFwd(Kernel):
    """LANES lanes own a channel of a long sequence, each 16 consecutive tokens of a tile; of a short one, one does."""

    unit: ClassVar[str] = "selective_scan_varlen_tiles_fwd"
    params: ClassVar[Params] = VARLEN_PARAMS

    input_t: DType
    state_t: DType

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanVarlenTilesFwd]:
        for input_t, state_t in product(FLOATS, FLOATS):
            yield cls(input_t, state_t)
