"""selective_scan_fn: rows of tokens, whole or in segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.runtime.dtypes import FLOAT32
from cuconv.runtime.launch import ceil_div
from cuconv.selective_scan import reference
from cuconv.selective_scan.kernels import SegmentKernel, chunk_tokens
from tests import cases
from tests.selective_scan.scan import OfStates
from tests.support.compare import ROUNDING
from tests.support.layouts import BY_TOKEN, LAYOUTS, PARAMETERS
from tests.support.placement import Array, Placement, place

STATES = ("initial_state", "last_state_out", "chunk_states_out")


@dataclass(frozen=True)
class OfRows(OfStates):
    """A call on rows of tokens."""

    batch: int
    dim: int
    seqlen: int
    d_state: int = 16
    groups: int | None = None
    dtype: str = "bfloat16"
    params: str = "float32"  # dtype of D, delta_bias and constants; u's when empty
    constants: str = ""  # which of B and C are
    without: str = ""  # which of the optional arrays are left out
    softplus: bool = True
    layout: str = "channel_first"
    delta: str = ""  # how delta lies; as u when empty
    matrices: str = "dense"  # how B and C lie
    others: str = "dense"  # how A, D, delta_bias, constants and states lie
    loud: float = 1.0  # factor on delta and z

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of u."""
        return self.batch, self.dim, self.seqlen

    def place_state(self, *chunks: int) -> Placement:
        """One state per channel, or one per chunk of it."""
        shape = (self.batch, *chunks, self.dim, self.d_state)
        return place(FLOAT32, shape, **PARAMETERS[self.others](len(shape)))

    def place_chunks(self) -> Placement:
        """The states before chunks."""
        return self.place_state(ceil_div(self.seqlen, chunk_tokens()))

    def placements(self) -> dict[str, Placement]:
        lies, states = LAYOUTS[self.layout][0], PARAMETERS[self.others]
        placed = {name: place(self.input_t, self.shape, **lies) for name in ("u", "delta", "z")} | self.parameters()
        placed["delta"] = place(self.input_t, self.shape, **LAYOUTS[self.delta or self.layout][0])
        for name in "BC":
            placed[name] = self.matrix((self.batch,), self.seqlen)
            if name in self.constants:
                placed[name] = place(self.param_t, (self.dim, self.d_state), **states(2))
        return placed | {"initial_state": self.place_state()}


@dataclass(frozen=True)
class Case(OfRows):
    """One call."""

    FUNCTION = "selective_scan_fn"
    OUTPUTS = ("out", "last_state_out")
    UPDATED = ("chunk_states_out",)

    processors: int = 0

    def placements(self) -> dict[str, Placement]:
        out = place(self.input_t, self.shape, **LAYOUTS[self.layout][1])
        states = {"last_state_out": self.place_state(), "chunk_states_out": self.place_chunks()}
        return self.in_order({**super().placements(), "out": out, **states})

    def spoil(self, arrays: dict[str, Array]) -> None:
        """Begin with NaN in what is only written."""
        if "chunk_states_out" in arrays:
            arrays["chunk_states_out"][...] = np.nan

    def options(self) -> dict[str, Any]:
        return {**super().options(), "return_last_state": self.has("last_state_out")}

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Array]:
        named = {name: array for name, array in arrays.items() if name not in self.UPDATED}
        result = reference.selective_scan_fn(**named, delta_softplus=self.softplus)
        results = zip(("out", *STATES[1:]), result, strict=True)
        return {name: each for name, each in results if self.has(name)}

    def errors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """The errors with the segments that are planned."""
        found: Mapping[str, Array] = reference.ERRORS[self.FUNCTION](
            **self.arguments(arrays), segment_tokens=self.segment_tokens()
        )
        return found

    def segment_tokens(self) -> int:
        """Tokens per segment that are planned; more than there are where nothing is launched."""
        # Results may be copied behind the scan.
        scans = [launch for launch in self.launches() if isinstance(launch.kernel, SegmentKernel)]
        return int(cases.numbers_of(scans[-1])["segment_tokens"]) if scans else self.seqlen + 1


