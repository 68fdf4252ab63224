"""state-spaces/mamba: the selective scan in CUDA, the state update in Triton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv.bench.peers.peer import Function, Peer, Ready, Tensors, imported, same
from cuconv.runtime.workload import CHANNELS, Workload

LIBRARY = "mamba_ssm"


def scan(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready:
    """It copies what has no contiguous sequences, which is part of its call."""
    note = "copies to contiguous sequences" if workload.sizes["contiguous"] == CHANNELS else ""
    return same(function, workload, tensors, note)


def update(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """One token of every sequence."""
    if workload.sizes["tokens"] > 1:
        return None
    return same(function, workload, tensors)


PEERS = (
    Peer(LIBRARY, "selective_scan_fn", imported("selective_scan_fn", "mamba_ssm.ops.selective_scan_interface"), scan),
    Peer(
        LIBRARY,
        "selective_state_update",
        imported("selective_state_update", "mamba_ssm.ops.triton.selective_state_update"),
        update,
    ),
)
