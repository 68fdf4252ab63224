"""causal_conv1d_varlen_states: the last tokens of every packed sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference
from cuconv.runtime.dtypes import BY_NAME
from tests import cases
from tests.support.batches import batch
from tests.support.compare import ROUNDING
from tests.support.placement import Array, Placement, place

X: dict[str, dict[str, Any]] = {
    "dense": {},
    "sliced": {"pad": (1, 8)},
    "sliced_by_2": {"pad": (0, 2)},
    "offset_by_1": {"shift": 1},
    "spaced": {"spacing": 2},
    "tokens": {"order": (1, 0)},
    "backward": {"backward": (0,)},
    "backward_dim": {"backward": (1,)},
    "repeated": {"repeated": (0,)},
}
"""How (total, dim) may lie."""

OUT: dict[str, dict[str, Any]] = {
    "dense": {},
    "channels": {"order": (0, 2, 1)},
    "channels_sliced": {"order": (0, 2, 1), "pad": (1, 8, 0)},
    "channels_offset": {"order": (0, 2, 1), "shift": 1},
    "sliced": {"pad": (0, 1, 3)},
    "outermost": {"order": (2, 1, 0)},
    "backward": {"backward": (0, 2)},
    "spaced": {"spacing": 2},
}
"""How (sequences, dim, state_len) may lie."""


@dataclass(frozen=True)
class Case(cases.Case):
    """One call."""

    FUNCTION = "causal_conv1d_varlen_states"

    dim: int
    batch: str
    state_len: int
    dtype: str = "bfloat16"
    layout: str = "dense"
    out: str = "dense"
    index: str = "int32"
    spacing: int = 1  # of cu_seqlens
    previous: str = ""  # how previous_states lie; absent when empty

    def placements(self) -> dict[str, Placement]:
        b, dtype = batch(self.batch), BY_NAME[self.dtype]
        states = (b.count, self.dim, self.state_len)
        placed = {
            "x": place(dtype, (b.total, self.dim), **X[self.layout]),
            "cu_seqlens": place(BY_NAME[self.index], (b.count + 1,), spacing=self.spacing),
        }
        if self.previous:
            placed["previous_states"] = place(dtype, states, **OUT[self.previous])
        return placed | {"out": place(dtype, states, **OUT[self.out])}

    def integers(self, seed: int = 0) -> dict[str, Array]:
        return {"cu_seqlens": np.array(batch(self.batch).bounds)}

    def options(self) -> dict[str, Any]:
        return {"state_len": self.state_len}

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Array]:
        return {"out": reference.causal_conv1d_varlen_states(**self.arguments(arrays))}


UNIT = (
    Case(136, "20+0+3+off2", 4),
    Case(136, "9x1+7", 3, out="channels", index="int64"),
    Case(264, "off2+5+0", 1, out="channels_sliced", layout="sliced"),
    Case(6, "2+30", 16, "float32", "sliced_by_2", "channels", spacing=3),
    Case(12, "2+5x3", 4, "float32", out="channels"),
    Case(7, "8+1", 5, "float16", "offset_by_1", "outermost", "int64", 2),
    Case(8, "8+1", 4, "float16", "spaced", "channels_offset"),
    Case(20, "8+1", 4, layout="tokens", out="backward"),
    Case(4, "6+2", 3, layout="backward", out="spaced"),
    Case(4, "6+2", 3, "float16", "backward_dim", "sliced"),
    Case(136, "2+4+0+3+off2+1", 4, out="channels", previous="channels_sliced"),
    Case(6, "2+30+0+1", 16, "float32", previous="dense", index="int64"),
    Case(8, "2+9+1", 4, "float16", out="channels", previous="channels_offset"),
    Case(5, "2+9+1", 4, previous="backward"),
    Case(8, "3x0", 2),
    Case(8, "off5", 2),
    Case(0, "5", 2),
    # Columns enough for a thread to take several.
    Case(8208, "4x2+0+7x12+off3+2x1+5", 9, out="channels", previous="channels"),
    Case(1111, "30x4", 4, "float32", index="int64"),
)

_BATCHES = ("1", "4+5", "2000in3000", "300x3+1000", "off3+7+0+off9")

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(48, spec, n, layout=a) for spec in _BATCHES for n in (1, 3, 4, 20) for a in ("dense", "tokens")),
            *(Case(40, "9+2+30in70", 4, a, b, c) for a in ROUNDING for b in X for c in OUT if b != "repeated"),
            *(Case(40, "9+2", 4, "float16", "repeated", a) for a in OUT),
            *(Case(n, "9+2", 3) for n in (1, 2, 3, 100, 1000, 70000)),
        ]
    )
)
