"""causal_conv1d_varlen_fn: packed sequences of any lengths, with their states in a pool."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.causal_conv1d.varlen import ODD, ROWS, Packed, without
from tests.support.compare import ROUNDING, Kept
from tests.support.entries import counting
from tests.support.layouts import OTHERS, PACKED, POOLS
from tests.support.placement import Array


@dataclass(frozen=True)
class Case(Packed):
    """One call."""

    FUNCTION = "causal_conv1d_varlen_fn"

    over: bool = False  # whether the result goes over x
    processors: int = 0  # multiprocessors that plans count with, if any

    def __post_init__(self) -> None:
        if self.over:
            object.__setattr__(self, "OUTPUTS", ())
            object.__setattr__(self, "UPDATED", ("x", *self.UPDATED))

    def running(self) -> AbstractContextManager[Any]:
        return counting(self.processors) if self.processors else super().running()

    @property
    def returned(self) -> tuple[str, ...]:
        return ("x",) if self.over else super().returned

    def arguments(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        found = super().arguments(arrays)
        return {**found, "out": found["x"]} if self.over else found

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Any]:
        if not self.over:
            return super().oracle(arrays)
        apart = replace(self, over=False).oracle(arrays)
        out = apart.pop("out")
        if isinstance(out, Kept):
            out = np.where(np.isnan(out.values), arrays["x"].astype(np.float64), out.values)
        return {"x": out, **apart}

    def errors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        if not self.over:
            return super().errors(arrays)
        found = dict(replace(self, over=False).errors(arrays))
        return {"x": found.pop("out"), **found}


UNIT = (
    # Channels contiguous: more than a block's, fewer than a warp's, every access width.
    Case(136, "60"),
    Case(130, "21+0+1+8x1+30", 4, "float32", initial="all"),
    Case(128, "30+off5", 3, "float16", "float32", "float32", index="int64"),
    without(Case(3, "all65", 2)),
    Case(6, "2+1+0+35", 5, "float16", bias=None, pool="columns", **ODD),
    Case(8, "off3+0+0+40+2+0", 16, "float32", state_dtype="bfloat16", activation=None),
    Case(12, "24+3+16+1", 16, "bfloat16", "float32", "float32", others="offset"),
    Case(16, "33+2x9", 8, "float16", "bfloat16", layout="channels_sliced", others="backward", pool="backward"),
    Case(10, "5x7", 9, "float32", "bfloat16", layout="channels_sliced_by_2", activation="swish", pad_slot_id=0, **ODD),
    Case(12, "17+1", 1, out="channels_sliced_by_3", bias="float32"),
    Case(20, "19+5x2+off2", 6, "bfloat16", "float16", others="strided", pool="channels_longer", index="int64", **ODD),
    Case(9, "19+4", 7, "float32", layout="channels_offset_by_1", pool="channels_offset"),
    Case(36, "16+9x1+off4", 12, state_dtype="float16", out="channels_offset_by_2", activation=None),
    Case(24, "22+3", 10, "float16", layout="channels_backward", pool="spaced", index="mixed"),
    Case(7, "20+2", layout="channels_backward_dim", pool="columns_longer", bias="float32"),
    Case(7, "20+2", 13, "float32", "float16", layout="channels_spaced", others="strided", initial=None),
    Case(10, "9+8+3", 11, "float16", out="tokens", pool="slots", slots=None),
    Case(2, "9+11", 4, "float32"),
    Case(4, "5+5", 14, "float32", pool="columns_offset", initial=None, slots=None),
    # What sequences and slots can be, in a kernel that is built anyhow.
    Case(136, "1"),
    Case(136, "40x1", initial="all"),
    Case(136, "2x0+19+2+0+3x1+50+0", index="int64", **ODD),
    Case(136, "off9+8+16+off17", pool="columns", others="strided", pad_slot_id=0, **ODD),
    Case(136, "40in100", pool="channels_sliced", others="backward", initial="all", **ODD),
    Case(136, "32+31+33", slots=None, pool="slots", pad_slot_id=1),
    Case(136, "all60", slots=None, spare=0, initial="all"),
    Case(136, "all7", pool="channels_outermost", initial=None),
    without(Case(136, "off2+40+0+33+off3")),
    Case(136, "off20"),
    # Tokens contiguous: more than a tile, more tiles than a block, every access width and number of slots.
    Case(5, "1029", **ROWS),
    Case(3, "513+0+260+1", 6, "float16", layout="tokens_aligned", pool="columns"),
    Case(2, "300+2+1", 5, "float32", pool="columns_longer", state_dtype="float16", **ROWS),
    Case(9, "150+off3", 16, "float32", bias=None, activation=None, state_dtype="bfloat16", **ROWS),
    Case(3, "21x3+0", 3, index="int64", others="strided", **ROWS, **ODD),
    Case(3, "100+off7", 9, "float16", "bfloat16", layout="tokens_offset_by_1", out="tokens", pool="slots"),
    Case(2, "off3+70+2x1", 7, layout="tokens_offset_by_2", out="tokens", state_dtype="float32", pool="backward"),
    Case(3, "33+16+40", 10, layout="tokens_offset_by_4", out="tokens", weight_dtype="float16", activation="swish"),
    without(Case(3, "45+off4", 8, "bfloat16", "float32", layout="tokens_sliced")),
    Case(3, "45+1", 15, "float32", layout="tokens_spaced", out="tokens_backward", **ODD),
    # So few multiprocessors that warps are many, and lanes have several vectors.
    Case(13, "1029", processors=1, **ROWS),
    Case(14, "400", processors=1, initial="all", **ROWS),
    Case(13, "off3+990", 5, processors=1, **ROWS),
    Case(13, "off3+1030+9", 3, "float32", initial="all", gates="residual", processors=1, **ROWS),
    Case(13, "513+600+1", 6, "float16", layout="tokens_aligned", pool="columns", processors=1),
    # The same and short: sequences that end with a tile or a warp's part of it, that go on into the next by less than a
    # filter, shorter than a filter and longer than a tile; 32 channels and some.
    Case(36, "off3+253+1+255+1+2+3+63+65+off9+20x1+0+93", initial="all", **ROWS, **ODD),
    Case(33, "off1+126+1+129+31+33+2+60+3x1+66", initial="all", **ROWS),
    Case(33, "127+2+125+1+1+1+64+32x1+off31", 3, "float32", pool="columns", index="int64", **ROWS),
    Case(32, "31+33+62+3+2x127+126+4+31x4+0", 5, "float32", bias=None, state_dtype="bfloat16", initial="all", **ROWS),
    Case(35, "254+4+off250+5+60x3+14", 2, "float16", layout="tokens_sliced", state_dtype="float32", activation=None),
    Case(33, "255+3+600+30x1+49", 4, pool="slots", index="mixed", others="strided", initial="all", **ROWS, **ODD),
    Case(2, "2x1+2+3+4+5+off510+1+0", 5, layout="tokens_offset_by_4", out="tokens", pool="columns_longer"),
    without(Case(34, "250+9+off3+9x20", 4, "float16", "float32", **ROWS)),
    Case(5, "7+0+90in200", pool="columns", initial="all", **ROWS, **ODD),
    Case(5, "all33", out="channels", pool="columns", slots=None, **ROWS),
    # Enough single tokens for warps with the prefixes of several sequences. Some sequences are longer, some are empty,
    # some have no slot; and the channels do not fill the last warp.
    *(
        Case(channels, "off2+70x1+3+0+40x1+2x2+5+20x1+off1", width, dtype, processors=1, **way)
        for channels, width, dtype, way in (
            (252, 4, "bfloat16", {"slots": "odd"}),
            (252, 3, "float16", {"initial": "all", "moved": True, "weight_dtype": "float32"}),
            (252, 4, "bfloat16", {"initial": None, "read_only": True}),
            (128, 4, "float32", {"state_dtype": "bfloat16", "index": "int64", **ODD}),
            (256, 2, "float16", {"pool": "columns", "initial": "all"}),
        )
    ),
    without(Case(252, "40x1+100x2", processors=1)),
    # As many tokens as sequences: single ones, some without a slot, and others among which they are not.
    Case(252, "70x1", initial="mixed", **ODD),
    Case(128, "36x1", 3, "float32", index="int64", initial="all"),
    Case(252, "32x0+41x1+33+20x1", initial="all"),
    Case(256, "6+5x0+40x1", 2, "float16", slots="odd"),
    # The same of short sequences, some as long as a warp takes them as a whole and longer.
    *(
        Case(channels, "off2+30x3+0+40x2+2x5+1+33+20x1+9+32+off3", width, dtype, processors=1, **way)
        for channels, width, dtype, way in (
            (252, 4, "bfloat16", {"slots": "odd"}),
            (252, 4, "bfloat16", {"initial": "all", "moved": True, "weight_dtype": "float32"}),
            (128, 4, "float32", {"state_dtype": "bfloat16", "index": "int64", **ODD}),
            (256, 4, "bfloat16", {"pool": "columns", "initial": "all", "state_dtype": "float32"}),
        )
    ),
    # Tokens contiguous: tiles of nothing but single tokens, tiles with others among them, one with a longer sequence at
    # its end, and sequences with numbers far from those of their tokens. The channels do not fill the last 32.
    *(
        Case(channels, spec, width, dtype, pool="columns", **way, **ROWS)
        for channels, spec, width, dtype, way in (
            (40, "300x1", 4, "bfloat16", {"initial": "mixed"}),
            (72, "31x1+2+97x1+3+0+60x1+off2", 4, "bfloat16", {"initial": "all", "weight_dtype": "float32"}),
            (32, "70x1+0+140x1", 4, "bfloat16", {"slots": "odd", "index": "int64", "initial": "all"}),
            (48, "200x1", 3, "float16", {"initial": "all", "bias": "float32", "activation": None}),
            (40, "140x1", 4, "float32", {"state_dtype": "bfloat16", "initial": "all"}),
            (36, "90x1+off1", 2, "float32", {"initial": "mixed", "bias": None}),
            (40, "200+400x1", 4, "bfloat16", {"initial": "all"}),
            (40, "140x2+1000+140x2", 4, "bfloat16", {"slots": "odd", "initial": "all", "processors": 1}),
            (64, "300x2", 4, "bfloat16", {"slots": None, "initial": "mixed", "processors": 1}),
            (136, "off3+9+1+30+2+0+25+3x5+41+60+4x7+off2+120+3+3", 4, "float16", {"initial": "mixed", "processors": 1}),
            (296, "off1+60+3x1+0+9+40x2+25+3", 4, "bfloat16", {"initial": "mixed", "processors": 1}),
            (40, "900+60x1", 3, "bfloat16", {"weight_dtype": "float32", "initial": "all", "processors": 1}),
            (72, "20x5+40+20x9", 2, "float32", {"index": "int64", "initial": "all", "bias": None, "processors": 1}),
        )
    ),
    Case(136, "60+20x3+5+54", layout="tokens_sliced", pool="columns", initial="all", processors=1),
    # Slots out of several columns, other slots for final states, longer index arrays, states that are only read, kept
    # padding: each in every kernel.
    *(
        Case(channels, spec, pool=pool, **way, **layout)
        for layout, channels, pool in (
            ({}, 136, "channels_longer"),
            (ROWS, 33, "columns"),
            ({**ROWS, "width": 6}, 3, "slots"),
        )
        for spec, way in (
            ("off2+20+0+3x1+30+2", {"table": "first", "longer": 3, "slots": "odd"}),
            ("5x9+2x2+17", {"table": "column", "moved": True, "slots": "odd", "index": "mixed"}),
            ("1+2+3+4+5+90", {"moved": True, "slots": None, "initial": "all", "pad_slot_id": 1, "null": True}),
            ("off2+20+3x1+30+off4", {"keep": True, "slots": "odd", "longer": 2}),
            ("20+0+2x1+30", {"read_only": True, "initial": None}),
            ("20+0+2x1+30", {"read_only": True, "slots": "odd", "first_column": 0, "table": "column"}),
        )
    ),
    Case(12, "2+8+1+5x9", 8, "float32", initial="all", moved=True, first_column=0, pool="channels_longer", **ODD),
    Case(12, "2+8+1+5x9", 8, "float32", initial="all", first_column=0, pool="columns_longer", null=True, **ODD),
    # Snapshots: each in every kernel.
    *(
        Case(channels, spec, width, dtype, pool=pool, **way, **layout)
        for layout, channels, width, dtype, pool in (
            ({}, 136, 4, "bfloat16", "channels_longer"),
            ({"layout": "channels_sliced_by_2"}, 12, 3, "float32", "columns_longer"),
            (ROWS, 33, 4, "float16", "columns"),
            ({**ROWS, "state_dtype": "float32"}, 3, 7, "bfloat16", "slots"),
        )
        for spec, way in (
            ("off2+20+0+3x1+30+2", {"snapshots": "pool", "slots": "odd", "longer": 2}),
            ("5x9+2x2+17", {"snapshots": "pool", "moved": True, "initial": "all", "index": "mixed"}),
            (
                "1+2+3+4+5+90",
                {"snapshots": "pool", "moved": True, "first_column": 0, "table": "column", "slots": "odd"},
            ),
            ("off2+20+3x1+30+off4", {"snapshots": "whole", "initial": "all", "others": "strided"}),
            ("20+0+2x1+30", {"snapshots": "window", "read_only": True, "initial": None, "slots": None}),
            (
                "20+0+2x1+30",
                {"snapshots": "whole", "initial": "all", "first_column": 0, "null": True, "pad_slot_id": 1},
            ),
        )
    ),
    # Columns of all channels of a snapshot in one run of memory, of which the last channels are less than a group.
    *(
        Case(channels, "off3+130+0+2x1+127+9+90", width, dtype, pool="columns", **ROWS, **way)
        for channels, width, dtype, way in (
            (72, 4, "bfloat16", {"snapshots": "pool", "slots": "odd"}),
            (64, 4, "float16", {"snapshots": "pool", "moved": True, "state_dtype": "float32"}),
            (36, 2, "float16", {"snapshots": "window", "state_dtype": "bfloat16"}),
            (68, 5, "float32", {"snapshots": "pool", "index": "int64"}),
        )
    ),
    # A tile of padding alone.
    Case(36, "20+off300", pool="columns", initial="all", snapshots="pool", **ROWS),
    without(Case(24, "9+70+3", snapshots="whole")),
    without(Case(24, "9+70+3", 1, "float32", snapshots="whole", **ROWS)),
    Case(24, "9+70+3", 1, snapshots="pool"),
    Case(40, "3+9+40+5", 1, pool="columns_longer", initial="all", snapshots="whole"),
    Case(40, "3+9+40+5", 1, pool="columns_longer", initial="all", snapshots="whole", **ROWS),
    Case(16, "9+70+3", 16, snapshots="pool", initial="all", moved=True),
    # Gates and residuals: each in every kernel, and beside addressed states.
    *(
        Case(channels, spec, width, dtype, **way, **layout)
        for layout, channels, width, dtype in (
            ({}, 136, 3, "bfloat16"),
            ({"beside": "channels_offset_by_2", "layout": "channels_sliced"}, 12, 4, "float32"),
            ({"beside": "tokens"}, 10, 9, "float16"),
            (ROWS, 33, 4, "float16"),
            ({**ROWS, "beside": "tokens_sliced"}, 3, 7, "bfloat16"),
            ({"layout": "tokens_offset_by_2", "beside": "channels"}, 3, 3, "float32"),
        )
        for spec, way in (
            ("off2+20+0+3x1+30+2", {"gates": "pre_gate post_gate", "activation": None, "initial": "all"}),
            ("5x9+2x2+17", {"gates": "residual", "slots": "odd"}),
            ("1+2+3+4+5+90", {"gates": "pre_gate post_gate residual", "moved": True, "slots": "odd", "keep": True}),
            ("20+2+9", {"gates": "pre_gate", "initial": "all", "snapshots": "whole"}),
        )
    ),
    # So few multiprocessors that threads are many, and tiles are whole.
    Case(136, "100+9+0+130", gates="pre_gate post_gate residual", initial="all", processors=1),
    Case(72, "off3+9x8+200", 5, "float16", processors=1, **ODD),
    Case(72, "100+2x1+198", 12, "float32", initial="all", processors=1),
    Case(4, "700+330", gates="pre_gate post_gate residual", layout="tokens_aligned"),
    without(Case(24, "9+70+3", 1, gates="pre_gate residual")),
    # Dense batches with their states in a pool, at every access width.
    *(
        Case(channels, spec, width, dtype, layout=layout, **way, dense=True)
        for layout, channels, spec, width, dtype in (
            ("channel_first", 5, "3x1029", 4, "bfloat16"),
            ("channel_last", 12, "5x9", 3, "float32"),
            ("offset_alike", 3, "2x70", 16, "float16"),
            ("offset_by_4", 3, "4x33", 5, "bfloat16"),
            ("sliced_aligned", 3, "7x2", 4, "bfloat16"),
            ("offset_by_2", 2, "2x300", 9, "float32"),
        )
        for way in (
            {"initial": "all", "pool": "columns", "snapshots": "pool", "moved": True},
            {"slots": "odd", "keep": True, "longer": 1},
        )
    ),
    without(Case(7, "3x40", 1, "float16", layout="channel_first", dense=True, activation=None)),
    Case(
        7,
        "3x40",
        4,
        "float16",
        layout="channel_first",
        dense=True,
        read_only=True,
        state_dtype="float32",
        snapshots="whole",
    ),
    # Results over x. Channels contiguous: sequences that cross borders between tiles, begin a few tokens before one or
    # end with one; every access width.
    *(
        replace(case, over=True)
        for case in (
            Case(140, "130+60+20+5", initial=None, slots=None, spare=0),
            Case(136, "off62+64+1+1+2x3+120+62+5+0+3x1+off66", initial="all", snapshots="pool", slots="odd"),
            Case(140, "63+66+127+1+63+2", 2, "float16", initial="all", moved=True, keep=True),
            Case(140, "off5+60+3x1+99+40x2", slots="odd", initial="all", processors=1),
            Case(
                70, "61+200+9x13+off5", 5, "float32", pool="columns_longer", snapshots="pool", moved=True, initial="all"
            ),
            Case(10, "50+29+49+130", 16, layout="channels_sliced_by_2", state_dtype="float32", snapshots="whole"),
            Case(
                12, "60+70+off5+2", 9, "float16", "float32", layout="channels_backward", initial="all", activation=None
            ),
            Case(9, "120+70", 1, "float32", snapshots="pool", layout="channels_offset_by_1"),
            Case(6, "130+9", 6, "float32", "float16", "float16", layout="channels_offset_by_2", read_only=True),
            Case(3, "5+2+70", 3, weight_dtype="float32", layout="channels_spaced", activation="swish"),
            without(Case(24, "200+70+3", snapshots="whole")),
            without(Case(24, "200+70+3", 3)),
            Case(136, "70+9+30", 9, initial="all"),
            Case(4, "40+2+9", 3, initial="all"),
            Case(9, "20+7+off3", 1, initial="all"),
            # The same of short sequences: as long as a block's tokens, one longer, cut once and more often; a block's
            # tokens all sequences of their own; channels of several blocks.
            *(
                replace(case, processors=1)
                for case in (
                    Case(1032, "off5+30+32+33+3x1+62+40x1+0+2+off7+31+1+1+off9", slots="odd"),
                    Case(
                        264,
                        "62+66+129+70x1+3+61+off4",
                        3,
                        "float16",
                        "float32",
                        "float32",
                        initial="all",
                        moved=True,
                        keep=True,
                    ),
                    Case(
                        524, "63+2+65+30+200+1+2", 2, "float32", "bfloat16", "bfloat16", activation=None, read_only=True
                    ),
                    Case(
                        24, "64in500+130+3+63+67+190+1+61", 4, "bfloat16", "float16", "float16", pool="channels_longer"
                    ),
                    Case(24, "62+67+1+62+130", 4, "float16", initial="all", index="int64"),
                    without(Case(24, "62+66+129+9+off70")),
                )
            ),
            # Tokens contiguous.
            Case(36, "130+60+20+5", **ROWS, initial=None, slots=None, pool="columns", spare=0),
            Case(36, "off126+128+1+1+2x3+250+126+5+0+3x1+off130", **ROWS, initial="all", snapshots="pool", **ODD),
            Case(33, "off3+127+130+off9+255+1+125+2+off4", 2, "float16", **ROWS, moved=True, keep=True, pool="columns"),
            Case(
                35,
                "61+200+9x13",
                5,
                "float32",
                **ROWS,
                pool="columns_longer",
                snapshots="pool",
                moved=True,
                initial="all",
            ),
            Case(
                34, "125+29+100", 3, weight_dtype="float16", layout="tokens_sliced", snapshots="whole", activation=None
            ),
            Case(3, "300+600", 4, layout="tokens_aligned", snapshots="pool", state_dtype="float32", initial="all"),
            without(Case(24, "300+70+3", snapshots="whole", **ROWS)),
            Case(33, "20+9", layout="tokens", initial="all"),
            # The same with several tiles a strip.
            Case(
                36,
                "off126+128+1+1+2x3+250+126+5+0+3x1+off130+600+126+4+9",
                **ROWS,
                initial="all",
                snapshots="pool",
                slots="odd",
                processors=1,
            ),
            Case(33, "127+9+700+255+1+125+2", 5, "float16", **ROWS, initial="all", moved=True, processors=1),
            Case(
                33,
                "60+190+150+90+250+200",
                5,
                "float32",
                **ROWS,
                initial="all",
                moved=True,
                snapshots="pool",
                processors=1,
            ),
            # Tokens contiguous and wide filters, which a warp walks.
            Case(5, "off3+70+0+2+3+50+off7", 7, "float32", **ROWS, slots="odd", keep=True),
            Case(3, "1+2+3+90", 16, layout="tokens_offset_by_2", snapshots="whole", initial="all", read_only=True),
        )
    ),
    # Nothing to convolve, and values that saturate silu.
    Case(5, "3x0"),
    Case(5, "0", 3, "float32", **ROWS),
    Case(0, "7+2"),
    Case(4, "64", 4, "float32", scale=64),
    Case(4, "64", 4, "float16", scale=64, **ROWS),
)

_BATCHES = ("1", "2", "3", "4", "7+8+9", "64", "255+257", "1023+1", "2000x1", "2000in2000", "2000in9000", "1500+500x1",
            "4096+16x256", "off7+300+0+off60", "50x3+50x0+50x5")  # fmt: skip
_BOTH = ("channels", "tokens")
_TOKENS = ("tokens", "tokens_sliced", "tokens_aligned", "tokens_offset_by_1", "tokens_offset_by_2")
_MIXED_DTYPES = [(a, b, c) for a in ROUNDING for b in ROUNDING for c in ROUNDING]

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(24, spec, layout=a, **ODD) for spec in _BATCHES for a in _BOTH),
            *(Case(8, spec, 4, "float32", layout=a, initial="all") for spec in _BATCHES for a in _BOTH),
            *(Case(n, "300+3+70", layout=a) for n in (1, 3, 64, 100, 200, 4128) for a in _BOTH),
            *(Case(12, "200+9x20+12x1+off3", n, layout=a, **ODD) for n in range(1, 17) for a in _BOTH),
            *(Case(36, "40+9x3", n, "float32", layout=a, initial="all") for n in range(1, 17) for a in _BOTH),
            *(
                Case(36, "900+9x3+400", n, a, initial="all", processors=1)
                for n in range(1, 17)
                for a in ("bfloat16", "float32")
            ),
            *(Case(20, "90+11x4", 4, *dtypes) for dtypes in _MIXED_DTYPES),
            *(Case(20, "90+11x4", 4, a, a, b, layout="tokens") for a in ROUNDING for b in ROUNDING),
            *(Case(40, "130+2x1+61", 4, a, layout=b) for a in ("bfloat16", "float32") for b in PACKED),
            *(Case(40, "130+2x1+61", layout=a, out=b) for a in _BOTH for b in PACKED),
            *(Case(24, "60+7x3", layout=a, others=b, index="mixed", **ODD) for a in _BOTH for b in OTHERS),
            *(
                Case(24, "60+7x3", 4, a, layout=b, pool=c)
                for a in ("bfloat16", "float32")
                for b in _BOTH
                for c in POOLS
            ),
            *(Case(40, "700in5000+off9", n, a, initial="all", **ROWS) for n in range(2, 6) for a in ROUNDING),
            *(Case(40, f"off5+90in{n}+300+off7", layout=a, **ODD) for n in range(999, 1007) for a in _TOKENS),
            *(Case(2100, "off3+70in5000+700+off9", layout=a, initial="all", moved=True, over=True) for a in _BOTH),
            *(Case(4104, f"off3+{n}+700+300x1+off9", initial="all", over=True) for n in ("400in5000", "900x3+9x200")),
            *(Case(520, "off3+70in1500+130+9x1", 4, *dtypes, processors=1, over=True) for dtypes in _MIXED_DTYPES),
            *(Case(4200, "9+4991+2x1+3000", snapshots="pool", layout=a, initial="all", over=True) for a in _BOTH),
            *(Case(70000, "9+4", layout=a) for a in _BOTH),
            *(Case(2, f"{2**20}+1", layout=a) for a in _BOTH),
        ]
    )
)

_SERVED: Any = {"spare": 0, "initial": "all"}


BIG = tuple(Case(1024, f"{2**20}+{2**22 - 2**20 - 1}+9", layout=layout, **_SERVED) for layout in _BOTH)
"""More than 2**32 elements."""
