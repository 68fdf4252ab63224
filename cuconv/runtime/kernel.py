"""One CUDA kernel on the host: the specialisation as a value, the layout of its arguments, loading and launching."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from cuconv.jit import source, structs
from cuconv.jit.build import build
from cuconv.jit.cache import Artifact
from cuconv.runtime import dependent, machine
from cuconv.runtime.dtypes import DType
from cuconv.runtime.launch import WARP_SIZE, LaunchConfig

MAX_ARGUMENT_BYTES = 4096
"""Most bytes of a launch's arguments (CUDA programming guide, function parameters)."""


class Params:
    """The layout of a kernel's argument struct: pointers first, then numbers that follow from layouts and options.

    A number is (name, NumPy code[, count]) and aligned to its own size, as in C++.
    """

    def __init__(self, pointers: tuple[str, ...], *numbers: tuple[str, str] | tuple[str, str, int]) -> None:
        self.pointer_names = pointers
        self.pointers = struct.Struct(f"={len(pointers)}Q")
        self.numbers = np.dtype([(name, code, *count) for name, code, *count in numbers], align=True)
        self.dtype = np.dtype([*((name, "u8") for name in pointers), *numbers], align=True)
        if self.dtype.itemsize != self.pointers.size + self.numbers.itemsize:
            raise TypeError(f"the numbers of {self.dtype.names} are not aligned behind the pointers")
        self.packing = tuple(self.packing_of([True] * n) for n in range(len(pointers) + 1))
        """The packing of pointers and the numbers' bytes, by the number of leading pointers that are given; others are
        null."""

    def packing_of(self, given: Sequence[bool]) -> struct.Struct:
        """The packing of the pointers and the numbers' bytes. `given` says which of the first pointers are given;
        others are null."""
        # "P" takes half as long as "Q", and there is nothing to align.
        pointers = "".join("P" if each else "8x" for each in given)
        return struct.Struct(f"{pointers}{8 * (len(self.pointer_names) - len(given))}x{self.numbers.itemsize}s")

    @classmethod
    def declared(cls, fields: Sequence[structs.Field]) -> Params:
        """The layout of a struct as the device code declares it; TypeError where a pointer lies behind a number."""
        places = [number for number, field in enumerate(fields) if field.is_pointer]
        if places != list(range(len(places))):
            raise TypeError(f"{fields[places[-1]].name} of an argument struct is a pointer behind numbers")
        pointers = [
            field.name if field.length == 1 else f"{field.name}[{number}]"
            for field in fields
            if field.is_pointer
            for number in range(field.length)
        ]
        numbers = [field for field in fields if not field.is_pointer]
        shapes = ((name, code) if length == 1 else (name, code, length) for name, code, length in numbers)
        return cls(tuple(pointers), *shapes)

    def pack_numbers(self, **values: Any) -> bytes:
        """The bytes of the argument struct behind the pointers, from a value for every field."""
        record = np.zeros((), self.numbers)
        for name in self.numbers.names or ():
            record[name] = values.pop(name)
        if values:
            raise TypeError(f"no such fields: {', '.join(values)}")
        return record.tobytes()

    def replaced(self, numbers: bytes, values: Mapping[str, int]) -> bytes:
        """Packed numbers with new integers in the fields with these names; other names have no effect.

        An integer keeps its lowest bits where it is too large for its field.
        """
        fields: Mapping[str, Any] = self.numbers.fields or {}
        for name in values.keys() & fields.keys():
            kind, begin, *_ = fields[name]
            end = begin + kind.itemsize
            value = values[name] % (1 << 8 * kind.itemsize)
            numbers = numbers[:begin] + value.to_bytes(kind.itemsize, sys.byteorder) + numbers[end:]
        return numbers


Value = TypeVar("Value")


