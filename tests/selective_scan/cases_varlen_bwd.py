"""selective_scan_varlen_bwd: the gradients of packed sequences of any lengths."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import cuconv
from cuconv.runtime.dtypes import BY_NAME
from cuconv.selective_scan import reference_backward
from tests.selective_scan import scan
from tests.selective_scan.scan import OfStates
from tests.support.batches import batch
from tests.support.bounds import ROUNDING
from tests.support.layouts import BY_TOKEN, PACKED, PARAMETERS
from tests.support.placement import Array, Placed, Placement, place

FUNCTION = "selective_scan_varlen_bwd"
OUTPUTS = ("du", "ddelta", "dA", "dB", "dC", "dD", "dz", "ddelta_bias", "dinitial_state")
UPDATED = ()
RANGES = scan.RANGES
BY_TOKENS = ("u", "delta", "z", "B", "C", "dout")


@dataclass(frozen=True)
class Case(OfStates):
    """One call."""

    dim: int
    batch: str
    d_state: int = 16
    groups: int | None = None  # None: without an axis of groups
    dtype: str = "bfloat16"
    params: str = "float32"  # dtype of D and delta_bias; u's when empty
    without: str = ""  # which of D, z, delta_bias, initial_state and dlast_state are left out
    softplus: bool = True
    layout: str = "tokens"
    results: str = ""  # how du, ddelta and dz lie; as u when empty
    matrices: str = "dense"  # how B and C lie
    others: str = "dense"  # how A, D, delta_bias, states and query_start_loc lie
    index: str = "int32"
    loud: float = 1.0  # factor on delta and z

    @property
    def id(self) -> str:
        """The case in one word; what is left at its default is not named."""
        words = [f"{self.dim}of{self.batch}n{self.d_state}", *self.words()]
        words += [f"g{self.groups}"] * (self.groups is not None) + [self.layout] * (self.layout != "tokens")
        words += [f"to_{self.results}"] * bool(self.results)
        words += [f"matrices_{self.matrices}"] * (self.matrices != "dense")
        return "-".join(words + [self.index] * (self.index != "int32"))


def placements(case: Case) -> dict[str, Placement]:
    """Where every array of the call lies, in the order of the arguments."""
    b, others = batch(case.batch), PARAMETERS[case.others]
    shape = (case.dim, b.total)
    grouped = () if case.groups is None else (case.groups,)
    token = place(case.input_t, shape, **PACKED[case.layout])
    placed = case.parameters() | dict.fromkeys(("u", "delta", "z", "dout"), token)
    result = place(case.input_t, shape, **PACKED[case.results or case.layout])
    placed |= dict.fromkeys(("du", "ddelta", "dz"), result)
    matrix = (*grouped, case.d_state, b.total)
    placed |= dict.fromkeys(("B", "C", "dB", "dC"), place(case.input_t, matrix, **BY_TOKEN[case.matrices](len(matrix))))
    state = place(scan.FLOAT32, (b.count, case.dim, case.d_state), **others(3))
    placed |= dict.fromkeys(("initial_state", "dlast_state"), state)
    placed |= {f"d{name}": placed[name] for name in ("A", "D", "delta_bias", "initial_state") if name in placed}
    if b.starts is not None:
        placed["query_start_loc"] = place(BY_NAME[case.index], (b.count + 1,), **others(1))
    for name in ("z", "initial_state", "dlast_state"):
        if not case.has(name):
            del placed[name]
            placed.pop(f"d{name}", None)
    names = inspect.signature(cuconv.selective_scan_varlen_bwd).parameters
    return {name: placed[name] for name in names if name in placed}


def integers(case: Case, seed: int = 0) -> dict[str, Array]:
    """Where sequences begin."""
    starts = batch(case.batch).starts
    return {} if starts is None else {"query_start_loc": np.array(starts)}


def place_inputs(case: Case, seed: int = 0) -> dict[str, Placed]:
    """The arrays that are read; padding is NaN."""
    read = {name: lies for name, lies in placements(case).items() if name not in OUTPUTS}
    found = scan.fill(case, read, integers(case, seed), seed)
    b = batch(case.batch)
    starts = (0, b.total) if b.starts is None else b.starts
    is_padding = np.ones(b.total, bool)
    is_padding[starts[0] : starts[-1]] = False
    for name in BY_TOKENS:
        if name in found:
            found[name].array[..., is_padding] = np.nan
    return found


def inputs(case: Case, seed: int = 0) -> dict[str, Array]:
    """The arrays that are read."""
    return {name: placed.array for name, placed in place_inputs(case, seed).items()}


def arguments(case: Case, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments, by name."""
    return {**arrays, "delta_softplus": case.softplus}


def oracle(case: Case, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The gradients in float64."""
    named = {"D": None, "z": None, "delta_bias": None, **arrays}
    named = {name: array for name, array in named.items() if name not in OUTPUTS}
    found = reference_backward.selective_scan_varlen_bwd(**named, delta_softplus=case.softplus)
    return {name: each for name, each in found._asdict().items() if each is not None}


CHANNELS: Any = {"layout": "channels"}

UNIT = (
    Case(5, "300+0+10+513"),
    Case(3, "off7+293+511+off3", dtype="float32"),
    Case(4, "3x1+252+257+off5", 3, 2, "float16", **CHANNELS),
    Case(3, "all600", 5),
    Case(70, "100+290", dtype="float32"),
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

BIG = ()
