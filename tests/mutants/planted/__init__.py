"""The bugs, by family. The tests named for one are small, and the first that finds it ends its run."""

from __future__ import annotations

from tests.mutants.planted import (
    causal_conv1d,
    causal_conv1d_bwd,
    causal_conv1d_over,
    causal_conv1d_update,
    causal_conv1d_varlen,
    causal_conv1d_varlen_rows,
    common,
    replay,
    selective_scan,
    selective_scan_bwd,
    selective_scan_bwd_short,
    selective_scan_copies,
    selective_scan_short,
    selective_scan_varlen,
    selective_state_update,
    waits,
    wide_strides,
)

MUTANTS = (
    *common.MUTANTS,
    *causal_conv1d.MUTANTS,
    *causal_conv1d_varlen.MUTANTS,
    *causal_conv1d_varlen_rows.MUTANTS,
    *causal_conv1d_over.MUTANTS,
    *causal_conv1d_update.MUTANTS,
    *causal_conv1d_bwd.MUTANTS,
    *selective_scan.MUTANTS,
    *selective_scan_copies.MUTANTS,
    *selective_scan_short.MUTANTS,
    *selective_scan_varlen.MUTANTS,
    *selective_scan_bwd.MUTANTS,
    *selective_scan_bwd_short.MUTANTS,
    *selective_state_update.MUTANTS,
    *replay.MUTANTS,
    *waits.MUTANTS,
    *wide_strides.MUTANTS,
)
