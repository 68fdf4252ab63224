"""causal_conv1d_split: the convolution of packed sequences with every range of channels in an array of its own."""

from __future__ import annotations

from dataclasses import dataclass

from tests.causal_conv1d.channels import RANGES
from tests.causal_conv1d.varlen import ODD, ROWS, Packed, without
from tests.support.compare import ROUNDING
from tests.support.layouts import PACKED


@dataclass(frozen=True)
class Case(Packed):
    """One call."""

    FUNCTION = "causal_conv1d_split"
    OUTPUTS = RANGES


UNIT = (
    # Borders between vectors, inside them, and several inside one.
    Case((64, 8, 64), "40+0+3x1+off5"),
    Case((61, 3, 1, 1, 6, 64), "40+0+3x1", **ODD),
    Case((136,), "23+2", out="channels_sliced"),
    Case((8,) * 15 + (16,), "9+3"),
    Case((1,) * 16, "9+3", pool="columns"),
    Case((100, 36), "18+7", out="tokens+channels"),
    Case((64, 72), "18+7", out="channels_sliced_by_3+channels_offset_by_2", index="int64"),
    Case((64, 72), "18+7", out="channels_spaced+channels_backward", pad_slot_id=2, **ODD),
    Case((5, 8, 3), "11+off3+off2", 3, "float32", "bfloat16", "float16", others="strided", activation=None),
    # Tokens contiguous: every row is one range's.
    Case((2, 1, 2), "600+10x1", initial="all", **ROWS),
    Case((20, 13, 7), "90in512", initial="all", **ROWS, **ODD),
    Case((3, 1), "33+0+8", layout="tokens_sliced", out="tokens_sliced+tokens_offset_by_2", pool="columns", **ODD),
    Case((1, 2), "33+8", layout="tokens_aligned", out="tokens_aligned+channels"),
    # Slots out of several columns, other slots for final states, states that are only read, kept padding.
    Case((61, 3, 1, 1, 6, 64), "off2+20+0+3x1+4", table="column", moved=True, longer=3, keep=True, **ODD),
    Case((20, 13, 7), "90in512", initial="all", moved=True, table="first", null=True, **ROWS, **ODD),
    Case((64, 8, 64), "40+0+3x1+off5", read_only=True, keep=True, first_column=0, pool="channels_longer"),
    Case((61, 3, 1, 1, 6, 64), "off2+20+0+3x1+4+9", snapshots="pool", moved=True, initial="all"),
    Case((20, 13, 7), "90in512", snapshots="whole", initial="all", **ROWS),
    Case((61, 3, 1, 1, 6, 64), "off2+20+0+3x1+4+9", gates="pre_gate post_gate residual", initial="all"),
    Case((20, 13, 7), "90in512", gates="pre_gate post_gate", slots="odd", **ROWS),
    Case((2, 3), "0+0"),
    without(Case((40, 24), "all20")),
)

_SIZES = ((1, 1, 1), (128, 8, 8), (100, 28, 8), (7, 13, 21, 3), (8,) * 16, (3, 5) * 8, (4097, 64, 64), (200,))
_BOTH = ("channels", "tokens")

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(sizes, "200+0+30x1+off9", layout=a, **ODD) for sizes in _SIZES for a in _BOTH),
            *(Case(sizes, "70in500", 4, a, layout=b) for sizes in _SIZES for a in ROUNDING for b in _BOTH),
            *(Case((41, 7, 16), "61+30+2", n, layout=a) for n in range(1, 17) for a in _BOTH),
            *(Case((24, 8), "90+5", layout=a, out=b) for a in _BOTH for b in PACKED),
            *(Case((24, 8, 5), "90+5", layout=a, out=f"{b}+tokens") for a in _BOTH for b in PACKED),
        ]
    )
)
