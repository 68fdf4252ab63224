"""selective_scan_bwd: the gradients of rows of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuconv.selective_scan import reference, reference_backward
from tests.selective_scan.cases_dense import OfRows
from tests.support.compare import ROUNDING
from tests.support.layouts import BY_TOKEN, LAYOUTS
from tests.support.placement import Array, Placement, place

DOUT: dict[str, dict[str, Any]] = {
    "dense": {},
    "expanded": {"repeated": (0, 1, 2)},
    "expanded_tokens": {"repeated": (2,)},
    "sliced": {"pad": (0, 0, 3)},
    "backward": {"backward": (1, 2)},
}
"""How dout lies: expanded ones are the gradients of sums."""


@dataclass(frozen=True)
class Case(OfRows):
    """One call."""

    FUNCTION = "selective_scan_bwd"
    # With more, blocks of such small calls have one channel each.
    PROCESSORS = 1
    OUTPUTS = ("du", "ddelta", "dA", "dB", "dC", "dD", "dz", "ddelta_bias", "dinitial_state")

    dout: str = "dense"
    processors: int = 0

    def placements(self) -> dict[str, Placement]:
        lies, out_lies = LAYOUTS[self.layout]
        placed = super().placements()
        placed |= {f"d{name}": each for name, each in placed.items()}
        placed |= {f"d{name}": place(self.input_t, self.shape, **out_lies) for name in ("u", "delta", "z")}
        placed["ddelta"] = place(self.input_t, self.shape, **LAYOUTS[self.delta or self.layout][1])
        placed["dout"] = place(self.input_t, self.shape, **(DOUT[self.dout] if self.dout != "dense" else lies))
        return self.in_order({**placed, "dlast_state": self.place_state(), "chunk_states": self.place_chunks()})

    def spoil(self, arrays: dict[str, Array]) -> None:
        """Give the states before chunks that follow from the other arrays."""
        if "chunk_states" in arrays:
            forward = {
                name: each for name, each in arrays.items() if name not in ("dout", "dlast_state", "chunk_states")
            }
            states = reference.selective_scan_fn(**forward, delta_softplus=self.softplus).chunk_states
            arrays["chunk_states"][...] = states

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Array]:
        return gradients(reference_backward.selective_scan_bwd, self, arrays)


def gradients(function: Any, case: Any, arrays: dict[str, Array]) -> dict[str, Array]:
    """The gradients in float64."""
    named = {"D": None, "z": None, "delta_bias": None, **arrays}
    found = function(**named, delta_softplus=case.softplus)
    return {name: each for name, each in found._asdict().items() if each is not None}


STATES = "initial_state dlast_state chunk_states"
ROWS: Any = {"layout": "channel_last"}
TURNED: Any = {**ROWS, "matrices": "by_state"}
"""Channels contiguous, and states in B and C."""
SWEPT: Any = {"without": "chunk_states", "processors": 1}

UNIT = (
    # Rows of pairs, of single tokens and of any strides; one chunk and several, the last one of any length.
    Case(1, 5, 600),
    Case(2, 3, 514, without="chunk_states"),
    Case(1, 70, 300, dtype="float32", without="chunk_states", processors=132),
    Case(2, 3, 513, 5, dtype="float16", without=STATES),
    Case(1, 4, 257, dtype="float32", layout="sliced_alike", dout="expanded"),
    Case(1, 3, 520, 2, dtype="float32", groups=3),
    Case(2, 6, 300, groups=2, **ROWS),
    Case(1, 3, 700, 7, dtype="float16", layout="spaced", matrices="transposed", others="strided"),
    Case(1, 2, 300, dtype="float32", layout="backward_seq", matrices="backward", others="backward"),
    # Rows that begin at any element, by words of two tokens: chunks of one token, of a few and of all, entries and
    # groups that begin elsewhere, many states, floats; and rows with something else in front of them.
    Case(2, 5, 519),
    Case(3, 7, 257, without="D chunk_states"),
    Case(1, 9, 511, 12, dtype="float16", without="initial_state dlast_state"),
    Case(3, 6, 259, groups=2, layout="dim_major"),
    Case(1, 7, 275, 40, groups=1, without="chunk_states", processors=1),
    Case(1, 14, 259, 33, dtype="float16", processors=1),
    Case(2, 3, 601, dtype="float32", without="delta_bias"),
    Case(1, 4, 259, layout="sliced_alike"),
    # Constants, and more states than a block has under way.
    Case(1, 5, 300, constants="B", without="chunk_states"),
    Case(1, 4, 260, 8, 2, constants="C", params="", dtype="float16"),
    Case(1, 3, 270, 20, constants="BC", dtype="float32", params="", without="delta_bias chunk_states"),
    Case(1, 4, 300, 40, 2, without="chunk_states"),
    Case(1, 3, 257, 33, dtype="float32", constants="B", others="strided"),
    Case(1, 2, 300, 17, dtype="float16", constants="C", without="D z"),
    Case(1, 3, 300, 20, dtype="float16", without="chunk_states"),
    Case(1, 3, 264, 20),
    Case(1, 3, 272, 20, without="z chunk_states"),
    Case(1, 3, 300, 24, dtype="bfloat16", constants="BC"),
    Case(1, 3, 300, 24, dtype="float32"),
    Case(1, 3, 260, 20, dtype="bfloat16", constants="B", without="chunk_states"),
    Case(1, 3, 260, 20, dtype="bfloat16", constants="C"),
    Case(1, 3, 260, 20, dtype="float16", constants="B"),
    Case(1, 3, 260, 20, dtype="float16", constants="BC", without="chunk_states"),
    Case(1, 3, 260, 20, dtype="float32", constants="C", without="chunk_states"),
    Case(1, 3, 100, 3, dtype="float16", constants="B", without="chunk_states"),
    Case(1, 3, 300, 3, dtype="float32", constants="B", without="chunk_states"),
    Case(1, 3, 100, 3, dtype="float16", constants="BC"),
    Case(1, 3, 100, 3, dtype="float32", constants="C"),
    # Groups of contiguous channels: several in a block, the last one alone, and blocks of one each.
    Case(2, 32, 300, groups=2, **TURNED),
    Case(1, 40, 513, processors=1, **TURNED),
    Case(1, 24, 258, dtype="float16", without="z chunk_states", processors=1, **ROWS),
    Case(1, 12, 270, 5, dtype="float32", processors=1, **TURNED),
    Case(1, 12, 257, dtype="float32", without=STATES, **ROWS),
    Case(1, 40, 300, 3, processors=2, **TURNED),
    Case(1, 24, 520, 40, without="chunk_states", processors=1, **TURNED),
    Case(1, 24, 300, 40, processors=1, **TURNED),
    Case(2, 16, 270, 24, dtype="float16", without="D dlast_state", **ROWS),
    Case(1, 12, 300, 33, dtype="float32", without="chunk_states", processors=1, **ROWS),
    # Arrays that lie otherwise than u, as in models of transformers, and their gradients.
    Case(2, 24, 265, delta="channel_first", **TURNED),
    Case(1, 16, 262, delta="channel_first", **TURNED),
    Case(1, 16, 259, delta="sliced_alike", **TURNED),
    Case(1, 20, 132, 5, dtype="float32", delta="channel_first", without="chunk_states", **ROWS),
    Case(2, 9, 133, 3, dtype="float16", delta="channel_last", matrices="by_state"),
    Case(1, 19, 264, 20, delta="channel_last"),
    Case(2, 20, 260, dtype="float16", **ROWS),
    # Short rows as packed sequences: rows that follow each other, and copies of others.
    Case(9, 24, 65, matrices="by_state", without=STATES, processors=1, **ROWS),
    Case(
        9,
        16,
        80,
        dtype="float16",
        delta="channel_first",
        without="dlast_state",
        matrices="by_state_fused",
        processors=1,
        **ROWS,
    ),
    Case(9, 24, 66, dtype="float32", processors=1, **ROWS),
    # Short rows side by side: every number of lanes a row, of warps, of tokens an access, some rows in the last step.
    Case(2, 11, 24, processors=1),
    Case(1, 7, 51, 13, dtype="float16", without="D initial_state", processors=1),
    Case(2, 10, 128, 12, 2, dtype="float32", processors=1),
    Case(2, 6, 196, 8, processors=1),
    Case(3, 10, 60, 7, 2, dtype="float32", without="z", processors=1),
    Case(1, 20, 31, 5, dtype="float16", softplus=False, processors=1),
    Case(2, 9, 64, 4, processors=1),
    Case(1, 12, 20, 2, dtype="float32", processors=1),
    Case(2, 5, 250, 1, without="D z dlast_state", processors=1),
    Case(1, 3, 132, 3, dtype="float16", processors=1),
    Case(2, 20, 24, processors=1, **TURNED),
    Case(1, 21, 61, 6, 3, dtype="float32", processors=1, **ROWS),
    Case(1, 6, 100, 3, dtype="float16", without="z D", processors=1, **ROWS),
    Case(2, 18, 30, 1, processors=1, **ROWS),
    Case(1, 6, 126, 8, delta="channel_last", layout="sliced_alike", dout="expanded", processors=1),
    Case(4, 8, 30, dtype="float32", layout="sliced_alike", processors=1),
    Case(3, 8, 1, dtype="float16", without="z D", processors=1),
    Case(4, 16, 7, 5, dtype="float32", processors=1, **ROWS),
    # A channel a block, and several threads for each of their sums.
    Case(1, 40, 200, 5, dtype="float16", processors=132),
    # Rows of one chunk have no launch in front.
    Case(2, 6, 200, processors=1),
    Case(3, 4, 100, 20, dtype="float32", processors=1),
    Case(2, 5, 150, 9, dtype="float16", processors=1),
    # States that a lane has all of: every access, last chunks of some tokens, groups, and channels turned to tokens.
    Case(2, 9, 520, 4),
    Case(1, 7, 264, 1, dtype="float16", without="z D"),
    Case(2, 12, 300, 2, 3, dtype="float32", without="chunk_states", processors=1),
    Case(1, 6, 259, 3, without="initial_state chunk_states"),
    Case(1, 5, 516, 3, dtype="float16", softplus=False, processors=1),
    Case(1, 9, 131, 1, dtype="float32", loud=20),
    Case(2, 16, 270, 4, **ROWS),
    # Many states for one group of channels after another.
    Case(1, 26, 300, 40, processors=1),
    Case(1, 17, 257, 33, dtype="float16", without="z", processors=1),
    Case(2, 9, 264, 20, dtype="float32", processors=1),
    Case(1, 18, 270, 20, constants="B", processors=1),
    # States before chunks by lanes that walk all tokens, as with more channels: in each number of parts, blocks beyond
    # the last channel, and groups.
    Case(1, 24, 520, **SWEPT),
    Case(3, 40, 264, **SWEPT),
    Case(1, 200, 264, dtype="float16", without=STATES, processors=1),
    Case(1, 64, 520, groups=2, **SWEPT),
    Case(1, 40, 600, **SWEPT, **TURNED),
    Case(2, 72, 265, dtype="float16", softplus=False, **SWEPT, **TURNED),
    Case(1, 200, 270, **SWEPT, **TURNED),
    # What there is to compute.
    Case(2, 3, 40, without="D z delta_bias", softplus=False),
    Case(1, 3, 300, without="z initial_state", dout="expanded_tokens"),
    Case(2, 3, 64, loud=20, params="bfloat16"),
    Case(1, 5, 7, without="D dlast_state"),
    Case(2, 3, 1),
    Case(2, 3, 0),
    Case(0, 3, 16),
    Case(2, 0, 16),
    Case(1, 3, 1016, loud=5, dout="sliced", processors=132),
    Case(1, 3, 300, dout="backward", layout="mixed_to_first"),
)

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(2, 48, seqlen) for seqlen in (2, 7, 8, 9, 255, 256, 257, 511, 512, 768, 2047, 5000)),
            *(Case(1, 7, 300, n, dtype=dtype) for n in range(1, 34, 3) for dtype in ROUNDING),
            *(Case(1, 6, 270, n, 2, **ROWS) for n in (16, 63, 64, 65, 255, 256)),
            *(Case(2, 24, 300, layout=layout, dtype=dtype) for layout in LAYOUTS for dtype in ("bfloat16", "float32")),
            *(Case(2, 24, 300, groups=3, matrices=lies) for lies in BY_TOKEN),
            *(Case(2, 24, 600, groups=g, constants=c, dtype=d) for g in (1, 24) for c in ("B", "C") for d in ROUNDING),
            *(Case(2, 24, 600, dout=lies) for lies in DOUT),
            *(Case(1, 200, 1030, dtype=dtype, without=w) for dtype in ROUNDING for w in ("", "chunk_states", STATES)),
            Case(1, 1536, 700),
            Case(300, 4, 30),
            Case(1, 1, 20000),
        ]
    )
)
