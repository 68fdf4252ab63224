"""with_contiguous_tokens: copies of rows whose channels are contiguous."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cuconv.runtime.dtypes import BY_NAME
from cuconv.selective_scan.turn import with_contiguous_tokens
from tests import cases
from tests.support.layouts import LAYOUTS
from tests.support.placement import Array, Placement, place

OUT: dict[str, dict[str, Any]] = {
    "new": {"order": (1, 0, 2)},
    "new_offset_by_1": {"order": (1, 0, 2), "shift": 1},
    "new_offset_by_2": {"order": (1, 0, 2), "shift": 2},
    "by_row": {},
    "sliced": {"pad": (0, 2, 13)},
    "backward": {"backward": (0, 1)},
}
"""How the copy may lie: as a new one does, or otherwise."""


@dataclass(frozen=True)
class Case(cases.Case):
    """One call."""

    FUNCTION = "with_contiguous_tokens"

    batch: int
    dim: int
    seqlen: int
    dtype: str = "bfloat16"
    layout: str = "channel_last"
    out: str = "new"

    def placements(self) -> dict[str, Placement]:
        dtype, shape = BY_NAME[self.dtype], (self.batch, self.dim, self.seqlen)
        return {"x": place(dtype, shape, **LAYOUTS[self.layout][0]), "out": place(dtype, shape, **OUT[self.out])}

    @property
    def function(self) -> Callable[..., Any]:
        return with_contiguous_tokens

    def errors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        return {}

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Array]:
        return {"out": arrays["x"]}


UNIT = (
    # Vectors on both sides, on one of them, and on none: whole tiles, and last ones of some rows and columns.
    Case(1, 128, 64),
    Case(2, 136, 72, "float16"),
    Case(3, 72, 131, out="by_row"),
    Case(2, 67, 136, "float16"),
    Case(2, 67, 35),
    Case(2, 68, 36, "float32"),
    Case(3, 33, 40, "float32", out="sliced"),
    Case(2, 40, 33, "float32", "last_sliced_seq", "new_offset_by_1"),
    Case(2, 35, 33, "float32"),
    # Accesses of 4 and of 8 bytes.
    Case(2, 66, 68, layout="last_sliced_dim_by_2", out="new_offset_by_2"),
    Case(2, 68, 66, "float16", "last_sliced_dim_by_2"),
    Case(2, 68, 36, layout="last_sliced_dim_by_2", out="new_offset_by_2"),
    Case(2, 34, 36, "float32", out="new_offset_by_2"),
    Case(2, 72, 72, layout="last_offset_by_1", out="new_offset_by_1"),
    Case(2, 72, 72, "float32", "last_offset_by_1"),
    Case(2, 24, 72, "float16", "token_major", "sliced"),
    # Sequences that are one in memory, and sequences and tokens that go backwards.
    Case(3, 40, 20, layout="last_broadcast_batch"),
    Case(2, 40, 24, layout="last_backward_seq", out="backward"),
    Case(70, 8, 1),
    Case(3, 1, 50, layout="channel_first"),
    Case(0, 8, 8),
    Case(2, 0, 8),
    Case(2, 8, 0),
)

EDGE = (
    *(Case(2, dim, seqlen) for dim in (1, 7, 8, 64, 65, 3072) for seqlen in (1, 2, 63, 64, 2048)),
    *(Case(2, 96, 80, dtype, out=out) for dtype in BY_NAME if dtype in ("float16", "float32") for out in OUT),
    Case(1, 10240, 4096),
)
