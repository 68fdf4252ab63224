"""The last tokens of packed sequences: the convolution states that they leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv import arrays, checks, dlpack, reference
from cuconv.arrays import Facts, Family
from cuconv.call import Call, Launch, Prepared
from cuconv.dtypes import FLOATS, INDICES, INT64
from cuconv.errors import message
from cuconv.kernels.causal_conv1d_varlen_states import CausalConv1dVarlenStates
from cuconv.launch import MAX_DIVIDEND, widest_vector
from cuconv.layout import HOST, Layout, dense

ARGUMENTS = ("x", "cu_seqlens", "out")
OUT = ARGUMENTS.index("out")
ORDER = (0, 2, 1)


def causal_conv1d_varlen_states(x: Any, cu_seqlens: Any, state_len: int, *, out: Any = None) -> Any:
    """The last tokens of packed sequences, with the meaning it has in Dao-AILab's causal-conv1d.

    Arrays are NumPy, CuPy, torch CUDA or DLPack ones, all of one kind and on one device, of any strides. The kernel
    runs on the caller's current stream; nothing is awaited but under CUCONV_CHECK=1, which checks cu_seqlens.

    Args:
        x: (total, dim), float32, float16 or bfloat16.
        cu_seqlens: (sequences + 1,), int32 or int64, from 0 up to at most total, never falling.
        state_len: how many tokens, at least 1.
        out: (sequences, dim, state_len), x's dtype: where to write the result. It must not overlap any other argument.

    Returns:
        (sequences, dim, state_len), channels contiguous in memory: column state_len - 1 holds a sequence's last token,
        and columns before its first one hold 0.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    checks.natural("state_len", state_len)
    given = (x, cu_seqlens, out)
    family = arrays.family(x)
    if family is None:
        own_x, own_cu_seqlens, own_out = dlpack.imported(ARGUMENTS, given, "x")
        result = causal_conv1d_varlen_states(own_x, own_cu_seqlens, state_len, out=own_out)
        return dlpack.exported([result], [out], like=x)[0]

    pointers, facts = family.inspect(ARGUMENTS, given)
    call = _prepare((family, state_len), facts)
    call.check_overlap(pointers)
    if family.checks_contents():
        checks.boundaries("cu_seqlens", family.to_host(cu_seqlens), call.x.shape[0])
    if out is None:
        out, pointers[OUT] = family.new(x, call.out)
    if call.device == HOST:
        out[...] = reference.causal_conv1d_varlen_states(x, cu_seqlens, state_len)
    else:
        call.enqueue(pointers, family)
    return out


class _Call(Call):
    """A call on arrays with these facts."""

    def __init__(self, x: Layout, cu_seqlens: Layout, out: Layout, written: Sequence[int]) -> None:
        launch = None if x.device == HOST else plan(x, cu_seqlens, out)
        super().__init__(ARGUMENTS, (x, cu_seqlens, out), launch, written)
        self.x = x
        self.out = out


@Prepared
def _prepare(family: Family, state_len: int, *facts: Facts | None) -> _Call:
    """Check the arguments and decide how to run them; raises before anything is launched or written."""
    x, cu_seqlens, out = (
        None if fact is None else family.layout(argument, fact) for argument, fact in zip(ARGUMENTS, facts, strict=True)
    )
    assert x is not None
    if cu_seqlens is None:
        raise TypeError(message("cu_seqlens", "None", "an array (sequences + 1)"))
    checks.rank("x", x.shape, "total, dim")
    checks.dtype("x", x.dtype, FLOATS)
    if family.name != "NumPy":
        checks.on_gpu("x", x.device, "a NumPy array is processed on the CPU")
    checks.between("dim of x", x.shape[1], 0, MAX_DIVIDEND)
    checks.rank("cu_seqlens", cu_seqlens.shape, "sequences + 1")
    checks.dtype("cu_seqlens", cu_seqlens.dtype, INDICES)
    count = cu_seqlens.shape[0] - 1
    checks.between("sequences of cu_seqlens", count, 0, MAX_DIVIDEND)
    checks.device("cu_seqlens", cu_seqlens.device, x.device, "x")
    shape = (count, x.shape[1], state_len)
    if out is None:
        out = dense(shape, ORDER, x)
    checks.dtype("out", out.dtype, (x.dtype,))
    checks.shape("out", out.shape, shape, "sequences, dim of x, state_len")
    checks.device("out", out.device, x.device, "x")
    checks.not_self_overlapping("out", out.shape, out.strides)
    return _Call(x, cu_seqlens, out, [OUT] * (facts[OUT] is not None))


def plan(x: Layout, cu_seqlens: Layout, out: Layout) -> Launch | None:
    """The launch that computes a call, None when it has nothing to compute."""
    if out.size == 0:
        return None
    total, dim = x.shape
    vec = 1
    if dim == 1 or (x.strides[1] == 1 and out.strides[1] == 1):
        vec = widest_vector(x.itemsize, dim, x.first, out.first, *x.active(0), *out.active(0, 2))
    assert not isinstance(x.dtype, str)  # _prepare has checked it
    kernel = CausalConv1dVarlenStates(x.dtype, vec)
    config, division = kernel.launch_config(*out.shape)
    numbers = kernel.params.pack_numbers(
        x_stride=x.strides,
        out_stride=out.strides,
        cu_seqlens_stride=cu_seqlens.strides[0],
        total=total,
        cu_seqlens_is_int64=cu_seqlens.dtype is INT64,
        **division,
    )
    return Launch(kernel, config, numbers)
