"""causal_conv1d_update_qkv_split: the convolution's decode step with q, k and v in arrays of their own, by heads."""

from __future__ import annotations

from dataclasses import dataclass

from tests.causal_conv1d.cases_dense import ALL_GATES
from tests.causal_conv1d.channels import QKV, OfHeads
from tests.causal_conv1d.update import ACCEPTED, FROZEN, ODD, RING, ROWS, Step
from tests.support.compare import ROUNDING
from tests.support.layouts import HEADS


@dataclass(frozen=True)
class Case(OfHeads, Step):
    """One call; `channels` are the heads of q, k and v and their dims."""

    FUNCTION = "causal_conv1d_update_qkv_split"
    OUTPUTS = QKV

    out: str = "dense"


UNIT = (
    # Head dims of vectors and not, borders of q, k and v inside vectors.
    Case((2, 2, 2, 16, 16, 32), 5),
    Case((2, 2, 2, 16, 16, 32), 5, 3, **ACCEPTED),
    Case((1, 2, 1, 30, 30, 46), 4, 2, **ODD),
    Case((30, 30, 76, 1, 1, 1), 3),
    Case((2, 1, 1, 64, 96, 128), 2, 2, out="sliced+sliced_heads+dense", pool="channels_longer", **RING),
    Case((2, 1, 1, 64, 64, 128), 3, 2, out="head_major+transposed+spaced", index="int64", **ODD),
    Case((1, 1, 2, 12, 20, 8), 3, out="backward+offset_by_1+backward_head"),
    # State columns together.
    Case((1, 2, 1, 30, 30, 46), 4, **ROWS, **ODD),
    Case((2, 1, 1, 64, 96, 128), 2, 2, out="sliced+sliced_heads+dense", **ROWS, **RING),
    Case((1, 1, 2, 12, 20, 52), 3, 3, out="transposed+offset_by_1+head_major", window="columns", **ROWS),
    # Slots out of several columns, other slots for states, kept padding.
    Case((1, 2, 1, 30, 30, 46), 9, 2, table="column", moved=True, longer=3, keep=True, **ODD),
    Case((2, 2, 2, 16, 16, 32), 9, None, table="first", moved=True, keep=True, null=True, **ODD),
    # Packed tokens, states after single tokens, trees.
    Case((1, 2, 1, 30, 30, 46), 9, lengths=(2, 0, 5), behind=2, out="sliced+spaced+transposed", **ODD),
    Case((2, 2, 2, 16, 16, 32), 5, lengths=(1,), most=1, **ROWS),
    Case((2, 2, 2, 16, 16, 32), 5, 3, token_slots=2, window="columns", **FROZEN),
    Case((2, 2, 2, 16, 16, 32), 5, 4, tree=True),
    Case((1, 2, 1, 30, 30, 46), 9, 2, gates=ALL_GATES, out="sliced+spaced+transposed", **ODD),
    Case((2, 2, 2, 16, 16, 32), 5, gates="pre_gate post_gate", fresh=True),
    Case((1, 1, 1, 8, 8, 8), 3, 0),
)

_HEADS = ((2, 2, 4, 64, 64, 64), (1, 1, 1, 1, 1, 1), (3, 2, 1, 5, 7, 11), (4, 4, 4, 96, 96, 96),
          (16, 1, 1, 64, 64, 64), (2, 2, 4, 128, 128, 256), (2, 2, 2, 100, 100, 36))  # fmt: skip
_BOTH = ("channels", "columns_and_one")

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(heads, 7, n, pool=p, **ODD) for heads in _HEADS for n in (None, 1, 3) for p in _BOTH),
            *(
                Case(heads, 3, 2, 4, a, pool=p, bias=None, **ACCEPTED)
                for heads in _HEADS
                for a in ROUNDING
                for p in _BOTH
            ),
            *(Case((2, 2, 1, 64, 64, 32), 3, 2, n, pool=p, **RING) for n in range(1, 17) for p in _BOTH),
            *(Case((2, 2, 1, 64, 64, 32), 3, n, out=a, pool=p) for n in (None, 3) for a in HEADS for p in _BOTH),
        ]
    )
)
