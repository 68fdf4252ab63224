"""The other libraries that are installed."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import NamedTuple

from cuconv.bench.peers import causal_conv1d, eager, fla, flashinfer, mamba_ssm, megatron, vllm
from cuconv.bench.peers.peer import Function, Peer
from cuconv.runtime.errors import message, one_of

PEERS = tuple(
    peer for module in (causal_conv1d, mamba_ssm, flashinfer, fla, vllm, megatron, eager) for peer in module.PEERS
)
LIBRARIES = tuple(dict.fromkeys(peer.library for peer in PEERS))


class Loaded(NamedTuple):
    """A peer and its function."""

    peer: Peer
    function: Function


def libraries(names: str) -> tuple[str, ...]:
    """The libraries that a text such as "none", "all" or "fla,torch" names."""
    if names in ("none", "all"):
        return LIBRARIES if names == "all" else ()
    chosen = tuple(names.split(","))
    if unknown := [name for name in chosen if name not in LIBRARIES]:
        raise ValueError(message("peers", repr(unknown[0]), one_of(("none", "all", *LIBRARIES))))
    return chosen


def find(names: Collection[str], functions: Collection[str]) -> tuple[list[Loaded], dict[str, str]]:
    """The peers of these functions from these libraries, and for each library without any the reason."""
    loaded: list[Loaded] = []
    missing: dict[str, str] = {}
    for peer in PEERS:
        if peer.library in names and peer.function in functions:
            try:
                loaded.append(Loaded(peer, peer.load()))
            except ImportError as error:
                missing[peer.library] = str(error)
    return loaded, missing


def versions(peers: Iterable[Loaded]) -> dict[str, str]:
    """The versions that the libraries of these peers report, by library."""
    names = dict.fromkeys(loaded.peer.library for loaded in peers)
    return {name: str(getattr(sys.modules.get(name), "__version__", "")) for name in names}
