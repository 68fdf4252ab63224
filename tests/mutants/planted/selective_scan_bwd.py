"""Bugs in the gradients of scans."""

from __future__ import annotations

from tests.mutants import Mutant
from tests.mutants.planted.ids import SCAN_BWD_FLOAT

_SCAN_BWD = "selective_scan_bwd-2-3-514-without_chunk_states"
_WORDS = "selective_scan_bwd-2-5-519"
_WORDS_OF_ENTRIES = "selective_scan_bwd-1-9-511-d_state_12-dtype_float16-without_initial_state_dlast_state"
_SCAN_BWD_SWEPT = "selective_scan_bwd-3-40-264-without_chunk_states-processors_1"
_SCAN_BWD_MANY = "selective_scan_bwd-1-3-264-d_state_20"
_SCAN_BWD_MANY_UNGATED = "selective_scan_bwd-1-3-272-d_state_20-without_z_chunk_states"
_SCAN_BWD_GROUPS = "selective_scan_bwd-1-26-300-d_state_40-processors_1"
_SCAN_BWD_CHANNELS = "selective_scan_bwd-1-40-513-layout_channel_last-matrices_by_state-processors_1"
_SCAN_BWD_CHANNELS_MANY = (
    "selective_scan_bwd-1-24-520-d_state_40-without_chunk_states-layout_channel_last-matrices_by_state-processors_1"
)
_SCAN_BWD_TURNS = "selective_scan_bwd-1-40-300-d_state_3-layout_channel_last-matrices_by_state-processors_2"
_PACKED_STATES = "selective_scan_varlen_bwd-5-300+0+10+513"
_PACKED_STATES_EVEN = "selective_scan_varlen_bwd-3-256+2x0+5+260+off3-d_state_9"
_PACKED_MANY = "selective_scan_varlen_bwd-4-260+40x1-d_state_20-groups_2-matrices_transposed-others_strided-index_int64"
_PACKED = "selective_scan_varlen_bwd-5-off5+301+0+2+255+3x1+40+off2-without_initial_state_dlast_state"
_PACKED_APART = (
    "selective_scan_varlen_bwd-3-off3+250+8+300-d_state_3-dtype_float16"
    "-without_initial_state_dlast_state_z-layout_tokens_offset_by_1"
)
_PACKED_EVEN = "selective_scan_varlen_bwd-3-256+2x0+5+260+off3-d_state_9-without_initial_state_dlast_state_D"
_MANY_SPLITS = "selective_scan_bwd-1-70-300-dtype_float32-without_chunk_states-processors_132"
_ROWS_AS_PACKED = (
    "selective_scan_bwd-9-24-65-without_initial_state_dlast_state_chunk_states-layout_channel_last-matrices_by_state"
    "-processors_1"
)
_ONE_CHUNK = "selective_scan_bwd-2-6-200-processors_1"
_ONE_CHUNK_MANY = "selective_scan_bwd-3-4-100-d_state_20-dtype_float32-processors_1"
_FALLING = (
    "families/test_falling_borders.py::test_a_call_with_borders_that_fall_ends"
    "[unit-emulated-3-256+512+1-d_state_33-groups_3-dtype_float32-5]"
)

