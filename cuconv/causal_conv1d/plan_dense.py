"""The plan of a convolution of whole sequences: its kernel and launch, as a pure function of layouts."""

from __future__ import annotations

from typing import Any, NamedTuple

from cuconv.causal_conv1d.kernels import (
    GATED_LANE_VECS,
    MAX_LANE_VECS,
    ODD_CHANNELS,
    ODD_LANES,
    ODD_TOKENS,
    ODD_WIDTHS,
    WIDE_WIDTHS,
    CausalConv1dChannellastFwd,
    CausalConv1dChannellastWideFwd,
    CausalConv1dFwd,
    CausalConv1dOddchannelsFwd,
    CausalConv1dOddseqFwd,
    CausalConv1dShortseqFwd,
    CausalConv1dWideFwd,
    CausalConv1dWideshortFwd,
    WideKernel,
    channel_vector_bytes,
    filter_numbers,
    lane_vecs_for,
    share_odd_channels,
    small_lane_vecs,
    small_tile_tokens,
)
from cuconv.runtime.launch import MAX_DIVIDEND, MAX_VECTOR_BYTES, WARP_SIZE, ceil_div, widest_vector
from cuconv.runtime.layout import Layout, is_channel_last, strides_or_zeros
from cuconv.runtime.machine import multiprocessors
from cuconv.runtime.plan import Launch, Plan

DENSE_WARPS = 8
"""Warps per multiprocessor, for each byte of an element, below which lanes have two vectors at most. With two and with
four, 8 x 512 x 512 in float32, 31 warps, takes 4.28 and 4.67 us on an H200, 1 x 2048 x 1024 4.36 and 4.60, 1 x 2048 x
2048, 62 warps, 7.43 and 7.13. In bfloat16 1 x 2048 x 1024, 15.5 warps, takes 3.20 and 3.13, or 4.03 and 4.32 where
inputs come from memory.
"""

FEW_VECTORS = 48
"""Vectors per row below which unaligned rows that lie end to end are taken as one row: the ends of an unaligned row are
moved element by element, which costs more in a shorter row (measured on an H200)."""

SHIFTED_TOKENS = 128
"""Tokens from which rows of x that are at another distance from alignment than results are shifted. On an H200 that
takes 61.6 us instead of 78.4 with 130 tokens of 16 bits, and 77 instead of 198 with 2048, but 107 instead of 82 with
64, and 50.0 instead of 43.5 with 66 of float32.
"""

MANY_ELEMENTS, BUSY_LANES = 2**22, 0.8
"""Elements of x, and the fraction of lanes with channels, from which tokens that begin at any element are assembled
from aligned vectors: on an H200 that takes 71.3 us instead of 111 for 8 x 4097 x 2048, 20.5 instead of 29.6 for 2 x
4097 x 2048, and 7.9 instead of 9.2 for 1 x 2049 x 2048, but 5.0 instead of 4.0 for 2 x 515 x 1024.
"""

FEW_ELEMENTS = 2**14
"""Elements of x up to which such tokens are also assembled from aligned vectors, where tokens of x lie end to end and
those of the results do not. Such calls are rare and short; by them small tests reach the kernel.
"""


BUSY_WARP = 0.75
"""The fraction of a warp's lanes with vectors from which short rows of wide filters are walked."""


class Operands(NamedTuple):
    """The layouts of one valid call; None stands for an argument that is absent."""

    x: Layout
    """(batch, dim, seqlen)."""
    weight: Layout
    """(dim, width)."""
    bias: Layout | None
    """(dim,)."""
    seq_idx: Layout | None
    """(batch, seqlen)."""
    initial_states: Layout | None
    """(batch, dim, width - 1)."""
    out: Layout
    """(batch, dim, seqlen)."""
    final_states: Layout | None
    """(batch, dim, width - 1)."""
    silu: bool
    """Whether SiLU follows the sum."""
    pre_gate: Layout | None = None
    """(batch, dim, seqlen)."""
    post_gate: Layout | None = None
    """(batch, dim, seqlen)."""
    residual: Layout | None = None
    """(batch, dim, seqlen)."""

    @property
    def beside_x(self) -> tuple[Layout, ...]:
        """The gates and the residual that are given."""
        return tuple(each for each in (self.pre_gate, self.post_gate, self.residual) if each is not None)


