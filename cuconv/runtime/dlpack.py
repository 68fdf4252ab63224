"""Arrays of any library that speaks DLPack, as NumPy or CuPy ones over the same memory, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cuconv.runtime.arrays import describe, refuse_other_arithmetic
from cuconv.runtime.errors import message

WANTED = "a NumPy array, a CuPy array, a torch tensor or an object with __dlpack__"


def imported(arguments: Sequence[str], given: Sequence[Any], needed: str) -> tuple[Any, ...]:
    """CuPy arrays, or NumPy arrays on the CPU, over the memory of other libraries' arrays.

    None stays None, except for the argument `needed`, for which it raises TypeError.
    """
    return tuple(
        None if array is None and argument != needed else _import(argument, array)
        for argument, array in zip(arguments, given, strict=True)
    )


def is_array(value: Any) -> bool:
    """Whether a value is an array of any library."""
    # A class has the methods of its objects.
    return not isinstance(value, type) and (hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__"))


def _import(argument: str, array: Any) -> Any:
    refuse_other_arithmetic(argument, array)
    if not is_array(array):
        raise TypeError(message(argument, describe(array), WANTED))
    if not hasattr(array, "__dlpack__"):
        # Numba's arrays on a GPU have only __cuda_array_interface__.
        import cupy

        return cupy.asarray(array)
    device_type, _ = array.__dlpack_device__()
    if device_type == 1:  # kDLCPU (dlpack.h)
        return np.from_dlpack(array)
    import cupy

    return cupy.from_dlpack(array)


IMMUTABLE = frozenset({"jax", "jaxlib"})
"""Libraries with arrays that must not be written. NumPy's views of them say so, CuPy's do not."""


def is_immutable(array: Any) -> bool:
    """Whether an array is of one of these libraries."""
    library, *_ = type(array).__module__.split(".")
    return library in IMMUTABLE


def refuse_immutable(
    arguments: Sequence[str], given: Sequence[Any], views: Sequence[Any], written: Sequence[Any]
) -> None:
    """Raise ValueError where one of the views that a call writes is of an immutable array."""
    for argument, array, view in zip(arguments, given, views, strict=True):
        if is_immutable(array) and any(view is each for each in written):
            raise ValueError(message(argument, "a read-only array", "one that can be written"))


def exported(results: Sequence[Any], targets: Sequence[Any], like: Any) -> list[Any]:
    """Results as arrays of the library of `like` if it follows the array API standard; given targets are returned."""
    return [
        _export(result, like) if target is None else target for result, target in zip(results, targets, strict=True)
    ]


def _export(array: Any, like: Any) -> Any:
    if array is None or not hasattr(like, "__array_namespace__"):
        return array
    return like.__array_namespace__().from_dlpack(array)
