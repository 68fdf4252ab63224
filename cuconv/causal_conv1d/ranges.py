"""Ranges of channels with an output each, as the kernels of common/conv_ranges.cuh take them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from cuconv.causal_conv1d.form import MAX_RANGES
from cuconv.runtime.launch import fast_div
from cuconv.runtime.layout import Layout

ONE, MANY, ROUTED = range(3)
"""The values of common/conv_ranges.cuh's Ranges."""

POINTERS = tuple(f"out[{i}]" for i in range(MAX_RANGES))
FIELDS = (
    ("ranges", "i4"),
    ("out_stride", "i8", 4 * MAX_RANGES),
    ("range_end", "i4", MAX_RANGES),
    ("head_dim", "u4", 3 * MAX_RANGES),
    ("range_is_packed", "i4", MAX_RANGES),
)


def heads(outs: Sequence[Layout]) -> list[tuple[int, int]]:
    """(heads, head_dim) of every range, whose outputs are ([batch,] token, heads, head_dim)."""
    return [(out.shape[-2], out.shape[-1]) for out in outs]


def ends(outs: Sequence[Layout]) -> list[int]:
    """The channel behind the last one of every range."""
    return list(accumulate(count * head_dim for count, head_dim in heads(outs)))


def are_packed(outs: Sequence[Layout], vec: int) -> list[bool]:
    """Of every range, whether vectors of all channels are vectors of its output, too."""
    return [_is_packed(begin, out, vec) for begin, out in zip([0, *ends(outs)], outs, strict=False)]


def _is_packed(begin: int, out: Layout, vec: int) -> bool:
    count, head_dim = out.shape[-2:]
    if vec == 1:
        return True
    if head_dim > 1 and out.strides[-1] != 1:
        return False
    outer = out.active(*range(len(out.shape) - 1))
    return not any(quantity % vec for quantity in (begin, count * head_dim, head_dim, out.first, *outer))


def kind(outs: Sequence[Layout], vec: int) -> int:
    """Which of the Ranges a launch has whose threads have vectors of all channels."""
    if not all(are_packed(outs, vec)):
        return ROUTED
    return ONE if len(outs) == 1 and outs[0].shape[-2] == 1 else MANY


def numbers(outs: Sequence[Layout], vec: int) -> dict[str, object]:
    """What a kernel is told of the ranges."""
    absent = MAX_RANGES - len(outs)
    return {
        "out_stride": [stride for out in outs for stride in (0, *out.strides)[-4:]] + [0] * (4 * absent),
        "head_dim": [number for _, head_dim in heads(outs) for number in fast_div(head_dim)] + [0] * (3 * absent),
        "range_end": ends(outs) + [0] * absent,
        "range_is_packed": are_packed(outs, vec) + [0] * absent,
        "ranges": len(outs),
    }