def plan(o: Operands) -> Plan:
    """The launch that computes a call."""
    launch = _launch(o)
    return Plan() if launch is None else Plan((launch,))


def _launch(o: Operands) -> Launch | None:
    batch, dim, seqlen = o.x.shape
    has_final = o.final_states is not None and o.final_states.size > 0
    if batch * dim == 0 or (seqlen == 0 and not has_final):
        return None
    arrays = (o.x, o.out, *o.beside_x)
    channel_last = [is_channel_last(each) for each in arrays]
    if all(channel_last):
        if _is_wide(o, 1, 0, 2):
            return _wide_channels(o)
        vec = _channel_last_vector(o)
        return _odd_channels(o) if _prefers_odd(o, vec) else _channel_last(o, vec)
    if not any(channel_last) and all(map(_has_contiguous_rows, arrays)):
        return _channel_first(o)
    # There is no common vector, so lanes run along the axis that is denser in x.
    if abs(o.x.strides[1]) < abs(o.x.strides[2]):
        return _channel_last(o, 1)
    return _rows(o, vec=1, row_vecs=max(1, seqlen))


def _has_contiguous_rows(layout: Layout) -> bool:
    return layout.shape[2] <= 1 or layout.strides[2] == 1


def _channel_last_vector(o: Operands) -> int:
    quantities = [number for each in (o.x, o.out, *o.beside_x) for number in (each.first, *each.active(0, 2))]
    limit = channel_vector_bytes(o.x.itemsize, o.weight.shape[1])
    return widest_vector(o.x.itemsize, o.x.shape[1], *quantities, limit=limit)


def _channel_last(o: Operands, vec: int) -> Launch:
    batch, dim, seqlen = o.x.shape
    processors = multiprocessors(o.x.device)
    tokens = small_tile_tokens(o.x.itemsize, o.weight.shape[1], ceil_div(dim, vec), batch * seqlen, processors)
    kernel = CausalConv1dChannellastFwd(tokens=tokens, gated=bool(o.beside_x), **_axes(o, vec))
    config, division = kernel.launch_config(*o.x.shape)
    return Launch.packed(kernel, config, **_numbers(o, vec), **division)


def _prefers_odd(o: Operands, vec: int) -> bool:
    """Whether to assemble vectors from aligned ones, instead of having `vec` channels per thread."""
    dim = o.x.shape[1]
    if o.x.itemsize != 2 or vec >= ODD_CHANNELS or o.weight.shape[1] not in ODD_WIDTHS or o.beside_x:
        return False
    blocks, lanes = share_odd_channels(dim)
    is_large = o.x.size >= MANY_ELEMENTS and lanes >= BUSY_LANES * blocks * ODD_LANES
    # A vector at the end of a token also holds elements of the next one, or of the gap between them; these are not
    # used.
    steps = [abs(stride) for each in (o.x, o.out) for stride in each.active(2)]
    is_inside = 2 * ODD_CHANNELS <= dim <= MAX_DIVIDEND // 8 and all(dim <= step for step in steps)
    is_small = o.x.size <= FEW_ELEMENTS and o.x.active(2) in ([], [dim], [-dim]) and o.out.active(2) != [dim]
    return is_inside and (is_large or is_small)


def _odd_channels(o: Operands) -> Launch:
    kernel = CausalConv1dOddchannelsFwd(tokens=ODD_TOKENS, **_axes(o, ODD_CHANNELS)).with_most_tokens(o.x.shape[2])
    config, division = kernel.launch_config(*o.x.shape)
    _, dim, seqlen = o.x.shape
    entry, _, step = o.x.strides
    is_in_order = seqlen >= kernel.width + kernel.tokens and step > 0 and entry >= (seqlen - 1) * step + dim
    return Launch.packed(kernel, config, **_numbers(o, ODD_CHANNELS), **division, is_in_order=is_in_order)


