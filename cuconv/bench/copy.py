"""A plain copy, the yardstick of every timing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cuconv.runtime.dtypes import FLOAT32
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.launch import MAX_VECTOR_BYTES, LaunchConfig, ceil_div


@dataclass(frozen=True)
class Copy(Kernel):
    """A thread moves `vec` floats by one access."""

    vec: int = MAX_VECTOR_BYTES // FLOAT32.itemsize

    @classmethod
    def variants(cls) -> Iterator[Copy]:
        yield cls()

    def launch_config(self, nbytes: int) -> tuple[LaunchConfig, dict[str, Any]]:
        """The launch that reads `nbytes` bytes and writes as many; `nbytes` is a multiple of an access."""
        vecs = nbytes // (self.vec * FLOAT32.itemsize)
        return self.config(ceil_div(vecs, self.threads)), {"vecs": vecs}
