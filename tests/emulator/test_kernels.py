"""The kernels of cuda_src: they depend on no order of threads, and what goes wrong in them is found in them."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from cuconv.selective_scan.kernel_carry import SelectiveScanCarry
from cuconv.selective_scan.kernel_chunk import SelectiveScanChunk
from cuconv.selective_scan.kernel_fwd import SelectiveScanFwd
from cuconv.selective_scan.kernel_tiles_chunk import SelectiveScanTilesChunk
from cuconv.selective_scan.kernel_tiles_fwd import SelectiveScanTilesFwd
from cuconv.selective_scan.kernel_varlen_fwd import SelectiveScanVarlenFwd
from cuconv.selective_scan.kernel_varlen_tiles_fwd import SelectiveScanVarlenTilesFwd

from cuconv.runtime.call import Launch
from cuconv.runtime.kernel import Kernel
from tests import cases, emulator
from tests.families.test_numerics import place_arguments
from tests.support.discovery import op_kernels
from tests.support.placement import Array, bits

pytestmark = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))

ALIGNMENT = 256


def sample(cls: type[Kernel], needs_vectors: bool = False) -> tuple[ModuleType, Any, list[Launch]]:
    """The first small case that runs this kernel, in tensors without negative strides, and its launches up to that."""
    for module in cases.modules():
        for case in module.UNIT:
            launches = cases.launches(module, case)
            number = next((i for i, launch in enumerate(launches) if type(launch.kernel) is cls), None)
            if number is None or any(placement.is_backward for placement in module.placements(case).values()):
                continue
            if not needs_vectors or getattr(launches[number].kernel, "vec", 2) > 1:
                return module, case, list(launches[: number + 1])
    raise LookupError(f"no small case runs {cls.__name__}")


def run(launches: list[Launch], tensors: dict[str, Array | None], seed: int = 0) -> None:
    for launch in launches:
        emulator.run(launch.kernel, launch.config, launch.numbers, tensors, seed=seed)


WITH_VECTORS = [cls for cls in op_kernels() if cls is not SelectiveScanCarry]

READ: dict[type[Kernel], str] = dict.fromkeys((SelectiveScanChunk, SelectiveScanTilesChunk, SelectiveScanCarry), "A")
READ |= dict.fromkeys((SelectiveScanFwd, SelectiveScanTilesFwd), "u")
READ |= dict.fromkeys((SelectiveScanVarlenFwd, SelectiveScanVarlenTilesFwd), "u")
"""What a kernel without x reads, such that its last elements are missed."""

WRITTEN: dict[type[Kernel], tuple[str, int]] = {
    **dict.fromkeys((SelectiveScanChunk, SelectiveScanTilesChunk), ("scratch", 2)),
    SelectiveScanCarry: ("scratch", 1),
}
"""What one without out writes, and into how many parts it must be cut for a part to be missed: of the last segment it
may leave nothing.
"""


@pytest.fixture(scope="module", autouse=True)
def prebuilt() -> None:
    samples = [sample(cls) for cls in op_kernels()] + [sample(cls, needs_vectors=True) for cls in WITH_VECTORS]
    emulator.prebuild(launch.kernel for _, _, launches in samples for launch in launches)


def tensors_of(module: ModuleType, case: Any) -> dict[str, Array | None]:
    tensors: dict[str, Array | None] = module.tensors(
        {name: placed.array for name, placed in place_arguments(module, case).items()}
    )
    return tensors


@pytest.mark.parametrize("cls", op_kernels())
def test_no_order_of_threads_and_blocks_changes_a_bit(cls: type[Kernel]) -> None:
    module, case, launches = sample(cls)
    results = []
    for seed in range(6):
        tensors = tensors_of(module, case)
        run(launches, tensors, seed)
        results.append({name: bits(array).copy() for name, array in tensors.items() if array is not None})
    assert all(np.array_equal(result[name], results[0][name]) for result in results for name in result)


def full_name(tensors: dict[str, Array | None], name: str) -> str:
    """The first output's name is that of a pointer or of an array's first."""
    return name if name in tensors else f"{name}[0]"


@pytest.mark.parametrize("cls", op_kernels())
@pytest.mark.parametrize("access", ["READ", "WRITE"])
def test_a_tensor_that_is_shorter_than_planned_is_found(cls: type[Kernel], access: str) -> None:
    module, case, launches = sample(cls)
    tensors = tensors_of(module, case)
    run(launches[:-1], tensors)
    name, parts = (READ.get(cls, "x"), 1) if access == "READ" else WRITTEN.get(cls, ("out", 1))
    name = full_name(tensors, name)
    array = tensors[name]
    assert array is not None
    tensors[name] = array[..., : array.shape[-1] // parts - 1]
    with pytest.raises(emulator.EmulationError, match=f"{access} of size") as caught:
        run(launches[-1:], tensors)
    assert_is_in_device_code(launches[-1].kernel, name, str(caught.value))


@pytest.mark.parametrize("cls", WITH_VECTORS)
def test_a_tensor_that_is_less_aligned_than_planned_is_found(cls: type[Kernel]) -> None:
    module, case, launches = sample(cls, needs_vectors=True)
    tensors = tensors_of(module, case)
    run(launches[:-1], tensors)
    # Vectors lie along the channels, or else along the axis of states, which out does not have. Of scans all read u so.
    name = full_name(tensors, next((name for name in ("state", "u") if name in tensors), "out"))
    array = tensors[name]
    assert array is not None
    tensors[name] = moved(array, array.itemsize)
    with pytest.raises(emulator.EmulationError, match="misaligned address") as caught:
        run(launches[-1:], tensors)
    assert_is_in_device_code(launches[-1].kernel, name, str(caught.value))


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
