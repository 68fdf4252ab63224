"""What the public functions of a convolution's decode step share: the checks of their arguments, and running them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cuconv import arrays, checks, dlpack, reference
from cuconv.arrays import Facts, Family
from cuconv.call import Call, Prepared
from cuconv.dtypes import FLOATS, INDICES
from cuconv.errors import message
from cuconv.form import WHOLE, Form
from cuconv.kernels.conv import widths
from cuconv.kernels.update import MAX_SEQUENCES, MAX_TOKENS
from cuconv.launch import MAX_DIVIDEND
from cuconv.layout import HOST, Layout, dense
from cuconv.ops.causal_conv1d_update_plan import Operands, plan

INDEX_ARRAYS = ("cache_seqlens", "conv_state_indices", "num_accepted_tokens", "intermediate_state_indices")
INPUTS = (
    *("x", "conv_state", "weight", "bias", "cache_seqlens", "conv_state_indices", "num_accepted_tokens"),
    *("intermediate_conv_window", "intermediate_state_indices"),
)
X, CONV_STATE, WINDOWS = map(INPUTS.index, ("x", "conv_state", "intermediate_conv_window"))
OUT = len(INPUTS)


def run(
    form: Form,
    inputs: tuple[Any, ...],
    out: Sequence[Any] | None,
    activation: str | None,
    disable_state_update: bool,
    pad_slot_id: int,
) -> tuple[Any, ...]:
    """Convolve; `inputs` are in the order of INPUTS. The results, in new arrays where none were given."""
    checks.activation(activation)
    checks.integer("pad_slot_id", pad_slot_id)
    given = inputs + form.given_outs(out)
    family = arrays.family(inputs[0])
    if family is None:
        return _through_dlpack(form, given, activation, disable_state_update, pad_slot_id)

    pointers, facts = family.inspect(INPUTS + form.names, given)
    call = _prepare((family, form, activation is not None, bool(disable_state_update), pad_slot_id), facts)
    call.check_overlap(pointers)
    if family.checks_contents():
        _check_indices(call.operands, given, family)
    outs = list(given[OUT:])
    for i, layout in call.new:
        outs[i], pointers[OUT + i] = family.new(inputs[0], layout)
    if call.device == HOST:
        _run_reference(form, call.operands, inputs, outs, activation)
    else:
        call.enqueue(pointers, family)
    return tuple(outs)


class _Call(Call):
    """A decode step on arrays with these facts."""

    def __init__(self, form: Form, layouts: Sequence[Layout | None], operands: Operands) -> None:
        self.operands = operands
        x = layouts[X]
        assert x is not None
        new = [dense(shape, _order(form, x), x) for shape in _shapes(form, x)]
        outs = [out or new[i] for i, out in enumerate(layouts[OUT:])]
        launch = None if x.device == HOST else plan(operands)
        read_only = [CONV_STATE] * operands.disable_state_update
        numbers = (CONV_STATE, WINDOWS, *range(OUT, len(layouts)))
        written = [i for i in numbers if layouts[i] is not None and i not in read_only]
        in_place = (OUT, X) if form is WHOLE and layouts[OUT] == x else None
        super().__init__(INPUTS + form.names, (*layouts[:OUT], *outs), launch, written, in_place)
        self.new = [(i, out) for i, out in enumerate(outs) if layouts[OUT + i] is None]


@Prepared
def _prepare(
    family: Family, form: Form, silu: bool, disable_state_update: bool, pad_slot_id: int, *facts: Facts | None
) -> _Call:
    """Check the arguments and decide how to run them; raises before anything is launched or written."""
    arguments = INPUTS + form.names
    layouts = [
        None if fact is None else family.layout(argument, fact) for argument, fact in zip(arguments, facts, strict=True)
    ]
    x = layouts[X]
    assert x is not None
    if family.name != "NumPy":
        checks.on_gpu("x", x.device, "a NumPy array is convolved on the CPU")
    return _Call(form, layouts, operands(form, layouts, silu, pad_slot_id, disable_state_update))


def operands(
    form: Form, layouts: Sequence[Layout | None], silu: bool, pad_slot_id: int, disable_state_update: bool
) -> Operands:
    """What a call is planned from; `layouts` are in the order of INPUTS and the outputs. Raises for what is wrong."""
    x, conv_state, weight, bias, *_ = layouts
    given = dict(zip(INPUTS, layouts, strict=False))
    assert x is not None
    if len(x.shape) not in (2, 3):
        raise ValueError(message("x", f"shape {x.shape}", "2 or 3 axes (batch, dim[, seqlen])"))
    checks.dtype("x", x.dtype, FLOATS)
    batch, dim, *tokens = x.shape
    checks.between("batch of x", batch, 0, MAX_SEQUENCES)
    checks.between("dim of x", dim, 0, MAX_DIVIDEND)
    checks.between("seqlen of x", x.size // max(1, batch * dim) if tokens else 1, 0, MAX_TOKENS)
    checks.taps(weight, bias, dim, widths())
    assert weight is not None
    seqlen, width = tokens[0] if tokens else 1, weight.shape[1]
    _check_modes(given, disable_state_update)
    _check_state(conv_state, given, batch, dim, seqlen, width)
    assert conv_state is not None
    for name in INDEX_ARRAYS:
        if (layout := given[name]) is not None:
            checks.dtype(name, layout.dtype, INDICES)
            checks.shape(name, layout.shape, (batch,), "batch of x")
    _check_windows(given, conv_state, batch, dim, seqlen, width)
    order, outs = _order(form, x), []
    for argument, out, shape in zip(form.names, layouts[OUT:], _shapes(form, x), strict=True):
        if out is not None:
            checks.dtype(argument, out.dtype, (x.dtype,))
            checks.shape(argument, out.shape, shape, _axes(form, x))
            checks.not_self_overlapping(argument, out.shape, out.strides)
        outs.append(_by_head(form, x, out or dense(shape, order, x)))
    for argument, layout in zip(INPUTS + form.names, layouts, strict=True):
        if layout is not None:
            checks.device(argument, layout.device, x.device, "x")
    by_token = x if tokens else x._replace(shape=(batch, dim, 1), strides=(*x.strides, 0))
    return Operands._make((by_token, *layouts[1:OUT], tuple(outs), silu, pad_slot_id, disable_state_update))


def _check_modes(given: dict[str, Layout | None], disable_state_update: bool) -> None:
    """ValueError for arguments that have no meaning together."""
    if given["num_accepted_tokens"] is not None:
        if given["cache_seqlens"] is not None:
            wanted = "None beside cache_seqlens: a ring takes tokens back by a smaller cache_seqlens"
            raise ValueError(message("num_accepted_tokens", "an array", wanted))
        if disable_state_update:
            wanted = "false beside num_accepted_tokens: the next call finds the accepted tokens in the state"
            raise ValueError(message("disable_state_update", "true", wanted))
    if given["intermediate_state_indices"] is not None and given["intermediate_conv_window"] is None:
        wanted = "None unless intermediate_conv_window is given"
        raise ValueError(message("intermediate_state_indices", "an array", wanted))


def _check_state(
    conv_state: Layout | None, given: dict[str, Layout | None], batch: int, dim: int, seqlen: int, width: int
) -> None:
    if conv_state is None:
        raise TypeError(message("conv_state", "None", "an array (slots, dim, state_len)"))
    checks.rank("conv_state", conv_state.shape, "slots, dim, state_len")
    checks.dtype("conv_state", conv_state.dtype, FLOATS)
    slots, _, state_len = conv_state.shape
    checks.between("slots of conv_state", slots, 0, MAX_DIVIDEND)
    checks.shape("conv_state", conv_state.shape, (slots, dim, state_len), "slots, dim of x, state_len")
    checks.between("state_len of conv_state", state_len, 0, MAX_TOKENS)
    wanted_len, because = width - 1, "width - 1"
    if given["num_accepted_tokens"] is not None:
        wanted_len, because = width - 1 + max(seqlen, 1) - 1, "width - 1 + seqlen - 1, for num_accepted_tokens"
    if state_len < wanted_len:
        raise ValueError(message("state_len of conv_state", state_len, f"at least {wanted_len} ({because})"))
    if given["conv_state_indices"] is None and slots < batch:
        wanted = f"at least {batch}, one a sequence, or conv_state_indices"
        raise ValueError(message("slots of conv_state", slots, wanted))
    checks.not_self_overlapping("conv_state", conv_state.shape, conv_state.strides)


def _check_windows(
    given: dict[str, Layout | None], conv_state: Layout, batch: int, dim: int, seqlen: int, width: int
) -> None:
    windows = given["intermediate_conv_window"]
    if windows is None:
        return
    checks.rank("intermediate_conv_window", windows.shape, "rows, steps, dim, width - 1")
    checks.dtype("intermediate_conv_window", windows.dtype, (conv_state.dtype,))
    rows, steps, *_ = windows.shape
    shape = (rows, steps, dim, width - 1)
    checks.shape("intermediate_conv_window", windows.shape, shape, "rows, steps, dim of x, width - 1")
    if steps < seqlen:
        raise ValueError(message("steps of intermediate_conv_window", steps, f"at least {seqlen}, the tokens of x"))
    wanted = batch if given["conv_state_indices"] is None else conv_state.shape[0]
    if given["intermediate_state_indices"] is None and rows < wanted:
        because = f"at least {wanted}, one a slot, or intermediate_state_indices"
        raise ValueError(message("rows of intermediate_conv_window", rows, because))
    checks.not_self_overlapping("intermediate_conv_window", windows.shape, windows.strides)


def _shapes(form: Form, x: Layout) -> list[tuple[int, ...]]:
    """The shapes of the outputs."""
    batch, dim, *tokens = x.shape
    if form.has_heads:
        return [(batch, *tokens, heads, head_dim) for heads, head_dim in form.heads(dim)]
    return [(batch, heads * head_dim, *tokens) for heads, head_dim in form.heads(dim)]


def _axes(form: Form, x: Layout) -> str:
    seqlen = len(x.shape) == 3
    if form.has_heads:
        return "batch, seqlen of x, heads, head_dim" if seqlen else "batch of x, heads, head_dim"
    return "batch of x, channels, seqlen of x" if seqlen else "batch of x, channels"


def _order(form: Form, x: Layout) -> tuple[int, ...]:
    """The order of the axes of a new output, the outermost first: by token and head, or as x's."""
    if form.has_heads:
        return tuple(range(len(x.shape) + 1))
    is_channel_last = len(x.shape) == 3 and x.shape[1] > 1 and x.strides[1] == 1
    return (0, 2, 1) if is_channel_last and x.strides[2] != 1 else tuple(range(len(x.shape)))


