"""The kernels of cuda_src: they depend on no order of threads, and what goes wrong in them is found in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from cuconv.causal_conv1d.kernels_varlen_over import (
    CausalConv1dVarlenOverFwd,
    CausalConv1dVarlenOvershortFwd,
    CausalConv1dVarlenOverStart,
)
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import LaunchConfig
from cuconv.selective_scan.kernels_backward import SelectiveScanBwdStart
from tests import emulator
from tests.emulator.family import EmulatedArray, scheduled
from tests.families.test_numerics import place_arguments
from tests.families.test_numerics_emulated import UNIT, launched
from tests.support import sampling
from tests.support.discovery import op_kernels
from tests.support.placement import Array, Placed

pytestmark = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))

ALIGNMENT = 256

ORDERS = sorted({0, *range(2 * len(emulator.SEEDS))} - {*emulator.SEEDS[1:]})
"""With those in which all small cases run, seeds of each way to take turns, in two opposite orders."""

WITHOUT_VECTORS = (
    "CausalConv1dBwdSum",
    "CausalConv1dBwdStates",
    "CausalConv1dOddchannelsFwd",
    "SelectiveScanAlign",
    "SelectiveScanBwdStates",
    "SelectiveScanBwdSums",
    "SelectiveScanCarry",
    "SelectiveStateUpdateCommit",
)
WITH_VECTORS = [cls for cls in op_kernels() if cls.__name__ not in WITHOUT_VECTORS]

IN_VECTORS = ("state", "u", "out", "out[0]", "dout", "rows", "turned", "scratch")
"""Tensors that are accessed in vectors. Those of a state update lie along the axis of states, which out does not have.
"""


WRITES_ALONE = ("token", "empty")
"""Axes of kernels that write only what they have read, and find no error of a write, where these are False."""


@cache
def samples(cls: type[Kernel], needs_vectors: bool = False) -> list[Any]:
    """Two small cases that run this kernel, in tensors without negative strides: the first of those that every run has,
    so that their kernels are built anyway, and the first of all, for what does not show in the other one.
    """
    found = [next(fit(cls, needs_vectors, numbers), None) for numbers in (needed(), range(len(UNIT)))]
    return [case for case in found if case is not None]


@cache
def needed() -> list[int]:
    return sampling.needed(launched())


def fit(cls: type[Kernel], needs_vectors: bool, numbers: Iterable[int]) -> Iterator[Any]:
    """The small cases with these numbers in which errors of the kernel would show."""
    for number in numbers:
        kernel = next((launch.kernel for launch in launched()[number] if type(launch.kernel) is cls), None)
        if kernel is None or not all(getattr(kernel, axis, True) for axis in WRITES_ALONE):
            continue
        case = UNIT[number].values[0]
        is_backward = any(placement.is_backward for placement in case.placements().values())
        if not is_backward and (not needs_vectors or getattr(kernel, "vec", 2) > 1):
            yield case


@pytest.fixture(scope="module", autouse=True)
def prebuilt() -> None:
    wanted = [*((cls, False) for cls in op_kernels()), *((cls, True) for cls in WITH_VECTORS)]
    first = [case for each in wanted for case in samples(*each)[:1]]
    emulator.prebuild(launch.kernel for case in first for launch in case.launches())


@dataclass(frozen=True)
class Recorded:
    """A launch that can be repeated."""

    kernel: Kernel
    config: LaunchConfig
    numbers: bytes
    tensors: Mapping[str, Array | None]
    written: Mapping[str, Array]
    """What the tensors that the launch changes held before it."""

    def sharing(self, name: str) -> list[str]:
        """The tensors that have memory of this one, as results over x do: what is found names one of them."""
        array = self.tensors[name]
        return [each for each, other in self.tensors.items() if other is not None and np.shares_memory(other, array)]

    def finding(self, name: str, change: Callable[[Array], Array]) -> str:
        """What is found in the launch with a tensor changed; empty if nothing is, or if it has no such tensor."""
        array = self.tensors[name]
        if array is None:
            return ""
        for other, contents in self.written.items():
            self.tensors[other][...] = contents  # type: ignore[index]
        try:
            emulator.run(self.kernel, self.config, self.numbers, {**self.tensors, name: change(array)})
        except emulator.EmulationError as error:
            return str(error)
        return ""


@cache
def recorded(case: Any, cls: type[Kernel]) -> Recorded:
    """The last launch of the kernel in a case."""
    *_, planned = (launch.kernel for launch in case.launches() if type(launch.kernel) is cls)
    found: list[Recorded] = []
    run = emulator.run

    def recording(kernel: Kernel, config: LaunchConfig, numbers: bytes, tensors: Any, **how: Any) -> None:
        before = {name: array.copy() for name, array in tensors.items() if array is not None}
        run(kernel, config, numbers, tensors, **how)
        if kernel == planned:
            written = {name: array for name, array in before.items() if array.tobytes() != tensors[name].tobytes()}
            found.append(Recorded(kernel, config, numbers, tensors, written))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulator, "run", recording)
        call(case)
    return found[-1]


def call(case: Any, seed: int = 0) -> dict[str, Placed]:
    """The public function on emulated arrays, and the arrays after it."""
    placed = place_arguments(case)
    with scheduled(seed), case.running():
        case.call({name: EmulatedArray(each.array) for name, each in placed.items()})
    return placed


@pytest.mark.parametrize("cls", op_kernels())
def test_no_order_of_threads_and_blocks_changes_a_bit(cls: type[Kernel]) -> None:
    case = samples(cls)[0]
    first, *others = (call(case, seed) for seed in ORDERS)
    for other in others:
        assert all(other[name].buffer.tobytes() == placed.buffer.tobytes() for name, placed in first.items())


Change = Callable[[Array], Array]


def assert_one_is_found(
    cls: type[Kernel], cases: Iterable[Any], changes: Callable[[Recorded], Iterable[tuple[str, Change]]], text: str
) -> None:
    """In a launch of one of these cases, one of the changes of a tensor gives an error with this text, which says
    where.
    """
    for case in cases:
        launch = recorded(case, cls)
        for name, change in changes(launch):
            if re.search(text, error := launch.finding(name, change)):
                assert_is_in_device_code(launch.kernel, launch.sharing(name), error)
                return
    raise AssertionError(f"no change of a tensor of {cls.__name__} was found as {text}")


def shorter(by: float, array: Array) -> Array:
    """A view without the last element of the innermost axis, or without a part of it."""
    return array[..., : array.shape[-1] - max(1, int(by * array.shape[-1]))]


ACCESSES = [(cls, access) for cls in op_kernels() for access in ("READ", "WRITE")]
ACCESSES.remove((SelectiveScanBwdStart, "READ"))  # it only writes, as does the next one
ACCESSES.remove((CausalConv1dVarlenOverStart, "READ"))
ACCESSES.remove((CausalConv1dVarlenOverFwd, "WRITE"))  # it writes only where it has read, as does the next one
ACCESSES.remove((CausalConv1dVarlenOvershortFwd, "WRITE"))


@pytest.mark.parametrize(("cls", "access"), ACCESSES)
def test_a_tensor_that_is_shorter_than_planned_is_found(cls: type[Kernel], access: str) -> None:
    def changes(launch: Recorded) -> Iterable[tuple[str, Change]]:
        names = launch.tensors if access == "READ" else launch.written
        # A kernel may leave much of scratch to others, but not all of it.
        return ((name, partial(shorter, by)) for by in (0.0, 0.5, 0.999) for name in names)

    assert_one_is_found(cls, samples(cls), changes, f"{access} of size")


@pytest.mark.parametrize("cls", WITH_VECTORS)
def test_a_tensor_that_is_less_aligned_than_planned_is_found(cls: type[Kernel]) -> None:
    def changes(launch: Recorded) -> Iterable[tuple[str, Change]]:
        return ((name, one_element_on) for name in IN_VECTORS if name in launch.tensors)

    assert_one_is_found(cls, samples(cls, needs_vectors=True), changes, "misaligned address")


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


def assert_is_in_device_code(kernel: Kernel, tensors: Sequence[str], finding: str) -> None:
    lines = finding.splitlines()
    assert lines[0] == kernel.expression
    assert any(re.search(rf"^    .* of {re.escape(tensor)}(?!\w)", finding, re.MULTILINE) for tensor in tensors)
    assert any(re.match(rf"    {kernel.unit}\.cu:\d+ in {kernel.unit}_kernel$", line) for line in lines)
    assert lines[-1].startswith("emulator: in block (")