ROWS: Any = {"layout": "channel_last"}
TURNED: Any = {**ROWS, "matrices": "by_state"}
"""Channels contiguous, and states in B and C."""
NO_STATES = "initial_state last_state_out chunk_states_out"
_PHASES: Any = {"without": "chunk_states_out", "processors": 1}
"""So few multiprocessors that rows that are not aligned are many."""

UNIT = (
    # Every number of lanes and of states a lane, and every access, of whole rows and of segments: the last one whole,
    # of one token, and of more than one chunk.
    Case(2, 70, 48, processors=1),
    Case(1, 3, 3072, processors=1),
    Case(2, 3, 253, 1, dtype="float32", layout="channel_last", without=NO_STATES),
    Case(1, 60, 58, dtype="float16", layout="offset_by_2", processors=1),
    Case(1, 5, 520, 2, dtype="float16", params="", constants="B", without="D z", softplus=False),
    Case(1, 6, 516, 8, 2, constants="C", params=""),
    Case(1, 20, 600, 20, 4, "float32", constants="BC", without="delta_bias", others="strided"),
    Case(1, 3, 516, 50, 3, "float16", others="backward"),
    Case(1, 2, 520, 256, layout="backward_seq", matrices="backward"),
    Case(1, 3, 1032, 26),
    # The same for kernels with lanes that share tokens.
    Case(1, 3, 2560, 12, dtype="float32", processors=1),
    Case(1, 3, 768, 5, dtype="float16"),
    Case(5, 32, 192, 3, 2),
    Case(3, 20, 200, 6, processors=24),
    Case(3, 20, 200, processors=24),
    Case(2, 3, 513, without=NO_STATES),
    Case(1, 3, 2823, without="chunk_states_out", processors=1),
    # The same for lanes that walk all tokens, as with more channels: in each number of parts, blocks beyond the last
    # channel, and one token of a last tile and of a last sweep.
    Case(1, 200, 152, processors=1),
    Case(3, 40, 264, processors=1),
    Case(1, 40, 136, without=NO_STATES, processors=1),
    Case(1, 72, 152, dtype="float16", **TURNED, processors=1),
    Case(2, 72, 265, **TURNED, processors=1),
    Case(1, 40, 131, without="D z delta_bias chunk_states_out", **TURNED, processors=1),
    # Arrays that lie otherwise than u, as in models of transformers: every access, last tiles of some rows and columns,
    # several entries and groups, and both ways.
    Case(2, 72, 265, delta="channel_first", matrices="by_state_fused", **ROWS),
    Case(1, 200, 152, delta="channel_first", processors=1, **ROWS),
    Case(1, 96, 140, 8, 2, delta="channel_first", **ROWS),
    Case(1, 24, 130, 16, dtype="float16", delta="channel_first", **TURNED),
    Case(2, 20, 133, 4, dtype="float32", delta="channel_first", matrices="by_state", **ROWS),
    Case(1, 36, 132, 8, dtype="float32", delta="channel_first", **ROWS),
    Case(1, 24, 520, 24, dtype="float32", delta="channel_first", without="z", **TURNED),
    Case(2, 40, 264, delta="channel_last", matrices="by_state", processors=32),
    Case(1, 35, 200, 12, dtype="float16", delta="channel_last", processors=12),
    Case(1, 12, 68, 3, dtype="float32", matrices="by_state"),
    # Rows that are not aligned: of every length behind whole vectors but one, several entries and groups, copies of B
    # and C alone; and channels that are no whole vectors.
    Case(2, 30, 513, 4, dtype="float32", layout="sliced_alike", processors=1),
    Case(2, 64, 259, 16, 2, matrices="fused", layout="offset_by_1", processors=1),
    Case(1, 24, 262, dtype="float16", without="z " + NO_STATES, layout="offset_by_4", processors=1),
    Case(1, 3, 1030, 20, without=NO_STATES),
    Case(1, 1, 77),
    Case(2, 60, 260, 4, dtype="float16", processors=1, **ROWS),
    # Rows that have phases: every number of them, swept and with tokens shared, blocks with channels beyond the last
    # and with no others, groups, segments, more than 16 states, and rows whose first one is not aligned.
    Case(1, 200, 149, **_PHASES),
    Case(2, 70, 131, **_PHASES),
    Case(3, 40, 77, dtype="float16", without="D z delta_bias initial_state chunk_states_out", processors=1),
    Case(1, 30, 34, **_PHASES),
    Case(1, 65, 267, without="chunk_states_out", processors=4),
    Case(2, 64, 267, groups=2, **_PHASES),
    Case(1, 128, 2050, groups=4, **_PHASES),
    Case(2, 9, 1030, 12, dtype="float32", **_PHASES),
    Case(3, 20, 519, 6, params="", **_PHASES),
    Case(4, 33, 261, 3, dtype="float16", without="z last_state_out chunk_states_out", processors=1),
    Case(2, 30, 513, 4, dtype="float32", layout="sliced_alike", **_PHASES),
    Case(1, 40, 776, 8, dtype="float32", layout="offset_by_4", **_PHASES),
    Case(1, 9, 2563, 3, **_PHASES),
    Case(1, 3, 4103, 3, dtype="float32", **_PHASES),
    Case(2, 5, 301, 40, dtype="float32", **_PHASES),
    Case(3, 24, 300, **_PHASES),
    Case(3, 40, 263, layout="dim_major", **_PHASES),
    # The same with states kept before chunks, which begin inside of tiles: swept and with tokens shared, every number
    # of states a lane, chunks of all tokens and of one.
    Case(1, 136, 777, processors=1),
    Case(1, 200, 277, processors=1),
    Case(1, 420, 261, processors=1),
    Case(2, 40, 769, processors=1),
    Case(1, 20, 1024, 12, dtype="float32", layout="offset_alike", processors=1),
    Case(1, 22, 513, 5, dtype="float16", processors=1),
    Case(2, 33, 300, 3, without="initial_state", processors=1),
    Case(1, 9, 2563, 3, processors=1),
    Case(1, 9, 300, 24, processors=1),
    # Short rows whose lanes share tokens that are not aligned: every access, number of lanes and of states, rows that
    # end in a lane and in front of one, blocks beyond the last channel, chunks, groups inside a block.
    Case(2, 3, 253, 1, dtype="float32", layout="sliced_alike", without=NO_STATES),
    Case(2, 70, 196, 1),
    Case(1, 35, 262, 3, 5, "float16", params="", processors=1),
    Case(2, 30, 77, 4, without="chunk_states_out", others="strided", processors=1),
    Case(2, 20, 56, 2, dtype="float32", without="D z delta_bias", softplus=False),
    Case(3, 20, 77, 4, without="chunk_states_out", others="strided"),
    Case(1, 17, 56, 2, dtype="float16", without="z"),
    Case(1, 5, 190, 4, without=NO_STATES),
    # The same with states divided among warps: one channel after another, with B and C of one group and of several; and
    # rows longer than the window that a warp has of B and C, of which it brings one window ahead, or none.
    Case(2, 35, 43),
    Case(3, 9, 130, 6, 3, "float16", loud=5),
    Case(1, 3, 301, 10, dtype="float32", without="D z"),
    Case(2, 5, 600, 15, without="delta_bias", layout="sliced_alike", processors=3),
    Case(1, 7, 72, 16, dtype="float32", without=NO_STATES),
    Case(1, 42, 43, layout="offset_by_1", processors=1),
    Case(2, 24, 70, 9, 3, "float16", others="strided", processors=1),
    Case(1, 2, 520, dtype="float32", without="z"),
    # One state at a time.
    Case(1, 3, 520, 1, without="z", processors=1),
    # Two tiles that are too large for the next one's B and C to be loaded ahead (TileShape::kStages is 1).
    Case(1, 5, 508, 8, dtype="float32", without="chunk_states_out", processors=2),
    # The same where channels are contiguous, and states in B and C: blocks beyond the last channel, and last tiles of
    # some tokens.
    Case(1, 24, 2824, **TURNED),
    Case(2, 40, 530, 8, dtype="float16", without="D z delta_bias chunk_states_out", **TURNED),
    Case(5, 32, 192, 8, 2, **TURNED),
    Case(3, 40, 70, **TURNED),
    Case(2, 136, 43, processors=1, **TURNED),
    Case(3, 24, 200, **TURNED),
    Case(1, 8, 300, 4, dtype="float32", layout="last_sliced_dim", matrices="by_state_fused"),
    Case(1, 12, 2824, 12, dtype="float32", **TURNED),
    Case(2, 24, 300, without=NO_STATES, **TURNED),
    # Whole tiles in a row; and fewer states in them than there are rows of the next one to be copied meanwhile.
    Case(1, 4, 776, without=NO_STATES, processors=1),
    Case(1, 8, 779, 8, without=NO_STATES, **TURNED, processors=1),
    Case(2, 8, 779, without="z " + NO_STATES, **TURNED, processors=1),
    # More states than a tile has B and C for at a time: the last ones fewer, and blocks beyond the last channel.
    Case(1, 9, 536, 20),
    Case(2, 5, 300, 40, dtype="float32"),
    Case(2, 8, 256, 256, 2, dtype="float16", without=NO_STATES),
    Case(1, 24, 530, 24, 2, **TURNED),
    Case(2, 8, 261, 40, dtype="float16", without="D z delta_bias chunk_states_out", **TURNED),
    Case(2, 24, 300, 24, **TURNED, processors=1),
    # What there is to compute, by kernels that are built anyhow.
    Case(2, 35, 43, layout="offset_by_1", processors=1),
    Case(2, 35, 43, loud=20, layout="offset_by_1", processors=1),
    Case(2, 35, 40, without="D z delta_bias", softplus=False, processors=1),
    Case(2, 35, 64, loud=20, params="bfloat16", processors=1),
    Case(2, 35, 72, 8, processors=1),
    Case(2, 35, 7, without="D"),
    Case(2, 35, 0),
    Case(2, 35, 0, without="last_state_out chunk_states_out"),
    Case(0, 35, 16),
    Case(2, 0, 16),
    Case(2, 35, 264, processors=30),
    Case(2, 35, 264, without="chunk_states_out", processors=30),
    Case(1, 3, 1016, loud=5),
    Case(2, 35, 43, groups=5, **ROWS),
    Case(2, 35, 24, layout="mixed_to_first", matrices="transposed"),
    Case(2, 35, 24, layout="spaced", matrices="fused_by_1"),
)

