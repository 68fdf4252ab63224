"""NumPy arrays in place of a GPU's: public functions check, plan and allocate for them, and the emulator runs them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from cuconv.runtime import arrays
from cuconv.runtime.arrays import ByteStrideFamily, Facts, Maker
from cuconv.runtime.dtypes import BYTE, DType
from cuconv.runtime.kernel import Enqueue, Kernel, Replay
from cuconv.runtime.launch import LaunchConfig
from cuconv.runtime.layout import Layout
from cuconv.runtime.machine import assumed_device
from tests import emulator
from tests.support.placement import Array, place, poisoned

UNWRITTEN = np.uint32(0x7FFFFFFF)
"""The bits of every number in new memory between launches: a NaN, but none that a kernel itself marks places with."""


class EmulatedArray:
    """A NumPy array on the emulated GPU."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype


class EmulatedFamily(ByteStrideFamily):
    """The arrays of one emulated device. Those of a call are remembered by address until the next call."""

    name = "emulated"
    address = attrgetter("array.ctypes.data")

    def __init__(self) -> None:
        self._by_address: dict[int, Array] = {}
        self.seed = 0
        """The seed of the order in which blocks and threads run."""
        self.early = 0
        """Launches that started before the preceding one had ended."""
        self._before: list[tuple[Array, Array]] = []

    def inspect(self, arguments: Sequence[str], given: Sequence[Any]) -> tuple[list[int], list[Facts | None]]:
        self._by_address = {}
        pointers, facts = super().inspect(arguments, given)
        for pointer, array in zip(pointers, (array for array in given if array is not None), strict=True):
            self._remember(pointer, array.array)
        return pointers, facts

    def _remember(self, pointer: int, array: Array) -> None:
        # An empty array may begin where another one does. A kernel accesses only the other one.
        if array.size or pointer not in self._by_address:
            self._by_address[pointer] = array

    def _place(self, array: Any) -> tuple[int, int]:
        return array.array.ctypes.data, assumed_device()

    def maker(self, layout: Layout) -> Maker:
        assert isinstance(layout.dtype, DType)
        order = sorted(range(len(layout.shape)), key=lambda axis: (-layout.strides[axis], -layout.shape[axis]))
        lies = place(layout.dtype, layout.shape, order=order)

        def make() -> tuple[Any, int]:
            array = lies.view(poisoned(lies))
            if layout.dtype is BYTE:
                array[: array.size // 4 * 4].view(np.uint32)[...] = UNWRITTEN
            self._remember(array.ctypes.data, array)
            return EmulatedArray(array), array.ctypes.data

        return make

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        host: Array = array.array
        return host

    def stream(self, device: int) -> int:
        return 0

    def load(self, kernel: Kernel, device: int, defined: tuple[str, ...] = ()) -> Any:
        return _Loaded(kernel, self, bool(defined))

    def run(
        self, kernel: Kernel, config: LaunchConfig, numbers: bytes, tensors: Mapping[str, Array | None], early: bool
    ) -> None:
        """One launch. What one that starts early reads before it waits is as it was before the preceding launch."""
        if early:
            self.early += 1
            read = [array for name in kernel.EARLY or () if (array := tensors.get(name)) is not None]
            now = [array.copy() for array, _ in self._before]
            for array, before in reversed(self._before):
                array[...] = before
            stale = [array.copy() for array in read]
            for (array, _), content in zip(self._before, now, strict=True):
                array[...] = content
            for array, content in zip(read, stale, strict=True):
                if array.flags.writeable:
                    array[...] = content
        present = [array for array in tensors.values() if array is not None and array.flags.writeable]
        kept = self._before if early and kernel.LETS_GO_FIRST else []
        self._before = [*kept, *((array, array.copy()) for array in present)]
        emulator.run(kernel, config, numbers, tensors, seed=self.seed, early=early)

    def array_at(self, pointer: int) -> Array | None:
        """The array of the current call that begins at an address, or the rest of the scratch memory that it lies in;
        None for a null pointer.
        """
        if not pointer or pointer in self._by_address:
            return self._by_address[pointer] if pointer else None
        first, scratch = next(
            (first, array)
            for first, array in self._by_address.items()
            if array.dtype == np.uint8 and first < pointer <= first + array.nbytes
        )
        return scratch[pointer - first :]


class _Loaded:
    """A kernel on the emulated device."""

    def __init__(self, kernel: Kernel, family: EmulatedFamily, starts_early: bool) -> None:
        self._kernel = kernel
        self._family = family
        self._starts_early = starts_early

    def bound(self, config: LaunchConfig, numbers: bytes) -> Enqueue:
        return lambda pointers, stream, numbers=numbers: self._family.run(
            self._kernel, config, numbers, self._tensors(pointers), self._starts_early
        )

    def fixed(self, config: LaunchConfig, numbers: bytes, pointers: Sequence[int]) -> Replay:
        tensors = self._tensors(pointers)
        return lambda stream: self._family.run(self._kernel, config, numbers, tensors, False)

    def _tensors(self, pointers: Sequence[int]) -> dict[str, Array | None]:
        names = emulator.pointer_names(self._kernel)
        given = [*pointers, *[0] * (len(names) - len(pointers))]
        return {name: self._family.array_at(pointer) for name, pointer in zip(names, given, strict=True)}


arrays.register(EmulatedArray, EmulatedFamily)


@contextlib.contextmanager
def scheduled(seed: int) -> Iterator[None]:
    """Launches run their blocks and threads in the order of this seed, until the end of the `with`."""
    device = arrays.family(EmulatedArray(np.empty(0, np.float32)))
    assert isinstance(device, EmulatedFamily)
    before, device.seed = device.seed, seed
    try:
        yield
    finally:
        device.seed = before


def emulated(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """What a public function returns for these arguments with its NumPy arrays, also in tuples, on the emulated GPU."""
    return function(**{name: _on_device(value) for name, value in arguments.items()})


def _on_device(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_on_device, value))
    return EmulatedArray(value) if isinstance(value, np.ndarray) else value
