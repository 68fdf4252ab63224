"""Workloads of decode steps: of the causal convolutions and of selective states."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import Any

from cuconv.dtypes import FLOAT32, INT32, DType
from cuconv.workloads.conv import (
    CHANNELS,
    TOKENS,
    activation,
    choice,
    element_of,
    filter_arrays,
    first_heads,
    head_shapes,
    heads_of,
    parts_of,
    scattered,
)
from cuconv.workloads.workload import Array, Cut, Workload, spread


def step(
    batch: int, dim: int, tokens: int, width: int, element: DType, contiguous: str, bias: bool
) -> tuple[dict[str, Array], dict[str, Cut]]:
    """One token of every sequence, or several; channels cut out of them all.

    The states: with contiguous tokens width columns each, as causal-conv1d has them, one a sequence and in order; with
    contiguous channels width - 1, in a pool with an index array, as serving engines do.
    """
    is_pool = choice("contiguous", contiguous, CHANNELS, TOKENS) == CHANNELS
    columns = width - 1 if is_pool else width
    # The columns that stay are read, all are written: none is moved by memory.
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


def causal_conv1d_update(
    batch: int = 1, dim: int = 6144, tokens: int = 1, width: int = 4, dtype: str = "bfloat16",
    contiguous: str = CHANNELS, bias: bool = True, silu: bool = True,
) -> Workload:  # fmt: skip
    """A decode step of the convolution."""
    sizes = dict(locals())
    arrays, cuts = step(batch, dim, tokens, width, element_of(dtype), contiguous, bias)
    cuts["out0"] = cuts["x"]
    outs = (arrays["x"],)
    return Workload("causal_conv1d_update", sizes, arrays, outs, activation(silu), ("conv_state",), cuts=cuts)


def causal_conv1d_update_split(
    batch: int = 1, parts: str = "4096,1024,1024", width: int = 4, dtype: str = "bfloat16",
    contiguous: str = CHANNELS, bias: bool = True, silu: bool = True,
) -> Workload:  # fmt: skip
    """A decode step with a result for every part."""
    sizes = dict(locals())
    split, element = parts_of(parts), element_of(dtype)
    arrays, cuts = step(batch, sum(split), 1, width, element, contiguous, bias)
    outs = tuple(Array((batch, size), element) for size in split)
    chosen = [spread(size, 8) for size in split]
    kept = tuple(start + i for start, some in zip((0, *accumulate(split)), chosen, strict=False) for i in some)
    cuts = {name: (axis, kept) for name, (axis, _) in cuts.items()}
    cuts |= {f"out{i}": (1, some) for i, some in enumerate(chosen)}
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
    outs = tuple(Array((batch, *shape), element) for shape in head_shapes(numbers))
    kept, cut_options = first_heads(numbers)
    cuts = {name: (axis, kept) for name, (axis, _) in cuts.items()} | {f"out{i}": (1, (0,)) for i in range(3)}
    return Workload(
        "causal_conv1d_update_qkv_split", sizes, arrays, outs, {**numbers, **activation(silu)}, ("conv_state",),
        cuts=cuts, cut_options=cut_options,
    )  # fmt: skip


def selective_state_update(
    batch: int = 1, nheads: int = 128, headdim: int = 64, d_state: int = 128, ngroups: int = 8, tokens: int = 1,
    dtype: str = "bfloat16", state_dtype: str = "", indices: bool = False,
) -> Workload:  # fmt: skip
    """A decode step of Mamba-2, its A, dt, dt_bias and D one a head; of Mamba, with z, when nheads is 0."""
    sizes = dict(locals())
    element, stored = element_of(dtype), element_of(state_dtype or dtype, "state_dtype")
    lead = (batch, tokens) if tokens > 1 else (batch,)
    # The axis of heads, or of rows where there are no heads.
    axis = len(lead)
    rows: tuple[int, ...]
    states: tuple[int, ...]
    groups: tuple[int, ...]
    kept_groups: tuple[int, ...]
    if nheads:
        if ngroups < 1 or nheads % ngroups:
            raise ValueError(f"ngroups: got {ngroups}; wanted a divisor of nheads, {nheads}")
        rows, states, groups = (nheads, headdim), (nheads, headdim, d_state), (ngroups, d_state)
        kept = spread(nheads, 2)
        kept_groups = tuple(head // (nheads // ngroups) for head in kept)
    else:
        rows, states, groups = (headdim,), (headdim, d_state), (d_state,)
        kept, kept_groups = spread(headdim), ()
    tied = (len(lead) + 1,) if nheads else ()
    per_row = (1,) if nheads else ()
    arrays = {
        "state": Array((batch, *states), stored, touched=2 * batch * prod(states)),
        "x": Array((*lead, *rows), element),
        "dt": Array((*lead, *rows), element, tied=tied),
        "A": Array(states, FLOAT32, tied=(1, 2) if nheads else (), low=-4.0, high=-0.5),
        "B": Array((*lead, *groups), element),
        "C": Array((*lead, *groups), element),
        "D": Array(rows, element, tied=per_row),
        **({} if nheads else {"z": Array((*lead, *rows), element)}),
        "dt_bias": Array(rows, element, tied=per_row),
    }
    cuts: dict[str, Cut] = {name: (axis, kept) for name in ("x", "dt", "z", "out0") if name in arrays or name == "out0"}
    cuts |= {"state": (1, kept), **{name: (0, kept) for name in ("A", "D", "dt_bias")}}
    if kept_groups:
        cuts |= {name: (axis, kept_groups) for name in "BC"}
    if tokens > 1:
        # A state after every token: what speculative decoding goes back to.
        arrays["intermediate_states_buffer"] = Array((batch, tokens, *states), stored)
        cuts["intermediate_states_buffer"] = (2, kept)
    if indices:
        arrays["state_batch_indices"] = Array((batch,), INT32, values=scattered(batch))
    options: dict[str, Any] = {"dt_softplus": True}
    updated = ("state", "intermediate_states_buffer")[: 1 + (tokens > 1)]
    return Workload("selective_state_update", sizes, arrays, (arrays["x"],), options, updated, cuts=cuts)
