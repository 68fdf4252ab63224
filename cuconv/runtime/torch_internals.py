"""What cuconv uses of torch beyond its documentation, and other ways where a version lacks it.

torch is not imported: a tensor can only come from a program that has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

KNOWN_TORCH = (2, 11), (2, 14)
"""The first and the last version of torch with which the use of its internals was tested. Another one cannot be tried:
guards crash when they are not given the arguments that they expect."""

IN_MODE = "_is_in_torch_dispatch_mode"
"""torch's flag that some thread has a mode that sees what torch dispatches. Reading it takes 0.01 us."""


class Internals(NamedTuple):
    """Functions and classes of torch, None for those that its version may not have as cuconv uses them."""

    guards: Any
    """The class with which torch.compile compares tensors with the facts of others."""
    modes: Any
    """The module that has IN_MODE."""
    empty: Any
    """Makes an empty tensor on the current device in half of the time that the dispatcher takes."""
    increment_version: Callable[[Any], None]
    """Counts a write to tensors."""
    stream: Callable[[int], int]
    """The raw handle of the caller's current stream on a device."""


def internals() -> Internals:
    """Those of the version of torch that is imported."""
    torch = sys.modules["torch"]
    release = tuple(map(int, torch.__version__.split(".")[:2]))
    is_known = KNOWN_TORCH[0] <= release <= KNOWN_TORCH[1]
    inner = getattr(getattr(torch._C, "_dynamo", None), "guards", None) if is_known else None
    modes = sys.modules.get("torch.utils._python_dispatch")
    return Internals(
        guards=getattr(inner, "TensorGuards", None) if hasattr(modes, IN_MODE) else None,
        modes=modes,
        empty=getattr(inner, "_empty_strided_cuda", None),
        increment_version=getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version),
        # torch.cuda.current_stream builds an object and takes 6 us instead of 0.05.
        stream=getattr(torch._C, "_cuda_getCurrentRawStream", None)
        or (lambda device: torch.cuda.current_stream(device).cuda_stream),
    )


class Memory:
    """A tensor in the form in which NumPy asks for its memory.

    After `Tensor.numpy` torch refuses to resize a storage, but FSDP resizes the storages of parameters.
    """

    def __init__(self, tensor: Any) -> None:
        dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
        self._tensor = tensor
        """The tensor, which keeps the memory alive as long as a NumPy array uses it."""
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "typestr": dtype.str,
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * dtype.itemsize for stride in tensor.stride()),
        }
