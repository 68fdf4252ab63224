"""causal_conv1d_bwd: how its arrays can lie in memory, its oracle, and the shapes that tests take."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference_backward
from cuconv.runtime.dtypes import BY_NAME, FLOAT32, INT32, DType
from tests.causal_conv1d.cases_dense import integers
from tests.support.bounds import ROUNDING
from tests.support.layouts import LAST, LAYOUTS, OTHERS
from tests.support.placement import Array, Placed, Placement, place

__all__ = ["integers"]

FUNCTION = "causal_conv1d_bwd"
OUTPUTS = ("dx", "dweight", "dbias", "dinitial_states")
UPDATED = ()

EXPANDED: dict[str, Any] = {
    "expanded": {"repeated": (0, 1, 2)},
    "expanded_batch": {"repeated": (0,)},
    "expanded_tokens": {"repeated": (2,)},
    "last_expanded_dim": {**LAST, "repeated": (1,)},
}
"""How the gradients of sums and means lie."""


@dataclass(frozen=True)
class Case:
    """One call."""

    batch: int
    dim: int
    seqlen: int
    width: int = 4
    dtype: str = "bfloat16"
    weight_dtype: str = ""  # x's when empty
    bias: str | None = "weight"  # or "float32"
    layout: str = "channel_first"  # of x and dx
    dout: str = ""  # as dx when empty
    others: str = "dense"
    activation: str | None = "silu"
    seq_idx: bool = False
    initial: bool = False
    final: bool = False
    float32: bool = False  # dweight and dbias
    scale: float = 1.0  # of x

    @property
    def id(self) -> str:
        """The case in one word; what is left at its default is not named."""
        words = [f"{self.batch}x{self.dim}x{self.seqlen}", f"w{self.width}", self.dtype, self.layout]
        words += [f"weight_{self.weight_dtype}"] * bool(self.weight_dtype) + [f"dout_{self.dout}"] * bool(self.dout)
        words += {None: ["no_bias"], "weight": [], "float32": ["bias_float32"]}[self.bias]
        words += [self.others] * (self.others != "dense") + [self.activation or "linear"]
        words += ["seq"] * self.seq_idx + ["initial"] * self.initial + ["final"] * self.final
        words += ["gradients_float32"] * self.float32
        return "-".join(words + [f"scale{self.scale:g}"] * (self.scale != 1))


def placements(case: Case) -> dict[str, Placement]:
    """Where every array of the call lies."""
    x_lies, dx_lies = LAYOUTS[case.layout]
    dout_lies = EXPANDED[case.dout] if case.dout in EXPANDED else LAYOUTS[case.dout or case.layout][1]
    others = OTHERS[case.others]
    input_t = BY_NAME[case.dtype]
    weight_t = BY_NAME[case.weight_dtype or case.dtype]
    states_lie = LAST if x_lies.get("order") == LAST["order"] else {}

    def other(name: str, dtype: DType, shape: tuple[int, ...], **dense: Any) -> Placement:
        return place(dtype, shape, **others.get(name, dense))

    x_shape = case.batch, case.dim, case.seqlen
    states_shape = case.batch, case.dim, case.width - 1
    bias_t = weight_t if case.bias == "weight" else FLOAT32
    placed = {
        "x": place(input_t, x_shape, **x_lies),
        "weight": other("weight", weight_t, (case.dim, case.width)),
        "bias": other("bias", bias_t, (case.dim,)),
        "dout": place(input_t, x_shape, **dout_lies),
        "seq_idx": other("seq_idx", INT32, (case.batch, case.seqlen)),
        "initial_states": other("initial_states", input_t, states_shape, **states_lie),
        "dfinal_states": other("final_states_out", input_t, states_shape, **states_lie),
        "dx": place(input_t, x_shape, **dx_lies),
        "dweight": other("weight", FLOAT32 if case.float32 else weight_t, (case.dim, case.width)),
        "dbias": other("bias", FLOAT32 if case.float32 else bias_t, (case.dim,)),
        "dinitial_states": other("initial_states", input_t, states_shape, **states_lie),
    }
    absent = [name for name, is_given in (("seq_idx", case.seq_idx), ("dfinal_states", case.final)) if not is_given]
    absent += ["bias", "dbias"] * (case.bias is None) + ["initial_states", "dinitial_states"] * (not case.initial)
    return {name: lies for name, lies in placed.items() if name not in absent}


def place_inputs(case: Case, seed: int = 0) -> dict[str, Placed]:
    """The arrays that are read, with their memory: values from -1 to 1, x's times `scale`.

    Where a sequence number is negative x and dout are NaN, if no other token lies in the same memory.
    """
    random = np.random.default_rng([seed, zlib.crc32(case.id.encode())])
    known = integers(case, seed)  # type: ignore[arg-type]
    placed = {}
    for name, lies in placements(case).items():
        if name in OUTPUTS:
            continue
        scale = case.scale if name in ("x", "initial_states") else 1.0
        values = known[name] if name in known else random.uniform(-scale, scale, lies.shape)
        if name in ("x", "dout") and case.seq_idx and 0 not in lies.strides:
            values = np.where(known["seq_idx"][:, None] < 0, np.nan, values)
        placed[name] = Placed(lies, values)
    return placed


def inputs(case: Case, seed: int = 0) -> dict[str, Array]:
    """The arrays that are read."""
    return {name: placed.array for name, placed in place_inputs(case, seed).items()}


def arguments(case: Case, arrays: dict[str, Any]) -> dict[str, Any]:
    """All arguments, by name."""
    return {"bias": None, **arrays, "activation": case.activation}


def oracle(case: Case, arrays: dict[str, Array]) -> dict[str, Array]:
    """The gradients in float64."""
    gradients = reference_backward.causal_conv1d_bwd(**arguments(case, arrays))._asdict()
    return {name: gradients[name] for name in placements(case) if name in OUTPUTS}


ALL: Any = {"seq_idx": True, "initial": True, "final": True}
STATES: Any = {"initial": True, "final": True}

UNIT = (
    # Tokens contiguous, long rows: several warps and steps, rows at every phase, every access width, number of slots.
    Case(1, 5, 1029),
    Case(2, 3, 1029, 6, "float16", layout="sliced_alike", **STATES),
    Case(1, 2, 1024, 2, "float16", seq_idx=True, activation=None),
    Case(1, 2, 2100, 5, "float32", float32=True, **ALL),
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
    # Channels contiguous: more than a block's, fewer than a warp's, several runs, steps and rounds, every access width.
    Case(1, 136, 60, layout="channel_last"),
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
