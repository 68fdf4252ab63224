"""Bugs in gradients of convolutions."""

from __future__ import annotations

from tests.mutants import Mutant

_BWD = "causal_conv1d_bwd-1-5-1029"
_BWD_BULK = "causal_conv1d_bwd-2-3-1640-width_5"
_BWD_PARTS = "causal_conv1d_bwd-1-1-32000-width_2-dtype_float16-bias_float32-layout_sliced_aligned"
_BWD_PARTS_FEW = "causal_conv1d_bwd-1-1-3152"
_BWD_PARTS_EDGES = "causal_conv1d_bwd-2-3-1640"
_BWD_PARTS_WHOLE = "causal_conv1d_bwd-2-1-4096-width_3-dtype_float32-weight_dtype_float16"
_BWD_ALL = "causal_conv1d_bwd-3-8-13-width_9-dtype_float32-activation_None-seq_idx-initial-final"
_BWD_SUM = "causal_conv1d_bwd-2-3-1029-width_6-dtype_float16-layout_sliced_alike-initial-final"
_BWD_LAST = "causal_conv1d_bwd-2-130-21-dtype_float32-layout_channel_last-seq_idx-initial-final"
_BWD_LAST_PARTS = "causal_conv1d_bwd-1-130-260-width_3-dtype_float32-layout_channel_last-seq_idx-initial-final"
_BWD_PAIRS = "causal_conv1d_bwd-3-128-88-layout_channel_last"
_BWD_PAIRS_SLICED = "causal_conv1d_bwd-5-128-24-width_2-dtype_float32-layout_last_sliced_seq-activation_None"
_BWD_ROUNDS = "causal_conv1d_bwd-2-256-392-layout_channel_last-processors_1"
_BWD_ROUNDS_PARTS = (
    "causal_conv1d_bwd-5-64-472-width_2-dtype_float32-weight_dtype_float16-layout_channel_last-processors_1"
)
_BWD_COLUMNS = "causal_conv1d_bwd-2-64-256-layout_channel_last-processors_2"
_BWD_FEW = "causal_conv1d_bwd-1-16-2700-layout_channel_last-processors_1"
_BWD_FEW_ROWS = "causal_conv1d_bwd-3-32-501-width_3-dtype_float16-layout_last_sliced_seq-processors_1"
_BWD_VARLEN_ROWS = "causal_conv1d_varlen_bwd-3-513+0+260+1-width_6-dtype_float16-layout_tokens_aligned-pool_columns"
_BWD_VARLEN = "causal_conv1d_varlen_bwd-6-2+1+0+35-width_5-dtype_float16-bias_None-pool_columns-slots_odd"
_BWD_WALK = "causal_conv1d_varlen_bwd-136-150+0+2x1+113+38x2+off6-slots_odd"
_BWD_WALK_ROWS = "causal_conv1d_varlen_bwd-40-off3+70+1+2+3+0+63+65+off2+20x1+0+19+0-layout_tokens-slots_odd"
_BWD_WALK_SINGLES = "causal_conv1d_varlen_bwd-34-9+10+11+12+13+0+14+15+off1+17+18+19+3+21+2x1+20+15x1+16-layout_tokens"
_BWD_WALK_EMPTY = "causal_conv1d_varlen_bwd-136-2x0+19+2+0+3x1+50+0-slots_odd-index_int64"
_BWD_EMPTY = "causal_conv1d_varlen_bwd-32-2x0+5+0+11+0-width_3-weight_dtype_float16-layout_tokens-initial_all"

