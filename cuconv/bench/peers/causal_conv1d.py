"""Dao-AILab's causal-conv1d: CUDA kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv.bench.peers.peer import Function, Peer, Ready, Tensors, imported, same
from cuconv.runtime.workload import CHANNELS, Workload

LIBRARY = "causal_conv1d"
WIDTHS = (2, 3, 4)


def forward(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """Both layouts; contiguous channels must be a multiple of eight."""
    sizes = workload.sizes
    if sizes["width"] not in WIDTHS or (sizes["contiguous"] == CHANNELS and sizes["dim"] % 8):
        return None
    return same(function, workload, tensors)


def backward(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """Both layouts, with a bias and without states: the function that its autograd function calls, with an array for
    dx."""
    sizes = workload.sizes
    if sizes["width"] not in WIDTHS or not sizes["bias"] or sizes["states"]:
        return None
    if sizes["contiguous"] == CHANNELS and sizes["dim"] % 8:
        return None
    given = [tensors[name] for name in ("x", "weight", "bias", "dout")]
    options = (None, None, None, outs[0], False, bool(sizes["silu"]))
    names = ("dx", "dweight", "dbias")
    return Ready(lambda: function(*given, *options), lambda result: dict(zip(names, result, strict=False)))


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
    Peer(
        LIBRARY,
        "causal_conv1d_bwd",
        imported("causal_conv1d_bwd_function", "causal_conv1d.cpp_functions"),
        backward,
    ),
    Peer(LIBRARY, "causal_conv1d_update", imported("causal_conv1d_update", "causal_conv1d"), update),
    Peer(
        LIBRARY,
        "causal_conv1d_varlen_states",
        imported("causal_conv1d_varlen_states", "causal_conv1d.causal_conv1d_varlen"),
        varlen_states,
    ),
)
