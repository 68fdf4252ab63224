"""torch's own operations: conv1d and SiLU, and decode steps operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cuconv.bench.peers.peer import Function, Peer, Ready, Tensors, same
from cuconv.bench.peers.tensors import check
from cuconv.runtime.workload import Workload

LIBRARY = "torch"


def with_torch(function: Function) -> Callable[[], Function]:
    """A loader of one of the functions below, with torch as their first argument."""

    def load() -> Function:
        import torch

        check()
        # Convolutions in float32 must not use TF32.
        torch.backends.cudnn.allow_tf32 = False
        return partial(function, torch)

    return load


def conv(torch: Any, x: Any, weight: Any, bias: Any = None, activation: str | None = None) -> Any:
    """The convolution of sequences."""
    pad, seqlen = weight.shape[1] - 1, x.shape[2]
    out = torch.nn.functional.conv1d(x, weight[:, None], bias, padding=pad, groups=x.shape[1])[..., :seqlen]
    return torch.nn.functional.silu(out) if activation else out


def conv_step(
    torch: Any, x: Any, conv_state: Any, weight: Any, bias: Any = None, activation: str | None = None,
    conv_state_indices: Any = None,
) -> Any:  # fmt: skip
    """The convolution of the next tokens; states move left."""
    tokens = x if x.ndim == 3 else x[..., None]
    slots = slice(None) if conv_state_indices is None else conv_state_indices.long()
    window = torch.cat((conv_state[slots], tokens), -1)
    conv_state[slots] = window[..., -conv_state.shape[2] :]
    window = window[..., -(tokens.shape[2] + weight.shape[1] - 1) :]
    out = torch.nn.functional.conv1d(window, weight[:, None], bias, groups=weight.shape[0])
    out = torch.nn.functional.silu(out) if activation else out
    return out if x.ndim == 3 else out[..., 0]


def state_step(
    torch: Any, state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any = None, dt_bias: Any = None,
    dt_softplus: bool = True, state_batch_indices: Any = None,
) -> Any:  # fmt: skip
    """The recurrence of one token, in float32."""
    if x.ndim == 3:
        B, C = (each.repeat_interleave(x.shape[1] // each.shape[1], 1) for each in (B, C))
    slots = slice(None) if state_batch_indices is None else state_batch_indices.long()
    dt = torch.nn.functional.softplus(dt.float() + dt_bias.float())
    new = state[slots].float() * torch.exp(dt[..., None] * A) + (dt * x.float())[..., None] * B[..., None, :].float()
    state[slots] = new.to(state.dtype)
    y = (new * C[..., None, :].float()).sum(-1) + D.float() * x.float()
    return (y if z is None else y * torch.nn.functional.silu(z.float())).to(x.dtype)


def as_ours(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """The functions above take cuconv's arguments; of state updates only one token and states without scales."""
    if "intermediate_states_buffer" in tensors or "state_scale" in tensors:
        return None
    return same(function, workload, tensors)


PEERS = (
    Peer(LIBRARY, "causal_conv1d_fn", with_torch(conv), as_ours),
    Peer(LIBRARY, "causal_conv1d_update", with_torch(conv_step), as_ours),
    Peer(LIBRARY, "selective_state_update", with_torch(state_step), as_ours),
)