class PerClass(Generic[Value]):
    """A class attribute that is computed when it is first asked for."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self._values: dict[type, Value] = {}

    def __get__(self, instance: object, owner: type) -> Value:
        if owner not in self._values:
            self._values[owner] = self._compute(owner)
        return self._values[owner]


class OwnBlock(PerClass[int]):
    """Threads per block where specialisations differ: the `block` of a specialisation, or the largest of BLOCKS for the
    class."""

    def __init__(self) -> None:
        super().__init__(lambda cls: max(cls.BLOCKS))

    def __get__(self, instance: object, owner: type) -> int:
        return super().__get__(instance, owner) if instance is None else instance.block  # type: ignore[attr-defined]


def _unit(cls: type[Kernel]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def _file(cls: type[Kernel]) -> str:
    return f"{cls.__module__.split('.')[1]}/{cls.unit}.cu"


def _params(cls: type[Kernel]) -> Params:
    return Params.declared(structs.argument_struct(source.load(), cls.file, f"{cls.__name__}Params"))


def _constants(cls: type[Kernel]) -> Mapping[str, int]:
    return structs.constants(source.load(), cls.file, f"{cls.__name__}Traits")


def _threads(cls: type[Kernel]) -> int:
    return cls.constants["kThreads"]


def _warps(cls: type[Kernel]) -> int:
    return cls.threads // WARP_SIZE


class Declared:
    """The names of a kernel class in the device code, and the facts that the device code declares for it."""

    # These have no annotations: a dataclass would read their values as defaults while the class is being made.
    unit = PerClass(_unit)
    """The kernel's name in C++ without "_kernel": causal_conv1d_fwd for CausalConv1dFwd."""
    file = PerClass(_file)
    """The kernel's file in cuda_src, in a folder with the name of the class's own package."""
    params = PerClass(_params)
    """The layout of `struct <class>Params` in that file."""
    constants = PerClass(_constants)
    """The literal integers of `struct <class>Traits` in that file, such as kThreads."""
    threads = PerClass(_threads)
    """Threads per block."""
    warps = PerClass(_warps)
    """Warps per block."""


@dataclass(frozen=True)
class Kernel(Declared):
    """Base of all kernels. The fields of a subclass are the template parameters of its .cu, in order."""

    EARLY: ClassVar[tuple[str, ...] | None] = None
    """The pointers that the kernel reads before it waits for the preceding one (`wait_for_preceding()`); None for a
    kernel that does not wait."""
    LETS_GO_FIRST: ClassVar[bool] = False
    """Whether the kernel lets the next one start before it has waited itself (`let_next_start()`)."""
    FOLLOWS: ClassVar[bool] = False
    """Whether the kernel is the second launch of a call and is always launched to start before the first has ended. It
    waits for the first (`wait_for_leader()`) before it writes, and before it reads anything but EARLY, which the first
    does not write."""

    @property
    def is_follower(self) -> bool:
        """FOLLOWS of this specialisation."""
        return self.FOLLOWS

    @property
    def dynamic_bytes(self) -> int:
        """Bytes of dynamic shared memory of its launches, where a kernel must ask for that much; 0 elsewhere."""
        return 0

    @classmethod
    def variants(cls) -> Iterator[Kernel]:
        """Every specialisation that a plan may ask for."""
        raise NotImplementedError

    @property
    def expression(self) -> str:
        """The C++ name of this specialisation, such as `copy_kernel<4, float, true>`."""
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return f"{self.unit}_kernel<{', '.join(map(_cpp, values))}>"

    def config(self, blocks: int, shared_mem: int = 0) -> LaunchConfig:
        """A one-dimensional launch of this many blocks."""
        return LaunchConfig((blocks, 1, 1), (self.threads, 1, 1), shared_mem)

    def load(self, device: int, defined: tuple[str, ...] = ()) -> LoadedKernel:
        """This kernel on a device, compiled if need be, and kept for the life of the process.

        With macros of `dependent` defined, the kernel itself waits for the preceding one, and its launches do not.
        """
        return _load(self, device, defined)


def _cpp(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return f"{type(value).__name__}::{value.value}"
    return value.cpp if isinstance(value, DType) else str(value)


@cache
def _load(kernel: Kernel, device: int, defined: tuple[str, ...]) -> LoadedKernel:
    import cupy

    with cupy.cuda.Device(device) as current:
        capability = int(current.compute_capability)
        artifact = build(kernel.file, kernel.expression, capability, defined)
        try:
            return _loaded(kernel, artifact, device, bool(defined))
        except Exception:
            if artifact.path.exists():
                raise
        # Another process may clear the cache between build and load.
        artifact = build(kernel.file, kernel.expression, capability, defined)
        return _loaded(kernel, artifact, device, bool(defined))


def _loaded(kernel: Kernel, artifact: Artifact, device: int, starts_early: bool) -> LoadedKernel:
    import cupy

    module = cupy.RawModule(path=str(artifact.path))
    function = module.get_function(artifact.symbol)
    if kernel.dynamic_bytes:
        function.max_dynamic_shared_size_bytes = kernel.dynamic_bytes
    pointer = function.kernel.ptr
    starts_early = starts_early or (kernel.is_follower and machine.has_dependent_launch(device))
    return LoadedKernel(module, pointer, device, kernel.params, starts_early)


class _Buffer:
    """Memory for the argument struct of a launch; the driver copies it before it returns."""

    def __init__(self, content: bytes) -> None:
        self.bytes = bytearray(content)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))
        self._pointers = (ctypes.c_void_p * 1)(address)
        self.pointers = ctypes.addressof(self._pointers)


