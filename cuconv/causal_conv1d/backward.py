"""The gradients of the convolutions of whole and of packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference_backward
from cuconv.causal_conv1d.kernels import MAX_TOKENS, WIDTHS
from cuconv.causal_conv1d.plan_backward import Operands, plan
from cuconv.runtime import checks, slots
from cuconv.runtime.dtypes import BOOL, FLOAT32, FLOATS, INDICES, INT32, DType
from cuconv.runtime.entry import quick
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import Layout, dense, is_channel_last, order_like
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import Arrays, Checked, Layouts


@quick
def causal_conv1d_bwd(
    x: Any,
    weight: Any,
    bias: Any,
    dout: Any,
    *,
    seq_idx: Any = None,
    initial_states: Any = None,
    dfinal_states: Any = None,
    activation: str | None = None,
    float32_gradients: bool = False,
    dx: Any = None,
    dweight: Any = None,
    dbias: Any = None,
    dinitial_states: Any = None,
) -> tuple[Any, Any, Any, Any]:
    """The gradients of `causal_conv1d_fn`, from the gradient of its result and, if given, of its final states.

    With pre[t] = bias + sum over w of weight[w] * x[t - (width - 1) + w] and g[t] = dout[t] * act'(pre[t]),

        dx[t] = sum over w of weight[w] * g[t + (width - 1) - w],
        dweight[w] = sum over batch and t of g[t] * x[t - (width - 1) + w],    dbias = sum over batch and t of g[t],

    all in float32: the derivatives of the formula of Gu and Dao, "Mamba", 2023, section 3.4. pre is computed again from
    x. dfinal_states is added to dx of the last width - 1 inputs; dx before a row's first token is dinitial_states. The
    same call gives the same bits every time.

    Arrays are NumPy, CuPy, torch or DLPack ones, all of one kind and on one device, of any strides. The kernels run on
    the caller's current stream. Nothing is copied: x and dx with contiguous sequences or contiguous channels have
    vector kernels, any other strides a scalar path. dout may have any strides, also those of an expanded tensor. NumPy
    arrays are computed on the CPU, in float64.

    Args:
        x: (batch, dim, seqlen), float32, float16 or bfloat16, seqlen up to 2**30.
        weight: (dim, width), any of these dtypes, width 1 to 16.
        bias: (dim,), weight's dtype or float32, or None.
        dout: shape and dtype of x: the gradient of the result.
        seq_idx: (batch, seqlen), int32, as the forward convolution had it. A token with a negative number has no
            gradient.
        initial_states: (batch, dim, width - 1), x's dtype, as the forward convolution had it.
        dfinal_states: (batch, dim, width - 1), x's dtype: the gradient of the final states.
        activation: None, "silu" or "swish", another name of "silu".
        float32_gradients: new dweight and dbias are float32 instead of weight's and bias's dtypes.
        dx: shape and dtype of x: where to write the gradient of x. No result may overlap any other argument.
        dweight: (dim, width), weight's dtype or float32: where to write the gradient of weight.
        dbias: (dim,), bias's dtype or float32: where to write the gradient of bias; None without bias.
        dinitial_states: shape and dtype of initial_states: where to write their gradient, if they are given.

    Returns:
        (dx, dweight, dbias, dinitial_states), of the caller's kind and on the caller's device, dx laid out like x;
        dbias is None without bias, dinitial_states without initial_states.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    checks.activation(activation)
    inputs = (x, weight, bias, dout, seq_idx, initial_states, dfinal_states)
    outputs = (dx, dweight, dbias, dinitial_states)
    options = (activation is not None, checks.flag("float32_gradients", float32_gradients))
    dx, dweight, dbias, dinitial_states = _dense((*inputs, None, None, None, *outputs), options)
    return dx, dweight, dbias, dinitial_states


