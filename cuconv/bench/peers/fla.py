"""flash-linear-attention: convolutions in Triton, of (batch, seqlen, dim) only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv.bench.peers.peer import Function, Peer, Ready, Tensors, imported, ready
from cuconv.runtime.workload import CHANNELS, TOKENS, Workload

LIBRARY = "fla"
BACKWARD_MODULES = ("fla.modules.conv.triton.ops", "fla.modules.convolution")
MODULES = ("fla.modules.convolution", "fla.modules.causal_conv1d", "fla.modules.conv")
GATHERED = "states gathered and put back outside the timing"


def forward(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """Contiguous channels."""
    if workload.sizes["contiguous"] != CHANNELS:
        return None
    x = tensors["x"].swapaxes(1, 2)
    filters = {"weight": tensors["weight"], "bias": tensors.get("bias"), **workload.options}
    return ready(workload, tensors, lambda: function(x, **filters), lambda result: result[0].swapaxes(1, 2))


def varlen(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """Contiguous channels. The library has no pool: it takes and returns a state of width columns per sequence."""
    if workload.sizes["contiguous"] != CHANNELS:
        return None
    x, pool, slots = tensors["x"].swapaxes(0, 1)[None], tensors["conv_states"], tensors["cache_indices"]
    # The filter does not reach the first column.
    states = pool[slots][:, :, [0, *range(pool.shape[2])]].contiguous()
    given = {
        "weight": tensors["weight"], "bias": tensors.get("bias"), **workload.options, "initial_state": states,
        "output_final_state": True, "cu_seqlens": tensors["query_start_loc"],
    }  # fmt: skip

    def read(result: Any) -> Tensors:
        pool[slots] = result[1][:, :, 1:]
        return {"out": result[0][0].swapaxes(0, 1), "conv_states": pool}

    return Ready(lambda: function(x, **given), read, GATHERED)


def backward(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """Contiguous channels without states: its Triton kernels, which its autograd function calls."""
    if workload.sizes["contiguous"] != CHANNELS or workload.sizes["states"]:
        return None
    x, dout = (tensors[name].swapaxes(1, 2) for name in ("x", "dout"))
    given = {"weight": tensors["weight"], "bias": tensors.get("bias"), "activation": workload.options["activation"]}

    def read(result: Any) -> Tensors:
        dx, dweight, dbias, *_ = result
        gradients = {"dx": dx.swapaxes(1, 2), "dweight": dweight, "dbias": dbias}
        return {name: gradients[name] for name in workload.outs}

    return Ready(lambda: function(x=x, dy=dout, dht=None, **given), read)


def update(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """States of width columns, one per sequence in order."""
    if workload.sizes["contiguous"] != TOKENS or workload.sizes["tokens"] > 1:
        return None
    filters = {"weight": tensors["weight"], "bias": tensors.get("bias"), **workload.options}
    x, states = tensors["x"], tensors["conv_state"]
    return Ready(lambda: function(x, states, **filters), lambda result: {"out": result[0], "conv_state": result[1]})


PEERS = (
    Peer(LIBRARY, "causal_conv1d_fn", imported("causal_conv1d", *MODULES), forward),
    Peer(LIBRARY, "causal_conv1d_varlen_fn", imported("causal_conv1d", *MODULES), varlen),
    Peer(LIBRARY, "causal_conv1d_bwd", imported("causal_conv1d_bwd", *BACKWARD_MODULES), backward),
    Peer(LIBRARY, "causal_conv1d_update", imported("causal_conv1d_update", *MODULES), update),
)
