"""What Python runs first in processes that a program of `cuconv exec` starts, from the front of PYTHONPATH.

Workers of torch.multiprocessing, of data loaders and of torch.distributed.run import the program again, and with it
what cuconv stands in for. torch takes seconds to import, so nothing is installed before a package is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

VARIABLE = "CUCONV_STANDS_IN"
"""The variable of the environment that names the packages, with commas between them."""


def pass_on(packages: tuple[str, ...]) -> None:
    """Have processes that are started from now on find cuconv in the place of these packages."""
    os.environ[VARIABLE] = ",".join(packages)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = _folder() if not before else f"{_folder()}{os.pathsep}{before}"


def _folder() -> str:
    return os.path.dirname(os.path.abspath(__file__))


class _Finder(MetaPathFinder, Loader):
    """Installs what stands in for packages when one of them is imported."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        # Another Python may lack cuconv.
        return ModuleSpec(name, self) if name in self._packages and PathFinder.find_spec("cuconv") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._install()
        module = import_module(spec.name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own specification back: nothing else is left to be done."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        wanted = "" if context is None or context.name is None else context.name.replace("-", "_").lower()
        if self.find_spec(wanted) is None:
            return iter([])
        self._install()
        # What is installed now is in front of this finder, which has nothing more to say.
        return iter(Distribution.discover(context=context))

    def _install(self) -> None:
        packages, self._packages = self._packages, ()
        from cuconv.torch import install

        install(*packages, replace=True)


def _run_hidden() -> None:
    """Run the file of the same name that Python would have found without this one."""
    spec = PathFinder.find_spec("sitecustomize", [each for each in sys.path if os.path.abspath(each) != _folder()])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    _run_hidden()
    if names := os.environ.get(VARIABLE):
        sys.meta_path.insert(0, _Finder(tuple(names.split(","))))
