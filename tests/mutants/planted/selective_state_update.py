"""Bugs in the state updates."""

from __future__ import annotations

from tests.mutants import Mutant
from tests.mutants.planted.ids import STATE, STATE_RANDOM

_STATE_SHARED = "selective_state_update-7-2-20-128-dtypes_float32-per_head_all-pool_sliced-odd-index_int64"
_FEW = "selective_state_update/selective_state_update_few.cu"
_STATE_FEW = "selective_state_update-5-4-9-16-groups_2-per_head_all-odd-index_int64"
_STATE_FEW_PADDED = "selective_state_update-7-2-20-128-dtypes_float32-per_head_all-pool_slot_strided-odd-index_int64"
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

_STATE_INT8 = "selective_state_update-3-4-8-128-groups_2-state_dtype_int8-per_head_all-without_z"
_STATE_INT8_FRESH = (
    "selective_state_update-5-2-6-128-state_dtype_int8-per_head_all-targets_one-column_chosen-fresh-beyond_3"
)
_STATE_INT8_MANY = (
    "selective_state_update-5-2-6-128-tokens_3-state_dtype_int8-per_head_all-targets_one-steps_slot-odd-index_int64"
)
_QUANTISED = "selective_state_update/test_quantised.py::test_"
_HEADS = "selective_state_update/quantised_heads.cuh"
_HALVED = (
    "selective_state_update-3-2-32-256-groups_2-dtype_float16-state_dtype_float8_e4m3fn-per_head_all-null_slot_0-"
    "force_heads=1"
)
_DECAYS = "selective_state_update/selective_state_update_decays.cu"
_STATE_DECAYS = "selective_state_update-3-0-40-16-dtype_float32"
_STATE_DECAYS_PAIRS = "selective_state_update-5-0-70-16-lies_fused-odd-index_int64-force_sequences=2"
_UNITS_INT8 = _QUANTISED + "units_of_rows_change_no_bits[unit-emulated-40-int8]"
_UNITS_FAR = _QUANTISED + "units_of_rows_change_no_bits[unit-emulated-100-int8]"
_UNITS_INT16 = _QUANTISED + "units_of_rows_change_no_bits[unit-emulated-40-int16]"
_BIT_BY_BIT = _QUANTISED + "a_kernel_rounds_bit_by_bit_as_numpy"
_STAYING = "selective_state_update-5-3-37-128-state_dtype_int16-per_head_all-odd-index_int64-force_rows=2_in_place=1"
_WHOLE_MOVED = (
    "selective_state_update-5-2-64-128-per_head_all-lies_fused-targets_one-odd-index_int64-force_rows=4_whole=1_moved=1"
)
_WHOLE_PADDED = "selective_state_update-5-2-64-128-per_head_all-lies_fused-odd-index_int64-force_rows=4_whole=1"

