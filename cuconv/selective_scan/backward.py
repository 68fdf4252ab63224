"""The gradients of the selective scan, of whole sequences and of packed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cuconv.runtime import checks
from cuconv.runtime.dtypes import FLOAT32, INDICES
from cuconv.runtime.entry import quick
from cuconv.runtime.errors import message
from cuconv.runtime.launch import ceil_div
from cuconv.runtime.layout import Layout, dense, order_like
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import Arrays, Checked, Layouts
from cuconv.selective_scan import reference_backward
from cuconv.selective_scan.check import inputs, is_variable
from cuconv.selective_scan.kernels import MAX_TOKENS, chunk_tokens
from cuconv.selective_scan.plan_backward import BackwardOperands, plan


class SelectiveScanGradients(NamedTuple):
    """The gradients of a selective scan, each of the shape and dtype of its argument; None for one not given."""

    du: Any
    ddelta: Any
    dA: Any
    dB: Any
    dC: Any
    dD: Any
    dz: Any
    ddelta_bias: Any
    dinitial_state: Any


@quick
def selective_scan_bwd(
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    dout: Any = None,
    *,
    delta_softplus: bool = False,
    initial_state: Any = None,
    dlast_state: Any = None,
    chunk_states: Any = None,
    du: Any = None,
    ddelta: Any = None,
    dA: Any = None,
    dB: Any = None,
    dC: Any = None,
    dD: Any = None,
    dz: Any = None,
    ddelta_bias: Any = None,
    dinitial_state: Any = None,
) -> SelectiveScanGradients:
    """The gradients of selective_scan_fn, from those of its results.

    With the names of selective_scan_fn, a = exp(dt * A), y the result before the gate, gy = dout * silu(z), or dout
    without z, and e the gradient of the state after a token, which goes from the last token to the first,

        e[n, t] = C[n, t] * gy[t] + a[n, t + 1] * e[n, t + 1]; after the last token dlast_state takes the second part
        du[t] = dt * sum over n of e * B + D * gy          dz[t] = dout * y * (derivative of silu at z)
        dB[n, t] = sum over a group's channels of e * dt * u    dC[n, t] = sum over them of gy * h
        dA[n] = sum over batch and t of e * dt * a * h[t - 1]   dD = sum over batch and t of gy * u
        dinitial_state = a[0] * e[0]
        ddelta[t] = sum over n of e * (A * a * h[t - 1] + B * u), with delta_softplus times sigmoid(delta + delta_bias)

    and ddelta_bias the sum of ddelta over batch and t, all in float32. The sums have a fixed order: a call gives the
    same bits every time. For constant B and C, dB and dC are summed over batch and t, and not over channels.

    States are computed again from those before tokens 0, 256, 512, …, which selective_scan_fn leaves in
    chunk_states_out: (batch, n_chunks, dim, d_state) floats, 4 * d_state / 256 bytes per element of u. Without
    chunk_states one more launch finds them. Besides its results a call takes memory for three times as many floats, and
    for sums over channels. Unless a group has fewer than 2 * d_state channels, these take at most as much as du and
    ddelta together, or 8 MiB if that is more.

    Arrays are NumPy, CuPy, torch or DLPack ones, all of one kind and on one device, of any strides. Contiguous tokens
    are quickest; contiguous channels come next, where the channels of a group take a multiple of 16 bytes. Other arrays
    are copied first, and their gradients copied back: from 64 tokens on, arrays with contiguous tokens where u has
    contiguous channels, or the reverse; from 256 on, arrays with channels that are not aligned; up to 128, many rows
    that do not follow each other in memory. Kernels run on the caller's current stream. NumPy arrays are computed on
    the CPU, in float64.

    Args:
        u: (batch, dim, seqlen), float32, float16 or bfloat16; seqlen up to 2**30.
        delta: shape and dtype of u.
        A: (dim, d_state), float32, finite, d_state 1 to 256.
        B: (batch, d_state, seqlen) or (batch, ngroups, d_state, seqlen) of u's dtype, or a constant (dim, d_state) of
            u's dtype or float32.
        C: as B, with as many groups unless one of the two is a constant.
        D: (dim,), u's dtype or float32.
        z: shape and dtype of u: the gate.
        delta_bias: (dim,), u's dtype or float32.
        dout: shape and dtype of u: the gradient of the result, of any strides, also those of an expanded tensor.
        delta_softplus: whether dt is the softplus of delta + delta_bias.
        initial_state: (batch, dim, d_state), float32: the state before the first token, zeros when None.
        dlast_state: (batch, dim, d_state), float32: the gradient of the state after the last token, zeros when None.
        chunk_states: (batch, n_chunks, dim, d_state), float32: chunk_states_out of selective_scan_fn for the same
            arguments.
        du: shape and dtype of u: where to write its gradient. No result may overlap any other argument.
        ddelta: shape and dtype of delta: where to write its gradient.
        dA: (dim, d_state), float32: where to write the gradient of A.
        dB: shape and dtype of B: where to write its gradient.
        dC: shape and dtype of C: where to write its gradient.
        dD: shape and dtype of D: where to write its gradient; None without it.
        dz: shape and dtype of z: where to write its gradient; None without it.
        ddelta_bias: shape and dtype of delta_bias: where to write its gradient; None without it.
        dinitial_state: shape and dtype of initial_state: where to write its gradient; None without it.

    Returns:
        The gradients, each of its argument's shape and dtype and of the caller's kind; None for those of D, z,
        delta_bias and initial_state that are not given.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    given = (u, delta, A, B, C, D, z, delta_bias, dout, initial_state, dlast_state, chunk_states, None)
    results = (du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, dinitial_state)
    return SelectiveScanGradients(
        *_backward((*given, *results), (checks.flag("delta_softplus", delta_softplus), False))
    )


