"""A call under the emulator and on a GPU, with the same arrays and the same results: what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests import emulator
from tests.emulator.family import EmulatedArray
from tests.support.compare import take_written
from tests.support.gpu import CupyArrays
from tests.support.placement import Array, Placed

Values = dict[str, Array]
Runner = Callable[..., Values]
"""Runs a case on these inputs, and gives the outputs and what was updated, by name. A third argument
says, by output, in which input's memory the output lies.
"""
APART: Mapping[str, str] = {}


def place_all(case: Any, values: Values) -> dict[str, Placed]:
    return {name: Placed(lies, values.get(name)) for name, lies in case.placements().items()}


def emulated(case: Any, values: Values, in_place: Mapping[str, str] = APART) -> Values:
    """By the public function, on arrays of the emulator."""
    placed = place_all(case, values)
    placed |= {output: placed[name] for output, name in in_place.items()}
    with case.running():
        arrays = {name: EmulatedArray(each.array) for name, each in placed.items()}
        case.call({**arrays, **{output: arrays[name] for output, name in in_place.items()}})
    return {name: each.array.copy() for name, each in placed.items() if case.is_written(name)}


def on_gpu(case: Any, values: Values, in_place: Mapping[str, str] = APART) -> Values:
    """By the public function, on CuPy arrays."""
    before = place_all(case, values)
    uploaded = {name: CupyArrays.upload(placed) for name, placed in before.items()}
    for output, name in in_place.items():
        before[output], uploaded[output] = before[name], uploaded[name]
    views = {name: view for name, (_, view) in uploaded.items()}
    with case.running():
        case.call(views)
    after = {name: CupyArrays.download(buffer) for name, (buffer, _) in uploaded.items()}
    return take_written(case, {name: each for name, each in before.items() if name not in in_place.values()}, after)


def prebuild(run: Runner, cases: Iterable[Any]) -> None:
    """Build at once what these cases run under the emulator: one by one, builds could not share a translation unit."""
    if run is emulated:
        emulator.prebuild({launch.kernel for case in cases for launch in case.launches()}, odd_seeds=False)
