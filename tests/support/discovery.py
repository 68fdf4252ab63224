"""What there is to test, found and not listed."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from cuconv import kernels
from cuconv.bench.copy import Copy
from cuconv.runtime.kernel import Kernel

ROOT = Path(__file__).resolve().parents[1]


def all_kernels() -> list[type[Kernel]]:
    """Every Kernel class of cuconv.kernels that has device code, by name."""
    found: set[type[Kernel]] = set()
    for info in pkgutil.iter_modules(kernels.__path__):
        module = importlib.import_module(f"{kernels.__name__}.{info.name}")
        classes = (value for value in vars(module).values() if isinstance(value, type))
        found |= {value for value in classes if issubclass(value, Kernel) and "unit" in vars(value)}
    return sorted(found, key=lambda cls: cls.__name__)


def op_kernels() -> list[type[Kernel]]:
    """Those that an operation runs: all but the yardstick of the timings."""
    return [cls for cls in all_kernels() if cls is not Copy]
