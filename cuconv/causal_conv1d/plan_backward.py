"""Which kernels compute the gradients of a convolution, and how: a pure function of layouts."""

from __future__ import annotations

from typing import Any, NamedTuple

from cuconv.causal_conv1d.kernels import channel_vector_bytes, taps_are_packed
from cuconv.causal_conv1d.kernels_backward import (
    CausalConv1dBulkBwd,
    CausalConv1dBwd,
    CausalConv1dBwdSum,
    CausalConv1dRowpartsBwd,
)
from cuconv.causal_conv1d.kernels_channels_backward import (
    CausalConv1dChannelcolumnsBwd,
    CausalConv1dChannellastBwd,
    CausalConv1dChannelpairsBwd,
    CausalConv1dChannelroundsBwd,
    CausalConv1dFewchannelsBwd,
)
from cuconv.causal_conv1d.kernels_varlen_backward import (
    CausalConv1dBwdStates,
    CausalConv1dChannellastVarlenBwd,
    CausalConv1dShortrowsBwd,
)
from cuconv.runtime.dtypes import FLOAT32, INT64, DType
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import MAX_VECTOR_BYTES, WARP_SIZE, LaunchConfig, ceil_div, widest_vector
from cuconv.runtime.layout import Layout, dense, is_channel_last, pad_number
from cuconv.runtime.machine import has_shared_memory, multiprocessors
from cuconv.runtime.plan import Launch, Plan


class Operands(NamedTuple):
    """The layouts of one valid call; None stands for an argument that is absent.

    Packed sequences are one batch entry: x, dout and dx are (1, dim, total).
    """

    x: Layout
    weight: Layout
    bias: Layout | None
    dout: Layout
    seq_idx: Layout | None
    initial_states: Layout | None
    dfinal_states: Layout | None
    query_start_loc: Layout | None
    cache_indices: Layout | None
    has_initial_state: Layout | None
    dx: Layout
    dweight: Layout
    dbias: Layout | None
    dinitial_states: Layout | None
    silu: bool
    packed: bool
    pad_slot_id: int

    @property
    def width(self) -> int:
        """Filter taps."""
        return self.weight.shape[1]

    @property
    def sequences(self) -> int:
        """Packed sequences, empty ones included."""
        return 1 if self.query_start_loc is None else self.query_start_loc.shape[0] - 1


class _Main(NamedTuple):
    """The kernel that reads x and dout and writes dx, and its launch."""

    kernel: Kernel
    config: LaunchConfig
    division: dict[str, Any]
    parts: int
    vec: int
    dout_is_packed: bool


def plan(o: Operands) -> Plan:
    """The launches that compute a call: gradients of x, then the sums of what its blocks have left, and gradients of
    states."""
    dim = o.x.shape[1]
    if dim == 0:
        return Plan()
    main = _main(o)
    numbers = _numbers(o, main)
    launches = [_launch(main.kernel, main.config, numbers | main.division)]
    scratch = main.parts * (o.width + 1) * dim * FLOAT32.itemsize if main.parts > 1 else 0
    has_states = isinstance(main.kernel, (CausalConv1dShortrowsBwd, CausalConv1dChannellastVarlenBwd))
    if o.packed and not has_states and o.dinitial_states is not None and o.dinitial_states.size > 0:
        states = CausalConv1dBwdStates(o.width, _dtype(o.x), _dtype(o.weight), o.silu)
        config, division = states.launch_config(dim, o.sequences, main.parts)
        launches.append(_launch(states, config, numbers | division))
    elif main.parts > 1:
        added = CausalConv1dBwdSum(o.width, _dtype(o.weight))
        config, division = added.launch_config(dim, main.parts)
        launches.append(_launch(added, config, numbers | division))
    return Plan(tuple(launches), scratch)


def _launch(kernel: Kernel, config: LaunchConfig, numbers: dict[str, Any]) -> Launch:
    """A launch with the numbers that the kernel's argument struct has."""
    return Launch.packed(kernel, config, **{name: numbers[name] for name in kernel.params.numbers.names or ()})


