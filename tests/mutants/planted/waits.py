"""Bugs in the wait for the preceding kernel."""

from __future__ import annotations

from tests.mutants import Mutant
from tests.mutants.planted.ids import STATE

_STEP = "causal_conv1d_update-136-11-pool_columns-slots_odd-pad_slot_id_3-null-keep-fresh"
_STEP_OF_ROWS = "causal_conv1d_update-56-5-pool_columns"
_STATE_ODD = "selective_state_update-7-2-20-128-dtypes_float32-per_head_all-pool_sliced-odd-index_int64"

MUTANTS = (
    Mutant(
        "A step reads its input before it waits.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "                wait_for_preceding();\n                load_inputs();",
        "                load_inputs();\n                wait_for_preceding();",
        (_STEP,),
    ),
    Mutant(
        "A thread of a step does not wait.",
        "causal_conv1d/causal_conv1d_update_rows.cu",
        "    wait_for_preceding();\n",
        "    if (threadIdx.x > 0) wait_for_preceding();\n",
        (_STEP_OF_ROWS,),
    ),
    Mutant(
        "A state update reads its inputs before it waits.",
        "selective_state_update/steps.cuh",
        "        if (kReadsFirst) wait_for_preceding();\n        load_inputs();",
        "        load_inputs();\n        if (kReadsFirst) wait_for_preceding();",
        (STATE,),
    ),
    Mutant(
        "A state update of few sequences reads its inputs before it waits.",
        "selective_state_update/selective_state_update_few.cu",
        "        wait_for_preceding();\n        load_inputs();",
        "        load_inputs();\n        wait_for_preceding();",
        ("selective_state_update-5-4-9-16-groups_2-per_head_all-odd-index_int64",),
    ),
    Mutant(
        "A state update of rows with decays of their own reads its inputs before it waits.",
        "selective_state_update/selective_state_update_decays.cu",
        "        wait_for_preceding();\n        load_inputs();",
        "        load_inputs();\n        wait_for_preceding();",
        ("selective_state_update-3-0-40-16-dtype_float32",),
    ),
    Mutant(
        "Sequences that are padding do not wait.",
        "selective_state_update/steps.cuh",
        "    if (slot < 0) {\n        if (kReadsFirst) wait_for_preceding();\n",
        "    if (slot < 0) {\n",
        (_STATE_ODD,),
    ),
    Mutant(
        "Cursors are moved before the wait.",
        "selective_state_update/selective_state_update_commit.cu",
        "    wait_for_preceding();\n",
        "",
        ("selective_state_update_commit-7-12",),
    ),
)
