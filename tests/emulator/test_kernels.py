"""The kernels of cuda_src: they depend on no order of threads, and what goes wrong in them is found in them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from cuconv.runtime.call import Launch
from cuconv.runtime.kernel import Kernel
from cuconv.selective_scan.kernels import SelectiveScanBwdStart
from tests import cases, emulator
from tests.emulator.family import EmulatedArray, scheduled
from tests.families.test_numerics import place_arguments
from tests.support.discovery import op_kernels
from tests.support.placement import Array, Placed

pytestmark = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))

ALIGNMENT = 256

ORDERS = range(2 * len(emulator.SEEDS))
"""Seeds of each way to take turns, in two opposite orders."""

WITHOUT_VECTORS = (
    "CausalConv1dBwdSum",
    "CausalConv1dBwdStates",
    "SelectiveScanBwdMatrices",
    "SelectiveScanBwdParameters",
    "SelectiveScanBwdStates",
    "SelectiveScanCarry",
)
WITH_VECTORS = [cls for cls in op_kernels() if cls.__name__ not in WITHOUT_VECTORS]

IN_VECTORS = ("state", "u", "out", "out[0]", "dout", "scratch")
"""Tensors that are accessed in vectors. Those of a state update lie along the axis of states, which out does not have.
"""


def sample(cls: type[Kernel], needs_vectors: bool = False) -> tuple[Any, Sequence[Launch]]:
    """The first small case that runs this kernel, in tensors without negative strides, and its launches."""
    for case in cases.tables("UNIT"):
        launches = case.launches()
        kernel = next((launch.kernel for launch in launches if type(launch.kernel) is cls), None)
        if kernel is None or any(placement.is_backward for placement in case.placements().values()):
            continue
        if not needs_vectors or getattr(kernel, "vec", 2) > 1:
            return case, launches
    raise LookupError(f"no small case runs {cls.__name__}")


@pytest.fixture(scope="module", autouse=True)
def prebuilt() -> None:
    samples = []
    for cls, needs_vectors in [*((cls, False) for cls in op_kernels()), *((cls, True) for cls in WITH_VECTORS)]:
        # Where there is no case, only this kernel's own tests fail.
        with contextlib.suppress(LookupError):
            samples.append(sample(cls, needs_vectors))
    emulator.prebuild(launch.kernel for _, launches in samples for launch in launches)


def call(case: Any, placed: Mapping[str, Placed], seed: int = 0) -> None:
    """The public function on emulated arrays."""
    with scheduled(seed), case.running():
        case.call({name: EmulatedArray(each.array) for name, each in placed.items()})


@pytest.mark.parametrize("cls", op_kernels())
def test_no_order_of_threads_and_blocks_changes_a_bit(cls: type[Kernel]) -> None:
    case, _ = sample(cls)
    results = []
    for seed in ORDERS:
        placed = place_arguments(case)
        call(case, placed, seed)
        results.append({name: each.buffer.view(np.uint8) for name, each in placed.items()})
    assert all(np.array_equal(result[name], results[0][name]) for result in results for name in result)


def finding(
    cls: type[Kernel],
    found: tuple[Any, Sequence[Launch]],
    names: Sequence[str],
    change: Callable[[Array], Array],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The first named tensor that, when a call's last launch of the kernel gets it changed, gives an error with a text.

    Empty if there is none.
    """
    case, launches = found
    *_, planned = (launch.kernel for launch in launches if type(launch.kernel) is cls)
    run = emulator.run

    for name in names:

        def run_changed(
            kernel: Kernel, config: Any, numbers: bytes, tensors: dict[str, Array | None], name: str = name, **how: Any
        ) -> None:
            array = tensors.get(name)
            if kernel == planned and array is not None:
                tensors = {**tensors, name: change(array)}
            run(kernel, config, numbers, tensors, **how)

        monkeypatch.setattr(emulator, "run", run_changed)
        try:
            call(case, place_arguments(case))
        except emulator.EmulationError as error:
            if not re.search(text, str(error)):
                continue
            assert_is_in_device_code(planned, name, str(error))
            return name
    return ""


def shorter(by: float, array: Array) -> Array:
    """A view without the last element of the innermost axis, or without a part of it."""
    return array[..., : array.shape[-1] - max(1, int(by * array.shape[-1]))]


ACCESSES = [(cls, access) for cls in op_kernels() for access in ("READ", "WRITE")]
ACCESSES.remove((SelectiveScanBwdStart, "READ"))  # it only writes


@pytest.mark.parametrize(("cls", "access"), ACCESSES)
def test_a_tensor_that_is_shorter_than_planned_is_found(
    cls: type[Kernel], access: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sample(cls)
    names = next(launch.kernel.params.pointer_names for launch in found[1] if type(launch.kernel) is cls)
    # A kernel may leave much of scratch to others, but not all of it.
    for by in (0.0, 0.5, 0.99):
        if finding(cls, found, names, partial(shorter, by), f"{access} of size", monkeypatch):
            return
    raise AssertionError(f"no tensor that is too short was found among {', '.join(names)}")


@pytest.mark.parametrize("cls", WITH_VECTORS)
def test_a_tensor_that_is_less_aligned_than_planned_is_found(
    cls: type[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sample(cls, needs_vectors=True)
    assert finding(cls, found, IN_VECTORS, one_element_on, "misaligned address", monkeypatch)


def one_element_on(array: Array) -> Array:
    return moved(array, array.itemsize)


def moved(array: Array, distance: int) -> Array:
    """A copy of the same layout, `distance` bytes further from an aligned address."""
    span = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    memory = np.zeros(span + 2 * ALIGNMENT, np.uint8)
    first = (array.ctypes.data + distance - memory.ctypes.data) % ALIGNMENT
    copy: Array = np.ndarray(array.shape, array.dtype, memory, first, array.strides)
    copy[...] = array
    return copy


def assert_is_in_device_code(kernel: Kernel, tensor: str, finding: str) -> None:
    lines = finding.splitlines()
    assert lines[0] == kernel.expression
    assert re.search(rf"^    .* of {re.escape(tensor)}(?!\w)", finding, re.MULTILINE)
    assert any(re.match(rf"    {kernel.unit}\.cu:\d+ in {kernel.unit}_kernel$", line) for line in lines)
    assert lines[-1].startswith("emulator: in block (")
