"""causal_conv1d_bwd: how its arrays can lie in memory, its oracle, and the shapes that tests take."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference_backward
from tests.causal_conv1d.cases_dense import OfRows
from tests.support.compare import ROUNDING
from tests.support.entries import counting
from tests.support.layouts import LAST, LAYOUTS, OTHERS
from tests.support.placement import Array, Placement, place

EXPANDED: dict[str, Any] = {
    "expanded": {"repeated": (0, 1, 2)},
    "expanded_batch": {"repeated": (0,)},
    "expanded_tokens": {"repeated": (2,)},
    "last_expanded_dim": {**LAST, "repeated": (1,)},
}
"""How the gradients of sums and means lie."""


@dataclass(frozen=True)
class Case(OfRows):
    """One call."""

    FUNCTION = "causal_conv1d_bwd"
    OUTPUTS = ("dx", "dweight", "dbias", "dinitial_states")

    dout: str = ""  # as dx when empty
    float32: bool = False  # dweight and dbias
    processors: int = 0  # multiprocessors that plans count with, if any

    def running(self) -> AbstractContextManager[Any]:
        return counting(self.processors) if self.processors else super().running()

    def placements(self) -> dict[str, Placement]:
        placed = super().placements()
        shape, dx_lies = placed["x"].shape, LAYOUTS[self.layout][1]
        dout_lies = EXPANDED[self.dout] if self.dout in EXPANDED else LAYOUTS[self.dout or self.layout][1]
        placed["dout"] = place(self.input_t, shape, **dout_lies)
        if self.final:
            placed["dfinal_states"] = self.place_states("final_states_out")
        placed |= {"dx": place(self.input_t, shape, **dx_lies), **self.gradients_of_taps(float32=self.float32)}
        if self.initial:
            placed["dinitial_states"] = self.place_states("initial_states")
        return placed

    def spoil(self, arrays: dict[str, Array]) -> None:
        """Make x and dout NaN where a sequence number is negative, if no other token lies in the same memory."""
        for name in ("x", "dout") if self.seq_idx else ():
            if 0 not in arrays[name].strides:
                arrays[name][...] = np.where(arrays["seq_idx"][:, None] < 0, np.nan, arrays[name])

    def options(self) -> dict[str, Any]:
        return {"activation": self.activation} | ({"bias": None} if self.bias is None else {})

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Array]:
        gradients = reference_backward.causal_conv1d_bwd(**self.arguments(arrays))._asdict()
        return {name: gradients[name] for name in self.placements() if name in self.OUTPUTS}


ALL: Any = {"seq_idx": True, "initial": True, "final": True}
STATES: Any = {"initial": True, "final": True}

UNIT = (
    # Tokens contiguous, long rows: several warps and steps, rows at every phase, every access width, number of slots.
    Case(1, 5, 1029),
    Case(2, 3, 1029, 6, "float16", layout="sliced_alike", **STATES),
    Case(1, 2, 1024, 2, "float16", seq_idx=True, activation=None),
    Case(1, 2, 2100, 5, "float32", float32=True, **ALL),
    Case(11, 2, 640, 4, "float32"),
    Case(1, 9, 300, 16, "float32", bias=None, activation=None, **ALL),
    Case(1, 3, 1041, 16, weight_dtype="float32", others="strided", **STATES),
    Case(1, 2, 1040, 9, "float16", "bfloat16", bias="float32", layout="sliced_aligned"),
    Case(2, 2, 1025, 3, "float32", "float16", layout="offset_alike", activation=None),
    Case(2, 3, 360, layout="offset_by_4", others="backward", **ALL),
    Case(1, 3, 300, 7, layout="offset_by_2", weight_dtype="float16", final=True),
    Case(1, 2, 260, 10, "float32", "bfloat16", layout="offset_by_2", initial=True),
    Case(1, 9, 150, layout="spaced", **ALL),
    Case(1, 3, 140, 16, "float32", layout="spaced", activation="swish"),
    Case(1, 3, 131, 8, "float16", layout="backward_seq", bias="float32", **STATES),
    Case(1, 4, 400, 1, layout="backward_rows", bias="float32"),
    Case(7, 3, 256, dout="expanded", float32=True),
    Case(3, 2, 520, 4, "float32", dout="expanded_tokens", **STATES),
    Case(2, 3, 264, dout="sliced_seq"),
    # Whole aligned vectors, a part of a row at once: rows and channels that end inside a block, several parts, and
    # blocks without an edge, of one channel, of two and of four.
    Case(2, 3, 1640),
    Case(1, 1, 3152),
    Case(1, 1, 32000, 2, "float16", bias="float32", layout="sliced_aligned"),
    Case(2, 1, 4096, 3, "float32", weight_dtype="float16"),
    Case(1, 2, 2048, bias=None, dout="expanded_batch"),
    Case(3, 4, 512, 2, "float32", activation=None, float32=True),
    # The same, brought by bulk copies: several units of a row, the last one in part, and one unit.
    Case(2, 3, 1640, 5),
    # The same with units of one group, which long rows of small problems have.
    Case(1, 3, 2200, 7),
    Case(1, 2, 1096, 6, "float32", "float16"),
    Case(1, 2, 1000, 5, "float32", "bfloat16", float32=True),
    Case(9, 6, 512, 3, "float16", weight_dtype="float32", bias=None),
    Case(1, 5, 1304, 16, others="strided", activation=None),
    # The same and short: several rows a warp, more batch entries than a step, rows shorter than the filter.
    Case(40, 64, 32),
    Case(3, 64, 33),
    Case(9, 24, 19, 6, weight_dtype="float32", others="strided", **STATES),
    Case(3, 8, 13, 9, "float32", activation=None, **ALL),
    Case(1, 3, 21, 16, "float16", others="offset", **ALL),
    Case(5, 90, 30, 4, "float32", bias="float32", weight_dtype="float16", float32=True),
    Case(5, 3, 64, 3, "float16", weight_dtype="float32", dout="expanded_batch", **ALL),
    Case(2, 150, 7, 16, "float16", activation=None, **ALL),
    Case(3, 20, 40, 12, "float32", layout="sliced_aligned", **STATES),
    Case(3, 11, 20, 16, layout="sliced_dim", others="offset", **ALL),
    Case(2, 40, 65, 5, layout="sliced_seq", bias=None, seq_idx=True),
    Case(3, 6, 48, 13, layout="offset_by_4", final=True),
    Case(2, 6, 48, 11, "float16", layout="offset_by_2", activation=None, initial=True),
    Case(1, 5, 30, 14, layout="offset_by_1", activation=None, **STATES),
    Case(3, 7, 26, 4, "float32", layout="broadcast_batch", **ALL),
    Case(2, 7, 26, layout="transposed", others="strided", **ALL),
    Case(3, 5, 18, 2, "float16", layout="mixed_to_last", others="backward", **STATES),
    Case(5, 3, 1, **ALL),
    Case(4, 5, 2, 15, "float32", others="backward", **STATES),
    # Channels contiguous: more than a block's, fewer than a warp's, several steps, walks and parts, every access width.
    Case(1, 136, 60, layout="channel_last"),
    Case(1, 136, 300, layout="channel_last"),
    Case(1, 130, 260, 3, "float32", layout="channel_last", **ALL),
    Case(2, 130, 21, 4, "float32", layout="channel_last", **ALL),
    Case(1, 128, 30, 3, "float16", "float32", layout="channel_last", others="offset_weight", seq_idx=True),
    Case(2, 3, 65, 2, layout="channel_last", others="strided", initial=True),
    Case(2, 6, 35, 5, "float16", layout="channel_last", bias=None, final=True),
    Case(3, 8, 40, 16, "float32", layout="channel_last", activation=None, **ALL),
    Case(2, 12, 24, 16, layout="channel_last", weight_dtype="float32", others="offset", **ALL),
    Case(1, 16, 33, 8, "float16", "bfloat16", layout="last_sliced_dim", others="backward", **STATES),
    Case(2, 10, 33, 9, "float32", "bfloat16", layout="last_sliced_dim_by_2", activation="swish"),
    Case(2, 12, 17, 1, layout="last_sliced_dim_by_3", bias="float32"),
    Case(3, 20, 19, 6, layout="last_sliced_seq", weight_dtype="float16", others="offset_bias", float32=True, **ALL),
    Case(2, 9, 19, 7, "float32", layout="last_offset_by_1", **STATES),
    Case(2, 36, 16, 12, layout="last_offset_by_2", activation=None, seq_idx=True),
    Case(3, 12, 22, layout="last_broadcast_batch", **ALL),
    Case(2, 24, 22, 10, "float16", layout="last_backward_seq", others="strided", **ALL),
    Case(2, 7, 20, layout="last_backward_dim", **STATES),
    Case(3, 7, 20, 13, "float32", "float16", layout="transposed_last", **ALL),
    Case(2, 10, 20, 11, "float16", layout="mixed_to_first", **STATES),
    Case(4, 8, 1, layout="channel_last", **ALL),
    Case(3, 2, 9, 4, "float32", layout="channel_last", **ALL),
    Case(4, 4, 5, 14, "float32", layout="channel_last", **STATES),
    Case(600, 5, 3, layout="channel_last", **STATES),
    Case(2, 8, 400, layout="channel_last", dout="expanded", **STATES),
    Case(2, 16, 44, 4, "float16", layout="channel_last", dout="last_expanded_dim", float32=True),
    Case(2, 16, 44, layout="channel_last", dout="channel_first"),
    # Large blocks.
    Case(2, 136, 100, layout="channel_last", processors=1),
    Case(2, 132, 67, 3, "float16", layout="channel_last", processors=1, **ALL),
    # Pairs of vectors along contiguous channels: rows that end inside a walk and between two, walks of all lanes of a
    # warp and of a few, large blocks.
    Case(3, 128, 88, layout="channel_last"),
    Case(1, 256, 528, 3, "float16", weight_dtype="float32", layout="last_sliced_dim", bias="float32", float32=True),
    Case(5, 128, 24, 2, "float32", layout="last_sliced_seq", activation=None),
    Case(2, 128, 64, 1, "float16", "float16", layout="channel_last", bias=None),
    Case(4, 8, 512, layout="channel_last", others="offset_weight"),
    Case(3, 128, 520, layout="last_sliced_seq", processors=1),
    # The same in rounds: one part and several, parts that end inside a round, fewer vectors than a block can have.
    Case(2, 256, 392, layout="channel_last", processors=1),
    Case(5, 64, 472, 2, "float32", "float16", layout="channel_last", processors=1),
    Case(1, 32, 4624, 3, "float32", layout="last_sliced_dim", bias="float32", processors=1),
    Case(1, 256, 776, 1, "float16", "float32", layout="channel_last", activation=None, bias=None, processors=1),
    # The same in columns, one row and several, of walks that are one turn of the stages and two.
    Case(2, 64, 256, layout="channel_last", processors=2),
    Case(1, 64, 1024, 3, "float16", "float32", layout="channel_last", bias="float32", float32=True, processors=2),
    Case(4, 32, 128, 2, "float32", layout="channel_last", activation=None, others="offset_weight", processors=2),
    Case(1, 64, 512, 1, layout="channel_last", bias=None, processors=2),
    Case(1, 64, 512, 2, "bfloat16", "float16", layout="channel_last", processors=2),
    # Few channels, many tokens: tiles of one row, of several rows, and rows with a gap between them.
    Case(1, 16, 2700, layout="channel_last", processors=1),
    Case(3, 32, 501, 3, "float16", layout="last_sliced_seq", processors=1),
    Case(2, 8, 1411, 2, "float32", "bfloat16", layout="channel_last", activation=None, float32=True, processors=1),
    Case(1, 16, 2900, 1, "float16", "float32", layout="channel_last", others="offset_weight", processors=1),
    # Nothing to convolve, and values that saturate silu.
    Case(2, 5, 0, **STATES),
    Case(2, 8, 0, 15, "float32", layout="channel_last", final=True),
    Case(0, 5, 7, seq_idx=True, final=True),
    Case(0, 5, 7, layout="channel_last", **STATES),
    Case(2, 0, 7, 3, layout="channel_last"),
    Case(1, 4, 64, 4, "float32", scale=64),
    Case(1, 4, 64, 4, "float16", layout="channel_last", scale=64),
)

_LENGTHS = (1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 65, 127, 128, 129, 255, 256, 257, 372, 511, 784, 1023, 1024, 1025,
            2047, 2048, 4095, 4096)  # fmt: skip
_BOTH = ("channel_first", "channel_last")

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(2, 24, n, layout=a, float32=True) for n in _LENGTHS for a in _BOTH),
            *(Case(3, 8, n, 4, "float32", layout=a, **ALL) for n in _LENGTHS for a in _BOTH),
            *(Case(2, n, 784, layout=a, **STATES) for n in (1, 3, 64, 100, 200, 2056) for a in _BOTH),
            *(Case(n, 40, 70, 4, "float16", layout=a, **STATES) for n in (1, 2, 3, 40, 300) for a in _BOTH),
            *(Case(2, 12, 700, n, layout=a, **ALL) for n in range(1, 17) for a in _BOTH),
            *(Case(2, 36, 90, n, "float32", layout=a, **ALL) for n in range(1, 17) for a in _BOTH),
            *(
                Case(2, 20, 333, 4, a, b, bias, layout)
                for a in ROUNDING
                for b in ROUNDING
                for bias in (None, "weight", "float32")
                for layout in _BOTH
            ),
            *(Case(3, 40, 261, 4, a, layout=b, **ALL) for a in ("bfloat16", "float32") for b in LAYOUTS),
            *(Case(2, 24, 200, others=a, layout=b, **ALL) for a in OTHERS for b in _BOTH),
            *(Case(2, 24, 200, dout=a, layout=b) for a in (*EXPANDED, *LAYOUTS) for b in _BOTH),
            *(Case(*shape, layout=a, **ALL) for shape in ((70000, 3, 5), (2, 70000, 9), (65537, 4, 1)) for a in _BOTH),
        ]
    )
)

BIG = tuple(Case(2, 1024, 2**21 + 8, layout=layout, **STATES) for layout in _BOTH)
"""More than 2**32 elements."""
