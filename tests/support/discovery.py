"""What there is to test, found and not listed."""

from __future__ import annotations

import importlib
from pathlib import Path

from cuconv.bench.copy import Copy
from cuconv.jit import source
from cuconv.runtime.kernel import Kernel

ROOT = Path(__file__).resolve().parents[2]


def all_kernels() -> list[type[Kernel]]:
    """Every Kernel class of the families that has device code, and the yardstick of the timings, by name."""
    found: set[type[Kernel]] = {Copy}
    for path in (ROOT / "cuconv").glob("*/kernels.py"):
        classes = vars(importlib.import_module(f"cuconv.{path.parent.name}.kernels")).values()
        kernels = (cls for cls in classes if isinstance(cls, type) and issubclass(cls, Kernel) and cls is not Kernel)
        # A base of several kernels has no file.
        found |= {cls for cls in kernels if cls.file in source.load().files}
    return sorted(found, key=lambda cls: cls.__name__)


def op_kernels() -> list[type[Kernel]]:
    """Those that an operation runs: all but the yardstick of the timings."""
    return [cls for cls in all_kernels() if cls is not Copy]
