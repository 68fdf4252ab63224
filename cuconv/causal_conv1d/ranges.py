"""Ranges of channels with a result each, as the kernels take them (causal_conv1d/conv_ranges.cuh)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import accumulate

from cuconv.jit import source, structs
from cuconv.runtime.launch import fast_div
from cuconv.runtime.layout import Layout

MAX_RANGES = structs.constant(source.load(), "causal_conv1d/conv_ranges.cuh", "kMaxRanges")
"""Most ranges of a call."""


class Ranges(Enum):
    """How the channels of a launch fall into ranges: a template parameter, with the names of the device code."""

    ONE = "kOne"
    """A single range."""
    MANY = "kMany"
    """Several ranges; every vector of x is an aligned vector of one result."""
    ROUTED = "kRouted"
    """Several ranges; a vector of x may cross the border of a range, or not be aligned in its result."""


def heads(outs: Sequence[Layout]) -> list[tuple[int, int]]:
    """(heads, head_dim) of every range, from results of ([batch,] token, heads, head_dim)."""
    return [(out.shape[-2], out.shape[-1]) for out in outs]


def ends(outs: Sequence[Layout]) -> list[int]:
    """The channel behind the last one of every range."""
    return list(accumulate(count * head_dim for count, head_dim in heads(outs)))


def are_packed(outs: Sequence[Layout], vec: int) -> list[bool]:
    """For every range, whether vectors of `vec` channels of x are also aligned vectors of its result."""
    return [_is_packed(begin, out, vec) for begin, out in zip([0, *ends(outs)], outs, strict=False)]


def _is_packed(begin: int, out: Layout, vec: int) -> bool:
    count, head_dim = out.shape[-2:]
    if vec == 1:
        return True
    if head_dim > 1 and out.strides[-1] != 1:
        return False
    outer = out.active(*range(len(out.shape) - 1))
    return not any(quantity % vec for quantity in (begin, count * head_dim, head_dim, out.first, *outer))


def kind(outs: Sequence[Layout], vec: int) -> Ranges:
    """How the channels of a launch with vectors of `vec` channels fall into ranges."""
    if not all(are_packed(outs, vec)):
        return Ranges.ROUTED
    return Ranges.ONE if len(outs) == 1 and outs[0].shape[-2] == 1 else Ranges.MANY


def numbers(outs: Sequence[Layout], vec: int) -> dict[str, object]:
    """The fields of an argument struct for the ranges of a launch."""
    absent = MAX_RANGES - len(outs)
    return {
        "out_stride": [stride for out in outs for stride in (0, *out.strides)[-4:]] + [0] * (4 * absent),
        "head_dim": [number for _, head_dim in heads(outs) for number in fast_div(head_dim)] + [0] * (3 * absent),
        "range_end": ends(outs) + [0] * absent,
        "range_is_packed": are_packed(outs, vec) + [0] * absent,
        "ranges": len(outs),
    }
