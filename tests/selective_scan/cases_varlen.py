"""selective_scan_varlen_fn: packed sequences of any lengths, with their states in a pool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuconv.runtime import rounding
from cuconv.runtime.dtypes import BY_NAME, CODES, FLOAT32, INT64
from cuconv.runtime.rounding import LARGEST
from cuconv.selective_scan import reference
from tests.selective_scan.scan import OfStates
from tests.support.compare import ROUNDING, Between, Kept
from tests.support.layouts import BY_TOKEN, LAYOUTS, PACKED, PARAMETERS, SLOTS
from tests.support.placement import Array, Placement, place
from tests.support.sequences import OfSequences

BY_TOKENS = ("u", "delta", "z", "B", "C")


@dataclass(frozen=True)
class Case(OfStates, OfSequences):
    """One call."""

    FUNCTION = "selective_scan_varlen_fn"
    UPDATED = ("ssm_states", "snapshot_out", "state_scale", "snapshot_scale")

    dim: int
    batch: str
    d_state: int = 16
    groups: int | None = None
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
    spare: int = 2
    slots: str | None = "permuted"
    index: str = "int32"
    initial: str | None = "mixed"
    pad_slot_id: int = -1
    loud: float = 1.0  # factor on delta and z
    table: str | None = None
    longer: int = 0
    moved: bool = False
    null: bool = False  # whether pad_slot_id is given as null_slot
    keep: bool = False  # whether padding keeps its old contents
    snapshots: str | None = None  # "pool" or "own"
    every: int = 0
    seed: int | str | None = None  # of the rounding of codes; or "array"
    rounds: int = 10
    scale_axis: bool = False  # scales have an axis of 1 behind
    dense: bool = False  # whether sequences of equal lengths are the rows of a batch; `layout` is then one of LAYOUTS
    processors: int = 0

    @property
    def quantised(self) -> bool:
        """Whether states are codes."""
        return BY_NAME[self.state_dtype] in CODES

    def placements(self) -> dict[str, Placement]:
        others, count, total = PARAMETERS[self.others], self.packed.count, self.packed.total
        lead, length = ((count,), total // count) if self.dense else ((), total)
        lies = LAYOUTS[self.layout][0] if self.dense else PACKED[self.layout]
        lies_out = LAYOUTS[self.layout][1] if self.dense else PACKED[self.out or self.layout]
        placed = dict.fromkeys(("u", "delta", "z"), place(self.input_t, (*lead, self.dim, length), **lies))
        placed |= self.parameters() | dict.fromkeys("BC", self.matrix(lead, length))
        if self.pool is not None:
            pool = (self.pool_slots, self.dim, self.d_state)
            placed["ssm_states"] = place(BY_NAME[self.state_dtype], pool, **SLOTS[self.pool](3))
        placed |= {name: place(dtype, size, **others(1)) for name, (dtype, size) in self.indices().items()}
        if self.snapshots == "own":
            shape_of_own = (self.snapshot_slots, self.dim, self.d_state)
            placed["snapshot_out"] = place(BY_NAME[self.state_dtype], shape_of_own, **SLOTS[self.pool or "sliced"](3))
        if self.quantised:
            for states, scales in reference.SCALES.items():
                if states in placed:
                    rows = (*placed[states].shape[:2], *[1] * self.scale_axis)
                    placed[scales] = place(FLOAT32, rows, **SLOTS[self.pool or "sliced"](len(rows)))
        if self.seed == "array":
            placed["rand_seed"] = place(INT64, (1,))
        placed["out"] = place(self.input_t, (*lead, self.dim, length), **lies_out)
        return self.in_order(placed)

    def spoil(self, arrays: dict[str, Array]) -> None:
        """Make padding, and states that no sequence starts from, NaN."""
        is_dead = np.ones(self.pool_slots, bool)
        is_padding = np.ones(self.packed.count if self.dense else self.packed.total, bool)
        for each in self.live(arrays):
            is_padding[each.number if self.dense else slice(each.begin, each.end)] = False
            if each.starts_from_slot and each.begin < each.end:
                is_dead[each.slot] = False
        for name in BY_TOKENS:
            if name in arrays:
                arrays[name][is_padding if self.dense else (..., is_padding)] = np.nan
        for name in ("ssm_states", "state_scale"):
            if name in arrays:
                arrays[name][is_dead] = np.nan if arrays[name].dtype.kind not in "iu" else -1

    def integers(self, seed: int = 0) -> dict[str, Array]:
        found = super().integers(seed)
        if self.seed == "array":
            found["rand_seed"] = self.random(seed).integers(-(2**63), 2**63 - 1, 1)
        return found

    def range(self, name: str) -> tuple[float, float]:
        if not self.quantised or name not in self.UPDATED:
            return super().range(name)
        largest = LARGEST[BY_NAME[self.state_dtype].numpy]
        return (0.1 / largest, 1.0 / largest) if name.endswith("scale") else (-largest, largest)

    def options(self) -> dict[str, Any]:
        pool = {"ssm_states": None} if self.pool is None else {}
        padding = {"null_slot" if self.null else "pad_slot_id": self.pad_slot_id}
        options = {**pool, **super().options(), **padding, "pad_output": "keep" if self.keep else "zero"}
        if self.seed is not None:
            options["philox_rounds"] = self.rounds
        return options if self.seed in (None, "array") else {**options, "rand_seed": self.seed}

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Any]:
        call = reference.PackedScan(**self.arguments(arrays))
        values, _ = call.results()
        results: dict[str, Any] = {"out": np.where(call.is_computed(), values, np.nan) if self.keep else values}
        if self.keep:
            results["out"] = Kept(results["out"])
        results |= {name: Between(arrays[name].copy(), arrays[name].copy()) for name in self.UPDATED if name in arrays}
        for each, _, states in call.state_errors():
            for state, error in states:
                dtype, random = arrays[state.array].dtype, call.random(state)
                ends = rounding.bounds(each.state_after(state.tokens), error, dtype, random)
                for name, *stored in zip((state.array, reference.SCALES[state.array]), *ends, strict=True):
                    for bound, end in zip(results.get(name, ()), stored, strict=False):
                        bound[state.slot] = end.reshape(bound.shape[1:])
        return results


def without_pool(case: Case) -> Case:
    """The case without a pool."""
    return replace(case, pool=None, slots=None, initial=None)


CHANNELS: Any = {"layout": "channels"}
TURNED: Any = {**CHANNELS, "matrices": "by_state"}
"""Channels contiguous, and states in B and C."""
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
    # Channels contiguous, and states in B and C: mixed lengths, and sequences that are long alike.
    Case(136, "off5+3+40+0+133+17x1+off10", 8, **TURNED, **ODD),
    Case(24, "off3+300+236", **TURNED, state_dtype="bfloat16", **ODD),
    Case(12, "off5+3+40+0+133+17x1+off10", 12, dtype="float32", layout="channels_sliced", matrices="by_state_fused"),
    Case(20, "300+289", 4, 1, "float32", **TURNED),
    # Rows that are not aligned: copied, in front and back, unless padding keeps its old contents.
    Case(36, "off3+100+171+off3", out="tokens_offset_by_1", processors=1, **ODD),
    Case(36, "off3+100+171+off3", out="tokens_offset_by_1", processors=1, keep=True, **ODD),
    # Rows that have phases: swept and with tokens shared, padding, blocks of no channels, floats, more than 16 states,
    # snapshots, and a row that begins inside of a vector.
    Case(36, "off3+100+171+off3", processors=1, **ODD),
    Case(36, "off3+100+171+off3", processors=1, keep=True, **ODD),
    Case(67, "263+260", processors=4, initial="all"),
    Case(20, "off1+200+133", 12, dtype="float32", processors=1, **ODD),
    Case(9, "301+300", 24, state_dtype="int8", processors=1, **ODD),
    Case(24, "off1+300+213", dtype="float16", snapshots="own", every=64, processors=1),
    Case(40, "401+303", 4, dtype="float32", layout="tokens_offset_by_1", out="tokens_offset_by_1", processors=1),
    # Few sequences whose states warps share: vectors that begin before a sequence does, several windows, several
    # channels one after another, groups, and other slots for final states.
    Case(5, "off3+100+171+off3", **ODD),
    Case(5, "off3+100+171+off3", keep=True, **ODD),
    Case(9, "43+53", **ODD),
    Case(9, "off5+42+37", 3, dtype="float16", state_dtype="bfloat16", initial="all"),
    Case(6, "off1+34+301", 6, dtype="float32", matrices="fused", without="D z", softplus=False),
    Case(5, "off1+36+298+off2", dtype="float32", pool="transposed", initial="all"),
    Case(8, "530+9+0+300", 11, initial="all", params="", others="strided"),
    Case(30, "41", processors=1, initial="all", without="delta_bias"),
    Case(12, "off2+40+37", 4, processors=1, initial="all"),
    Case(24, "270", 16, 3, table="column", initial="all"),
    Case(7, "off2+33+41+50+37"),
    Case(6, "33+41+50+37", table="column", moved=True),
    Case(3, "off2+200+0+117", dtype="float16", snapshots="pool", every=64),
    Case(12, "off3+300+89", state_dtype="bfloat16", **CHANNELS, **ODD),
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
    # Padding that has no blocks of its own.
    Case(40, "off300"),
    Case(24, "off300", **TURNED),
    Case(40, "off5+400+0+off9", **ODD),
    Case(40, "off3+0+200+213+off5", keep=True, **ODD),
    Case(24, "off13+200+213+off9", **TURNED, slots="odd"),
    Case(24, "off3+203+236+off2", **TURNED, keep=True),
    # Whole tiles in a row, without snapshots and with some between them.
    Case(24, "off3+803+236", 8, **TURNED, **ODD),
    Case(24, "off3+803+236", dtype="float16", **TURNED, snapshots="own", every=256),
    Case(35, "3x0"),
    Case(35, "0"),
    Case(0, "7+2"),
    Case(35, "128+16x1", loud=20),
    # Lanes that walk all tokens, as with more channels.
    Case(128, "236+off2+298", processors=1),
    Case(72, "off5+205+236", state_dtype="bfloat16", **TURNED, **ODD, processors=1),
    Case(24, "203+236", dtype="float16", **TURNED, processors=1),
    # Runs of several short sequences, with long ones among them, and shorter runs at the end.
    *(
        Case(dim, spec, d_state, **kind, **ODD, processors=1)
        for dim, spec, d_state, kind in (
            (70, "off3+20x3+40+60x2+30+17+off2", 16, {}),
            (70, "off3+20x3+40+60x2+30+17+off2", 16, {"snapshots": "pool", "state_dtype": "bfloat16", "keep": True}),
            (35, "9+60x1+5+50+9x2+24+10", 12, {"dtype": "float32", "state_dtype": "int8", "initial": "all"}),
            (72, "off3+20x3+40+60x2+30+17+off2", 16, TURNED),
            (72, "off3+20x3+40+60x2+30+17+off2", 16, {**TURNED, "dtype": "float32", "snapshots": "pool", "keep": True}),
        )
    ),
    # Long sequences without a slot.
    Case(33, "30+40+50", slots="odd", processors=1),
    # Slots out of several columns, other slots for final states, longer index arrays and kept padding, in both kernels.
    *(
        Case(dim, spec, d_state, **kind, **way)
        for dim, spec, d_state, kind in (
            (70, "off5+3+40+0+133+5x1+off10", 7, {}),
            (128, "off5+3+40+0+133+17x1+off10", 16, {"dtype": "float32"}),
        )
        for way in (
            {"table": "first", "longer": 3, "keep": True, "slots": "odd"},
            {"table": "column", "moved": True, "slots": "odd", "index": "mixed"},
            {"moved": True, "slots": None, "initial": "all", "pad_slot_id": 1, "null": True, "longer": 1},
        )
    ),
    Case(128, "200+236+300+200", moved=True, keep=True, slots="odd"),
    # As many channels for a multiprocessor as take one shape of tiles or another.
    *(
        Case(dim, "off3+281+236", **kind, processors=1, slots="odd")
        for dim, kind in ((7, {}), (12, {}), (16, {}), (24, {}), (8, TURNED), (16, TURNED), (24, TURNED))
    ),
    *(
        Case(dim, "280+256", **kind, processors=1, snapshots="own", every=32)
        for dim, kind in (
            (7, {}),
            (12, {"state_dtype": "int8"}),
            (16, {"dtype": "float16", "state_dtype": "int16"}),
            (16, {"state_dtype": "bfloat16", "dtype": "float32"}),
            (24, {}),
            (8, {**TURNED, "state_dtype": "int8"}),
            (16, TURNED),
            (24, TURNED),
        )
    ),
    # Snapshots, in every way that a sequence is walked.
    *(
        Case(dim, spec, d_state, **kind, **way)
        for dim, spec, d_state, kind in (
            (70, "off5+3+40+0+133+5x1+off10", 7, {}),
            (70, "off5+3+40+0+133+5x1+off10", 7, CHANNELS),
            (136, "off5+3+40+0+133+17x1+off10", 16, TURNED),
            (24, "200+236+300+200", 8, TURNED),
            (9, "20+3+41", 40, {"dtype": "float32"}),
            (128, "25x2+24+30+3+260", 16, {"dtype": "float16", "state_dtype": "float16", "pool": "spaced"}),
            (128, "200+236+300+200", 16, {}),
            (128, "200+236+300+200", 16, {"processors": 1}),
            (72, "off3+205+260", 16, {"processors": 1, **TURNED}),
        )
        for way in (
            {"snapshots": "pool", "moved": True, "initial": "all", "index": "mixed"},
            {"snapshots": "own", "slots": "odd", "longer": 2},
        )
    ),
    without_pool(Case(35, "9+70+3", snapshots="own", state_dtype="bfloat16")),
    # Snapshots in order: several between two looks at their rows, and several in a tile, all behind the last tokens of
    # lanes or not.
    *(
        Case(dim, spec, d_state, **kind, snapshots="own", every=every)
        for dim, spec, d_state, every, kind in (
            (128, "200+236+300+200", 16, 5, {"processors": 1}),
            (128, "300", 16, -40, {"processors": 1}),
            (128, "off2+200+236", 16, 21, {"processors": 1, "state_dtype": "int8"}),
            (72, "off3+205+260", 16, 3, {"processors": 1, "state_dtype": "int16", **TURNED}),
            (128, "200+236+300+200", 16, 40, {}),
            (24, "200+236+300+200", 8, 50, TURNED),
            (128, "512+280", 16, 32, {}),
            (128, "512+280", 16, 72, {"state_dtype": "float16"}),
            (128, "256+536", 16, 64, {"state_dtype": "int8"}),
            (24, "256+240+300", 8, 32, TURNED),
            (128, "24+8+32+536", 16, 64, {}),
            (128, "256+280", 16, 32, {"processors": 32}),
            (72, "260+9+303", 16, 32, {**TURNED, "processors": 13}),
            (72, "260+9+303", 16, 48, {**TURNED, "processors": 7}),
            (24, "512+280", 24, 64, {}),
            (24, "off8+256+536", 132, 64, {"state_dtype": "int8"}),
            (24, "off3+260+9+503", 24, 48, {"state_dtype": "bfloat16", **TURNED}),
            (24, "512+280", 136, 64, TURNED),
            (128, "25x2+24+30+3+260", 16, 7, {"dtype": "float16"}),
            (70, "off5+3+40+0+133+5x1+off10", 7, 3, {}),
        )
    ),
    # Codes with scales, in every way that a sequence is walked and for every number of lanes that share a channel.
    Case(35, "off3+8+3x1+5+40+9+7", state_dtype="int16", seed=7, scale_axis=True, pool="spaced", **ODD),
    Case(35, "40x1", state_dtype="int8", initial="all"),
    Case(70, "30+5+1+3", 6, state_dtype="float8_e4m3fn", seed="array", pool="transposed", others="strided"),
    Case(9, "19+0+9+2", 1, dtype="float32", state_dtype="int8", pool="offset", **ODD),
    Case(40, "19+5+9+2", 4, dtype="float32", state_dtype="float8_e4m3fn", **CHANNELS, snapshots="pool", seed=2**64 - 1),
    Case(40, "19+5+9+2", 8, dtype="float16", state_dtype="int8", seed=1, rounds=7),
    Case(3, "20+3+41", 256, state_dtype="int16", initial="all", seed=5),
    *(
        Case(dim, spec, d_state, **kind, **way, initial="all")
        for dim, spec, d_state, kind in (
            (70, "off5+3+40+0+133+5x1+off10", 7, {"state_dtype": "int8"}),
            (9, "20+3+41", 40, {"dtype": "float32", "state_dtype": "float8_e4m3fn"}),
            (128, "25x2+24+30+3+269", 16, {"dtype": "float16", "state_dtype": "int16", "pool": "spaced"}),
            (128, "200+236+300+200", 12, {"state_dtype": "int8"}),
        )
        for way in (
            {"snapshots": "pool", "moved": True, "index": "mixed"},
            {"snapshots": "own", "slots": "odd", "longer": 2, "seed": 11},
        )
    ),
    Case(128, "200+236+300+200", state_dtype="float8_e4m3fn", moved=True, seed=3),
    without_pool(Case(35, "9+70+3", snapshots="own", state_dtype="int8")),
    # More states than a tile has B and C for at a time: the last ones fewer, and blocks beyond the last channel.
    *(
        Case(dim, spec, d_state, **kind, **way, every=every)
        for dim, spec, d_state, every, kind in (
            (9, "off3+300+0+536+9+off8", 20, 0, {}),
            (5, "300+3x1+289", 40, 7, {"dtype": "float32", "state_dtype": "bfloat16"}),
            (8, "200+236+300", 24, 40, {"groups": 2, "dtype": "float16", "state_dtype": "int8"}),
            (24, "off3+300+236", 24, 50, {**TURNED, "state_dtype": "int16"}),
            (8, "240+309", 40, -40, {**TURNED, "dtype": "float16", "state_dtype": "float16"}),
        )
        for way in (
            {"moved": True, "slots": "odd", "keep": True},
            {"snapshots": "own", "slots": "odd", "longer": 2},
            {"snapshots": "pool", "initial": "all", "index": "mixed"},
        )
        if way.get("snapshots") or not every or kind.get("dtype") != "float16"
    ),
    Case(4, "300+204", 256, state_dtype="float8_e4m3fn", initial="all", seed=5),
    *(Case(24, "240+off2+303", 24, **TURNED, state_dtype=states, processors=1) for states in ("float32", "int8")),
    # Rows of a batch.
    *(
        Case(dim, spec, d_state, layout=layout, **way, dense=True)
        for dim, spec, d_state, layout, way in (
            (35, "3x9", 16, "channel_first", {"slots": "odd", "keep": True}),
            (35, "3x9", 7, "channel_last", {"groups": 1, "matrices": "transposed", "moved": True}),
            (9, "2x20", 40, "sliced_aligned", {"dtype": "float32", "snapshots": "own", "table": "column"}),
            (128, "3x136", 16, "channel_first", {"groups": 1, "slots": "odd", "snapshots": "pool"}),
            (70, "3x304", 8, "sliced_dim", {"dtype": "float32", "state_dtype": "int8", "initial": "all", "seed": 1}),
            (35, "5x1", 16, "channel_first", {"slots": None, "initial": "all"}),
            (35, "1x40", 16, "channel_first", {"keep": True}),
            (35, "2x40", 5, "backward_rows", {"pool": "sliced", "others": "strided"}),
            (150, "3x16", 16, "channel_first", {"groups": 1, "slots": "odd", "keep": True, "state_dtype": "int8"}),
            (35, "3x72", 6, "channel_first", {"groups": 1, "moved": True, "snapshots": "own"}),
            (8, "2x300", 40, "channel_first", {"groups": 1, "slots": "odd", "snapshots": "pool"}),
            *(
                (40, spec, 8, "channel_last", {"groups": 1, "matrices": "by_state", "dtype": "float32", **way})
                for spec, way in (("3x72", {"params": ""}), ("2x16", {"snapshots": "own"}))
            ),
        )
    ),
    without_pool(Case(35, "2x40", layout="channel_first", dense=True)),
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
