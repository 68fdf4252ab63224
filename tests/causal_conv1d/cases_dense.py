"""causal_conv1d_fn: how its arrays can lie in memory, its oracle, and the shapes that tests take."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference
from cuconv.runtime.dtypes import INT32
from tests.causal_conv1d.channels import OfTaps
from tests.support.compare import ROUNDING
from tests.support.entries import counting
from tests.support.layouts import LAST, LAYOUTS, OTHERS
from tests.support.placement import Array, Placement, place


@dataclass(frozen=True)
class OfRows(OfTaps):
    """A call on rows of tokens."""

    batch: int
    dim: int
    seqlen: int
    width: int = 4
    dtype: str = "bfloat16"
    weight_dtype: str = ""  # x's when empty
    bias: str | None = "weight"  # or "float32"
    layout: str = "channel_first"
    others: str = "dense"
    activation: str | None = "silu"
    seq_idx: bool = False
    initial: bool = False
    final: bool = False
    scale: float = 1.0  # of x

    def place_states(self, name: str) -> Placement:
        """Place initial or final states, their axes in the order of x's."""
        lies = LAST if LAYOUTS[self.layout][0].get("order") == LAST["order"] else {}
        return self.other(name, self.input_t, (self.batch, self.dim, self.width - 1), **lies)

    def placements(self) -> dict[str, Placement]:
        placed = {"x": place(self.input_t, (self.batch, self.dim, self.seqlen), **LAYOUTS[self.layout][0])}
        placed |= self.taps()
        if self.seq_idx:
            placed["seq_idx"] = self.other("seq_idx", INT32, (self.batch, self.seqlen))
        if self.initial:
            placed["initial_states"] = self.place_states("initial_states")
        return placed

    def range(self, name: str) -> tuple[float, float]:
        scale = self.scale if name in ("x", "initial_states") else 1.0
        return -scale, scale

    def integers(self, seed: int = 0) -> dict[str, Array]:
        random = self.random(seed)
        return {"seq_idx": _sequence_numbers(random, (self.batch, self.seqlen))} if self.seq_idx else {}


def _sequence_numbers(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Runs of a few tokens numbered 0 to 2, so that a number comes back within a filter's reach, and -1 and -2."""
    drawn = random.integers(-2, 3, shape)
    continues = random.uniform(size=shape) < 0.7
    for token in range(1, shape[1]):
        drawn[:, token] = np.where(continues[:, token], drawn[:, token - 1], drawn[:, token])
    return drawn


@dataclass(frozen=True)
class Case(OfRows):
    """One call."""

    FUNCTION = "causal_conv1d_fn"
    OUTPUTS = ("out", "final_states_out")

    processors: int = 0  # multiprocessors that plans count with, if any
    gates: str = ""  # which of pre_gate, post_gate and residual there are
    beside: str = ""  # how they lie, as x when empty

    def running(self) -> AbstractContextManager[Any]:
        return counting(self.processors) if self.processors else super().running()

    def placements(self) -> dict[str, Placement]:
        placed = super().placements()
        for name in self.gates.split():
            placed[name] = place(self.input_t, placed["x"].shape, **LAYOUTS[self.beside or self.layout][0])
        placed["out"] = place(self.input_t, placed["x"].shape, **LAYOUTS[self.layout][1])
        if self.final:
            placed["final_states_out"] = self.place_states("final_states_out")
        return placed

    def options(self) -> dict[str, Any]:
        return {"activation": self.activation, "return_final_states": self.final}

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Array]:
        out, states = reference.causal_conv1d_fn(**arrays, activation=self.activation)
        return {"out": out, "final_states_out": states} if self.final else {"out": out}


ALL: Any = {"seq_idx": True, "initial": True, "final": True}
STATES: Any = {"initial": True, "final": True}

ALL_GATES = "pre_gate post_gate residual"

