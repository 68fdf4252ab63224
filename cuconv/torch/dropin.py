"""Modules in the place of causal-conv1d's and mamba_ssm's, with the same names, parameters and meaning.

A name that cuconv has no function for is absent from its module: programs then do as they do without the package.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from typing import Any

from cuconv.torch import causal_conv1d as conv
from cuconv.torch import mamba_ssm as mamba
from cuconv.torch.modules import Mamba

VERSIONS = {"causal_conv1d": "1.7.0+cuconv", "mamba_ssm": "2.3.2+cuconv"}
"""The packages, and the versions whose parameters cuconv's functions have."""

CONTENTS: Mapping[str, Sequence[Any]] = {
    "causal_conv1d": (conv.causal_conv1d_fn, conv.causal_conv1d_update),
    "causal_conv1d.causal_conv1d_interface": (conv.causal_conv1d_fn, conv.causal_conv1d_update),
    "causal_conv1d.causal_conv1d_varlen": (conv.causal_conv1d_varlen_states,),
    "mamba_ssm": (mamba.selective_scan_fn, mamba.mamba_inner_fn, Mamba),
    "mamba_ssm.modules": (),
    "mamba_ssm.modules.mamba_simple": (Mamba,),
    "mamba_ssm.ops": (),
    "mamba_ssm.ops.selective_scan_interface": (mamba.selective_scan_fn, mamba.mamba_inner_fn),
    "mamba_ssm.ops.triton": (),
    "mamba_ssm.ops.triton.selective_state_update": (mamba.selective_state_update,),
}
"""What each module has."""


def install(*packages: str, replace: bool = False) -> tuple[str, ...]:
    """Make `import causal_conv1d` and `import mamba_ssm` give cuconv's functions from now on.

    Args:
        packages: "causal_conv1d", "mamba_ssm" or both; both when none is named.
        replace: also take the place of a package that is installed. What has imported names from it keeps these.

    Returns:
        The packages that cuconv stands in for now; one that is installed is not among them unless `replace` is true.

    Raises:
        ValueError: a package that cuconv has no functions for.
    """
    for package in packages:
        if package not in VERSIONS:
            raise ValueError(f"packages: got {package!r}; wanted one of {', '.join(map(repr, VERSIONS))}")
    for package in packages or VERSIONS:
        if package in _finder.packages or (not replace and _is_installed(package)):
            continue
        _forget(package)
        _finder.packages.add(package)
        # Programs look submodules up as attributes of the package without importing them.
        for name in CONTENTS:
            if name.partition(".")[0] == package:
                importlib.import_module(name)
    return tuple(package for package in VERSIONS if package in _finder.packages)


def uninstall() -> None:
    """Undo `install`: later imports find what is installed. What has imported names keeps them."""
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
        module = ModuleType(spec.name, f"{spec.name.partition('.')[0]}'s functions by cuconv.")
        module.__dict__.update({each.__name__: each for each in CONTENTS[spec.name]})
        module.__dict__["__version__"] = VERSIONS[spec.name.partition(".")[0]]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to be done."""


class _Distribution(Distribution):
    """What importlib.metadata says of a package that cuconv stands in for."""

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
        return ModuleSpec(name, _Loader(), origin="cuconv", is_package=is_package)

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        wanted = None if context is None or context.name is None else context.name.replace("-", "_").lower()
        return iter([_Distribution(package) for package in sorted(self.packages) if wanted in (None, package)])


_finder = _Finder()
sys.meta_path.insert(0, _finder)
