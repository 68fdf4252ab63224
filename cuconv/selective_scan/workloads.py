"""Sample calls of the selective scan: a maker for each public function, and rows of sizes for tables and checks."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from itertools import accumulate
from typing import Any

from cuconv.runtime.batches import lengths
from cuconv.runtime.dtypes import BOOL, CODES, FLOAT32, INT32, STATES, DType
from cuconv.runtime.launch import ceil_div
from cuconv.runtime.rounding import LARGEST
from cuconv.runtime.workload import (
    CHANNELS,
    TOKENS,
    Array,
    BlockCache,
    Cut,
    Rows,
    Workload,
    choice,
    element_of,
    scattered,
    snapshot_rows,
    spread,
    without_zero,
)
from cuconv.selective_scan.kernels import chunk_tokens
from cuconv.selective_scan.varlen import scan_by_blocks


def rows(lead: tuple[int, ...], dim: int, seqlen: int, d_state: int, element: DType, contiguous: str) -> dict[str, Any]:
    """The arrays that dense and packed scans both take."""
    n = len(lead)
    is_by_channel = choice("contiguous", contiguous, CHANNELS, TOKENS) == CHANNELS
    order = (*range(n), n + 1, n) if is_by_channel else None
    by_channel, by_state = (*lead, dim, seqlen), (*lead, d_state, seqlen)
    return {
        "u": Array(by_channel, element, order),
        "delta": Array(by_channel, element, order),
        "A": Array((dim, d_state), FLOAT32, low=-4.0, high=-0.5),
        "B": Array(by_state, element, order),
        "C": Array(by_state, element, order),
        "D": Array((dim,), FLOAT32),
        "z": Array(by_channel, element, order),
        # Steps as in trained models: mostly 0.001 to 0.1 after the softplus.
        "delta_bias": Array((dim,), FLOAT32, low=-7.0, high=-3.0),
    }


def channels(axis: int, dim: int) -> dict[str, Cut]:
    """The cut that keeps some channels of a scan."""
    kept = spread(dim)
    by_channel: dict[str, Cut] = {name: (axis, kept) for name in ("u", "delta", "z", "out")}
    return by_channel | {name: (0, kept) for name in ("A", "D", "delta_bias")}


def selective_scan_fn(
    batch: int = 1, dim: int = 5120, seqlen: int = 4096, d_state: int = 16, dtype: str = "bfloat16",
    contiguous: str = TOKENS, delta: str = "",
) -> Workload:  # fmt: skip
    """The scan of Mamba, with z and softplus; `delta` says what is contiguous in delta, if not the same as in u.

    Models of transformers have contiguous channels, and in delta contiguous tokens.
    """
    sizes = without_zero(locals(), "delta")
    arrays = rows((batch,), dim, seqlen, d_state, element_of(dtype), contiguous)
    if delta:
        arrays["delta"] = rows((batch,), dim, seqlen, d_state, element_of(dtype), delta)["delta"]
    return Workload(
        "selective_scan_fn", sizes, arrays, {"out": arrays["u"]}, {"delta_softplus": True},
        exponentials=batch * dim * seqlen * d_state, cuts=channels(1, dim),
    )  # fmt: skip


def selective_scan_varlen_fn(
    sequences: str = "16x512", dim: int = 8192, d_state: int = 16, dtype: str = "bfloat16", contiguous: str = TOKENS,
    snapshots: int = 0, state_dtype: str = "", over: str = "", blocks: int = 0,
) -> Workload:  # fmt: skip
    """The scan of packed sequences that each start from a state in a pool.

    The pool gets snapshots of states every `snapshots` tokens, unless that is 0. It is float32 without a state_dtype;
    with one of codes there are scales. The result may go over u, delta or z. Unless `blocks` is 0, a prefix cache keeps
    the state at the end of every block of `blocks` tokens, as engines do.
    """
    sizes = without_zero(locals(), "snapshots", "state_dtype", "over", "blocks")
    if blocks:
        return _by_blocks(sizes)
    stored = element_of(state_dtype or "float32", "state_dtype", STATES)
    largest = LARGEST.get(stored.numpy, 1.0)
    counts = lengths(sequences)
    n, total, kept = len(counts), sum(counts), snapshot_rows(counts, snapshots)
    given = rows((), dim, total, d_state, element_of(dtype), contiguous)
    touched = (2 * (len(counts) - counts.count(0)) + len(kept)) * dim
    arrays = {
        "u": given.pop("u"),
        "ssm_states": Array(
            (n + len(kept), dim, d_state), stored, low=-largest, high=largest, touched=touched * d_state
        ),
        **given,
        "query_start_loc": Array((n + 1,), INT32, values=(0, *accumulate(counts))),
        "cache_indices": Array((n,), INT32, values=scattered(n)),
        "has_initial_state": Array((n,), BOOL, values=(1,) * n),
    }
    if kept:
        arrays["snapshots"] = Array((len(kept), 3), INT32, values=tuple(number for row in kept for number in row))
    updated: tuple[str, ...] = ("ssm_states",)
    if stored in CODES:
        scale = Array((n + len(kept), dim), FLOAT32, low=0.5 / largest, high=1.0 / largest, touched=touched)
        arrays["state_scale"], updated = scale, (*updated, "state_scale")
    cuts = channels(0, dim)
    cuts |= dict.fromkeys(updated, (1, cuts["A"][1]))
    outs = {"out": arrays["u"]}
    if choice("over", over, "", "u", "delta", "z"):
        arrays[over] = replace(arrays[over], touched=2 * dim * total)
        outs, updated = {}, (over, *updated)
        del cuts["out"]
    return Workload(
        "selective_scan_varlen_fn", sizes, arrays, outs, {"delta_softplus": True}, updated,
        exponentials=dim * total * d_state, cuts=cuts, is_common=not over, over={"out": over} if over else {},
    )  # fmt: skip


def _by_blocks(sizes: dict[str, Any]) -> Workload:
    """The scan of packed sequences with a prefix cache by blocks."""
    usual = without_zero({**sizes, "blocks": 0}, "blocks")
    if usual.keys() & {"snapshots", "state_dtype", "over"}:
        raise ValueError("blocks: got snapshots, a state_dtype or over, too; wanted blocks alone")
    plain, counts = selective_scan_varlen_fn(**usual), lengths(sizes["sequences"])
    cache, state = BlockCache(counts, sizes["blocks"]), plain.arrays["ssm_states"]
    _, dim, d_state = state.shape
    touched = (2 * (len(counts) - counts.count(0)) + len(cache.snapshots)) * dim * d_state
    arrays = {**plain.arrays, "ssm_states": replace(state, shape=(cache.slots, dim, d_state), touched=touched)}
    meaning = replace(plain, sizes=sizes, arrays={**arrays, **cache.explicit})
    given = {name: each for name, each in cache.given.items() if name in signature(scan_by_blocks).parameters}
    options = {**plain.options, "null_slot": None, "block_size": sizes["blocks"]}
    return replace(
        meaning, arrays={**arrays, **given}, options=options, is_common=False, through=scan_by_blocks, meaning=meaning
    )


def gradients(arrays: dict[str, Array]) -> dict[str, Array]:
    """The results of a backward scan with these arguments, in the order in which they are returned."""
    names = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
    return {f"d{name}": arrays[name] for name in names if name in arrays}


SAMPLED_TOKENS = 32
"""Tokens at an end of a row, of all channels, at which gradients of B and C are compared."""


def _gradient_cuts(cuts: dict[str, Cut], *kept: str) -> dict[str, Cut]:
    """Cuts of arguments, and of their gradients where those are compared."""
    return cuts | {f"d{name}": cuts[name] for name in kept}


def _channels_bwd(axis: int, dim: int, *more: str) -> dict[str, Cut]:
    """The cut that keeps some channels at full length; it leaves out gradients that channels share."""
    cuts = channels(axis, dim)
    cuts |= {"dout": cuts.pop("out")} | dict.fromkeys(more, (1, cuts["u"][1]))
    return _gradient_cuts(cuts, "u", "delta", "A", "D", "z", "delta_bias")


def _constants(arrays: dict[str, Any], constants: str, dim: int, d_state: int) -> None:
    """Makes B, C or both constant."""
    for name in choice("constants", constants, "", "B", "C", "BC"):
        arrays[name] = Array((dim, d_state), FLOAT32)


def selective_scan_bwd(
    batch: int = 1, dim: int = 5120, seqlen: int = 4096, d_state: int = 16, dtype: str = "bfloat16",
    contiguous: str = TOKENS, states: bool = True, constants: str = "",
) -> Workload:  # fmt: skip
    """The gradients of the scan of Mamba, with z and softplus; states before chunks have arbitrary values.

    All tokens of some channels are compared. Gradients of B and C, which are sums over all channels, are compared at
    the tokens that need the fewest others: those of B depend on later tokens, and those of C on earlier ones.
    """
    sizes = dict(locals())
    arrays = rows((batch,), dim, seqlen, d_state, element_of(dtype), contiguous)
    _constants(arrays, constants, dim, d_state)
    given = {**arrays, "dout": arrays["u"]}
    if states:
        chunks = ceil_div(seqlen, chunk_tokens())
        given["chunk_states"] = Array((batch, chunks, dim, d_state), FLOAT32, low=-0.1, high=0.1)
    sampled = _channels_bwd(1, dim)
    if states:
        sampled["chunk_states"] = 2, sampled["u"][1]
    sampled = _gradient_cuts(sampled | dict.fromkeys(constants, (0, sampled["u"][1])), *constants)
    parts = [sampled]
    ends = {"B": tuple(range(seqlen))[-SAMPLED_TOKENS:], "C": tuple(range(seqlen))[:SAMPLED_TOKENS]}
    by_token = [name for name in ("u", "delta", "z", "dout", "B", "C") if name not in constants]
    for name, tokens in ends.items():
        cuts: dict[str, Cut] = dict.fromkeys(by_token, (2, tokens))
        if states:
            cuts["chunk_states"] = 1, (0,)
        if name not in constants:
            parts.append(_gradient_cuts(cuts, name))
    return Workload(
        "selective_scan_bwd", sizes, given, gradients(arrays), {"delta_softplus": True},
        exponentials=batch * dim * seqlen * d_state, parts=tuple(parts),
    )  # fmt: skip


def selective_scan_varlen_bwd(
    sequences: str = "16x512", dim: int = 5120, d_state: int = 16, dtype: str = "bfloat16",
    contiguous: str = TOKENS, states: bool = True,
) -> Workload:  # fmt: skip
    """The gradients of a scan of packed sequences that each begin with a state and end with the gradient of one.

    Without `states` they start from zeros, and last states have no gradient. All tokens of some channels are compared,
    and the gradients of B and C of the first sequence.
    """
    sizes = dict(locals())
    counts = lengths(sequences)
    n, total = len(counts), sum(counts)
    arrays = rows((), dim, total, d_state, element_of(dtype), contiguous)
    state, starts = Array((n, dim, d_state), FLOAT32), Array((n + 1,), INT32, values=(0, *accumulate(counts)))
    given = {**arrays, "dout": arrays["u"], "query_start_loc": starts}
    if states:
        arrays["initial_state"] = given["initial_state"] = given["dlast_state"] = state
    ends = ("initial_state", "dlast_state") if states else ()
    sampled = _gradient_cuts(_channels_bwd(0, dim, *ends), *ends[:1])
    first: dict[str, Cut] = {each: (1, tuple(range(counts[0]))) for each in ("u", "delta", "z", "dout", "B", "C")}
    first |= {"query_start_loc": (0, (0, 1)), **dict.fromkeys(ends, (0, (0,)))}
    return Workload(
        "selective_scan_varlen_bwd", sizes, given, gradients(arrays), {"delta_softplus": True},
        exponentials=2 * dim * total * d_state, parts=(sampled, _gradient_cuts(first, "B", "C")),
    )  # fmt: skip


_BOTH = (CHANNELS, TOKENS)

REPORT: Rows = {
    "selective_scan_fn": (
        *({"dim": dim, "seqlen": seqlen} for seqlen in (512, 4096, 16384) for dim in (1536, 5120, 8192)),
        {"dim": 1536, "seqlen": 65536},
        *({"batch": 8, "dim": dim, "seqlen": 2048} for dim in (1536, 5120, 8192)),
        {"dim": 8192, "seqlen": 32},
        {"batch": 4, "dim": 256, "seqlen": 100},
        {"dim": 256, "seqlen": 512},
        {"dim": 1536, "seqlen": 250},
        {"dim": 5120, "seqlen": 2047},
        {"dim": 5120, "seqlen": 4096, "contiguous": CHANNELS},
        {"dim": 5120, "seqlen": 4096, "contiguous": CHANNELS, "delta": TOKENS},
        {"dim": 5120, "seqlen": 4096, "dtype": "float32"},
        {"dim": 64, "seqlen": 262144},
    ),
    "selective_scan_varlen_fn": (
        *({"sequences": spec} for spec in ("16x512", "1x8192", "512in8192")),
        *({"sequences": spec, "contiguous": CHANNELS} for spec in ("16x512", "512in8192")),
        *({"sequences": spec, "snapshots": 256} for spec in ("16x512", "1x8192")),
        {"sequences": "16x512", "blocks": 256},
        {"sequences": "16x512", "over": "z"},
        *(
            {"sequences": "1x8192", "dim": 2048, "contiguous": contiguous, "snapshots": snapshots}
            for contiguous in _BOTH
            for snapshots in (0, 256)
        ),
    ),
    "selective_scan_bwd": (
        *(
            {"batch": batch, "dim": dim, "seqlen": seqlen, "states": states}
            for batch, dim, seqlen in ((1, 5120, 4096), (8, 1536, 2048), (8, 5120, 2048))
            for states in (True, False)
        ),
        {"batch": 8, "dim": 1536, "seqlen": 2048, "contiguous": CHANNELS},
        {"batch": 8, "dim": 1536, "seqlen": 2048, "d_state": 4},
        {"batch": 64, "dim": 1536, "seqlen": 32, "contiguous": CHANNELS},
        {"dim": 2048, "d_state": 64},
        {"dim": 2048, "d_state": 64, "contiguous": CHANNELS},
        {"dim": 2048, "constants": "BC"},
    ),
    "selective_scan_varlen_bwd": (
        {"sequences": "16x512", "dim": 1536},
        *({"sequences": sequences, "dim": 1536, "states": False} for sequences in ("16x512", "512in8192")),
    ),
}
"""The sizes that tables and pictures show, by function."""

SMALL: Rows = {
    "selective_scan_fn": (
        *({"batch": 2, "dim": 72, "seqlen": 1029, "contiguous": contiguous} for contiguous in _BOTH),
        {"batch": 2, "dim": 72, "seqlen": 515, "contiguous": CHANNELS, "delta": TOKENS},
        {"batch": 1, "dim": 40, "seqlen": 3000, "d_state": 64},
    ),
    "selective_scan_varlen_fn": tuple(
        {"sequences": "70+0+1+3+260", "dim": 72, "contiguous": contiguous, **kept}
        for contiguous in _BOTH
        for kept in (
            *({}, {"over": "z"}, {"snapshots": 16}),
            *({"snapshots": 16, "state_dtype": "int8"}, {"blocks": 16}),
        )
    ),
    "selective_scan_bwd": (
        *({"batch": 2, "dim": 72, "seqlen": 514, "contiguous": contiguous} for contiguous in _BOTH),
        {"batch": 1, "dim": 40, "seqlen": 300, "d_state": 20, "states": False},
        {"batch": 2, "dim": 40, "seqlen": 300, "d_state": 3},
        {"batch": 9, "dim": 24, "seqlen": 33},
        {"batch": 2, "dim": 40, "seqlen": 260, "constants": "B"},
    ),
    "selective_scan_varlen_bwd": (
        *({"sequences": "70+0+1+3+260", "dim": 72, "contiguous": contiguous} for contiguous in _BOTH),
        {"sequences": "70+0+1+3+260", "dim": 72, "states": False},
    ),
}
"""Quick sizes, odd in every way that matters, by function: what checks run."""
