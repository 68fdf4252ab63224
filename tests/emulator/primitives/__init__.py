"""Small kernels that do what a GPU's threads can do, for the emulator and a GPU to agree on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cuconv.runtime.dtypes import DType
from cuconv.runtime.kernel import Kernel, Params


@dataclass(frozen=True)
class Primitive(Kernel):
    """A kernel of tests/emulator/primitives."""

    source_folder: ClassVar[Path] = Path(__file__).parent


@dataclass(frozen=True)
class Shuffles(Primitive):
    unit: ClassVar[str] = "shuffles"
    params: ClassVar[Params] = Params(("x", "out"), ("distance", "i4"), ("padding", "i4"))

    dtype: DType
    width: int


@dataclass(frozen=True)
class Masks(Primitive):
    unit: ClassVar[str] = "masks"
    params: ClassVar[Params] = Params(("x", "out"), ("threshold", "u4"), ("padding", "u4"))

    odd_first: bool


@dataclass(frozen=True)
class Atomics(Primitive):
    unit: ClassVar[str] = "atomics"
    params: ClassVar[Params] = Params(("x", "cells", "sums"))

    threads: int


@dataclass(frozen=True)
class Conversions(Primitive):
    unit: ClassVar[str] = "conversions"
    params: ClassVar[Params] = Params(
        ("patterns", "floats", "widened", "narrowed", "paired"), ("count", "i4"), ("padding", "i4")
    )

    dtype: DType


@dataclass(frozen=True)
class SharedMemory(Primitive):
    unit: ClassVar[str] = "shared_memory"
    params: ClassVar[Params] = Params(("x", "out"))

    x: int
    y: int


@dataclass(frozen=True)
class Printed(Primitive):
    unit: ClassVar[str] = "printed"
    params: ClassVar[Params] = Params(("x",))

    threads: int


@dataclass(frozen=True)
class Arithmetic(Primitive):
    unit: ClassVar[str] = "arithmetic"
    params: ClassVar[Params] = Params(("a", "b", "u", "v", "integers", "floats"))

    threads: int
