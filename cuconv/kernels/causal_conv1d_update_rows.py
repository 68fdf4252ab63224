"""Decode step of a convolution whose states are short rows of columns: cuda_src/causal_conv1d_update_rows.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from cuconv.kernels import update
from cuconv.kernels.update import SEQUENCES, UpdateKernel, update_axes

THREADS = update.THREADS


def state_lens(width: int) -> list[int]:
    """How many columns a state may have: as many as the filter needs, or has taps."""
    return [length for length in (width - 1, width) if length]


@dataclass(frozen=True)
class CausalConv1dUpdateRows(UpdateKernel):
    """A thread owns `vec` channels of a sequence and their whole states."""

    unit: ClassVar[str] = "causal_conv1d_update_rows"

    state_len: int
    sequences: int

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dUpdateRows]:
        for axes in update_axes():
            for state_len, sequences in product(state_lens(axes["width"]), SEQUENCES):
                yield cls(state_len=state_len, sequences=sequences, **axes)
