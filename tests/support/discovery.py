"""What there is to test, found and not listed."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import cuconv
from cuconv.bench.copy import Copy
from cuconv.runtime.kernel import Kernel

ROOT = Path(__file__).resolve().parents[2]


def families() -> list[str]:
    """The operator families: the folders of cuconv that have kernels."""
    return [
        info.name for info in pkgutil.iter_modules(cuconv.__path__) if (_folder(info.name) / "kernels.py").is_file()
    ]


def _folder(name: str) -> Path:
    return ROOT / "cuconv" / name


def op_kernels() -> list[type[Kernel]]:
    """Every kernel class of the families, by name: those from which no other class is derived."""
    for family in families():
        for file in _folder(family).glob("kernels*.py"):
            importlib.import_module(f"cuconv.{family}.{file.stem}")
    found = _leaves(Kernel) - {Copy}
    return sorted((cls for cls in found if cls.__module__.startswith("cuconv.")), key=lambda cls: cls.__name__)


def _leaves(cls: type[Kernel]) -> set[type[Kernel]]:
    derived = cls.__subclasses__()
    return set().union(*map(_leaves, derived)) if derived else {cls}


def all_kernels() -> list[type[Kernel]]:
    """The same, and the copy that timings are compared with."""
    return [Copy, *op_kernels()]
