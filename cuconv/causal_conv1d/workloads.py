"""Sample calls of the causal convolutions: a maker for each public function, and sizes for tables and for checks."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from itertools import accumulate
from math import prod
from typing import Any

from cuconv.causal_conv1d.varlen import convolve_by_blocks
from cuconv.runtime.batches import lengths
from cuconv.runtime.dtypes import BOOL, INT32, DType
from cuconv.runtime.trees import LINKS
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
    numbered,
    scattered,
    snapshot_rows,
    spread,
    without_zero,
)


def parts_of(parts: str) -> tuple[int, ...]:
    """The channels of every part of "4096,1024,1024"."""
    try:
        return tuple(map(int, parts.split(",")))
    except ValueError:
        raise ValueError(f"parts: got {parts!r}; wanted whole numbers joined by commas") from None


def filter_arrays(dim: int, width: int, dtype: DType, bias: bool) -> dict[str, Array]:
    """weight and bias."""
    arrays = {"weight": Array((dim, width), dtype)}
    return arrays | {"bias": Array((dim,), dtype)} if bias else arrays


def activation(silu: bool) -> dict[str, Any]:
    return {"activation": "silu" if silu else None}


def heads_of(heads: str) -> dict[str, int]:
    """The options for "16x128,16x128,32x128": heads times channels of q, k and v."""
    try:
        pairs = [tuple(map(int, part.split("x"))) for part in heads.split(",")]
        (q, head_q), (k, head_k), (v, head_v) = pairs
    except ValueError:
        raise ValueError(f"heads: got {heads!r}; wanted q,k,v as in 16x128,16x128,32x128") from None
    numbers = {"num_q_heads": q, "num_k_heads": k, "num_v_heads": v}
    return numbers | {"head_q": head_q, "head_k": head_k, "head_v": head_v}


def head_shapes(options: dict[str, int]) -> list[tuple[int, int]]:
    """Heads and channels of q, k and v."""
    return [(options[f"num_{name}_heads"], options[f"head_{name}"]) for name in "qkv"]


def first_heads(options: dict[str, int]) -> tuple[tuple[int, ...], dict[str, int]]:
    """The channels of the first head of q, k and v, and the options of a call on these heads alone."""
    kept: list[int] = []
    begin = 0
    for heads, size in head_shapes(options):
        kept += range(begin, begin + size)
        begin += heads * size
    return tuple(kept), {f"num_{name}_heads": 1 for name in "qkv"}


OVER, GATED = PREFILLS = ("over", "gated")
"""Forms of prefill besides the usual one: with results over x, or with both gates and a residual as in LFM2."""


def gate_arrays(x: Array) -> dict[str, Array]:
    """Both gates and a residual. pre_gate is 1/2, so that its product with x is exact."""
    return {"pre_gate": replace(x, low=0.5, high=0.5), "post_gate": x, "residual": x}


def causal_conv1d_fn(
    batch: int = 1, dim: int = 2048, seqlen: int = 2048, width: int = 4, dtype: str = "bfloat16",
    contiguous: str = CHANNELS, bias: bool = True, silu: bool = True, form: str = "",
) -> Workload:  # fmt: skip
    """The forward convolution of (batch, dim, seqlen), plain or "gated"."""
    sizes = without_zero(locals(), "form")
    element = element_of(dtype)
    order = (0, 2, 1) if choice("contiguous", contiguous, CHANNELS, TOKENS) == CHANNELS else (0, 1, 2)
    x, kept = Array((batch, dim, seqlen), element, order), spread(dim)
    gates = gate_arrays(x) if choice("form", form, "", GATED) else {}
    return Workload(
        "causal_conv1d_fn",
        sizes,
        {"x": x, **filter_arrays(dim, width, element, bias), **gates},
        {"out": x},
        activation(silu),
        cuts=dict.fromkeys(("x", "out", *gates), (1, kept)) | {"weight": (0, kept), "bias": (0, kept)},
        is_common=not form,
    )


def causal_conv1d_bwd(
    batch: int = 1, dim: int = 2048, seqlen: int = 2048, width: int = 4, dtype: str = "bfloat16",
    contiguous: str = CHANNELS, bias: bool = True, silu: bool = True, states: bool = False,
) -> Workload:  # fmt: skip
    """The gradients of the convolution of (batch, dim, seqlen)."""
    sizes = dict(locals())
    forward = causal_conv1d_fn(batch, dim, seqlen, width, dtype, contiguous, bias, silu)
    x, element = forward.arrays["x"], element_of(dtype)
    arrays, outs = {**forward.arrays, "dout": x}, _parameter_gradients(x, dim, width, element, bias)
    cuts = {**forward.cuts, "dout": forward.cuts["x"], **_parameter_cuts(dim), "dx": forward.cuts["x"]}
    if states:
        state = Array((batch, dim, width - 1), element, x.order)
        arrays |= {"initial_states": state, "dfinal_states": state}
        outs["dinitial_states"] = state
        cuts |= dict.fromkeys(("initial_states", "dfinal_states", "dinitial_states"), (1, spread(dim)))
    return Workload("causal_conv1d_bwd", sizes, arrays, outs, _backward_options(bias, silu), cuts=cuts)


def _parameter_gradients(x: Array, dim: int, width: int, element: DType, bias: bool) -> dict[str, Array]:
    """The results of a backward convolution, except for states."""
    filters = filter_arrays(dim, width, element, bias)
    return {"dx": x, **{f"d{name}": array for name, array in filters.items()}}


def _backward_options(bias: bool, silu: bool) -> dict[str, Any]:
    """The options of a backward call; bias is passed as None explicitly, because it is a positional argument before
    dout."""
    return activation(silu) | ({} if bias else {"bias": None})


def _parameter_cuts(dim: int) -> dict[str, Cut]:
    return dict.fromkeys(("dweight", "dbias"), (0, spread(dim)))


def packed(
    sequences: str, dim: int, width: int, element: DType, contiguous: str, bias: bool, snapshots: int = 0
) -> tuple[dict[str, Array], dict[str, Cut]]:
    """Packed sequences that each start from a state in a pool, and the cut that keeps some channels of all arrays."""
    counts = lengths(sequences)
    n, total = len(counts), sum(counts)
    kept = snapshot_rows(counts, snapshots)
    is_by_channel = choice("contiguous", contiguous, CHANNELS, TOKENS) == CHANNELS
    filters = filter_arrays(dim, width, element, bias)
    arrays = {
        "x": Array((dim, total), element, (1, 0) if is_by_channel else (0, 1)),
        **filters,
        # Read and written, except for empty sequences.
        "conv_states": Array(
            (n + len(kept), dim, width - 1), element, (0, 2, 1) if is_by_channel else (0, 1, 2),
            touched=(2 * (n - counts.count(0)) + len(kept)) * dim * (width - 1),
        ),
        "query_start_loc": Array((n + 1,), INT32, values=(0, *accumulate(counts))),
        "cache_indices": Array((n,), INT32, values=scattered(n)),
        "has_initial_state": Array((n,), BOOL, values=(1,) * n),
    }  # fmt: skip
    if kept:
        arrays["snapshots"] = Array((len(kept), 3), INT32, values=tuple(number for row in kept for number in row))
    chosen = spread(dim)
    return arrays, {"x": (0, chosen), "weight": (0, chosen), "bias": (0, chosen), "conv_states": (1, chosen)}


def causal_conv1d_varlen_fn(
    sequences: str = "16x512", dim: int = 8192, width: int = 4, dtype: str = "bfloat16", contiguous: str = CHANNELS,
    bias: bool = True, silu: bool = True, snapshots: int = 0, form: str = "", blocks: int = 0,
) -> Workload:  # fmt: skip
    """Packed prefill with a pool of states, which gets snapshots of them every `snapshots` tokens unless that is 0;
    plain, "gated", or with results "over" x; with a prefix cache that keeps the state at the end of every block of
    `blocks` tokens, unless that is 0, as engines call it.
    """
    sizes = without_zero(locals(), "snapshots", "form", "blocks")
    if blocks:
        return _by_blocks(sizes)
    arrays, cuts = packed(sequences, dim, width, element_of(dtype), contiguous, bias, snapshots)
    x, function, options = arrays["x"], "causal_conv1d_varlen_fn", activation(silu)
    if choice("form", form, "", *PREFILLS) == OVER:
        # Read and written.
        arrays["x"] = replace(x, touched=2 * prod(x.shape))
        updated, over = ("x", "conv_states"), {"out": "x"}
        return Workload(function, sizes, arrays, {}, options, updated, cuts=cuts, is_common=False, over=over)
    gates = gate_arrays(x) if form else {}
    cuts |= dict.fromkeys(("out", *gates), cuts["x"])
    return Workload(
        function, sizes, arrays | gates, {"out": x}, options, ("conv_states",), cuts=cuts, is_common=not form
    )


def _by_blocks(sizes: dict[str, Any]) -> Workload:
    """Packed prefill with a prefix cache by blocks."""
    usual = without_zero({**sizes, "blocks": 0}, "blocks")
    if usual.keys() & {"snapshots", "form"}:
        raise ValueError("blocks: got snapshots or a form, too; wanted blocks alone")
    plain, counts = causal_conv1d_varlen_fn(**usual), lengths(sizes["sequences"])
    cache, state = BlockCache(counts, sizes["blocks"]), plain.arrays["conv_states"]
    _, dim, columns = state.shape
    touched = (2 * (len(counts) - counts.count(0)) + len(cache.snapshots)) * dim * columns
    arrays = {**plain.arrays, "conv_states": replace(state, shape=(cache.slots, dim, columns), touched=touched)}
    meaning = replace(plain, sizes=sizes, arrays={**arrays, **cache.explicit})
    given = {name: each for name, each in cache.given.items() if name in signature(convolve_by_blocks).parameters}
    absent = {} if sizes["bias"] else {"bias": None}
    options = {**plain.options, **absent, "null_slot": None, "first_column": None, "block_size": sizes["blocks"]}
    return replace(
        meaning, arrays={**arrays, **given}, options=options, is_common=False, through=convolve_by_blocks,
        meaning=meaning,
    )  # fmt: skip


def causal_conv1d_varlen_bwd(
    sequences: str = "16x512", dim: int = 8192, width: int = 4, dtype: str = "bfloat16", contiguous: str = CHANNELS,
    bias: bool = True, silu: bool = True,
) -> Workload:  # fmt: skip
    """The gradients of packed sequences that each start from a state."""
    sizes = dict(locals())
    element = element_of(dtype)
    arrays, cuts = packed(sequences, dim, width, element, contiguous, bias)
    pool, x = arrays.pop("conv_states"), arrays["x"]
    n, kept = pool.shape[0], cuts.pop("conv_states")
    arrays["dout"] = x
    arrays["initial_states"] = replace(pool, touched=None)
    arrays["dfinal_states"] = Array((n, dim, width - 1), element, pool.order)
    outs = _parameter_gradients(x, dim, width, element, bias)
    outs["dinitial_states"] = Array((n, dim, width - 1), element, pool.order)
    cuts |= {"dout": cuts["x"], "dx": cuts["x"], **_parameter_cuts(dim)}
    cuts |= dict.fromkeys(("initial_states", "dfinal_states", "dinitial_states"), kept)
    return Workload("causal_conv1d_varlen_bwd", sizes, arrays, outs, _backward_options(bias, silu), cuts=cuts)


def causal_conv1d_split(
    sequences: str = "16x512", parts: str = "4096,1024,1024", width: int = 4, dtype: str = "bfloat16",
    contiguous: str = CHANNELS, bias: bool = True, silu: bool = True,
) -> Workload:  # fmt: skip
    """Packed prefill with a result for every part; by default x, B and C of Mamba-2."""
    sizes = dict(locals())
    split = parts_of(parts)
    arrays, cuts = packed(sequences, sum(split), width, element_of(dtype), contiguous, bias)
    x = arrays["x"]
    outs = numbered(Array((size, x.shape[1]), x.dtype, x.order) for size in split)
    starts = (0, *accumulate(split))
    chosen = [spread(size, 8) for size in split]
    kept = tuple(start + i for start, some in zip(starts, chosen, strict=False) for i in some)
    cuts = {name: (axis, kept) for name, (axis, _) in cuts.items()}
    cuts |= numbered((0, some) for some in chosen)
    options = {"sizes": split, **activation(silu)}
    cut_options = {"sizes": tuple(map(len, chosen))}
    return Workload(
        "causal_conv1d_split", sizes, arrays, outs, options, ("conv_states",), cuts=cuts, cut_options=cut_options
    )


def causal_conv1d_qkv_split(
    sequences: str = "1x8192", heads: str = "16x128,16x128,16x128", width: int = 4, dtype: str = "bfloat16",
    contiguous: str = CHANNELS, bias: bool = False, l2norm: bool = False, snapshots: int = 0,
) -> Workload:  # fmt: skip
    """Packed prefill of q, k and v, head by head, with SiLU; with snapshots as causal_conv1d_varlen_fn."""
    sizes = without_zero(locals(), "snapshots")
    options = heads_of(heads)
    dim = sum(count * size for count, size in head_shapes(options))
    arrays, cuts = packed(sequences, dim, width, element_of(dtype), contiguous, bias, snapshots)
    x = arrays["x"]
    outs = numbered(Array((1, x.shape[1], *shape), x.dtype) for shape in head_shapes(options))
    kept, cut_options = first_heads(options)
    cuts = {name: (axis, kept) for name, (axis, _) in cuts.items()} | numbered([(2, (0,))] * 3)
    options = {**options, "qk_l2norm": l2norm}
    return Workload(
        "causal_conv1d_qkv_split", sizes, arrays, outs, options, ("conv_states",), cuts=cuts, cut_options=cut_options
    )


def causal_conv1d_varlen_states(
    sequences: str = "16x512", dim: int = 8192, state_len: int = 3, dtype: str = "bfloat16"
) -> Workload:
    """The last tokens of packed sequences."""
    sizes = dict(locals())
    element, counts, kept = element_of(dtype), lengths(sequences), spread(dim)
    tokens = sum(min(count, state_len) for count in counts)
    return Workload(
        "causal_conv1d_varlen_states",
        sizes,
        {
            "x": Array((sum(counts), dim), element, touched=tokens * dim),
            "cu_seqlens": Array((len(counts) + 1,), INT32, values=(0, *accumulate(counts))),
        },
        {"out": Array((len(counts), dim, state_len), element, (0, 2, 1))},
        {"state_len": state_len},
        cuts={"x": (1, kept), "out": (1, kept)},
    )


def step(
    batch: int, dim: int, tokens: int, width: int, element: DType, contiguous: str, bias: bool
) -> tuple[dict[str, Array], dict[str, Cut]]:
    """One token of every sequence, or several, and the cut that keeps some channels of all arrays.

    With contiguous tokens each state has width columns, one per sequence in order, as in causal-conv1d. With contiguous
    channels it has width - 1 columns, in a pool with an index array, as in serving engines.
    """
    is_pool = choice("contiguous", contiguous, CHANNELS, TOKENS) == CHANNELS
    columns = width - 1 if is_pool else width
    # The columns that stay are read, and all columns are written.
    kept_columns = max(width - 1, columns - tokens)
    shape = (batch, dim, tokens) if tokens > 1 else (batch, dim)
    arrays = {
        "x": Array(shape, element, (0, 2, 1) if tokens > 1 else None),
        "conv_state": Array(
            (batch, dim, columns), element, (0, 2, 1) if is_pool else None,
            touched=batch * dim * (kept_columns + columns),
        ),
        **filter_arrays(dim, width, element, bias),
    }  # fmt: skip
    if is_pool:
        arrays["conv_state_indices"] = Array((batch,), INT32, values=scattered(batch))
    kept = spread(dim)
    return arrays, {"x": (1, kept), "weight": (0, kept), "bias": (0, kept), "conv_state": (1, kept)}


DENSE, PACKED, MOVED, WINDOWS, STATES, TREE = FORMS = ("dense", "packed", "moved", "windows", "states", "tree")
"""Forms of a decode step: the usual one; packed tokens; another slot for each new state; in a buffer, the inputs before
each next token, or whole states; trees with such inputs in a buffer.
"""


def causal_conv1d_update(
    batch: int = 1, dim: int = 6144, tokens: int = 1, width: int = 4, dtype: str = "bfloat16",
    contiguous: str = CHANNELS, bias: bool = True, silu: bool = True, form: str = DENSE,
) -> Workload:  # fmt: skip
    """A decode step of the convolution, plain or in another form."""
    sizes = dict(locals())
    choice("form", form, *FORMS)
    arrays, cuts = step(batch, dim, tokens, width, element_of(dtype), contiguous, bias)
    options, state = activation(silu), arrays["conv_state"]
    updated: tuple[str, ...] = ("conv_state",)
    if form == PACKED:
        arrays["x"] = Array((batch * tokens, dim), state.dtype)
        arrays["query_start_loc"] = Array((batch + 1,), INT32, values=tuple(range(0, (batch + 1) * tokens, tokens)))
        options["max_query_len"] = tokens
    elif form == MOVED:
        slots = scattered(2 * batch)
        arrays["conv_state"] = replace(state, shape=(2 * batch, *state.shape[1:]))
        for name, chosen in (("conv_state_indices", slots[:batch]), ("dst_state_indices", slots[batch:])):
            arrays[name] = Array((batch,), INT32, values=chosen)
    elif form != DENSE:
        columns = state.shape[2] if form == STATES else width - 1
        order = (0, 1, 3, 2) if contiguous == CHANNELS else None
        arrays["intermediate_conv_window"] = Array((batch, tokens, dim, columns), state.dtype, order)
        cuts["intermediate_conv_window"] = (2, spread(dim))
        updated += ("intermediate_conv_window",)
        if form == TREE:
            # Two tokens follow each one, as long as there are any.
            child = tuple(2 * t + 1 if 2 * t + 1 < tokens else -1 for t in range(tokens))
            sibling = tuple(t + 1 if t % 2 and t + 1 < tokens else -1 for t in range(tokens))
            for name, row in zip(LINKS, (child, sibling, None), strict=True):
                arrays[name] = Array((batch, tokens), INT32, values=row and row * batch)
            updated += LINKS[2:]
    cuts["out"] = cuts["x"]
    return Workload(
        "causal_conv1d_update", sizes, arrays, {"out": arrays["x"]}, options, updated, cuts=cuts,
        is_common=form == DENSE,
    )  # fmt: skip


def causal_conv1d_update_split(
    batch: int = 1, parts: str = "4096,1024,1024", width: int = 4, dtype: str = "bfloat16",
    contiguous: str = CHANNELS, bias: bool = True, silu: bool = True,
) -> Workload:  # fmt: skip
    """A decode step with a result for every part."""
    sizes = dict(locals())
    split, element = parts_of(parts), element_of(dtype)
    arrays, cuts = step(batch, sum(split), 1, width, element, contiguous, bias)
    outs = numbered(Array((batch, size), element) for size in split)
    chosen = [spread(size, 8) for size in split]
    kept = tuple(start + i for start, some in zip((0, *accumulate(split)), chosen, strict=False) for i in some)
    cuts = {name: (axis, kept) for name, (axis, _) in cuts.items()}
    cuts |= numbered((1, some) for some in chosen)
    options = {"sizes": split, **activation(silu)}
    cut_options = {"sizes": tuple(map(len, chosen))}
    return Workload(
        "causal_conv1d_update_split", sizes, arrays, outs, options, ("conv_state",), cuts=cuts, cut_options=cut_options
    )


def causal_conv1d_update_qkv_split(
    batch: int = 1, heads: str = "16x128,16x128,16x128", width: int = 4, dtype: str = "bfloat16",
    contiguous: str = CHANNELS, bias: bool = False, silu: bool = True,
) -> Workload:  # fmt: skip
    """A decode step of q, k and v, head by head."""
    sizes = dict(locals())
    numbers, element = heads_of(heads), element_of(dtype)
    dim = sum(count * size for count, size in head_shapes(numbers))
    arrays, cuts = step(batch, dim, 1, width, element, contiguous, bias)
    outs = numbered(Array((batch, *shape), element) for shape in head_shapes(numbers))
    kept, cut_options = first_heads(numbers)
    cuts = {name: (axis, kept) for name, (axis, _) in cuts.items()} | numbered([(1, (0,))] * 3)
    return Workload(
        "causal_conv1d_update_qkv_split", sizes, arrays, outs, {**numbers, **activation(silu)}, ("conv_state",),
        cuts=cuts, cut_options=cut_options,
    )  # fmt: skip


_BOTH = (CHANNELS, TOKENS)

REPORT: Rows = {
    "causal_conv1d_fn": tuple(
        {"batch": batch, "dim": dim, "seqlen": seqlen, "dtype": dtype, "contiguous": contiguous}
        for batch, dim, seqlen, dtype in (
            (1, 2048, 2048, "bfloat16"),
            (8, 4096, 2048, "bfloat16"),
            (8, 5120, 2048, "float16"),
            (8, 2048, 2048, "float32"),
            (1, 8192, 65536, "bfloat16"),
            (4096, 512, 64, "bfloat16"),
            (1, 16, 2**20, "bfloat16"),
            (8, 4096, 1000, "bfloat16"),
            (8, 4096, 2047, "bfloat16"),
            (1, 8192, 1100, "bfloat16"),
            (8, 4100, 2048, "bfloat16"),
        )
        for contiguous in _BOTH
    )
    + tuple({"batch": 8, "dim": 4096, "form": GATED, "contiguous": contiguous} for contiguous in _BOTH)
    + tuple(
        {**sizes, "contiguous": contiguous}
        for sizes in (
            {"batch": 1, "dim": 2049},
            {"batch": 512, "dim": 515, "seqlen": 64},
            {"batch": 8, "dim": 4096, "width": 16},
            {"batch": 4096, "dim": 512, "seqlen": 64, "width": 16},
        )
        for contiguous in _BOTH
    ),
    "causal_conv1d_bwd": tuple(
        {"batch": batch, "dim": dim, "seqlen": seqlen, "dtype": dtype, "contiguous": contiguous}
        for batch, dim, seqlen, dtype in (
            (1, 2048, 2048, "bfloat16"),
            (8, 4096, 2048, "bfloat16"),
            (64, 1536, 512, "bfloat16"),
            (1, 8192, 65536, "bfloat16"),
            (512, 512, 64, "bfloat16"),
            (8, 2048, 2048, "float32"),
            (8, 4096, 2048, "float16"),
            (1, 16, 2**20, "bfloat16"),
        )
        for contiguous in _BOTH
    ),
    "causal_conv1d_varlen_bwd": (
        *({"sequences": spec} for spec in ("1x8192", "16x512", "512in8192")),
        {"sequences": "16x512", "contiguous": TOKENS},
    ),
    "causal_conv1d_varlen_fn": (
        *({"sequences": spec} for spec in ("1x8192", "16x512", "4096+16x256", "7800+392x1", "512in8192", "2048x1")),
        {"sequences": "16x512", "dtype": "float32"},
        *({"sequences": spec, "contiguous": TOKENS} for spec in ("1x8192", "16x512", "512in8192")),
        *(
            {"sequences": spec, "snapshots": 64, "contiguous": contiguous}
            for contiguous in _BOTH
            for spec in ("1x8192", "16x512")
        ),
        *({"sequences": "16x512", "blocks": 64, "contiguous": contiguous} for contiguous in _BOTH),
        *({"sequences": spec, "form": OVER} for spec in ("1x512", "1x8192", "16x512", "7800+392x1", "512in8192")),
        *({"sequences": spec, "form": OVER, "contiguous": TOKENS} for spec in ("1x8192", "16x512")),
        *({"sequences": "16x512", "form": GATED, "contiguous": contiguous} for contiguous in _BOTH),
    ),
    "causal_conv1d_split": ({"sequences": "16x512"},),
    "causal_conv1d_qkv_split": (
        *({"sequences": f"1x{tokens}"} for tokens in (512, 2048, 4096, 8192, 16384)),
        {"sequences": "1x8192", "l2norm": True},
    ),
    "causal_conv1d_varlen_states": ({"sequences": "512x16"},),
    "causal_conv1d_update": (
        *(
            {"batch": batch, "dim": dim, "contiguous": contiguous}
            for batch, dim in ((1, 6144), (8, 6144), (64, 10240), (256, 10240), (1024, 10240))
            for contiguous in _BOTH
        ),
        *({"batch": 256, "dim": 10240, "dtype": "float32", "contiguous": contiguous} for contiguous in _BOTH),
        *({"batch": 64, "dim": 8192, "tokens": 4, "form": form} for form in (DENSE, PACKED, WINDOWS, TREE)),
        {"batch": 64, "dim": 8192, "tokens": 4, "form": STATES, "contiguous": TOKENS},
        *(
            {"batch": batch, "dim": dim, "form": form}
            for batch, dim in ((1, 6144), (256, 10240))
            for form in (PACKED, MOVED)
        ),
        {"batch": 1, "dim": 6144, "form": PACKED, "contiguous": TOKENS},
    ),
    "causal_conv1d_update_split": ({"batch": 256},),
    "causal_conv1d_update_qkv_split": ({"batch": 256},),
}
"""The sizes that tables and pictures show, by function."""

SMALL: Rows = {
    "causal_conv1d_fn": (
        *(
            {"batch": 2, "dim": 70, "seqlen": seqlen, "width": width, "contiguous": contiguous}
            for contiguous in _BOTH
            for seqlen, width in ((1029, 4), (64, 3), (63, 2))
        ),
        {"batch": 2, "dim": 64, "seqlen": 200, "width": 16, "bias": False, "silu": False},
        {"batch": 2, "dim": 70, "seqlen": 65, "form": GATED},
    ),
    "causal_conv1d_bwd": (
        *(
            {"batch": 3, "dim": 70, "seqlen": seqlen, "width": width, "contiguous": contiguous, "states": width == 3}
            for contiguous in _BOTH
            for seqlen, width in ((1029, 4), (64, 3), (63, 2))
        ),
        {"batch": 2, "dim": 64, "seqlen": 200, "width": 16, "bias": False, "silu": False},
    ),
    "causal_conv1d_varlen_bwd": tuple(
        {"sequences": "70+0+1+3+260", "dim": 136, "width": width, "contiguous": contiguous}
        for contiguous in _BOTH
        for width in (2, 4)
    ),
    "causal_conv1d_varlen_fn": tuple(
        {"sequences": "70+0+1+3+260", "dim": 136, "width": width, "contiguous": contiguous, "snapshots": snapshots}
        for contiguous in _BOTH
        for width, snapshots in ((2, 0), (4, 0), (4, 16))
    )
    + tuple(
        {"sequences": "70+0+1+3+260", "dim": 136, "contiguous": contiguous, "snapshots": snapshots, "form": form}
        for contiguous in _BOTH
        for snapshots, form in ((0, OVER), (16, OVER), (0, GATED))
    )
    + tuple(
        {"sequences": "70+0+1+3+260", "dim": 136, "contiguous": contiguous, "bias": bias, "blocks": blocks}
        for contiguous, bias, blocks in ((CHANNELS, True, 16), (TOKENS, False, 5))
    ),
    "causal_conv1d_split": ({"sequences": "70+0+1+33", "parts": "100,30,30"},),
    "causal_conv1d_qkv_split": tuple(
        {"sequences": "70+0+1+33", "heads": heads, "l2norm": l2norm}
        for heads, l2norm in (("2x64,2x64,4x32", False), ("2x64,2x64,4x32", True), ("3x7,3x7,2x11", False))
    ),
    "causal_conv1d_varlen_states": ({"sequences": "70+0+1+33", "dim": 136},),
    "causal_conv1d_update": (
        *(
            {"batch": 5, "dim": 136, "tokens": tokens, "width": width, "contiguous": contiguous}
            for contiguous in _BOTH
            for tokens, width in ((1, 4), (1, 3), (3, 4))
        ),
        *(
            {"batch": 5, "dim": 136, "tokens": tokens, "contiguous": contiguous, "form": form}
            for contiguous, tokens, form in (
                (CHANNELS, 3, PACKED),
                (CHANNELS, 1, MOVED),
                (CHANNELS, 4, TREE),
                (TOKENS, 3, STATES),
            )
        ),
    ),
    "causal_conv1d_update_split": ({"batch": 5, "parts": "100,30,30"},),
    "causal_conv1d_update_qkv_split": ({"batch": 5, "heads": "2x64,2x64,4x32"},),
}
"""Quick sizes, odd in every way that matters, by function: what checks run."""