MUTANTS = (
    Mutant(
        "All blocks take the first block's rows.",
        "selective_state_update/selective_state_update.cu",
        "blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x",
        "threadIdx.x",
        ("selective_state_update-2-2-37-128-per_head_all-odd-index_int64-force_rows=2_index32=0",),
    ),
    Mutant(
        "All blocks take the first block's rows of a single token.",
        "selective_state_update/selective_state_update_single.cu",
        "blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x",
        "threadIdx.x",
        (STATE,),
    ),
    Mutant(
        "A step of whole rows without a slot leaves results as they are.",
        "selective_state_update/whole_step.cuh",
        """        if (!p.keeps_padding) at.store(p, 0.0f);
        return true;
    }
    if (kReadsFirst) wait_for_preceding();
    if (kReadsFirst""",
        """        return true;
    }
    if (kReadsFirst) wait_for_preceding();
    if (kReadsFirst""",
        (_WHOLE_PADDED,),
    ),
    Mutant(
        "A step of codes that stay in their slot leaves results without a slot as they are.",
        "selective_state_update/whole_step.cuh",
        """        if (!p.keeps_padding) at.store(p, 0.0f);
        return true;
    }
    if (kReadsFirst) wait_for_preceding();
    inputs""",
        """        return true;
    }
    if (kReadsFirst) wait_for_preceding();
    inputs""",
        (_STAYING,),
    ),
    Mutant(
        "Whole rows stay in the slot which they come from.",
        "selective_state_update/whole_step.cuh",
        "WholeRows<Rows>(p, warp, slot).store(r, state)",
        "from.store(r, state)",
        (_WHOLE_MOVED,),
    ),
    Mutant(
        "Threads beyond the last row with decays of its own load what is behind it.",
        _DECAYS,
        "min(thread_row, p.headdim - 1)",
        "thread_row",
        (_STATE_DECAYS,),
    ),
    Mutant(
        "A row with decays of its own has the lane's first one for all elements.",
        _DECAYS,
        "own_rate * A.to_float(i)",
        "own_rate * A.to_float(0)",
        (_STATE_DECAYS,),
    ),
    Mutant(
        "A result of rows with decays of their own is not gated.",
        _DECAYS,
        "    y *= silu<float>(z.to_float(p.z_is_float32));\n",
        "",
        (_STATE_DECAYS,),
    ),
    Mutant(
        "All sequences of a lane decay as the first one.",
        _DECAYS,
        "from_group_lane<kLanes>(rate, s)",
        "from_group_lane<kLanes>(rate, 0)",
        (_STATE_DECAYS_PAIRS,),
    ),
    Mutant(
        "A lane stands for the first of its sequences only.",
        _DECAYS,
        "sequence(lane % kSequences)",
        "sequence(0)",
        (_STATE_DECAYS_PAIRS,),
    ),
    Mutant(
        "Sequences without a slot have the results of rows with decays of their own.",
        _DECAYS,
        "is_own ? y : 0.0f",
        "y",
        (_STATE_DECAYS_PAIRS,),
    ),
    Mutant(
        "All blocks take the first block's rows of several tokens of codes.",
        "selective_state_update/selective_state_update_quantised.cu",
        "blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x",
        "threadIdx.x",
        (_STATE_INT8_MANY,),
    ),
    Mutant(
        "All blocks take the first block's rows of codes.",
        "selective_state_update/selective_state_update_quantised_single.cu",
        "blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x",
        "threadIdx.x",
        (_STATE_INT8,),
    ),
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
        "if (exists && row < p.headdim && element",
        "if (exists && row <= p.headdim && element",
        (_STATE_SHARED, "selective_state_update-2-0-9-16-dtype_float32-without_all-no_softplus-slots_None"),
    ),
    Mutant(
        "Random bits are those of the element before.",
        "selective_state_update/states.cuh",
        "static_cast<int>(number % 8) + i - first)",
        "static_cast<int>(number % 8) + (i - first ^ 1))",
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
        "selective_state_update/steps.cuh",
        "(number < p.dst_columns || p.dst_columns == 0 && t + 1 == end)",
        "(t + 1 == end)",
        (_STATE_MANY,),
    ),
    Mutant(
        "The padding behind packed sequences stays as it was.",
        "selective_state_update/steps.cuh",
        "const int behind = warp.batch + 1 >= p.batch ? max(begin, end) : p.tokens;",
        "const int behind = p.tokens;",
        (_STATE_PACKED,),
    ),
    Mutant(
        "A read-only pool is written.",
        "selective_state_update/steps.cuh",
        "return of_warp<Traits>(p.is_read_only ? -1 : load_destination",
        "return of_warp<Traits>(load_destination",
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
        "selective_state_update/steps.cuh",
        "const bool goes_on = !Traits::kIsChosen || has_past(p, warp.batch);\n    float state",
        "const bool goes_on = true;\n    float state",
        (_STATE_CHOSEN,),
    ),
    Mutant(
        "A single token without an initial state follows what its slot holds.",
        "selective_state_update/steps.cuh",
        "load_row<Traits>(p, warp, from_rows, r, raw[r], goes_on);",
        "load_row<Traits>(p, warp, from_rows, r, raw[r]);",
        ("selective_state_update-5-2-6-128-per_head_all-targets_one-column_chosen-fresh-beyond_3",),
    ),
    Mutant(
        "Padding that is to be kept becomes zeros.",
        "selective_state_update/steps.cuh",
        "if (p.keeps_padding) return;",
        "if (p.keeps_padding > 1) return;",
        (_STATE_KEPT,),
    ),
    Mutant(
        "A token of a tree follows the one before it.",
        "selective_state_update/steps.cuh",
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
    Mutant(
        "The largest magnitude of a row is that of one lane's elements.",
        "selective_state_update/quantised.cuh",
        "max_over_lanes<Traits::kLanes>(largest_magnitude(state))",
        "max_over_lanes<Traits::kLanes / 2>(largest_magnitude(state))",
        (_STATE_INT8,),
    ),
    Mutant(
        "Two of the last pairs of elements do not count in the largest magnitude.",
        "common/codes.cuh",
        "i + 1 < kPairs; i += 2",
        "i + 3 < kPairs; i += 2",
        (_STATE_INT8,),
    ),
    Mutant(
        "All blocks walk over the first block's heads.",
        "selective_state_update/selective_state_update_quantised_heads.cu",
        "blockIdx.x * kWarps + warp",
        "warp",
        (_UNITS_INT8,),
    ),
    Mutant(
        "A warp walks over one head again and again.",
        _HEADS,
        "return {head + is_last, is_last ? 0 : number + 1};",
        "return {head, is_last ? 0 : number + 1};",
        (_UNITS_INT8,),
    ),
    Mutant(
        "Both warps of a head walk over its first half.",
        _HEADS,
        "first_tile = static_cast<int>(number & halved) * tiles;",
        "first_tile = 0;",
        (_HALVED,),
    ),
    Mutant(
        "The rows of a part are read before they are there.",
        _HEADS,
        "wait_for_copy_groups<Rows::kRowsOfGroup / kPart - 1>();\n            typename",
        "wait_for_copy_groups<Rows::kRowsOfGroup / kPart>();\n            typename",
        (_UNITS_INT8,),
    ),
    Mutant(
        "An input that is far greater than the decay becomes infinite.",
        "selective_state_update/quantised.cuh",
        "min(max(of_decay, of_input) & 0x7f800000,",
        "min(of_decay & 0x7f800000,",
        (_UNITS_FAR,),
    ),
    Mutant(
        "The unit of a row is another one for codes of 16 bits.",
        "selective_state_update/quantised.cuh",
        "sizeof(state_t) == 1 ? 6 : 14;",
        "6;",
        (_UNITS_INT16,),
    ),
    Mutant(
        "The largest magnitude of a row is in its unit.",
        _HEADS,
        "max_rows_over_lanes<kPart, kLanes>(magnitudes) * unit)",
        "max_rows_over_lanes<kPart, kLanes>(magnitudes))",
        (_UNITS_INT8,),
    ),
    Mutant(
        "A single token's results stay in the units of their rows.",
        "selective_state_update/steps.cuh",
        "gather_own_sum<Traits>(sums) * own.unit;",
        "gather_own_sum<Traits>(sums);",
        (_UNITS_INT16,),
    ),
    Mutant(
        "A result stays in the unit of its row.",
        _HEADS,
        "from_lane(y, holder) * row.unit",
        "from_lane(y, holder)",
        (_UNITS_INT8,),
    ),
    Mutant(
        "A padding sequence's results of walked heads are not set to zero.",
        _HEADS,
        "if (p.keeps_padding || !is_row) return true;",
        "return true;",
        (_UNITS_INT8,),
    ),
    Mutant(
        "A row's scale is that of another row.",
        "selective_state_update/quantised.cuh",
        "from_lane(kept, lane_id() % kGroups * Traits::kLanes + lane_id() / kGroups)",
        "from_lane(kept, lane_id() / kGroups * Traits::kLanes + lane_id() % kGroups)",
        (_STATE_INT8,),
    ),
    Mutant(
        "A row of zeros has an infinite factor.",
        "common/codes.cuh",
        "magnitude < kLeastMagnitude ?",
        "magnitude < 0.0f ?",
        (f"{_BIT_BY_BIT}[unit-emulated-None-int8]",),
    ),
    Mutant(
        "Scales are their own inverses.",
        "common/codes.cuh",
        "return quotient(1.0f, factor);",
        "return factor;",
        (_STATE_INT8,),
    ),
    Mutant(
        "A state is stored with the scale that it was read with.",
        "selective_state_update/steps.cuh",
        "factors.store_scale(p, warp, scale_place, stores);",
        "factors.store_scale(p, warp, scale_place, false);",
        (_STATE_INT8,),
    ),
    Mutant(
        "The scale of a destination goes to the slot that the state came from.",
        "selective_state_update/steps.cuh",
        "scale_of_slot<Traits>(params, warp, max(to, 0)), cursor",
        "scale_of_slot<Traits>(params, warp, slot), cursor",
        (_STATE_INT8_FRESH,),
    ),
    Mutant(
        "A sequence without an initial state takes the scale of its slot.",
        "selective_state_update/steps.cuh",
        "if (goes_on) scale = load_scale",
        "scale = load_scale",
        (_STATE_INT8_FRESH,),
    ),
    Mutant(
        "The second token takes states for codes.",
        "selective_state_update/steps.cuh",
        "const TokenStep<Traits> pace(p, parameters, inputs, scale);\n        scale = 1.0f;",
        "const TokenStep<Traits> pace(p, parameters, inputs, scale);",
        (_STATE_INT8_MANY,),
    ),
    Mutant(
        "Rounding at random goes beyond the largest code.",
        "common/codes.cuh",
        "fminf(fmaxf(__fmul_rn(value, factor), -kMost), kMost)",
        "1.001f * __fmul_rn(value, factor)",
        (f"{_BIT_BY_BIT}[unit-emulated-0-int8]",),
    ),
    Mutant(
        "The second half of a vector of sixteen codes draws the numbers of the first.",
        "selective_state_update/states.cuh",
        "number / 8 + first / 8,",
        "number / 8,",
        (f"{_BIT_BY_BIT}[unit-emulated-0-int8]",),
    ),
    Mutant(
        "Integers between two go up.",
        "common/dtype.cuh",
        "fmaf(v, factor, 12582912.0f)",
        "floorf(fmaf(v, factor, 0.5f)) + 12582912.0f",
        (f"{_BIT_BY_BIT}[unit-emulated-None-int8]", f"{_BIT_BY_BIT}[unit-emulated-None-int16]"),
    ),
    Mutant(
        "8-bit floats between two go away from zero.",
        "common/platform.cuh",
        "0x7ffffu + (__float_as_uint(least) >> 20 & 1u)",
        "0x80000u",
        (f"{_BIT_BY_BIT}[unit-emulated-None-float8_e4m3fn]",),
    ),
    Mutant(
        "8-bit floats below 2**-6 are zeros.",
        "common/platform.cuh",
        "least < 0.015625f ? small : normal",
        "least < 0.015625f ? 0u : normal",
        (f"{_BIT_BY_BIT}[unit-emulated-None-float8_e4m3fn]",),
    ),
    Mutant(
        "A NaN of 8 bits is read as a number.",
        "common/platform.cuh",
        "size == 0x7fu ? 0x7fffu :",
        "size == 0x80u ? 0x7fffu :",
        (_QUANTISED + "a_code_that_is_no_number_spoils_its_row_alone[unit-emulated]",),
    ),
    Mutant(
        "Threads beyond the last row of few sequences store what it has.",
        _FEW,
        "const bool exists = thread_row < p.rows;",
        "const bool exists = true;",
        (_STATE_FEW,),
    ),
    Mutant(
        "Rows of few sequences have the head of their block's first one.",
        _FEW,
        "divide(static_cast<unsigned>(row), p.head_rows)",
        "divide(blockIdx.x * Traits::kRows, p.head_rows)",
        (_STATE_FEW,),
    ),
    Mutant(
        "Heads of few sequences have B and C of the first group.",
        _FEW,
        "stride[0] + group * stride[1]",
        "stride[0]",
        (_STATE_FEW,),
    ),
    Mutant(
        "Few sequences take the slots of their numbers.",
        _FEW,
        "slot = raw_slot.below(p.slots, p.pad_slot_id);",
        "slot = raw_slot.below(p.slots, p.pad_slot_id) < 0 ? -1 : sequence;",
        (_STATE_FEW,),
    ),
    Mutant(
        "Few sequences without a slot write the state in front of the pool.",
        _FEW,
        "has_slot = slot >= 0;",
        "",
        (_STATE_FEW_PADDED,),
    ),
    Mutant(
        "Results of few sequences without a slot are not zeros.",
        _FEW,
        "from_float(has_slot ? y : 0.0f)",
        "from_float(y)",
        (_STATE_FEW_PADDED,),
    ),
)
