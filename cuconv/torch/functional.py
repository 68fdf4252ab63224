"""Functions composed of the public ones: packed convolutions and scans with states, and Mamba's inner part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cuconv.causal_conv1d.kernels import WIDTHS
from cuconv.runtime import checks
from cuconv.runtime.errors import message
from cuconv.runtime.tracing import is_recorded
from cuconv.torch.derivatives import PackedScan, PackedWithStates, sequences
from cuconv.torch.inner import NO_NORMS, Inner, Norms, compose, turned
from cuconv.torch.operators import refuse_transforms


def causal_conv1d_packed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    activation: str | None = None,
) -> Any:
    """`causal_conv1d_varlen_fn` with states that are arguments and results, so that autograd follows them, too.

    Args:
        x: (dim, total), float32, float16 or bfloat16, on the CPU float64 as well.
        weight: (dim, width).
        bias: (dim,), weight's dtype or float32.
        query_start_loc: (sequences + 1,), int32 or int64; a single sequence when None.
        initial_states: (sequences, dim, width - 1), x's dtype: the inputs before each sequence; zeros when None.
        return_final_states: also return the last width - 1 inputs of each sequence.
        activation: None, "silu" or "swish".

    Returns:
        out, or (out, final_states) with final_states (sequences, dim, width - 1) of x's dtype.

    Raises:
        TypeError, ValueError: as `causal_conv1d_varlen_fn`.
    """
    if not (traced := torch.compiler.is_compiling()):
        refuse_transforms("causal_conv1d_packed")
    tensors(x=x, weight=weight)
    tensors(may_lack=True, bias=bias, query_start_loc=query_start_loc, initial_states=initial_states)
    checks.activation(activation)
    return_final_states = checks.flag("return_final_states", return_final_states)
    # The operation checks shapes, too, but the shape of states is made of these before.
    checks.rank("x", x.shape, "dim, total")
    checks.rank("weight", weight.shape, "dim, width")
    checks.between("width of weight", weight.shape[1], WIDTHS[0], WIDTHS[-1])
    if initial_states is not None:
        shape = (sequences(query_start_loc), x.shape[0], weight.shape[1] - 1)
        _check_states("initial_states", initial_states, shape, "sequences, dim of x, width - 1", "x", x.dtype)
    apply = PackedWithStates.traced if traced else PackedWithStates.eager
    out, final_states = apply(x, weight, bias, query_start_loc, initial_states, activation)
    return (out, final_states) if return_final_states else out


def selective_scan_packed(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    query_start_loc: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_last_state: bool = False,
) -> Any:
    """`selective_scan_varlen_fn` with states that are arguments and results, so that autograd follows them, too.

    Args:
        u: (dim, total), float32, float16 or bfloat16, on the CPU float64 as well.
        delta: shape and dtype of u.
        A: (dim, d_state), float32; float64 beside float64.
        B, C: (d_state, total) or (ngroups, d_state, total), u's dtype.
        D, delta_bias: (dim,), u's dtype or float32.
        z: shape and dtype of u: the gate.
        delta_softplus: whether the step is the softplus of delta + delta_bias.
        query_start_loc: (sequences + 1,), int32 or int64; a single sequence when None.
        initial_state: (sequences, dim, d_state), A's dtype: the state before each sequence; zeros when None.
        return_last_state: also return the state after each sequence.

    Returns:
        out, or (out, last_state) with last_state (sequences, dim, d_state) of A's dtype.

    Raises:
        TypeError, ValueError: as `selective_scan_varlen_fn`.
    """
    if not (traced := torch.compiler.is_compiling()):
        refuse_transforms("selective_scan_packed")
    tensors(u=u, A=A)
    tensors(may_lack=True, query_start_loc=query_start_loc, initial_state=initial_state)
    return_last_state = checks.flag("return_last_state", return_last_state)
    if initial_state is not None:
        shape = (sequences(query_start_loc), *A.shape)
        _check_states("initial_state", initial_state, shape, "sequences, dim of u, d_state of A", "A", A.dtype)
    inputs = (u, delta, A, B, C, D, z, delta_bias, query_start_loc, initial_state)
    apply = PackedScan.traced if traced else PackedScan.eager
    out, last_state = apply(*inputs, checks.flag("delta_softplus", delta_softplus), return_last_state)
    return (out, last_state) if return_last_state else out


def tensors(may_lack: bool = False, **given: Any) -> None:
    """Check that these arguments are tensors, or None if `may_lack`."""
    for name, each in given.items():
        if not (isinstance(each, Tensor) or (may_lack and each is None)):
            got = "None" if each is None else f"a {type(each).__name__}"
            raise TypeError(message(name, got, "a tensor or None" if may_lack else "a tensor"))


def _check_states(
    argument: str, states: Tensor, shape: tuple[int, ...], axes: str, source: str, dtype: torch.dtype
) -> None:
    checks.shape(argument, tuple(states.shape), shape, axes)
    if states.dtype != dtype:
        raise TypeError(message(argument, f"dtype {states.dtype}", f"{dtype}, that of {source}"))


def mamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Tensor | None = None,
    c_rms_weight: Tensor | None = None,
    dt_rms_weight: Tensor | None = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> Tensor:
    """The Mamba block between its two projections and the output projection, as mamba_ssm has it.

    With x and z the halves of xz: u = silu(conv(x)); p = x_proj(u), which is r numbers for delta, then B, then C;
    delta = delta_proj(the first r); out = out_proj(scan(u, delta, A, B, C, D, z)) (Gu and Dao, "Mamba", 2023, fig. 3).

    Args:
        xz: (batch, 2 * dim, seqlen).
        conv1d_weight: (dim, 1, width).
        conv1d_bias: (dim,).
        x_proj_weight: (r + d_state for each of B and C that is None, dim); B's rows follow delta's, C's are the last.
        delta_proj_weight: (dim, r).
        out_proj_weight: (d_model, dim).
        out_proj_bias: (d_model,).
        A, B, C, D, delta_bias, delta_softplus: as `selective_scan_fn` takes them; B and C from x_proj when None.
        B_proj_bias, C_proj_bias: (d_state,), added to B and C from x_proj.
        checkpoint_lvl: 1 computes u and delta again in the backward pass, 0 keeps them. They are also kept where B or
            C is given, and by torch.compile.
        b_rms_weight, c_rms_weight: (d_state,): weights of root mean square norms of B and C over the states.
        dt_rms_weight: (dim,): weights of such a norm of delta over the channels, after delta_proj, as in mamba_ssm; or
            (r,): of the r numbers that delta_proj takes, as in FalconMamba.
        b_c_dt_rms_eps: added to the mean squares of these norms.

    Returns:
        (batch, seqlen, d_model).

    Raises:
        TypeError, ValueError: as `causal_conv1d_fn` and `selective_scan_fn`.
    """
    checks.choice("checkpoint_lvl", checkpoint_lvl, (0, 1))
    if A.is_complex():
        raise TypeError(message("A", f"dtype {str(A.dtype).removeprefix('torch.')}", "float32"))
    rows = delta_proj_weight.shape[1] + A.shape[-1] * ((B is None) + (C is None))
    if x_proj_weight.shape[0] != rows:
        wanted = f"{rows}: r of delta_proj_weight and d_state of A for each of B and C that is None"
        raise ValueError(message("rows of x_proj_weight", x_proj_weight.shape[0], wanted))
    if dt_rms_weight is not None:
        dim, rank = delta_proj_weight.shape
        if tuple(dt_rms_weight.shape) not in ((dim,), (rank,)):
            raise ValueError(message("shape of dt_rms_weight", tuple(dt_rms_weight.shape), f"({dim},) or ({rank},)"))
    if not (traced := torch.compiler.is_compiling()):
        refuse_transforms("mamba_inner_fn")
    if xz.stride(-1) != 1:
        # A copy costs less than kernels of scans that cannot read neighbouring tokens at once.
        xz = turned(xz)
    projections = (x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias)
    inputs = (xz, conv1d_weight, conv1d_bias, *projections, A, D, delta_bias, delta_softplus)
    own = (B_proj_bias, C_proj_bias, b_rms_weight, c_rms_weight, dt_rms_weight)
    has_norms, norms = any(each is not None for each in own), Norms(*own, b_c_dt_rms_eps)
    if traced or is_recorded() or B is not None or C is not None:
        return compose(*inputs, B, C, norms if has_norms else NO_NORMS)
    result: Tensor = Inner.eager(*inputs, checkpoint_lvl == 0, *(norms if has_norms else ()))
    return result
