"""Ids of small cases that find bugs in several of these files."""

from __future__ import annotations

FWD = "causal_conv1d_fn-1-5-1029"
STATE = "selective_state_update-3-0-40-8-dtype_float32"
STATE_RANDOM = "selective_state_update-3-2-6-128-per_head_all-seed_18446744073709551615"
MOVED_ROWS = "causal_conv1d_update-136-14-pool_columns-slots_odd-index_mixed-table_column-longer_3-moved"
MOVED_SHORT = (
    "causal_conv1d_varlen_fn-33-5x9+2x2+17-layout_tokens-pool_columns-slots_odd-index_mixed-table_column-moved"
)
SNAPSHOTS_ROWS = (
    "causal_conv1d_varlen_fn-33-off2+20+0+3x1+30+2-dtype_float16-layout_tokens-pool_columns-slots_odd-longer_2"
    "-snapshots_pool"
)
SCAN_BWD_FLOAT = "selective_scan_bwd-1-4-257-dtype_float32-layout_sliced_alike-dout_expanded"
SWEEPS_KEPT = "selective_scan_varlen_fn-128-200+236+300+200-index_mixed-initial_all-moved-snapshots_pool-processors_1"
