"""What the cases of packed sequences and of decode steps have in common: channels handed out as one or in ranges."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from cuconv.causal_conv1d.ranges import MAX_RANGES
from cuconv.runtime.dtypes import BY_NAME, DType
from tests.support.placement import Array, Placement

HEAD_NUMBERS = ("num_q_heads", "num_k_heads", "num_v_heads", "head_q", "head_k", "head_v")

WHOLE = ("out",)
RANGES = tuple(f"out[{number}]" for number in range(MAX_RANGES))
QKV = RANGES[:3]
"""The names of the outputs."""


class OfChannels:
    """A case of which `channels` are dim, or the sizes of the ranges that have an output each."""

    channels: int | tuple[int, ...]
    dtype: str
    layout: str
    out: str
    id: str
    has_heads = False

    @property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """(heads, head_dim) of every range."""
        return tuple((1, size) for size in ((self.channels,) if isinstance(self.channels, int) else self.channels))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The channels of every range."""
        return tuple(count * head_dim for count, head_dim in self.heads)

    @property
    def dim(self) -> int:
        """All channels."""
        return sum(self.sizes)

    @property
    def input_t(self) -> DType:
        """x's dtype and that of the outputs."""
        return BY_NAME[self.dtype]

    @property
    def channel_word(self) -> str:
        """The channels in an id."""
        return ",".join(map(str, (self.channels,) if isinstance(self.channels, int) else self.channels))

    def random(self, seed: int) -> np.random.Generator:
        """Random numbers of the case's own."""
        return np.random.default_rng([seed, zlib.crc32(self.id.encode())])

    def lay_output(self, heads: int, head_dim: int, way: str) -> Placement:
        """Where the output of a range lies."""
        raise NotImplementedError

    def outputs(self) -> dict[str, Placement]:
        """Where the outputs lie, in the order in which the call returns them; several ways are taken in turn."""
        ways = (self.out or self.layout).split("+")
        names = WHOLE if isinstance(self.channels, int) else RANGES[: len(self.heads)]
        return {name: self.lay_output(*self.heads[i], ways[i % len(ways)]) for i, name in enumerate(names)}

    def divide(self, out: Array) -> dict[str, Array]:
        """The outputs, in float64, of which (…, dim, tokens) is made up."""
        parts = np.split(out, np.cumsum(self.sizes)[:-1], axis=-2)
        return {
            name: (part.swapaxes(-1, -2) if self.has_heads else part).reshape(lies.shape)
            for (name, lies), part in zip(self.outputs().items(), parts, strict=True)
        }

    def division(self) -> dict[str, Any]:
        """The arguments that say what the ranges are."""
        return {} if isinstance(self.channels, int) else {"sizes": self.channels}


class OfHeads(OfChannels):
    """A case of which `channels` are the numbers of heads of q, k and v, and their dims."""

    has_heads = True

    @property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """How many heads of how many channels q, k and v have."""
        assert not isinstance(self.channels, int)
        return tuple(zip(self.channels[:3], self.channels[3:], strict=True))

    def division(self) -> dict[str, Any]:
        """The heads and their dims."""
        assert not isinstance(self.channels, int)
        return dict(zip(HEAD_NUMBERS, self.channels, strict=True))
