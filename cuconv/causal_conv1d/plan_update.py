"""The plan of a convolution's decode step: its kernel and launch, as a pure function of layouts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cuconv.causal_conv1d import ranges
from cuconv.causal_conv1d.kernels import GATES, filter_numbers, states_are_packed, taps_are_packed
from cuconv.causal_conv1d.kernels_update import (
    FEW_CHANNELS,
    FEW_GRID,
    FEW_RANGES,
    FEW_THREADS,
    KEPT_ROWS_BYTES,
    MANY_TOKENS_CHANNELS,
    MAX_TREE_TOKENS,
    ROWS_BYTES,
    SEVERAL_CHANNELS,
    SEVERAL_ROW_CHANNELS,
    SEVERAL_TOKENS,
    SEVERAL_TREE_TOKENS,
    SEVERAL_WIDTHS,
    CausalConv1dUpdate,
    CausalConv1dUpdateFew,
    CausalConv1dUpdateGated,
    CausalConv1dUpdateRows,
    CausalConv1dUpdateSeveral,
    CausalConv1dUpdateTree,
    UpdateKernel,
    fits_thread,
    most_sequences,
    row_state_lens,
    widest_channels,
)
from cuconv.causal_conv1d.split import Split
from cuconv.runtime import slots, trees
from cuconv.runtime.dtypes import INT64
from cuconv.runtime.launch import MAX_DIVIDEND, MAX_VECTOR_BYTES, ceil_div, fast_div, widest_vector
from cuconv.runtime.layout import Layout, index_numbers, pad_number, strides_or_zeros
from cuconv.runtime.plan import Launch, Plan

LEAN_BYTES = 2**9
"""Bytes per step of one token (batch * dim * itemsize) from which CausalConv1dUpdateFew is used. On an H200 1 x 256 of
bfloat16, which are 512 bytes, takes 1.42 us instead of 2.08.
"""

NARROW_BYTES = 2**17
"""Bytes per step up to which CausalConv1dUpdateFew has two channels per thread, or one where more are not aligned: on
an H200 2.20 us instead of 2.24 with four at 8 x 6144. With more bytes four are quicker: 5.26 us instead of 5.60 at 128
x 6144, and 6.07 in CausalConv1dUpdate. Unaligned channels are left to the other kernels then.
"""

MOST_IN_ROWS = {2: 2**22, 4: 3 * 2**17}
"""Bytes per step up to which CausalConv1dUpdateFew wins where the columns of states are contiguous, by the bytes of an
input: 10.22 us instead of 10.64 at 256 x 6144, but 55.8 instead of 52.7 at 1024 x 10240; of float32 2.48 instead of
2.65 at 8 x 6144, but 19.1 instead of 17.8 at 256 x 6144. Where channels are contiguous it always wins.
"""

FEW_IN_ROWS = range(2**11, 3 * 2**16 + 1)
FEW_IN_COLUMNS = range(2**11, 2**18 + 1)
"""Bytes per step for which one channel per thread wins in the other kernels, in states with contiguous columns and with
contiguous channels: a third of the code to fetch. On an H200 2.2 us instead of 2.3 with contiguous columns and 2.5
instead of 3.2 with contiguous channels (1 x 6144). With more bytes the widest vectors are as quick.
"""

MANY_THREADS = 2**16
"""About a quarter of the threads of a large GPU."""


class Operands(NamedTuple):
    """The layouts of one valid call; None stands for an argument that is absent."""

    x: Layout
    """(batch, dim, seqlen); (1, dim, tokens) with query_start_loc, where `batch` below is the number of sequences."""
    conv_state: Layout
    """(slots, dim, state_len)."""
    weight: Layout
    """(dim, width)."""
    bias: Layout | None
    """(dim,)."""
    cache_seqlens: Layout | None
    """(batch,)."""
    conv_state_indices: Layout | None
    """(batch,), or with state_column (batch, columns)."""
    num_accepted_tokens: Layout | None
    """(batch,)."""
    intermediate_conv_window: Layout | None
    """(rows, steps, dim, width - 1 or state_len)."""
    intermediate_state_indices: Layout | None
    """(batch,)."""
    state_column: Layout | None
    """(batch,)."""
    dst_state_indices: Layout | None
    """(batch,)."""
    has_initial_state: Layout | None
    """(batch,)."""
    query_start_loc: Layout | None
    """(batch + 1,)."""
    token_state_indices: Layout | None
    """(batch, columns)."""
    parents: Layout | None
    """(batch, seqlen)."""
    outs: tuple[Layout, ...]
    """The result of each range of channels, (batch, seqlen, heads, head_dim)."""
    split: Split
    """The ranges of channels."""
    silu: bool
    """Whether SiLU follows the sum."""
    pad_slot_id: int
    """The slot number of sequences that only fill a batch."""
    disable_state_update: bool
    """Whether conv_state stays as it is."""
    sequences: int
    """Sequences, however their tokens are laid out."""
    seqlen: int
    """Most tokens per sequence; further ones of a packed sequence are padding."""
    keeps_padding: bool = False
    """Whether results of sequences without a slot stay as they are, instead of becoming zeros."""
    by_token: tuple[str, ...] = ()
    """The arrays that the caller has as (batch, seqlen, dim)."""
    dst_is_column: bool = False
    """Whether dst_state_indices has columns of conv_state_indices, instead of slots."""
    pre_gate: Layout | None = None
    """The shape of x."""
    post_gate: Layout | None = None
    """The shape of x."""
    residual: Layout | None = None
    """The shape of x."""
    retrieve_next_token: Layout | None = None
    """(batch, seqlen)."""
    retrieve_next_sibling: Layout | None = None
    """(batch, seqlen)."""
    retrieve_parent_token: Layout | None = None
    """(batch, seqlen)."""

    @property
    def beside_x(self) -> tuple[Layout, ...]:
        """The gates and the residual that are given."""
        return tuple(each for each in (self.pre_gate, self.post_gate, self.residual) if each is not None)

    @property
    def windows_are_whole(self) -> bool:
        """Whether intermediate windows have all columns of a state, where a state has more than width - 1."""
        windows, columns = self.intermediate_conv_window, self.weight.shape[1] - 1
        return windows is not None and windows.shape[3] != columns

    @property
    def windows_are_overlaid(self) -> bool:
        """Whether intermediate windows of successive tokens overlap in memory, shifted by one column."""
        windows = self.intermediate_conv_window
        return windows is not None and is_overlaid(windows)


def is_overlaid(windows: Layout) -> bool:
    """Whether windows (rows, steps, dim, columns) of successive tokens overlap in memory, shifted by one column."""
    return min(windows.shape[1], windows.shape[3]) > 1 and windows.strides[1] == windows.strides[3]


def plan(o: Operands) -> Plan:
    """The launch that computes a call."""
    if not o.x.size:
        return Plan()
    if (few := _few(o)) is not None:
        return Plan((_launch_of_few(o, few),))
    if (several := _several(o)) is not None:
        return Plan((_launch_of_several(o, several),))
    if _is_tree(o):
        return Plan((_tree(o),))
    return Plan((_launch(o, _kernel(o)),))


def _is_tree(o: Operands) -> bool:
    """Whether the tokens of a sequence form a tree."""
    return o.parents is not None or o.retrieve_next_token is not None


def _few(o: Operands) -> CausalConv1dUpdateFew | None:
    """The kernel of steps of one token with only the usual features, where it can compute a call."""
    token_bytes = _token_bytes(o)
    if not (token_bytes >= LEAN_BYTES or o.beside_x) or o.seqlen != 1 or not o.sequences:
        return None
    if not _is_plain(o) or not _is_near(o):
        return None
    rows, is_narrow = _has_short_rows(o), token_bytes <= NARROW_BYTES
    if rows and token_bytes > MOST_IN_ROWS[o.x.itemsize] and not o.beside_x:
        return None
    is_moved = o.conv_state_indices is not None and o.dst_state_indices is not None
    is_moved = is_moved and not (o.keeps_padding or o.state_column or o.has_initial_state or o.beside_x)
    is_split = o.split.names != ("out",)
    if is_split and (_is_addressed(o) or o.query_start_loc is not None or o.beside_x or not _are_flat(o.outs)):
        return None
    for vec in _lean_channels(o, rows=rows) if is_narrow else FEW_CHANNELS[::-1]:
        if not is_narrow and (vec == 1 or not _fills_blocks(o.x.shape[1] // vec)) and not o.beside_x:
            continue
        if _is_packed(o, vec, rows=rows):
            return CausalConv1dUpdateFew(
                state_len=o.conv_state.shape[2],
                rows=rows,
                indexed=o.conv_state_indices is not None,
                moved=is_moved,
                addressed=_is_addressed(o) and not is_moved,
                packed=o.query_start_loc is not None,
                gated=bool(o.beside_x),
                split=is_split,
                **_filter_axes(o, vec),
            )
    return None


def _lean_channels(o: Operands, *, rows: bool) -> tuple[int, ...]:
    """Channels per thread of CausalConv1dUpdateFew in narrow steps, the best first.

    One is quicker where its taps and its state are an access each: at 1 x 6144 with contiguous columns 2.10 us instead
    of 2.14, and 2.23 instead of 2.42 where tokens are packed; but 2.35 instead of 2.07 at 1 x 2048 with three taps.
    """
    width = o.weight.shape[1]
    return (1, 2) if rows and width & (width - 1) == 0 and o.conv_state.shape[2] == width else (2, 1)


def _fills_blocks(dim_vecs: int) -> bool:
    """Whether at most a quarter of the threads have no channels, in blocks of one sequence each."""
    return 4 * dim_vecs >= 3 * FEW_THREADS * ceil_div(dim_vecs, FEW_THREADS)


def _is_packed(o: Operands, vec: int, *, rows: bool) -> bool:
    """Whether `vec` channels are vectors in every array."""
    if vec > _vector(o) or not all(ranges.are_packed(o.outs, vec)) or not taps_are_packed(o.weight, o.bias, vec):
        return False
    return _rows_are_packed(o, vec) if rows else vec == 1 or states_are_packed(o.conv_state, 0, vec)


def _is_plain(o: Operands) -> bool:
    """Whether a call has short rows as states, and keeps no states but the last ones."""
    others = (o.cache_seqlens, o.num_accepted_tokens, o.intermediate_conv_window, o.token_state_indices)
    is_short = o.conv_state.shape[2] in row_state_lens(o.weight.shape[1])
    return is_short and not o.dst_is_column and not _is_tree(o) and all(each is None for each in others)


def _are_flat(outs: tuple[Layout, ...]) -> bool:
    """Whether there are few results, and the channels of each are contiguous, head after head."""
    dims = [math.prod(out.shape[2:]) for out in outs]
    is_flat = (out.strides[3] == 1 and out.active(2) in ([], [out.shape[3]]) for out in outs)
    return len(outs) <= FEW_RANGES and all(dims) and all(is_flat)


def _is_near(o: Operands) -> bool:
    """Whether offsets fit in 32 bits, in the pool and in windows those inside a slot or row, and the channels are
    neither too many for the grid nor so few that most threads would have none.
    """
    pools = (o.conv_state,) if o.intermediate_conv_window is None else (o.conv_state, o.intermediate_conv_window)
    of_slot = (each._replace(shape=(1, *each.shape[1:])) for each in pools)
    indices = (o.conv_state_indices, o.state_column, o.dst_state_indices, o.has_initial_state, o.query_start_loc,
               o.intermediate_state_indices)  # fmt: skip
    arrays = [each for each in (o.x, *of_slot, *o.outs, *indices, *o.beside_x) if each is not None]
    # Strides are packed, whether their axes are longer than 1 or not.
    reach = max(
        # Kernels count indices of 64 bits in words.
        max(end - begin, *map(abs, each.strides)) * (2 if each.dtype is INT64 else 1)
        for each in arrays
        for begin, end in (each.span,)
    )
    return reach <= MAX_DIVIDEND and FEW_THREADS // 2 <= o.x.shape[1] <= FEW_GRID * FEW_THREADS


def _several(o: Operands) -> CausalConv1dUpdateSeveral | None:
    """The kernel of steps of several tokens with only the usual features, where it can compute a call."""
    others = (o.cache_seqlens, o.num_accepted_tokens, o.token_state_indices)
    windows, columns, width = o.intermediate_conv_window, o.conv_state.shape[2], o.weight.shape[1]
    if o.seqlen == 1 or not o.sequences or o.beside_x or _is_addressed(o) or any(each is not None for each in others):
        return None
    if o.split.names != ("out",) or columns not in row_state_lens(width) or width not in SEVERAL_WIDTHS:
        return None
    if o.conv_state.dtype is not o.x.dtype or o.windows_are_overlaid or not _is_near(o):
        return None
    is_tree = _is_tree(o)
    if is_tree and not _is_small_tree(o):
        return None
    rows = windows is not None and windows.shape[3] == columns and not is_tree and _has_short_rows(o)
    if (o.windows_are_whole and not rows) or (rows and o.sequences > FEW_GRID):
        return None
    for vec in (SEVERAL_ROW_CHANNELS,) if rows else SEVERAL_CHANNELS[::-1]:
        are_packed = _windows_are_packed if rows else _window_columns_are_packed
        if (windows is None or are_packed(o, vec)) and _is_packed(o, vec, rows=rows):
            axes = {name: value for name, value in _filter_axes(o, vec).items() if name != "state_t"}
            return CausalConv1dUpdateSeveral(
                state_len=columns,
                packed=o.query_start_loc is not None,
                windows=windows is not None,
                # The loop for more tokens is quicker for small steps, 3.11 us instead of 3.36 at 8 x 8192 on an H200,
                # and slower for large ones, 6.55 instead of 6.15 with 64 sequences.
                many=o.seqlen > SEVERAL_TOKENS or (_token_bytes(o) <= NARROW_BYTES and not is_tree),
                tree=is_tree,
                rows=rows,
                **axes,
            )
    return None


def _is_small_tree(o: Operands) -> bool:
    """Whether CausalConv1dUpdateSeveral has memory for a tree, and 32 bits reach every element of the tree's arrays."""
    arrays = [getattr(o, name) for name in (*trees.LINKS, "parents")]
    # Strides are packed, whether their axes are longer than 1 or not.
    reach = max(max(*map(abs, (*each.span, *each.strides))) for each in arrays if each is not None)
    return o.seqlen <= SEVERAL_TREE_TOKENS and reach <= MAX_DIVIDEND


