"""causal_conv1d_update_split: the convolution's decode step with every range of channels in an array of its own."""

from __future__ import annotations

from dataclasses import dataclass

from tests.causal_conv1d.cases_dense import ALL_GATES
from tests.causal_conv1d.channels import RANGES
from tests.causal_conv1d.update import ACCEPTED, ODD, RING, ROWS, Step
from tests.support.compare import ROUNDING
from tests.support.layouts import LAYOUTS


@dataclass(frozen=True)
class Case(Step):
    """One call."""

    FUNCTION = "causal_conv1d_update_split"
    OUTPUTS = RANGES


UNIT = (
    # Borders between vectors, inside them, and several inside one.
    Case((64, 8, 64), 5),
    Case((61, 3, 1, 1, 6, 64), 4, 3, **ODD),
    Case((136,), 3, 2, out="last_sliced_dim", **ACCEPTED),
    Case((8,) * 15 + (16,), 3),
    Case((1,) * 16, 3, 2, **ROWS),
    Case((100, 36), 2, 2, out="channel_first+channel_last", pool="channels_longer", **RING),
    Case((64, 72), 3, out="last_sliced_dim_by_3+last_offset_by_2", index="int64"),
    Case((64, 72), 3, 3, out="spaced+last_backward_seq", pad_slot_id=2, window="channels", **ODD),
    # Few bytes of a few results, which are contiguous.
    Case((64, 8, 64), 9, None),
    Case((100, 36), 20, 1, 3, out="last_sliced_dim", **ODD),
    Case((136, 48, 72), 5, None, 4, "float32", "bfloat16"),
    Case((61, 3, 72), 9, None, **ROWS, **ODD),
    # State columns together.
    Case((64, 8, 64), 5, 2, **ROWS),
    Case((61, 3, 1, 1, 6, 64), 4, **ROWS, **ODD),
    Case((64, 72), 3, 4, out="channel_first+last_sliced_dim", **ROWS, **ACCEPTED),
    Case((64, 8, 64), 3, 3, layout="sliced_alike", window="columns", **ROWS, **RING),
    # Slots out of several columns, other slots for states, kept padding.
    Case((61, 3, 1, 1, 6, 64), 9, 3, table="column", moved=True, longer=3, keep=True, **ODD),
    Case((64, 8, 64), 5, 2, moved=True, table="first", null=True, **ROWS, **ODD),
    Case((64, 72), 9, None, keep=True, pad_slot_id=1, moved=True, slots=None, **ROWS),
    # Packed tokens, states after single tokens, trees.
    Case((61, 3, 1, 1, 6, 64), 9, lengths=(2, 0, 5), behind=2, **ODD),
    Case((64, 8, 64), 5, lengths=(1, 1, 0), most=1, behind=4, keep=True, **ROWS),
    Case((64, 72), 5, 3, token_slots=3, window="overlaid", **ROWS),
    Case((64, 8, 64), 5, 4, tree=True, window="channels", **ODD),
    Case((61, 3, 1, 1, 6, 64), 3, 4, tree=True, token_slots=2),
    # Gates and residuals.
    Case((64, 8, 64), 5, 2, gates=ALL_GATES, **ROWS, **ODD),
    Case((61, 3, 1, 1, 6, 64), 9, None, gates="post_gate", moved=True, **ODD),
    Case((64, 72), 5, lengths=(2, 0, 3), behind=2, gates="pre_gate residual", out="last_sliced_dim", keep=True),
    Case((136,), 3, gates=ALL_GATES),
    Case((2, 3), 0),
)

_SIZES = ((1, 1, 1), (128, 8, 8), (100, 28, 8), (7, 13, 21, 3), (8,) * 16, (3, 5) * 8, (4097, 64, 64), (200,))
_BOTH = ("channels", "columns_and_one")

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(sizes, 7, n, pool=p, **ODD) for sizes in _SIZES for n in (None, 1, 3) for p in _BOTH),
            *(Case(sizes, 3, 2, 4, a, pool=p, **RING) for sizes in _SIZES for a in ROUNDING for p in _BOTH),
            *(Case((41, 7, 16), 3, 2, n, pool=p, **ACCEPTED) for n in range(1, 17) for p in _BOTH),
            *(
                Case((24, 8, 5), 3, n, out=f"{a}+channel_first", pool=p)
                for n in (None, 3)
                for a in LAYOUTS
                for p in _BOTH
            ),
        ]
    )
)
