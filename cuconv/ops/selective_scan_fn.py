"""The selective scan of Mamba: the public function and the checks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv import arrays, checks, dlpack, reference
from cuconv.arrays import Facts, Family
from cuconv.call import Call, Prepared
from cuconv.dtypes import FLOAT32
from cuconv.errors import message
from cuconv.kernels import scan
from cuconv.launch import ceil_div
from cuconv.layout import HOST, dense
from cuconv.ops.causal_conv1d_plan import order_like
from cuconv.ops.selective_scan_operands import Operands, matrices, rows
from cuconv.ops.selective_scan_plan import plan, scratch_size

CHUNK = scan.CHUNK
"""Tokens of a chunk, before each of which chunk_states_out has the state."""

INPUTS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
ARGUMENTS = (*INPUTS, "out", "last_state_out", "chunk_states_out")
"""The arrays of a call, in the order of the kernels' pointers."""

OUT, LAST_STATE, CHUNK_STATES = range(len(INPUTS), len(ARGUMENTS))
STATE_ORDER = (0, 1, 2)


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

        dt = delta[b, d, t] + delta_bias[d], or with delta_softplus log(1 + exp(that)), above 20 that itself
        h[n] = h[n] * exp(dt * A[d, n]) + dt * B[n] * u[b, d, t]
        out[b, d, t] = (sum over n of C[n] * h[n] + D[d] * u[b, d, t]) * silu(z[b, d, t])

    in float32 (Gu and Dao, "Mamba", 2023, equation 2, with A discretised by zero-order hold and B as dt * B). B[n] and
    C[n] are those of the token and of the channel's group: channel d is of group d // (dim / ngroups). A sequence in
    chunks, each beginning with the last state of the one before, gives the result of the whole within rounding errors.

    Arrays are NumPy, CuPy, torch CUDA or DLPack ones, all of one kind and on one device, of any strides; contiguous
    tokens have vector kernels. Kernels run on the caller's current stream. Where there are few channels, long
    sequences are cut and their parts scanned at the same time, with memory for a state a part from the library of u,
    which stays taken when a graph is captured from CuPy. NumPy arrays are computed on the CPU, in float64.

    Args:
        u: (batch, dim, seqlen), float32, float16 or bfloat16; seqlen up to 2**30.
        delta: shape and dtype of u.
        A: (dim, d_state), float32, d_state 1 to 256.
        B: (batch, d_state, seqlen) or (batch, ngroups, d_state, seqlen) of u's dtype, or a constant (dim, d_state) of
            u's dtype or float32.
        C: as B, and with as many groups unless one of them is a constant.
        D: (dim,), u's dtype or float32.
        z: shape and dtype of u: the gate.
        delta_bias: (dim,), u's dtype or float32.
        delta_softplus: whether dt is the softplus of delta + delta_bias.
        return_last_state: also return the state after the last token.
        initial_state: (batch, dim, d_state), float32: the state before the first token, zeros when None.
        out: shape and dtype of u: where to write the result. It must not overlap any other argument, and neither must
            the two arrays that follow.
        last_state_out: (batch, dim, d_state), float32: where to write the last state.
        chunk_states_out: (batch, n_chunks, dim, d_state), float32, with one chunk for every CHUNK = 256 tokens that
            have begun: where to write the states before tokens 0, CHUNK, 2 * CHUNK, …

    Returns:
        out, laid out in memory like u, or (out, last_state): of the caller's kind and on the caller's device.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    given = (u, delta, A, B, C, D, z, delta_bias, initial_state, out, last_state_out, chunk_states_out)
    family = arrays.family(u)
    if family is None:
        return _through_dlpack(given, bool(delta_softplus), bool(return_last_state))

    pointers, facts = family.inspect(ARGUMENTS, given)
    call = _prepare((family, bool(delta_softplus), bool(return_last_state)), facts)
    call.check_overlap(pointers)
    o = call.operands
    if out is None:
        out, pointers[OUT] = family.new(u, o.out)
    if last_state_out is None and o.last_state is not None:
        # A has the dtype of states.
        last_state_out, pointers[LAST_STATE] = family.new(A, o.last_state)
    if call.device == HOST:
        _run_reference(o, given, out, last_state_out, chunk_states_out)
    elif call.scratch:
        scratch, address = family.new(A, call.scratch)
        family.keep_if_captured(scratch, call.device)
        call.enqueue([*pointers, address], family)
    else:
        call.enqueue(pointers, family)
    return (out, last_state_out) if return_last_state else out


