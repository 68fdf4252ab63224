"""selective_scan_varlen_fn: packed sequences of any lengths, with their states in a pool."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import cuconv
from cuconv.runtime.dtypes import BOOL, BY_NAME
from cuconv.selective_scan import reference
from cuconv.selective_scan.reference import LiveSequence, live_sequences
from tests.selective_scan import scan
from tests.selective_scan.scan import OfStates
from tests.support.batches import batch
from tests.support.bounds import ROUNDING, stored
from tests.support.compare import Between
from tests.support.layouts import BY_TOKEN, PACKED, PARAMETERS, SLOTS
from tests.support.placement import Array, Placed, Placement, place

FUNCTION = "selective_scan_varlen_fn"
OUTPUTS = ("out",)
UPDATED = ("ssm_states",)
RANGES = scan.RANGES
INDICES = ("query_start_loc", "cache_indices", "has_initial_state")
INDEX_DTYPES = {"int32": ("int32", "int32"), "int64": ("int64", "int64"), "mixed": ("int64", "int32")}
"""The dtypes of query_start_loc and cache_indices."""
BY_TOKENS = ("u", "delta", "z", "B", "C")


@dataclass(frozen=True)
class Case(OfStates):
    """One call."""

    dim: int
    batch: str
    d_state: int = 16
    groups: int | None = None  # None: without an axis of groups
    dtype: str = "bfloat16"
    state_dtype: str = "float32"
    params: str = "float32"  # dtype of D and delta_bias; u's when empty
    without: str = ""  # which of D, z and delta_bias are left out
    softplus: bool = True
    layout: str = "tokens"
    out: str = ""  # as u when empty
    matrices: str = "dense"  # how B and C lie
    others: str = "dense"  # how A, D, delta_bias and the indices lie
    pool: str | None = "dense"
    spare: int = 2  # slots of no sequence
    slots: str | None = "permuted"  # "odd": some are padded or outside the pool
    index: str = "int32"  # or "int64" or "mixed"
    initial: str | None = "mixed"  # or "all"
    pad_slot_id: int = -1
    loud: float = 1.0  # factor on delta and z

    @property
    def id(self) -> str:
        """The case in one word; what is left at its default is not named."""
        words = [f"{self.dim}of{self.batch}n{self.d_state}", *self.words()]
        words += [f"g{self.groups}"] * (self.groups is not None) + [self.layout] * (self.layout != "tokens")
        words += [f"to_{self.out}"] * bool(self.out) + [f"matrices_{self.matrices}"] * (self.matrices != "dense")
        words += [f"pool_{self.pool}"] * (self.pool != "dense")
        words += [f"state_{self.state_dtype}"] * (self.state_dtype != "float32") + [f"slots_{self.slots}"]
        words += [self.index] * (self.index != "int32") + [f"initial_{self.initial}"] * (self.initial != "mixed")
        words += [f"pad{self.pad_slot_id}"] * (self.pad_slot_id != -1)
        return "-".join(words + [f"spare{self.spare}"] * (self.spare != 2))

    @property
    def pool_slots(self) -> int:
        """One slot per sequence, and spare ones."""
        return batch(self.batch).count + self.spare


def without_pool(case: Case) -> Case:
    """The case without a pool."""
    return replace(case, pool=None, slots=None, initial=None)


def placements(case: Case) -> dict[str, Placement]:
    """The placement of every array of the call, in the order of the arguments."""
    b, shape, others = batch(case.batch), (case.dim, batch(case.batch).total), PARAMETERS[case.others]
    grouped = () if case.groups is None else (case.groups,)
    placed = case.parameters() | dict.fromkeys(("u", "delta", "z"), place(case.input_t, shape, **PACKED[case.layout]))
    matrix = (*grouped, case.d_state, b.total)
    placed |= dict.fromkeys("BC", place(case.input_t, matrix, **BY_TOKEN[case.matrices](len(matrix))))
    if not case.has("z"):
        del placed["z"]
    if case.pool is not None:
        pool = (case.pool_slots, case.dim, case.d_state)
        placed["ssm_states"] = place(BY_NAME[case.state_dtype], pool, **SLOTS[case.pool](3))
    dtypes = (*(BY_NAME[name] for name in INDEX_DTYPES[case.index]), BOOL)
    is_given = (b.starts is not None, case.slots is not None, case.initial is not None)
    for name, dtype, count, given in zip(INDICES, dtypes, (b.count + 1, b.count, b.count), is_given, strict=True):
        if given:
            placed[name] = place(dtype, (count,), **others(1))
    placed["out"] = place(case.input_t, shape, **PACKED[case.out or case.layout])
    names = inspect.signature(cuconv.selective_scan_varlen_fn).parameters
    return {name: placed[name] for name in names if name in placed}


def integers(case: Case, seed: int = 0) -> dict[str, Array]:
    """Starts, slots, and which sequences have an initial state."""
    random, b, found = scan.random_of(case, seed), batch(case.batch), {}
    if b.starts is not None:
        found["query_start_loc"] = np.array(b.starts)
    if case.slots is not None:
        chosen = random.permutation(case.pool_slots)[: b.count]
        if case.slots == "odd":
            strange = [case.pad_slot_id, case.pool_slots, -2, case.pool_slots + 7, -(2**31), 2**31 - 1]
            strange += [2**40, -(2**40)] * (case.index == "int64")
            chosen[1::3] = np.resize(strange, len(chosen[1::3]))
        found["cache_indices"] = chosen
    if case.initial is not None:
        has = np.arange(b.count) % 2 == 0
        found["has_initial_state"] = random.permutation(has) if case.initial == "mixed" else np.ones(b.count, bool)
    return found


def place_inputs(case: Case, seed: int = 0) -> dict[str, Placed]:
    """The arrays that are read; padding, and states that no sequence starts from, are NaN."""
    read = {name: lies for name, lies in placements(case).items() if name not in OUTPUTS}
    found = scan.fill(case, read, integers(case, seed), seed)
    is_dead_token = np.ones(batch(case.batch).total, bool)
    is_dead_slot = np.ones(case.pool_slots, bool)
    for sequence in _live(case, {name: each.array for name, each in found.items()}):
        is_dead_token[sequence.begin : sequence.end] = False
        if sequence.initial_state is not None:
            is_dead_slot[sequence.slot] = False
    for name in BY_TOKENS:
        if name in found:
            found[name].array[..., is_dead_token] = np.nan
    if "ssm_states" in found:
        found["ssm_states"].array[is_dead_slot] = np.nan
    return found


def _live(case: Case, arrays: Mapping[str, Array]) -> Iterator[LiveSequence]:
    indices = (arrays.get(name) for name in ("ssm_states", *INDICES))
    return live_sequences(batch(case.batch).total, *indices, case.pad_slot_id)  # type: ignore[arg-type]


def inputs(case: Case, seed: int = 0) -> dict[str, Array]:
    """The arrays that are read."""
    return {name: placed.array for name, placed in place_inputs(case, seed).items()}


def arguments(case: Case, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments, by name."""
    options = {"delta_softplus": case.softplus, "pad_slot_id": case.pad_slot_id}
    return {"ssm_states": None, **arrays, **options}


