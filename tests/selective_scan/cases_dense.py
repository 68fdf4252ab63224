"""selective_scan_fn: rows of tokens, whole or in segments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cuconv
from cuconv.runtime.launch import ceil_div
from cuconv.selective_scan import reference
from cuconv.selective_scan.kernels import chunk_tokens
from tests import cases
from tests.selective_scan import scan
from tests.selective_scan.scan import OfStates
from tests.support.bounds import ROUNDING, stored
from tests.support.layouts import BY_TOKEN, LAYOUTS, PARAMETERS
from tests.support.placement import Array, Placed, Placement, place

FUNCTION = "selective_scan_fn"
OUTPUTS = ("out", "last_state_out")
UPDATED = ("chunk_states_out",)
RANGES = scan.RANGES
STATES = ("initial_state", "last_state_out", "chunk_states_out")


@dataclass(frozen=True)
class Case(OfStates):
    """One call."""

    batch: int
    dim: int
    seqlen: int
    d_state: int = 16
    groups: int | None = None  # None: without an axis of groups
    dtype: str = "bfloat16"
    params: str = "float32"  # dtype of D, delta_bias and constants; u's when empty
    constants: str = ""  # which of B and C are
    without: str = ""  # which of D, z, delta_bias and of the states' arrays are left out
    softplus: bool = True
    layout: str = "channel_first"
    matrices: str = "dense"  # how B and C lie
    others: str = "dense"  # how A, D, delta_bias, constants and states lie
    loud: float = 1.0  # factor on delta and z
    segment: int = 0  # tokens per segment where a larger case is launched in place of this one

    @property
    def id(self) -> str:
        """The case in one word; what is left at its default is not named."""
        words = [f"{self.batch}x{self.dim}x{self.seqlen}n{self.d_state}", *self.words()]
        words += [f"g{self.groups}"] * (self.groups is not None) + [f"constant_{self.constants}"] * bool(self.constants)
        words += [self.layout] * (self.layout != "channel_first")
        return "-".join(words + [f"matrices_{self.matrices}"] * (self.matrices != "dense"))

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of u."""
        return self.batch, self.dim, self.seqlen


def placements(case: Case) -> dict[str, Placement]:
    """The placement of every array of the call, in the order of the arguments."""
    lies, out_lies = LAYOUTS[case.layout]
    states = PARAMETERS[case.others]
    placed = {"u": place(case.input_t, case.shape, **lies), "delta": place(case.input_t, case.shape, **lies)}
    placed |= case.parameters()
    grouped = () if case.groups is None else (case.groups,)
    for name in "BC":
        if name in case.constants:
            placed[name] = place(case.param_t, (case.dim, case.d_state), **states(2))
        else:
            shape = (case.batch, *grouped, case.d_state, case.seqlen)
            placed[name] = place(case.input_t, shape, **BY_TOKEN[case.matrices](len(shape)))
    if case.has("z"):
        placed["z"] = place(case.input_t, case.shape, **lies)
    placed["out"] = place(case.input_t, case.shape, **out_lies)
    one = (case.batch, case.dim, case.d_state)
    chunked = (case.batch, ceil_div(case.seqlen, chunk_tokens()), *one[1:])
    for name, shape in zip(STATES, (one, one, chunked), strict=True):
        if case.has(name):
            placed[name] = place(scan.FLOAT32, shape, **states(len(shape)))
    return {name: placed[name] for name in inspect.signature(cuconv.selective_scan_fn).parameters if name in placed}


def place_inputs(case: Case, seed: int = 0) -> dict[str, Placed]:
    """The arrays that are read, and NaN in that of the states before chunks, with their memory."""
    read = {name: lies for name, lies in placements(case).items() if name not in OUTPUTS}
    return scan.fill(case, read, {}, seed)


def inputs(case: Case, seed: int = 0) -> dict[str, Array]:
    """The arrays that are read."""
    return {name: placed.array for name, placed in place_inputs(case, seed).items()}


def integers(case: Case, seed: int = 0) -> dict[str, Array]:
    """All are random numbers."""
    return {}


def arguments(case: Case, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments, by name."""
    return {**arrays, "delta_softplus": case.softplus, "return_last_state": case.has("last_state_out")}


def oracle(case: Case, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The results in float64."""
    named = {name: array for name, array in arrays.items() if name not in UPDATED}
    result = reference.selective_scan_fn(**named, delta_softplus=case.softplus)
    results = zip(("out", *STATES[1:]), result, strict=True)
    return {name: each for name, each in results if name == "out" or case.has(name)}


def tolerances(case: Case, arrays: Mapping[str, Array]) -> dict[str, tuple[float, Any]]:
    """The tolerance of each result, relative and absolute, with the segments that are planned."""
    named = arguments(case, arrays)
    errors = reference.ERRORS[FUNCTION](**named, segment_tokens=case.segment or segment_tokens(case))
    relative, subnormal = stored(case.dtype)
    return {name: (0.0, error) for name, error in errors.items()} | {"out": (relative, errors["out"] + subnormal)}


def segment_tokens(case: Case) -> int:
    """Tokens per segment that are planned; more than there are where nothing is launched."""
    launches = cases.launches(cases.table(FUNCTION), case)
    return int(cases.numbers_of(launches[-1])["segment_tokens"]) if launches else case.seqlen + 1


ROWS: Any = {"layout": "channel_last"}
NO_STATES = "initial_state last_state_out chunk_states_out"

UNIT = (
    # Every number of lanes and of states a lane, and every access, of whole rows and of segments: the last one whole,
    # of one token, and of more than one chunk.
    Case(2, 35, 48),
    Case(1, 3, 1024),
    Case(2, 3, 513, 1, dtype="float32", layout="sliced_alike", without=NO_STATES),
    Case(1, 5, 520, 2, dtype="float16", params="", constants="B", without="D z", softplus=False),
    Case(1, 6, 516, 8, 2, constants="C", params=""),
    Case(1, 20, 600, 20, 4, "float32", constants="BC", without="delta_bias", others="strided"),
    Case(1, 3, 516, 50, 3, "float16", others="backward"),
    Case(1, 2, 520, 256, layout="backward_seq", matrices="backward"),
    Case(1, 3, 1032, 24),
    # The same for kernels with lanes that share tokens.
    Case(1, 3, 1024, 12, dtype="float32"),
    Case(1, 3, 768, 5, dtype="float16"),
    Case(5, 32, 192, 3, 2),
    Case(3, 20, 200, 6),
    Case(3, 20, 200),
    Case(2, 3, 513, without=NO_STATES),
    # Two tiles that are too large for the next one's B and C to be loaded ahead (TileShape::kStages is 1).
    Case(1, 5, 508, 8, dtype="float32", without="chunk_states_out"),
    # What there is to compute, by kernels that are built anyhow.
    Case(2, 35, 43),
    Case(2, 35, 43, loud=20),
    Case(2, 35, 40, without="D z delta_bias", softplus=False),
    Case(2, 35, 64, loud=20, params="bfloat16"),
    Case(2, 35, 7, without="D"),
    Case(2, 35, 0),
    Case(2, 35, 0, without="last_state_out chunk_states_out"),
    Case(0, 35, 16),
    Case(2, 0, 16),
    Case(2, 35, 264),
    Case(2, 35, 264, without="chunk_states_out"),
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
