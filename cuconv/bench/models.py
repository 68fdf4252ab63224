"""Shapes of published models: the calls of one layer of each."""

from __future__ import annotations

from dataclasses import dataclass

from cuconv.runtime.workload import CHANNELS, TOKENS


@dataclass(frozen=True)
class Conv:
    """A layer's short convolution.

    dim counts every channel that is convolved together: for Mamba-2 x, B and C (d_inner + 2 * ngroups * d_state), for
    Gated DeltaNet q, k and v.
    """

    dim: int
    width: int = 4
    bias: bool = True
    silu: bool = True
    parts: str = ""
    """Channels of x, B and C, "4096,1024,1024", where the layer splits what it has convolved."""
    heads: str = ""
    """Heads times channels of q, k and v, "16x128,16x128,32x128", where the layer splits into these."""


@dataclass(frozen=True)
class States:
    """A layer's selective state space: Mamba-2's by head, Mamba's when nheads is 0, headdim then being d_inner."""

    nheads: int
    headdim: int
    d_state: int
    ngroups: int = 1


@dataclass(frozen=True)
class Model:
    """One layer."""

    conv: Conv
    states: States | None = None

    @property
    def is_mamba1(self) -> bool:
        return self.states is not None and self.states.nheads == 0

    @property
    def contiguous(self) -> tuple[str, ...]:
        """The contiguous axes of arrays (batch, dim, seqlen). Libraries differ in Mamba's layers: mamba_ssm has
        contiguous tokens, transformers and vLLM have contiguous channels.
        """
        return (TOKENS, CHANNELS) if self.is_mamba1 else (CHANNELS,)


def _mamba(d_inner: int) -> Model:
    return Model(Conv(d_inner), States(0, d_inner, 16))


def _mamba2(nheads: int, ngroups: int, headdim: int = 64, d_state: int = 128) -> Model:
    d_inner, grouped = nheads * headdim, ngroups * d_state
    conv = Conv(d_inner + 2 * grouped, parts=f"{d_inner},{grouped},{grouped}")
    return Model(conv, States(nheads, headdim, d_state, ngroups))


def _linear_attention(q: int, k: int, v: int, head: int = 128) -> Model:
    return Model(Conv((q + k + v) * head, bias=False, heads=f"{q}x{head},{k}x{head},{v}x{head}"))


MODELS = {
    "mamba-130m": _mamba(2 * 768),
    "mamba-2.8b": _mamba(2 * 2560),
    "falcon-mamba-7b": _mamba(2 * 4096),
    "jamba-v0.1": _mamba(2 * 4096),
    "mamba2-130m": _mamba2(24, 1),
    "mamba2-2.7b": _mamba2(80, 1),
    "codestral-mamba-7b": _mamba2(128, 8),
    "nemotron-h-8b": _mamba2(128, 8),
    "qwen3-next-80b": _linear_attention(16, 16, 32),
    "kimi-linear-48b": _linear_attention(32, 32, 32),
    "lfm2-1.2b": Model(Conv(2048, width=3, bias=False, silu=False)),
}
"""Models by name, from their published configurations."""
