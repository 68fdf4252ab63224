"""state-spaces/mamba: the selective scan in CUDA, the state update in Triton."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from cuconv.bench.peers.peer import Function, Peer, Ready, Tensors, imported, same
from cuconv.runtime.workload import CHANNELS, Workload

LIBRARY = "mamba_ssm"


def scan(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready:
    """Arrays without contiguous sequences are copied by the library, as part of its call."""
    note = "copies to contiguous sequences" if workload.sizes["contiguous"] == CHANNELS else ""
    return same(function, workload, tensors, note)


def scan_bwd(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """Its backward pass takes the states of its own forward pass, the time of which does not count here."""
    sizes = workload.sizes
    if sizes["states"] or sizes["contiguous"] == CHANNELS:
        return None
    given = [tensors[name] for name in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")]
    given[3:5] = (matrix[:, None] if matrix.ndim == 3 else matrix for matrix in given[3:5])
    out, states, *_ = importlib.import_module("selective_scan_cuda").fwd(*given, True)

    def call() -> Any:
        return function(*given, tensors["dout"], states, out, None, True, False)

    def read(result: Any) -> Tensors:
        found = dict(zip(("du", "ddelta", "dA", "dB", "dC", "dD", "ddelta_bias", "dz"), result, strict=True))
        return found | {name: found[name][:, 0] for name in ("dB", "dC") if found[name].ndim == 4}

    return Ready(call, read, "with the states that its forward pass has kept")


def update(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """One token of every sequence, states without scales."""
    if workload.sizes["tokens"] > 1 or "state_scale" in tensors:
        return None
    return same(function, workload, tensors)


PEERS = (
    Peer(LIBRARY, "selective_scan_fn", imported("selective_scan_fn", "mamba_ssm.ops.selective_scan_interface"), scan),
    Peer(LIBRARY, "selective_scan_bwd", imported("bwd", "selective_scan_cuda"), scan_bwd),
    Peer(
        LIBRARY,
        "selective_state_update",
        imported("selective_state_update", "mamba_ssm.ops.triton.selective_state_update"),
        update,
    ),
)
