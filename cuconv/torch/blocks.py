"""Norms, and the block around a mixer, as mamba_ssm 1.2.2 has them, by torch's own operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> Any:
    """The norm of x + residual along the last axis.

    Args:
        x: (..., channels).
        weight, bias: (channels,).
        residual: x's shape.
        eps: added to the variance, or to the mean square.
        prenorm: also return the sum.
        residual_in_fp32: return it in float32 where there is no residual, whose dtype it has elsewhere.
        is_rms_norm: divide by the root of the mean square, and subtract no mean.

    Returns:
        The norm, x's dtype; with prenorm the sum, too.
    """
    total = x.float() if residual is None else x.float() + residual.float()
    of_norm = weight.float(), None if bias is None else bias.float()
    if is_rms_norm:
        out = F.rms_norm(total, weight.shape, of_norm[0], eps)
        out = out if of_norm[1] is None else out + of_norm[1]
    else:
        out = F.layer_norm(total, weight.shape, *of_norm, eps)
    if not prenorm:
        return out.to(x.dtype)
    kind = residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x.dtype
    return out.to(x.dtype), total.to(kind)


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> Any:
    """`layer_norm_fn` by the root of the mean square."""
    return layer_norm_fn(x, weight, bias, residual, eps, prenorm, residual_in_fp32, is_rms_norm=True)


def _layer_norm_fwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    is_rms_norm: bool = False,
) -> tuple[Tensor, None, None, Tensor]:
    """The norm and the sum, as transformers 4 asks for them in the block of FalconMamba; no moments of rows."""
    with torch.no_grad():
        out, total = layer_norm_fn(x, weight, bias, residual, eps, True, residual_dtype == torch.float32, is_rms_norm)
    return out if out_dtype is None else out.to(out_dtype), None, None, total


class RMSNorm(nn.Module):
    """`rms_norm_fn` with its weight."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Take the number of channels."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        """Make the weight ones."""
        nn.init.ones_(self.weight)

    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Any:
        """`rms_norm_fn` of (..., hidden_size)."""
        return rms_norm_fn(x, self.weight, None, residual, prenorm, residual_in_fp32, self.eps)


class Block(nn.Module):
    """A sum, its norm, and a mixer behind these; hands on the sum for the next block to add to."""

    def __init__(
        self,
        dim: int,
        mixer_cls: Callable[[int], nn.Module],
        norm_cls: Callable[[int], nn.Module] = nn.LayerNorm,
        fused_add_norm: bool = False,
        residual_in_fp32: bool = False,
    ) -> None:
        """The block.

        Args:
            dim: channels of what goes in and out.
            mixer_cls, norm_cls: make the mixer and the norm from dim.
            fused_add_norm: sum and norm in one, in float32, where norm_cls makes nn.LayerNorm or RMSNorm.
            residual_in_fp32: hand the sum on in float32.
        """
        super().__init__()
        self.residual_in_fp32, self.fused_add_norm = residual_in_fp32, fused_add_norm
        self.mixer: Any = mixer_cls(dim)
        self.norm: Any = norm_cls(dim)
        if fused_add_norm and not isinstance(self.norm, nn.LayerNorm | RMSNorm):
            raise TypeError(f"norm_cls: got a {type(self.norm).__name__}; wanted LayerNorm or RMSNorm of a fused sum")

    def forward(
        self, hidden_states: Tensor, residual: Tensor | None = None, inference_params: Any = None
    ) -> tuple[Tensor, Tensor]:
        """The mixer's result, and the sum of what went in and the residual."""
        norm = self.norm
        if self.fused_add_norm:
            given = hidden_states, norm.weight, norm.bias, residual, norm.eps, True, self.residual_in_fp32
            hidden_states, total = layer_norm_fn(*given, is_rms_norm=isinstance(norm, RMSNorm))
        else:
            total = hidden_states if residual is None else hidden_states + residual
            hidden_states = norm(total.to(norm.weight.dtype))
            total = total.float() if self.residual_in_fp32 else total
        return self.mixer(hidden_states, inference_params=inference_params), total

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> Any:
        """The mixer's."""
        return self.mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)
