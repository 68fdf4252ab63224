"""Modules that replace those of causal-conv1d and mamba_ssm, with the same names, parameters and meaning.

A name that cuconv has no function for is absent from its module, so that programs behave as without the package.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from typing import Any

from cuconv.torch import blocks, extensions, plain, ssd
from cuconv.torch import causal_conv1d as conv
from cuconv.torch import mamba_ssm as mamba
from cuconv.torch.mamba2 import Mamba2
from cuconv.torch.modules import Mamba

VERSIONS = {"causal_conv1d": "1.7.0+cuconv", "mamba_ssm": "2.3.2+cuconv"}
"""The packages, and the versions whose parameters cuconv's functions have."""


def _named(*contents: Any) -> Mapping[str, Any]:
    return {each.__name__: each for each in contents}


WITHIN = (
    extensions.causal_conv1d_fwd_function,
    extensions.causal_conv1d_bwd_function,
    extensions.causal_conv1d_update_function,
)
"""What programs call in functions of their own; causal-conv1d has these names in two modules."""

CONTENTS: Mapping[str, Mapping[str, Any]] = {
    "causal_conv1d": _named(conv.causal_conv1d_fn, conv.causal_conv1d_update),
    "causal_conv1d.causal_conv1d_interface": _named(
        *(conv.causal_conv1d_fn, conv.causal_conv1d_update, plain.causal_conv1d_ref, plain.causal_conv1d_update_ref),
        *WITHIN,
    ),
    "causal_conv1d.causal_conv1d_varlen": _named(
        conv.causal_conv1d_varlen_states, plain.causal_conv1d_varlen_states_ref
    ),
    "causal_conv1d.cpp_functions": _named(*WITHIN),
    "causal_conv1d_cuda": {
        "causal_conv1d_fwd": extensions.convolution_forward,
        "causal_conv1d_bwd": extensions.convolution_backward,
        "causal_conv1d_update": extensions.convolution_step,
    },
    "mamba_ssm": _named(mamba.selective_scan_fn, mamba.mamba_inner_fn, Mamba, Mamba2),
    "mamba_ssm.modules": {},
    "mamba_ssm.modules.mamba2": _named(Mamba2),
    "mamba_ssm.modules.mamba_simple": _named(Mamba, blocks.Block),
    "mamba_ssm.ops": {},
    "mamba_ssm.ops.selective_scan_interface": _named(
        mamba.selective_scan_fn, mamba.mamba_inner_fn, plain.selective_scan_ref, plain.mamba_inner_ref
    ),
    "mamba_ssm.ops.triton": {},
    "mamba_ssm.ops.triton.layer_norm": _named(
        blocks.layer_norm_fn, blocks.rms_norm_fn, blocks.RMSNorm, blocks._layer_norm_fwd
    ),
    "mamba_ssm.ops.triton.layernorm": {
        "layer_norm_fn": blocks.early_layer_norm_fn,
        "rms_norm_fn": blocks.early_rms_norm_fn,
        **_named(blocks.RMSNorm, blocks._layer_norm_fwd),
    },
    "mamba_ssm.ops.triton.layernorm_gated": {
        **_named(blocks.layernorm_fn, blocks.rmsnorm_fn),
        "LayerNorm": blocks.GatedLayerNorm,
        "RMSNorm": blocks.GatedRMSNorm,
    },
    "mamba_ssm.ops.triton.ssd_combined": _named(ssd.mamba_chunk_scan_combined, ssd.mamba_split_conv1d_scan_combined),
    "mamba_ssm.ops.triton.selective_state_update": _named(
        mamba.selective_state_update, plain.selective_state_update_ref
    ),
    "selective_scan_cuda": {"fwd": extensions.scan_forward, "bwd": extensions.scan_backward},
    "selective_scan_cuda_core": {"fwd": extensions.ungated_forward, "bwd": extensions.ungated_backward},
    "selective_scan_cuda_oflex": {"fwd": extensions.ungated_forward, "bwd": extensions.ungated_backward},
}
"""What each module has."""

STAND_IN = "cuconv"
"""The origin in the module specifications of `CONTENTS`."""

PACKAGES = tuple(dict.fromkeys(name.partition(".")[0] for name in CONTENTS))
"""What can be installed: packages, and separately their compiled modules."""


def install(*packages: str, replace: bool = False) -> tuple[str, ...]:
    """Make `import causal_conv1d` and `import mamba_ssm` give cuconv's functions from now on.

    Args:
        packages: some of "causal_conv1d", "mamba_ssm" and their compiled modules, "causal_conv1d_cuda" and
            "selective_scan_cuda", and of those of VMamba, "selective_scan_cuda_core" and "selective_scan_cuda_oflex";
            all of these when none is named. mamba_ssm that is installed without its compiled module still has
            functions that cuconv lacks.
        replace: also replace a package that is installed. Modules that have imported names from it keep these.

    Returns:
        The packages that cuconv stands in for now; a package that is installed is left out unless `replace` is true.

    Raises:
        ValueError: a package that cuconv has no functions for.
    """
    for package in packages:
        if package not in PACKAGES:
            raise ValueError(f"packages: got {package!r}; wanted one of {', '.join(map(repr, PACKAGES))}")
    for package in packages or PACKAGES:
        if package in _finder.packages or (not replace and _is_installed(package)):
            continue
        _forget(package)
        _finder.packages.add(package)
        # Programs look submodules up as attributes of the package without importing them.
        for name in CONTENTS:
            if name.partition(".")[0] == package:
                importlib.import_module(name)
    return tuple(package for package in PACKAGES if package in _finder.packages)


def uninstall() -> None:
    """Undo `install`: later imports find what is installed. Modules that have imported names keep these."""
    for package in _finder.packages:
        _forget(package)
    _finder.packages.clear()


def _is_installed(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        package = spec.name.partition(".")[0]
        module = ModuleType(spec.name, f"{package}'s functions by cuconv.")
        module.__dict__.update(CONTENTS[spec.name])
        if package in VERSIONS:
            module.__dict__["__version__"] = VERSIONS[package]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to be done."""


class _Distribution(Distribution):
    """The metadata, in importlib.metadata, of a package that cuconv stands in for."""

    def __init__(self, package: str) -> None:
        self._package = package

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {self._package}\nVersion: {VERSIONS[self._package]}\n"

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in self.packages or name not in CONTENTS:
            return None
        is_package = any(other.startswith(f"{name}.") for other in CONTENTS)
        return ModuleSpec(name, _Loader(), origin=STAND_IN, is_package=is_package)

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        wanted = None if context is None or context.name is None else context.name.replace("-", "_").lower()
        found = sorted(self.packages & VERSIONS.keys())
        return iter([_Distribution(package) for package in found if wanted in (None, package)])


_finder = _Finder()
sys.meta_path.insert(0, _finder)