class _Own(_Buffer):
    """A thread's memory for the arguments of its current launch, and the devices that it has used."""

    def __init__(self) -> None:
        super().__init__(bytes(MAX_ARGUMENT_BYTES))
        self.devices: set[int] = set()


class _Thread(threading.local):
    """Each thread's own state, in a single attribute, because a look-up here takes longer than on a plain object."""

    def __init__(self) -> None:
        self.own = _Own()


thread = _Thread()


Enqueue = Callable[..., None]
"""Enqueues a launch on a raw stream of the kernel's device, with the pointers that it is given, and with other packed
numbers if these are given, too."""


Replay = Callable[[int], None]
"""Enqueues a launch with fixed arguments on a raw stream of the kernel's device."""


class LoadedKernel:
    """A device function. It keeps its module alive, which the bare pointer would not."""

    def __init__(self, module: Any, pointer: int, device: int, params: Params, starts_early: bool = False) -> None:
        from cupy.cuda import runtime
        from cupy_backends.cuda.api import driver

        self._module = module
        self._pointer = pointer
        self._device = device
        self._packing, self._packing_of = params.packing, params.packing_of
        self._starts_early = starts_early
        # The driver's own launch takes 2 us; CuPy's describes every argument and takes 8.
        self._launch = driver.launchKernel
        self.get_device: Callable[[], int] = runtime.getDevice
        self._set_device = runtime.setDevice

    def launcher(self, config: LaunchConfig) -> tuple[Callable[..., None], tuple[int, ...]]:
        """A function that launches with this configuration, and its first arguments; behind these it takes the stream,
        the address of the kernel arguments' address, and 0.

        The kernel's device has to be the current one, in a thread that has used it before.
        """
        if self._starts_early:
            return dependent.launcher(self._pointer, config), ()
        return self._launch, (self._pointer, *config.flat)

    def _launcher(self, config: LaunchConfig) -> Callable[[int, int, int], None]:
        launch, first = self.launcher(config)
        return partial(launch, *first) if first else launch

    def packer(self, given: Sequence[bool]) -> Callable[..., None]:
        """A function that writes the given pointers, null for others, and packed numbers to a place in a buffer."""
        return self._packing_of(given).pack_into

    def bound(self, config: LaunchConfig, numbers: bytes) -> Enqueue:
        """A function that enqueues launches with this configuration and packed numbers; missing pointers are null."""
        # Attributes are looked up here once: `enqueue` is on the path of every call.
        launch = self._launcher(config)
        packing, own_device, get_device = self._packing, self._device, self.get_device

        def enqueue(pointers: Sequence[int], stream: int, numbers: bytes = numbers) -> None:
            own = thread.own
            packing[len(pointers)].pack_into(own.bytes, 0, *pointers, numbers)
            if get_device() == own_device and own_device in own.devices:
                launch(stream, own.pointers, 0)
            else:
                self._launch_elsewhere(launch, stream, own.pointers)

        return enqueue

    def fixed(self, config: LaunchConfig, numbers: bytes, pointers: Sequence[int]) -> Replay:
        """A function that enqueues one launch, with these pointers and packed numbers, as often as it is called."""
        launch = self._launcher(config)
        buffer = _Buffer(self._packing[len(pointers)].pack(*pointers, numbers))
        own_device, get_device = self._device, self.get_device

        def replay(stream: int) -> None:
            if get_device() == own_device and own_device in thread.own.devices:
                launch(stream, buffer.pointers, 0)
            else:
                self._launch_elsewhere(launch, stream, buffer.pointers)

        return replay

    def _launch_elsewhere(self, launch: Callable[..., None], stream: int, arguments: int) -> None:
        """Launch while another device is the current one, or for the first time in a thread."""
        device = self.get_device()
        # A CUDA runtime call makes a thread's context current by itself; the driver's launch does not.
        self._set_device(self._device)
        thread.own.devices.add(self._device)
        launch(stream, arguments, 0)
        if device != self._device:
            self._set_device(device)
