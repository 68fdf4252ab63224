"""Every operation in NumPy and float64: the oracle of all tests, and what runs when the arrays are NumPy's."""

from cuconv.reference.causal_conv1d import (
    causal_conv1d_fn,
    causal_conv1d_varlen_fn,
    causal_conv1d_varlen_states,
    l2norm,
    silu,
)
from cuconv.reference.causal_conv1d_update import causal_conv1d_update
from cuconv.reference.selective_scan import selective_scan_fn, selective_scan_varlen_fn
from cuconv.reference.selective_state_update import selective_state_update

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "causal_conv1d_varlen_fn",
    "causal_conv1d_varlen_states",
    "l2norm",
    "selective_scan_fn",
    "selective_scan_varlen_fn",
    "selective_state_update",
    "silu",
]
