"""Norms, and the block around a mixer, as in mamba_ssm, by torch's own operations in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cuconv.runtime import checks
from cuconv.runtime.errors import message


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """The norm of x + residual along the last axis.

    Args:
        x: (..., channels).
        weight, bias: (channels,).
        residual: x's shape.
        x1, weight1, bias1, dropout_p, rowscale, return_dropout_mask: their defaults only.
        eps: added to the variance, or to the mean square.
        prenorm: also return the sum x + residual.
        residual_in_fp32: return the sum in float32 where residual is None; otherwise it has residual's dtype.
        is_rms_norm: divide by the root of the mean square, and subtract no mean.

    Returns:
        The norm, x's dtype; with prenorm the sum, too.
    """
    others = {"dropout_p": dropout_p, "rowscale": rowscale, "return_dropout_mask": return_dropout_mask}
    _refuse(x1=x1, weight1=weight1, bias1=bias1, **others)
    out, total = _normed(x, weight, bias, residual, eps, is_rms_norm, residual_in_fp32)
    return (out, total) if prenorm else out


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """`layer_norm_fn` by the root of the mean square."""
    others = x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, residual_in_fp32, True, return_dropout_mask
    return layer_norm_fn(x, weight, bias, residual, *others)


def early_layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> Any:
    """`layer_norm_fn` with the parameters of mamba_ssm 1."""
    out, total = _normed(x, weight, bias, residual, eps, is_rms_norm, residual_in_fp32)
    return (out, total) if prenorm else out


def early_rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> Any:
    """`rms_norm_fn` with the parameters of mamba_ssm 1."""
    return early_layer_norm_fn(x, weight, bias, residual, eps, prenorm, residual_in_fp32, True)


def _normed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    eps: float,
    is_rms_norm: bool,
    residual_in_fp32: bool,
) -> tuple[Tensor, Tensor]:
    """The norm and the sum."""
    _check(x, weight, bias, residual=residual)
    total = _wide(x) if residual is None else _wide(x) + _wide(residual)
    out = _norm(total, weight, bias, eps, is_rms_norm)
    kind = residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x.dtype
    return out.to(x.dtype), total.to(kind)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, **beside: Tensor | None) -> None:
    """Raise ValueError for a shape that does not fit; torch would repeat single rows and channels."""
    for argument, each in (("weight", weight), ("bias", bias)):
        if each is not None:
            checks.shape(argument, tuple(each.shape), tuple(x.shape[-1:]), "channels of x")
    for argument, each in beside.items():
        if each is not None:
            checks.shape(argument, tuple(each.shape), tuple(x.shape), "the shape of x")


def _wide(rows: Tensor) -> Tensor:
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def _norm(rows: Tensor, weight: Tensor, bias: Tensor | None, eps: float, is_rms_norm: bool) -> Tensor:
    """The norm of float32 rows along the last axis, or of groups of channels where weight has several axes."""
    size = weight.shape[-1:]
    out = F.rms_norm(rows, size, None, eps) if is_rms_norm else F.layer_norm(rows, size, None, None, eps)
    out = out * weight
    return out if bias is None else out + bias


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and (torch.is_tensor(value) or value):
            got = "a tensor" if torch.is_tensor(value) else value
            raise ValueError(message(name, got, "its default: cuconv has no dropout nor second norm"))


def layernorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
) -> Tensor:
    """The norm of groups of channels beside a gate: norm(x) * silu(z), or norm(x * silu(z)).

    Args:
        x: (..., channels).
        weight, bias: (channels,).
        z: x's shape; no gate when None.
        eps: added to the variance, or to the mean square.
        group_size: channels of a group; all of them when None.
        norm_before_gate: norm(x) * silu(z) if true, else norm(x * silu(z)).
        is_rms_norm: divide by the root of the mean square, and subtract no mean.

    Returns:
        x's shape and dtype.
    """
    _check(x, weight, bias, z=z)
    size = group_size or x.shape[-1]
    if size and x.shape[-1] % size:
        raise ValueError(message("group_size", size, f"a divisor of the channels of x, {x.shape[-1]}"))
    gate = None if z is None else F.silu(_wide(z))
    rows = _wide(x) if gate is None or norm_before_gate else _wide(x) * gate
    groups = (-1, size)
    of_groups = None if bias is None else bias.unflatten(0, groups)
    out = _norm(rows.unflatten(-1, groups), weight.unflatten(0, groups), of_groups, eps, is_rms_norm).flatten(-2)
    return (out * gate if gate is not None and norm_before_gate else out).to(x.dtype)


def rmsnorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
) -> Tensor:
    """`layernorm_fn` by the root of the mean square."""
    return layernorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate, True)


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
        out, total = _normed(x, weight, bias, residual, eps, is_rms_norm, residual_dtype == torch.float32)
    return out if out_dtype is None else out.to(out_dtype), None, None, total


class RMSNorm(nn.Module):
    """`rms_norm_fn` with its weight."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Take the number of channels."""
        super().__init__()
        _refuse(dropout_p=dropout_p)
        self.eps, self.drop = eps, None
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        """Make the weight ones."""
        nn.init.ones_(self.weight)

    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Any:
        """`rms_norm_fn` of (..., hidden_size)."""
        return early_rms_norm_fn(x, self.weight, None, residual, prenorm, residual_in_fp32, self.eps)


class GatedRMSNorm(nn.Module):
    """`rmsnorm_fn` with its weight, as Mamba-2 has it."""

    is_rms_norm = True

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Take the number of channels, and the number of channels per group."""
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.ones(hidden_size, **made))
        self.bias: Any = None if self.is_rms_norm else nn.Parameter(torch.zeros(hidden_size, **made))

    def reset_parameters(self) -> None:
        """Make the weight ones, and the bias zeros."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """`rmsnorm_fn` of (..., hidden_size)."""
        others = self.eps, self.group_size, self.norm_before_gate, self.is_rms_norm
        return layernorm_fn(x, self.weight, self.bias, z, *others)


class GatedLayerNorm(GatedRMSNorm):
    """`layernorm_fn` with its weight and bias."""

    is_rms_norm = False


class Block(nn.Module):
    """A residual sum, its norm, and a mixer; hands on the sum, to which the next block adds."""

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
            fused_add_norm: compute sum and norm together in float32, where norm_cls makes nn.LayerNorm or RMSNorm.
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
            given = hidden_states, norm.weight, norm.bias, residual, norm.eps, isinstance(norm, RMSNorm)
            hidden_states, total = _normed(*given, self.residual_in_fp32)
        else:
            total = hidden_states if residual is None else hidden_states + residual
            hidden_states = norm(total.to(norm.weight.dtype))
            total = total.float() if self.residual_in_fp32 else total
        return self.mixer(hidden_states, inference_params=inference_params), total

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> Any:
        """The mixer's inference cache."""
        return self.mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)