@quick
def causal_conv1d_varlen_bwd(
    x: Any,
    weight: Any,
    bias: Any,
    dout: Any,
    *,
    query_start_loc: Any = None,
    initial_states: Any = None,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    dfinal_states: Any = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    float32_gradients: bool = False,
    dx: Any = None,
    dweight: Any = None,
    dbias: Any = None,
    dinitial_states: Any = None,
) -> tuple[Any, Any, Any, Any]:
    """The gradients of `causal_conv1d_varlen_fn`: for each packed sequence those of `causal_conv1d_bwd`.

    Tokens of no sequence, and those of a sequence whose slot is pad_slot_id or outside initial_states, have a gradient
    of 0 and add nothing to the others, whatever x and dout hold there. The same call gives the same bits every time.
    Nothing is read back, unless CUCONV_CHECK=1 is in the environment.

    Args:
        x: (dim, total), float32, float16 or bfloat16.
        weight: (dim, width), any of these dtypes, width 1 to 16.
        bias: (dim,), weight's dtype or float32, or None.
        dout: shape and dtype of x: the gradient of the result.
        query_start_loc: (sequences + 1,), int32 or int64, from 0 up to at most total, never falling. None: a single
            sequence.
        initial_states: (slots, dim, state_len), state_len at least width - 1, x's dtype or float32: the states as they
            were before the forward convolution. The last width - 1 columns of a sequence's slot precede it.
        cache_indices: (sequences,), int32 or int64: the slot of each sequence; None: sequence i has slot i.
        has_initial_state: (sequences,), bool: sequences for which it is false start from zeros; true when None.
        dfinal_states: (sequences, dim, width - 1), x's dtype or float32: the gradient of the states that the sequences
            leave.
        activation: None, "silu" or "swish", another name of "silu".
        pad_slot_id: the slot number of sequences that only fill a batch. Sequence numbers that stand in for a missing
            array of slots are not compared with it.
        float32_gradients: new dweight and dbias are float32 instead of weight's and bias's dtypes.
        dx: shape and dtype of x: where to write the gradient of x. No result may overlap any other argument.
        dweight: (dim, width), weight's dtype or float32: where to write the gradient of weight.
        dbias: (dim,), bias's dtype or float32: where to write the gradient of bias; None without bias.
        dinitial_states: (sequences, dim, width - 1), initial_states' dtype: where to write their gradient, if they are
            given.

    Returns:
        (dx, dweight, dbias, dinitial_states), of the caller's kind and on the caller's device, dx laid out like x;
        dbias is None without bias. dinitial_states is (sequences, dim, width - 1), by sequence and not by slot, 0 for
        one that starts from zeros; None without initial_states.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    checks.activation(activation)
    pad_slot_id = checks.integer("pad_slot_id", pad_slot_id)
    states = (initial_states, dfinal_states, query_start_loc, cache_indices, has_initial_state)
    outputs = (dx, dweight, dbias, dinitial_states)
    options = (activation is not None, checks.flag("float32_gradients", float32_gradients), pad_slot_id)
    dx, dweight, dbias, dinitial_states = _packed((x, weight, bias, dout, None, *states, *outputs), options)
    return dx, dweight, dbias, dinitial_states


def _check_dense(given: Layouts, silu: bool, float32_gradients: bool) -> Checked[Operands]:
    x = _check_x(given, "batch, dim, seqlen")
    batch, dim, seqlen = x.shape
    checks.between("batch of x", batch, 0, MAX_DIVIDEND)
    weight = _check_parameters(given, dim)
    _check_if_given(given, "seq_idx", (batch, seqlen), "batch, seqlen of x", (INT32,))
    shape, axes = (batch, dim, weight.shape[1] - 1), "batch, dim of x, width - 1"
    for argument in ("initial_states", "dfinal_states", "dinitial_states"):
        _check_if_given(given, argument, shape, axes, (x.dtype,))
    return _checked(given, shape, silu, float32_gradients, packed=False, pad_slot_id=-1)


def _check_packed(given: Layouts, silu: bool, float32_gradients: bool, pad_slot_id: int) -> Checked[Operands]:
    x = _check_x(given, "dim, total")
    dim = x.shape[0]
    weight = _check_parameters(given, dim)
    initial, starts = given["initial_states"], given["query_start_loc"]
    count = 1
    if starts is not None:
        checks.rank("query_start_loc", starts.shape, "sequences + 1")
        checks.dtype("query_start_loc", starts.dtype, INDICES)
        count = starts.shape[0] - 1
        checks.between("sequences of query_start_loc", count, 0, MAX_TOKENS)
    floats = tuple(dict.fromkeys((x.dtype, FLOAT32)))
    for argument, dtypes in (("cache_indices", INDICES), ("has_initial_state", (BOOL,))):
        if given[argument] is not None and initial is None:
            raise ValueError(message(argument, "an array", "None unless initial_states is given"))
        _check_if_given(given, argument, (count,), "sequences", dtypes)
    shape, axes = (count, dim, weight.shape[1] - 1), "sequences, dim of x, width - 1"
    _check_if_given(given, "dfinal_states", shape, axes, floats)
    if initial is not None:
        slots = count if given["cache_indices"] is None else 0, "cache_indices"
        checks.pool("initial_states", initial, dim, (weight.shape[1] - 1, "width - 1"), slots)
        checks.dtype("initial_states", initial.dtype, floats)
        _check_if_given(given, "dinitial_states", shape, axes, (initial.dtype,))
    return _checked(given, shape, silu, float32_gradients, packed=True, pad_slot_id=pad_slot_id)


def _check_x(given: Layouts, axes: str) -> Layout:
    x, dout = given["x"], given["dout"]
    assert x is not None
    checks.rank("x", x.shape, axes)
    checks.dtype("x", x.dtype, FLOATS)
    dim, tokens = x.shape[-2:]
    names = axes.split(", ")
    checks.between(f"{names[-2]} of x", dim, 0, MAX_DIVIDEND)
    checks.between(f"{names[-1]} of x", tokens, 0, MAX_TOKENS)
    if dout is None:
        raise TypeError(message("dout", "None", f"an array ({axes})"))
    for argument in ("dout", "dx"):
        _check_if_given(given, argument, x.shape, "the shape of x", (x.dtype,))
    return x


def _check_parameters(given: Layouts, dim: int) -> Layout:
    weight, bias = given["weight"], given["bias"]
    checks.taps(weight, bias, dim, WIDTHS)
    assert weight is not None
    _check_if_given(given, "dweight", weight.shape, "the shape of weight", (weight.dtype, FLOAT32))
    if bias is not None:
        _check_if_given(given, "dbias", bias.shape, "the shape of bias", (bias.dtype, FLOAT32))
    for argument, source in (("dbias", "bias"), ("dinitial_states", "initial_states")):
        if given[argument] is not None and given[source] is None:
            raise ValueError(message(argument, "an array", f"None unless {source} is given"))
    return weight


def _check_if_given(
    given: Layouts, argument: str, shape: tuple[int, ...], axes: str, dtypes: tuple[DType | str, ...]
) -> None:
    if (layout := given[argument]) is not None:
        checks.dtype(argument, layout.dtype, tuple(dict.fromkeys(dtypes)))
        checks.shape(argument, layout.shape, shape, axes)


def _checked(
    given: Layouts, states_shape: tuple[int, ...], silu: bool, float32_gradients: bool, packed: bool, pad_slot_id: int
) -> Checked[Operands]:
    x, weight, bias, initial = (given[name] for name in ("x", "weight", "bias", "initial_states"))
    assert x is not None and weight is not None

    def parameter(like: Layout) -> Layout:
        new = dense(like.shape, tuple(range(len(like.shape))), like)
        return new._replace(dtype=FLOAT32) if float32_gradients else new

    results: dict[str, Layout | None] = {
        "dx": given["dx"] or dense(x.shape, order_like(x), x),
        "dweight": given["dweight"] or parameter(weight),
        "dbias": given["dbias"] or (bias and parameter(bias)),
        "dinitial_states": given["dinitial_states"]
        or (initial and dense(states_shape, (0, 2, 1) if is_channel_last(x) else (0, 1, 2), initial)),
    }
    arrays = {**given, **results}
    if packed:
        for name in ("x", "dout", "dx"):
            arrays[name] = _as_batch(arrays[name])
    operands = Operands(**arrays, silu=silu, packed=packed, pad_slot_id=pad_slot_id)  # type: ignore[arg-type]
    return Checked(operands, results)


def _as_batch(layout: Layout | None) -> Layout:
    """Packed tokens as a batch of one row a channel."""
    assert layout is not None
    return layout._replace(shape=(1, *layout.shape), strides=(0, *layout.strides))


def _check_contents(o: Operands, read: Callable[[str], Any]) -> None:
    """ValueError when what index arrays contain cannot be right."""
    total = o.x.shape[2]
    starts = np.array([0, total]) if o.query_start_loc is None else read("query_start_loc")
    checks.boundaries("query_start_loc", starts, total)
    if o.cache_indices is not None and o.initial_states is not None:
        used = read("cache_indices")[np.diff(starts) > 0]
        checks.inside("cache_indices", used[~slots.are_padding(used, o.pad_slot_id)], o.initial_states.shape[0])


def _reference_dense(o: Operands, arrays: Arrays) -> None:
    names = ("x", "weight", "bias", "dout", "seq_idx", "initial_states", "dfinal_states")
    inputs = {name: arrays[name] for name in names}
    _store(arrays, reference_backward.causal_conv1d_bwd(**inputs, activation="silu" if o.silu else None))


def _reference_packed(o: Operands, arrays: Arrays) -> None:
    names = ("x", "weight", "bias", "dout", "query_start_loc", "initial_states", "cache_indices")
    inputs = {name: arrays[name] for name in (*names, "has_initial_state", "dfinal_states")}
    activation = "silu" if o.silu else None
    _store(
        arrays,
        reference_backward.causal_conv1d_varlen_bwd(**inputs, activation=activation, pad_slot_id=o.pad_slot_id),
    )


def _store(arrays: Arrays, gradients: reference_backward.Gradients) -> None:
    for name, values in gradients._asdict().items():
        if arrays[name] is not None:
            arrays[name][...] = values.astype(arrays[name].dtype)


_INPUTS = ("x", "weight", "bias", "dout", "seq_idx", "initial_states", "dfinal_states",
           "query_start_loc", "cache_indices", "has_initial_state")  # fmt: skip
_OUTPUTS = ("dx", "dweight", "dbias", "dinitial_states")

_dense = Operation(
    _INPUTS,
    _OUTPUTS,
    name="causal_conv1d_bwd",
    check=_check_dense,
    plan=plan,
    reference=_reference_dense,
)
_packed = Operation(
    _INPUTS,
    _OUTPUTS,
    name="causal_conv1d_varlen_bwd",
    check=_check_packed,
    plan=plan,
    reference=_reference_packed,
    contents=_check_contents,
)
