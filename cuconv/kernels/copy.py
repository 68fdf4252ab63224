"""A plain copy, the yardstick of every timing: cuda_src/copy.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from cuconv.dtypes import FLOAT32
from cuconv.kernel import Kernel, Params
from cuconv.launch import MAX_VECTOR_BYTES, LaunchConfig, ceil_div

THREADS = 256


@dataclass(frozen=True)
class Copy(Kernel):
    """A thread moves `vec` floats, one access."""

    unit: ClassVar[str] = "copy"
    params: ClassVar[Params] = Params(("x", "out"), ("vecs", "i8"))

    vec: int = MAX_VECTOR_BYTES // FLOAT32.itemsize

    @classmethod
    def variants(cls) -> Iterator[Copy]:
        yield cls()

    def launch_config(self, nbytes: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch that reads `nbytes` bytes and writes as many, a multiple of an access."""
        vecs = nbytes // (self.vec * FLOAT32.itemsize)
        return LaunchConfig((ceil_div(vecs, THREADS), 1, 1), (THREADS, 1, 1)), {"vecs": vecs}
