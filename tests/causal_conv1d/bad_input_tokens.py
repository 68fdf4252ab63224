"""Decode steps with packed tokens, trees and states after single tokens: arguments that do not fit, and contents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cuconv.runtime import trees
from tests.causal_conv1d.good_calls import DIM, HEADS, QKV, SIZES, SLOTS, STATE_LEN, WIDTH, filters
from tests.support import bad_input as bad
from tests.support.bad_input import INDICES, Fine, Good, Row, Tables, poisoned

TOTAL, LENGTHS = 6, (3, 0, 2)
"""Tokens, the last of which is padding, and those of each sequence."""
PACKED, TREE = "causal_conv1d_update:packed", "causal_conv1d_update:tree"
LINKED = "causal_conv1d_update:links"
CHILD, SIBLING, PARENT = trees.LINKS
PACKED_SPLIT, PACKED_QKV = "causal_conv1d_update_split:packed", "causal_conv1d_update_qkv_split:packed"
EACH = "(3,) or longer (sequences of query_start_loc)"
OF_TOKENS, STARTS = "token_state_indices", "query_start_loc"


def steps(xp: Any, *tokens: int) -> dict[str, Any]:
    """A slot for each of two tokens of three sequences, and whole states in a buffer."""
    return {
        "x": xp.ones((*tokens[:-1], DIM, *tokens[-1:]) if len(tokens) > 1 else (*tokens, DIM), np.float32),
        "conv_state": xp.ones((2 * SLOTS, DIM, STATE_LEN), np.float32),
        **filters(xp),
        "activation": "silu",
        "conv_state_indices": xp.asarray([3, 0, 1], np.int32),
        "intermediate_conv_window": poisoned(xp, 3, 3, DIM, STATE_LEN),
        "intermediate_state_indices": xp.asarray([2, 1, 0], np.int64),
        "token_state_indices": xp.asarray([[4, 5], [6, 7], [-1, 9]], np.int32),
        "disable_state_update": True,
    }


def packed(xp: Any) -> dict[str, Any]:
    starts = xp.asarray(np.cumsum([0, *LENGTHS]), np.int32)
    return {**steps(xp, TOTAL), "query_start_loc": starts, "max_query_len": 3}


def tree(xp: Any) -> dict[str, Any]:
    parents = xp.asarray([[-1, 0], [-1, -1], [0, 0]], np.int64)
    return {**steps(xp, 3, 2), "parents": parents, "out": poisoned(xp, 3, DIM, 2)}


def linked(xp: Any) -> dict[str, Any]:
    links = {CHILD: xp.asarray([[1, -1], [-1, -1], [1, -1]], np.int64), SIBLING: xp.asarray([[-1, -1]] * 3, np.int32)}
    given = {name: array for name, array in tree(xp).items() if name != "parents"}
    return {**given, **links, PARENT: xp.full((3, 2), -7, np.int64)}


GOOD: Good = {
    PACKED: lambda xp: {**packed(xp), "out": poisoned(xp, TOTAL, DIM)},
    PACKED_SPLIT: lambda xp: {
        **packed(xp), "sizes": SIZES, "out": tuple(poisoned(xp, TOTAL, size) for size in SIZES)
    },
    PACKED_QKV: lambda xp: {
        **packed(xp), **HEADS, "out": tuple(poisoned(xp, TOTAL, *heads) for heads in QKV)
    },
    TREE: tree,
    LINKED: linked,
}  # fmt: skip
WINDOWS = np.zeros((3, 3, DIM, STATE_LEN), bool)
WINDOWS[2, :3] = WINDOWS[0, :2] = True
WRITTEN: dict[str, dict[str, Any]] = {
    **{name: {"intermediate_conv_window": WINDOWS} for name in (PACKED, PACKED_SPLIT, PACKED_QKV)},
    TREE: {"intermediate_conv_window": np.s_[:, :2]},
    LINKED: {"intermediate_conv_window": np.s_[:, :2], PARENT: np.s_[:]},
}
"""Where good calls change what is not their result."""


KEPT: dict[str, Row] = {
    "slots-of-tokens-one-axis": bad.shape(OF_TOKENS, (3,), "…", np.int32),
    "slots-of-tokens-float": bad.dtype(OF_TOKENS, np.float32, INDICES),
    "window-state_len": bad.shape(
        "intermediate_conv_window", (3, 3, DIM, 6), "(3, 3, 6, 3) (rows, steps, dim of x, width - 1 or state_len)"
    ),
    "window-of-a-ring": (
        bad.also(bad.value(OF_TOKENS, None), bad.value("parents", None), bad.ints("cache_seqlens", [1, 2, 3])),
        ValueError,
        "intermediate_conv_window: got shape (3, 3, 6, 4); wanted (3, 3, 6, 3) (rows, steps, dim of x, width - 1)",
    ),
    "slots-of-tokens-in-a-ring": (
        bad.also(bad.value("parents", None), bad.ints("cache_seqlens", [1, 2, 3])), ValueError,
        f"{OF_TOKENS}: got an array; wanted None beside cache_seqlens",
    ),
    "window-is-state": bad.overlap(
        "conv_state", "intermediate_conv_window",
        bad.of_one_memory("conv_state", "intermediate_conv_window"),
    ),
}  # fmt: skip
KEPT["slots-of-tokens-one-axis"] = (
    *KEPT["slots-of-tokens-one-axis"][:2], "…got shape (3,); wanted (3, tokens) or more rows ({axes})",
)  # fmt: skip


def kept(axes: str) -> dict[str, Row]:
    return {key: (change, error, wanted.replace("{axes}", axes)) for key, (change, error, wanted) in KEPT.items()}


def overlaid(xp: Any, columns: int = WIDTH - 1, pad: int = 0) -> Any:
    """Windows of successive tokens that lie over each other; with less than no padding channels do, too."""
    memory = poisoned(xp, 3, DIM, 3 + columns - 1 + max(pad, 0))
    row, channel, column = (stride // 4 for stride in memory.strides)
    strides = [4 * each for each in (row, column, channel + min(pad, 0), column)]
    return xp.lib.stride_tricks.as_strided(memory, (3, 3, DIM, columns), strides)


TOO_NEAR: Row = (
    lambda xp, a: {"intermediate_conv_window": overlaid(xp, pad=-1)}, ValueError,
    "intermediate_conv_window: got strides (30, 4, 1) for shape (3, 6, 5); "
    "wanted an address of its own for every element",
)  # fmt: skip
BAD: Tables = {
    PACKED: {
        **kept("sequences of query_start_loc"),
        "x-rank-3": bad.shape("x", (3, DIM, 2), "2 axes (tokens, dim)"),
        "x-tokens": bad.too_long("x", 0, 2**30 + 1, "tokens"),
        "starts-float": bad.dtype(STARTS, np.float32, INDICES),
        "starts-none-at-all": (
            bad.zeros(STARTS, (0,), np.int32), ValueError, f"sequences of {STARTS}: got -1; wanted 0 to 1073741824"
        ),
        "slots-few": bad.shape("conv_state_indices", (2,), EACH, np.int32),
        "rows-few": bad.shape("intermediate_state_indices", (2,), EACH, np.int32),
        "out-by-sequence": bad.shape("out", (3, DIM), "(6, 6) (tokens of x, channels)"),
        "most-negative": bad.given("max_query_len", -1, "0 to 1073741824"),
        "most-float": bad.mistyped("max_query_len", 3.0, "an int"),
        "most-without-starts": (
            bad.also(bad.value(STARTS, None), bad.value("parents", None)), ValueError,
            "max_query_len: got 3; wanted None unless query_start_loc is given",
        ),
        "tree": (
            bad.zeros("parents", (3, 3), np.int32), ValueError,
            "parents: got an array; wanted None beside query_start_loc",
        ),
        "state-short-for-accepted": (
            bad.also(
                bad.value(OF_TOKENS, None), bad.ints("num_accepted_tokens", [1, 1, 1]),
                bad.value("disable_state_update", False),
            ),
            ValueError,
            "state_len of conv_state: got 4; wanted at least 5 "
            "(width - 1 + max_query_len - 1, for num_accepted_tokens)",
        ),
        "overlaid-channels": TOO_NEAR,
    },
    PACKED_SPLIT: {
        "out-by-sequence": (
            lambda xp, a: {"out": (poisoned(xp, 3, 1), *a["out"][1:])}, ValueError,
            "out[0]: got shape (3, 1); wanted (6, 1) (tokens of x, channels)",
        ),
    },
    PACKED_QKV: {
        "out-by-sequence": (
            lambda xp, a: {"out": (poisoned(xp, 3, 1, 1), *a["out"][1:])}, ValueError,
            "out[0]: got shape (3, 1, 1); wanted (6, 1, 1) (tokens of x, heads, head_dim)",
        ),
    },
    TREE: {
        **kept("batch of x"),
        "parents-few": bad.shape("parents", (2, 2), "(3, 2) or more (batch, seqlen of x)", np.int32),
        "parents-short": bad.shape("parents", (3, 1), "(3, 2) or more (batch, seqlen of x)", np.int32),
        "parents-one-axis": bad.shape("parents", (3,), "2 axes (batch, tokens)", np.int32),
        "parents-bool": bad.dtype("parents", bool, INDICES),
        "ring": (
            bad.also(bad.value(OF_TOKENS, None), bad.ints("cache_seqlens", [1, 2, 3])), ValueError,
            "parents: got an array; wanted None beside cache_seqlens",
        ),
        "accepted": (
            bad.also(
                bad.value(OF_TOKENS, None), bad.ints("num_accepted_tokens", [1, 2, 3]),
                bad.value("disable_state_update", False),
            ),
            ValueError, "parents: got an array; wanted None beside num_accepted_tokens",
        ),
        "out-is-x": bad.overlap("out", "x"),
        "overlaid-tree": (
            lambda xp, a: {"intermediate_conv_window": overlaid(xp)}, ValueError,
            "intermediate_conv_window: got strides (30, 1, 5, 1) for shape (3, 3, 6, 3); "
            "wanted an address of its own for every element",
        ),
        "tokens": (
            bad.also(
                bad.value(OF_TOKENS, None), bad.value("intermediate_conv_window", None), bad.value("out", None),
                bad.value("intermediate_state_indices", None), bad.zeros("x", (3, DIM, 1025), np.float32),
                bad.zeros("parents", (3, 1025), np.int32),
            ),
            ValueError, "seqlen of x, of trees: got 1025; wanted 0 to 1024",
        ),
    },
    LINKED: {
        "parents-too": (
            bad.zeros("parents", (3, 2), np.int32), ValueError, f"{CHILD}: got an array; wanted None beside parents"
        ),
        "ring": (
            bad.also(bad.value(OF_TOKENS, None), bad.ints("cache_seqlens", [1, 2, 3])), ValueError,
            f"{CHILD}: got an array; wanted None beside cache_seqlens",
        ),
        "no-children": (
            bad.value(CHILD, None), ValueError, f"{CHILD}: got None; wanted an array beside {SIBLING}"
        ),
        "no-siblings": (
            bad.value(SIBLING, None), ValueError, f"{SIBLING}: got None; wanted an array beside {CHILD}"
        ),
        "only-parents": (
            bad.also(bad.value(CHILD, None), bad.value(SIBLING, None)), ValueError,
            f"{CHILD}: got None; wanted an array beside {PARENT}",
        ),
        "children-few": bad.shape(CHILD, (2, 2), "(3, 2) or more (batch, seqlen of x)", np.int32),
        "siblings-short": bad.shape(SIBLING, (3, 1), "(3, 2) or more (batch, seqlen of x)", np.int32),
        "parents-one-axis": bad.shape(PARENT, (3,), "2 axes (batch, tokens)", np.int32),
        "siblings-float": bad.dtype(SIBLING, np.float32, INDICES),
        "parents-over-children": bad.overlap(PARENT, CHILD),
        "out-is-x": bad.overlap("out", "x"),
    },
}  # fmt: skip
ADVANCING = bad.value("disable_state_update", False)


def of_tokens() -> dict[str, Row]:
    """Rows for the slots of states after single tokens, of which those behind a sequence's last token do not count."""
    return {
        "large": (bad.ints(OF_TOKENS, [[4, 5], [6, 7], [-1, 10]]), ValueError, bad.outside(OF_TOKENS, 10, 2 * SLOTS)),
        "twice": (bad.ints(OF_TOKENS, [[4, 5], [6, 7], [8, 5]]), ValueError, bad.of_several(OF_TOKENS, 5)),
        "own-that-moves-on": (
            bad.also(bad.ints(OF_TOKENS, [[4, 3], [6, 7], [8, 5]]), ADVANCING), ValueError, bad.of_several(OF_TOKENS, 3)
        ),
        "of-another": (
            bad.ints(OF_TOKENS, [[4, 1], [6, 7], [8, 5]]), ValueError,
            f"{OF_TOKENS}: got slot 1, which another sequence starts from; wanted a slot of its own",
        ),
        "row-large": (
            bad.ints("intermediate_state_indices", [2, 1, 3]), ValueError,
            bad.outside("intermediate_state_indices", 3, 3),
        ),
    }  # fmt: skip


