"""Short convolutions and state-space operators for NVIDIA GPUs, compiled on demand."""

from cuconv.ops.causal_conv1d_fn import causal_conv1d_fn

__all__ = ["causal_conv1d_fn"]
