"""causal_conv1d_qkv_split: the convolution of packed sequences with q, k and v in arrays of their own, by heads."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.causal_conv1d.reference import l2norm
from tests.causal_conv1d.channels import QKV, OfHeads
from tests.causal_conv1d.varlen import ODD, ROWS, Packed, without
from tests.support.compare import ROUNDING
from tests.support.entries import counting
from tests.support.layouts import HEADS
from tests.support.placement import Array, Placement, place


@dataclass(frozen=True)
class Case(OfHeads, Packed):
    """One call; `channels` are the heads of q, k and v and their dims."""

    FUNCTION = "causal_conv1d_qkv_split"
    OUTPUTS = QKV
    UPDATED = (*Packed.UPDATED, "payload")

    out: str = "dense"
    l2norm: bool = False
    eps: float = 1e-6
    payload: int = 0  # heads of each of the gates in a payload
    payload_lies: str = "dense"  # as one of PAYLOADS
    processors: int = 0  # multiprocessors that plans count with, if any

    def running(self) -> AbstractContextManager[Any]:
        return counting(self.processors) if self.processors else super().running()

    def divide(self, out: Array) -> dict[str, Array]:
        """q and k divided by their norms where the case says so."""
        q, k, v = QKV
        parts = super().divide(out)
        return {q: l2norm(parts[q], self.eps), k: l2norm(parts[k], self.eps), v: parts[v]} if self.l2norm else parts

    def placements(self) -> dict[str, Placement]:
        placed = super().placements()
        if not self.payload:
            return placed
        total, columns = self.packed.total, self.dim - self.sizes[0] + 2 * self.payload
        outs = {name: placed.pop(name) for name in QKV}
        placed["payload"] = place(self.input_t, (total, columns), **PAYLOADS[self.payload_lies])
        for i in range(2):
            placed[f"payload_gates[{i}]"] = place(self.input_t, (total, self.payload), **PAYLOADS[self.payload_lies])
        return placed | outs

    def arguments(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with the gates of a payload as one."""
        found = super().arguments(arrays)
        gates = tuple(found.pop(f"payload_gates[{i}]") for i in range(2) if f"payload_gates[{i}]" in found)
        return {**found, "payload_gates": gates} if gates else found

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Any]:
        names = [name for name in arrays if name.startswith("payload")]
        results = super().oracle({name: array for name, array in arrays.items() if name not in names})
        if names:
            raw = arrays["x"][self.sizes[0] :].T
            results["payload"] = np.concatenate([raw, *(arrays[f"payload_gates[{i}]"] for i in range(2))], axis=1)
        return results

    def errors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        return super().errors({name: array for name, array in arrays.items() if not name.startswith("payload")})

    def options(self) -> dict[str, Any]:
        return {**super().options(), "qk_l2norm": self.l2norm, "l2norm_eps": self.eps}


PAYLOADS: dict[str, dict[str, Any]] = {
    "dense": {},
    "sliced": {"pad": (0, 8)},
    "offset_by_1": {"shift": 1},
    "spaced": {"spacing": 2},
}
"""How payloads and their gates may lie."""

NORM: Any = {"l2norm": True}
HALF: Any = {"weight_dtype": "float16", "bias": "float32"}

