"""Arrays of libraries that cuconv has never heard of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Foreign:
    """An array that speaks DLPack and no more."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__dlpack__ = array.__dlpack__
        self.__dlpack_device__ = array.__dlpack_device__


class StandardForeign(Foreign):
    """An array that also says how its library takes arrays back, by the array API standard."""

    @staticmethod
    def __array_namespace__() -> Any:
        return SimpleNamespace(from_dlpack=StandardForeign)