MUTANTS = (
    Mutant(
        "Sums of a block's warps are read before all are there.",
        "causal_conv1d/conv_bwd_row.cuh",
        """    __syncthreads();
    if (threadIdx.x / kWarpSize % channel_warps != 0""",
        "    if (threadIdx.x / kWarpSize % channel_warps != 0",
        (_BWD,),
    ),
    Mutant(
        "The highest lanes take no gradients of the group behind.",
        "causal_conv1d/conv_bwd_row.cuh",
        "const bool is_offered_behind = lanes.number < kDistance;",
        "const bool is_offered_behind = false;",
        (_BWD,),
    ),
    Mutant(
        "The gradient of the initial state leaves out the last tap.",
        "causal_conv1d/conv_bwd_row.cuh",
        "for (int k = kHalo - i; k < kWidth; ++k) {",
        "for (int k = kHalo - i; k < kHalo; ++k) {",
        (_BWD_SUM,),
    ),
    Mutant(
        "The gradient of the final state goes to the token before.",
        "causal_conv1d/conv_bwd.cuh",
        "const int column = token - end + (kWidth - 1);",
        "const int column = token - end + kWidth;",
        (_BWD_ALL,),
    ),
    Mutant(
        "The gradient of the bias misses a token.",
        "causal_conv1d/conv_bwd.cuh",
        "        bias += gradient;",
        "        bias = gradient;",
        (_BWD,),
    ),
    Mutant(
        "The last tokens of a walk have nothing of the gradients of the next one's.",
        "causal_conv1d/causal_conv1d_channellast_bwd.cu",
        "if (kHalo > 0 && ends_inside) {",
        "if (kHalo > 0 && looks_ahead) {",
        (_BWD_LAST,),
    ),
    Mutant(
        "The last walk of a block looks for the next one's gradients where there are none.",
        "causal_conv1d/causal_conv1d_channellast_bwd.cu",
        "looks_ahead ? nullptr : firsts + params.block_vecs.divisor",
        "firsts + params.block_vecs.divisor",
        (_BWD_LAST_PARTS,),
    ),
    Mutant(
        "The gradients of the next walk are read before they are there.",
        "causal_conv1d/causal_conv1d_channellast_bwd.cu",
        """    wait_for_copies();
    // The next walk's first gradients are there.
    __syncthreads();""",
        "    wait_for_copies();",
        (_BWD_LAST_PARTS,),
    ),
    Mutant(
        "Pieces of pairs are read before their copies are waited for.",
        "causal_conv1d/causal_conv1d_channelpairs_bwd.cu",
        "wait_for_copy_groups<kStages - 2>();",
        "wait_for_copy_groups<kStages - 1>();",
        (_BWD_PAIRS,),
    ),
    Mutant(
        "What the neighbour brings of a pair is read before it is there.",
        "causal_conv1d/causal_conv1d_channelpairs_bwd.cu",
        "            sync_warp();\n",
        "",
        (_BWD_PAIRS,),
    ),
    Mutant(
        "A walk of pairs writes the gradients of the inputs before it.",
        "causal_conv1d/causal_conv1d_channelpairs_bwd.cu",
        "if (i >= kHalo || !begins) put(results[i]);",
        "put(results[i]);",
        (_BWD_PAIRS,),
    ),
    Mutant(
        "The gradients behind the last walk of a block of pairs are those of the inputs a token further.",
        "causal_conv1d/causal_conv1d_channelpairs_bwd.cu",
        "ahead[i] = vector_at(x_end, i - kHalo, params.x_bytes);",
        "ahead[i] = vector_at(x_end, i - kHalo + 1, params.x_bytes);",
        (_BWD_PAIRS,),
    ),
    Mutant(
        "The gradients behind the last walk of a block of pairs are left where the walk's own ones are.",
        "causal_conv1d/causal_conv1d_channelpairs_bwd.cu",
        "walk.look_ahead(ahead, dout_ahead, firsts + params.block_vecs.divisor);",
        "walk.look_ahead(ahead, dout_ahead, firsts);",
        (_BWD_PAIRS,),
    ),
    Mutant(
        "The gradients of the next walk of pairs are read before they are there.",
        "causal_conv1d/causal_conv1d_channelpairs_bwd.cu",
        "        if (step == 1) __syncthreads();\n",
        "",
        (_BWD_PAIRS,),
    ),
    Mutant(
        "All walks of a block of pairs leave their sums in one place.",
        "causal_conv1d/causal_conv1d_channelpairs_bwd.cu",
        "params.block_walks + walk_vec.quotient;\n        float*",
        "params.block_walks;\n        float*",
        (_BWD_PAIRS,),
    ),
    Mutant(
        "The next row of pairs is taken to begin where the last one ends.",
        "causal_conv1d/causal_conv1d_channelpairs_bwd.cu",
        "        x_at += params.x_bytes[3];\n",
        "",
        (_BWD_PAIRS_SLICED,),
    ),
    Mutant(
        "Pieces of columns are read before their copies are waited for.",
        "causal_conv1d/causal_conv1d_channelcolumns_bwd.cu",
        "wait_for_copy_groups<kStages - 2>();",
        "wait_for_copy_groups<kStages - 1>();",
        (_BWD_COLUMNS,),
    ),
    Mutant(
        "What other lanes bring of a piece of columns is read before it is there.",
        "causal_conv1d/causal_conv1d_channelcolumns_bwd.cu",
        "            sync_warp();\n",
        "",
        (_BWD_COLUMNS,),
    ),
    Mutant(
        "The sums and the first gradients of columns are read before they are there.",
        "causal_conv1d/causal_conv1d_channelcolumns_bwd.cu",
        "    __syncthreads();\n",
        "",
        (_BWD_COLUMNS,),
    ),
    Mutant(
        "Every walk of columns writes the gradients of the inputs before it.",
        "causal_conv1d/causal_conv1d_channelcolumns_bwd.cu",
        "if (stage == 0 && begins) {",
        "if (stage == 1 && begins) {",
        (_BWD_COLUMNS,),
    ),
    Mutant(
        "A row of columns goes on with the inputs of the row before.",
        "causal_conv1d/causal_conv1d_channelcolumns_bwd.cu",
        "starts_row = row_walk == 0,",
        "starts_row = walk == 0,",
        (_BWD_COLUMNS,),
    ),
    Mutant(
        "The gradients behind a row of columns are those of the next row.",
        "causal_conv1d/causal_conv1d_channelcolumns_bwd.cu",
        "ends_row = row_walk + 1 == params.row_walks.divisor;",
        "ends_row = walk + 1 == kThreads / words;",
        (_BWD_COLUMNS,),
    ),
    Mutant(
        "A round is read before all threads have brought it.",
        "causal_conv1d/causal_conv1d_channelrounds_bwd.cu",
        "        __syncthreads();\n        if (round",
        "        if (round",
        (_BWD_ROUNDS,),
    ),
    Mutant(
        "The gradients of two rounds and a piece go to places for two rounds.",
        "causal_conv1d/causal_conv1d_channelrounds_bwd.cu",
        "place -= 2 * round_pieces + 1;",
        "place -= 2 * round_pieces;",
        (_BWD_ROUNDS,),
    ),
    Mutant(
        "The inputs before a row that begins in a round are those of the row before.",
        "causal_conv1d/causal_conv1d_channelrounds_bwd.cu",
        "begins_row ? Vector::zero() : of_before[i * apart]",
        "of_before[i * apart]",
        (_BWD_ROUNDS,),
    ),
    Mutant(
        "A row that ends in a round goes on in the next one.",
        "causal_conv1d/causal_conv1d_channelrounds_bwd.cu",
        "(begins_row || done == params.pieces)",
        "(done == params.pieces)",
        (_BWD_ROUNDS,),
    ),
    Mutant(
        "The piece behind a part counts in its sums.",
        "causal_conv1d/causal_conv1d_channelrounds_bwd.cu",
        "of_piece, piece < end)",
        "of_piece, true)",
        (_BWD_ROUNDS_PARTS,),
    ),
    Mutant(
        "The piece behind a part is taken to have no gradients.",
        "causal_conv1d/causal_conv1d_channelrounds_bwd.cu",
        "min(end + 1, params.pieces)",
        "end",
        (_BWD_ROUNDS_PARTS,),
    ),
    Mutant(
        "The inputs before a part are taken for zeros.",
        "causal_conv1d/causal_conv1d_channelrounds_bwd.cu",
        "first > 0 ? load",
        "first > params.pieces ? load",
        (_BWD_ROUNDS_PARTS,),
    ),
    Mutant(
        "A tile of few channels takes the inputs before it for zeros.",
        "causal_conv1d/causal_conv1d_fewchannels_bwd.cu",
        "token > 0 ? kHalo : 0",
        "0",
        (_BWD_FEW,),
    ),
    Mutant(
        "The last tokens of a tile of few channels are counted twice.",
        "causal_conv1d/causal_conv1d_fewchannels_bwd.cu",
        "token < kTokens - kHalo || strip + 1 < Traits::kStrips",
        "true",
        (_BWD_FEW,),
    ),
    Mutant(
        "What lies behind a row of few channels is not cleared.",
        "causal_conv1d/causal_conv1d_fewchannels_bwd.cu",
        "if (before < kHalo || count < kTileTokens) {",
        "if (before < kHalo) {",
        (_BWD_FEW_ROWS,),
    ),
    Mutant(
        "The next strip of few channels is looked for one lane above.",
        "causal_conv1d/causal_conv1d_fewchannels_bwd.cu",
        "of_lane_above<kVecs>",
        "of_lane_above<1>",
        (_BWD_FEW,),
    ),
    Mutant(
        "Results of few channels are sent before all lanes have written them.",
        "common/warp_copies.cuh",
        """        sync_warp();
#pragma unroll 1
        for (int i = lane_id(); i < count; i += kWarpSize) store(""",
        """#pragma unroll 1
        for (int i = lane_id(); i < count; i += kWarpSize) store(""",
        (_BWD_FEW,),
    ),
    Mutant(
        "Rows of few channels are read without the gap between them.",
        "causal_conv1d/causal_conv1d_fewchannels_bwd.cu",
        "at(params.x, params.row_stride[0])",
        "at(params.x, static_cast<index_t>(params.seqlen) * params.dim)",
        (_BWD_FEW_ROWS,),
    ),
    Mutant(
        "The gradient of a packed sequence's initial state leaves out the current tap.",
        "causal_conv1d/causal_conv1d_bwd_states.cu",
        "for (int i = 0; i <= j; ++i)",
        "for (int i = 0; i < j; ++i)",
        (_BWD_VARLEN_ROWS,),
    ),
    Mutant(
        "Groups of a row's gradients are read before their copies are waited for.",
        "causal_conv1d/causal_conv1d_bwd.cu",
        "wait_for_copy_groups<kStages - 3>();",
        "wait_for_copy_groups<kStages - 1>();",
        (_BWD,),
    ),
    Mutant(
        "Units of a row's gradients are read before their copies are waited for.",
        "common/warp_copies.cuh",
        "wait_for_copy_groups<kStages - 1>();",
        "wait_for_copy_groups<kStages>();",
        (_BWD_BULK,),
    ),
    Mutant(
        "A row's last unit computes with what its stage held before.",
        "causal_conv1d/causal_conv1d_bulk_bwd.cu",
        "x_slots[i] = dout_slots[i] = Vector::zero();",
        "(void)dout_slots;",
        (_BWD_BULK,),
    ),
    Mutant(
        "The first tokens of a unit do not see those before it.",
        "causal_conv1d/causal_conv1d_bulk_bwd.cu",
        "const int before = first > 0 ? Traits::kHaloVecs : 0;",
        "const int before = 0;",
        (_BWD_BULK,),
    ),
    Mutant(
        "The first tokens of a part do not see those before it.",
        "causal_conv1d/causal_conv1d_rowparts_bwd.cu",
        "lane == kWarpSize - 1 && first > 0",
        "lane == kWarpSize - 1 && first < 0",
        (_BWD_PARTS_WHOLE,),
    ),
    Mutant(
        "The first lane of a row's last vectors sees nothing where they are fewer than a warp's.",
        "causal_conv1d/causal_conv1d_rowparts_bwd.cu",
        "(!kEdges || first < params.row_vecs)",
        "(!kEdges || left >= 0)",
        (_BWD_PARTS_FEW,),
    ),
    Mutant(
        "The last tokens of a part take no gradients behind it.",
        "causal_conv1d/causal_conv1d_rowparts_bwd.cu",
        "first + kGroups * kWarpSize < params.row_vecs;",
        "first + kGroups * kWarpSize < 0;",
        (_BWD_PARTS,),
    ),
    Mutant(
        "Gradients of the next warp are read before they are there.",
        "causal_conv1d/causal_conv1d_rowparts_bwd.cu",
        """    __syncthreads();
#pragma unroll
    for (int i = 0; i < kHalo; ++i) behind[i]""",
        """#pragma unroll
    for (int i = 0; i < kHalo; ++i) behind[i]""",
        (_BWD_PARTS_WHOLE,),
    ),
    Mutant(
        "Sums of a part's warps are read before all are there.",
        "causal_conv1d/causal_conv1d_rowparts_bwd.cu",
        """    __syncthreads();
    if (number > 0""",
        "    if (number > 0",
        (_BWD_PARTS_WHOLE,),
    ),
    Mutant(
        "Lanes behind a row add what its last vector has once more.",
        "causal_conv1d/causal_conv1d_rowparts_bwd.cu",
        "of_output[i] = select(is_there(i), of_output[i], Vector::zero());",
        "(void)of_output;",
        (_BWD_PARTS_EDGES,),
    ),
    Mutant(
        "Tokens of channel-last gradients are read before their copies are waited for.",
        "causal_conv1d/causal_conv1d_channellast_bwd.cu",
        "wait_for_copy_groups<kStages - 2>();",
        "wait_for_copy_groups<kStages - 1>();",
        (_BWD_LAST,),
    ),
    Mutant(
        "All blocks add up the first block's sums.",
        "causal_conv1d/causal_conv1d_bwd_sum.cu",
        "(p, p, blockIdx.x)",
        "(p, p, 0)",
        (_BWD_LAST_PARTS,),
    ),
    Mutant(
        "Sums of blocks are added up without a wait for the kernel that leaves them.",
        "causal_conv1d/conv_bwd_sum.cuh",
        "    wait_for_leader();\n",
        "",
        (_BWD_LAST_PARTS,),
    ),
    Mutant(
        "Sums of a block are added up before they are there.",
        "causal_conv1d/conv_bwd_sum.cuh",
        """, static_cast<int>(across));
    __syncthreads();""",
        ", static_cast<int>(across));",
        (_BWD_SUM,),
    ),
    Mutant(
        "The first inputs that a packed sequence sees are zeros.",
        "causal_conv1d/conv_bwd_row_walk.cuh",
        "before[k][0] = kStates ? pasts.get(place + k) : 0.0f;",
        "before[k][0] = 0.0f;",
        (_BWD_WALK_ROWS,),
    ),
    Mutant(
        "The state that a packed sequence starts from is that of the one behind it.",
        "causal_conv1d/conv_bwd_sequences.cuh",
        """            get_past(before);
            run = {run.number + 1, token, next_end, next_slot};
            if constexpr (kStates) begin_states(begin);
            look_ahead();""",
        """            run = {run.number + 1, token, next_end, next_slot};
            if constexpr (kStates) begin_states(begin);
            look_ahead();
            get_past(before);""",
        (_BWD_WALK,),
    ),
    Mutant(
        "A state is loaded into what another sequence has left, which starts from zeros.",
        "causal_conv1d/conv_bwd_sequences.cuh",
        """        past.clear();
        if (!has_state) return;""",
        "        if (!has_state) return;",
        (_BWD_WALK,),
    ),
    Mutant(
        "The gradient of a state keeps what the tokens of the sequence before have.",
        "causal_conv1d/conv_bwd_sequences.cuh",
        """                x[k][c] = before[k][c];
                dx[k][c] = 0.0f;""",
        "                x[k][c] = before[k][c];",
        (_BWD_WALK_ROWS,),
    ),
    Mutant(
        "Padding may spoil the sums.",
        "causal_conv1d/conv_bwd_row_walk.cuh",
        """            if (run_source == kPadding) {
#pragma unroll 1
                for (; next < end; ++next) put(next, 0.0f);
            } else if (end""",
        "            if (end",
        (_BWD_WALK_ROWS,),
    ),
    Mutant(
        "Padding between channels' sequences may spoil the sums.",
        "causal_conv1d/causal_conv1d_channellast_varlen_bwd.cu",
        "            if (walk.is_padding()) {",
        "            if (walk.is_padding() && p.total < 0) {",
        (_BWD_WALK,),
    ),
    Mutant(
        "Tokens behind a walk count twice in the parameters' gradients.",
        "causal_conv1d/conv_bwd_sequences.cuh",
        "add_single<false>(token, own, dout, put);",
        "add_single<true>(token, own, dout, put);",
        (_BWD_WALK,),
    ),
    Mutant(
        "A walk stores gradients of states that belong to the one before.",
        "causal_conv1d/conv_bwd_row_walk.cuh",
        "            if (passed > 0) {",
        "            if (passed < 0) {",
        (_BWD_WALK_ROWS,),
    ),
    Mutant(
        "Empty sequences leave the gradients of their initial states unwritten.",
        "causal_conv1d/conv_bwd_row_walk.cuh",
        "for (; empty != 0; empty &= empty - 1) store_empty(lowest(empty));",
        "(void)empty;",
        (_BWD_EMPTY,),
    ),
    Mutant(
        "Sequences without tokens behind the last channel walk are left out.",
        "causal_conv1d/causal_conv1d_channellast_varlen_bwd.cu",
        "has_walk && last == p.total ? static_cast<int>(end + 1) * kTokens : last",
        "last",
        (_BWD_WALK_EMPTY,),
    ),
    Mutant(
        "The states of the sequences before leave with those behind.",
        "causal_conv1d/conv_bwd_row_walk.cuh",
        "            if (lane >= rows_end) fill_rows(lane);",
        "            if (lane > rows_end) fill_rows(lane);",
        (_BWD_WALK_ROWS,),
    ),
    Mutant(
        "Rows of states are replaced before they have left.",
        "causal_conv1d/conv_bwd_row_walk.cuh",
        """    __device__ __forceinline__ void fill_rows(int lane) {
        store_rows();""",
        "    __device__ __forceinline__ void fill_rows(int lane) {",
        (_BWD_WALK_ROWS,),
    ),
    Mutant(
        "A chunk is walked before its copies are waited for.",
        "causal_conv1d/causal_conv1d_shortrows_bwd.cu",
        "            wait_for_copy_groups<kStages - 2>();\n",
        "",
        (_BWD_WALK_ROWS,),
    ),
    Mutant(
        "A chunk leaves before other lanes have completed it.",
        "causal_conv1d/causal_conv1d_shortrows_bwd.cu",
        "            sync_warp();\n            if (chunk > 0) chunks.flush(chunk - 1);",
        "            if (chunk > 0) chunks.flush(chunk - 1);",
        (_BWD_WALK_ROWS,),
    ),
    Mutant(
        "The gradients of the last tokens before a plain vector go nowhere.",
        "causal_conv1d/conv_bwd_row_walk.cuh",
        "put_all<0, kVec - kHalo, kHalo>(chunks.at(token - kVec) + Chunks::kDoutAt, dx);",
        "(void)token;",
        (_BWD_WALK_ROWS,),
    ),
    Mutant(
        "Sequences of one token all start from the state of the first.",
        "causal_conv1d/conv_bwd_row_walk.cuh",
        "add_single(at + i, place + i * kRowPlaces,",
        "add_single(at + i, place,",
        (_BWD_WALK_SINGLES,),
    ),
    Mutant(
        "A token that is a sequence misses the gradient of what it leaves.",
        "causal_conv1d/conv_bwd_row_walk.cuh",
        "kStates && k > 0 ? finals.get(own_place + k - 1) : 0.0f",
        "0.0f",
        (_BWD_WALK_SINGLES,),
    ),
    Mutant(
        "The last tokens of a chunk leave before they are complete.",
        "causal_conv1d/causal_conv1d_shortrows_bwd.cu",
        "if (chunk > 0) chunks.flush(chunk - 1);",
        "chunks.flush(chunk);",
        (_BWD_WALK_ROWS,),
    ),
    Mutant(
        "The first tokens of a walk overwrite the last ones of the walk before.",
        "causal_conv1d/conv_bwd_sequences.cuh",
        "return token >= run.begin; }",
        "return token >= 0; }",
        (_BWD_WALK,),
    ),
    Mutant(
        "Tokens of packed channels are read before their copies are waited for.",
        "causal_conv1d/causal_conv1d_channellast_varlen_bwd.cu",
        "wait_for_copy_groups<kStages - 2>();",
        "wait_for_copy_groups<kStages - 1>();",
        (_BWD_WALK,),
    ),
    Mutant(
        "The gradients of a packed row's next sequence go to the tokens before it.",
        "causal_conv1d/conv_bwd_row.cuh",
        "if (i + k < kVec + kHalo) g[i + k] = 0.0f;",
        "(void)k;",
        (_BWD_VARLEN_ROWS,),
    ),
    Mutant(
        "A packed row's vector sees nothing of a sequence that begins shortly before it.",
        "causal_conv1d/conv_bwd_row.cuh",
        "if (kHalo == 0 || bits == 0) return;",
        "return;",
        (_BWD_VARLEN_ROWS,),
    ),
)
