"""Bugs in the convolutions."""

from __future__ import annotations

from tests.mutants import Mutant
from tests.mutants.planted.ids import FWD

_FWD_STATES = "causal_conv1d_fn-2-3-1029-width_6-dtype_float16-layout_sliced_alike-initial-final"
_FWD_ALL = "causal_conv1d_fn-1-2-513-width_5-dtype_float32-seq_idx-initial-final"
_ODD = "causal_conv1d_fn-2-24-19-width_6-weight_dtype_float32-others_strided-initial-final"
_SHORT = "causal_conv1d_fn-5-3-64-width_3-dtype_float16-weight_dtype_float32-seq_idx-initial-final"
_LAST = "causal_conv1d_fn-2-130-21-dtype_float32-layout_channel_last-seq_idx-initial-final"
_VARLEN = "causal_conv1d_varlen_fn-136-2x0+19+2+0+3x1+50+0-slots_odd-index_int64"
_VARLEN_ROWS = "causal_conv1d_varlen_fn-3-513+0+260+1-width_6-dtype_float16-layout_tokens_aligned-pool_columns"
_SHORTROWS = "causal_conv1d_varlen_fn-36-off3+253+1+255+1+2+3+63+65+off9+20x1+0+93-layout_tokens-slots_odd-initial_all"
_ROUTED = "causal_conv1d_split-61,3,1,1,6,64-40+0+3x1-slots_odd"
_L2NORM = "causal_conv1d_qkv_split-2,1,2,64,64,32-off5+20+0+3-l2norm"
_L2NORM_EPS = "causal_conv1d_qkv_split-2,2,1,5,5,3-12+3-slots_odd-l2norm-eps_0.01"
_STATES = "causal_conv1d_varlen_states-136-9x1+7-3-out_channels-index_int64"
_STATES_EVERY = "causal_conv1d_varlen_states-6-2+30-16-dtype_float32-layout_sliced_by_2-out_channels-spacing_3"
_CARRIED = "causal_conv1d_varlen_states-136-2+4+0+3+off2+1-4-out_channels-previous_channels_sliced"
_KEPT = "causal_conv1d_varlen_fn-136-off2+20+0+3x1+30+2-pool_channels_longer-slots_odd-longer_2-snapshots_pool"
_KEPT_MOVED = "causal_conv1d_varlen_fn-16-9+70+3-width_16-initial_all-moved-snapshots_pool"
_KEPT_WHOLE = (
    "causal_conv1d_varlen_fn-136-off2+20+3x1+30+off4-others_strided-pool_channels_longer-initial_all-snapshots_whole"
)
_KEPT_ROWS = (
    "causal_conv1d_varlen_fn-33-off2+20+0+3x1+30+2-dtype_float16-layout_tokens-pool_columns-slots_odd-longer_2"
    "-snapshots_pool"
)
_KEPT_L2NORM = "causal_conv1d_qkv_split-1,1,1,256,256,8-12+3+1-dtype_float32-initial_all-snapshots_whole-l2norm"
_GATED = "causal_conv1d_varlen_fn-136-off2+20+0+3x1+30+2-width_3-initial_all-activation_None-gates_pre_gate_post_gate"
_GATED_ROWS = (
    "causal_conv1d_varlen_fn-3-off2+20+0+3x1+30+2-width_7-layout_tokens-initial_all-activation_None"
    "-gates_pre_gate_post_gate-beside_tokens_sliced"
)
_GATED_DENSE = (
    "causal_conv1d_fn-2-3-300-width_7-dtype_float16-layout_offset_alike-seq_idx-initial-final-gates_pre_gate_post_gate"
    "-beside_offset_by_1"
)
_DENSE = "causal_conv1d_varlen_fn-5-3x1029-layout_channel_first-pool_columns-initial_all-moved-snapshots_pool-dense"
_STEP = "causal_conv1d_update-131-1023-layout_last_offset_by_1-slots_odd"
_STEPS = (
    "causal_conv1d_update-40-4-seqlen_3-width_3-dtype_float16-weight_dtype_float32"
    "-state_dtype_float32-pool_channels_longer-index_int64-window_columns"
)
_RING = (
    "causal_conv1d_update-7-4-seqlen_5-width_5-dtype_float16-layout_last_offset_by_1-mode_circular"
    "-window_channels-activation_None"
)
_ACCEPTED = "causal_conv1d_update-136-9-seqlen_4-slots_odd-mode_accepted"
_UPDATE_ROWS = "causal_conv1d_update-131-1023-layout_last_offset_by_1-pool_columns-slots_odd"
_UPDATE_ROWS_LONGER = "causal_conv1d_update-132-9-pool_columns_and_one"
_MOVED = "causal_conv1d_varlen_fn-136-5x9+2x2+17-pool_channels_longer-slots_odd-index_mixed-table_column-moved"
_MOVED_SHORT = (
    "causal_conv1d_varlen_fn-33-5x9+2x2+17-layout_tokens-pool_columns-slots_odd-index_mixed-table_column-moved"
)
_MOVED_STEP = "causal_conv1d_update-136-14-slots_odd-index_mixed-table_column-longer_3-moved"
_MOVED_ROWS = "causal_conv1d_update-136-14-pool_columns-slots_odd-index_mixed-table_column-longer_3-moved"
_MOVED_RING = (
    "causal_conv1d_update-136-14-seqlen_3-pool_channels_longer-slots_odd-index_mixed-mode_circular-longer_3-moved"
)
_PACKED_MOST = "causal_conv1d_update-136-9-slots_odd-table_column-moved-lengths_4,0,2,7,1-most_3"
_PACKED_BEHIND = "causal_conv1d_update-136-14-slots_odd-moved-lengths_1,0,1,1-most_1-behind_17"
_PACKED_ROWS = (
    "causal_conv1d_update-131-1023-layout_last_offset_by_1-pool_columns-slots_odd-lengths_1,1,0-most_1-behind_5"
)
_PACKED_ACCEPTED = "causal_conv1d_update-136-9-mode_accepted-lengths_3,1,5,2-held_3"
_OWN_SLOT = "causal_conv1d_update-136-7-pool_channels_longer-index_mixed-frozen-lengths_3,1,0,5-token_slots_3"
_WHOLE = "causal_conv1d_update-136-7-seqlen_3-pool_channels_longer-slots_odd-window_columns-token_slots_3-whole"
_OVERLAID = "causal_conv1d_update-136-7-pool_columns-window_overlaid-lengths_3,1,0,5"
_OVERLAID_DENSE = "causal_conv1d_update-136-7-seqlen_4-slots_odd-window_overlaid_dense-rows"
_WINDOW_OF_ROW = "causal_conv1d_update-136-4-seqlen_5-layout_last_offset_by_1-pool_columns_and_one-window_columns"
_TREE = "causal_conv1d_update-136-7-seqlen_5-slots_odd-index_mixed-window_columns-token_slots_4-tree"
_KEPT = "causal_conv1d_varlen_fn-136-off2+20+3x1+30+off4-pool_channels_longer-slots_odd-longer_2-keep"
_READ_ONLY = "causal_conv1d_varlen_fn-136-20+0+2x1+30-pool_channels_longer-initial_None-read_only"
_BWD = "causal_conv1d_bwd-1-5-1029"
_BWD_BULK = "causal_conv1d_bwd-2-3-1640"
_BWD_ALL = "causal_conv1d_bwd-3-8-13-width_9-dtype_float32-activation_None-seq_idx-initial-final"
_BWD_SUM = "causal_conv1d_bwd-2-3-1029-width_6-dtype_float16-layout_sliced_alike-initial-final"
_BWD_LAST = "causal_conv1d_bwd-2-130-21-dtype_float32-layout_channel_last-seq_idx-initial-final"
_BWD_LAST_PARTS = "causal_conv1d_bwd-1-130-260-width_3-dtype_float32-layout_channel_last-seq_idx-initial-final"
_BWD_VARLEN_ROWS = "causal_conv1d_varlen_bwd-3-513+0+260+1-width_6-dtype_float16-layout_tokens_aligned-pool_columns"
_BWD_VARLEN = "causal_conv1d_varlen_bwd-6-2+1+0+35-width_5-dtype_float16-bias_None-pool_columns-slots_odd"