def _main(o: Operands) -> _Main:
    channel_last = is_channel_last(o.x), is_channel_last(o.dx)
    if all(channel_last):
        vec = _channel_vector(o)
        is_packed = (o.dout.shape[1] == 1 or o.dout.strides[1] == 1) and not any(
            quantity % vec for quantity in (o.dout.first, *o.dout.active(0, 2))
        )
        return _channel_last(o, vec, is_packed)
    if not any(channel_last) and _has_contiguous_rows(o.x) and _has_contiguous_rows(o.dx):
        return _channel_first(o)
    # There is no common vector, so lanes run along the axis that is denser in x.
    if abs(o.x.strides[1]) < abs(o.x.strides[2]):
        return _channel_last(o, 1, True)
    return _rows(o, 1, max(1, o.x.shape[2]), True)


def _has_contiguous_rows(layout: Layout) -> bool:
    return layout.shape[2] <= 1 or layout.strides[2] == 1


def _channel_vector(o: Operands) -> int:
    quantities = [o.x.first, o.dx.first, *o.x.active(0, 2), *o.dx.active(0, 2)]
    limit = channel_vector_bytes(o.x.itemsize, o.width)
    return widest_vector(o.x.itemsize, o.x.shape[1], *quantities, limit=limit)


def _channel_last(o: Operands, vec: int, dout_is_packed: bool) -> _Main:
    axes, (batch, dim, seqlen) = _axes(o, vec), o.x.shape
    plain = _few_channels(o) or _channel_pairs(o)
    if plain is not None:
        return plain
    kernel: CausalConv1dChannellastBwd | CausalConv1dChannellastVarlenBwd
    if axes.pop("packed"):
        del axes["seq_idx"]
        tokens = CausalConv1dChannellastVarlenBwd.tokens_for(o.width, o.x.itemsize)
        kernel = CausalConv1dChannellastVarlenBwd(tokens=tokens, **axes)
        launch = kernel.launch_config(dim, seqlen)
    else:
        tokens = CausalConv1dChannellastBwd.tokens_for(o.width)
        block = CausalConv1dChannellastBwd.block_for(o.width, vec, o.x.shape, multiprocessors(o.x.device))
        kernel = CausalConv1dChannellastBwd(tokens=tokens, block=block, **axes)
        launch = kernel.launch_config(batch, dim, seqlen)
    return _Main(kernel, *launch, vec, dout_is_packed)


