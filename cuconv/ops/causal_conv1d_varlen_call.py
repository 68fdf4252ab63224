"""What the public functions on packed sequences share: the checks of their arguments, and running them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cuconv import arrays, checks, dlpack, reference
from cuconv.arrays import Facts, Family
from cuconv.call import Call, Prepared
from cuconv.dtypes import BOOL, FLOATS, INDICES
from cuconv.errors import message
from cuconv.form import Form
from cuconv.kernels.conv import widths
from cuconv.kernels.varlen import MAX_TOKENS
from cuconv.launch import MAX_DIVIDEND
from cuconv.layout import HOST, Layout, dense
from cuconv.ops.causal_conv1d_varlen_plan import Operands, is_channel_contiguous, plan

INPUTS = ("x", "weight", "bias", "conv_states", "query_start_loc", "cache_indices", "has_initial_state")
CONV_STATES, QUERY_START_LOC, CACHE_INDICES = map(INPUTS.index, ("conv_states", "query_start_loc", "cache_indices"))
OUT = len(INPUTS)


def run(
    form: Form, inputs: tuple[Any, ...], out: Sequence[Any] | None, activation: str | None, pad_slot_id: int
) -> tuple[Any, ...]:
    """Convolve; `inputs` are in the order of INPUTS. The results, in new arrays where none were given."""
    checks.activation(activation)
    checks.integer("pad_slot_id", pad_slot_id)
    given = inputs + form.given_outs(out)
    family = arrays.family(inputs[0])
    if family is None:
        return _through_dlpack(form, given, activation, pad_slot_id)

    pointers, facts = family.inspect(INPUTS + form.names, given)
    call = _prepare((family, form, activation is not None, pad_slot_id), facts)
    call.check_overlap(pointers)
    if family.checks_contents():
        _check_indices(call.operands, given, family, pad_slot_id)
    outs = list(given[OUT:])
    for i, layout in call.new:
        outs[i], pointers[OUT + i] = family.new(inputs[0], layout)
    if call.device == HOST:
        _run_reference(form, call.operands, inputs, outs, pad_slot_id)
    else:
        call.enqueue(pointers, family)
    return tuple(outs)


class _Call(Call):
    """A convolution of packed sequences whose arrays have these facts."""

    def __init__(self, form: Form, given: Sequence[Layout | None], operands: Operands, outs: Sequence[Layout]) -> None:
        """`given` are all arguments' layouts, `outs` those of the outputs, given or new."""
        self.operands = operands
        launch = None if operands.x.device == HOST else plan(operands)
        written = [i for i in (CONV_STATES, *range(OUT, len(given))) if given[i] is not None]
        super().__init__(INPUTS + form.names, (*given[:OUT], *outs), launch, written)
        self.new = [(i, out) for i, out in enumerate(outs) if given[OUT + i] is None]


def order_of_new(form: Form, x: Layout) -> tuple[int, ...]:
    """The order of the axes of a new output, the outermost first: by token and head, or as x's."""
    if form.has_heads:
        return (0, 1, 2, 3)
    return (1, 0) if is_channel_contiguous(x) else (0, 1)


@Prepared
def _prepare(family: Family, form: Form, silu: bool, pad_slot_id: int, *facts: Facts | None) -> _Call:
    """Check the arguments and decide how to run them; raises before anything is launched or written."""
    arguments = INPUTS + form.names
    layouts = [
        None if fact is None else family.layout(argument, fact) for argument, fact in zip(arguments, facts, strict=True)
    ]
    x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state, *outs = layouts
    assert x is not None
    checks.rank("x", x.shape, "dim, total")
    checks.dtype("x", x.dtype, FLOATS)
    if family.name != "NumPy":
        checks.on_gpu("x", x.device, "a NumPy array is convolved on the CPU")
    dim, total = x.shape
    checks.between("dim of x", dim, 0, MAX_DIVIDEND)
    checks.between("total of x", total, 0, MAX_TOKENS)
    checks.taps(weight, bias, dim, widths())
    assert weight is not None
    count = 1
    if query_start_loc is not None:
        checks.rank("query_start_loc", query_start_loc.shape, "sequences + 1")
        checks.dtype("query_start_loc", query_start_loc.dtype, INDICES)
        count = query_start_loc.shape[0] - 1
        checks.between("sequences of query_start_loc", count, 0, MAX_TOKENS)
    for argument, layout, dtypes in (
        ("cache_indices", cache_indices, INDICES),
        ("has_initial_state", has_initial_state, (BOOL,)),
    ):
        if layout is not None:
            if conv_states is None:
                raise ValueError(message(argument, "an array", "None unless conv_states is given"))
            checks.dtype(argument, layout.dtype, dtypes)
            checks.shape(argument, layout.shape, (count,), "sequences")
    if conv_states is not None:
        _check_pool(conv_states, dim, weight.shape[1], count if cache_indices is None else 0)

    ranges = form.heads(dim)
    order = order_of_new(form, x)
    all_outs = []
    for argument, out, (heads, head_dim) in zip(form.names, outs, ranges, strict=True):
        shape = (1, total, heads, head_dim) if form.has_heads else (heads * head_dim, total)
        if out is not None:
            checks.dtype(argument, out.dtype, (x.dtype,))
            axes = "1, total of x, heads, head_dim" if form.has_heads else "channels, total of x"
            checks.shape(argument, out.shape, shape, axes)
            checks.not_self_overlapping(argument, out.shape, out.strides)
        all_outs.append(dense(shape, order, x) if out is None else out)
    for argument, layout in zip(arguments, layouts, strict=True):
        if layout is not None:
            checks.device(argument, layout.device, x.device, "x")
    pool = (conv_states, query_start_loc, cache_indices, has_initial_state)
    by_head = tuple(map(_by_head, all_outs))
    operands = Operands(x, weight, bias, *pool, by_head, silu, pad_slot_id, form.normalized, form.eps)
    return _Call(form, layouts, operands, all_outs)


