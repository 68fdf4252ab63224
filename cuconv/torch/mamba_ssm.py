"""mamba_ssm's functions: its names and parameters, its meaning, by cuconv."""

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
    """`cuconv.selective_scan_fn`."""
    return dense.selective_scan_fn(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)


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
    """`cuconv.selective_state_update`, for any mixture of dtypes; autograd does not follow it."""
    kind, others = x.dtype, (dt, A, B, C, D, z, dt_bias)
    with torch.no_grad():
        if any(each is not None and each.dtype != kind for each in (B, C, z)) or any(
            each is not None and each.dtype not in (kind, torch.float32) for each in (dt, A, D, dt_bias)
        ):
            wide = torch.float64 if kind == torch.float64 else torch.float32
            x = x.to(wide)
            # What is complex stays so, and is refused.
            others = tuple(  # type: ignore[assignment]
                each.to(wide) if each is not None and each.is_floating_point() else each for each in others
            )
        out: Tensor = update.selective_state_update(
            state, x, *others, dt_softplus=dt_softplus, state_batch_indices=state_batch_indices
        )
    return out.to(kind)
