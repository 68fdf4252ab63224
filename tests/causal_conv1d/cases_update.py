"""causal_conv1d_update: the convolution's decode step, one or a few tokens of every sequence after a pool's states."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Any

from tests.causal_conv1d.cases_dense import ALL_GATES
from tests.causal_conv1d.update import ACCEPTED, COLUMNS, FROZEN, ODD, RING, ROWS, Step
from tests.support.compare import ROUNDING
from tests.support.layouts import LAYOUTS, OTHERS, POOLS, WINDOWS


@dataclass(frozen=True)
class Case(Step):
    """One call."""

    FUNCTION = "causal_conv1d_update"


_FEW_POOLS = ("channels", "columns"), ("channels_sliced", "columns_and_one")
_FEW_DTYPES = (
    ("bfloat16", "bfloat16", "float16"),
    ("float16", "float32", "float32"),
    ("float32", "float16", "bfloat16"),
    ("bfloat16", "float16", "float16"),
)
_BIASES = cycle(("weight", "float32", None))
_ACTIVATIONS = cycle(("silu", "silu", None, None, None))
"""What steps of one token take in turn."""

UNIT = (
    # State columns apart: every vector width, number of taps and pair of dtypes.
    Case(136, 5),
    Case(56, 5),
    Case(132, 3, 1, 4, "float32"),
    Case(36, 3, 1, 4, "float32"),
    Case(40, 4, 3, 3, "float16", "float32", "float32", pool="channels_longer", window="columns", index="int64"),
    Case(6, 3, 2, 2, bias=None, pool="channels_sliced", window="columns", **ODD),
    Case(7, 4, 5, 5, "float16", layout="last_offset_by_1", window="channels", activation=None, **RING),
    Case(8, 6, 2, 16, "float32", state_dtype="bfloat16", window="columns_longer", activation=None, **ODD),
    Case(12, 2, 3, 9, "bfloat16", "float32", "float32", others="offset", **ACCEPTED),
    Case(16, 5, None, 8, "float16", "bfloat16", pool="backward", others="backward"),
    Case(10, 3, 7, 1, "float32", "bfloat16", activation="swish", pool="channels_longer", window="columns", **RING),
    Case(20, 4, 2, 6, "bfloat16", "float16", others="strided", index="int64", **ODD, **RING),
    Case(9, 4, None, 12, "float32", layout="transposed", pool="spaced", state_dtype="float16"),
    Case(24, 3, 2, 13, layout="last_sliced_dim", pool="slots", bias="float32", window="spaced"),
    Case(10, 3, 9, 7, "float32", pool="channels_longer"),
    Case(6, 2, 3, 11, "float16", window="channels", **ACCEPTED),
    Case(4, 3, 20, 15, state_dtype="float32", layout="channel_first", activation=None, **RING),
    # A batch so large that each thread takes two sequences; it is odd, so that the last thread has only one.
    Case(131, 1023, None, layout="last_offset_by_1", **ODD),
    Case(131, 1023, None, layout="last_offset_by_1", **COLUMNS, **ODD),
    # What the same kernel is called with in other ways.
    Case(136, 1, slots=None),
    Case(136, 9, 4, **ACCEPTED, **ODD),
    Case(136, 9, 3, pool="channels_longer", index="int64", **ACCEPTED, **ODD),
    Case(136, 9, 2, index="mixed", window="channels", rows=True, **ACCEPTED, **ODD),
    Case(136, 14, 1, index="int64", **RING, **ODD),
    Case(136, 14, 9, pool="channels_longer", window="channels_sliced", **RING, **ODD),
    Case(136, 14, None, pool="channels_longer", layout="sliced_seq", out="channel_last", others="strided", **RING),
    Case(136, 3, None, layout="last_sliced_dim", pool="channels_sliced", pad_slot_id=0, **ODD),
    Case(136, 3, 2, layout="token_major", pool="channels_outermost", window="columns", **FROZEN),
    Case(136, 3, 2, pool="channels_longer"),
    Case(136, 3, 1, pool="channels_longer", window="channels", slots=None, spare=0),
    Case(136, 3, 3, window="channels", slots=None, spare=0),
    Case(136, 3, None, **FROZEN),
    Case(136, 4, 3, pool="channels_longer", window="steps", rows=True, index="int64", **RING, **ODD, **FROZEN),
    Case(136, 4, 3, layout="last_sliced_seq", pool="channels_offset", window="channels_offset", slots=None),
    Case(136, 4, 2, layout="last_broadcast_batch", pool="columns", window="backward", others="backward", **ACCEPTED),
    Case(136, 4, 2, layout="last_backward_seq", pool="slots", window="spaced", pad_slot_id=2, slots=None),
    Case(136, 4, 6, pool="spaced", **ACCEPTED),
    Case(4, 3, 2, 4, "float32", scale=64),
    # Several tokens and little else: fewer than a thread has at once and more, in small steps and in large ones.
    Case(1032, 64, 2, **ODD),
    Case(134, 5, 9, 3, "float16", "float32", pool="channels_sliced", bias="float32", **ODD),
    Case(70, 3, 4, 3, "float32", "float16", activation=None, pool="channels_sliced", **FROZEN),
    Case(136, 5, 6, 4, pool="channels_sliced", window="channels", rows=True, index="int64", **ODD),
    Case(132, 4, 4, 3, "float32", window="channels", slots=None),
    Case(136, 9, lengths=(6, 0, 1, 5), most=5, behind=2, window="channels", **ODD),
    # Packed sequences that have as many tokens as all of them are taken to have, none of them, or only where they begin
    # or end in common.
    *(Case(136, 10, lengths=(3,), behind=behind) for behind in (0, 2)),
    Case(136, 10, lengths=(2, 2, 2, 0, 4), **ODD),
    # The same of states and windows with contiguous columns.
    Case(136, 9, 3, window="columns", whole=True, rows=True, **ROWS, **ODD),
    Case(136, 6, 6, 3, "float16", "float32", window="columns", rows=True, index="int64", **COLUMNS, **FROZEN),
    Case(132, 4, 4, 3, "float32", window="columns", whole=True, slots=None, activation=None, **ROWS),
    Case(136, 9, lengths=(6, 0, 1, 5), most=5, behind=2, window="columns", **COLUMNS, **ODD),
    # State columns together: every number of them, vectors of one channel to 8.
    Case(136, 5, None, **COLUMNS),
    Case(56, 5, None, **COLUMNS),
    Case(132, 9, None, **ROWS),
    Case(133, 3, 1, **ROWS),
    Case(53, 3, 1, **ROWS),
    Case(132, 3, 2, 4, "float32", **ROWS),
    Case(5, 3, 7, 1, "float32", **ROWS, **FROZEN),
    Case(16, 4, 2, 2, bias=None, **ROWS, **ODD),
    Case(6, 3, None, 2, "float16", pool="columns", **ODD),
    Case(40, 3, 3, 5, "float16", "float32", "float32", pool="columns_offset", index="int64"),
    Case(12, 2, 2, 7, "bfloat16", "float32", others="strided", **COLUMNS),
    Case(8, 6, 2, 8, "float32", "float16", "bfloat16", activation=None, **COLUMNS, **ODD),
    Case(16, 5, None, 8, "float16", layout="last_sliced_dim", slots=None, **ROWS),
    Case(12, 2, 10, 10, "bfloat16", "float32", "float32", activation="swish", **COLUMNS),
    Case(16, 5, None, 11, "float16", "bfloat16", layout="offset_by_1", others="backward", **COLUMNS),
    Case(7, 4, 5, 11, layout="last_offset_by_2", activation=None, **ROWS),
    Case(8, 3, 2, 12, state_dtype="float16", bias="float32", **ROWS),
    Case(8, 3, None, 14, "float32", "bfloat16", "float16", layout="transposed", **COLUMNS),
    Case(9, 4, 2, 14, "float32", layout="channel_first", **ROWS),
    Case(8, 3, 3, 15, "bfloat16", state_dtype="float32", **ROWS),
    Case(4, 3, 18, 16, "float16", "float32", others="offset", **ROWS),
    Case(132, 3, 4, out="last_sliced_dim", pad_slot_id=1, **ROWS, **ODD),
    Case(133, 4, None, layout="sliced_seq", pad_slot_id=1, others="offset", **ROWS, **ODD),
    Case(136, 3, 2, layout="last_sliced_dim", **COLUMNS, **FROZEN),
    # These, too, in the first kernel.
    Case(136, 9, 4, **ROWS, **ACCEPTED, **ODD),
    Case(136, 9, 2, index="mixed", window="columns", rows=True, **COLUMNS, **ACCEPTED, **ODD),
    Case(136, 14, 1, index="int64", **COLUMNS, **RING, **ODD),
    Case(136, 14, 9, pool="columns_longer", window="channels", **RING, **ODD),
    Case(136, 3, 2, layout="token_major", window="columns_longer", **COLUMNS, **FROZEN),
    Case(136, 4, 1, pool="columns_longer", window="columns"),
    Case(136, 3, 3, layout="last_sliced_dim", pool="columns_offset", window="columns", slots=None, spare=0),
    Case(136, 4, 3, window="steps", rows=True, **ROWS, **RING, **ODD, **FROZEN),
    Case(136, 4, 5, layout="last_offset_by_1", window="columns", **ROWS),
    Case(136, 4, None, pool="columns_longer", pad_slot_id=1, others="offset", **ODD),
    # Slots out of several columns, other slots for states, longer index arrays, kept results: each in every kernel.
    *(
        Case(136, 14, tokens, table=table, moved=True, longer=3, index="mixed", **mode, **pool, **ODD)
        for pool in ({}, COLUMNS, {"pool": "channels_longer"})
        for tokens, mode, table in ((None, {}, "column"), (2, {}, "first"), (3, RING, None), (2, ACCEPTED, "column"))
    ),
    Case(131, 1023, None, layout="last_offset_by_1", table="column", moved=True, **ODD),
    Case(131, 1023, None, layout="last_offset_by_1", table="column", moved=True, **COLUMNS, **ODD),
    *(
        Case(136, 14, tokens, keep=True, null=True, pad_slot_id=3, **pool, **ODD)
        for pool in ({}, COLUMNS)
        for tokens in (None, 2)
    ),
    Case(136, 9, 4, moved=True, slots=None, pad_slot_id=1, window="channels", pool="channels_longer", first_column=0),
    Case(136, 9, None, moved=True, first_column=0, pool="columns_longer", **ODD),
    Case(136, 9, 2, moved=True, window="channels", rows=True, longer=2, keep=True, **ACCEPTED, **ODD),
    Case(136, 9, 2, moved=True, table="column", **FROZEN, **ODD),
    *(
        Case(136, 14, tokens, fresh=True, **mode, **pool, **ODD)
        for pool in ({}, COLUMNS, {"pool": "channels_longer"})
        for tokens, mode in ((None, {}), (2, {"longer": 1, "moved": True}), (2, RING), (2, ACCEPTED))
    ),
    Case(131, 1023, None, layout="last_offset_by_1", fresh=True, **ODD),
    Case(131, 1023, None, layout="last_offset_by_1", fresh=True, **COLUMNS, **ODD),
    Case(136, 9, None, fresh=True, first_column=0, pool="columns_longer", others="strided", **ODD),
    # Packed tokens, each in every kernel: of equal numbers, of any, of none, too many, behind the last sequence.
    *(Case(136, 14, lengths=(1,), most=1, **pool, **ODD) for pool in ({}, COLUMNS, {"pool": "channels_longer"})),
    *(Case(136, 14, lengths=(1, 0, 1, 1), most=1, behind=17, moved=True, **pool, **ODD) for pool in ({}, COLUMNS)),
    Case(1160, 64, lengths=(1,), most=1),
    Case(1160, 120, lengths=(1, 0, 2, 1), most=1, behind=3, **ODD),
    *(
        Case(136, 9, lengths=(4, 0, 2, 7, 1), behind=3, index="mixed", **mode, **pool, **ODD)
        for pool in ({}, COLUMNS, {"pool": "channels_longer"})
        for mode in ({}, ACCEPTED, RING)
    ),
    *(Case(136, 9, lengths=(4, 0, 2, 7, 1), most=3, table="column", moved=True, **pool, **ODD) for pool in ({}, ROWS)),
    *(Case(136, 9, lengths=(3, 1, 0), most=2, behind=12, keep=True, **pool, **ODD) for pool in ({}, ROWS)),
    *(Case(136, 9, lengths=(3, 1), most=1, fresh=True, **pool) for pool in ({}, COLUMNS)),
    Case(136, 9, lengths=(3, 1, 2), window="channels", rows=True, slots=None, **ACCEPTED),
    Case(136, 9, lengths=(3, 1, 5, 2), held=3, **ACCEPTED),
    Case(131, 1023, lengths=(1, 1, 0), most=1, layout="last_offset_by_1", **ODD),
    Case(131, 1023, lengths=(1, 1, 0), most=1, behind=5, layout="last_offset_by_1", **COLUMNS, **ODD),
    Case(12, 5, lengths=(2, 3), layout="channel_first", others="strided", **ROWS),
    Case(136, 0, lengths=(1,), behind=5),
    Case(136, 0, lengths=(1,), behind=5, **COLUMNS),
    Case(136, 3, lengths=(2, 0, 1), most=0, behind=2),
    # The state after each token: in slots, as windows of all columns, as windows that lie over each other.
    *(
        Case(136, 7, 3, token_slots=3, window="columns", whole=True, **pool, **ODD)
        for pool in ({}, COLUMNS, ROWS, {"pool": "channels_longer"}, {"pool": "columns_longer"})
    ),
    *(
        Case(136, 7, 3, token_slots=2, window="channels", whole=True, fresh=True, moved=True, longer=2, **pool, **ODD)
        for pool in ({}, ROWS, {"pool": "channels_longer"})
    ),
    *(
        Case(136, 7, lengths=(3, 1, 0, 5), token_slots=3, index="mixed", **pool, **FROZEN)
        for pool in ({}, COLUMNS, {"pool": "channels_longer"})
    ),
    *(
        Case(136, 7, 3, window="overlaid", rows=True, **mode, **pool, **ODD)
        for pool in ({}, COLUMNS, ROWS)
        for mode in ({}, ACCEPTED, RING)
    ),
    *(Case(136, 7, lengths=(3, 1, 0, 5), window="overlaid", **pool) for pool in ({}, COLUMNS)),
    *(
        Case(136, 7, seqlen, window="overlaid_dense", rows=True, fresh=fresh, **pool, **ODD)
        for pool in ({}, COLUMNS, ROWS, {"pool": "channels_longer"})
        for seqlen, fresh in ((4, False), (7, True))
    ),
    Case(36, 3, 5, 5, "float32", state_dtype="float16", window="overlaid_dense", layout="channel_first", **COLUMNS),
    Case(136, 7, None, token_slots=1, window="channels_offset", whole=True, pool="channels_longer", first_column=-1),
    Case(136, 7, 2, token_slots=2, pool="channels_longer", first_column=0, **FROZEN),
    Case(136, 7, 2, token_slots=2, slots=None, pad_slot_id=3, **ROWS, **FROZEN),
    *(
        Case(136, 9, 3, token_slots=2, window="overlaid", index="mixed", **pool, **ACCEPTED, **FROZEN, **ODD)
        for pool in ({}, {"pool": "columns_longer"})
    ),
    Case(136, 9, lengths=(3, 1, 2), token_slots=3, window="columns", rows=True, **ACCEPTED),
    Case(8, 3, 2, 1, token_slots=2, window="columns", whole=True, pool="columns_and_one"),
    Case(8, 3, 2, 16, token_slots=2, window="columns", whole=True, pool="columns_longer"),
    # Trees.
    *(
        Case(136, 7, 5, tree=True, token_slots=4, window="columns", index="mixed", **pool, **ODD)
        for pool in ({}, COLUMNS, {"pool": "channels_longer"})
    ),
    Case(136, 7, 5, tree=True, window="channels", whole=True, pool="channels_longer", moved=True, fresh=True, **ODD),
    Case(136, 7, 6, tree=True, window="channels", rows=True, token_slots=3, table="column", longer=2, **FROZEN),
    Case(7, 3, 9, 16, "float32", tree=True, state_dtype="float16", layout="channel_first", **COLUMNS),
    Case(131, 3, 4, 2, "float16", "float32", tree=True, keep=True, activation=None, bias=None, **ODD),
    Case(8, 3, 3, 1, tree=True, layout="last_offset_by_2", first_column=0, pool="columns_longer"),
    Case(6, 3, None, 5, tree=True, index="int64"),
    Case(6, 3, 3, 3, "float32", "float16", "float32", tree=True),
    *(Case(136, 7, 9, tree=True, links=True, window="columns", index="mixed", **pool, **ODD) for pool in ({}, COLUMNS)),
    Case(7, 3, 40, 4, "float32", tree=True, links=True, keep=True, longer=2, layout="channel_first", **ODD),
    Case(1024, 5, None, 3, tree=True, links=True, index="int64"),
    Case(8, 5, 300, 2, tree=True, links=True, token_slots=1, **FROZEN),
    # Trees of few tokens: with windows, in blocks with lanes beside the channels, of most tokens, in states that stay.
    Case(136, 7, 4, tree=True, links=True, window="channels", index="mixed", **ODD),
    Case(516, 7, 16, 3, "float32", tree=True, window="channels", rows=True, pool="channels_sliced", **ODD),
    Case(260, 7, 9, 4, "float16", "float32", tree=True, links=True, pool="channels_sliced", activation=None),
    Case(134, 7, 3, tree=True, slots=None, index="int64", bias=None, layout="last_sliced_dim_by_2", **FROZEN),
    # One token of few sequences: everything that calls can ask for, every number of columns and pair of dtypes.
    *(
        Case(dim, 11, lengths=lengths, most=1 if lengths else None, **pool, **way)
        for dim, pool, lengths, way in (
            (136, {}, (1,), {"slots": None}),
            (140, COLUMNS, (1, 0, 2, 1), {"slots": None, "moved": True, "behind": 3}),
            (131, ROWS, (1, 0, 2), {"behind": 3, "index": "int64", **ODD}),
            (133, {"pool": "channels_sliced"}, (), {"slots": None, "moved": True, "fresh": True, "others": "strided"}),
            (131, ROWS, (), {"moved": True, "table": "column", "index": "mixed", "longer": 2, **ODD}),
            (133, {}, (1, 0, 2), {"moved": True, "table": "first", "behind": 5, "keep": True, **ODD}),
            (136, COLUMNS, (), {"fresh": True, "keep": True, "null": True, "pad_slot_id": 3, **ODD}),
            (136, COLUMNS, (), {"layout": "channel_first", **FROZEN}),
            (1030, ROWS, (), {"pad_slot_id": 2**40, "layout": "last_sliced_dim", "out": "channel_first"}),
        )
    ),
    *(
        Case(260, 5, None, width, *types, pool=_FEW_POOLS[width > 3][width % 2], bias=bias, activation=activation)
        for width, types, bias, activation in zip(range(2, 17), cycle(_FEW_DTYPES), _BIASES, _ACTIVATIONS, strict=False)
    ),
    Case(70, 40, index="int64", longer=1, **ODD),
    Case(1020, 66, moved=True, **ODD),
    Case(1020, 66, **COLUMNS),
    # Gates and residuals: in steps of one token and of several, packed, addressed, as rings, in windows and ranges.
    *(
        Case(136, 7, seqlen, gates=gates, **way, **pool, **ODD)
        for pool in ({}, COLUMNS)
        for seqlen, gates, way in (
            (None, ALL_GATES, {}),
            (
                None,
                "pre_gate",
                {"lengths": (1, 0, 2), "most": 1, "behind": 3, "moved": True, "beside": "last_sliced_dim"},
            ),
            (3, "post_gate residual", {"index": "mixed", **RING}),
            (2, ALL_GATES, {"moved": True, "fresh": True, **ACCEPTED}),
            (None, ALL_GATES, {"lengths": (3, 1, 0, 5), "behind": 2, "beside": "channel_first"}),
        )
    ),
    Case(136, 20, gates=ALL_GATES, layout="last_offset_by_1", **COLUMNS),
    Case(
        70,
        7,
        3,
        3,
        gates="pre_gate",
        layout="last_sliced_dim_by_2",
        token_slots=3,
        window="columns",
        whole=True,
        pool="channels_longer",
        **ODD,
    ),
    Case(136, 7, 4, window="overlaid_dense", rows=True, gates="pre_gate post_gate", **COLUMNS),
    Case(12, 5, 9, 7, "float32", gates=ALL_GATES, layout="channel_first", **ROWS),
    Case(9, 4, 2, 1, "float16", gates=ALL_GATES, beside="last_offset_by_1", activation=None, **RING),
    # Nothing to do.
    Case(136, 0),
    Case(136, 0, gates=ALL_GATES),
    Case(0, 3, 2, window="columns"),
    Case(136, 3, 0, **COLUMNS),
    *(Case(dim, *sizes, **mode) for mode in (RING, ACCEPTED) for dim, *sizes in ((136, 0), (0, 3, 2), (136, 3, 0))),
    Case(0, 0, 0),
)

_MODES: Any = ({}, RING, ACCEPTED)
_TOKENS = (None, 1, 2, 3, 8, 40)
_BOTH = ("channels", "columns_and_one")
_MIXED_DTYPES = [(a, b, c) for a in ROUNDING for b in ROUNDING for c in ROUNDING]

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(24, 7, n, pool=p, **m, **ODD) for n in _TOKENS for p in _BOTH for m in _MODES),
            *(Case(24, 7, 2, n, pool=p, **m) for n in range(1, 17) for p in _BOTH for m in _MODES),
            *(Case(36, 5, None, n, "float32", pool=p) for n in range(1, 17) for p in _BOTH),
            *(Case(n, 5, 2, pool=p, **ODD) for n in (1, 2, 3, 64, 100, 200, 4128) for p in _BOTH),
            *(Case(20, 4, None, 4, *dtypes, pool=p) for dtypes in _MIXED_DTYPES for p in _BOTH),
            *(Case(40, 3, n, layout=a, pool=p) for n in (None, 3) for a in LAYOUTS for p in _BOTH),
            *(Case(40, 3, 3, 4, "float32", out=a, pool=p) for a in LAYOUTS for p in _BOTH),
            *(Case(24, 5, n, 4, a, pool=p, **m) for n in (1, 3) for a in ROUNDING for p in POOLS for m in _MODES),
            *(Case(24, 5, 3, window=w, pool=p, rows=w[0] == "c", **m) for w in WINDOWS for p in _BOTH for m in _MODES),
            *(Case(24, 5, 3, window="columns", pool=p, **m, **FROZEN) for p in POOLS for m in _MODES[:2]),
            *(
                Case(24, 8, 2, others=a, index="mixed", pool=p, **m, **ODD)
                for a in OTHERS
                for p in _BOTH
                for m in _MODES
            ),
            *(Case(n, 70000, None, pool=p, **ODD) for n in (1, 8) for p in _BOTH),
            *(Case(70000, 3, 2, pool=p) for p in _BOTH),
            *(Case(2048, 1024, None, 4, a, pool=p) for a in ROUNDING for p in _BOTH),
            *(Case(1030, 3, None, n, pool=p) for n in range(1, 17) for p in _BOTH),
            *(Case(1032, 80, n, gates=ALL_GATES, pool=p, **ODD) for n in (None, 3) for p in POOLS),
        ]
    )
)


BIG = tuple(Case(4096, 4, spare=2**19, pool=pool) for pool in _BOTH)
"""A pool of more than 2**32 elements."""
