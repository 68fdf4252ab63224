"""States behind the segments of a selective scan of many tokens: cuda_src/selective_scan_tiles_chunk.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cuconv.dtypes import FLOATS, DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels import scan
from cuconv.kernels.scan import TILE_LANES, segment_params

THREADS = scan.TILE_THREADS


@dataclass(frozen=True)
class SelectiveScanTilesChunk(Kernel):
    """`lanes` lanes own a channel, each 16 consecutive tokens of a tile."""

    unit: ClassVar[str] = "selective_scan_tiles_chunk"
    params: ClassVar[Params] = segment_params()

    input_t: DType
    lanes: int

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanTilesChunk]:
        # Rows are cut into segments where even the most lanes are too few.
        for input_t in FLOATS:
            yield cls(input_t, TILE_LANES[-1])
