"""The last tokens of packed sequences: the convolution states that a prefill leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cuconv.causal_conv1d import reference
from cuconv.causal_conv1d.kernels_varlen import MANY_COLUMNS, MANY_VECTORS, CausalConv1dVarlenStates
from cuconv.runtime import checks
from cuconv.runtime.dtypes import FLOATS
from cuconv.runtime.entry import quick
from cuconv.runtime.errors import message
from cuconv.runtime.launch import MAX_DIVIDEND, widest_vector
from cuconv.runtime.layout import Layout, dense, index_numbers, strides_or_zeros
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import Arrays, Checked, Launch, Layouts, Plan


@quick
def causal_conv1d_varlen_states(
    x: Any, cu_seqlens: Any, state_len: int, *, previous_states: Any = None, out: Any = None
) -> Any:
    """The last tokens of packed sequences, with the meaning it has in Dao-AILab's causal-conv1d.

    Arrays are NumPy, CuPy, torch or DLPack ones, all of one kind and on one device, of any strides. The kernel
    runs on the caller's current stream, and the call waits for nothing, except under CUCONV_CHECK=1, which reads
    cu_seqlens back and checks it.

    Args:
        x: (total, dim), float32, float16 or bfloat16.
        cu_seqlens: (sequences + 1,), int32 or int64, from 0 up to at most total, never falling.
        state_len: number of tokens per sequence, at least 1.
        previous_states: (sequences, dim, state_len), x's dtype: the tokens before each sequence's first, the latest in
            the last column: the result for the chunk before.
        out: (sequences, dim, state_len), x's dtype: where to write the result. It must not overlap any other argument.

    Returns:
        (sequences, dim, state_len), channels contiguous in memory: column state_len - 1 holds a sequence's last token,
        and columns before its first one hold the last of previous_states, or 0 without them.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    (result,) = _states((x, cu_seqlens, previous_states, out), (checks.natural("state_len", state_len),))
    return result


def window(states: Layout, columns: int, first_column: int | None) -> Layout:
    """The part of a pool (slots, dim, state_len) that a call works on: its first columns where `first_column` is 0."""
    return states._replace(shape=(*states.shape[:2], columns)) if first_column == 0 else states


class Operands(NamedTuple):
    """The layouts of one valid call."""

    x: Layout
    """(total, dim)."""
    cu_seqlens: Layout
    """(sequences + 1,)."""
    previous_states: Layout | None
    """(sequences, dim, state_len)."""
    out: Layout
    """(sequences, dim, state_len)."""


def _check(given: Layouts, state_len: int) -> Checked[Operands]:
    x, cu_seqlens, previous_states, out = given.values()
    assert x is not None
    if cu_seqlens is None:
        raise TypeError(message("cu_seqlens", "None", "an array (sequences + 1)"))
    checks.rank("x", x.shape, "total, dim")
    checks.dtype("x", x.dtype, FLOATS)
    checks.between("dim of x", x.shape[1], 0, MAX_DIVIDEND)
    count = checks.starts("cu_seqlens", cu_seqlens, MAX_DIVIDEND)
    checks.between("state_len", state_len, 1, MAX_DIVIDEND)
    shape = (count, x.shape[1], state_len)
    out = out or dense(shape, (0, 2, 1), x)
    for argument, layout in (("previous_states", previous_states), ("out", out)):
        if layout is not None:
            checks.dtype(argument, layout.dtype, (x.dtype,))
            checks.shape(argument, layout.shape, shape, "sequences, dim of x, state_len")
    return Checked(Operands(x, cu_seqlens, previous_states, out), {"out": out})


def plan(o: Operands) -> Plan:
    """The launch that computes a call."""
    x, cu_seqlens, previous, out = o
    if out.size == 0:
        return Plan()
    total, dim = x.shape
    vec = 1
    states = (out,) if previous is None else (out, previous)
    if dim == 1 or all(each.strides[1] == 1 for each in (x, *states)):
        begins = [each.first for each in (x, *states)]
        vec = widest_vector(x.itemsize, dim, *begins, *x.active(0), *(n for each in states for n in each.active(0, 2)))
    assert not isinstance(x.dtype, str)  # _check has seen to that
    kernel = CausalConv1dVarlenStates(x.dtype, vec, MANY_COLUMNS if out.size // vec >= MANY_VECTORS else 1)
    config, division = kernel.launch_config(*out.shape)
    indices = index_numbers(cu_seqlens=cu_seqlens)
    strides = {
        "x_stride": x.strides,
        "previous_states_stride": strides_or_zeros(previous, 3),
        "out_stride": out.strides,
    }
    launch = Launch.packed(kernel, config, total=total, **strides, **indices, **division)
    return Plan((launch,))


def _check_contents(o: Operands, read: Callable[[str], Any]) -> None:
    checks.boundaries("cu_seqlens", read("cu_seqlens"), o.x.shape[0])


def _reference(o: Operands, arrays: Arrays) -> None:
    arrays["out"][...] = reference.causal_conv1d_varlen_states(
        arrays["x"], arrays["cu_seqlens"], o.out.shape[2], arrays["previous_states"]
    )


_states = Operation(
    ("x", "cu_seqlens", "previous_states"),
    ("out",),
    name="causal_conv1d_varlen_states",
    check=_check,
    plan=plan,
    reference=_reference,
    contents=_check_contents,
)