def oracle(case: Case, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """The results in float64, and the bounds of the states."""
    out, states = reference.selective_scan_varlen_fn(**arguments(case, arrays))
    if "ssm_states" not in arrays:
        return {"out": out}
    bounds = Between(arrays["ssm_states"].copy(), arrays["ssm_states"].copy())
    errors = reference.ERRORS[FUNCTION](**arguments(case, arrays))["ssm_states"]
    for slot, state in states.items():
        bounds.low[slot] = (state - errors[slot]).astype(bounds.low.dtype)
        bounds.high[slot] = (state + errors[slot]).astype(bounds.high.dtype)
    return {"out": out, "ssm_states": bounds}


def tolerances(case: Case, arrays: Mapping[str, Array]) -> dict[str, tuple[float, Any]]:
    """The tolerance of the results, relative and absolute; those of padding are exactly zero."""
    relative, subnormal = stored(case.dtype)
    errors = reference.ERRORS[FUNCTION](**arguments(case, arrays))["out"]
    return {"out": (relative, np.where(errors > 0, errors + subnormal, 0.0))}


CHANNELS: Any = {"layout": "channels"}
ODD: Any = {"slots": "odd"}

UNIT = (
    # Every number of lanes and of states a lane, every access, and every dtype of states.
    Case(35, "16+8+3+29"),
    Case(35, "16+8+3+13", **CHANNELS, state_dtype="bfloat16", pool="slots_innermost"),
    Case(3, "19+0+9", 1, dtype="float32", pool="offset", **ODD),
    Case(4, "off3+9+12", 2, 2, "float16", "float16", params="", matrices="offset_by_2", index="int64"),
    Case(70, "30+5+1", 8, 5, matrices="fused", without="D z", softplus=False, pool="spaced"),
    Case(12, "11+6+off2", 20, 4, "float32", params="", matrices="transposed", others="strided", layout="tokens_spaced"),
    Case(10, "10+9", 50, 5, "float16", layout="tokens_offset_by_4", out="tokens", matrices="fused_by_2"),
    Case(5, "16+8+40", 24),
    Case(3, "19+0+10", 1, dtype="float32"),
    Case(6, "10+8+4"),
    Case(5, "9+8", 256, layout="channels_backward", out="tokens", others="backward", matrices="backward"),
    Case(300, "5x1+2+3+8+9+1+12"),
    Case(150, "200+37x1+3", initial="all", spare=0),
    Case(33, "off3+1+7+0+8+9+4x1+off8", pool="slot_strided", **ODD),
    Case(35, "8+3x1+5+16+9+7", state_dtype="bfloat16", pool="transposed", others="strided", without="D z"),
    Case(40, "3+2+9x1+2", 8, state_dtype="float16", pool="sliced", softplus=False),
    without_pool(Case(40, "3+2+9x1+10", 6, dtype="float32", without="z")),
    Case(70, "6x1+9+off2", **CHANNELS, state_dtype="float16", without="delta_bias", **ODD),
    Case(128, "2+9x1+13", 16, 2, "float32", params="", pool="slots_innermost", index="mixed"),
    # Two tiles that are too large for the next one's B and C to be loaded ahead (TileShape::kStages is 1).
    Case(5, "300+3x1+289", 8, 1, "float32"),
    # What sequences and slots can be, in kernels that are built anyhow.
    Case(35, "40x1", initial="all"),
    Case(35, "340+16+20", 16, 1, state_dtype="bfloat16"),
    Case(70, "off5+3+133+off11", 7, dtype="float16", state_dtype="float16"),
    Case(256, "33+7+40", 9, 2, dtype="float32"),
    Case(35, "2x0+19+2+0+3x1+10+0+off6", index="int64", **ODD),
    Case(35, "off9+8+16+off7", others="strided", pad_slot_id=0, **ODD),
    Case(35, "20in64", others="backward", initial="all", index="mixed", **ODD),
    Case(35, "all40", slots=None, spare=0, initial="all"),
    Case(35, "all16", initial=None),
    Case(35, "8+16", slots=None, pad_slot_id=1),
    without_pool(Case(35, "off2+10+0+17+off3")),
    Case(35, "off16"),
    Case(35, "3x0"),
    Case(35, "0"),
    Case(0, "7+2"),
    Case(35, "24+8", loud=20),
    # Long sequences without a slot.
    Case(33, "30+40+50", slots="odd"),
)

_BATCHES = ("1", "7+8+9", "64", "255+257", "300x1", "300in300", "50in2000", "100+50x1", "off7+300+9x8+9x17+off60")

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(dim, "40+1+9", **lies) for dim in (1536, 5120, 8192) for lies in ({}, CHANNELS)),
            *(Case(24, spec, **lies, **ODD) for spec in _BATCHES for lies in ({}, CHANNELS)),
            *(Case(7, "60+9+5x1+off3", n, dtype=dtype) for n in range(1, 34, 3) for dtype in ROUNDING),
            *(Case(6, "30+9", n, 2, **CHANNELS) for n in (16, 63, 64, 65, 127, 128, 129, 255, 256)),
            *(Case(24, "60+5x1", layout=layout, dtype=dtype) for layout in PACKED for dtype in ("bfloat16", "float32")),
            *(Case(24, "60+30", groups=3, matrices=lies) for lies in BY_TOKEN),
            *(Case(24, "60+30+5x1+2", pool=lies, state_dtype=dtype) for lies in SLOTS for dtype in ROUNDING),
            *(Case(24, "60+30", others=lies, index="mixed", **ODD) for lies in PARAMETERS),
            Case(8, "20000"),
        ]
    )
)

_SERVED: Any = {"spare": 0, "initial": "all"}

BIG = (Case(1024, f"{2**20}+{2**22 - 2**20 - 1}+9", **_SERVED),)
"""More than 2**32 elements."""
