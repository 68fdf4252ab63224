"""Arrays of any library as an address and a layout, and new arrays of the caller's kind.

A family is one kind of array: NumPy, CuPy, torch, or whatever speaks DLPack. CuPy is imported when the first CuPy
or DLPack array comes, torch never: a torch tensor can only come from a program that has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from cuconv.dtypes import BY_NAME, BY_NUMPY, DType
from cuconv.errors import message

HOST = -1
"""The device number of the CPU."""

ALIGNMENT = 16
"""Layouts know an address modulo this many bytes, the widest access of a thread."""

WANTED = "a NumPy array, a CuPy array, a torch CUDA tensor or an object with __dlpack__"


class Layout(NamedTuple):
    """All that decides how an array is processed, so a hashable key; strides in elements, offset in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType | str
    device: int
    offset: int

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def span(self) -> tuple[int, int]:
        """The bytes that the elements cover, from the first element's address: (begin, end), equal when empty."""
        if not self.size:
            return 0, 0
        reaches = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        begin = sum(min(0, reach) for reach in reaches)
        end = sum(max(0, reach) for reach in reaches) + 1
        return begin * self.itemsize, end * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes an element, for a dtype of the table."""
        assert isinstance(self.dtype, DType)
        return self.dtype.itemsize


class View(NamedTuple):
    """Where an array lies and how."""

    pointer: int
    layout: Layout


Facts = tuple[Any, ...]
"""What a family knows an array by, cheaper to get than a Layout and as good a key: shape, strides, dtype, device and
address modulo ALIGNMENT, in the family's own terms."""


class Family:
    """One kind of array."""

    name = ""

    def inspect(self, arguments: Sequence[str], given: Sequence[Any]) -> tuple[list[int], list[Facts | None]]:
        """Addresses and facts of a call's arrays, 0 and None for one that is absent.

        TypeError for an array of another family, ValueError for one that cannot take part. All at once and not one by
        one: this is on the path of every call.
        """
        raise NotImplementedError

    def layout(self, argument: str, facts: Facts) -> Layout:
        """The layout that facts stand for; ValueError when elements are not aligned to their own size."""
        raise NotImplementedError

    def pointer(self, array: Any) -> int:
        """The array's address."""
        raise NotImplementedError

    def _reject(self, argument: str, array: Any) -> NoReturn:
        raise TypeError(message(argument, describe(array), f"a {self.name} array, as the first is"))

    def empty(self, like: Any, shape: tuple[int, ...], channel_last: bool) -> Any:
        """A new array of `like`'s dtype and device; (batch, dim, n) with dim contiguous when `channel_last`."""
        raise NotImplementedError

    def stream(self, device: int) -> int:
        """The raw handle of the caller's current stream on the device."""
        raise NotImplementedError


