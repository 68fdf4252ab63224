"""The kernels of cuda_src: they depend on no order of threads, and what goes wrong in them is found in them."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cuconv.kernel import Kernel
from tests import cases, emulator
from tests.discovery import op_kernels
from tests.placement import Array, bits
from tests.test_numerics import place_arguments

pytestmark = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))

ALIGNMENT = 256


def sample(cls: type[Kernel], needs_vectors: bool = False) -> tuple[ModuleType, Any]:
    """The first small case that runs this kernel, in tensors without negative strides."""
    for module in cases.modules():
        for case in module.UNIT:
            launch = module.launch(case)
            if launch is None or type(launch.kernel) is not cls:
                continue
            is_backward = any(placement.is_backward for placement in module.placements(case).values())
            if not is_backward and (not needs_vectors or getattr(launch.kernel, "vec", 1) > 1):
                return module, case
    raise LookupError(f"no small case runs {cls.__name__}")


@pytest.fixture(scope="module", autouse=True)
def prebuilt() -> None:
    samples = [sample(cls, needs_vectors) for cls in op_kernels() for needs_vectors in (False, True)]
    emulator.prebuild(module.launch(case).kernel for module, case in samples)


def tensors_of(module: ModuleType, case: Any) -> dict[str, Array | None]:
    tensors: dict[str, Array | None] = module.tensors(
        {name: placed.array for name, placed in place_arguments(module, case).items()}
    )
    return tensors


@pytest.mark.parametrize("cls", op_kernels())
def test_no_order_of_threads_and_blocks_changes_a_bit(cls: type[Kernel]) -> None:
    module, case = sample(cls)
    launch = module.launch(case)
    results = []
    for seed in range(6):
        tensors = tensors_of(module, case)
        emulator.run(launch.kernel, launch.config, launch.numbers, tensors, seed=seed)
        results.append({name: bits(array).copy() for name, array in tensors.items() if array is not None})
    assert all(np.array_equal(result[name], results[0][name]) for result in results for name in result)


def full_name(tensors: dict[str, Array | None], name: str) -> str:
    """The first output's name is that of a pointer or of an array's first."""
    return name if name in tensors else f"{name}[0]"


@pytest.mark.parametrize("cls", op_kernels())
@pytest.mark.parametrize(("name", "access"), [("x", "READ"), ("out", "WRITE")])
def test_a_tensor_that_is_shorter_than_planned_is_found(cls: type[Kernel], name: str, access: str) -> None:
    module, case = sample(cls)
    launch = module.launch(case)
    tensors = tensors_of(module, case)
    name = full_name(tensors, name)
    array = tensors[name]
    assert array is not None
    tensors[name] = array[..., :-1]
    with pytest.raises(emulator.EmulationError, match=f"{access} of size") as caught:
        emulator.run(launch.kernel, launch.config, launch.numbers, tensors)
    assert_is_in_device_code(launch.kernel, name, str(caught.value))


@pytest.mark.parametrize("cls", op_kernels())
def test_a_tensor_that_is_less_aligned_than_planned_is_found(cls: type[Kernel]) -> None:
    module, case = sample(cls, needs_vectors=True)
    launch = module.launch(case)
    tensors = tensors_of(module, case)
    name = full_name(tensors, "out")
    out = tensors[name]
    assert out is not None
    tensors[name] = moved(out, out.itemsize)
    with pytest.raises(emulator.EmulationError, match="misaligned address") as caught:
        emulator.run(launch.kernel, launch.config, launch.numbers, tensors)
    assert_is_in_device_code(launch.kernel, name, str(caught.value))


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
