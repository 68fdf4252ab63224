"""FlashInfer: the state update of Mamba-2 in CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuconv.bench.peers.peer import Function, Peer, Ready, Tensors, imported, same
from cuconv.runtime.workload import Workload


def update(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """It takes one A, dt and D per head, a d_state that is a multiple of 32, and int16 as codes.

    With several tokens it stores the states after each, but not, as cuconv has to, the last one in its slot.
    """
    sizes = workload.sizes
    has_other_codes = "state_scale" in tensors and sizes["state_dtype"] != "int16"
    if not sizes["nheads"] or sizes["tokens"] > 1 or sizes["d_state"] % 32 or has_other_codes:
        return None
    return same(function, workload, tensors, out=outs[0])


PEERS = (Peer("flashinfer", "selective_state_update", imported("selective_state_update", "flashinfer.mamba"), update),)