UNIT = (
    # Gates and residuals, in both kernels that have them, at every access width.
    *(
        Case(*sizes, gates=gates, **way)
        for sizes, way in (
            ((1, 5, 1029), {}),
            ((2, 3, 300, 7, "float16"), {"layout": "offset_alike", "beside": "offset_by_1", **ALL}),
            ((2, 3, 40, 3, "float32"), {"layout": "offset_by_2", "activation": None, "final": True}),
            ((3, 2, 130, 5), {"layout": "sliced_aligned", "initial": True, "final": True}),
            ((2, 136, 20, 3), {"layout": "channel_last", "initial": True, "final": True}),
            ((2, 6, 33, 5, "float32"), {"layout": "last_sliced_dim_by_2", **ALL}),
            ((1, 9, 33, 4, "float16"), {"layout": "channel_last", "beside": "channel_first"}),
        )
        for gates in ("pre_gate post_gate", "residual", ALL_GATES)
    ),
    # Long rows: more vectors than a tile, more tiles than a block, rows at every phase, every access width.
    Case(1, 5, 1029),
    Case(2, 3, 1029, 6, "float16", layout="sliced_alike", **STATES),
    Case(1, 2, 1024, 2, "float16", seq_idx=True, activation=None),
    Case(1, 2, 513, 5, "float32", **ALL),
    Case(1, 9, 300, 16, "float32", bias=None, activation=None, **ALL),
    Case(1, 3, 1041, 16, weight_dtype="float32", others="strided", **STATES),
    Case(1, 2, 1040, 9, "float16", "bfloat16", bias="float32", layout="sliced_aligned"),
    Case(2, 2, 1025, 3, "float32", "float16", layout="offset_alike", activation=None),
    # So few multiprocessors that warps are many, and lanes have several vectors.
    Case(2, 9, 1029, processors=1, **STATES),
    Case(1, 17, 1024, 2, "float16", seq_idx=True, processors=1),
    Case(1, 17, 500, 6, layout="offset_alike", processors=1, **ALL),
    Case(1, 33, 300, 3, "float32", layout="sliced_alike", initial=True, processors=1),
    # The vectors of sequence numbers before the first whole vector of x would begin in front of the array.
    Case(1, 3, 1029, 6, layout="offset_alike_by_2", others="offset_by_2", seq_idx=True),
    Case(2, 3, 360, 4, layout="offset_by_4", others="backward", **ALL),
    Case(1, 3, 300, 7, layout="offset_by_2", weight_dtype="float16", final=True),
    Case(1, 2, 260, 10, "float32", "bfloat16", layout="offset_by_2", initial=True),
    Case(1, 9, 150, 4, layout="spaced", **ALL),
    Case(1, 3, 140, 16, "float32", layout="spaced", activation="swish"),
    Case(1, 3, 131, 8, "float16", layout="backward_seq", bias="float32", **STATES),
    Case(1, 4, 400, 1, layout="backward_rows", bias="float32"),
    # Rows of x and of results that are not equally far from alignment, at every distance between them.
    Case(1, 9, 1100, layout="sliced_seq", **STATES),
    Case(2, 9, 270, 2, "float16", "float32", layout="sliced_seq", activation=None, seq_idx=True),
    Case(2, 5, 530, 3, "float32", layout="sliced_seq", **ALL),
    # Wide filters on rows of whole vectors: walks of several units and a part of one, several a row, with every
    # number of vectors a lane.
    Case(1, 2, 2312, 16, weight_dtype="float32", **STATES),
    Case(1, 2, 2304, 16, "float16", activation=None),
    Case(1, 3, 520, 13, "float16", others="strided", bias=None, activation=None, final=True),
    Case(2, 5, 448, 6, "float16", "bfloat16", bias="float32", initial=True),
    Case(1, 3, 200, 10),
    # Short rows: several a warp, more vectors than a block, odd batches, sequences shorter than the halo; dense ones
    # of odd lengths are cut into vectors end to end.
    Case(3, 64, 33),
    Case(2, 24, 19, 6, weight_dtype="float32", others="strided", **STATES),
    Case(3, 8, 13, 9, "float32", activation=None, **ALL),
    Case(1, 3, 21, 16, "float16", others="offset", **ALL),
    Case(1, 90, 30, 4, "float32", bias="float32", weight_dtype="float16"),
    Case(5, 3, 64, 3, "float16", weight_dtype="float32", **ALL),
    Case(2, 150, 7, 16, "float16", activation=None, **ALL),
    Case(3, 20, 40, 12, "float32", layout="sliced_aligned", **STATES),
    Case(3, 11, 20, 16, layout="sliced_dim", others="offset", **ALL),
    Case(2, 40, 65, 5, layout="sliced_seq", bias=None, seq_idx=True),
    Case(3, 6, 48, 13, layout="offset_by_4", final=True),
    Case(2, 6, 48, 11, "float16", layout="offset_by_2", activation=None, initial=True),
    Case(1, 5, 30, 14, layout="offset_by_1", activation=None, **STATES),
    Case(3, 7, 26, 4, "float32", layout="broadcast_batch", **ALL),
    Case(2, 7, 26, 4, layout="transposed", others="strided", **ALL),
    Case(3, 5, 18, 2, "float16", layout="mixed_to_last", others="backward", **STATES),
    Case(5, 3, 1, 4, **ALL),
    Case(4, 5, 2, 15, "float32", others="backward", **STATES),
    # Channels contiguous: more than a block's, fewer than a warp's, tiles across the end, every access width.
    Case(1, 136, 60, layout="channel_last"),
    Case(2, 130, 21, 4, "float32", layout="channel_last", **ALL),
    Case(1, 128, 30, 3, "float16", "float32", layout="channel_last", others="offset_weight", seq_idx=True),
    Case(2, 3, 65, 2, layout="channel_last", others="strided", initial=True),
    Case(2, 6, 35, 5, "float16", layout="channel_last", bias=None, final=True),
    Case(3, 8, 40, 16, "float32", layout="channel_last", activation=None, **ALL),
    Case(2, 12, 24, 16, layout="channel_last", weight_dtype="float32", others="offset", **ALL),
    Case(1, 16, 33, 8, "float16", "bfloat16", layout="last_sliced_dim", others="backward", **STATES),
    Case(2, 10, 33, 9, "float32", "bfloat16", layout="last_sliced_dim_by_2", activation="swish"),
    Case(2, 12, 17, 1, layout="last_sliced_dim_by_3", bias="float32"),
    Case(3, 20, 19, 6, layout="last_sliced_seq", weight_dtype="float16", others="offset_bias", **ALL),
    Case(2, 9, 19, 7, "float32", layout="last_offset_by_1", **STATES),
    Case(2, 36, 16, 12, layout="last_offset_by_2", activation=None, seq_idx=True),
    Case(3, 12, 22, 4, layout="last_broadcast_batch", **ALL),
    Case(2, 24, 22, 10, "float16", layout="last_backward_seq", others="strided", **ALL),
    Case(2, 7, 20, 4, layout="last_backward_dim", **STATES),
    Case(3, 7, 20, 13, "float32", "float16", layout="transposed_last", **ALL),
    Case(2, 10, 20, 11, "float16", layout="mixed_to_first", **STATES),
    Case(4, 8, 1, 4, layout="channel_last", **ALL),
    Case(3, 2, 9, 4, "float32", layout="channel_last", **ALL),
    Case(4, 4, 5, 14, "float32", layout="channel_last", **STATES),
    # Channels contiguous, of tokens that begin at any element.
    Case(2, 129, 37, layout="last_sliced_dim_by_3"),
    Case(1, 129, 70, layout="last_sliced_dim_by_3"),
    Case(3, 131, 30, layout="last_sliced_dim_by_3"),
    Case(1, 251, 45, 3, "float16", "float32", layout="last_sliced_dim_by_3", seq_idx=True),
    Case(2, 130, 40, 4, "float16", layout="last_sliced_dim_by_3", others="offset", **ALL),
    Case(2, 45, 70, 2, layout="last_backward_seq", others="strided", **STATES),
    Case(3, 37, 5, 4, "float16", layout="last_sliced_dim_by_3", bias="float32", activation=None, **ALL),
    Case(2, 33, 20, 1, "float16", layout="last_sliced_dim_by_3", seq_idx=True),
    # The same so long that tiles inside a sequence have code of their own.
    Case(1, 45, 262, 4, layout="last_sliced_dim_by_3", others="offset", **ALL),
    Case(2, 33, 256, 2, "float16", layout="last_sliced_dim_by_3", seq_idx=True),
    Case(1, 41, 290, 3, layout="last_backward_seq", others="strided", **STATES),
    # So few multiprocessors that threads are many, and tiles of contiguous channels are whole.
    Case(2, 136, 140, layout="channel_last", gates=ALL_GATES, processors=1, **STATES),
    Case(1, 72, 270, 5, "float16", layout="channel_last", processors=1, **ALL),
    Case(1, 72, 300, 12, "float32", layout="channel_last", processors=1, **STATES),
    # Wide filters: walks of several units and a part of one, several a sequence; channels of a warp and some more.
    Case(1, 136, 75, 16, "float16", "float32", layout="channel_last", **STATES),
    Case(2, 8, 67, 13, layout="channel_last", others="strided", bias=None, activation=None, final=True),
    Case(1, 72, 150, 6, "float16", "bfloat16", layout="last_sliced_seq", bias="float32"),
    Case(1, 72, 330, 9, "float16", layout="channel_last", processors=1),
    # Short rows of wide filters, in batches large enough that a warp walks from entry to entry. Rows fill all lanes of
    # a warp or most of them, and the last walk and the last warp have less to do.
    Case(1030, 7, 64, 16, processors=1),
    Case(1030, 3, 64, 6, "float16", bias=None, processors=1),
    Case(605, 8, 72, 9, "float16", "float32", bias="float32", activation=None, others="strided", processors=1),
    # Nothing to convolve, and values that saturate silu.
    Case(2, 5, 0, 4, **STATES),
    Case(2, 8, 0, 15, "float32", layout="channel_last", final=True),
    Case(0, 5, 7, 4, seq_idx=True, final=True),
    Case(2, 0, 7, 3, layout="channel_last"),
    Case(1, 4, 64, 4, "float32", scale=64),
    Case(1, 4, 64, 4, "float16", layout="channel_last", scale=64),
)

