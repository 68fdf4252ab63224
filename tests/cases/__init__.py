"""The case tables: one module a public function, of the same name, and the place where tests find shapes.

A case module offers, for its own frozen `Case` with an `id`:

    UNIT, EDGE, BENCH, BIG    small with every feature · larger and odder · timed beside the report's workloads · too
                              large for most machines
    placements(case)          where every array lies, by name: no memory yet
    OUTPUTS                   which of these are written, in the order in which the call returns them
    UPDATED                   which are read and then written
    inputs(case, seed)        all but the outputs, as NumPy arrays
    place_inputs(case, seed)  the same with the memory around them
    integers(case, seed)      those of them that are no random numbers
    arguments(case, arrays)   the keyword arguments of the call with these arrays
    oracle(case, arrays)      what is written for these inputs, in float64 or, where values are copies, exactly
    tolerances(case, arrays)  relative and absolute, by output: what a correct kernel may be off by
    sample(case)              a smaller case that the oracle checks quickly, and what to cut out of every array for it
    bytes_moved(case)         the least traffic with the device's memory
    RANGES                    of arrays whose random numbers are not from -1 to 1; need not be there
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any

import cuconv
from cuconv.runtime.abstract import AbstractArray, launches_of
from cuconv.runtime.call import Launch


def modules() -> list[ModuleType]:
    """Every case module."""
    return [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]


def function_name(module: ModuleType) -> str:
    """The public function that a case module describes."""
    return module.__name__.rpartition(".")[2]


def launches(module: ModuleType, case: Any) -> tuple[Launch, ...]:
    """The kernels that run for a case, in order."""
    abstract = {
        name: AbstractArray(lies.shape, lies.strides, lies.dtype, lies.first)
        for name, lies in module.placements(case).items()
    }
    return launches_of(getattr(cuconv, function_name(module)), **module.arguments(case, abstract))
