"""Convolution shapes of published models: what a prefill of one layer runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConvShape:
    """One layer's short convolution.

    dim counts every channel that is convolved together: for Mamba-2 x, B and C (d_inner + 2 * ngroups * d_state), for
    Gated DeltaNet q, k and v. Mamba-1 layers hold (batch, dim, seqlen) with contiguous sequences, the others with
    contiguous channels.
    """

    dim: int
    width: int = 4
    bias: bool = True
    activation: str | None = "silu"
    channel_last: bool = True


MODELS = {
    "mamba-130m": ConvShape(2 * 768, channel_last=False),
    "mamba-2.8b": ConvShape(2 * 2560, channel_last=False),
    "falcon-mamba-7b": ConvShape(2 * 4096, channel_last=False),
    "jamba-v0.1": ConvShape(2 * 4096, channel_last=False),
    "mamba2-130m": ConvShape(2 * 768 + 2 * 128),
    "mamba2-2.7b": ConvShape(2 * 2560 + 2 * 128),
    "codestral-mamba-7b": ConvShape(2 * 4096 + 2 * 8 * 128),
    "nemotron-h-8b": ConvShape(128 * 64 + 2 * 8 * 128),
    "qwen3-next-80b": ConvShape(2 * 16 * 128 + 32 * 128, bias=False),
    "kimi-linear-48b": ConvShape(32 * 128, bias=False),
    "lfm2-1.2b": ConvShape(2048, width=3, bias=False, activation=None),
}
"""By name, from the models' published configurations."""
