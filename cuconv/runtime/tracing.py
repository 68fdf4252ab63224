"""Whether torch traces a call. Programs import torch before cuconv, after it, or never."""

from __future__ import annotations

import sys
from typing import Any

_this = sys.modules[__name__]


def __getattr__(name: str) -> Any:
    """`torch`, or None before it is imported.

    Dynamo asks for an attribute of a module as Python does. If it looked into `sys.modules`, it would read every entry,
    and fail where reading one imports further modules.
    """
    if name != "torch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if (torch := sys.modules.get("torch")) is not None:
        globals()["torch"] = torch
    return torch


def is_traced() -> bool:
    """Whether torch.compile or torch.export traces this call."""
    torch = _this.torch
    # Other tracers than Dynamo are recognised by the types of tensors.
    return torch is not None and torch.compiler.is_dynamo_compiling()


def is_in_jit_trace() -> bool:
    """Whether torch.jit.trace records this call."""
    torch = _this.torch
    return torch is not None and torch.jit.is_tracing()


def is_recorded() -> bool:
    """Whether torch.jit.trace or make_fx records this call. Beside operators, make_fx would record memory without
    contents.

    Asking takes up to 0.5 us. Recognised calls need not ask: in a trace torch dispatches tensors differently or has a
    mode, so they are not recognised.
    """
    # Before this module is imported, nothing records tensors that have memory.
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return is_in_jit_trace() or (proxies is not None and proxies.get_proxy_mode() is not None)