def _by_head(form: Form, x: Layout, out: Layout) -> Layout:
    """An output as the kernels take it: (batch, seqlen, heads, head_dim)."""
    batch, *shape = out.shape
    batch_stride, *strides = out.strides
    if form.has_heads:
        missing = 3 - len(shape)
        return out._replace(shape=(batch, *[1] * missing, *shape), strides=(batch_stride, *[0] * missing, *strides))
    tokens, token_stride = (shape[1], strides[1]) if len(shape) == 2 else (1, 0)
    return out._replace(shape=(batch, tokens, 1, shape[0]), strides=(batch_stride, token_stride, 0, strides[0]))


def _check_indices(o: Operands, given: Sequence[Any], family: Family) -> None:
    """ValueError when what index arrays contain cannot be right; reads them back."""
    read = {
        name: None if array is None else family.to_host(array)
        for name, array in zip(INPUTS, given, strict=False)
        if name in INDEX_ARRAYS
    }
    batch, _, _ = o.x.shape
    slots, state_len = o.conv_state.shape[0], o.conv_state.shape[2]
    used = read["conv_state_indices"]
    live = np.ones(batch, bool) if used is None else used != o.pad_slot_id
    if used is not None:
        checks.slots("conv_state_indices", used[live], slots)
    if (accepted := read["num_accepted_tokens"]) is not None:
        most = state_len - (o.weight.shape[1] - 1) + 1
        if (outside := accepted[live & (accepted > most)]).size:
            wanted = f"at most {most}, for what the state holds"
            raise ValueError(message("num_accepted_tokens", outside[0], wanted))
    if (rows := read["intermediate_state_indices"]) is not None and o.intermediate_conv_window is not None:
        checks.rows("intermediate_state_indices", rows[live], o.intermediate_conv_window.shape[0], o.pad_slot_id)