def starting(*starts: int) -> bad.Change:
    return bad.ints(STARTS, starts)


CONTENTS: Tables = {
    PACKED: {
        **of_tokens(),
        "late": (starting(1, 3, 3, 5), ValueError, f"{STARTS}[0]: got 1; wanted 0"),
        "falling": (
            starting(0, 3, 2, 5), ValueError, f"{STARTS}[2]: got 2; wanted at least 3, where the sequence begins"
        ),
        "beyond": (starting(0, 3, 3, 7), ValueError, f"{STARTS}[3]: got 7; wanted at most 6, the number of tokens"),
        "long": (
            starting(0, 1, 1, 5), ValueError, f"{STARTS}: got 4 tokens for sequence 2; wanted at most 3, max_query_len"
        ),
        "long-for-accepted": (
            bad.also(
                *(bad.value(OF_TOKENS, None), ADVANCING, bad.value("max_query_len", None)),
                *(bad.value("intermediate_conv_window", None), bad.value("intermediate_state_indices", None)),
                bad.ints("num_accepted_tokens", [1, 1, 1]),
            ),
            ValueError, f"{STARTS}: got 3 tokens for sequence 0; wanted at most 2, what the state holds",
        ),
    },
    TREE: {
        **of_tokens(),
        "parent-later": (
            bad.ints("parents", [[-1, 0], [-1, 1], [-1, 0]]), ValueError,
            "parents: got 1 for token 1; wanted an earlier token, or -1",
        ),
    },
    LINKED: {
        "child-earlier": (
            bad.ints(CHILD, [[1, 0], [-1, -1], [1, -1]]), ValueError,
            f"{CHILD}: got 0 for token 1; wanted a later one of 2, or -1",
        ),
        "sibling-behind": (
            bad.ints(SIBLING, [[-1, 2], [-1, -1], [-1, -1]]), ValueError,
            f"{SIBLING}: got 2 for token 1; wanted a later one of 2, or -1",
        ),
    },
}  # fmt: skip
FINE: Mapping[str, Mapping[str, Fine]] = {
    PACKED: {
        "as-it-is": (bad.value("null_slot", None), [True, True], {4, 5, 9}),
        "behind-the-last-token": (
            bad.ints(OF_TOKENS, [[4, 5], [4, 99], [8, 9]]), [True, True], {4, 5, 8, 9}
        ),
        "own": (bad.ints(OF_TOKENS, [[4, 3], [6, 7], [1, 9]]), [True, True], {1, 3, 4, 9}),
        "advancing": (ADVANCING, [True, True], {1, 3, 4, 5, 9}),
        "null": (bad.value("null_slot", 3), [False, True], {9}),
        "shared-start": (bad.ints("conv_state_indices", [3, 0, 3]), [True, True], {4, 5, 9}),
    },
    TREE: {
        "as-it-is": (bad.value("null_slot", None), [True] * 3, {4, 5, 6, 7, 9}),
        "negative": (bad.ints(OF_TOKENS, [[4, -2], [6, -9], [8, 9]]), [True] * 3, {4, 6, 8, 9}),
        "moved": (bad.also(ADVANCING, bad.ints("dst_state_indices", [8, 2, -1])), [True] * 3, {2, 4, 5, 6, 7, 8, 9}),
        "null": (bad.value("null_slot", 0), [True, False, True], {4, 5, 9}),
    },
    LINKED: {
        "of-padding": (
            bad.also(bad.value("null_slot", 1), bad.ints(CHILD, [[1, -1], [-1, -1], [0, 9]])),
            [True, True, False], {4, 5, 6, 7},
        ),
    },
}  # fmt: skip
APART = {
    "causal_conv1d_update:packed": {
        "overlaid": lambda xp, a: {
            "x": xp.ones((9, DIM), np.float32), "out": poisoned(xp, 9, DIM), **starting(0, 3, 6, 9)(xp, a),
            "intermediate_conv_window": overlaid(xp),
        },
        "out-is-x": lambda xp, a: {"out": a["x"]},
    }
}  # fmt: skip
"""Calls in which what is written shares no element with anything else, but for out that is x."""
