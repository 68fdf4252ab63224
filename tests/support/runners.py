"""A call under the emulator and on a GPU, with the same arrays and the same results: what was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import cuconv
from tests import cases
from tests.emulator.family import EmulatedArray
from tests.support.compare import is_written, take_written
from tests.support.gpu import CupyArrays
from tests.support.placement import Array, Placed

Values = dict[str, Array]
Runner = Callable[..., Values]
"""Runs a case of a case module on these inputs, and gives the outputs and what was updated, by name. A fourth argument
says, by output, in which input's memory the output lies.
"""
APART: Mapping[str, str] = {}


def place_all(module: ModuleType, case: Any, values: Values) -> dict[str, Placed]:
    return {name: Placed(lies, values.get(name)) for name, lies in module.placements(case).items()}


def emulated(module: ModuleType, case: Any, values: Values, in_place: Mapping[str, str] = APART) -> Values:
    """By the public function, on arrays of the emulator."""
    placed = place_all(module, case, values)
    placed |= {output: placed[name] for output, name in in_place.items()}
    arguments = module.arguments(case, {name: EmulatedArray(each.array) for name, each in placed.items()})
    with cases.running(module, case):
        getattr(cuconv, cases.function_name(module))(**arguments)
    return {name: each.array.copy() for name, each in placed.items() if is_written(module, name)}


def on_gpu(module: ModuleType, case: Any, values: Values, in_place: Mapping[str, str] = APART) -> Values:
    """By the public function, on CuPy arrays."""
    before = place_all(module, case, values)
    uploaded = {name: CupyArrays.upload(placed) for name, placed in before.items()}
    for output, name in in_place.items():
        before[output], uploaded[output] = before[name], uploaded[name]
    views = {name: view for name, (_, view) in uploaded.items()}
    getattr(cuconv, cases.function_name(module))(**module.arguments(case, views))
    after = {name: CupyArrays.download(buffer) for name, (buffer, _) in uploaded.items()}
    return take_written(module, {name: each for name, each in before.items() if name not in in_place.values()}, after)
