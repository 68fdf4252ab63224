"""What cases have in common whose channels may be those of several outputs."""

from __future__ import annotations

from typing import Any

from cuconv.runtime.dtypes import BY_NAME, DType

HEAD_NUMBERS = ("num_q_heads", "num_k_heads", "num_v_heads", "head_q", "head_k", "head_v")


class OfChannels:
    """A case whose `channels` are dim, or what makes it up."""

    channels: int | tuple[int, ...]
    dtype: str
    layout: str
    out: str

    @property
    def sizes(self) -> tuple[int, ...]:
        """The channels of every output."""
        return (self.channels,) if isinstance(self.channels, int) else self.channels

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

    def out_lies(self, number: int) -> str:
        """The name of the way in which an output lies: several are taken in turn, x's when there is none."""
        names = (self.out or self.layout).split("+")
        return names[number % len(names)]


class OfHeads(OfChannels):
    """A case whose `channels` are the numbers of heads of q, k and v, and their dims."""

    @property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """How many heads of how many channels q, k and v have."""
        assert not isinstance(self.channels, int)
        return tuple(zip(self.channels[:3], self.channels[3:], strict=True))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The channels of q, k and v."""
        return tuple(count * dim for count, dim in self.heads)

    @property
    def head_numbers(self) -> dict[str, Any]:
        """The arguments that say so."""
        assert not isinstance(self.channels, int)
        return dict(zip(HEAD_NUMBERS, self.channels, strict=True))

    @property
    def last_heads(self) -> tuple[tuple[int, ...], list[int]]:
        """Of each only the last head: as `channels`, and which of all channels these are."""
        channels: list[int] = []
        end = 0
        for count, dim in self.heads:
            end += count * dim
            channels += range(end - dim, end)
        return (1, 1, 1, *(dim for _, dim in self.heads)), channels
