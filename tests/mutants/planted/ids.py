"""Ids of small cases that find bugs of several families."""

from __future__ import annotations

FWD = "causal_conv1d_fn-1-5-1029"
STATE = "selective_state_update-3-0-40-16-dtype_float32"
STATE_RANDOM = "selective_state_update-3-2-6-128-per_head_all-seed_18446744073709551615"
MOVED_ROWS = "causal_conv1d_update-136-14-pool_columns-slots_odd-index_mixed-table_column-longer_3-moved"