UNIT = (
    # Head dims of vectors and not, borders of q, k and v inside vectors.
    Case((2, 2, 2, 16, 16, 32), "off5+40+0+3x1"),
    Case((1, 2, 1, 5, 5, 7), "20+2", **ODD),
    Case((3, 3, 5, 1, 1, 1), "20+2", pool="columns"),
    Case((2, 1, 1, 64, 96, 128), "9+1", out="sliced+sliced_heads+dense"),
    Case((2, 1, 1, 64, 64, 128), "9+1", out="head_major+transposed+spaced", index="int64", **ODD),
    Case((1, 1, 2, 12, 20, 8), "9+off4+off2", out="backward+offset_by_1+backward_head"),
    Case((1, 1, 2, 4, 4, 8), "33+0+8", pool="columns", **ROWS),
    without(Case((1, 2, 1, 16, 8, 8), "all20", 3, "float32", activation=None)),
    # Normalised: heads of a part of a warp, of all of it and of more; odd ones; zeros.
    Case((2, 1, 2, 64, 64, 32), "off5+20+0+3", **NORM),
    Case((1, 1, 1, 128, 128, 16), "20+3", bias=None, out="sliced+head_major+dense", **NORM),
    Case((1, 1, 1, 256, 256, 8), "12+3", 4, "float32", index="int64", state_dtype="bfloat16", **NORM, **ODD),
    Case((1, 1, 1, 256, 256, 8), "12+3", 4, "float32", index="int64", state_dtype="bfloat16", eps=0.5, **NORM, **ODD),
    Case((2, 1, 1, 96, 96, 64), "12+3", 3, "float16", "float32", "float32", activation=None, pool="columns", **NORM),
    Case((2, 2, 1, 5, 5, 3), "12+3", eps=0.01, **NORM, **ODD),
    Case(
        (2, 3, 2, 1, 1, 1),
        "12+3",
        2,
        "float32",
        state_dtype="float16",
        eps=0.25,
        others="strided",
        out="spaced",
        **NORM,
    ),
    Case((1, 1, 1, 64, 128, 5), "12+3", 7, out="transposed+offset_by_1+dense", pool="backward", **HALF, **NORM),
    Case((2, 2, 1, 8, 8, 8), "33+0+2+off1", pool="columns_longer", **NORM, **ROWS),
    Case((1, 1, 1, 8, 8, 8), "2x0", **NORM),
    Case((1, 2, 1, 64, 32, 8), "9+0+23", 5, **NORM),
    # The same in whole tiles of the usual lengths, and long ones.
    Case((2, 1, 2, 64, 64, 32), "40+off2+30", 7, processors=1, **NORM),
    Case((2, 1, 2, 64, 64, 32), "off3+30+0+3+31", processors=1, **NORM, **ODD),
    Case((1, 1, 1, 256, 256, 8), "33+9", 4, "float32", state_dtype="bfloat16", initial="all", processors=1, **NORM),
    Case((2, 1, 2, 64, 64, 32), "off5+420+0+3+90", processors=1, **NORM),
    Case((1, 2, 1, 96, 80, 72), "off5+350+0+3+20", 3, "float16", payload=2, moved=True, processors=1, **NORM, **ODD),
    # Short sequences: tokens of prefixes on both sides of a tile's end, several sequences per tile, padding.
    Case((2, 1, 2, 64, 64, 32), "off5+9x1+0+2+17+14+0+3+31+40in200+off4", processors=1, **NORM),
    Case(
        (1, 1, 1, 128, 128, 16),
        "40in300+off9",
        3,
        "float16",
        state_dtype="float32",
        bias=None,
        index="int64",
        processors=1,
        **NORM,
    ),
    Case(
        (2, 1, 1, 96, 96, 64),
        "off3+60in300+1",
        2,
        state_dtype="float16",
        activation=None,
        eps=0.5,
        processors=1,
        **NORM,
    ),
    Case((2, 1, 1, 128, 64, 128), "50x1+0+11x2+15+1+14+2+13+3+9x4", initial="all", processors=1, **ODD, **NORM),
    Case((2, 1, 1, 128, 128, 64), "off2+40x1+0+3+20x1+2+9", processors=1, **NORM),
    Case((1, 1, 1, 128, 128, 16), "40in300+off9", 3, weight_dtype="float32", processors=1, **NORM),
    # Slots out of several columns, other slots for final states, states that are only read, kept padding.
    Case((2, 1, 2, 64, 64, 32), "off5+20+0+3+2+9", table="column", moved=True, longer=3, **ODD, **NORM),
    Case((2, 1, 2, 64, 64, 32), "off5+20+0+3+2+9", keep=True, read_only=True, null=True, **ODD, **NORM),
    Case((1, 1, 1, 256, 256, 8), "12+3+1", 4, "float32", initial="all", moved=True, state_dtype="bfloat16", **NORM),
    Case((2, 1, 2, 64, 64, 32), "off5+20+0+3+2+9", snapshots="pool", moved=True, initial="all", **ODD, **NORM),
    Case((1, 1, 1, 256, 256, 8), "12+3+1", 4, "float32", initial="all", snapshots="whole", **NORM),
    Case((2, 1, 2, 64, 64, 32), "off5+20+0+3+2+9", payload=2, **ODD, **NORM),
    Case((1, 1, 1, 256, 256, 8), "12+3+1", 4, "float32", payload=40, payload_lies="sliced", moved=True, **NORM),
    Case((2, 2, 2, 16, 16, 32), "off5+40+0+3x1+9", payload=3, payload_lies="offset_by_1"),
    Case((2, 2, 2, 16, 16, 32), "off5+40+0+3x1+9", payload=4, snapshots="pool", initial="all"),
    Case((2, 2, 2, 16, 16, 32), "off5+40+0+3x1", gates="pre_gate residual"),
    Case((1, 2, 1, 5, 5, 7), "20+2", payload=1, payload_lies="spaced"),
    Case((1, 1, 2, 4, 4, 8), "33+0+8", 5, "float16", pool="columns", payload=2, **ROWS),
    Case((2, 2, 2, 16, 16, 32), "off5+40+0+3x1", snapshots="window", read_only=True, longer=2),
    Case((2, 2, 2, 16, 16, 32), "off5+40+0+3x1", keep=True, table="first", longer=1, moved=True, **ODD),
)

_HEADS = ((2, 2, 4, 64, 64, 64), (1, 1, 1, 1, 1, 1), (3, 2, 1, 5, 7, 11), (4, 4, 4, 96, 96, 96),
          (16, 1, 1, 64, 64, 64), (2, 2, 4, 128, 128, 256), (1, 2, 3, 256, 256, 128), (2, 2, 2, 100, 100, 36),
          (1, 1, 1, 512, 512, 64))  # fmt: skip
_EITHER = (False, True)
_SAFE: Any = {"eps": 0.01}

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(heads, "90+0+20x1+off9", l2norm=norm, **_SAFE, **ODD) for heads in _HEADS for norm in _EITHER),
            *(Case(heads, "30in200", 4, a, bias=None, **NORM, **_SAFE) for heads in _HEADS for a in ROUNDING),
            *(Case(heads, "60+2", l2norm=norm, **ROWS, **_SAFE) for heads in _HEADS for norm in _EITHER),
            *(Case((2, 2, 1, 64, 64, 32), "61+30+2", n, **NORM, **_SAFE) for n in range(1, 17)),
            *(Case((2, 2, 1, 64, 64, 32), "61+2", out=a, l2norm=norm) for a in HEADS for norm in _EITHER),
        ]
    )
)
