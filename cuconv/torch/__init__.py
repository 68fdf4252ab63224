"""PyTorch: derivatives, torch.compile, layers, and cuconv as a replacement of other packages.

Programs import it, and so do the public functions when torch traces a call, when autograd follows one of its tensors,
or when a tensor has no memory. Nothing else in cuconv imports torch. Each name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

HOMES = {
    "Mamba": "torch.modules",
    "Mamba2": "torch.mamba2",
    "ShortConvolution": "torch.modules",
    "causal_conv1d_fn": "causal_conv1d.dense",
    "causal_conv1d_packed": "torch.functional",
    "causal_conv1d_qkv_split": "causal_conv1d.varlen",
    "causal_conv1d_split": "causal_conv1d.varlen",
    "causal_conv1d_update": "causal_conv1d.update",
    "causal_conv1d_varlen_fn": "causal_conv1d.varlen",
    "install": "torch.dropin",
    "mamba_chunk_scan_combined": "torch.ssd",
    "mamba_inner_fn": "torch.functional",
    "mamba_split_conv1d_scan_combined": "torch.ssd",
    "patch_transformers": "torch.transformers",
    "selective_scan_fn": "selective_scan.dense",
    "selective_scan_packed": "torch.functional",
    "selective_scan_varlen_fn": "selective_scan.varlen",
    "selective_state_update": "selective_state_update.update",
    "uninstall": "torch.dropin",
    "unpatch_transformers": "torch.transformers",
}
"""The module of the package that has each name."""

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(importlib.import_module(f"cuconv.{HOMES[name]}"), name)
    raise AttributeError(f"module 'cuconv.torch' has no attribute {name!r}")
