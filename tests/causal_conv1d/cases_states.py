"""causal_conv1d_varlen_states: the last tokens of every packed sequence."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference
from cuconv.runtime.dtypes import BY_NAME
from tests.support.batches import batch
from tests.support.bounds import ROUNDING
from tests.support.placement import Array, Placed, Placement, place

FUNCTION = "causal_conv1d_varlen_states"
OUTPUTS = ("out",)
UPDATED = ()

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
class Case:
    """One call."""

    dim: int
    batch: str
    state_len: int
    dtype: str = "bfloat16"
    layout: str = "dense"
    out: str = "dense"
    index: str = "int32"
    spacing: int = 1  # of cu_seqlens

    @property
    def id(self) -> str:
        """The case in one word."""
        words = [
            f"{self.dim}of{self.batch}",
            str(self.state_len),
            self.dtype,
            self.layout,
            f"to_{self.out}",
            self.index,
        ]
        return "-".join(words + [f"every{self.spacing}"] * (self.spacing > 1))


def placements(case: Case) -> dict[str, Placement]:
    """Where every array of the call lies."""
    b, dtype = batch(case.batch), BY_NAME[case.dtype]
    return {
        "x": place(dtype, (b.total, case.dim), **X[case.layout]),
        "cu_seqlens": place(BY_NAME[case.index], (b.count + 1,), spacing=case.spacing),
        "out": place(dtype, (b.count, case.dim, case.state_len), **OUT[case.out]),
    }


def place_inputs(case: Case, seed: int = 0) -> dict[str, Placed]:
    """The arrays that are read, with their memory."""
    random = np.random.default_rng([seed, zlib.crc32(case.id.encode())])
    lies = placements(case)
    starts = integers(case, seed)["cu_seqlens"]
    return {
        "x": Placed(lies["x"], random.uniform(-1, 1, lies["x"].shape)),
        "cu_seqlens": Placed(lies["cu_seqlens"], starts),
    }


def inputs(case: Case, seed: int = 0) -> dict[str, Array]:
    """The arrays that are read."""
    return {name: placed.array for name, placed in place_inputs(case, seed).items()}


def integers(case: Case, seed: int = 0) -> dict[str, Array]:
    """The starts."""
    return {"cu_seqlens": np.array(batch(case.batch).bounds)}


def arguments(case: Case, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments, by name."""
    return {**arrays, "state_len": case.state_len}


def oracle(case: Case, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Copies."""
    return {"out": reference.causal_conv1d_varlen_states(arrays["x"], arrays["cu_seqlens"], case.state_len)}


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
    Case(8, "3x0", 2),
    Case(8, "off5", 2),
    Case(0, "5", 2),
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

BIG = ()
