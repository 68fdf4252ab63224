"""Every case of every public function against its oracle: NumPy, CuPy and torch arrays.

Outputs are given and hold NaN beforehand; inputs but those to be updated, and whatever lies around any array, must stay
as they are.
"""

from __future__ import annotations

import math
import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import cuconv
from tests import cases
from tests.support.compare import Between, check_results, check_values
from tests.support.gpu import CupyArrays, TorchTensors
from tests.support.placement import Placed


def tables(*names: str, backward: bool = True) -> list[Any]:
    """A pytest parameter for every case of these tables of every public function."""
    return [
        pytest.param(module, case, id=f"{name.lower()}-{cases.function_name(module)}-{case.id}")
        for module in cases.modules()
        for name in names
        for case in getattr(module, name)
        if backward or not any(lies.is_backward for lies in module.placements(case).values())
    ]


def place_arguments(module: ModuleType, case: Any) -> dict[str, Placed]:
    """The inputs, and the outputs full of NaN."""
    placed: dict[str, Placed] = module.place_inputs(case)
    outputs = {name: Placed(lies) for name, lies in module.placements(case).items() if name in module.OUTPUTS}
    return placed | outputs


def call(module: ModuleType, case: Any, arrays: dict[str, Any]) -> None:
    """The public function, which must hand back the very arrays that it was given to write."""
    results = getattr(cuconv, cases.function_name(module))(**module.arguments(case, arrays))
    returned = results if isinstance(results, tuple) else (results,)
    given = [arrays[name] for name in module.OUTPUTS if name in arrays]
    assert [id(array) for array in returned if array is not None] == list(map(id, given))


@pytest.mark.parametrize(("module", "case"), tables("UNIT"))
def test_numpy(module: ModuleType, case: Any) -> None:
    before = place_arguments(module, case)
    after = {name: placed.copy() for name, placed in before.items()}
    call(module, case, {name: placed.array for name, placed in after.items()})
    check_results(module, case, before, {name: placed.buffer for name, placed in after.items()})


@pytest.mark.parametrize("module", cases.modules(), ids=cases.function_name)
def test_a_wrong_element_is_found(module: ModuleType) -> None:
    case = next(each for each in module.UNIT if all(math.prod(lies.shape) for lies in module.placements(each).values()))
    inputs, lies = module.inputs(case), module.placements(case)
    wanted = {
        name: each.low if isinstance(each, Between) else each for name, each in module.oracle(case, inputs).items()
    }
    right = {name: each.astype(lies[name].dtype.numpy) for name, each in wanted.items()}
    check_values(module, case, inputs, right)
    for name, values in right.items():
        wrong = values.copy()
        wrong.flat[np.nanargmax(np.abs(values.astype(np.float64)))] *= 1.02
        with pytest.raises(AssertionError, match=re.escape(f"{name}: 1 of {values.size} elements are wrong")):
            check_values(module, case, inputs, {**right, name: wrong})


@pytest.mark.gpu
@pytest.mark.parametrize(("module", "case"), tables("UNIT", "EDGE"))
def test_cupy(module: ModuleType, case: Any) -> None:
    check_on_gpu(CupyArrays, module, case)


@pytest.mark.gpu
@pytest.mark.parametrize(("module", "case"), tables("UNIT", "EDGE", backward=False))
def test_torch(module: ModuleType, case: Any) -> None:
    pytest.importorskip("torch")
    check_on_gpu(TorchTensors, module, case)


def check_on_gpu(library: Any, module: ModuleType, case: Any) -> None:
    before = place_arguments(module, case)
    on_gpu = {name: library.upload(placed) for name, placed in before.items()}
    call(module, case, {name: view for name, (_, view) in on_gpu.items()})
    check_results(module, case, before, {name: library.download(buffer) for name, (buffer, _) in on_gpu.items()})
