"""The convolution of whole sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cuconv.causal_conv1d import reference_convolve
from cuconv.causal_conv1d.kernels import GATES, WIDTHS
from cuconv.causal_conv1d.plan_dense import Operands, plan
from cuconv.runtime import checks
from cuconv.runtime.dtypes import FLOATS, INT32
from cuconv.runtime.entry import quick
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND
from cuconv.runtime.layout import dense, order_like
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import Arrays, Checked, Layouts


@quick
def causal_conv1d_fn(
    x: Any,
    weight: Any,
    bias: Any = None,
    seq_idx: Any = None,
    initial_states: Any = None,
    return_final_states: bool = False,
    final_states_out: Any = None,
    activation: str | None = None,
    *,
    pre_gate: Any = None,
    post_gate: Any = None,
    residual: Any = None,
    out: Any = None,
) -> Any:
    """Depthwise causal convolution along a sequence, with the meaning it has in Dao-AILab's causal-conv1d.

    out[b, d, t] = act(bias[d] + sum over w of weight[d, w] * x[b, d, t - (width - 1) + w]), summed in float32
    (Gu and Dao, "Mamba", 2023, section 3.4).

    Arrays are NumPy, CuPy, torch or DLPack ones, all of one kind and on one device, of any strides. The kernel
    runs on the caller's current stream. Nothing is copied: x and out with contiguous sequences or contiguous channels
    have vector kernels, any other strides a scalar path. NumPy arrays are convolved on the CPU, in float64.

    Args:
        x: (batch, dim, seqlen), float32, float16 or bfloat16.
        weight: (dim, width), any of these dtypes, width 1 to 16.
        bias: (dim,), weight's dtype or float32.
        seq_idx: (batch, seqlen), int32: the sequence number of each token. A token sees only inputs with its own
            number, and a token with a negative number gives 0. The initial state counts as part of the sequence of the
            row's first token.
        initial_states: (batch, dim, width - 1), x's dtype: the inputs before the first token, zeros when None.
        return_final_states: also return the last width - 1 inputs of each row, whatever their seq_idx.
        final_states_out: (batch, dim, width - 1), x's dtype: where to write the final states. None unless
            return_final_states is true.
        activation: None, "silu" or "swish", another name of "silu".
        pre_gate: shape and dtype of x: the filter reads pre_gate * x, rounded to x's dtype, which is also what states
            hold.
        post_gate: shape and dtype of x: the result, rounded to x's dtype, is multiplied by it, as in LFM2.
        residual: shape and dtype of x: added last, in float32. It may be x itself.
        out: shape and dtype of x: where to write the result. It must not overlap any other argument.

    Returns:
        out, laid out in memory like x, or (out, final_states): of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    checks.activation(activation)
    options = checks.flag("return_final_states", return_final_states), activation is not None
    if pre_gate is post_gate is residual is None:
        out, final_states = _forward((x, weight, bias, seq_idx, initial_states, out, final_states_out), options)
    else:
        inputs = (x, weight, bias, seq_idx, initial_states, pre_gate, post_gate, residual)
        out, final_states = _forward_gated((*inputs, out, final_states_out), options)
    return (out, final_states) if return_final_states else out


def _check(given: Layouts, return_final_states: bool, silu: bool) -> Checked[Operands]:
    x, weight, bias, seq_idx, initial_states, *_, out, final_states = given.values()
    assert x is not None
    checks.rank("x", x.shape, "batch, dim, seqlen")
    checks.dtype("x", x.dtype, FLOATS)
    batch, dim, seqlen = x.shape
    checks.between("batch of x", batch, 0, MAX_DIVIDEND)
    checks.between("dim of x", dim, 0, MAX_DIVIDEND)
    checks.taps(weight, bias, dim, WIDTHS)
    assert weight is not None
    states_shape = (batch, dim, weight.shape[1] - 1)
    if final_states is not None and not return_final_states:
        raise ValueError(message("final_states_out", "an array", "None unless return_final_states is true"))
    if final_states is None and return_final_states:
        final_states = dense(states_shape, order_like(x), x)
    for argument, layout, shape, axes, dtypes in (
        ("seq_idx", seq_idx, (batch, seqlen), "batch, seqlen of x", (INT32,)),
        ("initial_states", initial_states, states_shape, "batch, dim of x, width - 1", (x.dtype,)),
        *((name, given.get(name), x.shape, "the shape of x", (x.dtype,)) for name in GATES),
        ("out", out, x.shape, "the shape of x", (x.dtype,)),
        ("final_states_out", final_states, states_shape, "batch, dim of x, width - 1", (x.dtype,)),
    ):
        if layout is not None:
            checks.dtype(argument, layout.dtype, dtypes)
            checks.shape(argument, layout.shape, shape, axes)
    out = out or dense(x.shape, order_like(x), x)
    gates = (given.get(name) for name in GATES)
    operands = Operands(x, weight, bias, seq_idx, initial_states, out, final_states, silu, *gates)
    return Checked(operands, {"out": out, "final_states_out": final_states})


def _reference(o: Operands, arrays: Arrays) -> None:
    x, weight, bias, seq_idx, initial_states, *gates, out, final_states = arrays.values()
    activation = "silu" if o.silu else None
    result, states = reference_convolve.causal_conv1d_fn(x, weight, bias, seq_idx, initial_states, activation, *gates)
    out[...] = result.astype(out.dtype)
    if final_states is not None:
        final_states[...] = states


INPUTS = ("x", "weight", "bias", "seq_idx", "initial_states")

_forward = Operation(
    INPUTS,
    ("out", "final_states_out"),
    name="causal_conv1d_fn",
    check=_check,
    plan=plan,
    reference=_reference,
    absent=GATES,
)
# Each argument costs a call some time, even when it is None.
_forward_gated = replace(_forward, inputs=INPUTS + GATES, name="causal_conv1d_gated_fn", absent=())
