"""States behind the segments of a selective scan of many tokens: cuda_src/selective_scan_tiles_chunk.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cuconv.dtypes import FLOATS, DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels import scan
from cuconv.kernels.scan import CUT, segment_params

THREADS = scan.TILE_THREADS


@dataclass(frozen=True)
class SelectiveScanTilesChunk(Kernel):
    """A TileShape: `lanes` lanes own a channel, each 16 consecutive tokens of a tile, or `parts` times as many."""

    unit: ClassVar[str] = "selective_scan_tiles_chunk"
    params: ClassVar[Params] = segment_params()

    input_t: DType
    lanes: int
    parts: int
    at_once: int

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanTilesChunk]:
        for input_t in FLOATS:
            yield cls(input_t, *CUT)
