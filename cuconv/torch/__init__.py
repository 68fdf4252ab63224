"""PyTorch: derivatives, torch.compile, layers, and cuconv in the place of other packages.

Imported by programs that ask for it, and by the public functions when torch traces a call, when autograd follows a
tensor of it, or when a tensor has no memory. Nothing else of the package imports torch. What it offers is imported when
it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

HOMES = {
    "Mamba": "modules",
    "ShortConvolution": "modules",
    "causal_conv1d_packed": "functional",
    "install": "dropin",
    "mamba_inner_fn": "functional",
    "patch_transformers": "transformers",
    "uninstall": "dropin",
    "unpatch_transformers": "transformers",
}
"""The module of this folder that has each name."""

__all__ = [
    "Mamba",
    "ShortConvolution",
    "causal_conv1d_packed",
    "install",
    "mamba_inner_fn",
    "patch_transformers",
    "uninstall",
    "unpatch_transformers",
]


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(importlib.import_module(f"cuconv.torch.{HOMES[name]}"), name)
    import cuconv

    if name in cuconv.__all__:
        return getattr(cuconv, name)
    raise AttributeError(f"module 'cuconv.torch' has no attribute {name!r}")