def _few_channels(o: Operands) -> _Main | None:
    """The launch that takes contiguous rows of few channels, unless the call has something that it does not take."""
    kind, (batch, dim, seqlen) = CausalConv1dFewchannelsBwd, o.x.shape
    axes = _axes(o, kind.VECTOR_BYTES // o.x.itemsize)
    vec = axes["vec"]
    vecs, rest = divmod(dim, vec)
    if o.width > kind.MAX_WIDTH or axes["packed"] or axes["seq_idx"] or axes["states"] or vecs not in kind.VECS or rest:
        return None
    arrays = o.x, o.dout, o.dx
    is_aligned = not any(quantity % (2 * vec) for each in arrays for quantity in (each.first, *each.active(0)))
    if not o.x.size or not is_aligned or any(each.strides[1:] != (1, dim) for each in arrays):
        return None
    kernel = kind(o.width, _dtype(o.x), _dtype(o.weight), vecs, o.silu)
    config, division, parts = kernel.launch_config(batch, seqlen, multiprocessors(o.x.device))
    if not kernel.takes(division):
        return None
    division["row_stride"] = tuple(each.strides[0] for each in arrays)
    return _Main(kernel, config, division, parts, vec, True)


def _channel_pairs(o: Operands) -> _Main | None:
    """The launch that takes two vectors of channels at a time, unless the call has something that it does not take."""
    batch, dim, seqlen = o.x.shape
    axes = _axes(o, CausalConv1dChannelpairsBwd.VECTOR_BYTES // o.x.itemsize)
    vec = axes["vec"]
    if o.width > CausalConv1dChannelpairsBwd.MAX_WIDTH or axes["packed"] or axes["seq_idx"] or axes["states"]:
        return None
    if not o.x.size or dim % (2 * vec) or seqlen % CausalConv1dChannelpairsBwd.TOKENS:
        return None
    quantities = [q for each in (o.x, o.dout, o.dx) for q in (each.first, *each.active(0, 2))]
    if o.dout.strides[1] != 1 or any(quantity % (2 * vec) for quantity in quantities):
        return None
    processors = multiprocessors(o.x.device)
    whole = _channel_columns(o, processors) or _channel_rounds(o, processors)
    if whole is not None:
        return whole
    kernel = CausalConv1dChannelpairsBwd.suited(o.width, _dtype(o.x), _dtype(o.weight), o.silu, o.x.shape, processors)
    config, division, parts = kernel.launch_config(batch, dim, seqlen)
    if not kernel.takes(dim, division):
        return None
    for name, layout in (("x", o.x), ("dout", o.dout), ("dx", o.dx)):
        row, token = (layout.strides[axis] * layout.itemsize for axis in (0, 2))
        division[f"{name}_bytes"] = (row, token, 2 * token, row - seqlen * token)
    return _Main(kernel, config, division, parts, vec, True)


def _channel_columns(o: Operands, processors: int) -> _Main | None:
    """The launch of CausalConv1dChannelcolumnsBwd: channels that fill the multiprocessors with one block each, in rows
    without gaps between them; None where it does not fit."""
    arrays, (batch, dim, seqlen) = (o.x, o.dout, o.dx), o.x.shape
    kernel = CausalConv1dChannelcolumnsBwd(o.width, _dtype(o.x), _dtype(o.weight), o.silu)
    access = kernel.ACCESS_BYTES // o.x.itemsize
    has_gaps = batch > 1 and any(each.strides[0] != seqlen * each.strides[2] for each in arrays)
    if has_gaps or not has_shared_memory(o.x.device, kernel.SHARED_BYTES):
        return None
    token_bytes = tuple(each.strides[2] * each.itemsize for each in arrays)
    is_aligned = not any(quantity % access for each in arrays for quantity in (each.first, *each.active(2)))
    if not is_aligned or not all(0 <= each < 2**32 for each in token_bytes):
        return None
    launch = kernel.launch_config(batch, dim, seqlen, processors)
    if launch is None:
        return None
    config, division = launch
    return _Main(kernel, config, division | {"token_bytes": token_bytes}, 1, kernel.vec, True)


def _channel_rounds(o: Operands, processors: int) -> _Main | None:
    """The launch of CausalConv1dChannelroundsBwd: many tokens in rows without gaps between them; None where it does not
    fit."""
    arrays, (batch, dim, seqlen) = (o.x, o.dout, o.dx), o.x.shape
    kernel = CausalConv1dChannelroundsBwd(o.width, _dtype(o.x), _dtype(o.weight), o.silu)
    if batch > 1 and any(each.strides[0] != seqlen * each.strides[2] for each in arrays):
        return None
    launch = kernel.launch_config(batch, dim, seqlen, processors)
    if launch is None:
        return None
    config, division, parts = launch
    division |= kernel.bytes_apart(division, tuple(each.strides[2] * each.itemsize for each in arrays))
    return _Main(kernel, config, division, parts, kernel.vec, True)


def _channel_first(o: Operands) -> _Main:
    # A row's vectors start where its memory is aligned, wherever the row begins. So x and dx must be equally far from
    # alignment, and so must dout if it is to be read as vectors.
    vec = widest_vector(o.x.itemsize, *_differences(o.x, o.dx))
    aligned = widest_vector(o.x.itemsize, o.x.first, *o.x.active(0, 1))
    is_packed = _has_contiguous_rows(o.dout) and not any(each % vec for each in _differences(o.x, o.dout))
    overhang = 0 if vec <= aligned else vec - 1
    if is_packed and overhang == 0 and _is_short(o, vec):
        return _short_rows(o, vec)
    if is_packed and _is_plain(o, vec if overhang == 0 else 1):
        sizes = o.x.shape[0], o.x.shape[1], o.x.shape[2] // vec
        parts = _row_parts(o, vec, sizes)
        if parts is not None:
            return parts
        if CausalConv1dBulkBwd.takes(sizes[0], sizes[2]):
            return _bulk(o, vec, sizes)
    return _rows(o, vec, max(1, ceil_div(o.x.shape[2] + overhang, vec)), is_packed)


def _differences(a: Layout, b: Layout) -> list[int]:
    strides = zip(a.active(0, 1), b.active(0, 1), strict=True)
    return [a.first - b.first, *(one - other for one, other in strides)]


def _is_plain(o: Operands, vec: int) -> bool:
    """Whether rows are sequences without states, and of whole aligned accesses of `vec` elements."""
    is_plain = o.seq_idx is None and not o.packed and o.initial_states is None and o.dfinal_states is None
    return is_plain and vec * o.x.itemsize == MAX_VECTOR_BYTES and o.x.shape[2] % vec == 0


def _is_short(o: Operands, vec: int) -> bool:
    """Whether packed rows, with accesses of `vec` aligned elements, are worth walks along several channels."""
    _, dim, total = o.x.shape
    if not o.packed or o.width not in CausalConv1dShortrowsBwd.WIDTHS:
        return False
    is_whole = vec * o.x.itemsize == MAX_VECTOR_BYTES and total % vec == 0
    return is_whole and dim >= WARP_SIZE and 0 < total <= o.sequences * CausalConv1dShortrowsBwd.MAX_LENGTH


def _short_rows(o: Operands, vec: int) -> _Main:
    kernel = CausalConv1dShortrowsBwd(o.width, _dtype(o.x), _dtype(o.weight), o.silu, _axes(o, vec)["states"])
    return _Main(kernel, *kernel.launch_config(o.x.shape[1], o.x.shape[2]), vec, True)


def _row_parts(o: Operands, vec: int, sizes: tuple[int, int, int]) -> _Main | None:
    """The launch of short blocks, unless the call has something that they do not take."""
    if o.width not in CausalConv1dRowpartsBwd.WIDTHS or not o.x.size or not CausalConv1dRowpartsBwd.takes(*sizes):
        return None
    steps = {
        f"{name}_vecs": tuple(layout.strides[axis] // vec if layout.shape[axis] > 1 else 0 for axis in (0, 1))
        for name, layout in (("x", o.x), ("dout", o.dout), ("dx", o.dx))
    }
    if not all(0 <= step < 2**32 for each in steps.values() for step in each):
        return None
    if not taps_are_packed(o.weight, o.bias, 1):
        return None
    kernel = CausalConv1dRowpartsBwd.suited(o.width, _dtype(o.x), _dtype(o.weight), o.silu, sizes)
    config, division, parts = kernel.launch_config(*sizes)
    return _Main(kernel, config, {**division, **steps}, parts, vec, True)


def _bulk(o: Operands, vec: int, sizes: tuple[int, int, int]) -> _Main:
    batch, dim, row_vecs = sizes
    groups = CausalConv1dBulkBwd.groups_for(batch, dim, row_vecs)
    kernel = CausalConv1dBulkBwd(o.width, _dtype(o.x), _dtype(o.weight), groups, o.silu)
    return _Main(kernel, *kernel.launch_config(batch, dim, row_vecs), vec, True)


def _rows(o: Operands, vec: int, row_vecs: int, dout_is_packed: bool) -> _Main:
    batch, dim, seqlen = o.x.shape
    stages = CausalConv1dBwd.stages_for(batch, dim, seqlen * o.x.itemsize, o.packed)
    kernel = CausalConv1dBwd(stages=stages, edges=row_vecs * vec != seqlen, **_axes(o, vec))
    # Where arrays have no gaps, vectors may be read whole though they reach into neighbouring rows.
    is_dense = dout_is_packed and all(_has_no_gaps(each) for each in (o.x, o.dout))
    config, division, parts = kernel.launch_config(batch, dim, row_vecs, is_dense)
    return _Main(kernel, config, division, parts, vec, dout_is_packed)


def _has_no_gaps(layout: Layout) -> bool:
    packed = dense(layout.shape, (0, 1, 2), layout)
    return layout.active(0, 1, 2) == packed.active(0, 1, 2)


def _is_packed(states: Layout | None, vec: int) -> bool:
    """Whether `vec` channels of a state's column are one aligned access."""
    if states is None:
        return True
    is_dense = states.shape[1] == 1 or states.strides[1] == 1
    return is_dense and not any(quantity % vec for quantity in (states.first, *states.active(0, 2)))


def _dtype(layout: Layout) -> DType:
    assert isinstance(layout.dtype, DType)
    return layout.dtype


def _axes(o: Operands, vec: int) -> dict[str, Any]:
    return {
        "width": o.width,
        "input_t": o.x.dtype,
        "weight_t": o.weight.dtype,
        "vec": vec,
        "silu": o.silu,
        "seq_idx": o.seq_idx is not None,
        "packed": o.packed,
        "states": o.width > 1 and (o.initial_states is not None or o.dfinal_states is not None),
    }


def _numbers(o: Operands, main: _Main) -> dict[str, Any]:
    batch, dim, seqlen = o.x.shape

    def strides(layout: Layout | None, rank: int) -> tuple[int, ...]:
        return (0,) * rank if layout is None else layout.strides

    def stride(layout: Layout | None) -> int:
        return 0 if layout is None else layout.strides[0]

    def is_float32(layout: Layout | None) -> bool:
        return layout is not None and layout.dtype is FLOAT32

    def is_int64(layout: Layout | None) -> bool:
        return layout is not None and layout.dtype is INT64

    states = o.initial_states
    return {
        "x_stride": o.x.strides,
        "dout_stride": o.dout.strides,
        "dx_stride": o.dx.strides,
        "weight_stride": o.weight.strides,
        "bias_stride": stride(o.bias),
        "dweight_stride": o.dweight.strides,
        "dbias_stride": stride(o.dbias),
        "seq_idx_stride": strides(o.seq_idx, 2),
        "initial_states_stride": strides(states, 3),
        "dfinal_states_stride": strides(o.dfinal_states, 3),
        "dinitial_states_stride": strides(o.dinitial_states, 3),
        "query_start_loc_stride": stride(o.query_start_loc),
        "cache_indices_stride": stride(o.cache_indices),
        "has_initial_state_stride": stride(o.has_initial_state),
        "slots": 0 if states is None else states.shape[0],
        "pad_slot_id": pad_number(o.pad_slot_id, o.cache_indices),
        "first_column": 0 if states is None else states.shape[2] - (o.width - 1),
        "sequences": o.sequences,
        "batch": batch,
        "dim": dim,
        "seqlen": seqlen,
        "total": seqlen,
        "bias_is_float32": is_float32(o.bias),
        "dweight_is_float32": is_float32(o.dweight),
        "dbias_is_float32": is_float32(o.dbias),
        "states_are_float32": is_float32(states),
        "dfinal_states_are_float32": is_float32(o.dfinal_states),
        "taps_are_packed": taps_are_packed(o.weight, o.bias, main.vec),
        "dout_is_packed": main.dout_is_packed,
        "has_states": states is not None,
        "states_are_packed": all(_is_packed(each, main.vec) for each in (states, o.dfinal_states, o.dinitial_states)),
        "query_start_loc_is_int64": is_int64(o.query_start_loc),
        "cache_indices_is_int64": is_int64(o.cache_indices),
    }
