"""What a decode step of the convolution refuses: arguments, and contents of index arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cuconv.causal_conv1d.kernels import GATES, MAX_SEQUENCES, MAX_TOKENS, WIDTHS
from cuconv.causal_conv1d.kernels_update import MAX_TREE_TOKENS
from cuconv.causal_conv1d.plan_update import Operands, is_overlaid
from cuconv.causal_conv1d.split import WHOLE, Split
from cuconv.causal_conv1d.states import window
from cuconv.runtime import checks, slots, trees
from cuconv.runtime.dtypes import BOOL, FLOATS, INDICES
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout, transposed
from cuconv.runtime.plan import Checked, Layouts

BY_TOKEN = ("x", *GATES, "out")

BY_SEQUENCE = ("cache_seqlens", "num_accepted_tokens", "intermediate_state_indices")

NOT_BESIDE = {
    "token_state_indices": ("cache_seqlens",),
    "parents": ("cache_seqlens", "num_accepted_tokens", "query_start_loc"),
    "retrieve_next_token": ("parents", "cache_seqlens", "num_accepted_tokens", "query_start_loc"),
    **dict.fromkeys(GATES, ("parents", "retrieve_next_token")),
}
"""For each array the arguments that must be None beside it: states after single tokens are no rings, and the tokens of
a tree are neither packed nor gated."""


def check(
    given: Layouts,
    split: Split,
    silu: bool,
    disable_state_update: bool,
    pad_slot_id: int,
    first_column: int | None = None,
    max_query_len: int | None = None,
    keeps_padding: bool = False,
) -> Checked[Operands]:
    x, conv_state, weight, bias, *_ = given.values()
    assert x is not None
    is_packed = given["query_start_loc"] is not None
    if len(x.shape) not in ((2,) if is_packed else (2, 3)):
        wanted = "2 axes (tokens, dim)" if is_packed else "2 or 3 axes (batch, dim[, seqlen])"
        raise ValueError(message("x", f"shape {x.shape}", wanted))
    checks.dtype("x", x.dtype, FLOATS)
    _check_modes(given, disable_state_update, first_column, max_query_len)
    dim, sequences, seqlen, axes = _check_tokens(x, given["query_start_loc"], max_query_len)
    checks.taps(weight, bias, dim, WIDTHS)
    assert weight is not None
    width = weight.shape[1]
    longest = max(seqlen, 1) if not is_packed else max(max_query_len or 1, 1)
    _check_state(conv_state, given, sequences, dim, longest, width)
    assert conv_state is not None
    for name in BY_SEQUENCE:
        slots.by_sequence(name, given[name], sequences, axes)
    slots.by_sequence("has_initial_state", given["has_initial_state"], sequences, axes, (BOOL,))
    starts = slots.sources(given, "conv_state_indices", sequences, axes)
    live = conv_state if given["num_accepted_tokens"] is not None else window(conv_state, width - 1, first_column)
    windows = _check_windows(given, live, sequences, dim, 0 if is_packed else seqlen, width)
    _check_tables(given, sequences, seqlen, axes)
    for name in GATES:
        if (gate := given.get(name)) is not None:
            checks.dtype(name, gate.dtype, (x.dtype,))
            checks.shape(name, gate.shape, x.shape, "the shape of x")
    shared = (x.shape[0],), tuple(x.shape[2:])
    results = split.results(given, x, *shared, _axes(split, is_packed, has_tokens=len(x.shape) == 3))
    if keeps_padding:
        slots.check_kept(given, split.names)
    outs = tuple(split.by_head(out, *shared) for out in results.values())
    inputs = {name: layout for name, layout in given.items() if name not in results}
    for name in ("x", *GATES):
        if (each := given.get(name)) is not None:
            by_token = each if len(each.shape) == 3 else each.with_axis(2)
            inputs[name] = by_token.with_order(2, 1, 0) if is_packed else by_token
    if is_packed:
        outs = tuple(out.with_order(1, 0, 2, 3) for out in outs)
    operands = Operands(
        **{**inputs, "conv_state": live, "conv_state_indices": starts},  # type: ignore[arg-type]
        outs=outs,
        split=split,
        silu=silu,
        pad_slot_id=pad_slot_id,
        disable_state_update=disable_state_update,
        sequences=sequences,
        seqlen=seqlen,
        keeps_padding=keeps_padding,
    )
    is_written = not disable_state_update or given["token_state_indices"] is not None
    # A token of a tree reads the inputs before it, when the results of those may have been written.
    may_be_x = split is WHOLE and not _is_tree(given)
    updated = ("conv_state", "intermediate_conv_window")[not is_written :]
    return Checked(
        operands,
        results,
        updated=(*updated, "retrieve_parent_token") if "retrieve_parent_token" in given else updated,
        in_place=("out", "x") if may_be_x else (),
        overlaid={} if windows is None else {"intermediate_conv_window": windows},
    )


def check_with_extras(given: Layouts, *options: Any) -> Checked[Operands]:
    *first, by_token, keeps_padding = options
    plain: Any = *first, keeps_padding
    x = given["x"]
    if not by_token or x is None or len(x.shape) != 3:
        return check(given, *plain)
    checked = check(transposed(given, BY_TOKEN), *plain)
    outputs = transposed(checked.outputs, BY_TOKEN)
    return replace(checked, operands=checked.operands._replace(by_token=BY_TOKEN), outputs=outputs)


def check_by_blocks(given: Layouts, *options: Any) -> Checked[Operands]:
    for name in ("state_column", "dst_state_indices"):
        if given[name] is None:
            raise ValueError(message(name, "None", "an array beside the other one"))
    checked = check(given, *options)
    return replace(checked, operands=checked.operands._replace(dst_is_column=True))


def reading_columns(o: Operands, read: Callable[[str], Any]) -> Callable[[str], Any]:
    """`read`, which returns a NumPy array by its name, with slots in the place of columns in dst_state_indices."""
    if not o.dst_is_column:
        return read
    found = slots.start_slots(read("conv_state_indices"), read("dst_state_indices"), o.sequences)
    return lambda name: found if name == "dst_state_indices" else read(name)


def _check_tokens(x: Layout, starts: Layout | None, max_query_len: int | None) -> tuple[int, int, int, str]:
    """Checks the sizes of x; returns dim, sequences, the most tokens of one, and the name of sequences in errors."""
    batch, dim, *tokens = x.shape
    checks.between("dim of x", dim, 0, MAX_DIVIDEND)
    if starts is None:
        checks.between("batch of x", batch, 0, MAX_SEQUENCES)
        checks.between("seqlen of x", x.size // max(1, batch * dim) if tokens else 1, 0, MAX_TOKENS)
        return dim, batch, tokens[0] if tokens else 1, "batch of x"
    checks.between("tokens of x", batch, 0, MAX_TOKENS)
    sequences = checks.starts("query_start_loc", starts, MAX_SEQUENCES)
    seqlen = batch if max_query_len is None else min(max_query_len, batch)
    return dim, sequences, seqlen, "sequences of query_start_loc"


def _check_tables(given: Layouts, sequences: int, seqlen: int, axes: str) -> None:
    """Checks the arrays that have a row per sequence and a column per token."""
    if (slots_of_tokens := given["token_state_indices"]) is not None:
        checks.dtype("token_state_indices", slots_of_tokens.dtype, INDICES)
        if len(slots_of_tokens.shape) != 2 or slots_of_tokens.shape[0] < sequences:
            wanted = f"({sequences}, tokens) or more rows ({axes})"
            raise ValueError(message("token_state_indices", f"shape {slots_of_tokens.shape}", wanted))
        checks.between("columns of token_state_indices", slots_of_tokens.shape[1], 0, MAX_TOKENS)
    if given["parents"] is not None:
        trees.check(given["parents"], sequences, seqlen, "batch, seqlen of x")
    trees.check_links(given, sequences, seqlen, "batch, seqlen of x")
    if _is_tree(given):
        checks.between("seqlen of x, of trees", seqlen, 0, MAX_TREE_TOKENS)


def _check_modes(
    given: Layouts, disable_state_update: bool, first_column: int | None, max_query_len: int | None
) -> None:
    """Raise ValueError for arguments that have no meaning together."""
    if max_query_len is not None:
        if given["query_start_loc"] is None:
            raise ValueError(message("max_query_len", max_query_len, "None unless query_start_loc is given"))
        checks.between("max_query_len", max_query_len, 0, MAX_TOKENS)
    for name, others in NOT_BESIDE.items():
        for other in others:
            if given.get(name) is not None and given.get(other) is not None:
                raise ValueError(message(name, "an array", f"None beside {other}"))
    if first_column is not None and given["cache_seqlens"] is not None:
        wanted = "None beside cache_seqlens, which says where the inputs are"
        raise ValueError(message("first_column", first_column, wanted))
    if first_column == -1 and given["num_accepted_tokens"] is not None:
        wanted = "0 or None beside num_accepted_tokens, which counts from the first column"
        raise ValueError(message("first_column", first_column, wanted))
    if given["num_accepted_tokens"] is not None:
        if given["cache_seqlens"] is not None:
            wanted = "None beside cache_seqlens: a ring takes tokens back by a smaller cache_seqlens"
            raise ValueError(message("num_accepted_tokens", "an array", wanted))
        if disable_state_update and given["token_state_indices"] is None and given["intermediate_conv_window"] is None:
            wanted = "false beside num_accepted_tokens, unless states are kept: the next call finds tokens in the state"
            raise ValueError(message("disable_state_update", "true", wanted))
    if given["intermediate_state_indices"] is not None and given["intermediate_conv_window"] is None:
        wanted = "None unless intermediate_conv_window is given"
        raise ValueError(message("intermediate_state_indices", "an array", wanted))


def _is_tree(given: Layouts) -> bool:
    """Whether the tokens of a sequence form a tree."""
    return given["parents"] is not None or given.get("retrieve_next_token") is not None


def _check_state(conv_state: Layout | None, given: Layouts, sequences: int, dim: int, seqlen: int, width: int) -> None:
    if conv_state is None:
        raise TypeError(message("conv_state", "None", "an array (slots, dim, state_len)"))
    columns = width - 1, "width - 1"
    if given["num_accepted_tokens"] is not None:
        name = "seqlen" if given["query_start_loc"] is None else "max_query_len"
        columns = width - 1 + seqlen - 1, f"width - 1 + {name} - 1, for num_accepted_tokens"
    slots = sequences if given["conv_state_indices"] is None else 0, "conv_state_indices"
    checks.pool("conv_state", conv_state, dim, columns, slots)
    checks.between("state_len of conv_state", conv_state.shape[2], 0, MAX_TOKENS)


def _check_windows(given: Layouts, live: Layout, sequences: int, dim: int, seqlen: int, width: int) -> Layout | None:
    """Checks the intermediate windows; returns their distinct elements where windows lie over each other."""
    windows = given["intermediate_conv_window"]
    if windows is None:
        return None
    checks.rank("intermediate_conv_window", windows.shape, "rows, steps, dim, width - 1")
    checks.dtype("intermediate_conv_window", windows.dtype, (live.dtype,))
    rows, steps, _, columns = windows.shape
    wanted_columns, axes = width - 1, "rows, steps, dim of x, width - 1"
    if given["cache_seqlens"] is None and given["num_accepted_tokens"] is None:
        axes += " or state_len"
        wanted_columns = columns if columns == live.shape[2] else width - 1
    checks.shape("intermediate_conv_window", windows.shape, (rows, steps, dim, wanted_columns), axes)
    if steps < seqlen:
        raise ValueError(message("steps of intermediate_conv_window", steps, f"at least {seqlen}, the tokens of x"))
    checks.between("steps of intermediate_conv_window", steps, 0, MAX_TOKENS)
    wanted = sequences if given["conv_state_indices"] is None else live.shape[0]
    if given["intermediate_state_indices"] is None and rows < wanted:
        because = f"at least {wanted}, one a slot, or intermediate_state_indices"
        raise ValueError(message("rows of intermediate_conv_window", rows, because))
    if columns != width - 1 or _is_tree(given) or not is_overlaid(windows):
        return None
    row, step, channel, _ = windows.strides
    return windows._replace(shape=(rows, dim, steps + columns - 1), strides=(row, channel, step))


def _axes(split: Split, is_packed: bool, has_tokens: bool) -> str:
    """The axes of a result, as an error names them."""
    if is_packed:
        return "tokens of x, heads, head_dim" if split.has_heads else "tokens of x, channels"
    if split.has_heads:
        return "batch, seqlen of x, heads, head_dim" if has_tokens else "batch of x, heads, head_dim"
    return "batch of x, channels, seqlen of x" if has_tokens else "batch of x, channels"


def check_contents(o: Operands, read: Callable[[str], Any]) -> None:
    """Raise ValueError for contents of index arrays that cannot be right."""
    read = reading_columns(o, read)
    count, state_len = o.conv_state.shape[0], o.conv_state.shape[2]
    lengths, most = np.full(o.sequences, o.seqlen), state_len - (o.weight.shape[1] - 1) + 1
    if (begins := read("query_start_loc")) is not None:
        checks.boundaries("query_start_loc", begins, o.x.shape[2])
        lengths = np.diff(begins)
        longest = min(o.seqlen, most) if o.num_accepted_tokens is not None else o.seqlen
        if (longer := np.flatnonzero(lengths > longest)).size:
            i = longer[0]
            because = "max_query_len" if longest == o.seqlen else "what the state holds"
            wanted = f"at most {longest}, {because}"
            raise ValueError(message("query_start_loc", f"{lengths[i]} tokens for sequence {i}", wanted))
    starts, pad = slots.read_starts(read, "conv_state_indices", o.sequences), o.pad_slot_id
    live = lengths > 0
    if o.conv_state_indices is not None:
        live &= ~slots.are_padding(starts, pad)
    finals, goes_on = read("dst_state_indices"), read("has_initial_state")
    reads = live if goes_on is None else goes_on[: o.sequences]
    kept = slots.check_contents("conv_state_indices", starts, finals, live, reads, count, pad, o.disable_state_update)
    if (targets := read("token_state_indices")) is not None:
        targets = targets[: o.sequences]
        tokens = np.arange(targets.shape[1])
        is_kept = live[:, None] & (tokens < lengths[:, None]) & ~slots.are_padding(targets, pad)
        checks.slots("token_state_indices", np.concatenate([targets[is_kept], kept]), count)
        readers = np.flatnonzero(live & reads)
        writers = np.nonzero(is_kept)[0]
        checks.not_read_by_others("token_state_indices", targets[is_kept], writers, starts[readers], readers)
    if (accepted := read("num_accepted_tokens")) is not None:
        accepted = accepted[: o.sequences]
        if (outside := accepted[live & (accepted > most)]).size:
            wanted = f"at most {most}, for what the state holds"
            raise ValueError(message("num_accepted_tokens", outside[0], wanted))
    if o.intermediate_conv_window is not None:
        rows = read("intermediate_state_indices")
        name, used = ("conv_state_indices", starts)
        if rows is not None:
            name, used = ("intermediate_state_indices", rows[: o.sequences])
        checks.rows(name, used[live], o.intermediate_conv_window.shape[0], pad)
    if o.parents is not None:
        trees.check_contents(read("parents")[: o.sequences][live])
    if o.retrieve_next_token is not None:
        for name in trees.LINKS[:2]:
            trees.check_links_contents(name, read(name)[: o.sequences][live], o.seqlen)