@quick
def selective_scan_varlen_bwd(
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    dout: Any = None,
    query_start_loc: Any = None,
    *,
    delta_softplus: bool = False,
    initial_state: Any = None,
    dlast_state: Any = None,
    du: Any = None,
    ddelta: Any = None,
    dA: Any = None,
    dB: Any = None,
    dC: Any = None,
    dD: Any = None,
    dz: Any = None,
    ddelta_bias: Any = None,
    dinitial_state: Any = None,
) -> SelectiveScanGradients:
    """The gradients of a selective scan of packed sequences: within each, those of selective_scan_bwd.

    Sequence i has the tokens query_start_loc[i] to query_start_loc[i + 1] - 1, begins with initial_state[i], and
    dlast_state[i] is the gradient of its last state. For an empty sequence dinitial_state[i] is dlast_state[i]. Tokens
    of no sequence have gradients of 0. Initial states are not a pool here, because selective_scan_varlen_fn overwrites
    its pool, but an array with one row per sequence. One more launch finds the states before every 256 tokens, which
    take memory as in selective_scan_bwd; short sequences with more than 16 states take more.

    The call waits for nothing, and a captured CUDA graph may be replayed with other sequences of the same total, unless
    CUCONV_CHECK=1 is in the environment, which reads query_start_loc back and checks it.

    Args:
        u: (dim, total), float32, float16 or bfloat16; total up to 2**30.
        delta: shape and dtype of u.
        A: (dim, d_state), float32, finite, d_state 1 to 256.
        B: (d_state, total) or (ngroups, d_state, total), u's dtype; channel d is of group d // (dim / ngroups).
        C: as B, with as many groups.
        D: (dim,), u's dtype or float32.
        z: shape and dtype of u: the gate.
        delta_bias: (dim,), u's dtype or float32.
        dout: shape and dtype of u: the gradient of the result, of any strides.
        query_start_loc: (sequences + 1,), int32 or int64, from 0 up to at most total, never falling. None: a single
            sequence.
        delta_softplus: whether dt is the softplus of delta + delta_bias.
        initial_state: (sequences, dim, d_state), float32: the states before the first tokens, zeros when None.
        dlast_state: (sequences, dim, d_state), float32: the gradients of the states after the last tokens, zeros when
            None.
        du: shape and dtype of u: where to write its gradient. No result may overlap any other argument.
        ddelta: shape and dtype of delta: where to write its gradient.
        dA: (dim, d_state), float32: where to write the gradient of A.
        dB: shape and dtype of B: where to write its gradient.
        dC: shape and dtype of C: where to write its gradient.
        dD: shape and dtype of D: where to write its gradient; None without it.
        dz: shape and dtype of z: where to write its gradient; None without it.
        ddelta_bias: shape and dtype of delta_bias: where to write its gradient; None without it.
        dinitial_state: shape and dtype of initial_state: where to write its gradient; None without it.

    Returns:
        The gradients, each of its argument's shape and dtype and of the caller's kind; None for those of D, z,
        delta_bias and initial_state that are not given.

    Raises:
        TypeError: a dtype that is not supported, or arrays of different kinds.
        ValueError: any other argument that does not fit. Nothing has been launched or written then.
    """
    given = (u, delta, A, B, C, D, z, delta_bias, dout, initial_state, dlast_state, None, query_start_loc)
    results = (du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, dinitial_state)
    return SelectiveScanGradients(*_backward((*given, *results), (checks.flag("delta_softplus", delta_softplus), True)))


