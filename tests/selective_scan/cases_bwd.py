"""selective_scan_bwd: the gradients of rows of tokens."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cuconv
from cuconv.runtime.launch import ceil_div
from cuconv.selective_scan import reference, reference_backward
from cuconv.selective_scan.kernels import chunk_tokens
from tests.selective_scan import scan
from tests.selective_scan.scan import OfStates
from tests.support.bounds import ROUNDING
from tests.support.layouts import BY_TOKEN, LAYOUTS, PARAMETERS
from tests.support.placement import Array, Placed, Placement, place

FUNCTION = "selective_scan_bwd"
OUTPUTS = ("du", "ddelta", "dA", "dB", "dC", "dD", "dz", "ddelta_bias", "dinitial_state")
UPDATED = ()
RANGES = scan.RANGES

DOUT: dict[str, dict[str, Any]] = {
    "dense": {},
    "expanded": {"repeated": (0, 1, 2)},
    "expanded_tokens": {"repeated": (2,)},
    "sliced": {"pad": (0, 0, 3)},
    "backward": {"backward": (1, 2)},
}
"""How dout lies: expanded ones are the gradients of sums."""


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
    without: str = ""  # which of D, z, delta_bias, initial_state, dlast_state and chunk_states are left out
    softplus: bool = True
    layout: str = "channel_first"
    dout: str = "dense"
    matrices: str = "dense"  # how B and C lie
    others: str = "dense"  # how A, D, delta_bias, constants and states lie
    loud: float = 1.0  # factor on delta and z

    @property
    def id(self) -> str:
        """The case in one word; what is left at its default is not named."""
        words = [f"{self.batch}x{self.dim}x{self.seqlen}n{self.d_state}", *self.words()]
        words += [f"g{self.groups}"] * (self.groups is not None) + [f"constant_{self.constants}"] * bool(self.constants)
        words += [self.layout] * (self.layout != "channel_first") + [f"dout_{self.dout}"] * (self.dout != "dense")
        return "-".join(words + [f"matrices_{self.matrices}"] * (self.matrices != "dense"))

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of u."""
        return self.batch, self.dim, self.seqlen


def placements(case: Case) -> dict[str, Placement]:
    """Where every array of the call lies, in the order of the arguments."""
    lies, out_lies = LAYOUTS[case.layout]
    states = PARAMETERS[case.others]
    placed = {name: place(case.input_t, case.shape, **lies) for name in ("u", "delta", "z")}
    placed |= case.parameters()
    grouped = () if case.groups is None else (case.groups,)
    for name in "BC":
        if name in case.constants:
            placed[name] = place(case.param_t, (case.dim, case.d_state), **states(2))
        else:
            shape = (case.batch, *grouped, case.d_state, case.seqlen)
            placed[name] = place(case.input_t, shape, **BY_TOKEN[case.matrices](len(shape)))
        placed[f"d{name}"] = placed[name]
    placed["dout"] = place(case.input_t, case.shape, **(DOUT[case.dout] if case.dout != "dense" else lies))
    one = (case.batch, case.dim, case.d_state)
    for name in ("initial_state", "dlast_state"):
        placed[name] = place(scan.FLOAT32, one, **states(3))
    chunks = ceil_div(case.seqlen, chunk_tokens())
    placed["chunk_states"] = place(scan.FLOAT32, (case.batch, chunks, *one[1:]), **states(4))
    placed |= {f"d{name}": place(case.input_t, case.shape, **out_lies) for name in ("u", "delta", "z")}
    placed |= {f"d{name}": placed[name] for name in ("A", "D", "delta_bias", "initial_state") if name in placed}
    for name in ("z", "initial_state", "dlast_state", "chunk_states"):
        if not case.has(name):
            del placed[name]
            placed.pop(f"d{name}", None)
    return {name: placed[name] for name in inspect.signature(cuconv.selective_scan_bwd).parameters if name in placed}


def place_inputs(case: Case, seed: int = 0) -> dict[str, Placed]:
    """The arrays that are read, with their memory: states before chunks are those of the other arrays."""
    read = {name: lies for name, lies in placements(case).items() if name not in OUTPUTS}
    found = scan.fill(case, read, {}, seed)
    if "chunk_states" in found:
        forward = {name: each.array for name, each in found.items() if name in _FORWARD}
        states = reference.selective_scan_fn(**forward, delta_softplus=case.softplus).chunk_states
        found["chunk_states"] = Placed(read["chunk_states"], states)
    return found


_FORWARD = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")


def inputs(case: Case, seed: int = 0) -> dict[str, Array]:
    """The arrays that are read."""
    return {name: placed.array for name, placed in place_inputs(case, seed).items()}


def integers(case: Case, seed: int = 0) -> dict[str, Array]:
    """All are random numbers."""
    return {}


def arguments(case: Case, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments, by name."""
    return {**arrays, "delta_softplus": case.softplus}


def oracle(case: Case, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The gradients in float64."""
    named = {"D": None, "z": None, "delta_bias": None, **arrays}
    named = {name: array for name, array in named.items() if name not in OUTPUTS}
    found = reference_backward.selective_scan_bwd(**named, delta_softplus=case.softplus)
    return {name: each for name, each in found._asdict().items() if each is not None}


STATES = "initial_state dlast_state chunk_states"
ROWS: Any = {"layout": "channel_last"}

UNIT = (
    # Rows of pairs, of single tokens and of any strides; one chunk and several, the last one of any length.
    Case(1, 5, 600),
    Case(2, 3, 514, without="chunk_states"),
    Case(1, 70, 300, dtype="float32", without="chunk_states"),
    Case(2, 3, 513, 5, dtype="float16", without=STATES),
    Case(1, 4, 257, dtype="float32", layout="sliced_alike", dout="expanded"),
    Case(1, 3, 520, 2, dtype="float32", groups=3),
    Case(2, 6, 300, groups=2, **ROWS),
    Case(1, 3, 700, 7, dtype="float16", layout="spaced", matrices="transposed", others="strided"),
    Case(1, 2, 300, dtype="float32", layout="backward_seq", matrices="backward", others="backward"),
    # Constants, and more states than a block has under way.
    Case(1, 5, 300, constants="B", without="chunk_states"),
    Case(1, 4, 260, 8, 2, constants="C", params="", dtype="float16"),
    Case(1, 3, 270, 20, constants="BC", dtype="float32", params="", without="delta_bias chunk_states"),
    Case(1, 4, 300, 40, 2, without="chunk_states"),
    Case(1, 3, 257, 33, dtype="float32", constants="B", others="strided"),
    Case(1, 2, 300, 17, dtype="float16", constants="C", without="D z"),
    Case(1, 3, 300, 20, dtype="float16", without="chunk_states"),
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
    # What there is to compute.
    Case(2, 3, 40, without="D z delta_bias", softplus=False),
    Case(1, 3, 300, without="z initial_state", dout="expanded_tokens"),
    Case(2, 3, 64, loud=20, params="bfloat16"),
    Case(1, 5, 7, without="D dlast_state"),
    Case(2, 3, 1),
    Case(2, 3, 0),
    Case(0, 3, 16),
    Case(2, 0, 16),
    Case(1, 3, 1016, loud=5, dout="sliced"),
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

BIG = ()
