"""The selective scan of whole sequences."""

from __future__ import annotations

from typing import Any

from cuconv.runtime import checks
from cuconv.runtime.dtypes import FLOAT32
from cuconv.runtime.entry import quick
from cuconv.runtime.errors import message
from cuconv.runtime.launch import ceil_div
from cuconv.runtime.layout import dense
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import Arrays, Checked, Layouts
from cuconv.selective_scan import reference
from cuconv.selective_scan.check import inputs
from cuconv.selective_scan.kernels import chunk_tokens
from cuconv.selective_scan.plan_dense import Operands, plan


@quick
def selective_scan_fn(
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    initial_state: Any = None,
    out: Any = None,
    last_state_out: Any = None,
    chunk_states_out: Any = None,
) -> Any:
    """The selective state space model of Mamba over whole sequences, with the meaning it has in mamba_ssm.

    For every batch entry b, channel d and token t, with h a state of d_state numbers,

        dt = delta[b, d, t] + delta_bias[d]; with delta_softplus, dt = log(1 + exp(dt)) unless dt > 20
        h[n] = h[n] * exp(dt * A[d, n]) + dt * B[n] * u[b, d, t]
        out[b, d, t] = (sum over n of C[n] * h[n] + D[d] * u[b, d, t]) * silu(z[b, d, t])

    in float32 (Gu and Dao, "Mamba", 2023, equation 2, with A discretised by zero-order hold and B as dt * B). B[n] and
    C[n] are those of token t and of the group of channel d, which is d // (dim / ngroups). A sequence computed in
    chunks, each starting from the last state of the chunk before, gives the same result within rounding errors.

    Arrays are NumPy, CuPy, torch or DLPack ones, all of one kind and on one device, of any strides. Contiguous tokens
    have vector kernels, and so have contiguous channels with contiguous states in B and C, where dim and d_state are
    multiples of 16 bytes. From 64 tokens on, delta, z, B and C are copied first where they have contiguous tokens and u
    contiguous channels, or the reverse. From 32 tokens on, B and C are copied, up to 8 times, where rows of contiguous
    tokens are not aligned to 16 bytes, but alike in all arrays. From 256 tokens on, most other arrays that are not
    aligned are copied, and results copied back. Kernels run on the caller's current stream. Where there are few
    channels, long sequences are cut into segments that are scanned at the same time. Memory for copies, and for one
    state per segment, comes from the library of u, and stays allocated when a graph is captured from CuPy. Where
    several lanes share the tokens of a channel, an infinite state may become NaN. NumPy arrays are computed on the CPU,
    in float64.

    Args:
        u: (batch, dim, seqlen), float32, float16 or bfloat16; seqlen up to 2**30.
        delta: shape and dtype of u.
        A: (dim, d_state), float32, finite, d_state 1 to 256.
        B: (batch, d_state, seqlen) or (batch, ngroups, d_state, seqlen) of u's dtype, or a constant (dim, d_state) of
            u's dtype or float32.
        C: shape and dtype as for B, with as many groups unless one of the two is a constant.
        D: (dim,), u's dtype or float32.
        z: shape and dtype of u: the gate.
        delta_bias: (dim,), u's dtype or float32.
        delta_softplus: whether dt is the softplus of delta + delta_bias.
        return_last_state: also return the state after the last token.
        initial_state: (batch, dim, d_state), float32: the state before the first token, zeros when None.
        out: shape and dtype of u: where to write the result. It must not overlap any other argument, and neither must
            the two arrays that follow.
        last_state_out: (batch, dim, d_state), float32: where to write the last state. None unless return_last_state is
            true.
        chunk_states_out: (batch, n_chunks, dim, d_state), float32, n_chunks = ceil(seqlen / 256): where to write the
            states before tokens 0, 256, 512, …

    Returns:
        out, laid out in memory like u, or (out, last_state): of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    given = (u, delta, A, B, C, D, z, delta_bias, initial_state, out, last_state_out, chunk_states_out)
    flags = checks.flag("delta_softplus", delta_softplus), checks.flag("return_last_state", return_last_state)
    out, last_state, _ = _scan(given, (*flags, False))
    return (out, last_state) if return_last_state else out


def _check(given: Layouts, delta_softplus: bool, return_last_state: bool, keep_chunk_states: bool) -> Checked[Operands]:
    """The checked call; with keep_chunk_states a new chunk_states_out is made, which a backward pass starts from."""
    checked = inputs(given, "batch, dim, seqlen", delta_softplus)
    batch, dim, seqlen = checked.u.shape
    state = (batch, dim, checked.d_state)
    last_state = given["last_state_out"]
    if last_state is not None and not return_last_state:
        raise ValueError(message("last_state_out", "an array", "None unless return_last_state is true"))
    chunked = (batch, ceil_div(seqlen, chunk_tokens()), *state[1:])
    for argument, shape, axes in (
        ("initial_state", state, "batch, dim of u, d_state of A"),
        ("last_state_out", state, "batch, dim of u, d_state of A"),
        ("chunk_states_out", chunked, "batch of u, chunks, dim of u, d_state of A"),
    ):
        if (layout := given[argument]) is not None:
            checks.dtype(argument, layout.dtype, (FLOAT32,))
            checks.shape(argument, layout.shape, shape, axes)
    if last_state is None and return_last_state:
        last_state = dense(state, (0, 1, 2), checked.A)
    chunk_states = given["chunk_states_out"]
    if chunk_states is None and keep_chunk_states:
        chunk_states = dense(chunked, (0, 1, 2, 3), checked.A)
    operands = Operands(checked, given["initial_state"], last_state, chunk_states)
    outputs = {"out": checked.out, "last_state_out": last_state, "chunk_states_out": operands.chunk_states}
    return Checked(operands, outputs)


def _reference(o: Operands, arrays: Arrays) -> None:
    u, delta, A, B, C, D, z, delta_bias, initial_state, out, last_state, chunk_states = arrays.values()
    softplus = o.inputs.delta_softplus
    result = reference.selective_scan_fn(u, delta, A, B, C, D, z, delta_bias, softplus, initial_state)
    out[...] = result.out.astype(out.dtype)
    if last_state is not None:
        last_state[...] = result.last_state
    if chunk_states is not None:
        chunk_states[...] = result.chunk_states


_scan = Operation(
    ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state"),
    ("out", "last_state_out", "chunk_states_out"),
    name="selective_scan_fn",
    check=_check,
    plan=plan,
    reference=_reference,
)
