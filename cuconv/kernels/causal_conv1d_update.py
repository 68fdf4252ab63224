"""Decode step of a convolution, channels first in vectors: cuda_src/causal_conv1d_update.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cuconv.kernels import update
from cuconv.kernels.update import MANY_TOKENS_CHANNELS, SEQUENCES, UpdateKernel, update_axes

THREADS = update.THREADS


@dataclass(frozen=True)
class CausalConv1dUpdate(UpdateKernel):
    """A thread owns `vec` channels of a sequence."""

    unit: ClassVar[str] = "causal_conv1d_update"

    sequences: int

    @classmethod
    def variants(cls) -> Iterator[CausalConv1dUpdate]:
        for axes in update_axes():
            for sequences in (0, *SEQUENCES):
                if sequences or axes["vec"] <= MANY_TOKENS_CHANNELS:
                    yield cls(sequences=sequences, **axes)