def _launch_of_several(o: Operands, kernel: CausalConv1dUpdateSeveral) -> Launch:
    windows = o.intermediate_conv_window
    row, step, _, column = strides_or_zeros(windows, 4)
    numbers = {
        "seqlen": o.seqlen,
        "dim": o.x.shape[1],
        "slots": o.conv_state.shape[0],
        "pad_slot_id": _pad_slot(o),
        "bias_bytes": o.bias.itemsize if o.bias else 0,
        "is_read_only": o.disable_state_update,
        "x_stride": (o.x.strides[0], o.x.strides[2]),
        "out_stride": o.outs[0].strides[:2],
        "conv_state_stride": (o.conv_state.strides[0], o.conv_state.strides[2]),
        "total": o.x.shape[2],
        "query_start_loc_words": _words(o.query_start_loc, 0),
        "assumed_tokens": min(o.seqlen, ceil_div(o.x.shape[2], o.sequences)),
        "intermediate_rows": windows.shape[0] if windows else 0,
        "intermediate_steps": windows.shape[1] if windows else 0,
        "intermediate_conv_window_stride": (row, step, column),
        **index_numbers(
            conv_state_indices=o.conv_state_indices,
            intermediate_state_indices=o.intermediate_state_indices,
        ),
        **_tree_numbers(o),
    }
    return Launch.packed(kernel, kernel.launch_config(o.x.shape[1], o.sequences), **numbers)


