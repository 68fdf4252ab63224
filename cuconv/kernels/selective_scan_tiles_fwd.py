"""Selective scan of rows of many tokens or of their segments: cuda_src/selective_scan_tiles_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from cuconv.dtypes import FLOATS, DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels import scan
from cuconv.kernels.scan import TILE_LANES, segment_params

THREADS = scan.TILE_THREADS


@dataclass(frozen=True)
class SelectiveScanTilesFwd(Kernel):
    """`lanes` lanes own a channel, each 16 consecutive tokens of a tile."""

    unit: ClassVar[str] = "selective_scan_tiles_fwd"
    params: ClassVar[Params] = segment_params()

    input_t: DType
    lanes: int

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanTilesFwd]:
        for input_t, lanes in product(FLOATS, TILE_LANES):
            yield cls(input_t, lanes)
