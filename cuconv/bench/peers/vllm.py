"""vLLM: packed prefill and decode steps in Triton, the packed scan in CUDA; some of it writes over its inputs."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from cuconv.bench.peers.peer import Function, Peer, Ready, Tensors, imported, ready
from cuconv.runtime.workload import CHANNELS, TOKENS, Workload

LIBRARY = "vllm"
OPS = "vllm.model_executor.layers.mamba.ops"
METADATA = "vllm.v1.attention.backends.utils"
OVERWRITES = "writes over {}"


def every_slot(function: Function) -> dict[str, int]:
    """The argument that makes slot 0 an ordinary one; newer versions reserve it for padding."""
    known = inspect.signature(function).parameters
    return {name: -1 for name in ("pad_slot_id", "null_block_id") if name in known}


def prefill(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """Contiguous channels, in x and in the pool."""
    if workload.sizes["contiguous"] != CHANNELS:
        return None
    arguments = {"bias": None, **tensors, **workload.options, **every_slot(function)}
    arguments["metadata"] = programs(tensors["query_start_loc"])
    return ready(workload, tensors, lambda: function(**arguments))


def programs(query_start_loc: Any) -> Any:
    """The metadata that it would otherwise compute on the host in every call; None where its helper has another
    signature."""
    try:
        compute = importlib.import_module(METADATA).compute_causal_conv1d_metadata
        host = query_start_loc.cpu()
        given = {"device": query_start_loc.device} if "device" in inspect.signature(compute).parameters else {}
        numbers, batch_ptr, offsets = compute(host if given else query_start_loc, **given)
    except Exception:
        return None
    return SimpleNamespace(nums_dict=numbers, batch_ptr=batch_ptr, token_chunk_offset_ptr=offsets)


def step(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """States of width - 1 columns with contiguous channels."""
    if workload.sizes["contiguous"] != CHANNELS or workload.sizes["tokens"] > 1:
        return None
    arguments = {**tensors, **workload.options, **every_slot(function), "x": tensors["x"].clone()}
    return ready(workload, tensors, lambda: function(**arguments), note=OVERWRITES.format("x"))


def scan(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """Contiguous sequences, B and C in groups."""
    if workload.sizes["contiguous"] != TOKENS:
        return None
    grouped = {name: tensors[name][None] for name in "BC"}
    own = {**grouped, "z": tensors["z"].clone()}
    arguments = {**tensors, **workload.options, **every_slot(function), **own}
    return ready(workload, tensors, lambda: function(**arguments), note=OVERWRITES.format("z"))


def state_update(function: Function, workload: Workload, tensors: Tensors, outs: Sequence[Any]) -> Ready | None:
    """One token of every sequence, states without scales. It returns nothing."""
    if workload.sizes["tokens"] > 1 or "state_scale" in tensors:
        return None
    arguments = {**tensors, **workload.options, **every_slot(function), "out": outs[0]}
    return ready(workload, tensors, lambda: function(**arguments), lambda result: outs[0])


PEERS = (
    Peer(LIBRARY, "causal_conv1d_varlen_fn", imported("causal_conv1d_fn", f"{OPS}.causal_conv1d"), prefill),
    Peer(LIBRARY, "causal_conv1d_update", imported("causal_conv1d_update", f"{OPS}.causal_conv1d"), step),
    Peer(LIBRARY, "selective_scan_varlen_fn", imported("selective_scan_fn", f"{OPS}.mamba_ssm"), scan),
    Peer(LIBRARY, "selective_state_update", imported("selective_state_update", f"{OPS}.mamba_ssm"), state_update),
)
