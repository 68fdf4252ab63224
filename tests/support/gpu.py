"""Test arrays on a GPU, as CuPy arrays and as torch tensors, and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.support.placement import Array, Placed, Placement

SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {}
}
"""
CYCLES = 200_000_000
"""Clock cycles that take about 0.1 s."""

LIBRARIES = ("cupy", "torch")


class CupyArrays:
    """Copies of placed arrays as CuPy arrays."""

    @staticmethod
    def upload(placed: Placed) -> tuple[Any, Any]:
        """The buffer on the GPU and the view of it."""
        import cupy

        placement = placed.placement
        # By way of bytes: not every CuPy copies bfloat16.
        buffer = cupy.asarray(placed.buffer.view(np.uint8))
        return buffer.view(placement.dtype.numpy), CupyArrays.view(buffer, placement)

    @staticmethod
    def view(memory: Any, placement: Placement) -> Any:
        """The view of an array of bytes."""
        import cupy

        strides = tuple(stride * placement.dtype.itemsize for stride in placement.strides)
        first = memory.data + placement.first * placement.dtype.itemsize
        return cupy.ndarray(placement.shape, placement.dtype.numpy, first, strides)

    @staticmethod
    def fetch(array: Any, index: Any = ...) -> Array:
        """A copy of a part on the host."""
        import cupy

        # As integers: not every CuPy copies bfloat16.
        return CupyArrays.download(cupy.ascontiguousarray(array.view(f"u{array.itemsize}")[index])).view(array.dtype)

    @staticmethod
    def download(buffer: Any) -> Array:
        """A GPU buffer's elements."""
        import cupy

        array: Array = cupy.asnumpy(buffer.view(np.uint8)).view(buffer.dtype)
        return array


class TorchTensors:
    """Copies of placed arrays as torch tensors; none may have a negative stride."""

    @staticmethod
    def upload(placed: Placed) -> tuple[Any, Any]:
        """The buffer on the GPU and the view of it."""
        import torch

        placement = placed.placement
        buffer = torch.from_numpy(placed.buffer.view(np.uint8)).cuda().view(getattr(torch, placement.dtype.name))
        return buffer, torch.as_strided(buffer, placement.shape, placement.strides, placement.first)

    @staticmethod
    def download(buffer: Any) -> Array:
        """A GPU buffer's elements."""
        import torch

        dtype = np.dtype(ml_dtypes.bfloat16) if buffer.dtype is torch.bfloat16 else None
        array: Array = buffer.view(torch.uint8).cpu().numpy()
        return array.view(dtype or np.dtype(str(buffer.dtype).removeprefix("torch.")))


def to_numpy(array: Any) -> Array:
    got: Array = array.get() if hasattr(array, "get") else array.cpu().numpy()
    return got


def byte_strides(array: Any) -> tuple[int, ...]:
    return tuple(array.strides) if hasattr(array, "strides") else tuple(4 * stride for stride in array.stride())
