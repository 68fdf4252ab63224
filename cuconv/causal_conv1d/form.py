"""In which shape an operation hands out its channels: as one array, or as ranges with an array each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from cuconv.runtime import checks
from cuconv.runtime.errors import message

MAX_RANGES = 16
"""Ranges of channels with an output each."""


# Known by identity, which is quicker to look up than what it holds: functions get the same one for the same numbers.
@dataclass(frozen=True, eq=False)
class Form:
    """The ranges that an operation's channels fall into, and how each is handed out."""

    argument: str = ""
    """Where the ranges come from."""
    ranges: tuple[tuple[int, int], ...] | None = None
    """(heads, head_dim) of every range of channels; None for one output of all channels."""
    has_heads: bool = False
    """Outputs have axes for heads and for the channels of a head, else one for channels."""
    normalized: int = 0
    """So many of the first ranges are normalised head by head."""
    eps: float = 0.0

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The arguments for the outputs."""
        return ("out",) if self.ranges is None else tuple(f"out[{i}]" for i in range(len(self.ranges)))

    def given_outs(self, out: Sequence[Any] | None) -> tuple[Any, ...]:
        """The outputs that a caller gives, None for each when he gives none; raises when they are not as many."""
        if out is None:
            return (None,) * len(self.names)
        checks.sequence("out", out)
        if len(out) != len(self.names):
            raise ValueError(message("out", f"{len(out)} arrays", len(self.names)))
        return tuple(out)

    def heads(self, dim: int) -> tuple[tuple[int, int], ...]:
        """(heads, head_dim) of every range of `dim` channels; ValueError when they do not add up."""
        if self.ranges is None:
            return ((1, dim),)
        checks.total(self.argument, [heads * head_dim for heads, head_dim in self.ranges], dim, "dim of x")
        return self.ranges


WHOLE = Form()
"""One output of all channels."""


def by_sizes(sizes: Sequence[int]) -> Form:
    """An output for each of several ranges of so many channels; raises when these are no numbers of channels."""
    checks.sequence("sizes", sizes)
    try:
        return _by_sizes(*sizes)
    except TypeError:
        # A size that has no hash is none, either.
        return _by_sizes.__wrapped__(*sizes)


# By type, too: 2.0 equals 2, but is no size.
@lru_cache(maxsize=4096, typed=True)
def _by_sizes(*sizes: int) -> Form:
    checks.between("length of sizes", len(sizes), 1, MAX_RANGES)
    for i, size in enumerate(sizes):
        checks.natural(f"sizes[{i}]", size)
    return Form("sizes", tuple((1, size) for size in sizes))


def by_heads(
    num_q_heads: int,
    num_k_heads: int,
    num_v_heads: int,
    head_q: int,
    head_k: int,
    head_v: int,
    qk_l2norm: bool = False,
    l2norm_eps: float = 0.0,
) -> Form:
    """Outputs for q, k and v; raises when these are no numbers of heads and channels."""
    numbers = num_q_heads, num_k_heads, num_v_heads, head_q, head_k, head_v, bool(qk_l2norm), l2norm_eps
    try:
        return _by_heads(*numbers)
    except TypeError:
        # What has no hash is no number, either.
        return _by_heads.__wrapped__(*numbers)


@lru_cache(maxsize=4096, typed=True)
def _by_heads(
    num_q_heads: int, num_k_heads: int, num_v_heads: int, head_q: int, head_k: int, head_v: int, norm: bool, eps: float
) -> Form:
    counts, widths = (num_q_heads, num_k_heads, num_v_heads), (head_q, head_k, head_v)
    for name, count, width in zip("qkv", counts, widths, strict=True):
        checks.natural(f"num_{name}_heads", count)
        checks.natural(f"head_{name}", width)
    checks.not_negative("l2norm_eps", eps)
    sizes = "num_q_heads * head_q, num_k_heads * head_k, num_v_heads * head_v"
    return Form(sizes, tuple(zip(counts, widths, strict=True)), has_heads=True, normalized=2 * norm, eps=float(eps))
