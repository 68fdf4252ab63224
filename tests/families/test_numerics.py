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

from tests import cases
from tests.support.compare import Between, assert_same_bits, check_results, check_values
from tests.support.gpu import CupyArrays, TorchTensors
from tests.support.placement import Placed


def tables(*names: str, backward: bool = True) -> list[Any]:
    """A pytest parameter for every case of these tables of every public function."""
    return [
        pytest.param(case, id=f"{name.lower()}-{case.FUNCTION}-{case.id}")
        for name in names
        for case in cases.tables(name)
        if backward or not any(lies.is_backward for lies in case.placements().values())
    ]


def place_arguments(case: Any) -> dict[str, Placed]:
    """The inputs, and the outputs full of NaN."""
    outputs = {name: Placed(lies) for name, lies in case.placements().items() if name in case.OUTPUTS}
    placed: dict[str, Placed] = case.place_inputs() | outputs
    return placed


def call(case: Any, arrays: dict[str, Any]) -> None:
    """The public function, which must hand back the very arrays that it was given to write."""
    with case.running():
        results = case.call(arrays)
    returned = results if isinstance(results, tuple) else (results,)
    given = [arrays[name] for name in case.returned if name in arrays]
    assert [id(array) for array in returned if array is not None] == list(map(id, given))


@pytest.mark.parametrize("case", tables("UNIT"))
def test_numpy(case: Any) -> None:
    before = place_arguments(case)
    after = {name: placed.copy() for name, placed in before.items()}
    call(case, {name: placed.array for name, placed in after.items()})
    check_results(case, before, {name: placed.buffer for name, placed in after.items()})


@pytest.mark.parametrize("module", cases.modules(), ids=lambda module: module.Case.FUNCTION)
def test_a_wrong_element_is_found(module: ModuleType) -> None:
    case = next(each for each in module.UNIT if all(math.prod(lies.shape) for lies in each.placements().values()))
    inputs, lies = case.inputs(), case.placements()
    wanted = {name: each.low if isinstance(each, Between) else each for name, each in case.oracle(inputs).items()}
    right = {name: each.astype(lies[name].dtype.numpy) for name, each in wanted.items()}
    check_values(case, inputs, right)
    for name, values in right.items():
        wrong = values.copy()
        wrong.flat[np.nanargmax(np.abs(values.astype(np.float64)))] *= 1.02
        with pytest.raises(AssertionError, match=re.escape(f"{name}: 1 of {values.size} elements are wrong")):
            check_values(case, inputs, {**right, name: wrong})


@pytest.mark.parametrize("table", ["UNIT", "EDGE", "BIG"])
def test_cases_have_ids_of_their_own(table: str) -> None:
    names = [(case.FUNCTION, case.id) for case in cases.tables(table)]
    assert len(set(names)) == len(names)


@pytest.mark.gpu
@pytest.mark.parametrize("case", tables("UNIT", "EDGE"))
def test_cupy(case: Any) -> None:
    check_on_gpu(CupyArrays, case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", tables("UNIT", "EDGE", backward=False))
def test_torch(case: Any) -> None:
    pytest.importorskip("torch")
    check_on_gpu(TorchTensors, case)


def check_on_gpu(library: Any, case: Any) -> None:
    before = place_arguments(case)
    on_gpu = {name: library.upload(placed) for name, placed in before.items()}
    call(case, {name: view for name, (_, view) in on_gpu.items()})
    check_results(case, before, {name: library.download(buffer) for name, (buffer, _) in on_gpu.items()})


@pytest.mark.gpu
@pytest.mark.parametrize("case", tables("UNIT"))
def test_bits_do_not_change_from_run_to_run(case: Any) -> None:
    before = place_arguments(case)
    results = []
    for _ in range(6):
        on_gpu = {name: CupyArrays.upload(placed) for name, placed in before.items()}
        call(case, {name: view for name, (_, view) in on_gpu.items()})
        results.append({name: CupyArrays.download(buffer) for name, (buffer, _) in on_gpu.items()})
    for again in results[1:]:
        for name, buffer in results[0].items():
            assert_same_bits(again[name], buffer, name)
