"""Bugs in the state updates."""

from __future__ import annotations

from tests.mutants import Mutant
from tests.mutants.planted.ids import STATE, STATE_RANDOM

_STATE_SHARED = "selective_state_update-7-2-20-128-dtypes_float32-per_head_all-pool_slot_strided-odd-index_int64"
_STATE_MANY = (
    "selective_state_update-5-2-6-128-tokens_4-per_head_all-lies_fused-targets_each-columns_6-steps_row-odd-index_int64"
)
_STATE_PACKED = "selective_state_update-off1+3+1+0+2+off2-2-6-128-groups_2-per_head_all"
_STATE_ACCEPTED = "selective_state_update-6-2-6-128-tokens_3-per_head_all-accepted-steps_row-odd-index_int64"
_STATE_CHOSEN = (
    "selective_state_update-5-2-6-128-tokens_3-per_head_all-column_chosen-fresh-beyond_2-steps_slot-odd-index_int64"
)
_STATE_KEPT = "selective_state_update-off1+3+1+0+2+off2-2-6-128-groups_2-per_head_all-fresh-odd-keep"
_STATE_TREE = "selective_state_update-5-2-6-128-tokens_6-per_head_all-tree-beyond_1-steps_row-odd-index_int64"

MUTANTS = (
    Mutant(
        "A state update decays twice where rows share it.",
        "selective_state_update/rows.cuh",
        "decay = exp2_approx(step * kLog2E * parameters.A[0][0].to_float(0));",
        "decay = exp2_approx(2.0f * step * kLog2E * parameters.A[0][0].to_float(0));",
        (_STATE_SHARED,),
    ),
    Mutant(
        "A state update leaves out the bias of dt.",
        "selective_state_update/rows.cuh",
        "if (p.dt_bias != nullptr) step += parameters",
        "if (p.dt_bias == nullptr) step += parameters",
        (STATE,),
    ),
    Mutant(
        "A row beyond the last is stored.",
        "selective_state_update/states.cuh",
        "if (row < p.headdim && element",
        "if (row <= p.headdim && element",
        (_STATE_SHARED, "selective_state_update-2-0-9-16-dtype_float32-without_all-no_softplus-slots_None"),
    ),
    Mutant(
        "Random bits are those of the element before.",
        "selective_state_update/states.cuh",
        "const int half = static_cast<int>(number % 8) + i;",
        "const int half = static_cast<int>(number % 8) + (i ^ 1);",
        (STATE_RANDOM,),
    ),
    Mutant(
        "Padding reads and writes the last slot.",
        "selective_state_update/update.cuh",
        "return slot == p.pad_slot_id || slot < 0 ||",
        "return slot < -1 ||",
        ("selective_state_update-2-2-3-128-per_head_A-no_softplus-lies_fused-pad_slot_id_0", _STATE_SHARED),
    ),
    Mutant(
        "Rejected tokens of a state count as accepted.",
        "selective_state_update/update.cuh",
        "column = accepted > 1 ? accepted - 1 : 0;",
        "column = accepted > 1 ? accepted : 0;",
        (_STATE_ACCEPTED,),
    ),
    Mutant(
        "The last token's state alone is stored.",
        "selective_state_update/selective_state_update.cu",
        "(number < p.dst_columns || p.dst_columns == 0 && t + 1 == end)",
        "(t + 1 == end)",
        (_STATE_MANY,),
    ),
    Mutant(
        "The padding behind packed sequences stays as it was.",
        "selective_state_update/selective_state_update.cu",
        "const int behind = warp.batch + 1 >= p.batch ? max(begin, end) : p.tokens;",
        "const int behind = p.tokens;",
        (_STATE_PACKED,),
    ),
    Mutant(
        "A read-only pool is written.",
        "selective_state_update/selective_state_update.cu",
        "const int to = p.is_read_only ? -1 : load_destination",
        "const int to = load_destination",
        ("selective_state_update-3-2-6-128-per_head_all-frozen",),
    ),
    Mutant(
        "A state update takes the first column for every sequence.",
        "selective_state_update/update.cuh",
        "column = load_index(p.state_column, batch",
        "column = 0 * load_index(p.state_column, batch",
        (_STATE_CHOSEN,),
    ),
    Mutant(
        "A sequence without an initial state starts from its slot.",
        "selective_state_update/selective_state_update.cu",
        "const bool goes_on = !Traits::kIsChosen || has_past(p, warp.batch);\n    float state",
        "const bool goes_on = true;\n    float state",
        (_STATE_CHOSEN,),
    ),
    Mutant(
        "A single token without an initial state follows what its slot holds.",
        "selective_state_update/selective_state_update.cu",
        "load_row<Traits>(p, warp, from_rows, r, raw[r], goes_on);",
        "load_row<Traits>(p, warp, from_rows, r, raw[r]);",
        ("selective_state_update-5-2-6-128-per_head_all-targets_one-column_chosen-fresh-beyond_3",),
    ),
    Mutant(
        "Padding that is to be kept becomes zeros.",
        "selective_state_update/selective_state_update.cu",
        "if (p.keeps_padding) return;",
        "if (p.keeps_padding > 1) return;",
        (_STATE_KEPT,),
    ),
    Mutant(
        "A token of a tree follows the one before it.",
        "selective_state_update/selective_state_update.cu",
        "const int parent = load_parent(p, warp.batch, number);",
        "const int parent = number - 1;",
        (_STATE_TREE,),
    ),
    Mutant(
        "A token of a tree may follow itself.",
        "common/trees.cuh",
        "parent < 0 || parent >= token ?",
        "parent < 0 || parent > token ?",
        (_STATE_TREE,),
    ),
)