class _ByteStrideFamily(Family):
    """NumPy and CuPy count strides in bytes."""

    def _place(self, array: Any) -> tuple[int, int]:
        """The array's address and device."""
        raise NotImplementedError

    def inspect(self, arguments: Sequence[str], given: Sequence[Any]) -> tuple[list[int], list[Facts | None]]:
        pointers: list[int] = []
        facts: list[Facts | None] = []
        for array in given:
            if array is None:
                pointers.append(0)
                facts.append(None)
                continue
            if family(array) is not self:
                self._reject(arguments[len(facts)], array)
            pointer, device = self._place(array)
            pointers.append(pointer)
            facts.append((array.shape, array.strides, array.dtype, device, pointer % ALIGNMENT))
        return pointers, facts

    def layout(self, argument: str, facts: Facts) -> Layout:
        shape, strides, dtype, device, offset = facts
        itemsize = dtype.itemsize
        if offset % itemsize or any(stride % itemsize for stride in strides):
            got = f"an address {offset} bytes from a multiple of {ALIGNMENT} and byte strides {strides}"
            raise ValueError(message(argument, got, f"multiples of the {itemsize}-byte element"))
        elements = tuple(stride // itemsize for stride in strides)
        return Layout(shape, elements, BY_NUMPY.get(dtype, str(dtype)), device, offset)


def _empty(new: Callable[..., Any], dtype: Any, shape: tuple[int, ...], channel_last: bool) -> Any:
    if not channel_last:
        return new(shape, dtype)
    batch, dim, length = shape
    return new((batch, length, dim), dtype).transpose(0, 2, 1)


class NumpyFamily(_ByteStrideFamily):
    name = "NumPy"

    def _place(self, array: Any) -> tuple[int, int]:
        return array.ctypes.data, HOST

    def pointer(self, array: Any) -> int:
        address: int = array.ctypes.data
        return address

    def empty(self, like: Any, shape: tuple[int, ...], channel_last: bool) -> Any:
        return _empty(np.empty, like.dtype, shape, channel_last)


class CupyFamily(_ByteStrideFamily):
    name = "CuPy"

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._current_stream = cupy.cuda.get_current_stream
        self._get_device = cupy.cuda.runtime.getDevice

    def _place(self, array: Any) -> tuple[int, int]:
        data = array.data
        return data.ptr, data.device_id

    def pointer(self, array: Any) -> int:
        address: int = array.data.ptr
        return address

    def empty(self, like: Any, shape: tuple[int, ...], channel_last: bool) -> Any:
        device = like.data.device_id
        if self._get_device() == device:
            return _empty(self._cupy.ndarray, like.dtype, shape, channel_last)
        with self._cupy.cuda.Device(device):
            return _empty(self._cupy.ndarray, like.dtype, shape, channel_last)

    def stream(self, device: int) -> int:
        pointer: int = self._current_stream(device).ptr
        return pointer


class TorchFamily(Family):
    name = "torch"

    def __init__(self) -> None:
        torch = sys.modules["torch"]
        self._tensor = torch.Tensor
        self._dtypes = {getattr(torch, name): dtype for name, dtype in BY_NAME.items()}
        self._is_grad_enabled = torch.is_grad_enabled
        # torch.cuda.current_stream builds an object, 6 us instead of 0.05.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
            lambda device: torch.cuda.current_stream(device).cuda_stream
        )

    def inspect(self, arguments: Sequence[str], given: Sequence[Any]) -> tuple[list[int], list[Facts | None]]:
        pointers: list[int] = []
        facts: list[Facts | None] = []
        for array in given:
            if array is None:
                pointers.append(0)
                facts.append(None)
                continue
            if type(array) is not self._tensor and family(array) is not self:
                self._reject(arguments[len(facts)], array)
            if array.requires_grad and self._is_grad_enabled():
                got = "a tensor that requires grad while grad mode is on"
                wanted = "torch.no_grad() or a detached tensor: there is no backward"
                raise ValueError(message(arguments[len(facts)], got, wanted))
            pointer = array.data_ptr()
            pointers.append(pointer)
            facts.append((array.shape, array.stride(), array.dtype, array.get_device(), pointer % ALIGNMENT))
        return pointers, facts

    def pointer(self, array: Any) -> int:
        address: int = array.data_ptr()
        return address

    def layout(self, argument: str, facts: Facts) -> Layout:
        shape, strides, dtype, device, offset = facts
        known = self._dtypes.get(dtype, str(dtype).removeprefix("torch."))
        return Layout(tuple(shape), tuple(strides), known, device, offset)

    def empty(self, like: Any, shape: tuple[int, ...], channel_last: bool) -> Any:
        _, dim, length = shape
        strides = (length * dim, 1, dim) if channel_last else (dim * length, length, 1)
        return like.new_empty_strided(shape, strides)

    def stream(self, device: int) -> int:
        pointer: int = self._raw_stream(device)
        return pointer


def _torch_is(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _cupy_is(array: Any) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


_families: dict[type[Family], Family] = {}
_family_of_type: dict[type, Family | None] = {}


def _singleton(family: type[Family]) -> Family:
    if family not in _families:
        _families[family] = family()
    return _families[family]


def family(array: Any) -> Family | None:
    """The family of an array, None when it must come in through `import_dlpack`."""
    kind = type(array)
    if kind not in _family_of_type:
        if isinstance(array, np.ndarray):
            found: Family | None = _singleton(NumpyFamily)
        elif _cupy_is(array):
            found = _singleton(CupyFamily)
        elif _torch_is(array):
            found = _singleton(TorchFamily)
        else:
            found = None
        _family_of_type[kind] = found
    return _family_of_type[kind]


def describe(array: Any) -> str:
    """What an argument is, for an error."""
    known = family(array)
    return f"a {type(array).__name__}" if known is None else f"a {known.name} array"


def import_dlpack(argument: str, array: Any) -> Any:
    """A CuPy or, on the CPU, NumPy array over the memory of an array of another library."""
    if not hasattr(array, "__dlpack__"):
        raise TypeError(message(argument, describe(array), WANTED))
    device_type, _ = array.__dlpack_device__()
    if device_type == 1:  # kDLCPU (dlpack.h)
        return np.from_dlpack(array)
    import cupy

    return cupy.from_dlpack(array)


def export_dlpack(array: Any, like: Any) -> Any:
    """The array as one of `like`'s library, where the array API standard says how; else as it is."""
    if not hasattr(like, "__array_namespace__"):
        return array
    return like.__array_namespace__().from_dlpack(array)