_LENGTHS = (1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 65, 127, 128, 129, 255, 256, 257, 372, 511, 784, 1023, 1024, 1025,
            1134, 2047, 2048, 4095, 4096)  # fmt: skip
_BOTH = ("channel_first", "channel_last")
_MIXED_DTYPES = [(a, b) for a in ROUNDING for b in ROUNDING]

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(2, 24, n, layout=a) for n in _LENGTHS for a in _BOTH),
            *(Case(3, 8, n, 4, "float32", layout=a, **ALL) for n in _LENGTHS for a in _BOTH),
            *(Case(2, n, 784, layout=a, **STATES) for n in (1, 3, 64, 100, 200, 4128) for a in _BOTH),
            *(Case(n, 40, 70, 4, "float16", layout=a, **STATES) for n in range(1, 6) for a in _BOTH),
            *(Case(2, 12, 700, n, layout=a, **ALL) for n in range(1, 17) for a in _BOTH),
            *(Case(2, 36, 90, n, "float32", layout=a, **ALL) for n in range(1, 17) for a in _BOTH),
            *(
                Case(2, 36, 700, n, a, layout="channel_last", processors=1, **ALL)
                for n in range(1, 17)
                for a in ("bfloat16", "float32")
            ),
            *(
                Case(2, 20, 333, 4, a, b, bias, layout)
                for a, b in _MIXED_DTYPES
                for bias in (None, "weight", "float32")
                for layout in _BOTH
            ),
            *(Case(3, 40, 261, 4, a, layout=b, **ALL) for a in ("bfloat16", "float32") for b in LAYOUTS),
            *(Case(2, 24, 200, 4, others=a, layout=b, **ALL) for a in OTHERS for b in _BOTH),
            *(Case(*shape, layout=a, **ALL) for shape in ((70000, 3, 5), (2, 70000, 9), (65537, 4, 1)) for a in _BOTH),
            *(Case(1, 2, 2**20 + n, layout=a) for n in (0, 1) for a in _BOTH),
        ]
    )
)

BIG = (
    *(Case(2, 1024, 2**21 + 8, layout=layout, **STATES) for layout in _BOTH),  # more than 2**32 elements
    *(Case(3, 1000, 2**20 - 1, 4, "float16", layout=layout, **STATES) for layout in _BOTH),  # more than 2**31 of them
)
