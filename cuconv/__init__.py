"""Short convolutions and state-space operators for NVIDIA GPUs, compiled on demand."""

from cuconv.ops.causal_conv1d_fn import causal_conv1d_fn
from cuconv.ops.causal_conv1d_qkv_split import causal_conv1d_qkv_split
from cuconv.ops.causal_conv1d_split import causal_conv1d_split
from cuconv.ops.causal_conv1d_update import causal_conv1d_update
from cuconv.ops.causal_conv1d_update_qkv_split import causal_conv1d_update_qkv_split
from cuconv.ops.causal_conv1d_update_split import causal_conv1d_update_split
from cuconv.ops.causal_conv1d_varlen_fn import causal_conv1d_varlen_fn
from cuconv.ops.causal_conv1d_varlen_states import causal_conv1d_varlen_states
from cuconv.ops.selective_scan_fn import selective_scan_fn
from cuconv.ops.selective_scan_varlen_fn import selective_scan_varlen_fn
from cuconv.ops.selective_state_update import selective_state_update

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_qkv_split",
    "causal_conv1d_split",
    "causal_conv1d_update",
    "causal_conv1d_update_qkv_split",
    "causal_conv1d_update_split",
    "causal_conv1d_varlen_fn",
    "causal_conv1d_varlen_states",
    "selective_scan_fn",
    "selective_scan_varlen_fn",
    "selective_state_update",
]
