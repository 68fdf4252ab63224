"""Megatron-LM: the decode step of the convolution in Triton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv.bench.peers.peer import Function, Peer, Ready, Tensors, imported, ready
from cuconv.runtime.workload import Workload

MODULES = ("megatron.core.ssm.ops.common.causal_conv1d_triton", "megatron.core.ssm.ops.causal_conv1d_triton")


def update(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """One token of every sequence; SiLU is chosen by its name."""
    if workload.sizes["tokens"] > 1:
        return None
    arguments = {
        **{name: tensors.get(name) for name in ("x", "conv_state", "weight", "bias", "conv_state_indices")},
        "silu_activation": workload.options["activation"],
    }
    return ready(workload, tensors, lambda: function(**arguments))


PEERS = (Peer("megatron", "causal_conv1d_update", imported("causal_conv1d_update", *MODULES), update),)
