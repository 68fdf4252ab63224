"""Bugs in the gradients of scans whose rows are walked side by side, or whose lanes have all of few states."""

from __future__ import annotations

from tests.mutants import Mutant

_SHORT = "selective_scan_bwd-2-11-24-processors_1"
_SHORT_ODD = "selective_scan_bwd-1-7-51-d_state_13-dtype_float16-without_D_initial_state-processors_1"
_SHORT_LONGER = "selective_scan_bwd-2-10-128-d_state_12-groups_2-dtype_float32-processors_1"
_SHORT_FEW = "selective_scan_bwd-2-9-64-d_state_4-processors_1"
_SHORT_APART = "selective_scan_bwd-1-21-61-d_state_6-groups_3-dtype_float32-layout_channel_last-processors_1"
_FEW_STATES = "selective_scan_bwd-2-9-520-d_state_4"
_FEW_STATES_ODD = "selective_scan_bwd-1-6-259-d_state_3-without_initial_state_chunk_states"
_FEW_STATES_WALK = "selective_scan_bwd-1-5-516-d_state_3-dtype_float16-no_softplus-processors_1"

MUTANTS = (
    Mutant(
        "B and C of a lane's tokens go on behind the row.",
        "selective_scan/selective_scan_bwd_few_states.cu",
        "const int some = max(0, min(count - i, kWide));",
        "const int some = k < p.d_state ? kWide : 0;",
        (_FEW_STATES,),
    ),
    Mutant(
        "Channels side by side have the decay rates of the first one.",
        "selective_scan/selective_scan_bwd_short.cu",
        "numbers.A[row] + warp",
        "numbers.A[0] + warp",
        (_SHORT,),
    ),
    Mutant(
        "Recurrences back begin with what is behind the rows in the other order.",
        "selective_scan/selective_scan_bwd_short.cu",
        "return is_back ? kRows - 1 - number : number;",
        "return number;",
        (_SHORT,),
    ),
    Mutant(
        "The gradient of an initial state is what the first lanes of a row leave.",
        "selective_scan/selective_scan_bwd_short.cu",
        "lane % Scan::kLanes == Scan::kLanes - 1 &&",
        "lane % Scan::kLanes == 0 &&",
        (_SHORT_LONGER,),
    ),
    Mutant(
        "The sums of dB and dC leave out the rows beside the first one.",
        "selective_scan/selective_scan_bwd_short.cu",
        "    sum_parts_over_lanes<Shape::kRows, Shape::kLanes>(values);\n",
        "",
        (_SHORT_FEW,),
    ),
    Mutant(
        "The last step has channels behind the block's last one.",
        "selective_scan/selective_scan_bwd_short.cu",
        "return i + row() < channels ? live - token() : 0;",
        "return live - token();",
        (_SHORT_ODD,),
    ),
    Mutant(
        "The sum of a channel's dD is left for each warp of other kernels.",
        "selective_scan/selective_scan_bwd_short.cu",
        "j < 2 ? vectors[0] : 0.0f",
        "vectors[0]",
        (_SHORT,),
    ),
    Mutant(
        "The next step's tokens get the bias of this one's.",
        "selective_scan/selective_scan_bwd_short.cu",
        "prepare(shared.numbers[parity ^ 1], i + kRows)",
        "prepare(numbers, i + kRows)",
        (_SHORT,),
    ),
    Mutant(
        "The results of the last step are left in shared memory.",
        "selective_scan/selective_scan_bwd_short.cu",
        "access.flush((share.channels - 1) / kRows * kRows);",
        "access.flush(0);",
        (_SHORT_APART,),
    ),
    Mutant(
        "B and C of short rows have what is in memory for a state that is not there.",
        "selective_scan/selective_scan_bwd_short.cu",
        "if (token < live && n < p.d_state) values[i]",
        "if (token < live) values[i]",
        (_SHORT_ODD,),
    ),
    Mutant(
        "A step's channels that are apart are brought one further.",
        "selective_scan/selective_scan_bwd_short.cu",
        "put(some, j, *rows.place(i + own_row, at, step));",
        "put(some, j, *rows.place(i + (own_row ^ 1), at, step));",
        (_SHORT_APART,),
    ),
    Mutant(
        "The second of a lane's recurrences begins with what the first one does.",
        "selective_scan/scan_bwd_states.cuh",
        "value = before[i * kChains / kLinks];",
        "value = before[0];",
        (_SHORT,),
    ),
    Mutant(
        "The sum of a channel's dD is left once for each warp of other kernels.",
        "selective_scan/selective_scan_bwd_few_states.cu",
        "is_zero ? 0.0f : parts[0]",
        "parts[0]",
        (_FEW_STATES,),
    ),
    Mutant(
        "Few states go on through what lies behind the last token.",
        "selective_scan/scan_bwd_tokens.cuh",
        "is_live ? (p.delta_softplus ? bent : v) : 0.0f",
        "p.delta_softplus ? bent : v",
        (_FEW_STATES_ODD,),
    ),
    Mutant(
        "The gradient of a last state of few adds to that of delta_bias behind the last token.",
        "selective_scan/scan_bwd_tokens.cuh",
        "is_live ? (p.delta_softplus ? sigmoid : 1.0f) : 0.0f",
        "p.delta_softplus ? sigmoid : 1.0f",
        (_FEW_STATES_ODD,),
    ),
    Mutant(
        "B and C of few states are read behind the last token.",
        "selective_scan/selective_scan_bwd_few_states.cu",
        "if (t < count) own.parts[t / kWide]",
        "own.parts[t / kWide]",
        (_FEW_STATES_ODD,),
    ),
    Mutant(
        "Tokens behind the last one have gradients of few states.",
        "common/tokens.cuh",
        "if (i < count) at[i] = Dtype<T>::from_float(values[i]);",
        "at[i] = Dtype<T>::from_float(values[i]);",
        (_FEW_STATES_ODD,),
    ),
    Mutant(
        "A warp with few states walks its first channel again and again.",
        "selective_scan/selective_scan_bwd_few_states.cu",
        "if (steps.has(after)) load(next, after.channel);",
        "if (steps.has(after)) load(next, 0);",
        (_FEW_STATES_WALK,),
    ),
    Mutant(
        "B of few states has what is in memory for a state that is not there.",
        "selective_scan/selective_scan_bwd_few_states.cu",
        "            own.clear();\n",
        "",
        (_FEW_STATES_ODD,),
    ),
)
