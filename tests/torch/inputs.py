"""Tensors for calls of the public functions, the same calls in plain torch, and a layer with an adapter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuconv.runtime.dtypes import BFLOAT16

torch = pytest.importorskip("torch", reason="torch is not installed")


def random(*shape: int, dtype: Any = None, grad: bool = True, low: float = -1.0, high: float = 1.0) -> Any:
    """Uniform numbers; call torch.manual_seed first."""
    values = torch.rand(*shape, dtype=torch.float64) * (high - low) + low
    return values.to(dtype or torch.float64).requires_grad_(grad)


def conv(x: Any, weight: Any, bias: Any = None, initial_states: Any = None, silu: bool = True) -> tuple[Any, Any]:
    """The convolution of rows and its final states, by torch."""
    width = weight.shape[1]
    before = x.new_zeros(*x.shape[:2], width - 1) if initial_states is None else initial_states
    inputs = torch.cat([before, x], dim=2)
    out = torch.nn.functional.conv1d(inputs, weight[:, None], bias, groups=x.shape[1])
    return torch.nn.functional.silu(out) if silu else out, inputs[:, :, x.shape[2] :]


def scan(
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    initial_state: Any = None,
) -> tuple[Any, Any]:
    """The selective scan of rows and its last state, by torch; B and C (batch, d_state, seqlen)."""
    dt = delta if delta_bias is None else delta + delta_bias[:, None]
    dt = torch.nn.functional.softplus(dt) if delta_softplus else dt
    state = u.new_zeros(*u.shape[:2], A.shape[1]) if initial_state is None else initial_state
    results = []
    for t in range(u.shape[2]):
        decay = torch.exp(dt[:, :, t, None] * A)
        state = decay * state + (dt[:, :, t] * u[:, :, t])[..., None] * B[:, None, :, t]
        results.append((state * C[:, None, :, t]).sum(-1))
    out = torch.stack(results, dim=2)
    out = out if D is None else out + D[:, None] * u
    return (out if z is None else out * torch.nn.functional.silu(z)), state


def conv_inputs(dim: int = 6, width: int = 4, seqlen: int = 9, **options: Any) -> tuple[Any, ...]:
    """x, weight, bias and initial_states."""
    return (
        random(2, dim, seqlen, **options),
        random(dim, width, **options),
        random(dim, **options),
        random(2, dim, width - 1, **options),
    )


def scan_inputs(dim: int = 4, d_state: int = 3, seqlen: int = 7, **options: Any) -> tuple[Any, ...]:
    """u, delta, A, B, C, D, z and delta_bias."""
    row, matrix = (2, dim, seqlen), (2, d_state, seqlen)
    return (
        random(*row, **options),
        random(*row, **options),
        random(dim, d_state, low=-1.0, high=-0.1, **options),
        random(*matrix, **options),
        random(*matrix, **options),
        random(dim, **options),
        random(*row, **options),
        random(dim, **options),
    )


def as_tensor(array: Any) -> Any:
    """A tensor that shares the memory of an array."""
    if array.dtype == BFLOAT16.numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_array(tensor: Any) -> Any:
    """An array that shares the memory of a tensor."""
    return tensor.view(torch.int16).numpy().view(BFLOAT16.numpy) if tensor.dtype == torch.bfloat16 else tensor.numpy()


class Adapted(torch.nn.Module):
    """A linear layer with a low-rank adapter, as PEFT has them: its weight is that of the layer."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.base_layer = layer
        self.down = torch.nn.Linear(layer.in_features, 2, bias=False, dtype=layer.weight.dtype)
        self.up = torch.nn.Linear(2, layer.out_features, bias=False, dtype=layer.weight.dtype)

    @property
    def weight(self) -> Any:
        return self.base_layer.weight

    @property
    def bias(self) -> Any:
        return self.base_layer.bias

    def forward(self, x: Any) -> Any:
        return self.base_layer(x) + self.up(self.down(x))

    def merged(self) -> Any:
        """The same as a plain layer."""
        layer = torch.nn.Linear(self.base_layer.in_features, self.base_layer.out_features, self.bias is not None)
        layer.to(self.weight.dtype).load_state_dict(self.base_layer.state_dict())
        with torch.no_grad():
            layer.weight += self.up.weight @ self.down.weight
        return layer
