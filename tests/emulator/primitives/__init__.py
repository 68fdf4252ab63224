"""Small kernels that do what a GPU's threads can do, for the emulator and a GPU to agree on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cuconv.runtime.dtypes import DType
from cuconv.runtime.kernel import Kernel, Params, PerClass


@dataclass(frozen=True)
class Primitive(Kernel):
    """A kernel of tests/emulator/primitives."""

    source_folder: ClassVar[Path] = Path(__file__).parent
    file = PerClass(lambda cls: f"{cls.unit}.cu")


@dataclass(frozen=True)
class Shuffles(Primitive):
    params: ClassVar[Params] = Params(("x", "out"), ("distance", "i4"), ("padding", "i4"))

    dtype: DType
    width: int


@dataclass(frozen=True)
class Masks(Primitive):
    params: ClassVar[Params] = Params(("x", "out"), ("threshold", "u4"), ("padding", "u4"))

    odd_first: bool


@dataclass(frozen=True)
class Atomics(Primitive):
    params: ClassVar[Params] = Params(("x", "cells", "sums"))

    block: int


@dataclass(frozen=True)
class Conversions(Primitive):
    params: ClassVar[Params] = Params(
        ("patterns", "floats", "widened", "narrowed", "paired"), ("count", "i4"), ("padding", "i4")
    )

    dtype: DType


@dataclass(frozen=True)
class SharedMemory(Primitive):
    params: ClassVar[Params] = Params(("x", "out"))

    x: int
    y: int


@dataclass(frozen=True)
class Printed(Primitive):
    params: ClassVar[Params] = Params(("x",))

    block: int


@dataclass(frozen=True)
class Arithmetic(Primitive):
    params: ClassVar[Params] = Params(("a", "b", "u", "v", "integers", "floats"))

    block: int