def _run_reference(form: Form, o: Operands, inputs: Sequence[Any], outs: Sequence[Any], activation: str | None) -> None:
    named = dict(zip(INPUTS, inputs, strict=True))
    if len(named["x"].shape) == 2:
        named["x"] = named["x"][:, :, None]
    result, state, windows = reference.causal_conv1d_update(
        **named, activation=activation, disable_state_update=o.disable_state_update, pad_slot_id=o.pad_slot_id
    )
    begin = 0
    for (heads, head_dim), out in zip(form.heads(result.shape[1]), outs, strict=True):
        values = result[:, begin : begin + heads * head_dim]
        begin += heads * head_dim
        if form.has_heads:
            values = values.transpose(0, 2, 1)
        out[...] = values.reshape(out.shape).astype(out.dtype)
    if not o.disable_state_update:
        inputs[CONV_STATE][...] = state
    if windows is not None:
        inputs[WINDOWS][...] = windows


def _through_dlpack(
    form: Form, given: Sequence[Any], activation: str | None, disable_state_update: bool, pad_slot_id: int
) -> tuple[Any, ...]:
    """The same call on CuPy or NumPy arrays over the same memory, its results handed back to x's library."""
    imported = dlpack.imported(INPUTS + form.names, given, "x")
    results = run(form, imported[:OUT], imported[OUT:], activation, disable_state_update, pad_slot_id)
    return dlpack.exported(results, given[OUT:], like=given[0])
