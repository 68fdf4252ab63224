"""Tensors and plain oracles for the tests of adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import cuconv

torch = pytest.importorskip("torch", reason="torch is not installed")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
EACH_DEVICE = pytest.mark.parametrize("device", DEVICES)


def normal(device: str, *shape: int, seed: int = 0, dtype: Any = None) -> Any:
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(device=device, dtype=dtype or torch.float32)


def indices(device: str, *numbers: Any) -> Any:
    """An int32 tensor."""
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def letters(device: str, text: str) -> Any:
    """Inputs that tell themselves apart: channel d of letter k is k + d / 4. (2, len(text)), float32."""
    codes = torch.tensor([float(ord(each) - ord("a") + 1) for each in text], device=device)
    return torch.stack((codes, codes + 0.25))


def starts(device: str, lengths: Sequence[int]) -> Any:
    """The first token of each packed sequence, and the end of the last one."""
    return torch.tensor([0, *lengths]).cumsum(0).to(device=device, dtype=torch.int32)


def whole(x: Any, weight: Any, bias: Any = None, activation: str | None = "silu") -> Any:
    """The convolution of one uninterrupted sequence (dim, tokens) that starts from zeros."""
    return cuconv.causal_conv1d_varlen_fn(x, weight, bias, activation=activation)


def last_inputs(x: Any, count: int) -> Any:
    """The last inputs (dim, count) of a sequence (dim, tokens) that starts from zeros."""
    return torch.nn.functional.pad(x, (count, 0))[:, x.shape[1] :]
