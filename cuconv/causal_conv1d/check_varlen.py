"""What a convolution of packed sequences refuses: arguments, and contents of index arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cuconv.causal_conv1d.kernels import GATES, MAX_TOKENS, WIDTHS
from cuconv.causal_conv1d.plan_varlen import Operands
from cuconv.causal_conv1d.split import WHOLE, Split
from cuconv.causal_conv1d.states import window
from cuconv.runtime import blocks, checks, slots
from cuconv.runtime.dtypes import BOOL, FLOATS
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout, transposed
from cuconv.runtime.plan import Checked, Layouts

PAYLOAD = ("payload", "payload_gates[0]", "payload_gates[1]")
BY_TOKEN = ("x", *GATES)
BLOCKS = (blocks.LAST, blocks.COMPUTED)
UPDATED = ("conv_states",)


def check(
    given: Layouts,
    split: Split,
    silu: bool,
    pad_slot_id: int,
    first_column: int | None = None,
    keeps_padding: bool = False,
    *,
    in_place: bool = False,
) -> Checked[Operands]:
    """What a call computes on and writes."""
    x, weight, bias, conv_states, query_start_loc, *_ = given.values()
    assert x is not None
    is_dense = split is WHOLE and len(x.shape) == 3
    checks.rank("x", x.shape, "batch, dim, seqlen" if is_dense else "dim, total")
    checks.dtype("x", x.dtype, FLOATS)
    *batch, dim, total = x.shape
    checks.between("batch of x", batch[0] if batch else 1, 0, MAX_TOKENS)
    checks.between("dim of x", dim, 0, MAX_DIVIDEND)
    checks.between("total of x", total, 0, MAX_TOKENS)
    checks.taps(weight, bias, dim, WIDTHS)
    assert weight is not None
    width = weight.shape[1]
    count = batch[0] if batch else checks.starts("query_start_loc", query_start_loc, MAX_TOKENS)
    _check_modes(given, first_column)
    _check_gates(given, split, is_dense=is_dense, in_place=in_place)
    slots.by_sequence("has_initial_state", given["has_initial_state"], count, "sequences", (BOOL,))
    starts = slots.sources(given, "cache_indices", count, "sequences")
    pools: dict[str, Layout | None] = {"conv_states": conv_states, "initial_states": given["initial_states"]}
    for argument, pool in pools.items():
        if pool is not None:
            least = count if starts is None else 0, "cache_indices"
            checks.pool(argument, pool, dim, (width - 1, "width - 1"), least)
            pools[argument] = window(pool, width - 1, first_column)
    axes = "1, total of x, heads, head_dim" if split.has_heads else "channels, total of x"
    results = split.results(given, x, tuple(batch), (total,), "the shape of x" if is_dense else axes)
    if keeps_padding:
        slots.check_kept(given, split.names)
    outs = tuple(split.by_head(out, tuple(batch), (total,)) for out in results.values())
    snapshots_to = slots.check_snapshots(given, "conv_states", "slots, dim, state_len")
    if snapshots_to is not None and given["snapshot_out"] is not None:
        checks.pool("snapshot_out", snapshots_to, dim, (width - 1, "width - 1"), (0, ""))
    for name in GATES:
        if (gate := given.get(name)) is not None:
            checks.dtype(name, gate.dtype, (x.dtype,))
            checks.shape(name, gate.shape, x.shape, "the shape of x")
    _check_payload(given, split)
    inputs = {name: layout for name, layout in given.items() if name not in results and name not in PAYLOAD}
    inputs |= pools | {"cache_indices": starts}
    operands = Operands(
        **inputs,  # type: ignore[arg-type]
        outs=outs,
        split=split,
        silu=silu,
        pad_slot_id=pad_slot_id,
        keeps_padding=keeps_padding,
        payload=given.get("payload"),
        payload_gates=tuple(each for name in PAYLOAD[1:] if (each := given.get(name)) is not None),
        in_place=in_place,
    )
    updated = ("conv_states", "snapshot_out", "payload") if "payload" in given else UPDATED
    return Checked(operands, results, updated, in_place=("out", "x") if in_place else ())


def check_with_extras(
    given: Layouts,
    split: Split,
    silu: bool,
    pad_slot_id: int,
    first_column: int | None,
    in_place: bool,
    by_token: bool,
    outs_by_token: bool,
    keeps_padding: bool,
) -> Checked[Operands]:
    """`check` for calls with further arrays, or with arrays (total, channels)."""
    options: Any = split, silu, pad_slot_id, first_column, keeps_padding
    names = (BY_TOKEN if by_token else ()) + (split.names if outs_by_token else ())
    if not names:
        return check(given, *options, in_place=in_place)
    for name in names:
        if (each := given[name]) is not None:
            checks.rank(name, each.shape, "total, dim")
    checked = check(transposed(given, names), *options, in_place=in_place)
    operands = checked.operands._replace(by_token=names)
    return replace(checked, operands=operands, outputs=transposed(checked.outputs, names))


def check_by_blocks(
    given: Layouts, split: Split, silu: bool, pad_slot_id: int, first_column: int | None, block_size: int
) -> Checked[Operands]:
    """`check` for calls with a prefix cache by blocks."""
    others = {name: each for name, each in given.items() if name not in BLOCKS}
    checked = check(others, split, silu, pad_slot_id, first_column)
    o = checked.operands
    checks.rank("x", o.x.shape, "dim, total")
    found = blocks.check(given, block_size, "conv_states", o.sequences, o.x.shape[1])
    return replace(checked, operands=o._replace(blocks=found, computed=given[blocks.COMPUTED]))


def _check_payload(given: Layouts, split: Split) -> None:
    """Check that payload and payload_gates have one row per token."""
    payload, *gates = (given.get(name) for name in PAYLOAD)
    x, there = given["x"], [gate for gate in gates if gate is not None]
    if payload is None or len(there) < len(gates):
        for name, each in zip(PAYLOAD, (payload, *gates), strict=True):
            if each is not None:
                raise ValueError(message(name, "an array", "None unless payload and both payload_gates are given"))
        return
    assert x is not None
    dim, total = x.shape
    (heads_q, head_q), *_ = split.heads(dim)
    checks.rank(PAYLOAD[1], there[0].shape, "total of x, heads")
    heads = there[0].shape[1]
    for name, gate in zip(PAYLOAD[1:], there, strict=True):
        checks.dtype(name, gate.dtype, (x.dtype,))
        checks.shape(name, gate.shape, (total, heads), "total of x, heads")
    checks.dtype("payload", payload.dtype, (x.dtype,))
    shape = (total, dim - heads_q * head_q + 2 * heads)
    checks.shape("payload", payload.shape, shape, "total of x, channels of k and v, heads of both gates")


def _check_gates(given: Layouts, split: Split, *, is_dense: bool, in_place: bool) -> None:
    """Raise ValueError for arguments that have no meaning for a dense x, and for gates where no kernel has them."""
    if is_dense and given["query_start_loc"] is not None:
        raise ValueError(message("query_start_loc", "an array", "None where x has 3 axes (batch, dim, seqlen)"))
    if not (is_dense or in_place or split.normalized or given.get("payload") is not None):
        return
    for name in GATES:
        if given.get(name) is not None:
            wanted = "None where x has 3 axes, where out is x, with qk_l2norm, and beside payload"
            raise ValueError(message(name, "an array", wanted))


def _check_modes(given: Layouts, first_column: int | None) -> None:
    """Raise ValueError for arguments that have no meaning together, or without a pool."""
    has_states = given["conv_states"] is not None or given["initial_states"] is not None
    if given["conv_states"] is not None and given["initial_states"] is not None:
        raise ValueError(message("initial_states", "an array", "None beside conv_states, which sequences start from"))
    if given["dst_state_indices"] is not None and given["conv_states"] is None:
        raise ValueError(message("dst_state_indices", "an array", "None unless conv_states is given"))
    wanted = "None unless conv_states or initial_states is given"
    for argument in ("cache_indices", "has_initial_state"):
        if given[argument] is not None and not has_states:
            raise ValueError(message(argument, "an array", wanted))
    if first_column is not None and not has_states:
        raise ValueError(message("first_column", first_column, wanted))


def check_contents(o: Operands, read: Callable[[str], Any]) -> None:
    """Raise ValueError for contents of index arrays that cannot be right."""
    if o.blocks is not None:
        read = blocks.reading(read, o.blocks)
        o = o._replace(**o.blocks.derived)
    pool = o.states.shape[0] if o.states else None
    snapshot_slots = None
    if o.snapshots is not None:
        snapshots_to = o.snapshot_out or o.conv_states
        assert snapshots_to is not None
        snapshot_slots = snapshots_to.shape[0]
    is_read_only = o.conv_states is None
    total = o.x.shape[-1]
    lengths = np.full(o.sequences, total) if o.is_dense else None
    slots.check_packed(
        read, total, pool, o.pad_slot_id, lengths, is_read_only=is_read_only, snapshot_slots=snapshot_slots
    )
