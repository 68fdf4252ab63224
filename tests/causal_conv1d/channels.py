"""What the cases of convolutions share: taps, and channels handed out as one or in ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuconv.causal_conv1d.ranges import MAX_RANGES
from cuconv.runtime.dtypes import BY_NAME, FLOAT32, DType
from tests import cases
from tests.support.layouts import OTHERS
from tests.support.placement import Array, Placement, place

HEAD_NUMBERS = ("num_q_heads", "num_k_heads", "num_v_heads", "head_q", "head_k", "head_v")

RANGES = tuple(f"out[{number}]" for number in range(MAX_RANGES))
QKV = RANGES[:3]
"""The names of several outputs."""


class OfTaps(cases.Case):
    """A case of a convolution; a subclass places what has tokens."""

    dim: int
    width: int
    dtype: str
    weight_dtype: str
    """x's dtype when empty."""
    bias: str | None
    """None, "weight" for the weight's dtype, or "float32"."""
    others: str
    activation: str | None

    @property
    def input_t(self) -> DType:
        """The dtype of x and of the outputs."""
        return BY_NAME[self.dtype]

    def other(self, name: str, dtype: DType, shape: tuple[int, ...], **dense: Any) -> Placement:
        """Place an array that has no tokens."""
        return place(dtype, shape, **OTHERS[self.others].get(name, dense))

    def taps(self) -> dict[str, Placement]:
        """The weight and the bias, if there is one."""
        weight_t = BY_NAME[self.weight_dtype or self.dtype]
        placed = {"weight": self.other("weight", weight_t, (self.dim, self.width))}
        if self.bias is not None:
            placed["bias"] = self.other("bias", weight_t if self.bias == "weight" else FLOAT32, (self.dim,))
        return placed

    def gradients_of_taps(self, *, float32: bool) -> dict[str, Placement]:
        """Where dweight and dbias lie: like the weight and the bias, maybe in float32."""
        return {
            f"d{name}": self.other(name, FLOAT32 if float32 else lies.dtype, lies.shape)
            for name, lies in self.taps().items()
        }


class OfChannels(OfTaps):
    """A case of which `channels` are dim, or the sizes of the ranges that have an output each."""

    channels: int | tuple[int, ...]
    layout: str
    out: str
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
    def dim(self) -> int:  # type: ignore[override]
        """All channels."""
        return sum(self.sizes)

    def lay_output(self, heads: int, head_dim: int, way: str) -> Placement:
        """Where the output of a range lies."""
        raise NotImplementedError

    def outputs(self) -> dict[str, Placement]:
        """Where the outputs lie, in the order in which the call returns them; several ways are taken in turn."""
        ways = (self.out or self.layout).split("+")
        return {
            name: self.lay_output(*heads, ways[i % len(ways)])
            for i, (name, heads) in enumerate(zip(self.OUTPUTS, self.heads, strict=False))
        }

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
