"""causal_conv1d_varlen_bwd: packed sequences of any lengths, with the states that they start from."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference_backward
from cuconv.runtime.dtypes import BOOL, BY_NAME, FLOAT32, DType
from tests.support.batches import batch
from tests.support.bounds import ROUNDING
from tests.support.layouts import OTHERS, PACKED, POOLS
from tests.support.placement import Array, Placed, Placement, place

FUNCTION = "causal_conv1d_varlen_bwd"
OUTPUTS = ("dx", "dweight", "dbias", "dinitial_states")
UPDATED = ()

INDEX_DTYPES = {"int32": ("int32", "int32"), "int64": ("int64", "int64"), "mixed": ("int64", "int32")}
"""The dtypes of starts and slots."""

EXPANDED: dict[str, Any] = {"expanded": {"repeated": (0, 1)}, "expanded_tokens": {"repeated": (1,)}}
"""How the gradients of sums and means lie."""


@dataclass(frozen=True)
class Case:
    """One call."""

    dim: int
    batch: str
    width: int = 4
    dtype: str = "bfloat16"
    weight_dtype: str = ""  # x's when empty
    state_dtype: str = ""  # x's when empty, or "float32"
    bias: str | None = "weight"  # or "float32"
    layout: str = "channels"
    dx: str = ""  # as x when empty
    dout: str = ""  # as dx when empty
    others: str = "dense"
    pool: str | None = "channels"
    slots: str | None = "permuted"  # "odd": some are padding or outside the pool
    index: str = "int32"  # or "int64" or "mixed"
    has: str | None = "mixed"  # has_initial_state; all have one when None
    final: bool = True
    pad_slot_id: int = -1
    activation: str | None = "silu"
    float32: bool = False  # dweight and dbias

    @property
    def id(self) -> str:
        """The case in one word; what is left at its default is not named."""
        words = [f"{self.dim}of{self.batch}", f"w{self.width}", self.dtype, self.layout]
        words += [f"dx_{self.dx}"] * bool(self.dx) + [f"dout_{self.dout}"] * bool(self.dout)
        words += [f"weight_{self.weight_dtype}"] * bool(self.weight_dtype)
        words += {None: ["no_bias"], "weight": [], "float32": ["bias_float32"]}[self.bias]
        words += [self.others] * (self.others != "dense") + [f"pool_{self.pool}"] * (self.pool != "channels")
        words += [f"state_{self.state_dtype}"] * bool(self.state_dtype) + [f"slots_{self.slots}", f"has_{self.has}"]
        words += [self.index] * (self.index != "int32") + ["no_final"] * (not self.final)
        words += [f"pad{self.pad_slot_id}"] * (self.pad_slot_id != -1) + [self.activation or "linear"]
        return "-".join(words + ["gradients_float32"] * self.float32)


def without(case: Case) -> Case:
    """The case on sequences that start from zeros."""
    return replace(case, pool=None, slots=None, has=None)


SPARE = 2
"""Slots that no sequence has."""


def placements(case: Case) -> dict[str, Placement]:
    """Where every array of the call lies."""
    b, others = batch(case.batch), OTHERS[case.others]
    input_t, weight_t = BY_NAME[case.dtype], BY_NAME[case.weight_dtype or case.dtype]
    state_t = BY_NAME[case.state_dtype or case.dtype]
    bias_t = weight_t if case.bias == "weight" else FLOAT32
    starts_t, slots_t = (BY_NAME[name] for name in INDEX_DTYPES[case.index])
    longer, pool_lies = POOLS[case.pool or "channels"]
    shape, states_shape = (case.dim, b.total), (b.count, case.dim, case.width - 1)
    dx_lies = PACKED[case.dx or case.layout]

    def other(name: str, dtype: DType, shape: tuple[int, ...]) -> Placement:
        return place(dtype, shape, **others.get(name, {}))

    placed = {
        "x": place(input_t, shape, **PACKED[case.layout]),
        "weight": other("weight", weight_t, (case.dim, case.width)),
        "bias": other("bias", bias_t, (case.dim,)),
        "dout": place(input_t, shape, **(EXPANDED | PACKED)[case.dout] if case.dout else dx_lies),
        "query_start_loc": other("query_start_loc", starts_t, (b.count + 1,)),
        "initial_states": place(state_t, (b.count + SPARE, case.dim, case.width - 1 + longer), **pool_lies),
        "cache_indices": other("cache_indices", slots_t, (b.count,)),
        "has_initial_state": other("has_initial_state", BOOL, (b.count,)),
        "dfinal_states": other("final_states_out", state_t, states_shape),
        "dx": place(input_t, shape, **dx_lies),
        "dweight": other("weight", FLOAT32 if case.float32 else weight_t, (case.dim, case.width)),
        "dbias": other("bias", FLOAT32 if case.float32 else bias_t, (case.dim,)),
        "dinitial_states": other("initial_states", state_t, states_shape),
    }
    absent = ["bias", "dbias"] * (case.bias is None) + ["query_start_loc"] * (b.starts is None)
    absent += ["initial_states", "dinitial_states"] * (case.pool is None) + ["cache_indices"] * (case.slots is None)
    absent += ["has_initial_state"] * (case.has is None) + ["dfinal_states"] * (not case.final)
    return {name: lies for name, lies in placed.items() if name not in absent}


def _random(case: Case, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(case.id.encode())])


def integers(case: Case, seed: int = 0) -> dict[str, Array]:
    """Starts, slots and who has a state."""
    random, b, found = _random(case, seed), batch(case.batch), {}
    if b.starts is not None:
        found["query_start_loc"] = np.array(b.starts)
    if case.slots is not None:
        pool = b.count + SPARE
        chosen = random.permutation(pool)[: b.count]
        if case.slots == "odd":
            strange = [case.pad_slot_id, pool, -2, pool + 7, -(2**31), 2**31 - 1]
            strange += [2**40, -(2**40)] * (case.index == "int64")
            chosen[1::3] = np.resize(strange, len(chosen[1::3]))
        found["cache_indices"] = chosen
    if case.has is not None:
        found["has_initial_state"] = random.permutation(np.arange(b.count) % 2 == 0)
    return found


def _live(case: Case, known: dict[str, Array]) -> list[int | None]:
    """The slot of every sequence, None for padding."""
    count = batch(case.batch).count
    slots = known.get("cache_indices", np.arange(count)).tolist()
    if case.pool is None:
        return slots
    padding = [case.pad_slot_id] if "cache_indices" in known else []
    return [slot if 0 <= slot < count + SPARE and slot not in padding else None for slot in slots]


def place_inputs(case: Case, seed: int = 0) -> dict[str, Placed]:
    """The arrays that are read, with their memory: values from -1 to 1. What no gradient may depend on is NaN."""
    random, known, b = _random(case, seed), integers(case, seed), batch(case.batch)
    live = _live(case, known)
    has = known.get("has_initial_state", np.ones(b.count, bool))
    is_token = np.zeros(b.total, bool)
    for i, slot in enumerate(live):
        is_token[b.bounds[i] : b.bounds[i + 1]] = slot is not None
    placed = {}
    for name, lies in placements(case).items():
        if name in OUTPUTS:
            continue
        values: Any = known[name] if name in known else random.uniform(-1, 1, lies.shape)
        if name in ("x", "dout") and 0 not in lies.strides:
            values = np.where(is_token, values, np.nan)
        elif name == "dfinal_states":
            values = np.where([[[slot is not None]] for slot in live] if live else True, values, np.nan)
        elif name == "initial_states":
            used = np.zeros(lies.shape, bool)
            for i, slot in enumerate(live):
                if slot is not None and has[i]:
                    used[slot, :, lies.shape[2] - (case.width - 1) :] = True
            values = np.where(used, values, np.nan)
        placed[name] = Placed(lies, values)
    return placed


def inputs(case: Case, seed: int = 0) -> dict[str, Array]:
    """The arrays that are read."""
    return {name: placed.array for name, placed in place_inputs(case, seed).items()}


def arguments(case: Case, arrays: dict[str, Any]) -> dict[str, Any]:
    """All arguments, by name."""
    return {"bias": None, **arrays, "activation": case.activation, "pad_slot_id": case.pad_slot_id}


def oracle(case: Case, arrays: dict[str, Array]) -> dict[str, Array]:
    """The gradients in float64."""
    gradients = reference_backward.causal_conv1d_varlen_bwd(**arguments(case, arrays))._asdict()
    return {name: gradients[name] for name in placements(case) if name in OUTPUTS}


ROWS: Any = {"layout": "tokens"}
ODD: Any = {"slots": "odd"}

UNIT = (
    # Channels contiguous: more than a block's, fewer than a warp's, every access width.
    Case(136, "60"),
    Case(130, "21+0+1+8x1+30", 4, "float32", has=None),
    Case(128, "30+off5", 3, "float16", "float32", "float32", index="int64"),
    without(Case(3, "all65", 2)),
    Case(6, "2+1+0+35", 5, "float16", bias=None, pool="columns", **ODD),
    Case(8, "off3+0+0+40+2+0", 16, "float32", activation=None),
    Case(12, "24+3+16+1", 16, "bfloat16", "float32", "float32", others="offset", float32=True),
    Case(16, "33+2x9", 8, "float16", "bfloat16", layout="channels_sliced", others="backward", pool="backward"),
    Case(10, "5x7", 9, "float32", "bfloat16", layout="channels_sliced_by_2", activation="swish", pad_slot_id=0, **ODD),
    Case(12, "17+1", 1, dx="channels_sliced_by_3", bias="float32"),
    Case(20, "19+5x2+off2", 6, "bfloat16", "float16", others="strided", pool="channels_longer", index="int64", **ODD),
    Case(9, "19+4", 7, "float32", layout="channels_offset_by_1", pool="channels_offset"),
    Case(36, "16+9x1+off4", 12, dx="channels_offset_by_2", activation=None, final=False),
    Case(24, "22+3", 10, "float16", layout="channels_backward", pool="spaced", index="mixed"),
    Case(7, "20+2", layout="channels_backward_dim", pool="columns_longer", bias="float32"),
    Case(7, "20+2", 13, "float32", "float16", layout="channels_spaced", others="strided"),
    Case(10, "9+8+3", 11, "float16", dx="tokens", pool="slots", slots=None),
    Case(4, "5+5", 14, "float32", pool="columns_offset", slots=None),
    Case(136, "40x1", has=None),
    Case(136, "2x0+19+2+0+3x1+50+0", index="int64", **ODD),
    Case(136, "off9+8+16+off17", pool="columns", others="strided", pad_slot_id=0, **ODD),
    Case(136, "40in100", pool="channels_sliced", others="backward", dout="expanded_tokens", **ODD),
    without(Case(136, "off2+40+0+33+off3", float32=True)),
    without(Case(136, "33+20", dout="tokens", final=False)),
    Case(136, "off20"),
    # Tokens contiguous: long and short rows, every access width.
    Case(5, "1029", **ROWS),
    Case(3, "513+0+260+1", 6, "float16", layout="tokens_aligned", pool="columns"),
    Case(2, "300+2+1", 5, "float32", pool="columns_longer", float32=True, **ROWS),
    Case(9, "150+off3", 16, "float32", bias=None, activation=None, **ROWS),
    Case(3, "21x3+0", 3, index="int64", others="strided", state_dtype="float32", **ROWS, **ODD),
    Case(3, "100+off7", 9, "float16", "bfloat16", layout="tokens_offset_by_1", dx="tokens", pool="slots"),
    Case(2, "off3+70+2x1", 7, layout="tokens_offset_by_2", dx="tokens", state_dtype="float32", pool="backward"),
    Case(3, "33+16+40", 10, layout="tokens_offset_by_4", dx="tokens", weight_dtype="float16", activation="swish"),
    without(Case(3, "45+off4", 8, "bfloat16", "float32", layout="tokens_sliced")),
    Case(3, "45+1", 15, "float32", layout="tokens_spaced", dx="tokens_backward", **ODD),
    Case(36, "off3+253+1+255+1+2+3+63+65+off9+20x1+0+93", has=None, **ROWS, **ODD),
    Case(33, "255+3+600+30x1+49", pool="slots", index="mixed", others="strided", **ROWS, **ODD),
    without(Case(34, "250+9+off3+9x20", 4, "float16", "float32", dout="expanded", **ROWS)),
    Case(5, "7+0+90in200", pool="columns", has=None, **ROWS, **ODD),
    Case(5, "all33", dx="channels", pool="columns", slots=None, **ROWS),
    # Nothing to convolve.
    Case(5, "3x0"),
    Case(5, "0", 3, "float32", **ROWS),
    Case(0, "7+2"),
)

_BATCHES = ("1", "2", "3", "4", "7+8+9", "64", "255+257", "1023+1", "2000x1", "2000in2000", "2000in9000", "1500+500x1",
            "4096+16x256", "off7+300+0+off60", "50x3+50x0+50x5")  # fmt: skip
_BOTH = ("channels", "tokens")

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(24, spec, layout=a, **ODD) for spec in _BATCHES for a in _BOTH),
            *(Case(8, spec, 4, "float32", layout=a, has=None) for spec in _BATCHES for a in _BOTH),
            *(Case(n, "300+3+70", layout=a) for n in (1, 3, 64, 100, 200, 4128) for a in _BOTH),
            *(Case(12, "200+9x20+12x1+off3", n, layout=a, **ODD) for n in range(1, 17) for a in _BOTH),
            *(Case(36, "40+9x3", n, "float32", layout=a, has=None) for n in range(1, 17) for a in _BOTH),
            *(Case(20, "90+11x4", 4, a, b, layout=c) for a in ROUNDING for b in ROUNDING for c in _BOTH),
            *(Case(40, "130+2x1+61", 4, a, layout=b) for a in ("bfloat16", "float32") for b in PACKED),
            *(Case(24, "60+7x3", layout=a, others=b, index="mixed", **ODD) for a in _BOTH for b in OTHERS),
            *(Case(24, "60+7x3", layout=a, pool=b) for a in _BOTH for b in POOLS),
            *(Case(2, f"{2**20}+1", layout=a) for a in _BOTH),
        ]
    )
)

BIG = ()
