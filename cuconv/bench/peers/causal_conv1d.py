"""Dao-AILab's causal-conv1d: CUDA kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv.bench.peers.peer import Function, Peer, Ready, Tensors, imported, same
from cuconv.runtime.workload import CHANNELS, Workload

LIBRARY = "causal_conv1d"
WIDTHS = (2, 3, 4)


def forward(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """Both layouts; channels that are contiguous come in eights."""
    sizes = workload.sizes
    if sizes["width"] not in WIDTHS or (sizes["contiguous"] == CHANNELS and sizes["dim"] % 8):
        return None
    return same(function, workload, tensors)


def update(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """States of any strides, in order or from a pool."""
    if workload.sizes["width"] not in WIDTHS:
        return None
    return same(function, workload, tensors)


def varlen_states(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready:
    """The last tokens of packed sequences."""
    return same(function, workload, tensors)


PEERS = (
    Peer(LIBRARY, "causal_conv1d_fn", imported("causal_conv1d_fn", "causal_conv1d"), forward),
    Peer(LIBRARY, "causal_conv1d_update", imported("causal_conv1d_update", "causal_conv1d"), update),
    Peer(
        LIBRARY,
        "causal_conv1d_varlen_states",
        imported("causal_conv1d_varlen_states", "causal_conv1d.causal_conv1d_varlen"),
        varlen_states,
    ),
)