MUTANTS = (
    Mutant(
        "The last tile's results leave out the row's last vector.",
        "causal_conv1d/causal_conv1d_fwd.cu",
        "if (tile >= params.tiles) return;",
        "if (tile + 1 >= params.tiles) return;",
        (FWD,),
    ),
    Mutant(
        "The vector before a lane's later ones is always the tile's first.",
        "causal_conv1d/causal_conv1d_fwd.cu",
        "x[i == 0 ? 0 : i - 1]",
        "x[0]",
        (FWD,),
    ),
    Mutant(
        "Vectors of sequence numbers are read before the row's first token.",
        "causal_conv1d/conv_row.cuh",
        "token >= kAhead && is_whole",
        "token >= kHalo && is_whole",
        ("causal_conv1d_fn-1-3-1029-width_6-layout_offset_alike_by_2-others_offset_by_2-seq_idx",),
    ),
    Mutant(
        "A row's past is taken as one token earlier.",
        "causal_conv1d/conv.cuh",
        "(kWidth - 1 + token) * p.initial_states_stride[2]",
        "(kWidth - 2 + token) * p.initial_states_stride[2]",
        (_FWD_STATES,),
    ),
    Mutant(
        "The final state is that of one token earlier.",
        "causal_conv1d/conv.cuh",
        "p.seqlen - (kWidth - 1) + i;",
        "p.seqlen - kWidth + i;",
        (_FWD_STATES,),
    ),
    Mutant(
        "Tokens with negative sequence numbers have results.",
        "causal_conv1d/conv.cuh",
        "kSeqIdx && seq < 0 ? 0.0f : sum",
        "kSeqIdx && seq < -1 ? 0.0f : sum",
        (_FWD_ALL,),
    ),
    Mutant(
        "An odd row's next row begins with its own channel's filter.",
        "causal_conv1d/causal_conv1d_oddseq_fwd.cu",
        "load_taps<kWidth, weight_t>(p, has_next ? channel + 1 : channel, next_taps);",
        "load_taps<kWidth, weight_t>(p, channel, next_taps);",
        (_ODD,),
    ),
    Mutant(
        "A row that ends with a vector stores no final state.",
        "causal_conv1d/causal_conv1d_oddseq_fwd.cu",
        "next_token + kVec >= 0",
        "next_token + kVec > 0",
        (_ODD,),
    ),
    Mutant(
        "The vector before a short row's first whole one is left out.",
        "causal_conv1d/causal_conv1d_shortseq_fwd.cu",
        "if (is_row[i]) add_edge<kWidth>(p, rows[i], tokens[i], x[i]);",
        "if (is_row[i] && tokens[i] >= 0) add_edge<kWidth>(p, rows[i], tokens[i], x[i]);",
        ("causal_conv1d_fn-3-6-48-width_13-layout_offset_by_4-final",),
    ),
    Mutant(
        "Short rows of a batch of odd size take one entry too many.",
        "causal_conv1d/causal_conv1d_shortseq_fwd.cu",
        "is_row[i] = is_place && batch + i < p.batch;",
        "is_row[i] = is_place && batch + i <= p.batch;",
        (_SHORT,),
    ),
    Mutant(
        "A tile of contiguous channels stores a token behind the sequence.",
        "causal_conv1d/causal_conv1d_channellast_fwd.cu",
        "if (kHalo + i < end) store(",
        "if (kHalo + i <= end) store(",
        (_LAST,),
    ),
    Mutant(
        "The past of contiguous channels is that of the vector's first channel.",
        "causal_conv1d/causal_conv1d_channellast_fwd.cu",
        "load_past<kWidth, input_t>(p, batch, channel + c, token + i - kHalo)",
        "load_past<kWidth, input_t>(p, batch, channel, token + i - kHalo)",
        (_LAST,),
    ),
    Mutant(
        "Taps that are not packed are read without their stride.",
        "causal_conv1d/conv_channels.cuh",
        "weight[k * p.weight_stride[1]]",
        "weight[k]",
        ("causal_conv1d_fn-2-3-65-width_2-layout_channel_last-others_strided-initial",),
    ),
    Mutant(
        "The block's tile of packed sequences is one row further.",
        "causal_conv1d/causal_conv1d_varlen_fwd.cu",
        "const int token = first_token + tile * kTokens;",
        "const int token = first_token + (tile + 1) * kTokens;",
        (_VARLEN,),
    ),
    Mutant(
        "The roles of tokens are read before all warps have found them.",
        "causal_conv1d/conv_tile.cuh",
        """        __syncthreads();
        return roles[tile];""",
        "        return roles[tile];",
        (
            "causal_conv1d_varlen_fn-136-40x1-initial_all",
            _VARLEN,
            "causal_conv1d_varlen_fn-2-9+11-dtype_float32",
        ),
    ),
    Mutant(
        "The first token behind a prefix counts as part of it.",
        "causal_conv1d/conv_tile.cuh",
        "inner |= bits(begin + halo - token, end - token);",
        "inner |= bits(begin + halo + 1 - token, end - token);",
        (_VARLEN,),
    ),
    Mutant(
        "A sequence shorter than its prefix keeps inputs shifted by one.",
        "causal_conv1d/conv_state.cuh",
        "v = select(n == length, joined(i + n), v);",
        "v = select(n == length, joined(i + n - 1), v);",
        (_VARLEN,),
    ),
    Mutant(
        "A sequence that begins anew goes on from its slot.",
        "common/sequences.cuh",
        "return p.has_initial_state != nullptr &&",
        "return p.has_initial_state == nullptr ||",
        ("causal_conv1d_varlen_fn-136-all7-pool_channels_outermost-initial_None",),
    ),
    Mutant(
        "Between two looks at runs of sequences one is passed over.",
        "common/sequences.cuh",
        "low += kWarpSize - 1;",
        "low += kWarpSize;",
        (
            (
                "causal_conv1d_varlen_fn-33-127+2+125+1+1+1+64+32x1+off31-width_3-dtype_float32-layout_tokens"
                "-pool_columns-index_int64"
            ),
        ),
    ),
    Mutant(
        "All channels of a vector across a border of ranges get the first one's result.",
        "causal_conv1d/conv_ranges.cuh",
        "if (j == c) element.put(0, v.element(j));",
        "if (j == 0) element.put(0, v.element(j));",
        (_ROUTED,),
    ),
    Mutant(
        "The second channel of a head is taken as the next head's.",
        "causal_conv1d/conv_ranges.cuh",
        "channels = at.quotient * stride[2] + at.remainder * stride[3];",
        "channels = at.remainder * stride[2] + at.quotient * stride[3];",
        ("causal_conv1d_qkv_split-2,1,1,64,64,128-9+1-out_head_major+transposed+spaced-slots_odd-index_int64",),
    ),
    Mutant(
        "Eps is dropped where heads take several turns.",
        "causal_conv1d/causal_conv1d_varlen_l2norm_fwd.cu",
        "rsqrtf(sum_over_lanes(scale[i], group.lanes) + eps)",
        "rsqrtf(sum_over_lanes(scale[i], group.lanes))",
        (
            (
                "causal_conv1d_qkv_split-1,1,1,256,256,8-12+3-dtype_float32-state_dtype_bfloat16-slots_odd"
                "-index_int64-l2norm-eps_0.5"
            ),
        ),
    ),
    Mutant(
        "Eps is dropped where a head takes one turn.",
        "causal_conv1d/causal_conv1d_varlen_l2norm_fwd.cu",
        "rsqrtf(sum_over_lanes(is_idle ? 0.0f : squares, group.lanes) + eps)",
        "rsqrtf(sum_over_lanes(is_idle ? 0.0f : squares, group.lanes))",
        (_L2NORM_EPS,),
    ),
    Mutant(
        "Lanes without channels add another lane's squares to a norm.",
        "causal_conv1d/causal_conv1d_varlen_l2norm_fwd.cu",
        "is_idle ? 0.0f : squares",
        "squares",
        (
            (
                "causal_conv1d_qkv_split-2,1,1,96,96,64-12+3-width_3-dtype_float16-weight_dtype_float32"
                "-state_dtype_float32-pool_columns-activation_None-l2norm"
            ),
        ),
    ),
    Mutant(
        "The range of values is normalised, too.",
        "causal_conv1d/causal_conv1d_varlen_l2norm_fwd.cu",
        "is_normalized = range < params.normalized;",
        "is_normalized = range <= params.normalized;",
        (_L2NORM,),
    ),
    Mutant(
        "A row's tokens of padding stay as they were.",
        "causal_conv1d/causal_conv1d_varlen_rows_fwd.cu",
        "if (roles.padding >> i & 1) *to",
        "if (roles.padding >> i & 0) *to",
        (
            (
                "causal_conv1d_varlen_fn-2-off3+70+2x1-width_7-state_dtype_float32-layout_tokens_offset_by_2"
                "-out_tokens-pool_backward"
            ),
        ),
    ),
    Mutant(
        "Only the first group of a row's vectors has roles.",
        "causal_conv1d/causal_conv1d_varlen_rows_fwd.cu",
        "const int from = first + i * kGroupTokens;",
        "const int from = first;",
        (_VARLEN_ROWS,),
    ),
    Mutant(
        "Short rows' results are stored before all prefixes are in.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        """    __syncthreads();
    store_tile(shared, p, first_channel, first);""",
        "    store_tile(shared, p, first_channel, first);",
        (_SHORTROWS,),
    ),
    Mutant(
        "Short rows are walked before their copies are waited for.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "    wait_for_copies();\n",
        "",
        (_SHORTROWS,),
    ),
    Mutant(
        "Prefixes of short rows are finished before the walk has passed them.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        """    if (first + place < p.total) walk<Tile, kSilu>(shared, place, taps[0], bias[0]);
    __syncthreads();""",
        "    if (first + place < p.total) walk<Tile, kSilu>(shared, place, taps[0], bias[0]);",
        (_SHORTROWS,),
    ),
    Mutant(
        "A short sequence's state keeps the inputs before its last ones.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "input<kIsInside>(run.end - kHalo + i)",
        "input<kIsInside>(run.end - kHalo + i - 1)",
        (_SHORTROWS,),
    ),
    Mutant(
        "The tile's leading tokens in an earlier sequence's prefix are stored again.",
        "causal_conv1d/conv_short.cuh",
        "shared.left_out = max(left_out, 0);",
        "shared.left_out = 0;",
        (
            (
                "causal_conv1d_varlen_fn-32-31+33+62+3+2x127+126+4+31x4+0-width_5-dtype_float32"
                "-state_dtype_bfloat16-bias_None-layout_tokens-initial_all"
            ),
        ),
    ),
    Mutant(
        "Columns of a state are counted from the sequence's first token.",
        "causal_conv1d/causal_conv1d_varlen_states.cu",
        "const index_t token = end - p.columns.divisor + column;",
        "const index_t token = begin + column;",
        (_STATES_EVERY,),
    ),
    Mutant(
        "A sequence shorter than its state reads the tokens before it.",
        "causal_conv1d/causal_conv1d_varlen_states.cu",
        "if (token >= begin) {",
        "if (token >= 0) {",
        (_STATES,),
    ),
    Mutant(
        "One token's new state lacks the input itself.",
        "causal_conv1d/causal_conv1d_update.cu",
        "for (int k = 0; k <= kHalo; ++k) {",
        "for (int k = 0; k < kHalo; ++k) {",
        (_STEP,),
    ),
    Mutant(
        "A longer state moves by one column too few.",
        "causal_conv1d/causal_conv1d_update.cu",
        "if (is_row) target.take(columns, min(place.goes_to, p.state_len), tokens.count(p));",
        "if (is_row) target.take(columns, min(place.goes_to - 1, p.state_len), tokens.count(p));",
        ("causal_conv1d_update-136-3-seqlen_2-pool_channels_longer",),
    ),
    Mutant(
        "A ring begins one column late.",
        "causal_conv1d/causal_conv1d_update.cu",
        "% p.state_len) - kHalo;",
        "% p.state_len) - kHalo + 1;",
        (_RING,),
    ),
    Mutant(
        "Rejected tokens count as accepted.",
        "causal_conv1d/causal_conv1d_update.cu",
        "static_cast<int>(accepted) - 1 : 0;",
        "static_cast<int>(accepted) : 0;",
        (_ACCEPTED,),
    ),
    Mutant(
        "The intermediate window of a token is that of the token before.",
        "causal_conv1d/conv_token_states.cuh",
        "row.number * stride[0] + token * stride[1] +",
        "row.number * stride[0] + max(token - 1, 0) * stride[1] +",
        (_STEPS,),
    ),
    Mutant(
        "A decode step takes padding for slot 0.",
        "common/sequences.cuh",
        "slot >= p.slots ? -1 : static_cast<int>(slot)",
        "slot >= p.slots ? 0 : static_cast<int>(slot)",
        (_STEP,),
    ),
    Mutant(
        "A short state's columns move by two.",
        "causal_conv1d/causal_conv1d_update_rows.cu",
        "for (int j = 0; j + 1 < kStateLen; ++j) state[c * kStateLen + j] = state[c * kStateLen + j + 1];",
        "for (int j = 0; j + 2 < kStateLen; ++j) state[c * kStateLen + j] = state[c * kStateLen + j + 2];",
        (_UPDATE_ROWS,),
    ),
    Mutant(
        "The filter reads a longer state's first columns.",
        "causal_conv1d/causal_conv1d_update_rows.cu",
        "state[c * kStateLen + kFirst + k]",
        "state[c * kStateLen + k]",
        (_UPDATE_ROWS_LONGER,),
    ),
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
        "The gradient of a packed sequence's initial state leaves out the current tap.",
        "causal_conv1d/causal_conv1d_bwd_states.cu",
        "for (int i = 0; i <= j; ++i)",
        "for (int i = 0; i < j; ++i)",
        (_BWD_VARLEN,),
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
        (_BWD_LAST,),
    ),
    Mutant(
        "Sums of a block are added up before they are there.",
        "causal_conv1d/conv_bwd_sum.cuh",
        """    shared[threadIdx.x] = sum;
    __syncthreads();""",
        "    shared[threadIdx.x] = sum;",
        (_BWD_SUM,),
    ),
    Mutant(
        "A final state stays in the slot that its sequence starts from.",
        "common/sequences.cuh",
        "if (p.dst_state_indices == nullptr) return start;",
        "return start;",
        (_MOVED, _MOVED_STEP, _MOVED_ROWS),
    ),
    Mutant(
        "A slot is taken out of the first column, whatever state_column says.",
        "common/sequences.cuh",
        "place += column * p.slot_column_stride;",
        "place += 0;",
        (_MOVED, _MOVED_STEP, _MOVED_SHORT),
    ),
    Mutant(
        "A final state without a slot goes before the pool.",
        "causal_conv1d/causal_conv1d_update_rows.cu",
        "if (!p.is_read_only && (!kAddressed || target >= 0)) rows[i].store(p, share.channel, target);",
        "if (!p.is_read_only) rows[i].store(p, share.channel, target);",
        (_MOVED_ROWS,),
    ),
    Mutant(
        "A ring in another slot has only the new columns.",
        "causal_conv1d/causal_conv1d_update.cu",
        "if (kAddressed && is_ring && (target.slot != columns.slot || columns.is_fresh))",
        "if (false)",
        (_MOVED_RING,),
    ),
    Mutant(
        "A short sequence's final state stays in the slot that the sequence starts from.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "const int target = shared.target[number];",
        "const int target = run.slot < 0 ? ~run.slot : run.slot;",
        (_MOVED_SHORT,),
    ),
    Mutant(
        "Padding that is to keep its contents becomes zero.",
        "causal_conv1d/conv_varlen.cuh",
        "if (kAddressed && p.keeps_padding) left &= sequences;",
        "",
        (_KEPT,),
    ),
    Mutant(
        "A sequence in initial_states starts from zeros.",
        "causal_conv1d/conv_varlen.cuh",
        "return (kAddressed && p.initial_states != nullptr && p.has_initial_state == nullptr) ||",
        "return",
        (_READ_ONLY,),
    ),
    Mutant(
        "States that are only read are written.",
        "causal_conv1d/conv_varlen.cuh",
        "return p.initial_states != nullptr ? -1 :",
        "return",
        (_READ_ONLY,),
    ),
    Mutant(
        "A sequence that starts from zeros takes along what else its slot holds.",
        "causal_conv1d/conv_token_states.cuh",
        "at(i).store_all(source.load(from + i));",
        "at(i).store_all(source.at(from + i).load_all());",
        ("causal_conv1d_update-136-14-pool_channels_longer-slots_odd-fresh",),
    ),
    Mutant(
        "A decode step goes on from a slot that is not to be read.",
        "causal_conv1d/conv_update_sequence.cuh",
        "return kAddressed && p.has_initial_state != nullptr && past == 0;",
        "return false;",
        ("causal_conv1d_update-136-14-slots_odd-fresh", "causal_conv1d_update-136-14-pool_columns-slots_odd-fresh"),
    ),
    Mutant(
        "Tokens of packed sequences that are too many keep what their results hold.",
        "causal_conv1d/conv_update_sequence.cuh",
        "int left = tokens.length(p) - count + behind;",
        "int left = behind;",
        (_PACKED_MOST,),
    ),
    Mutant(
        "Packed tokens behind the last sequence keep what their results hold.",
        "causal_conv1d/conv_update_sequence.cuh",
        "const int behind = kPacked ? p.total - tokens.behind : 0;",
        "const int behind = 0;",
        (_PACKED_BEHIND,),
    ),
    Mutant(
        "An empty sequence leaves the next one's first token in its state.",
        "causal_conv1d/conv_update_sequence.cuh",
        "return !kPacked || computed > 0;",
        "return true;",
        (_PACKED_ROWS,),
    ),
    Mutant(
        "A packed sequence with more tokens than its state can hold is valid.",
        "causal_conv1d/causal_conv1d_update.cu",
        "is_valid = accepted <= first + 1 && count <= first + 1;",
        "is_valid = accepted <= first + 1;",
        (_PACKED_ACCEPTED,),
    ),
    Mutant(
        "The low half of an index of 64 bits may be negative.",
        "common/vec.cuh",
        "high * (index_t{1} << 32) + static_cast<unsigned>(low)",
        "high * (index_t{1} << 32) + low",
        ("causal_conv1d_update-136-14-seqlen_1-slots_odd-index_int64-mode_circular",),
    ),
    Mutant(
        "A state that a token leaves in the slot that the sequence starts from is overwritten before it is read.",
        "causal_conv1d/conv_token_states.cuh",
        "if (slot >= 0 && slot != source.slot) store_state(path, source, source.in(slot), t, p.state_len);",
        "if (slot >= 0) store_state(path, source, source.in(slot), t, p.state_len);",
        (_OWN_SLOT,),
    ),
    Mutant(
        "The state after a token lacks a column that has moved.",
        "causal_conv1d/conv_token_states.cuh",
        "for (int i = 0; i < state_len - depth; ++i)",
        "for (int i = 1; i < state_len - depth; ++i)",
        (_WHOLE,),
    ),
    Mutant(
        "A window that lies over the one before is written from the wrong column on.",
        "causal_conv1d/conv_token_states.cuh",
        "p.windows_are_overlaid && token > 0 ? kColumns - 1 : 0;",
        "p.windows_are_overlaid && token > 0 ? kColumns : 0;",
        (_OVERLAID,),
    ),
    Mutant(
        "Windows that lie over each other begin with the earliest input.",
        "causal_conv1d/conv_token_states.cuh",
        "p.state_len - kHalo + 1 + column);",
        "p.state_len - kHalo + column);",
        (_OVERLAID_DENSE,),
    ),
    Mutant(
        "The window of a short state is its first columns.",
        "causal_conv1d/causal_conv1d_update_rows.cu",
        "window[i] = input(i % kHalo, i / kHalo);",
        "window[i] = input(i % kHalo - kFirst, i / kHalo);",
        (_WINDOW_OF_ROW,),
    ),
    Mutant(
        "The inputs before a token of a tree are those of its number.",
        "causal_conv1d/causal_conv1d_update_tree.cu",
        "at = tree.parent(at);",
        "at = at - 1;",
        (_TREE,),
    ),
    Mutant(
        "The state before a tree does not move on where a path begins.",
        "causal_conv1d/causal_conv1d_update_tree.cu",
        "source.load(first + above + k)",
        "source.load(first + k)",
        (_TREE,),
    ),
    Mutant(
        "The first inputs that a packed sequence sees are those of the one before.",
        "causal_conv1d/causal_conv1d_channellast_bwd.cu",
        "for (int k = 0; k < kHalo; ++k) load_past(k, k);",
        "for (int k = 0; k < kHalo; ++k) (void)k;",
        (_BWD_VARLEN,),
    ),
    Mutant(
        "Where channels are contiguous, padding may spoil the sums.",
        "causal_conv1d/causal_conv1d_channellast_bwd.cu",
        "if (seq[kHalo] < 0) set_input(kHalo, Vector::zero());",
        "",
        (_BWD_VARLEN,),
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
    Mutant(
        "A state that is carried on lacks the tokens in between.",
        "causal_conv1d/causal_conv1d_varlen_states.cu",
        "(column + tokens) * stride[2]",
        "column * stride[2]",
        (_CARRIED,),
    ),
    Mutant(
        "A snapshot holds the inputs one token later.",
        "causal_conv1d/conv_snapshots.cuh",
        "first_input(snapshot.position - p.snapshot_columns) {",
        "first_input(snapshot.position - p.snapshot_columns + 1) {",
        (_KEPT, _KEPT_L2NORM, _KEPT_ROWS),
    ),
    Mutant(
        "A snapshot near the sequence's start has zeros in place of the state.",
        "causal_conv1d/conv_snapshots.cuh",
        "source.goes_on ? -static_cast<int>(p.first_column) - (kWidth - 1) : 0",
        "0",
        (_KEPT, _KEPT_WHOLE),
    ),
    Mutant(
        "A snapshot of whole states reads the state's columns before the filter's as zeros.",
        "causal_conv1d/conv_snapshots.cuh",
        "-static_cast<int>(p.first_column) - (kWidth - 1)",
        "-(kWidth - 1)",
        (_KEPT_WHOLE,),
    ),
    Mutant(
        "A snapshot over the slot that its sequence starts from is not stored.",
        "causal_conv1d/conv_snapshots.cuh",
        "if (source.is_over_start(p, snapshot) != is_over_start) continue;",
        "if (source.is_over_start(p, snapshot) || is_over_start) continue;",
        (_KEPT_MOVED,),
    ),
    Mutant(
        "Rows of snapshots behind the count are stored.",
        "common/snapshots.cuh",
        "count > p.snapshot_rows ? p.snapshot_rows : static_cast<int>(count)",
        "p.snapshot_rows",
        (_KEPT, _KEPT_WHOLE, "selective_scan_varlen_fn-128-200+236+300+200-slots_odd-longer_2-snapshots_own"),
    ),
    Mutant(
        "Only the first rows of snapshots of a block's sequences are found.",
        "common/snapshots.cuh",
        "from + highest(hits) + 1}",
        "from + lowest(hits) + 1}",
        (_KEPT_MOVED, _KEPT_WHOLE),
    ),
    Mutant(
        "A snapshot behind its sequence's last token is stored.",
        "causal_conv1d/conv_snapshots.cuh",
        "length > 0 && snapshot.position <= length;",
        "length > 0;",
        (_KEPT_ROWS, _KEPT),
    ),
    Mutant(
        "The state holds the inputs in front of the gate.",
        "causal_conv1d/conv_varlen.cuh",
        "if (gate != nullptr) v = multiply(v, load<kVec>(gate));",
        "",
        (_GATED, _GATED_ROWS),
    ),
    Mutant(
        "The last inputs of a sequence are multiplied by the gates of its first tokens.",
        "causal_conv1d/conv_state.cuh",
        "begin + length - kHalo + i);",
        "begin + i);",
        (_GATED, _GATED_ROWS),
    ),
    Mutant(
        "Results are multiplied by the gate of the token before.",
        "causal_conv1d/conv_tile.cuh",
        "beside_x<input_t, kVec>(p.post_gate, p.post_gate_stride, channel, token)",
        "beside_x<input_t, kVec>(p.post_gate, p.post_gate_stride, channel, max(token - 1, 0))",
        (_GATED,),
    ),
    Mutant(
        "Rows with gates lack their past.",
        "causal_conv1d/conv_row.cuh",
        "{ add_past<kWidth>(p, row, row.first_token(first_vec + i * kWarpSize), x[i]); }",
        "{}",
        (_GATED_DENSE,),
    ),
    Mutant(
        "A final state of gated rows holds the inputs in front of the gate.",
        "causal_conv1d/conv.cuh",
        "if (token >= 0 && p.pre_gate != nullptr) {",
        "if (false) {",
        (_GATED_DENSE,),
    ),
    Mutant(
        "Gates of channels multiply the past as well.",
        "causal_conv1d/causal_conv1d_channellast_fwd.cu",
        "if (i >= begin) x[i] = multiply(x[i], gates[i]);",
        "x[i] = multiply(x[i], gates[i]);",
        ("causal_conv1d_fn-2-136-20-width_3-layout_channel_last-initial-final-gates_pre_gate_post_gate",),
    ),
    Mutant(
        "A walk's halo comes from the same group of vectors.",
        "causal_conv1d/causal_conv1d_varlen_walk_fwd.cu",
        "            wrapped = now[i];\n",
        "",
        (_DENSE,),
    ),
    Mutant(
        "A walk leaves the first inputs of a sequence as its final state.",
        "causal_conv1d/causal_conv1d_varlen_walk_fwd.cu",
        "kept = inputs.state(length - kHalo + lane_id());",
        "kept = inputs.state(lane_id());",
        (_DENSE,),
    ),
    Mutant(
        "A walk's results of the first tokens see the batch entry before.",
        "causal_conv1d/causal_conv1d_varlen_walk_fwd.cu",
        "i < 0 ? before(i).to_float(0) : token(i).to_float(0)",
        "token(i).to_float(0)",
        (_DENSE,),
    ),
    Mutant(
        "The gates of a payload change places.",
        "causal_conv1d/conv_tile.cuh",
        "const int gate = i < heads ? 0 : 1;",
        "const int gate = i < heads ? 1 : 0;",
        ("causal_conv1d_qkv_split-1,1,1,256,256,8-12+3+1-dtype_float32-moved-l2norm-payload_40-payload_lies_sliced",),
    ),
    Mutant(
        "A payload holds the inputs of the tokens before.",
        "causal_conv1d/conv_tile.cuh",
        "store(to, inputs.x[Inputs::kHalo + i]);",
        "store(to, inputs.x[i]);",
        (
            "causal_conv1d_qkv_split-2,1,2,64,64,32-off5+20+0+3+2+9-slots_odd-l2norm-payload_2",
            "causal_conv1d_qkv_split-1,2,1,5,5,7-20+2-payload_1-payload_lies_spaced",
        ),
    ),
    Mutant(
        "A snapshot over the slot that its sequence starts from is stored before the others have read it.",
        "causal_conv1d/conv_snapshots.cuh",
        "if (source.is_over_start(p, snapshot) != is_over_start) continue;",
        "if (is_over_start) continue;",
        ("causal_conv1d/test_slots.py::test_a_snapshot_may_overwrite_what_its_sequence_starts_from",),
    ),
)