INPUTS = (
    *("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "dout"),
    *("initial_state", "dlast_state", "chunk_states", "query_start_loc"),
)
OUTPUTS = SelectiveScanGradients._fields


def _check(given: Layouts, delta_softplus: bool, is_packed: bool) -> Checked[BackwardOperands]:
    axes = "dim, total" if is_packed else "batch, dim, seqlen"
    checked = inputs({**given, "out": None}, axes, delta_softplus)
    u, dout, starts = given["u"], given["dout"], given["query_start_loc"]
    assert u is not None
    batch, dim, tokens = checked.u.shape
    if dout is None:
        raise TypeError(message("dout", "None", f"an array ({axes})"))
    checks.dtype("dout", dout.dtype, (u.dtype,))
    checks.shape("dout", dout.shape, u.shape, f"{axes} of u")
    sequences = batch
    if starts is not None:
        checks.rank("query_start_loc", starts.shape, "sequences + 1")
        checks.dtype("query_start_loc", starts.dtype, INDICES)
        sequences = starts.shape[0] - 1
        checks.between("sequences of query_start_loc", sequences, 0, MAX_TOKENS)
    first = "sequences" if is_packed else "batch of u"
    for argument, shape, named in (
        ("initial_state", (sequences, dim, checked.d_state), f"{first}, dim of u, d_state of A"),
        ("dlast_state", (sequences, dim, checked.d_state), f"{first}, dim of u, d_state of A"),
        (
            "chunk_states",
            (batch, ceil_div(tokens, chunk_tokens()), dim, checked.d_state),
            "batch of u, chunks, dim of u, d_state of A",
        ),
    ):
        if (layout := given[argument]) is not None:
            checks.dtype(argument, layout.dtype, (FLOAT32,))
            checks.shape(argument, layout.shape, shape, named)
    sources = dict(zip(OUTPUTS, (*INPUTS[:8], "initial_state"), strict=True))
    for result_name, source in sources.items():
        made_by_caller, like = given[result_name], given[source]
        if made_by_caller is not None:
            if like is None:
                raise ValueError(message(result_name, "an array", f"None unless {source} is given"))
            checks.dtype(result_name, made_by_caller.dtype, (like.dtype,))
            checks.shape(result_name, made_by_caller.shape, like.shape, f"the shape of {source}")
    made = {name: given[name] or _gradient(source, given[source], is_packed) for name, source in sources.items()}
    inner: dict[str, Any] = {name: given[name] for name in INPUTS} | made
    inner |= {"B": checked.B, "C": checked.C}
    inner |= {
        "dB": _as_matrix(made["dB"], checked.B, is_packed),
        "dC": _as_matrix(made["dC"], checked.C, is_packed),
    }
    if is_packed:
        inner |= {name: _as_row(inner[name]) for name in ("u", "delta", "z", "dout", "du", "ddelta", "dz")}
    operands = BackwardOperands(**inner, delta_softplus=delta_softplus, is_packed=is_packed)
    return Checked(operands, made)


def _gradient(name: str, argument: Layout | None, is_packed: bool) -> Layout | None:
    """The layout of an argument's gradient: without gaps, with the argument's order of axes where that is faster."""
    if argument is None:
        return None
    is_variable_matrix = name in ("B", "C") and (is_packed or len(argument.shape) > 2)
    has_tokens = name in ("u", "delta", "z") or is_variable_matrix
    order = order_like(argument) if has_tokens else tuple(range(len(argument.shape)))
    return dense(argument.shape, order, argument)


def _as_row(layout: Layout | None) -> Layout | None:
    """(dim, total) as the one row of a batch."""
    return layout and layout._replace(shape=(1, *layout.shape), strides=(0, *layout.strides))


def _as_matrix(gradient: Layout | None, matrix: Layout, is_packed: bool) -> Layout | None:
    """The gradient of B or C with all the axes that the matrix has as an operand."""
    assert gradient is not None
    if not is_variable(matrix):
        return gradient
    has_groups = len(gradient.shape) == (3 if is_packed else 4)
    *outer, n, token = gradient.strides
    # Packed sequences have no batch axis; an axis of groups is optional.
    group = outer.pop() if has_groups else 0
    return gradient._replace(shape=matrix.shape, strides=(*(outer or (0,)), group, n, token))


def _check_contents(o: BackwardOperands, read: Callable[[str], Any]) -> None:
    """ValueError when what query_start_loc contains cannot be right."""
    if o.query_start_loc is not None:
        checks.boundaries("query_start_loc", read("query_start_loc"), o.u.shape[2])


def _reference(o: BackwardOperands, arrays: Arrays) -> None:
    named = {name: arrays[name] for name in INPUTS if name not in ("chunk_states", "query_start_loc")}
    if o.is_packed:
        results = reference_backward.selective_scan_varlen_bwd(
            **named, delta_softplus=o.delta_softplus, query_start_loc=arrays["query_start_loc"]
        )
    else:
        states = arrays["chunk_states"]
        results = reference_backward.selective_scan_bwd(**named, delta_softplus=o.delta_softplus, chunk_states=states)
    for name, result in zip(OUTPUTS, results, strict=True):
        if result is not None:
            arrays[name][...] = result.astype(arrays[name].dtype)


_backward = Operation(
    INPUTS,
    OUTPUTS,
    name="selective_scan_bwd",
    check=_check,
    plan=plan,
    reference=_reference,
    contents=_check_contents,
)