class _Call(Call):
    """A scan of arrays with these facts."""

    def __init__(self, operands: Operands, written: list[int]) -> None:
        o = self.operands = operands
        layouts = (o.u, o.delta, o.A, o.B, o.C, o.D, o.z, o.delta_bias, o.initial_state)
        is_on_host = o.u.device == HOST
        launch = None if is_on_host else plan(o)
        super().__init__(ARGUMENTS, (*layouts, o.out, o.last_state, o.chunk_states), launch, written)
        size = 0 if is_on_host else scratch_size(o)
        self.scratch = dense((size,), (0,), o.A) if size else None


@Prepared
def _prepare(family: Family, delta_softplus: bool, return_last_state: bool, *facts: Facts | None) -> _Call:
    """Check the arguments and decide how to run them; raises before anything is launched or written."""
    given = {
        argument: None if fact is None else family.layout(argument, fact)
        for argument, fact in zip(ARGUMENTS, facts, strict=True)
    }
    u, A = given["u"], given["A"]
    assert u is not None
    if family.name != "NumPy":
        checks.on_gpu("u", u.device, "a NumPy array is scanned on the CPU")
    batch, dim, seqlen = rows(given, "batch, dim, seqlen")
    B, C = matrices(given)
    assert A is not None
    state = (batch, dim, A.shape[1])
    last_state = given["last_state_out"]
    if last_state is not None and not return_last_state:
        raise ValueError(message("last_state_out", "an array", "None unless return_last_state is true"))
    chunked = (batch, ceil_div(seqlen, CHUNK), *state[1:])
    for argument, shape, axes in (
        ("initial_state", state, "batch, dim of u, d_state of A"),
        ("last_state_out", state, "batch, dim of u, d_state of A"),
        ("chunk_states_out", chunked, "batch of u, chunks, dim of u, d_state of A"),
    ):
        if (layout := given[argument]) is not None:
            checks.dtype(argument, layout.dtype, (FLOAT32,))
            checks.shape(argument, layout.shape, shape, axes)
    written = [number for number in (OUT, LAST_STATE, CHUNK_STATES) if given[ARGUMENTS[number]] is not None]
    for argument, layout in given.items():
        if layout is not None:
            checks.device(argument, layout.device, u.device, "u")
            if ARGUMENTS.index(argument) in written:
                checks.not_self_overlapping(argument, layout.shape, layout.strides)
    if last_state is None and return_last_state:
        last_state = dense(state, STATE_ORDER, A)
    inputs = given | {"B": B, "C": C, "out": given["out"] or dense(u.shape, order_like(u), u)}
    named: dict[str, Any] = {name: inputs[name] for name in (*INPUTS, "out")}
    chunk_states = given["chunk_states_out"]
    return _Call(
        Operands(**named, delta_softplus=delta_softplus, last_state=last_state, chunk_states=chunk_states), written
    )


def _run_reference(o: Operands, given: Sequence[Any], out: Any, last_state: Any, chunk_states: Any) -> None:
    u, delta, A, B, C, D, z, delta_bias, initial_state, *_ = given
    result = reference.selective_scan_fn(u, delta, A, B, C, D, z, delta_bias, o.delta_softplus, initial_state, CHUNK)
    out[...] = result.out.astype(out.dtype)
    if last_state is not None:
        last_state[...] = result.last_state
    if chunk_states is not None:
        chunk_states[...] = result.chunk_states


def _through_dlpack(given: Sequence[Any], delta_softplus: bool, return_last_state: bool) -> Any:
    """The same call on CuPy or NumPy arrays over the same memory, its results handed back to u's library."""
    imported = dict(zip(ARGUMENTS, dlpack.imported(ARGUMENTS, given, "u"), strict=True))
    results = selective_scan_fn(**imported, delta_softplus=delta_softplus, return_last_state=return_last_state)
    exported = dlpack.exported(results if return_last_state else (results,), given[OUT:], like=given[0])
    return exported if return_last_state else exported[0]
