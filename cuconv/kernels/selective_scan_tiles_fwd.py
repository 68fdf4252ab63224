"""Selective scan of rows of many tokens or of their segments: cuda_src/selective_scan_tiles_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from cuconv.dtypes import FLOATS, DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels import scan
from cuconv.kernels.scan import TILE_TIMES, segment_params

THREADS = scan.TILE_THREADS


@dataclass(frozen=True)
class SelectiveScanTilesFwd(Kernel):
    """A TileShape: `lanes` lanes own a channel, each consecutive tokens of a tile, or `parts` times as many."""

    unit: ClassVar[str] = "selective_scan_tiles_fwd"
    params: ClassVar[Params] = segment_params()

    input_t: DType
    lanes: int
    parts: int
    at_once: int

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanTilesFwd]:
        for input_t, shape in product(FLOATS, TILE_TIMES):
            yield cls(input_t, *shape)