MUTANTS = (
    Mutant(
        "The gradient of u leaves out D.",
        "selective_scan/scan_bwd_tokens.cuh",
        "D * gy.to_float(j)",
        "0.0f * gy.to_float(j)",
        (SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "The gradient of the decay leaves out the first token's state.",
        "selective_scan/scan_bwd_states.cuh",
        "if (t > 0) e = fmaf(e, decay[k][t], pull[k][t - 1]);",
        "if (t > 1) e = fmaf(e, decay[k][t], pull[k][t - 1]);",
        (SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "The slope of the softplus is 1.",
        "selective_scan/scan_bwd_tokens.cuh",
        "(p.delta_softplus ? sigmoid : 1.0f)",
        "1.0f",
        (SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "The states before chunks are found with the decay of the chunk before.",
        "selective_scan/selective_scan_bwd_states.cu",
        "for (int t = 0; t < kTokens; ++t) lane_steps += dt[t];",
        "for (int t = 1; t < kTokens; ++t) lane_steps += dt[t];",
        (_SCAN_BWD,),
    ),
    Mutant(
        "The states behind a chunk leave out its last warp.",
        "selective_scan/selective_scan_bwd_states.cu",
        "for (int w = 0; w < Shape::kWarps; ++w) {",
        "for (int w = 0; w < Shape::kWarps - 1; ++w) {",
        (_SCAN_BWD,),
    ),
    Mutant(
        "What lanes make of a state is put together before all have put it.",
        "selective_scan/selective_scan_bwd_states.cu",
        "        sync_warp();\n        float whole[2]",
        "        float whole[2]",
        (_SCAN_BWD,),
    ),
    Mutant(
        "What warps make of a state is put together before all have put it.",
        "selective_scan/selective_scan_bwd_states.cu",
        "        __syncthreads();\n        if (is_turn) {",
        "        if (is_turn) {",
        (_SCAN_BWD,),
    ),
    Mutant(
        "Sweeps leave the states before chunks of the first batch entry.",
        "selective_scan/selective_scan_bwd_sweeps.cu",
        "static_cast<index_t>(batch) * p.chunks + token",
        "token",
        (_SCAN_BWD_SWEPT,),
    ),
    Mutant(
        "Sweeps leave no states before the last chunk.",
        "selective_scan/selective_scan_bwd_sweeps.cu",
        "    store_states(last);\n",
        "",
        (_SCAN_BWD_SWEPT,),
    ),
    Mutant(
        "Sweeps to the states before chunks begin with zeros.",
        "selective_scan/selective_scan_bwd_sweeps.cu",
        "if (p.initial_state == nullptr) return 0.0f;",
        "if (p.initial_state != nullptr) return 0.0f;",
        (_SCAN_BWD_SWEPT,),
    ),
    Mutant(
        "The gradients of B and C leave out the last split.",
        "selective_scan/selective_scan_bwd_sums.cu",
        "end = min(begin + each, splits);",
        "end = min(begin + each, splits - 1);",
        (SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "The numbers of parameters are counted from the first block on.",
        "selective_scan/selective_scan_bwd_sums.cu",
        "divide(blockIdx.x - params.matrix_blocks, params.kind_blocks)",
        "divide(blockIdx.x, params.kind_blocks)",
        (_ONE_CHUNK,),
    ),
    Mutant(
        "The first blocks of rows of one chunk draw numbers from a counter that nothing has set.",
        "selective_scan/scan_bwd.cuh",
        "return p.chunks > 1 ? next_number(p.scratch + kBwdCounter) : blockIdx.x;",
        "return next_number(p.scratch + kBwdCounter);",
        (_ONE_CHUNK,),
    ),
    Mutant(
        "B and C of a chunk go on behind the row.",
        "selective_scan/scan_bwd.cuh",
        "max(0, min(tokens.live - token, kVec)) : 0;",
        "kVec : 0;",
        (_ONE_CHUNK,),
    ),
    Mutant(
        "B and C of the next states are not waited for.",
        "selective_scan/selective_scan_bwd_overlapped.cu",
        "            wait_for_copies();\n            __syncthreads();",
        "            __syncthreads();",
        (_ONE_CHUNK_MANY,),
    ),
    Mutant(
        "The gradients of parameters leave out the last chunk.",
        "selective_scan/selective_scan_bwd_sums.cu",
        "p.batch * p.chunks);",
        "p.batch * p.chunks - 1);",
        (SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "Counters and the places that blocks wait for keep what was in memory.",
        "selective_scan/selective_scan_bwd_start.cu",
        "if (at >= p.filled + p.zeros) return;",
        "if (at < p.filled) return;",
        (_SCAN_BWD,),
    ),
    Mutant(
        "Blocks are not numbered from 0.",
        "selective_scan/selective_scan_bwd_start.cu",
        "at < p.filled ? kUnset : 0;",
        "0u;",
        (_SCAN_BWD,),
    ),
    Mutant(
        "Chunks that no sequence needs have sums of what was in memory.",
        "selective_scan/selective_scan_bwd_start.cu",
        "if (at >= p.filled + p.zeros) return;",
        "if (at >= p.filled) return;",
        (_PACKED_MANY,),
    ),
    Mutant(
        "A state goes on to the next sequence in the same chunk.",
        "selective_scan/scan_bwd_states.cuh",
        "lane.cuts >> t & 1 ? 0.0f : through",
        "through",
        (_PACKED,),
    ),
    Mutant(
        "Where borders fall, a chunk waits for one that is none.",
        "selective_scan/scan_bwd.cuh",
        "                is_found |= number == chunk;\n",
        "",
        (_FALLING,),
    ),
    Mutant(
        "A state goes on to the next sequence behind a lane's tokens.",
        "selective_scan/scan_bwd_states.cuh",
        "lane.cuts != 0 ? 0.0f : exp2_approx",
        "exp2_approx",
        (_PACKED,),
    ),
    Mutant(
        "The state before a chunk is that of another sequence.",
        "selective_scan/selective_scan_bwd_states.cu",
        "if (kSharesChunks) tokens.keep_last_sequence(p);",
        "",
        (_PACKED_APART,),
    ),
    Mutant(
        "The state before a chunk has tokens of an earlier sequence.",
        "selective_scan/scan_bwd.cuh",
        "front = max(front, token);",
        "",
        (_PACKED_APART,),
    ),
    Mutant(
        "The first sequence of a chunk that begins there is left out.",
        "selective_scan/scan_bwd.cuh",
        "if (first_token(p, middle) < tokens.begin) {",
        "if (first_token(p, middle) <= tokens.begin) {",
        (_PACKED_EVEN,),
    ),
    Mutant(
        "Padding in front of the first sequence is taken for its tokens.",
        "selective_scan/scan_bwd.cuh",
        "front = uniform(min(max(first_token(p, 0) - begin, 0), stored));",
        "front = 0;",
        (_PACKED,),
    ),
    Mutant(
        "Padding that comes with a token of the last sequence is taken for one.",
        "selective_scan/scan_bwd_tokens.cuh",
        "shared.front == 0 && live % 2 == 0",
        "shared.front == 0",
        (_PACKED_EVEN,),
    ),
    Mutant(
        "The state before a chunk leaves out the initial state of its sequence.",
        "selective_scan/selective_scan_bwd_states.cu",
        "tokens.sequence >= 0",
        "tokens.sequence < 0",
        (_PACKED_STATES,),
    ),
    Mutant(
        "Initial states are used before their copies are waited for.",
        "selective_scan/selective_scan_bwd.cu",
        "if (kHasStates) wait_for_copies();",
        "",
        (_PACKED_STATES,),
    ),
    Mutant(
        "Initial states do not decay.",
        "selective_scan/scan_bwd_states.cuh",
        "start[t] *= through;",
        "start[t] *= 1.0f;",
        (_PACKED_STATES,),
    ),
    Mutant(
        "The gradient of a last state reaches the token before the last.",
        "selective_scan/scan_bwd_ends.cuh",
        "ended[at].put(last,",
        "ended[at].put(max(last - 1, 0),",
        (_PACKED_STATES_EVEN,),
    ),
    Mutant(
        "A sequence that ends in a later chunk than it begins has no gradient of its last state.",
        "selective_scan/scan_bwd_ends.cuh",
        "max(low - 1, 0) + thread",
        "low + thread",
        (_PACKED_STATES,),
    ),
    Mutant(
        "The gradient of an empty sequence's state is zero.",
        "selective_scan/selective_scan_bwd_start.cu",
        "if (p.dlast_state != nullptr) gradient =",
        "if (p.dlast_state == nullptr) gradient =",
        (_PACKED_STATES,),
    ),
    Mutant(
        "Links are taken before all lanes have put theirs.",
        "selective_scan/scan_bwd_states.cuh",
        "        sync_warp();\n        const int k = lane / kShares",
        "        const int k = lane / kShares",
        (SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "What comes before links is read before all lanes have put it.",
        "selective_scan/scan_bwd_states.cuh",
        "        sync_warp();\n    }\n\n    // The same of one",
        "    }\n\n    // The same of one",
        (SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "The next channel's tokens are read before their copies are waited for.",
        "selective_scan/selective_scan_bwd.cu",
        "if (Traits::kIsAhead) wait_for_copies();",
        "",
        (_PACKED_EVEN,),
    ),
    Mutant(
        "Tokens of the channel behind the next one are read before their copies are waited for.",
        "selective_scan/selective_scan_bwd_overlapped.cu",
        "        wait_for_copies();\n        __syncthreads();\n        auto* const done",
        "        __syncthreads();\n        auto* const done",
        (_SCAN_BWD,),
    ),
    Mutant(
        "Words of two tokens are taken to begin with a token of an even number.",
        "selective_scan/scan_bwd_tokens.cuh",
        "is_odd ? 0x5432u : 0x3210u",
        "0x3210u",
        (_WORDS,),
    ),
    Mutant(
        "The last token of a whole chunk is not fetched where words begin with the token in front.",
        "selective_scan/scan_bwd_tokens.cuh",
        "if (kHasHalves && first == 0) copy(kChunk);",
        "",
        (_WORDS_OF_ENTRIES,),
    ),
    Mutant(
        "Words behind a row's last token are fetched.",
        "selective_scan/scan_bwd_tokens.cuh",
        "min(end - (first + part - odd), kTokens)",
        "min(end + 1 - (first + part - odd), kTokens)",
        (_WORDS,),
    ),
    Mutant(
        "Warps do not wait for each other between a channel and the next one.",
        "selective_scan/selective_scan_bwd_overlapped.cu",
        "        wait_for_copies();\n        __syncthreads();\n        auto* const done",
        "        wait_for_copies();\n        auto* const done",
        (_SCAN_BWD,),
    ),
    Mutant(
        "The tokens of the channel behind the next one take the place of the next one's.",
        "selective_scan/selective_scan_bwd_overlapped.cu",
        "if (steps.has(after_next)) rows.template fetch<false>(fetched_from, *turn);",
        "if (steps.has(after_next)) rows.template fetch<false>(fetched_from, *other);",
        (_SCAN_BWD,),
    ),
    Mutant(
        "The last channel's tokens are not finished.",
        "selective_scan/selective_scan_bwd_overlapped.cu",
        "    }\n    other->take(ends, own_token);\n    rows.finish(*other, ends, before.channel,",
        "    }\n    other->take(ends, own_token);\n    rows.finish(*other, ends, -1,",
        (_SCAN_BWD,),
    ),
    Mutant(
        "A channel is finished with the D of the one behind it.",
        "selective_scan/selective_scan_bwd_overlapped.cu",
        "        rows.finish(*other, ends, before.channel, D,",
        "        rows.finish(*other, ends, before.channel, from_lane(number, Numbers::kDLane),",
        (_SCAN_BWD,),
    ),
    Mutant(
        "The sums over channels of many states are those of the last group.",
        "selective_scan/scan_bwd_states.cuh",
        "goes_on && n < p.d_state;",
        "false;",
        (_SCAN_BWD_GROUPS,),
    ),
    Mutant(
        "Sums over the states that a channel was walked for before are left out.",
        "selective_scan/scan_bwd_tokens.cuh",
        "is_first ? Vec<float, 2>::zero() : load_pair(at);",
        "Vec<float, 2>::zero();",
        (_SCAN_BWD_MANY,),
    ),
    Mutant(
        "Channels behind the first group are walked with B and C of the last states.",
        "selective_scan/selective_scan_bwd_overlapped.cu",
        "take_matrices(now.first_state);",
        "if (now.first_state > 0) take_matrices(now.first_state);",
        (_SCAN_BWD_GROUPS,),
    ),
    Mutant(
        "A group is walked for the next states from the block's first channel on.",
        "selective_scan/scan_bwd.cuh",
        "next.channel = now.channel / kGroup * kGroup;",
        "next.channel = 0;",
        (_SCAN_BWD_GROUPS,),
    ),
    Mutant(
        "Channels are turned before their copies are waited for.",
        "selective_scan/scan_bwd_tokens.cuh",
        "        wait_for_copies();\n        group->turn(thread);",
        "        group->turn(thread);",
        (_SCAN_BWD_CHANNELS,),
    ),
    Mutant(
        "Channels are turned to the states before chunks before their copies are waited for.",
        "selective_scan/selective_scan_bwd_states.cu",
        "                wait_for_copies();\n",
        "",
        (_SCAN_BWD_CHANNELS_MANY,),
    ),
    Mutant(
        "The states before chunks are all found with B of the first ones.",
        "selective_scan/selective_scan_bwd_states.cu",
        "take_matrix(now.first_state);",
        "take_matrix(0);",
        (_SCAN_BWD_CHANNELS_MANY,),
    ),
    Mutant(
        "The results of a token take the place of its neighbour's.",
        "common/vec.cuh",
        "row == 0 ? 0x5410u : 0x7632u",
        "0x5410u",
        (_SCAN_BWD_CHANNELS,),
    ),
    Mutant(
        "Blocks whose channels take turns begin a share of channels apart.",
        "selective_scan/scan_bwd.cuh",
        "split * (kTurn > 0 ? kTurn : p.split_channels)",
        "split * p.split_channels",
        (_SCAN_BWD_TURNS,),
    ),
    Mutant(
        "A block's channels do not leave out those of other blocks.",
        "selective_scan/scan_bwd.cuh",
        "i + i / max(kTurn, 1) * others",
        "i",
        (_SCAN_BWD_TURNS,),
    ),
    Mutant(
        "Turned B and C of a token are those of the one before.",
        "selective_scan/scan_bwd.cuh",
        "load<kVec>(from + n + (token + j) * stride[3])",
        "load<kVec>(from + n + token * stride[3])",
        (_SCAN_BWD_CHANNELS,),
    ),
    Mutant(
        "A channel in a group has delta_bias of the one before.",
        "selective_scan/scan_bwd_numbers.cuh",
        "is_bias ? after_next.channel",
        "is_bias ? next.channel",
        (_SCAN_BWD_CHANNELS,),
    ),
    Mutant(
        "Vectors of B and C of many states are those of the first ones.",
        "selective_scan/scan_bwd.cuh",
        "values = load<kVec>(from + n * stride[2] + token);",
        "values = load<kVec>(matrix + n * stride[2] + tokens.begin + token);",
        (_SCAN_BWD_MANY_UNGATED,),
    ),
    Mutant(
        "Vectors of B and C of many states that arrive later are those of the first ones.",
        "selective_scan/scan_bwd.cuh",
        "count > 0 ? from + n * stride[2] + token : from,",
        "count > 0 ? matrix + n * stride[2] + tokens.begin + token : from,",
        (_SCAN_BWD_MANY,),
    ),
    Mutant(
        "The last one of short rows ends in front of the first one.",
        "selective_scan/selective_scan_bwd_start.cu",
        "starts[number] = number * p.row_tokens;",
        "starts[number] = number % p.sequences * p.row_tokens;",
        (_ROWS_AS_PACKED,),
    ),
    Mutant(
        "The sums of many blocks leave out half of the shares.",
        "selective_scan/selective_scan_bwd_sums.cu",
        "for (int i = 1; i < kShares; ++i)",
        "for (int i = 1; i < kShares / 2; ++i)",
        (_MANY_SPLITS,),
    ),
    Mutant(
        "Short rows begin where the ones behind them do.",
        "selective_scan/selective_scan_bwd_start.cu",
        "starts[number] = number * p.row_tokens;",
        "starts[number] = (number + 1) * p.row_tokens;",
        (_ROWS_AS_PACKED,),
    ),
)
