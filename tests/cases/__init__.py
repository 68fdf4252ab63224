"""The case tables: one module a public function, the place where tests find shapes.

A family registers a case module by its name: `tests/<family>/cases.py` or `tests/<family>/cases_*.py`. It offers, for
its own frozen `Case` with an `id`:

    FUNCTION                  the public function's name; the module's own when absent
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
    tolerances(case, arrays)  relative and absolute, by output; absent where the family's ERRORS say it all
    sample(case)              a smaller case that the oracle checks quickly, and what to cut out of every array for it
    bytes_moved(case)         the least traffic with the device's memory
    running(case)             the context for its calls that are planned or emulated; need not be there
    RANGES                    of arrays whose random numbers are not from -1 to 1; need not be there
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import cuconv
from cuconv.runtime.abstract import AbstractArray, launches_of
from cuconv.runtime.call import Launch

TESTS = Path(__file__).resolve().parents[1]


@cache
def modules() -> list[ModuleType]:
    """Every case module."""
    files = sorted([*TESTS.glob("*/cases*.py"), *TESTS.glob("cases/[!_]*.py")])
    return [importlib.import_module(f"tests.{file.parent.name}.{file.stem}") for file in files]


def function_name(module: ModuleType) -> str:
    """The public function that a case module describes."""
    name: str = getattr(module, "FUNCTION", module.__name__.rpartition(".")[2])
    return name


def table(function: str) -> Any:
    """The case module of a public function."""
    (found,) = (module for module in modules() if function_name(module) == function)
    return found


def launches(module: ModuleType, case: Any) -> tuple[Launch, ...]:
    """The kernels that run for a case, in order."""
    abstract = {
        name: AbstractArray(lies.shape, lies.strides, lies.dtype, lies.first)
        for name, lies in module.placements(case).items()
    }
    with running(module, case):
        return launches_of(getattr(cuconv, function_name(module)), **module.arguments(case, abstract))


def running(module: ModuleType, case: Any) -> AbstractContextManager[Any]:
    """The context for calls of a case that do not run on a GPU."""
    context: AbstractContextManager[Any] = getattr(module, "running", lambda case: nullcontext())(case)
    return context


def numbers_of(launch: Launch) -> Any:
    """What a launch passes behind the pointers, by name."""
    (numbers,) = np.frombuffer(launch.numbers, launch.kernel.params.numbers)
    return numbers
