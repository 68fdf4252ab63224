"""The arrays of a workload on a GPU, as CuPy arrays: making them there, and copying to and from the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from cuconv.runtime.workload import Array, Workload

POISON = 0xFF
"""Every byte of an array for results: NaN in every float format."""


def missing() -> str | None:
    """Why no GPU can be used; None when one can."""
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        # Without a driver, or with one that is too old, CuPy fails in more than one way.
        return str(error).partition("\n")[0]
    return None if count else "CUDA finds no device"


def is_alive(number: int) -> bool:
    """Whether anything still runs on a device: some errors of kernels make it unusable for the whole process."""
    import cupy

    try:
        with cupy.cuda.Device(number) as current:
            current.synchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        return False
    return True


def arrays(workload: Workload, number: int = 0) -> dict[str, Any]:
    """The arrays of a call, the random ones made on the GPU: for the largest the host would take minutes."""
    made = {}
    for name, array in workload.arrays.items():
        seed = workload.seed(name, number)
        made[name] = _random(array, seed) if array.values is None else upload(array.host(seed))
    return made


def renew(workload: Workload, number: int, made: Mapping[str, Any], results: Sequence[Any]) -> None:
    """Restore the contents that `arrays` and `outs` gave to what they have made."""
    for name, again in arrays(workload, number).items():
        made[name].data.copy_from_device(again.data, workload.arrays[name].nbytes)
    for out, result in zip(workload.outs.values(), results, strict=True):
        result.data.memset(POISON, out.nbytes)


def upload(array: np.ndarray[Any, Any]) -> Any:
    """A copy of a NumPy array, with its strides."""
    import cupy

    # The copy is one of bytes, because not every CuPy copies bfloat16.
    memory, first = memory_of(array)
    return _view(cupy.asarray(memory), array.shape, array.dtype, array.strides, first)


def memory_of(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], int]:
    """The bytes from the first to the last of an array, and where among them its element 0, 0, … begins."""
    if not array.size:
        return np.zeros(0, np.uint8), 0
    reaches = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    first = -sum(reach for reach in reaches if reach < 0)
    count = (first + sum(reach for reach in reaches if reach > 0)) // array.itemsize + 1
    # Forward along every axis, so that it begins where its memory does.
    forward = _integers(array)[tuple(slice(None, None, -1 if reach < 0 else 1) for reach in reaches)]
    flat = np.lib.stride_tricks.as_strided(forward, (count,), (array.itemsize,))
    return np.ascontiguousarray(flat).view(np.uint8), first


def outs(workload: Workload) -> list[Any]:
    """Arrays for the results of a call, full of NaN."""
    import cupy

    poisoned = []
    for out in workload.outs.values():
        buffer = cupy.full(out.nbytes, POISON, cupy.uint8)
        poisoned.append(_view(buffer, out.shape, out.dtype.numpy, _byte_strides(out)))
    return poisoned


def fetch(array: Any) -> np.ndarray[Any, Any]:
    """A copy on the host."""
    return _download(_integers(array), array.dtype)


def cut(workload: Workload, name: str, array: Any) -> np.ndarray[Any, Any]:
    """A copy on the host of the part of an argument or result that is compared."""
    return _download(workload.cut(name, _integers(array)), array.dtype)


def uniform(library: Any, count: int, seed: int, low: float, high: float) -> Any:
    """float32 numbers from low to high, by NumPy or CuPy: different ones for each seed, and the same on every machine.

    The libraries' own generators are not used, because CuPy's would need cuRAND.
    """
    numbers = library.arange(count, dtype=np.uint32)
    _mix(numbers)
    numbers += np.uint32(seed)
    _mix(numbers)
    # As many bits as a float32 holds exactly.
    numbers >>= np.uint32(8)
    values = numbers.astype(np.float32)
    values *= np.float32((high - low) / 2**24)
    values += np.float32(low)
    return values


def _mix(numbers: Any) -> None:
    """Scrambles 32-bit numbers in place by a permutation: Wellons' lowbias32, "Hash function prospector", 2018."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        numbers ^= numbers >> np.uint32(shift)
        numbers *= np.uint32(factor)
    numbers ^= numbers >> np.uint32(16)


def _random(array: Array, seed: int) -> Any:
    import cupy

    values = uniform(cupy, prod(array.stored), seed, array.low, array.high)
    if array.dtype.name == "bfloat16":
        # Random numbers may be truncated instead of rounded, and not every CuPy converts to bfloat16.
        buffer = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    elif array.dtype.name == "float8_e4m3fn":
        # This truncates as well: it cuts off 20 bits of the mantissa and subtracts 120 from the exponent; smaller
        # numbers become 0.
        numbers = values.view(np.uint32)
        sizes = cupy.maximum(numbers >> np.uint32(20) & np.uint32(0x7FF), np.uint32(960)) - np.uint32(960)
        buffer = (sizes | numbers >> np.uint32(24) & np.uint32(0x80)).astype(np.uint8)
    else:
        buffer = values.astype(array.dtype.numpy, copy=False)
    return _view(buffer, array.shape, array.dtype.numpy, _byte_strides(array))


def _view(buffer: Any, shape: Sequence[int], dtype: Any, strides: Sequence[int], first: int = 0) -> Any:
    """The memory of a buffer from a byte on, with strides in bytes."""
    import cupy

    return cupy.ndarray(tuple(shape), dtype, buffer.data + first, tuple(strides))


def _byte_strides(array: Array) -> tuple[int, ...]:
    return tuple(stride * array.dtype.itemsize for stride in array.strides)


def _integers(array: Any) -> Any:
    """A view of an array as integers: not every CuPy copies or indexes bfloat16."""
    return array.view(f"u{array.dtype.itemsize}")


def _download(integers: Any, dtype: Any) -> np.ndarray[Any, Any]:
    import cupy

    copy: np.ndarray[Any, Any] = cupy.asnumpy(cupy.ascontiguousarray(integers)).view(dtype)
    return copy