def _is_wide(o: Operands, axis: int, *others: int) -> bool:
    """Whether there is a kernel of wide filters for this filter, along this axis of x."""
    if o.weight.shape[1] not in WIDE_WIDTHS or o.seq_idx is not None or o.beside_x:
        return False
    quantities = [number for each in (o.x, o.out) for number in (each.first, *each.active(*others))]
    return widest_vector(o.x.itemsize, o.x.shape[axis], *quantities) == WideKernel.VEC


def _wide_channels(o: Operands) -> Launch:
    batch, dim, seqlen = o.x.shape
    kernel = CausalConv1dChannellastWideFwd(**_wide_axes(o))
    tokens = kernel.walk_tokens(batch, dim, seqlen, multiprocessors(o.x.device))
    config, division = kernel.launch_config(batch, dim, seqlen, tokens)
    return Launch.packed(kernel, config, **_numbers(o, kernel.constants["kVec"]), **division)


def _wide_rows(o: Operands, row_vecs: int) -> Launch:
    batch, dim, _ = o.x.shape
    kernel = CausalConv1dWideFwd(lane_vecs=CausalConv1dWideFwd.lane_vecs_for(row_vecs), **_wide_axes(o))
    config, division = kernel.launch_config(batch, dim, row_vecs)
    return Launch.packed(kernel, config, **_numbers(o, 1), **division)


