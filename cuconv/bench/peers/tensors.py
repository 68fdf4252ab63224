"""The memory of CuPy arrays as torch tensors and back, and times of calls on torch's streams."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from cuconv.bench.timing import MIN_CALLS, Call, by_events
from cuconv.runtime.dtypes import BY_NAME

NOT_CAPTURED = "not in a CUDA graph, so its host time may show"


def torch_version() -> str | None:
    """The version of the installed torch."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def check() -> None:
    """ImportError unless torch can work on a GPU."""
    import torch

    if not torch.cuda.is_available():
        raise ImportError("torch finds no CUDA device")


class _Bytes:
    """A CuPy array's memory in a form that any library takes; it keeps the array alive."""

    def __init__(self, array: Any, count: int) -> None:
        self._array = array
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "|u1", "data": (array.data.ptr, False), "strides": None, "version": 3,
        }  # fmt: skip


def _elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last in memory; strides count elements and are not negative."""
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def to_torch(array: Any) -> Any:
    """A tensor over the memory of a CuPy array.

    It is made from bytes, because neither DLPack nor the array interface supports every dtype and strides of 0 in all
    versions.
    """
    import torch

    itemsize = array.dtype.itemsize
    strides = [stride // itemsize for stride in array.strides]
    raw = _Bytes(array, _elements(array.shape, strides) * itemsize)
    memory = torch.as_tensor(raw, device=f"cuda:{array.device.id}").view(getattr(torch, array.dtype.name))
    return memory.as_strided(array.shape, strides)


def to_cupy(tensor: Any) -> Any:
    """A CuPy array over the memory of a tensor."""
    import cupy

    dtype = BY_NAME[str(tensor.dtype).removeprefix("torch.")]
    nbytes = _elements(tensor.shape, tensor.stride()) * dtype.itemsize
    memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), nbytes, tensor, tensor.get_device())
    strides = [stride * dtype.itemsize for stride in tensor.stride()]
    return cupy.ndarray(tuple(tensor.shape), dtype.numpy, cupy.cuda.MemoryPointer(memory, 0), strides)


def release() -> None:
    """Free the memory that torch keeps for later, if torch has been used."""
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def times(calls: Sequence[Call], replays: int) -> tuple[list[float], str]:
    """Seconds of one call, replay by replay, in a CUDA graph as cuconv's own; and NOT_CAPTURED if that cannot be."""
    import torch

    count = max(MIN_CALLS, len(calls))
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for call in calls:
            # Compiling, tuning and reading contents cannot be captured.
            call()
        torch.cuda.synchronize()
        try:
            work, note = _capture(calls, count, stream), ""
        except Exception:
            torch.cuda.synchronize()
            work, note = (lambda: _in_turn(calls, count)), NOT_CAPTURED
        work()
        torch.cuda.synchronize()
        return by_events(work, _for_cupy(stream), count, replays), note


class _Handle:
    """A torch stream that knows CUDA's stream protocol, as those of older torch do not."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.cuda_stream


def _for_cupy(stream: Any) -> Any:
    """A torch stream as a CuPy one."""
    from cupy import cuda

    if hasattr(cuda.Stream, "from_external"):
        return cuda.Stream.from_external(_Handle(stream))
    # The only way in CuPy 13.
    return cuda.ExternalStream(stream.cuda_stream)


def _in_turn(calls: Sequence[Call], count: int) -> None:
    # Results are kept as long as the calls' arrays are not used again, so that each call has separate, cold memory for
    # them.
    kept: list[Any] = [None] * len(calls)
    for index in range(count):
        kept[index % len(calls)] = calls[index % len(calls)]()


def _capture(calls: Sequence[Call], count: int, stream: Any) -> Call:
    """A function that replays `count` calls; RuntimeError when nothing was captured."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        # If work went to another stream, torch only warns, and a replay would take no time.
        warnings.filterwarnings("error", message=".*graph is empty.*")
        with torch.cuda.graph(graph, stream=stream):
            _in_turn(calls, count)
    replay: Call = graph.replay
    return replay
