"""The forward causal convolution: the public function and the checks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv import arrays, checks, dlpack, reference
from cuconv.arrays import Facts, Family
from cuconv.call import Call, Prepared
from cuconv.dtypes import FLOATS, INT32
from cuconv.errors import message
from cuconv.kernels.conv import POINTERS, widths
from cuconv.launch import MAX_DIVIDEND
from cuconv.layout import HOST, dense
from cuconv.ops.causal_conv1d_plan import Operands, order_like, plan

INPUTS = ("x", "weight", "bias", "seq_idx", "initial_states")
OUTPUTS = ("out", "final_states_out")
ARGUMENTS = (*INPUTS, *OUTPUTS)
"""The arrays of a call, in the order of the kernels' pointers."""

OUT, FINAL_STATES = POINTERS.index("out"), POINTERS.index("final_states")


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
    out: Any = None,
) -> Any:
    """Depthwise causal convolution along a sequence, with the meaning it has in Dao-AILab's causal-conv1d.

    out[b, d, t] = act(bias[d] + sum over w of weight[d, w] * x[b, d, t - (width - 1) + w]), summed in float32
    (Gu and Dao, "Mamba", 2023, section 3.4).

    Arrays are NumPy, CuPy, torch CUDA or DLPack ones, all of one kind and on one device, of any strides. The kernel
    runs on the caller's current stream. Nothing is copied: x and out with contiguous sequences or contiguous channels
    have vector kernels, any other strides a scalar path. NumPy arrays are convolved on the CPU, in float64.

    Args:
        x: (batch, dim, seqlen), float32, float16 or bfloat16.
        weight: (dim, width), any of these dtypes, width 1 to 16.
        bias: (dim,), weight's dtype or float32.
        seq_idx: (batch, seqlen), int32. A token sees only inputs with its own number, and one with a negative number
            gives 0. The initial state counts as part of the sequence of the row's first token.
        initial_states: (batch, dim, width - 1), x's dtype: the inputs before the first token, zeros when None.
        return_final_states: also return the last width - 1 inputs of each row, whatever their seq_idx.
        final_states_out: (batch, dim, width - 1), x's dtype: where to write them.
        activation: None, "silu" or "swish" (the same).
        out: shape and dtype of x: where to write the result. It must not overlap any other argument.

    Returns:
        out, laid out in memory like x, or (out, final_states): of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    # Not in _prepare, which cannot even be asked about a value that has no hash.
    checks.activation(activation)
    given = (x, weight, bias, seq_idx, initial_states, out, final_states_out)
    family = arrays.family(x)
    if family is None:
        return _through_dlpack(given, return_final_states, activation)

    pointers, facts = family.inspect(ARGUMENTS, given)
    call = _prepare((family, return_final_states, activation), facts)
    call.check_overlap(pointers)
    if out is None:
        out, pointers[OUT] = family.new(x, call.operands.out)
    if final_states_out is None and call.operands.final_states is not None:
        final_states_out, pointers[FINAL_STATES] = family.new(x, call.operands.final_states)
    if call.device == HOST:
        _run_reference(call, given, out, final_states_out)
    else:
        call.enqueue(pointers, family)
    return (out, final_states_out) if return_final_states else out


class _Call(Call):
    """A forward convolution of arrays with these facts."""

    def __init__(self, operands: Operands, written: Sequence[int]) -> None:
        o = self.operands = operands
        layouts = (o.x, o.weight, o.bias, o.seq_idx, o.initial_states, o.out, o.final_states)
        super().__init__(ARGUMENTS, layouts, None if o.x.device == HOST else plan(o), written)


@Prepared
def _prepare(family: Family, return_final_states: bool, activation: str | None, *facts: Facts | None) -> _Call:
    """Check the arguments and decide how to run them; raises before anything is launched or written."""
    layouts = [
        None if fact is None else family.layout(argument, fact) for argument, fact in zip(ARGUMENTS, facts, strict=True)
    ]
    x, weight, bias, seq_idx, initial_states, out, final_states = layouts
    assert x is not None
    checks.rank("x", x.shape, "batch, dim, seqlen")
    checks.dtype("x", x.dtype, FLOATS)
    if family.name != "NumPy":
        checks.on_gpu("x", x.device, "a NumPy array is convolved on the CPU")
    batch, dim, seqlen = x.shape
    checks.between("batch of x", batch, 0, MAX_DIVIDEND)
    checks.between("dim of x", dim, 0, MAX_DIVIDEND)
    checks.taps(weight, bias, dim, widths())
    assert weight is not None
    width = weight.shape[1]
    states_shape = (batch, dim, width - 1)
    if final_states is not None and not return_final_states:
        raise ValueError(message("final_states_out", "an array", "None unless return_final_states is true"))
    if final_states is None and return_final_states:
        final_states = dense(states_shape, order_like(x), x)
    for argument, layout, shape, axes, dtypes in (
        ("seq_idx", seq_idx, (batch, seqlen), "batch, seqlen of x", (INT32,)),
        ("initial_states", initial_states, states_shape, "batch, dim of x, width - 1", (x.dtype,)),
        ("out", out, x.shape, "the shape of x", (x.dtype,)),
        ("final_states_out", final_states, states_shape, "batch, dim of x, width - 1", (x.dtype,)),
    ):
        if layout is not None:
            checks.dtype(argument, layout.dtype, dtypes)
            checks.shape(argument, layout.shape, shape, axes)
    for argument, layout in zip(ARGUMENTS, layouts, strict=True):
        if layout is not None:
            checks.device(argument, layout.device, x.device, "x")
    for argument, layout in (("out", out), ("final_states_out", final_states)):
        if layout is not None:
            checks.not_self_overlapping(argument, layout.shape, layout.strides)
    if out is None:
        out = dense(x.shape, order_like(x), x)
    silu = activation is not None
    written = [number for number in (OUT, FINAL_STATES) if layouts[number] is not None]
    return _Call(Operands(x, weight, bias, seq_idx, initial_states, out, final_states, silu), written)


def _run_reference(call: _Call, given: Sequence[Any], out: Any, final_states: Any) -> None:
    x, weight, bias, seq_idx, initial_states, *_ = given
    result, states = reference.causal_conv1d_fn(
        x, weight, bias, seq_idx, initial_states, "silu" if call.operands.silu else None
    )
    out[...] = result.astype(out.dtype)
    if final_states is not None:
        final_states[...] = states


def _through_dlpack(given: Sequence[Any], return_final_states: bool, activation: str | None) -> Any:
    """The same call on CuPy or NumPy arrays over the same memory, its results handed back to x's library."""
    x, weight, bias, seq_idx, initial_states, out, final_states_out = dlpack.imported(ARGUMENTS, given, "x")
    results = causal_conv1d_fn(
        x, weight, bias, seq_idx, initial_states, return_final_states, final_states_out, activation, out=out
    )
    exported = dlpack.exported(results if return_final_states else (results,), given[OUT:], like=given[0])
    return exported if return_final_states else exported[0]
