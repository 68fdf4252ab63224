"""mamba_ssm's functions, with its names, parameters and meaning, by cuconv."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cuconv.selective_scan import dense
from cuconv.selective_state_update import update
from cuconv.torch.functional import mamba_inner_fn

__all__ = ["mamba_inner_fn", "selective_scan_fn", "selective_state_update"]


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """`cuconv.selective_scan_fn`, for any mixture of dtypes: B, C and z may be rounded, u and delta are not.

    Flags may be None, as some programs give them, which counts as false.
    """
    kind, flags = u.dtype, (bool(delta_softplus), bool(return_last_state))
    if delta.dtype != kind or B.dtype != kind or C.dtype != kind or (z is not None and z.dtype != kind):
        wide = kind if delta.is_complex() else torch.promote_types(kind, delta.dtype)
        u, delta, z = u.to(wide), _converted(delta, wide), _converted(z, wide)
        # Constants are of float32, too.
        B, C = (_converted(each, wide) if each.dim() > 2 or each.dtype != torch.float32 else each for each in (B, C))
        D, delta_bias = (
            each if each is None or each.dtype == torch.float32 else _converted(each, wide) for each in (D, delta_bias)
        )
    result = dense.selective_scan_fn(u, delta, A, B, C, D, z, delta_bias, *flags)
    if u.dtype == kind:
        return result
    return (result[0].to(kind), result[1]) if return_last_state else result.to(kind)


def _converted(argument: Any, dtype: torch.dtype) -> Any:
    """The argument in this dtype, or as it is where it is absent, or complex and thus refused."""
    return argument if argument is None or argument.is_complex() else argument.to(dtype)


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """`cuconv.selective_state_update`, for any mixture of dtypes; autograd does not follow it.

    dt_softplus may be None, which counts as false.
    """
    kind, others = x.dtype, (dt, A, B, C, D, z, dt_bias)
    with torch.no_grad():
        if any(each is not None and each.dtype != kind for each in (B, C, z)) or any(
            each is not None and each.dtype not in (kind, torch.float32) for each in (dt, A, D, dt_bias)
        ):
            wide = torch.float64 if kind == torch.float64 else torch.float32
            x = x.to(wide)
            # Complex arguments stay complex, and are refused.
            others = tuple(  # type: ignore[assignment]
                each.to(wide) if each is not None and each.is_floating_point() else each for each in others
            )
        out: Tensor = update.selective_state_update(
            state, x, *others, dt_softplus=bool(dt_softplus), state_batch_indices=state_batch_indices
        )
    return out.to(kind)