def _tree_numbers(o: Operands) -> dict[str, object]:
    """The fields of an argument struct for a tree's arrays."""
    return _table_numbers(**{name: getattr(o, name) for name in (*trees.LINKS, "parents")})


def _tree(o: Operands) -> Launch:
    kernel = CausalConv1dUpdateTree(**_axes(o, min(_vector(o), MANY_TOKENS_CHANNELS)))
    config, division = kernel.launch_config(o.x.shape[1], _batch(o), 1, MAX_TREE_TOKENS // o.seqlen)
    numbers = {**_numbers(o, kernel.vec), **division, **_tree_numbers(o), "tree_tokens": fast_div(o.seqlen)}
    return Launch.packed(kernel, config, **numbers)


def _kernel(o: Operands) -> UpdateKernel:
    form = _form(o, keeps_states=o.intermediate_conv_window is not None or o.token_state_indices is not None)
    if o.beside_x:
        return CausalConv1dUpdateGated(**form, **_axes(o, min(_vector(o), MANY_TOKENS_CHANNELS)))
    is_row = o.cache_seqlens is None and o.num_accepted_tokens is None
    token_bytes = _token_bytes(o)
    if is_row and _has_short_rows(o):
        vec = 1 if token_bytes in FEW_IN_ROWS else _vector(o)
        most = KEPT_ROWS_BYTES if _keeps_rows(o) else ROWS_BYTES
        while vec > 1 and not (_rows_are_packed(o, vec) and fits_thread(vec, *_row_size(o), most)):
            vec //= 2
        if _rows_are_packed(o, vec):
            sequences = _sequences(o, vec, form) if o.seqlen == 1 and not form["token_states"] else 0
            return CausalConv1dUpdateRows(state_len=o.conv_state.shape[2], sequences=sequences, **form, **_axes(o, vec))
    vec = 1 if o.seqlen == 1 and token_bytes in FEW_IN_COLUMNS else _vector(o)
    if is_row and o.seqlen == 1 and not form["token_states"]:
        return CausalConv1dUpdate(sequences=_sequences(o, vec, form), **form, **_axes(o, vec))
    return CausalConv1dUpdate(sequences=0, **form, **_axes(o, min(vec, MANY_TOKENS_CHANNELS)))


def _form(o: Operands, *, keeps_states: bool) -> dict[str, Any]:
    """The template parameters for what only some calls do; `keeps_states` says whether states after single tokens are
    kept."""
    packed = o.query_start_loc is not None
    return {"addressed": _is_addressed(o) or keeps_states, "packed": packed, "token_states": keeps_states}


def _is_addressed(o: Operands) -> bool:
    """Whether slots are in columns, states go to other slots or may start from zeros, or padding stays as it is."""
    return o.keeps_padding or any((o.state_column, o.dst_state_indices, o.has_initial_state))


def _token_bytes(o: Operands) -> int:
    """Bytes of one token of all sequences."""
    return o.sequences * o.x.shape[1] * o.x.itemsize


def _launch(o: Operands, kernel: UpdateKernel) -> Launch:
    sequences = max(1, getattr(kernel, "sequences", 1))
    config, division = kernel.launch_config(o.x.shape[1], _batch(o), sequences)
    return Launch.packed(kernel, config, **_numbers(o, kernel.vec), **division)


def _launch_of_few(o: Operands, kernel: CausalConv1dUpdateFew) -> Launch:
    out, is_packed = o.outs[0], kernel.packed
    absent = FEW_RANGES - len(o.outs)
    numbers = {
        "dim": o.x.shape[1],
        "slots": o.conv_state.shape[0],
        "pad_slot_id": _pad_slot(o),
        "bias_bytes": o.bias.itemsize if o.bias else 0,
        "is_read_only": o.disable_state_update,
        "conv_state_stride": o.conv_state.strides[::2],
        "conv_state_dim_stride": o.conv_state.strides[1],
        "out_stride": out.strides[is_packed],
        "out_dim_stride": out.strides[3],
        "keeps_padding": o.keeps_padding,
        "has_initial_state_stride": strides_or_zeros(o.has_initial_state, 1)[0],
        "query_start_loc_words": _words(o.query_start_loc, 0),
        "total": o.x.shape[2],
        "range_begin": [0, *ranges.ends(o.outs)[:-1]] + [MAX_DIVIDEND] * absent,
        "range_stride": [each.strides[0] for each in o.outs] + [0] * absent,
        "conv_state_indices_words": _words(o.conv_state_indices, 0),
        "conv_state_indices_is_int64": o.conv_state_indices is not None and o.conv_state_indices.dtype is INT64,
        **slots.numbers(o.conv_state_indices, o.state_column, o.dst_state_indices),
        "slot_column_words": _words(o.conv_state_indices, 1) if o.state_column else 0,
    }
    del numbers["slot_column_stride"]
    for name, layout in (("x", o.x), *((name, getattr(o, name)) for name in GATES)):
        batch, dim, token = strides_or_zeros(layout, 3)
        numbers[f"{name}_stride"], numbers[f"{name}_dim_stride"] = token if is_packed else batch, dim
    return Launch.packed(kernel, kernel.launch_config(o.x.shape[1], o.sequences), **numbers)


def _words(indices: Layout | None, axis: int) -> int:
    """The distance along an axis of an index array in words of 32 bits; 0 where there is no array."""
    return 0 if indices is None else indices.strides[axis] * indices.itemsize // 4


def _batch(o: Operands) -> int:
    """Sequences that a launch counts: one where packed tokens belong to none, which it marks as padding."""
    return max(1, o.sequences)


def _sequences(o: Operands, vec: int, form: dict[str, Any]) -> int:
    """Sequences per thread: the most where there are many threads."""
    return most_sequences(o.x.itemsize, **form) if o.sequences * o.x.shape[1] // vec >= 2 * MANY_THREADS else 1


def _vector(o: Operands) -> int:
    """Elements of the widest vector along the channels of x."""
    _, dim, _ = o.x.shape
    if dim > 1 and o.x.strides[1] != 1:
        return 1
    if dim > 1 and any(each.strides[1] != 1 for each in o.beside_x):
        return 1
    itemsize = max(o.x.itemsize, o.conv_state.itemsize)
    limit = widest_channels(itemsize, o.weight.shape[1]) * o.x.itemsize
    alike = (number for each in (o.x, *o.beside_x) for number in (each.first, *each.active(0, 2)))
    return widest_vector(o.x.itemsize, *alike, dim, limit=limit)


def _has_short_rows(o: Operands) -> bool:
    """Whether a state fits a thread's registers and has contiguous columns, one channel after another."""
    _, dim, state_len = o.conv_state.shape
    if state_len not in row_state_lens(o.weight.shape[1]):
        return False
    return (state_len == 1 or o.conv_state.strides[2] == 1) and (dim == 1 or o.conv_state.strides[1] == state_len)


def _rows_are_packed(o: Operands, vec: int) -> bool:
    """Whether the states of `vec` channels, end to end, can be read by the widest accesses that divide them."""
    count = vec * o.conv_state.shape[2]
    if not fits_thread(vec, o.conv_state.shape[2], o.conv_state.itemsize):
        return False
    access = widest_vector(o.conv_state.itemsize, count)
    return not any(quantity % access for quantity in (o.conv_state.first, *o.conv_state.active(0)))


def _row_size(o: Operands) -> tuple[int, int]:
    """The columns of a state, and the bytes of one."""
    return o.conv_state.shape[2], o.conv_state.itemsize


def _keeps_rows(o: Operands) -> bool:
    """Whether states after single tokens go to rows like those of the pool, in whole accesses."""
    windows, columns = o.intermediate_conv_window, o.conv_state.shape[2]
    is_kept = o.token_state_indices is not None
    is_kept |= windows is not None and windows.shape[3] == columns and _windows_are_packed(o, 1)
    return is_kept and KEPT_ROWS_BYTES % (columns * o.conv_state.itemsize) == 0


def _windows_are_packed(o: Operands, vec: int) -> bool:
    """Whether the windows of `vec` channels, end to end, can be written by the widest accesses that divide them."""
    windows = o.intermediate_conv_window
    if windows is None or windows.size == 0 or o.windows_are_overlaid:
        return False
    _, _, dim, columns = windows.shape
    if (columns > 1 and windows.strides[3] != 1) or (dim > 1 and windows.strides[2] != columns):
        return False
    access = widest_vector(windows.itemsize, vec * columns, limit=MAX_VECTOR_BYTES)
    return not any(quantity % access for quantity in (windows.first, *windows.active(0, 1)))


def _windows_are_one(o: Operands, vec: int) -> bool:
    """Whether windows overlap so that the windows of all tokens, for `vec` channels, are aligned vectors."""
    windows, is_row = o.intermediate_conv_window, o.cache_seqlens is None and o.num_accepted_tokens is None
    if windows is None or not o.windows_are_overlaid or not is_row or o.query_start_loc is not None:
        return False
    _, steps, dim, columns = windows.shape
    if windows.strides[3] != 1 or (dim > 1 and windows.strides[2] != steps + columns - 1) or steps != o.seqlen:
        return False
    return not any(quantity % vec for quantity in (windows.first, *windows.active(0)))


def _window_columns_are_packed(o: Operands, vec: int) -> bool:
    """Whether `vec` channels of a column of a window are an aligned vector."""
    windows = o.intermediate_conv_window
    if windows is None or (windows.shape[2] > 1 and windows.strides[2] != 1):
        return False
    return not any(quantity % vec for quantity in (windows.first, *windows.active(0, 1, 3)))


def _filter_axes(o: Operands, vec: int) -> dict[str, Any]:
    """The template parameters that all kernels of a decode step have."""
    return {
        "width": o.weight.shape[1],
        "input_t": o.x.dtype,
        "weight_t": o.weight.dtype,
        "state_t": o.conv_state.dtype,
        "vec": vec,
        "silu": o.silu,
    }


def _axes(o: Operands, vec: int) -> dict[str, Any]:
    """The template parameters of `_filter_axes`, and how the channels fall into ranges."""
    return {**_filter_axes(o, vec), "ranges": ranges.kind(o.outs, vec)}


def _pad_slot(o: Operands) -> int:
    """The slot number that kernels take for padding, in 32 bits, because a larger number cannot be a slot."""
    number = pad_number(o.pad_slot_id, o.conv_state_indices or o.dst_state_indices or o.token_state_indices)
    return number if abs(number) <= MAX_DIVIDEND else -1


def _numbers(o: Operands, vec: int) -> dict[str, object]:
    """The fields of CausalConv1dUpdateOperands behind the pointers, except for those that divide the work."""
    _, dim, tokens = o.x.shape
    windows = o.intermediate_conv_window
    return {
        "x_stride": o.x.strides,
        "conv_state_stride": o.conv_state.strides,
        "intermediate_conv_window_stride": strides_or_zeros(windows, 4),
        "slots": o.conv_state.shape[0],
        "pad_slot_id": _pad_slot(o),
        "intermediate_rows": windows.shape[0] if windows else 0,
        "intermediate_steps": windows.shape[1] if windows else 0,
        **ranges.numbers(o.outs, vec),
        "batch": _batch(o),
        "sequences": o.sequences,
        "dim": dim,
        "seqlen": o.seqlen,
        "total": tokens,
        "state_len": o.conv_state.shape[2],
        "states_are_packed": states_are_packed(o.conv_state, 0, vec),
        "windows_are_packed": _windows_are_packed(o, vec),
        "windows_are_whole": o.windows_are_whole,
        "windows_are_overlaid": o.windows_are_overlaid,
        "windows_are_one": _windows_are_one(o, vec),
        "window_columns_are_packed": _window_columns_are_packed(o, vec),
        "is_read_only": o.disable_state_update,
        "keeps_padding": o.keeps_padding,
        **{f"{name}_stride": strides_or_zeros(getattr(o, name), 3) for name in GATES},
        "dst_is_column": o.dst_is_column,
        "has_initial_state_stride": strides_or_zeros(o.has_initial_state, 1)[0],
        "token_state_columns": o.token_state_indices.shape[1] if o.token_state_indices else 0,
        **_table_numbers(token_state_indices=o.token_state_indices, parents=o.parents),
        **filter_numbers(o.weight, o.bias, vec),
        **index_numbers(
            cache_seqlens=o.cache_seqlens,
            conv_state_indices=o.conv_state_indices,
            num_accepted_tokens=o.num_accepted_tokens,
            intermediate_state_indices=o.intermediate_state_indices,
            query_start_loc=o.query_start_loc,
        ),
        **slots.numbers(o.conv_state_indices, o.state_column, o.dst_state_indices),
    }


def _table_numbers(**tables: Layout | None) -> dict[str, object]:
    """The fields of an argument struct for index arrays by sequence and token."""
    numbers: dict[str, object] = {}
    for name, layout in tables.items():
        numbers[f"{name}_stride"] = strides_or_zeros(layout, 2)
        numbers[f"{name}_is_int64"] = layout is not None and layout.dtype is INT64
    return numbers