def _check_pool(conv_states: Layout, dim: int, width: int, wanted_slots: int) -> None:
    checks.rank("conv_states", conv_states.shape, "slots, dim, state_len")
    checks.dtype("conv_states", conv_states.dtype, FLOATS)
    slots, _, state_len = conv_states.shape
    checks.between("slots of conv_states", slots, 0, MAX_DIVIDEND)
    checks.shape("conv_states", conv_states.shape, (slots, dim, state_len), "slots, dim of x, state_len")
    if state_len < width - 1:
        raise ValueError(message("state_len of conv_states", state_len, f"at least {width - 1} (width - 1)"))
    if slots < wanted_slots:
        wanted = f"at least {wanted_slots}, one a sequence, or cache_indices"
        raise ValueError(message("slots of conv_states", slots, wanted))
    checks.not_self_overlapping("conv_states", conv_states.shape, conv_states.strides)


def _by_head(out: Layout) -> Layout:
    """An output as the kernels take it: (total, heads, head_dim)."""
    if len(out.shape) == 4:
        return out._replace(shape=out.shape[1:], strides=out.strides[1:])
    (channels, total), (channel_stride, token_stride) = out.shape, out.strides
    return out._replace(shape=(total, 1, channels), strides=(token_stride, 0, channel_stride))


def _check_indices(o: Operands, given: Sequence[Any], family: Family, pad_slot_id: int) -> None:
    """ValueError when what index arrays contain cannot be right; reads them back."""
    starts, slots = given[QUERY_START_LOC], given[CACHE_INDICES]
    host_starts = np.array([0, o.x.shape[1]]) if starts is None else family.to_host(starts)
    checks.boundaries("query_start_loc", host_starts, o.x.shape[1])
    if slots is not None and o.conv_states is not None:
        used = family.to_host(slots)[np.diff(host_starts) > 0]
        checks.slots("cache_indices", used[used != pad_slot_id], o.conv_states.shape[0])


def _run_reference(form: Form, o: Operands, inputs: Sequence[Any], outs: Sequence[Any], pad_slot_id: int) -> None:
    activation = "silu" if o.silu else None
    named = dict(zip(INPUTS, inputs, strict=True))
    result, states = reference.causal_conv1d_varlen_fn(**named, activation=activation, pad_slot_id=pad_slot_id)
    begin = 0
    for number, ((heads, head_dim), out) in enumerate(zip(form.heads(len(result)), outs, strict=True)):
        values = result[begin : begin + heads * head_dim]
        begin += heads * head_dim
        if form.has_heads:
            values = values.T.reshape(out.shape)
        if number < form.normalized:
            values = reference.l2norm(values, form.eps)
        out[...] = values.astype(out.dtype)
    if states is not None:
        inputs[CONV_STATES][...] = states


def _through_dlpack(form: Form, given: Sequence[Any], activation: str | None, pad_slot_id: int) -> tuple[Any, ...]:
    """The same call on CuPy or NumPy arrays over the same memory, its results handed back to x's library."""
    imported = dlpack.imported(INPUTS + form.names, given, "x")
    results = run(form, imported[:OUT], imported[OUT:], activation, pad_slot_id)
    return dlpack.exported(results, given[OUT:], like=given[0])