_DIMS = (1536, 5120, 8192)
_SERVED: Any = {"without": NO_STATES}

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(1, dim, seqlen, **lies) for dim in _DIMS for seqlen in (1, 48) for lies in ({}, ROWS)),
            Case(1, 1536, 513),
            *(Case(2, 48, seqlen) for seqlen in (2, 7, 8, 9, 255, 256, 511, 512, 768, 2047, 5000)),
            *(Case(1, 7, 100, n, dtype=dtype) for n in range(1, 34, 3) for dtype in ROUNDING),
            *(Case(1, 6, 70, n, 2, **ROWS) for n in (16, 63, 64, 65, 127, 128, 129, 255, 256)),
            *(Case(2, 24, 90, layout=layout, dtype=dtype) for layout in LAYOUTS for dtype in ("bfloat16", "float32")),
            *(Case(2, 24, 90, groups=3, matrices=lies) for lies in BY_TOKEN),
            *(Case(2, 24, 600, groups=g, constants=c, dtype=d) for g in (1, 24) for c in ("B", "C") for d in ROUNDING),
            *(Case(2, 24, 600, constants="BC", others=lies) for lies in PARAMETERS),
            Case(300, 40, 30),
            Case(1, 1, 20000),
        ]
    )
)

BIG = (Case(5, 1024, 2**20, without=NO_STATES),)
"""More than 2**32 elements."""
