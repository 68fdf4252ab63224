"""The case tables: one module a public function, of the same name, and the only place where shapes are written.

A case module offers, for its own frozen `Case` with an `id`:

    UNIT, EDGE, BENCH, BIG    small with every feature · larger and odder · timed · too large for most machines
    placements(case)          where every array lies, by argument name: no memory yet
    OUTPUTS                   which of these are written
    inputs(case, seed)        the others, as NumPy arrays
    options(case)             the arguments that are not arrays
    oracle(case, arrays)      what the outputs hold for these inputs, in float64 or, where they are copies, exactly
    sample(case)              what to cut out of every array for a smaller call that the oracle can check quickly
    tolerance(case)           relative and absolute: what a correct kernel may be off by
    bytes_moved(case)         the least traffic with the device's memory
    launch(case)              the kernel that runs, None where there is nothing to compute
    tensors(arrays)           the same arrays by the kernel's own names
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def modules() -> list[ModuleType]:
    """Every case module."""
    return [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]


def function_name(module: ModuleType) -> str:
    """The public function that a case module describes."""
    return module.__name__.rpartition(".")[2]
