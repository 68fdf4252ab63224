"""Selective scan of packed sequences of many tokens: cuda_src/selective_scan_varlen_tiles_fwd.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from cuconv.dtypes import FLOATS, DType
from cuconv.kernel import Kernel, Params
from cuconv.kernels import scan
from cuconv.kernels.scan import VARLEN_PARAMS, TileShape

THREADS = scan.TILE_THREADS

SHAPES = (TileShape(8, 1, 1), TileShape(16, 2, 2))
"""Of sequences that are not short."""


@dataclass(frozen=True)
class SelectiveScanVarlenTilesFwd(Kernel):
    """The TileShape of sequences or, when they are `mixed`, of the long ones."""

    unit: ClassVar[str] = "selective_scan_varlen_tiles_fwd"
    params: ClassVar[Params] = VARLEN_PARAMS

    input_t: DType
    state_t: DType
    lanes: int
    parts: int
    at_once: int
    mixed: bool

    @classmethod
    def variants(cls) -> Iterator[SelectiveScanVarlenTilesFwd]:
        for input_t, state_t, shape, mixed in product(FLOATS, FLOATS, SHAPES, (False, True)):
            yield cls(input_t, state_t, *shape, mixed)
