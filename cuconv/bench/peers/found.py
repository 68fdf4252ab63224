"""Which other libraries are here."""

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
    """Those that "none", "all" or "fla,torch" stands for."""
    if names in ("none", "all"):
        return LIBRARIES if names == "all" else ()
    chosen = tuple(names.split(","))
    if unknown := [name for name in chosen if name not in LIBRARIES]:
        raise ValueError(message("peers", repr(unknown[0]), one_of(("none", "all", *LIBRARIES))))
    return chosen


def find(names: Collection[str], functions: Collection[str]) -> tuple[list[Loaded], dict[str, str]]:
    """The peers of these functions from these libraries, and why a library has none of them here."""
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
    """What the libraries of these peers say of themselves, by their names; nothing of one that does not say."""
    names = dict.fromkeys(loaded.peer.library for loaded in peers)
    return {name: str(getattr(sys.modules.get(name), "__version__", "")) for name in names}
