"""The plan of a convolution of packed sequences: its kernel and launch, as a pure function of layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from cuconv.causal_conv1d import ranges
from cuconv.causal_conv1d.kernels import (
    SMALL_NORMALIZED_TILES,
    SMALL_TILES,
    channel_tile_tokens,
    channel_vector_bytes,
    filter_numbers,
    small_lane_vecs,
    small_tile_tokens,
    states_are_packed,
    taps_are_packed,
)
from cuconv.causal_conv1d.kernels_varlen import (
    LONG_TILE,
    LONG_TILE_ELEMENTS,
    MANY_SHORT,
    MEAN_SHORT,
    SHORT_WIDTHS,
    CausalConv1dVarlenBlocks,
    CausalConv1dVarlenCachedFwd,
    CausalConv1dVarlenFwd,
    CausalConv1dVarlenL2normFwd,
    CausalConv1dVarlenL2normShortFwd,
    CausalConv1dVarlenRowsFwd,
    CausalConv1dVarlenRowstripsFwd,
    CausalConv1dVarlenShortrowsFwd,
    CausalConv1dVarlenWalkFwd,
    has_long_tiles,
)
from cuconv.causal_conv1d.kernels_varlen_over import (
    OVER_BYTES,
    CausalConv1dVarlenBorders,
    CausalConv1dVarlenOverFwd,
    CausalConv1dVarlenOvershortFwd,
    CausalConv1dVarlenOverStart,
    CausalConv1dVarlenPrefixes,
)
from cuconv.causal_conv1d.split import Split
from cuconv.runtime import slots
from cuconv.runtime.blocks import COMPUTED, LAST, Blocks
from cuconv.runtime.launch import MAX_DIVIDEND, MAX_VECTOR_BYTES, WARP_SIZE, ceil_div, fast_div, widest_vector
from cuconv.runtime.layout import Layout, index_numbers, is_channel_last, pad_number, strides_or_zeros
from cuconv.runtime.machine import multiprocessors
from cuconv.runtime.plan import Launch, Plan

SHORT = 512
"""Mean tokens per sequence up to which a tile in shared memory pays for the prefixes when tokens are contiguous; half
of that where rows are not aligned. On an H200 16 x 512 takes 75 us with the tile and 80 without, 8 x 1024 74 and 74.
"""


FEW_CHANNELS = 16
"""Channels per multiprocessor up to which a call of one sequence does without tiles in shared memory, because it has
few prefixes. On an H200 64 tokens of 512 channels take 2.83 us without tiles and 3.99 with them, of 2048 channels 3.19
and 4.05, but of 8192 6.35 and 4.51; 512 tokens of 2048 channels 3.63 and 4.29. Four sequences of 64 tokens of 512
channels take 3.97 and 3.44 (bfloat16).
"""

STAGED = 128
"""Mean tokens per sequence up to which states of contiguous tokens come to shared memory. On an H200 512 random lengths
take 101 us with that and 110 without, 2048 x 4 174 and 208, 256 x 32 86 and 93, 64 x 128 77.7 and 81.2; 16 x 512 took
76 and 73 in an earlier version."""

STAGED_BLOCKS = 9
"""Blocks per multiprocessor above which states come to shared memory: in one wave of blocks the larger code takes
longer to fetch. On an H200 64 x 16 with 4096 channels, 1024 blocks, take 10.3 us with that and 10.1 without; 256 x 8,
2048 blocks, 20.8 and 22.1.
"""

MOST_TILES = 4
"""Most tiles of a strip with results over x. On an H200 2, 4 and 16 give 84, 80 and 83 us for one sequence of 8192
tokens, 157, 178 and 195 for 7800 tokens and 392 single ones, 140, 133 and 127 for 512 random lengths.
"""

OVER_MEAN = 128
"""Mean tokens per sequence up to which blocks walk the sequences that begin in their tokens where results go over x. On
an H200 512 random lengths take 97.8 us with such walks and 118.4 without, 2048 x 4 133 and 238, 128 x 64 82.9 and 88.0,
64 x 128 82.1 and 82.3; 16 x 512 79.3 and 77.4."""

OVER_BLOCKS = 4
"""Blocks per multiprocessor from which blocks walk sequences. With one block, for 64 x 8 and 8192 channels, walks take
16.1 us instead of 13.8."""

NO_BORDERS: Mapping[str, int] = {"border_tokens": 0, "border_states_at": 0}


class Operands(NamedTuple):
    """The layouts of one valid call; None stands for an argument that is absent."""

    x: Layout
    """(dim, total), or (batch, dim, seqlen) of sequences of equal lengths."""
    weight: Layout
    """(dim, width)."""
    bias: Layout | None
    """(dim,)."""
    conv_states: Layout | None
    """(slots, dim, state_len)."""
    query_start_loc: Layout | None
    """(sequences + 1,)."""
    cache_indices: Layout | None
    """(sequences,), or with state_column (sequences, columns)."""
    has_initial_state: Layout | None
    """(sequences,)."""
    state_column: Layout | None
    """(sequences,)."""
    dst_state_indices: Layout | None
    """(sequences,)."""
    initial_states: Layout | None
    """(slots, dim, state_len), absent where conv_states are there."""
    outs: tuple[Layout, ...]
    """The result of each range of channels, ([batch,] total, heads, head_dim)."""
    split: Split
    """The ranges of channels."""
    silu: bool
    """Whether SiLU follows the sum."""
    pad_slot_id: int
    """The slot number of sequences that only fill a batch."""
    keeps_padding: bool = False
    """Whether results of padding stay as they are, instead of becoming zeros."""
    snapshots: Layout | None = None
    """(rows, 3)."""
    snapshot_count: Layout | None = None
    """(1,)."""
    snapshot_out: Layout | None = None
    """(slots, dim, state_len); absent where snapshots go to conv_states."""
    pre_gate: Layout | None = None
    """(dim, total)."""
    post_gate: Layout | None = None
    """(dim, total)."""
    residual: Layout | None = None
    """(dim, total)."""
    payload: Layout | None = None
    """(total, channels of k and v and two gates)."""
    payload_gates: tuple[Layout, ...] = ()
    """(total, heads) each."""
    in_place: bool = False
    """Whether the result goes over x."""
    by_token: tuple[str, ...] = ()
    """The arrays that the caller has as (total, channels)."""
    blocks: Blocks | None = None
    """The prefix cache that snapshots and final states go to."""
    computed: Layout | None = None
    """(sequences,), the tokens before those of this call, where there is one."""

    @property
    def is_dense(self) -> bool:
        """Whether sequences are entries of a batch."""
        return len(self.x.shape) == 3

    @property
    def states(self) -> Layout | None:
        """The pool that sequences start from."""
        return self.conv_states or self.initial_states

    @property
    def beside_x(self) -> tuple[Layout, ...]:
        """The gates and the residual that are given."""
        return tuple(each for each in (self.pre_gate, self.post_gate, self.residual) if each is not None)

    @property
    def snapshot_rows(self) -> int:
        """Rows of snapshots; 0 without sequences."""
        return 0 if self.snapshots is None or not self.sequences else self.snapshots.shape[0]

    @property
    def sequences(self) -> int:
        """Number of sequences, empty ones included."""
        if self.is_dense:
            return self.x.shape[0]
        return 1 if self.query_start_loc is None else self.query_start_loc.shape[0] - 1


def plan(o: Operands) -> Plan:
    """The launches that compute a call."""
    if not o.x.size:
        return Plan()
    if o.blocks is None:
        return _without_blocks(o)
    known = o._replace(**o.blocks.derived)
    return _behind_blocks(known, o.blocks) if _has_rows(o) else Plan((_cached(known, o.blocks),))


def _without_blocks(o: Operands) -> Plan:
    return _over_x(o) if o.in_place and not o.is_dense else Plan((_launch(o),))


def _behind_blocks(o: Operands, blocks: Blocks) -> Plan:
    """The plan of a call with a launch in front that finds snapshots and slots of final states."""
    main = _without_blocks(o)
    begin = ceil_div(main.scratch, MAX_VECTOR_BYTES) * MAX_VECTOR_BYTES
    scratch = begin + blocks.scratch
    regions = {name: begin + place for name, place in blocks.regions.items()}
    if not o.sequences:
        return Plan(main.launches, scratch, regions)
    kernel = CausalConv1dVarlenBlocks()
    numbers = blocks.numbers | index_numbers(**{COMPUTED: o.computed})
    first = Launch.packed(kernel, kernel.launch_config(o.sequences), **numbers)
    return Plan((first, *main.launches), scratch, regions)


def _launch(o: Operands) -> Launch:
    if o.is_dense:
        return _walk(o)
    if o.split.normalized:
        return _normalized(o)
    if o.payload is not None or not _has_rows(o):
        return _channels(o)
    # Tiles of short sequences are stored whole, with their padding, and have no threads for gates.
    has_more = o.keeps_padding or o.beside_x
    return _short_rows(o) if _is_short(o) and not has_more else _rows(o)


def _has_rows(o: Operands) -> bool:
    """Whether tokens, and not channels, are contiguous in x, its results, gates and residual."""
    if is_channel_last(o.x) or not _has_contiguous_tokens(o.x, 1):
        return False
    return all(_has_contiguous_tokens(out, 0) for out in o.outs) and all(
        _has_contiguous_tokens(each, 1) for each in o.beside_x
    )


def _has_contiguous_tokens(layout: Layout, axis: int) -> bool:
    return layout.shape[axis] == 1 or layout.strides[axis] == 1


def _walk(o: Operands) -> Launch:
    *_, dim, total = o.x.shape
    (out,) = o.outs
    vec = 1
    if _has_contiguous_tokens(o.x, -1) and _has_contiguous_tokens(out, -3) and total > 1:
        rows = zip(o.x.strides[:-1], (*out.strides[:-3], out.strides[-1]), o.x.shape[:-1], strict=True)
        vec = widest_vector(o.x.itemsize, o.x.first - out.first, *(a - b for a, b, n in rows if n > 1))
    kernel = CausalConv1dVarlenWalkFwd(**_pool_axes(o, vec))
    config, division = kernel.launch_config(dim, o.sequences, is_dense=o.is_dense)
    batch_stride = o.x.strides[0] if o.is_dense else 0
    return Launch.packed(kernel, config, **_numbers(o, vec), **division, batch_stride=batch_stride)


def _over_x(o: Operands) -> Plan:
    along, across = (abs(o.x.strides[axis]) if o.x.shape[axis] > 1 else 0 for axis in (1, 0))
    if along >= across:
        return _channels_over_x(o)
    if o.x.strides[1] == 1 and o.weight.shape[1] in CausalConv1dVarlenRowstripsFwd.WIDTHS:
        return _row_strips(o)
    return Plan((_walk(o),))


def _overshort(o: Operands) -> CausalConv1dVarlenOvershortFwd | None:
    """The kernel that walks short sequences over x, where most sequences are short, there are enough blocks and all
    arrays are aligned.
    """
    (dim, total), width = o.x.shape, o.weight.shape[1]
    vec = OVER_BYTES // o.x.itemsize
    if width not in SHORT_WIDTHS or o.snapshot_rows or total > OVER_MEAN * o.sequences:
        return None
    if o.x.strides[0] != 1 or any(quantity % vec for quantity in (dim, o.x.first, *o.x.active(1))):
        return None
    if o.states is not None and not states_are_packed(o.states, o.states.shape[2] - (width - 1), vec):
        return None
    kernel = CausalConv1dVarlenOvershortFwd(**_pool_axes(o, vec))
    windows, dim_blocks = kernel.division(dim, total)
    are_many = windows * dim_blocks >= OVER_BLOCKS * multiprocessors(o.x.device)
    return kernel if windows > 1 and are_many else None


def _short_over_x(o: Operands, kernel: CausalConv1dVarlenOvershortFwd) -> Plan:
    dim, total = o.x.shape
    scratch, states_at, counters_at, counters = kernel.scratch(dim, total)
    numbers = _numbers(o, kernel.vec, {"border_tokens": kernel.constants["kTokens"], "border_states_at": states_at})
    first = CausalConv1dVarlenOverStart()
    launches = []
    for each, (config, division) in (
        (first, first.launch_config(counters)),
        (kernel, kernel.launch_config(dim, total)),
    ):
        launches.append(Launch.packed(each, config, **numbers, **division, counters_at=counters_at))
    return Plan(tuple(launches), scratch)


def _channels_over_x(o: Operands) -> Plan:
    short = _overshort(o)
    if short is not None:
        return _short_over_x(o, short)
    dim, total = o.x.shape
    vec = _channel_vector(o)
    axes = _pool_axes(o, vec)
    first = CausalConv1dVarlenPrefixes(**axes)
    del axes["state_t"]
    tokens = channel_tile_tokens(o.x.itemsize, first.width, ceil_div(dim, vec))
    kernel = CausalConv1dVarlenOverFwd(tokens=tokens, follows=True, **axes)
    block_tokens, *_ = kernel.block_tokens(dim)
    borders = ceil_div(total, block_tokens) - 1 if first.width > 1 else 0
    scratch, results_at = first.scratch(dim, total, borders, o.sequences)
    numbers = _numbers(o, vec, {"border_tokens": block_tokens, "border_states_at": results_at})
    blocks = multiprocessors(o.x.device) * first.RESIDENT
    before = first.launch_config(dim, borders, o.sequences, o.snapshot_rows, blocks)
    launches = [] if before is None else [Launch.packed(first, before[0], **numbers, **before[1])]
    config, division = kernel.launch_config(dim, total)
    launches.append(Launch.packed(replace(kernel, follows=before is not None), config, **numbers, **division))
    return Plan(tuple(launches), scratch)


def _channels(o: Operands) -> Launch:
    vec = _channel_vector(o)
    routed = not all(ranges.are_packed(o.outs, vec))
    (dim, total), processors = o.x.shape, multiprocessors(o.x.device)
    more: dict[str, Any] = {"gated": bool(o.beside_x), "payload": o.payload is not None}
    kernel = CausalConv1dVarlenFwd(tokens=_tile_tokens(o, vec), routed=routed, **more, **_axes(o, vec))
    kernel = replace(kernel, whole=kernel.most_whole(dim, total, o.sequences, o.snapshot_rows, processors))
    prefixes = kernel.prefixes(dim, o.sequences, processors)
    config, division = kernel.launch_config(dim, total, o.sequences, o.snapshot_rows, prefixes)
    return Launch.packed(kernel, config, **_numbers(o, vec), **division)


def _tile_tokens(o: Operands, vec: int, small: tuple[int, int] = SMALL_TILES) -> int:
    """Tokens per thread with contiguous channels."""
    (dim, total), width, itemsize = o.x.shape, o.weight.shape[1], o.x.itemsize
    # Sequences of fewer tokens than taps consist of prefixes, and snapshots have separate threads: neither is quicker
    # with smaller tiles.
    if o.snapshot_rows or total < width * o.sequences:
        return channel_tile_tokens(itemsize, width, ceil_div(dim, vec))
    return small_tile_tokens(itemsize, width, ceil_div(dim, vec), total, multiprocessors(o.x.device), small)


def _cached(o: Operands, blocks: Blocks) -> Launch:
    vec = _packed_vector(o)
    dim, total = o.x.shape
    tokens = channel_tile_tokens(o.x.itemsize, o.weight.shape[1], ceil_div(dim, vec))
    kernel = CausalConv1dVarlenCachedFwd(tokens=tokens, **_pool_axes(o, vec))
    config, division = kernel.launch_config(dim, total, o.sequences, o.snapshot_rows)
    indices = index_numbers(**{LAST: blocks.last, COMPUTED: o.computed})
    return Launch.packed(kernel, config, **_numbers(o, vec), **division, **indices, block_size=fast_div(blocks.size))


def _packed_vector(o: Operands) -> int:
    """Elements of the widest vector along channels of x and of all results."""
    vec = _channel_vector(o)
    while not all(ranges.are_packed(o.outs, vec)):
        vec //= 2
    return vec


def _normalized(o: Operands) -> Launch:
    vec = _packed_vector(o)
    itemsize, width = o.x.itemsize, o.weight.shape[1]
    heads, (dim, total) = ranges.heads(o.outs), o.x.shape
    wide = any(head_dim > WARP_SIZE * vec for _, head_dim in heads[: o.split.normalized])
    numbers, axes = _numbers(o, vec), _axes(o, vec)
    if _is_walked(o, vec) and not wide:
        del axes["addressed"]
        short = CausalConv1dVarlenL2normShortFwd.suited(axes, dim, total, multiprocessors(o.x.device))
        config, division = short.launch_config(heads, o.split.normalized, total)
        return Launch.packed(short, config, **numbers, **division, eps=o.split.eps)
    is_large = o.x.size >= LONG_TILE_ELEMENTS * multiprocessors(o.x.device)
    is_long = is_large and not wide and has_long_tiles(itemsize, width)
    tokens = LONG_TILE if is_long else _tile_tokens(o, vec, SMALL_NORMALIZED_TILES)
    kernel = CausalConv1dVarlenL2normFwd(tokens=tokens, wide=wide, payload=o.payload is not None, **axes)
    config, division = kernel.launch_config(heads, o.split.normalized, total, o.sequences, o.snapshot_rows)
    return Launch.packed(kernel, config, **numbers, **division, eps=o.split.eps)


def _is_walked(o: Operands, vec: int) -> bool:
    """Whether tiles of normalised heads have prefixes, too: sequences are short, and all arrays are aligned."""
    itemsize, width = o.x.itemsize, o.weight.shape[1]
    if width not in SHORT_WIDTHS or itemsize != 2 or vec * itemsize != channel_vector_bytes(itemsize, width):
        return False
    if o.conv_states is None or o.payload is not None or _axes(o, vec)["addressed"]:
        return False
    first_column = o.conv_states.shape[2] - (width - 1)
    is_packed = taps_are_packed(o.weight, o.bias, vec) and states_are_packed(o.conv_states, first_column, vec)
    dim, total = o.x.shape
    prefixes = o.sequences * ceil_div(dim, WARP_SIZE * vec)
    are_many = prefixes >= MANY_SHORT * multiprocessors(o.x.device)
    return is_packed and are_many and total < MEAN_SHORT * o.sequences


def _rows(o: Operands) -> Launch:
    # The vectors of a row start where its memory is aligned, wherever the row begins. So rows of x and of its results
    # must be equally far from alignment.
    dim, total = o.x.shape
    differences = []
    for begin, out in zip([0, *ranges.ends(o.outs)], o.outs, strict=False):
        _, heads, head_dim = out.shape
        differences.append(o.x.first + begin * o.x.strides[0] - out.first)
        differences += [head_dim * o.x.strides[0] - out.strides[1]] * (heads > 1)
        differences += [o.x.strides[0] - out.strides[2]] * (head_dim > 1)
    for each in o.beside_x:
        differences += [o.x.first - each.first]
        differences += [a - b for a, b in zip(o.x.active(0), each.active(0), strict=True)]
    vec = widest_vector(o.x.itemsize, *differences)
    aligned = widest_vector(o.x.itemsize, o.x.first, *o.x.active(0))
    row_vecs = ceil_div(total + (0 if vec <= aligned else vec - 1), vec)
    lane_vecs = small_lane_vecs(row_vecs, dim, multiprocessors(o.x.device))
    kernel = CausalConv1dVarlenRowsFwd(lane_vecs=lane_vecs, gated=bool(o.beside_x), **_axes(o, vec))
    config, division = kernel.launch_config(dim, row_vecs, o.sequences, o.snapshot_rows)
    return Launch.packed(kernel, config, **_numbers(o, vec), **division)


def _is_short(o: Operands) -> bool:
    is_whole = _tile_vector(o) * o.x.itemsize == MAX_VECTOR_BYTES
    most = SHORT if is_whole else SHORT // 2
    # Snapshots come out of the tiles in shared memory: on an H200 75 us instead of 95 for one sequence of 8192 tokens
    # with a snapshot every 64.
    dim, total = o.x.shape
    is_alone = o.sequences == 1 and dim <= FEW_CHANNELS * multiprocessors(o.x.device)
    pays = (total <= most * o.sequences and not is_alone) or (is_whole and o.snapshot_rows > 0)
    return o.weight.shape[1] in CausalConv1dVarlenShortrowsFwd.WIDTHS and pays and _snapshots_are_near(o)


def _snapshots_are_near(o: Operands) -> bool:
    """Whether offsets in the rows of snapshots, and of sequences if there are any, fit in 31 bits of bytes."""
    arrays = [] if o.snapshots is None else [each for each in (o.snapshots, o.query_start_loc) if each is not None]
    return all(min(each.strides) >= 0 and each.span[1] <= MAX_DIVIDEND for each in arrays)


def _snapshots_are_runs(o: Operands) -> bool:
    """Whether the columns of all channels of a snapshot are one run of aligned vectors of 16 bytes."""
    columns, pool = o.weight.shape[1] - 1, o.snapshot_out or o.conv_states
    if pool is None or (o.snapshot_out is not None and pool.shape[2] != columns):
        return False
    run = MAX_VECTOR_BYTES // pool.itemsize
    first = pool.first + (pool.shape[2] - columns) * pool.strides[2]
    is_dense = pool.strides[1] == columns and (columns == 1 or pool.strides[2] == 1)
    return is_dense and not any(quantity % run for quantity in (first, *pool.active(0)))


def _with_runs(o: Operands, kernel: CausalConv1dVarlenShortrowsFwd) -> CausalConv1dVarlenShortrowsFwd:
    """The kernel for short sequences where the columns of all channels of a state are one run of aligned vectors."""
    pool = o.conv_states
    if kernel.addressed or kernel.width not in SHORT_WIDTHS or pool is None or pool.itemsize > o.x.itemsize:
        return kernel
    (dim, total), columns = o.x.shape, kernel.width - 1
    is_run = pool.shape[2] == columns and dim % (MAX_VECTOR_BYTES // pool.itemsize) == 0 and _snapshots_are_runs(o)
    if not is_run:
        return kernel
    if total < 2 * o.sequences:
        return replace(kernel, singles=True)
    blocks = ceil_div(dim, WARP_SIZE) * ceil_div(total, kernel.tile)
    are_many = blocks > STAGED_BLOCKS * multiprocessors(o.x.device)
    return replace(kernel, staged=are_many and total <= STAGED * o.sequences)


def _tile_vector(o: Operands) -> int:
    """Elements of the widest vector along tokens when a tile begins at the same token in all rows."""
    quantities = [o.x.first, *o.x.active(0)]
    for out in o.outs:
        quantities += [out.first, *out.active(1, 2)]
    return widest_vector(o.x.itemsize, *quantities)


def _short_rows(o: Operands) -> Launch:
    dim, total = o.x.shape
    kernel = CausalConv1dVarlenShortrowsFwd(**_axes(o, _tile_vector(o)))
    kernel = _with_runs(o, kernel)
    config, division = kernel.launch_config(dim, total, o.sequences, o.snapshot_rows)
    numbers = _numbers(o, 1) | {"snapshots_are_packed": _snapshots_are_runs(o)}
    if kernel.singles:
        numbers |= filter_numbers(o.weight, o.bias, 2)
    return Launch.packed(kernel, config, **numbers, **division)


def _row_strips(o: Operands) -> Plan:
    dim, total = o.x.shape
    axes = _pool_axes(o, _tile_vector(o))
    kernel = CausalConv1dVarlenRowstripsFwd(follows=True, **axes)
    blocks = multiprocessors(o.x.device) * kernel.RESIDENT
    tiles = ceil_div(ceil_div(total, kernel.tile) * ceil_div(dim, WARP_SIZE), blocks)
    tokens = kernel.tile * min(tiles, MOST_TILES)
    first = CausalConv1dVarlenBorders(kernel.width, kernel.input_t, kernel.state_t)
    borders = ceil_div(total, tokens) - 1
    scratch, states_at = first.scratch(dim, borders)
    numbers = _numbers(o, 1, {"border_tokens": tokens, "border_states_at": states_at})
    launches = []
    if borders or o.snapshot_rows:
        config, division = first.launch_config(dim, borders, o.snapshot_rows)
        launches.append(Launch.packed(first, config, **numbers, **division))
    config, division = kernel.launch_config(dim, borders + 1)
    launches.append(Launch.packed(replace(kernel, follows=bool(launches)), config, **numbers, **division))
    return Plan(tuple(launches), scratch)


def _channel_vector(o: Operands) -> int:
    """Elements of the widest vector along the channels of x."""
    dim, _ = o.x.shape
    arrays = (o.x, *o.beside_x)
    if dim > 1 and any(each.strides[0] != 1 for each in arrays):
        return 1
    limit = channel_vector_bytes(o.x.itemsize, o.weight.shape[1])
    quantities = [quantity for each in arrays for quantity in (each.first, *each.active(1))]
    if o.payload is not None:
        if o.payload.shape[1] > 1 and o.payload.strides[1] != 1:
            return 1
        quantities += [o.payload.first, *o.payload.active(0), *ranges.ends(o.outs)]
    return widest_vector(o.x.itemsize, *quantities, dim, limit=limit)


def _pool_axes(o: Operands, vec: int) -> dict[str, Any]:
    """The template parameters that all kernels of packed sequences with results have."""
    return {
        "width": o.weight.shape[1],
        "input_t": o.x.dtype,
        "weight_t": o.weight.dtype,
        "state_t": (o.states or o.snapshot_out or o.x).dtype,
        "vec": vec,
        "silu": o.silu,
    }


def _axes(o: Operands, vec: int) -> dict[str, Any]:
    """The template parameters of kernels with leaner variants for states that are addressed by sequence alone."""
    return {
        **_pool_axes(o, vec),
        "addressed": o.keeps_padding or any((o.state_column, o.dst_state_indices, o.initial_states, o.snapshots)),
    }


def _numbers(o: Operands, vec: int, borders: Mapping[str, int] = NO_BORDERS) -> dict[str, object]:
    """The fields of CausalConv1dVarlenOperands behind the pointers."""
    *_, dim, total = o.x.shape
    states = o.states
    first_column = 0 if states is None else states.shape[2] - (o.weight.shape[1] - 1)
    return {
        "x_stride": o.x.strides[-2:],
        "conv_states_stride": strides_or_zeros(states, 3),
        "has_initial_state_stride": strides_or_zeros(o.has_initial_state, 1)[0],
        "total": total,
        "slots": states.shape[0] if states else 0,
        "first_column": first_column,
        "pad_slot_id": pad_number(o.pad_slot_id, o.cache_indices or o.dst_state_indices),
        "sequences": o.sequences,
        "dim": dim,
        "has_states": states is not None,
        "states_are_packed": states is not None and states_are_packed(states, first_column, vec),
        "keeps_padding": o.keeps_padding,
        **filter_numbers(o.weight, o.bias, vec),
        **ranges.numbers(o.outs, vec),
        **index_numbers(query_start_loc=o.query_start_loc, cache_indices=o.cache_indices),
        **slots.numbers(o.cache_indices, o.state_column, o.dst_state_indices),
        **_snapshot_numbers(o, first_column, vec),
        "pre_gate_stride": strides_or_zeros(o.pre_gate, 2),
        "post_gate_stride": strides_or_zeros(o.post_gate, 2),
        "residual_stride": strides_or_zeros(o.residual, 2),
        "payload_stride": strides_or_zeros(o.payload, 2),
        "payload_gates_stride": [stride for gate in o.payload_gates for stride in gate.strides] or [0] * 4,
        "payload_heads": o.payload_gates[0].shape[1] if o.payload_gates else 0,
        **borders,
    }


def _snapshot_numbers(o: Operands, first_column: int, vec: int) -> dict[str, object]:
    """The fields of that struct for snapshots, which have the columns of final states in a pool, otherwise all
    columns."""
    first = first_column if o.snapshot_out is None else 0
    pool = o.snapshot_out or o.conv_states
    return {
        "snapshot_first_column": first,
        "snapshot_columns": o.weight.shape[1] - 1 if o.snapshot_out is None else o.snapshot_out.shape[2],
        "snapshots_are_packed": pool is not None and states_are_packed(pool, first, vec),
        **slots.snapshot_numbers(o.snapshots, o.snapshot_count, o.conv_states, o.snapshot_out, o.pad_slot_id),
    }