def _channel_first(o: Operands) -> Launch:
    # The vectors of a row start where its memory is aligned, wherever the row begins. So rows of x and of out must be
    # equally far from alignment.
    differences = []
    for each in (o.out, *o.beside_x):
        differences.append(o.x.first - each.first)
        differences += [a - b for axis in (0, 1) for a, b in zip(o.x.active(axis), each.active(axis), strict=True)]
    vec = widest_vector(o.x.itemsize, *differences)
    seqlen = o.x.shape[2]
    if _prefers_shifted(o, vec):
        return _shifted_rows(o)
    aligned = widest_vector(o.x.itemsize, o.x.first, *o.x.active(0, 1))
    if vec > aligned and seqlen < FEW_VECTORS * vec:
        end_to_end = 1 if o.beside_x else _end_to_end_vector(o)
        if end_to_end > aligned:
            return _end_to_end(o, end_to_end)
        vec = max(aligned, vec // 2 if seqlen >= 4 * vec else 1)
    overhang = 0 if vec <= aligned else vec - 1
    return _rows(o, vec, max(1, ceil_div(seqlen + overhang, vec)))


def _prefers_shifted(o: Operands, vec: int) -> bool:
    """Whether to shift vectors of x to the alignment of the results, instead of having vectors of `vec` elements."""
    widest = MAX_VECTOR_BYTES // o.x.itemsize
    return 2 * vec < widest and o.x.shape[2] >= SHIFTED_TOKENS and not o.beside_x


def _shifted_rows(o: Operands) -> Launch:
    batch, dim, seqlen = o.x.shape
    vec = MAX_VECTOR_BYTES // o.x.itemsize
    overhang = 0 if widest_vector(o.x.itemsize, o.out.first, *o.out.active(0, 1)) == vec else vec - 1
    row_vecs = ceil_div(seqlen + overhang, vec)
    kernel = CausalConv1dFwd(lane_vecs=lane_vecs_for(row_vecs), shifted=True, **_axes(o, vec))
    config, division = kernel.launch_config(batch, dim, row_vecs)
    return Launch.packed(kernel, config, **_numbers(o, vec), **division)


def _end_to_end_vector(o: Operands) -> int:
    """Elements of the widest vector for a batch entry taken as one row; 1 if it cannot be."""
    _, dim, seqlen = o.x.shape
    if dim * seqlen > MAX_DIVIDEND or any(dim > 1 and layout.strides[1] != seqlen for layout in (o.x, o.out)):
        return 1
    starts = [o.x.first, o.out.first, *o.x.active(0), *o.out.active(0)]
    vec = widest_vector(o.x.itemsize, *starts)
    while vec > seqlen:
        vec //= 2
    return vec


def _end_to_end(o: Operands, vec: int) -> Launch:
    kernel = CausalConv1dOddseqFwd(lane_vecs=min(o.x.shape[0], 2), **_axes(o, vec))
    config, division = kernel.launch_config(*o.x.shape)
    return Launch.packed(kernel, config, **_numbers(o, vec), **division)


def _rows(o: Operands, vec: int, row_vecs: int) -> Launch:
    batch, dim, _ = o.x.shape
    kernel: CausalConv1dFwd | CausalConv1dShortseqFwd
    if vec == WideKernel.VEC and _is_wide(o, 2, 0, 1):
        if not _prefers_short(batch, dim, row_vecs, WARP_SIZE):
            return _wide_rows(o, row_vecs)
        if (launch := _wide_short_rows(o, row_vecs)) is not None:
            return launch
    if not o.beside_x and _prefers_short(batch, dim, row_vecs):
        kernel = CausalConv1dShortseqFwd(lane_vecs=min(batch, 2), **_axes(o, vec))
    else:
        gated = bool(o.beside_x)
        some, most = DENSE_WARPS * o.x.itemsize, GATED_LANE_VECS if gated else MAX_LANE_VECS
        lane_vecs = small_lane_vecs(row_vecs, batch * dim, multiprocessors(o.x.device), some, most)
        kernel = CausalConv1dFwd(lane_vecs=lane_vecs, gated=gated, **_axes(o, vec))
    config, division = kernel.launch_config(batch, dim, row_vecs)
    return Launch.packed(kernel, config, **_numbers(o, vec), **division)


def _wide_short_rows(o: Operands, row_vecs: int) -> Launch | None:
    """The launch that walks batch entries, unless there are states, many idle lanes or few batch entries."""
    axes = _wide_axes(o)
    if axes.pop("states") or row_vecs > WARP_SIZE or WARP_SIZE % row_vecs > WARP_SIZE * (1 - BUSY_WARP):
        return None
    batch, dim, _ = o.x.shape
    kernel = CausalConv1dWideshortFwd(**axes)
    entries = kernel.entries(batch, dim, row_vecs, multiprocessors(o.x.device))
    if entries not in kernel.ENTRIES:
        return None
    config, division = kernel.launch_config(batch, dim, row_vecs, entries)
    return Launch.packed(kernel, config, **_numbers(o, 1), **division)


def _prefers_short(batch: int, dim: int, row_vecs: int, at_most: int = 2 * WARP_SIZE) -> bool:
    """Whether rows are so short that too many lanes would idle with one warp per row, as with `at_most` vectors."""
    if dim * row_vecs > MAX_DIVIDEND:
        return False
    if batch * dim * ceil_div(row_vecs, WARP_SIZE) > MAX_DIVIDEND:
        return True
    busy = row_vecs / (ceil_div(row_vecs, WARP_SIZE) * WARP_SIZE)
    if batch == 1:
        return busy <= 0.5 and row_vecs <= WARP_SIZE
    return busy < 0.75 or row_vecs <= at_most


def _axes(o: Operands, vec: int) -> dict[str, Any]:
    """The template parameters that all kernels of whole sequences have."""
    return {**_wide_axes(o), "vec": vec, "seq_idx": o.seq_idx is not None}


def _wide_axes(o: Operands) -> dict[str, Any]:
    """The template parameters that all kernels of wide filters have."""
    width = o.weight.shape[1]
    return {
        "width": width,
        "input_t": o.x.dtype,
        "weight_t": o.weight.dtype,
        "silu": o.silu,
        "states": width > 1 and (o.initial_states is not None or o.final_states is not None),
    }


def _numbers(o: Operands, vec: int) -> dict[str, object]:
    """The fields of CausalConv1dOperands behind the pointers."""
    batch, dim, seqlen = o.x.shape
    return {
        "x_stride": o.x.strides,
        "out_stride": o.out.strides,
        "initial_states_stride": strides_or_zeros(o.initial_states, 3),
        "final_states_stride": strides_or_zeros(o.final_states, 3),
        "seq_idx_stride": strides_or_zeros(o.seq_idx, 2),
        "pre_gate_stride": strides_or_zeros(o.pre_gate, 3),
        "post_gate_stride": strides_or_zeros(o.post_gate, 3),
        "residual_stride": strides_or_zeros(o.residual, 3),
        "seqlen": seqlen,
        "batch": batch,
        "dim": dim,
        **filter_numbers(o.weight, o.bias, vec),
    }
