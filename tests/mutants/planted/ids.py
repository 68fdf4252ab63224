"""Ids of small cases that find bugs of several families."""

from __future__ import annotations

FWD = "causal_conv1d_fn-1-5-1029"
STATE = "selective_state_update-3-0-40-16-dtype_float32"
STATE_RANDOM = "selective_state_update-3-2-6-128-per_head_all-seed_18446744073709551615"
