"""selective_scan_varlen_bwd: the gradients of packed sequences of any lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.runtime.dtypes import BY_NAME, FLOAT32
from cuconv.selective_scan import reference_backward
from tests.selective_scan import cases_bwd
from tests.selective_scan.scan import OfStates
from tests.support.batches import batch
from tests.support.compare import ROUNDING
from tests.support.layouts import BY_TOKEN, PACKED, PARAMETERS
from tests.support.placement import Array, Placement, place

BY_TOKENS = ("u", "delta", "z", "B", "C", "dout")


@dataclass(frozen=True)
class Case(OfStates):
    """One call."""

    FUNCTION = "selective_scan_varlen_bwd"
    # With more, blocks of such small calls have one channel each.
    PROCESSORS = 1
    OUTPUTS = cases_bwd.Case.OUTPUTS

    dim: int
    batch: str
    d_state: int = 16
    groups: int | None = None
    dtype: str = "bfloat16"
    params: str = "float32"  # dtype of D and delta_bias; u's when empty
    without: str = ""  # which of D, z, delta_bias, initial_state and dlast_state are left out
    softplus: bool = True
    layout: str = "tokens"
    delta: str = ""  # how delta lies; as u when empty
    results: str = ""  # how du, ddelta and dz lie; as u when empty
    matrices: str = "dense"  # how B and C lie
    others: str = "dense"  # how A, D, delta_bias, states and query_start_loc lie
    index: str = "int32"
    loud: float = 1.0  # factor on delta and z
    processors: int = 0

    def placements(self) -> dict[str, Placement]:
        b, others = batch(self.batch), PARAMETERS[self.others]
        shape = (self.dim, b.total)
        placed = dict.fromkeys(("u", "delta", "z"), place(self.input_t, shape, **PACKED[self.layout]))
        placed["delta"] = place(self.input_t, shape, **PACKED[self.delta or self.layout])
        placed |= self.parameters() | dict.fromkeys("BC", self.matrix((), b.total))
        placed["initial_state"] = place(FLOAT32, (b.count, self.dim, self.d_state), **others(3))
        placed |= {f"d{name}": each for name, each in placed.items()}
        result = place(self.input_t, shape, **PACKED[self.results or self.layout])
        placed |= dict.fromkeys(("du", "ddelta", "dz"), result)
        placed |= {"dout": placed["u"], "dlast_state": placed["initial_state"]}
        if b.starts is not None:
            placed["query_start_loc"] = place(BY_NAME[self.index], (b.count + 1,), **others(1))
        return self.in_order(placed)

    def integers(self, seed: int = 0) -> dict[str, Array]:
        starts = batch(self.batch).starts
        return {} if starts is None else {"query_start_loc": np.array(starts)}

    def spoil(self, arrays: dict[str, Array]) -> None:
        """Make padding NaN."""
        b = batch(self.batch)
        is_padding = np.ones(b.total, bool)
        is_padding[b.bounds[0] : b.bounds[-1]] = False
        for name in BY_TOKENS:
            if name in arrays:
                arrays[name][..., is_padding] = np.nan

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Array]:
        return cases_bwd.gradients(reference_backward.selective_scan_varlen_bwd, self, arrays)


CHANNELS: Any = {"layout": "channels"}

UNIT = (
    Case(5, "300+0+10+513"),
    Case(5, "off5+301+0+2+255+3x1+40+off2", without="initial_state dlast_state"),
    Case(3, "256+2x0+5+260+off3", 9, without="initial_state dlast_state D"),
    Case(3, "256+2x0+5+260+off3", 9),
    Case(3, "530+600", dtype="float32"),
    Case(4, "251+5x1+0+256+off2+0", dtype="float16", without="initial_state"),
    Case(3, "off3+40x1+500", without="dlast_state"),
    Case(3, "300+2x0+5+260+off2", 9, dtype="float32", without="initial_state dlast_state D"),
    Case(3, "off3+250+8+300", 3, dtype="float16", without="initial_state dlast_state z", layout="tokens_offset_by_1"),
    Case(3, "off7+293+511+off3", dtype="float32"),
    Case(4, "3x1+252+257+off5", 3, 2, "float16", **CHANNELS),
    Case(16, "off3+1+0+254+300+2x5+off2", **CHANNELS),
    Case(24, "off5+251+8+300", 3, 3, "float16", without="initial_state dlast_state z", **CHANNELS),
    Case(8, "530+600", dtype="float32", **CHANNELS),
    Case(8, "3x1+252+257+off5", 5, dtype="float32", without="initial_state dlast_state", **CHANNELS),
    Case(24, "off1+257+0+40", 20, matrices="by_state", **CHANNELS),
    Case(16, "off3+90+0+260+7+off2", delta="tokens", matrices="by_state", **CHANNELS),
    Case(3, "all600", 5),
    Case(70, "100+290", dtype="float32", processors=132),
    Case(3, "256+512+1", 33, 3, "float32", matrices="backward", others="backward", layout="tokens_backward"),
    Case(4, "260+40x1", 20, 2, matrices="transposed", others="strided", index="int64"),
    Case(3, "40+9x1", without="D z delta_bias", softplus=False, layout="tokens_offset_by_1"),
    Case(3, "off2+300+2", without="initial_state dlast_state", params="bfloat16", results="channels"),
    Case(3, "30+5", loud=20),
    Case(3, "off16"),
    Case(3, "3x0"),
    Case(3, "0"),
    Case(0, "7+2"),
)

_BATCHES = ("1", "7+8+9", "64", "255+257", "300x1", "300in300", "50in2000", "100+50x1", "off7+300+9x8+9x17+off60")

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(24, spec, **lies) for spec in _BATCHES for lies in ({}, CHANNELS)),
            *(Case(7, "60+300+5x1+off3", n, dtype=dtype) for n in range(1, 34, 3) for dtype in ROUNDING),
            *(Case(24, "60+5x1", layout=layout, dtype=dtype) for layout in PACKED for dtype in ("bfloat16", "float32")),
            *(Case(24, "60+300", groups=3, matrices=lies) for lies in BY_TOKEN),
            *(Case(24, "60+300", others=lies, index="int64") for lies in PARAMETERS),
            *(Case(200, "700+20x9+1024", dtype=dtype) for dtype in ROUNDING),
            Case(8, "20000"),
        ]
    )
)
