"""The bugs, by family. The tests named for one are small, and the first that finds it ends its run."""

from __future__ import annotations

from tests.mutants import Mutant

_FWD = "causal_conv1d_fn-1-5-1029"
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

_BWD = "causal_conv1d_bwd-1-5-1029"
_BWD_ALL = "causal_conv1d_bwd-3-8-13-width_9-dtype_float32-activation_None-seq_idx-initial-final"
_BWD_SUM = "causal_conv1d_bwd-2-3-1029-width_6-dtype_float16-layout_sliced_alike-initial-final"
_BWD_LAST = "causal_conv1d_bwd-2-130-21-dtype_float32-layout_channel_last-seq_idx-initial-final"
_BWD_VARLEN = "causal_conv1d_varlen_bwd-6-2+1+0+35-width_5-dtype_float16-bias_None-pool_columns-slots_odd"

_SCAN = "selective_scan_fn-2-35-43"
_SCAN_SEGMENTS = (
    "selective_scan_fn-2-3-513-d_state_1-dtype_float32"
    "-without_initial_state_last_state_out_chunk_states_out-layout_sliced_alike"
)
_TILES = "selective_scan_fn-3-20-200"
_TILES_ALONE = "selective_scan_fn-2-35-48"
_TILES_PARTS = "selective_scan_fn-2-35-264-without_chunk_states_out"
_TILES_ONE_STAGE = "selective_scan_fn-1-5-508-d_state_8-dtype_float32-without_chunk_states_out"
_TILES_SEGMENTS = "selective_scan_fn-1-3-1024-d_state_12-dtype_float32"
_TILES_VARLEN = "selective_scan_varlen_fn-35-16+8+3+29"
_FEW = "selective_scan_varlen_fn-35-40x1-initial_all"
_SCAN_BWD = "selective_scan_bwd-2-3-514-without_chunk_states"
_SCAN_BWD_FLOAT = "selective_scan_bwd-1-4-257-dtype_float32-layout_sliced_alike-dout_expanded"
_STATE = "selective_state_update-3-0-40-16-dtype_float32"
_STATE_SHARED = "selective_state_update-7-2-20-128-dtypes_float32-per_head_all-pool_slot_strided-odd-index_int64"
_STATE_MANY = (
    "selective_state_update-5-2-6-128-tokens_4-per_head_all-lies_fused-targets_each-columns_6-steps_row-odd-index_int64"
)
_STATE_PACKED = "selective_state_update-off1+3+1+0+2+off2-2-6-128-groups_2-per_head_all"
_STATE_ACCEPTED = "selective_state_update-6-2-6-128-tokens_3-per_head_all-accepted-steps_row-odd-index_int64"
_STATE_RANDOM = "selective_state_update-3-2-6-128-per_head_all-seed_18446744073709551615"
_SOFTPLUS = "selective_state_update/test_softplus.py::test_softplus_is_as_exact_as_it_is_said_to_be[unit-emulated]"
_STATE_LOUD = "selective_state_update-4-2-3-16-dtype_float32-loud_60"

_COMMON = (
    Mutant(
        "softplus drops the low-order term of the exponent.",
        "common/activation.cuh",
        "__saturatef(fmaf(power, rest, power))",
        "__saturatef(power)",
        (_SOFTPLUS,),
    ),
    Mutant(
        "softplus multiplies by one part of log(2) only, of 12 bits.",
        "common/activation.cuh",
        "fmaf(exponent, -0.693147182f, -fabsf(v))",
        "fmaf(exponent, -0.693115234f, -fabsf(v))",
        (_STATE_LOUD,),
    ),
    Mutant(
        "softplus is NaN where the exponent overflows.",
        "common/activation.cuh",
        "__saturatef(fmaf(power, rest, power))",
        "fmaf(power, rest, power)",
        (
            (
                "families/test_special_values.py::test_a_masked_token_changes_no_state"
                "[unit-emulated-updates-9-0-40-16-dtype_float32]"
            ),
        ),
    ),
    Mutant(
        "softplus swallows NaN.",
        "common/activation.cuh",
        "max_or_nan(v, 0.0f)",
        "fmaxf(v, 0.0f)",
        (
            (
                "families/test_special_values.py::test_infinities_and_nan_are_those_of_the_formula"
                "[unit-emulated-step-updates-9-0-40-16-dtype_float32]"
            ),
        ),
    ),
    Mutant(
        "The derivative of silu lacks its second term.",
        "common/activation.cuh",
        "return dout * fmaf(s, fmaf(-s, scaled, scaled), s);",
        "return dout * s;",
        ("causal_conv1d_bwd-1-2-260-width_10-dtype_float32-weight_dtype_bfloat16-layout_offset_by_2-initial",),
    ),
    Mutant(
        "A bfloat16's upper half keeps the lower one's bits.",
        "common/dtype.cuh",
        "word & 0xffff0000u",
        "word",
        (_FWD,),
    ),
    Mutant(
        "A division by a known number forgets the carry.",
        "common/fastdiv.cuh",
        "(__umulhi(n, multiplier) + n) >> shift",
        "__umulhi(n, multiplier) >> shift",
        (_FWD,),
    ),
    Mutant(
        "A slot behind the pool's last one is taken.",
        "common/sequences.cuh",
        "slot >= p.slots ? -1",
        "slot > p.slots ? -1",
        (
            (
                "causal_conv1d_varlen_fn-20-19+5x2+off2-width_6-weight_dtype_float16-others_strided"
                "-pool_channels_longer-slots_odd-index_int64"
            ),
        ),
    ),
    Mutant(
        "A partial load reads one element too many.",
        "common/vec.cuh",
        "if (i >= begin && i < end) v.put(i, p[i]);",
        "if (i >= begin && i <= end) v.put(i, p[i]);",
        (_FWD,),
    ),
    Mutant(
        "A partial store writes one element too many.",
        "common/vec.cuh",
        "if (i >= begin && i < end) p[i] = v.element(i);",
        "if (i >= begin && i <= end) p[i] = v.element(i);",
        (_FWD,),
    ),
    Mutant(
        "Sums of rows over lanes keep and send the same half.",
        "common/warp.cuh",
        "const float sent = is_upper ? values[2 * i] : values[2 * i + 1];",
        "const float sent = is_upper ? values[2 * i + 1] : values[2 * i];",
        (_STATE,),
    ),
    Mutant(
        "The lowest lanes of a shifted vector get their own warp's highest ones.",
        "common/warp.cuh",
        "lane_id() >= kWarpSize - distance ? wrapped.words[i] : v.words[i]",
        "v.words[i]",
        (_FWD,),
    ),
    Mutant(
        "Stochastic rounding uses fifteen of sixteen random bits.",
        "common/philox.cuh",
        "(__float_as_uint(v) + random) >> 16",
        "(__float_as_uint(v) + (random & 0x7fffu)) >> 16",
        (_STATE_RANDOM,),
    ),
    Mutant(
        "The two halves of Philox's key advance by the same step.",
        "common/philox.cuh",
        "key.y += 0xBB67AE85u;",
        "key.y += 0x9E3779B9u;",
        (_STATE_RANDOM,),
    ),
)

_CONVOLUTIONS = (
    Mutant(
        "The last tile's results leave out the row's last vector.",
        "causal_conv1d/causal_conv1d_fwd.cu",
        "if (tile >= params.tiles) return;",
        "if (tile + 1 >= params.tiles) return;",
        (_FWD,),
    ),
    Mutant(
        "The vector before a lane's later ones is always the tile's first.",
        "causal_conv1d/causal_conv1d_fwd.cu",
        "x[i == 0 ? 0 : i - 1]",
        "x[0]",
        (_FWD,),
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
        "causal_conv1d/conv_varlen.cuh",
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
        "load_boundary(p, sequence + 1) - p.columns.divisor + column",
        "load_boundary(p, sequence) + column",
        (_STATES_EVERY,),
    ),
    Mutant(
        "A sequence shorter than its state reads the tokens before it.",
        "causal_conv1d/causal_conv1d_varlen_states.cu",
        "if (token >= load_boundary(p, sequence)) {",
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
        "if (is_row) columns.move(min(place.goes_to, p.state_len), p.seqlen);",
        "if (is_row) columns.move(min(place.goes_to - 1, p.state_len), p.seqlen);",
        ("causal_conv1d_update-136-3-seqlen_2-pool_channels_longer",),
    ),
    Mutant(
        "A ring begins one column late.",
        "causal_conv1d/causal_conv1d_update.cu",
        "first = static_cast<int>(seen % p.state_len) - kHalo;",
        "first = static_cast<int>(seen % p.state_len) - kHalo + 1;",
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
        "causal_conv1d/causal_conv1d_update.cu",
        "row * stride[0] + token * stride[1] + channel * stride[2];",
        "row * stride[0] + max(token - 1, 0) * stride[1] + channel * stride[2];",
        (_STEPS,),
    ),
    Mutant(
        "A decode step takes padding for slot 0.",
        "causal_conv1d/conv_update.cuh",
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
        "state[c * kStateLen + Traits::kFirst + k]",
        "state[c * kStateLen + k]",
        (_UPDATE_ROWS_LONGER,),
    ),
    Mutant(
        "Sums of a block's warps are read before all are there.",
        "causal_conv1d/causal_conv1d_bwd.cu",
        """    __syncthreads();
    if (threadIdx.x / kWarpSize % channel_warps != 0""",
        "    if (threadIdx.x / kWarpSize % channel_warps != 0",
        (_BWD,),
    ),
    Mutant(
        "The highest lanes take no gradients of the group behind.",
        "causal_conv1d/causal_conv1d_bwd.cu",
        "const bool is_offered_behind = lanes.number < kDistance;",
        "const bool is_offered_behind = false;",
        (_BWD,),
    ),
    Mutant(
        "The gradient of the initial state leaves out the last tap.",
        "causal_conv1d/causal_conv1d_bwd.cu",
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
        "Gradients of the last tokens of a run are summed up twice.",
        "causal_conv1d/causal_conv1d_channellast_bwd.cu",
        "i >= kTokens - kHalo && is_last ? 0.0f : g",
        "g",
        (_BWD_LAST,),
    ),
    Mutant(
        "The gradient of a packed sequence's initial state leaves out the current tap.",
        "causal_conv1d/causal_conv1d_bwd_states.cu",
        "for (int i = 0; i <= j; ++i)",
        "for (int i = 0; i < j; ++i)",
        (_BWD_VARLEN,),
    ),
    Mutant(
        "Sums of a block are added up before they are there.",
        "causal_conv1d/causal_conv1d_bwd_sum.cu",
        """        shared[own] = sum;
        __syncthreads();""",
        "        shared[own] = sum;",
        (_BWD_SUM,),
    ),
)

_SCANS = (
    Mutant(
        "A plain scan applies no softplus to v of at most -4.",
        "selective_scan/scan.cuh",
        "own_dt[i] = p.delta_softplus ? softplus(v) : v;",
        "own_dt[i] = p.delta_softplus && v > -4.0f ? softplus(v) : v;",
        ("selective_scan_fn-2-35-43-loud_20",),
    ),
    Mutant(
        "A plain scan's edge advances states by tokens outside.",
        "selective_scan/scan.cuh",
        "if (kIsEdge && (i < begin || i >= end)) own_dt[i] = 0.0f;",
        "if (kIsEdge && i < begin) own_dt[i] = 0.0f;",
        (_SCAN,),
    ),
    Mutant(
        "B of a tile is that of the tile ahead.",
        "selective_scan/scan.cuh",
        "b_now = b_tokens[s];",
        "load_matrices<kIsEdge>(s, ahead, begin, end, b_now = b_tokens[s], c_now);",
        (_SCAN,),
    ),
    Mutant(
        "Lanes beyond the last channel read there.",
        "selective_scan/scan.cuh",
        "channel(min(channel_, p.dim - 1)),\n          is_idle(channel_ >= p.dim)",
        "channel(channel_),\n          is_idle(channel_ >= p.dim)",
        (_SCAN,),
    ),
    Mutant(
        "A segment's last state is stored by the segment before it.",
        "selective_scan/scan_segments.cuh",
        "end = is_last(p) ? p.seqlen : begin + p.segment_tokens;",
        "end = begin + p.segment_tokens;",
        (_SCAN_SEGMENTS,),
    ),
    Mutant(
        "Chunks' states are stored after their first tile.",
        "selective_scan/selective_scan_fwd.cu",
        "token / segment.kChunk * stride[1]",
        "(token / segment.kChunk + 1) * stride[1]",
        (_SCAN,),
    ),
    Mutant(
        "The state before a segment leaves out the segment's decay.",
        "selective_scan/selective_scan_carry.cu",
        "h = fmaf(h, exp2_approx(rate * steps[i]), behind[i]);",
        "h += behind[i];",
        ("selective_scan_fn-1-3-1032-d_state_24",),
    ),
    Mutant(
        "All segments before the last begin with the last one's state.",
        "selective_scan/selective_scan_carry.cu",
        "const index_t segment = min(from + i, segments - 2);",
        "const index_t segment = segments - 2;",
        (_TILES_SEGMENTS, "selective_scan_fn-1-3-1032-d_state_24"),
    ),
    Mutant(
        "Lanes of a tile take the next lane's state.",
        "selective_scan/tile_states.cuh",
        "h[s] = begins[s];",
        "h[s] = before[s];",
        (_TILES,),
    ),
    Mutant(
        "The last lane alone stores no state of a tile.",
        "selective_scan/tile_states.cuh",
        "if (lane == kLanes - 1) shared.state",
        "if (lane == 0) shared.state",
        (_TILES,),
    ),
    Mutant(
        "A tile's matrices are overwritten while others read them, with one stage.",
        "selective_scan/scan_tiles.cuh",
        """            if (Shape::kStages == 1) {
                __syncthreads();""",
        "            if (Shape::kStages == 1) {",
        (_TILES_ONE_STAGE,),
    ),
    Mutant(
        "A tile's matrices are read before all threads have copied them.",
        "selective_scan/scan_tiles.cuh",
        """            // The matrices of this tile have arrived, and all threads have used those of the tile before.
            __syncthreads();""",
        "            // The matrices of this tile have arrived, and all threads have used those of the tile before.",
        (_TILES,),
    ),
    Mutant(
        "States are stored while the last tile is scanned.",
        "selective_scan/scan_tiles.cuh",
        """            tile = next;
        }
        __syncthreads();""",
        """            tile = next;
        }""",
        (_TILES, _TILES_PARTS),
    ),
    Mutant(
        "Chunks' states are read before all warps have left the tile.",
        "selective_scan/selective_scan_tiles_fwd.cu",
        """            __syncthreads();
            const index_t* stride = p.chunk_states_stride;""",
        "            const index_t* stride = p.chunk_states_stride;",
        ("selective_scan_fn-2-35-264",),
    ),
    Mutant(
        "Without D a tile multiplies u by 0.",
        "selective_scan/scan_tiles.cuh",
        "p.D != nullptr ? with_D : tokens.y[t]",
        "with_D",
        (
            (
                "families/test_special_values.py::test_infinities_and_nan_are_those_of_the_formula"
                "[unit-emulated-input-rows-2-35-48-without_D_z]"
            ),
        ),
    ),
    Mutant(
        "The part of a tile behind the last token counts.",
        "selective_scan/scan_tiles.cuh",
        "t >= tokens.behind)) own_dt[t] = 0.0f;",
        "t > tokens.behind)) own_dt[t] = 0.0f;",
        (_TILES_PARTS, "selective_scan_fn-2-35-43", _TILES),
    ),
    Mutant(
        "A tile's dt of both parts is one part's.",
        "common/warp.cuh",
        "all[i] = is_upper ? other : own[i];",
        "all[i] = own[i];",
        (_TILES_PARTS,),
    ),
    Mutant(
        "All vectors of a lane's tokens are copied to the place of its first.",
        "selective_scan/tiles.cuh",
        "if (n < d_state) copy(to[n][i]",
        "if (n < d_state) copy(to[n][0]",
        (_TILES_ALONE,),
    ),
    Mutant(
        "A long packed sequence's state goes to the slot of its number.",
        "selective_scan/selective_scan_varlen_fwd.cu",
        "static_cast<state_t*>(p.ssm_states) + slot * stride[0] + scan.channel * stride[1]",
        "static_cast<state_t*>(p.ssm_states) + number * stride[0] + scan.channel * stride[1]",
        ("selective_scan_varlen_fn-5-16+8+40-d_state_24",),
    ),
    Mutant(
        "A packed sequence without a slot is left as it was.",
        "selective_scan/selective_scan_varlen_tiles_fwd.cu",
        "        scan.store_zeros(begin, end);\n        return;",
        "        return;",
        ("selective_scan_varlen_fn-33-30+40+50-slots_odd",),
    ),
    Mutant(
        "A sequence of as many tokens as count as few is left out.",
        "selective_scan/runs.cuh",
        "tokens > few && tokens <= most",
        "tokens > few && tokens < most",
        ("selective_scan_varlen_fn-35-24+8-loud_20",),
    ),
    Mutant(
        "The state of a short sequence is one that begins anew.",
        "selective_scan/scan_few.cuh",
        "if (run.has_past_of(i)) {",
        "if (false) {",
        (_FEW,),
    ),
    Mutant(
        "A short sequence's lane reads its neighbour's B.",
        "selective_scan/scan_few.cuh",
        "b[i] = from_lane(matrices, i * kLanes + lane_id() % kLanes);",
        "b[i] = from_lane(matrices, i * kLanes + (lane_id() + 1) % kLanes);",
        (_FEW,),
    ),
    Mutant(
        "The gradient of u leaves out D.",
        "selective_scan/selective_scan_bwd.cu",
        "D * gy.to_float(j)",
        "0.0f * gy.to_float(j)",
        (_SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "The gradient of the decay leaves out the first token's state.",
        "selective_scan/selective_scan_bwd.cu",
        "if (t > 0) e = fmaf(e, decay[k][t], pull[k][t - 1]);",
        "if (t > 1) e = fmaf(e, decay[k][t], pull[k][t - 1]);",
        (_SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "The slope of the softplus is 1.",
        "selective_scan/selective_scan_bwd.cu",
        "(p.delta_softplus ? sigmoid : 1.0f)",
        "1.0f",
        (_SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "The states before chunks are found with the decay of the chunk before.",
        "selective_scan/selective_scan_bwd_states.cu",
        "for (int t = 0; t < kTokens; ++t) steps += dt[t];",
        "for (int t = 1; t < kTokens; ++t) steps += dt[t];",
        (_SCAN_BWD,),
    ),
    Mutant(
        "The gradients of B and C leave out the last split.",
        "selective_scan/selective_scan_bwd_matrices.cu",
        "if (from + i < splits) sum += part[i];",
        "if (from + i < splits - 1) sum += part[i];",
        (_SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "The gradients of parameters leave out the last chunk.",
        "selective_scan/selective_scan_bwd_parameters.cu",
        "if (from + i < chunks) sum += part[i];",
        "if (from + i + 1 < chunks) sum += part[i];",
        (_SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "Counters and the places that blocks wait for keep what was in memory.",
        "selective_scan/selective_scan_bwd_start.cu",
        "if (at >= p.filled) return;",
        "if (at < p.filled) return;",
        (_SCAN_BWD,),
    ),
    Mutant(
        "Blocks are not numbered from 0.",
        "selective_scan/selective_scan_bwd_start.cu",
        "unset.words[i] = kUnset;",
        "unset.words[i] = 0u;",
        (_SCAN_BWD,),
    ),
    Mutant(
        "A lane that counts states from the last takes what comes after all of them.",
        "common/warp.cuh",
        "then[i] = is_last ? after[i] : upper_first;",
        "then[i] = after[i];",
        (_SCAN_BWD_FLOAT,),
    ),
)

_STATE_UPDATES = (
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
        (_STATE,),
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
        (_STATE_RANDOM,),
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
)

_NARROW = (
    Mutant(
        "A row's offset is forced to 32 bits.",
        "causal_conv1d/conv_row.cuh",
        "static_cast<const input_t*>(p.x) + batch * p.x_stride[0] + channel * p.x_stride[1];",
        "static_cast<const input_t*>(p.x) + static_cast<int>(batch * p.x_stride[0] + channel * p.x_stride[1]);",
        ("families/test_wide_strides.py::test_entries_gigabytes_apart[causal_conv1d_fn-2-3-1029-x_out]",),
    ),
    Mutant(
        "The offset of a row's results is forced to 32 bits.",
        "causal_conv1d/conv_row.cuh",
        "static_cast<input_t*>(p.out) + batch * p.out_stride[0] + channel * p.out_stride[1];",
        "static_cast<input_t*>(p.out) + static_cast<int>(batch * p.out_stride[0] + channel * p.out_stride[1]);",
        ("families/test_wide_strides.py::test_entries_gigabytes_apart[causal_conv1d_fn-1-3-40-x_out]",),
    ),
    Mutant(
        "The offset of contiguous channels is forced to 32 bits.",
        "causal_conv1d/causal_conv1d_channellast_fwd.cu",
        "static_cast<const input_t*>(p.x) + batch * p.x_stride[0] +",
        "static_cast<const input_t*>(p.x) + static_cast<int>(batch * p.x_stride[0]) +",
        (
            (
                "families/test_wide_strides.py::test_entries_gigabytes_apart"
                "[causal_conv1d_fn-2-6-35-layout_channel_last-final-x_final_states_out]"
            ),
        ),
    ),
    Mutant(
        "The slot of a packed sequence's state is found in 32 bits.",
        "causal_conv1d/conv_state.cuh",
        "slot * p.conv_states_stride[0] + channel * p.conv_states_stride[1];",
        "static_cast<int>(slot * p.conv_states_stride[0] + channel * p.conv_states_stride[1]);",
        (("families/test_wide_strides.py::test_entries_gigabytes_apart[causal_conv1d_varlen_fn-8-9+2-conv_states]"),),
    ),
    Mutant(
        "A sequence's own state is written by an offset of 32 bits.",
        "causal_conv1d/causal_conv1d_varlen_states.cu",
        "static_cast<input_t*>(p.out) + sequence * p.out_stride[0]",
        "static_cast<input_t*>(p.out) + static_cast<int>(sequence * p.out_stride[0])",
        (("families/test_wide_strides.py::test_entries_gigabytes_apart[causal_conv1d_varlen_states-8-8+1-4-out]"),),
    ),
    Mutant(
        "A decode step finds its slot in 32 bits.",
        "causal_conv1d/causal_conv1d_update.cu",
        "static_cast<state_t*>(p->conv_state) + slot * stride[0] +",
        "static_cast<state_t*>(p->conv_state) + static_cast<int>(slot * stride[0]) +",
        ("families/test_wide_strides.py::test_entries_gigabytes_apart[causal_conv1d_update-8-2-conv_state]",),
    ),
    Mutant(
        "A short state's slot is found in 32 bits.",
        "causal_conv1d/causal_conv1d_update_rows.cu",
        "packed[i].template load<Memory::kMutable>(pool + slot[i] * p.conv_state_stride[0]);",
        "packed[i].template load<Memory::kMutable>(pool + static_cast<int>(slot[i] * p.conv_state_stride[0]));",
        (
            (
                "families/test_wide_strides.py::test_entries_gigabytes_apart"
                "[causal_conv1d_update-8-2-pool_columns-conv_state]"
            ),
        ),
    ),
    Mutant(
        "A plain scan's row is found in 32 bits.",
        "selective_scan/scan.cuh",
        "static_cast<Pointee*>(base) + batch * stride[0] + channel * stride[1]",
        "static_cast<Pointee*>(base) + static_cast<int>(batch * stride[0]) + channel * stride[1]",
        ("families/test_wide_strides.py::test_entries_gigabytes_apart[selective_scan_fn-2-3-43-u_delta_out]",),
    ),
    Mutant(
        "A tile's matrices are found in 32 bits.",
        "selective_scan/scan_tiles.cuh",
        "static_cast<const T*>(base) + batch * stride[0] + group * stride[1];",
        "static_cast<const T*>(base) + static_cast<int>(batch * stride[0]) + group * stride[1];",
        ("families/test_wide_strides.py::test_entries_gigabytes_apart[selective_scan_fn-2-35-48-B_C]",),
    ),
    Mutant(
        "A scan finds its sequence's slot in 32 bits.",
        "selective_scan/scan_few.cuh",
        "static_cast<const State*>(p.ssm_states) + run.slot_of(i) * p.ssm_states_stride[0];",
        "static_cast<const State*>(p.ssm_states) + static_cast<int>(run.slot_of(i) * p.ssm_states_stride[0]);",
        (
            (
                "families/test_wide_strides.py::test_entries_gigabytes_apart"
                "[selective_scan_varlen_fn-3-16+8-spare_0-initial_all-ssm_states]"
            ),
        ),
    ),
    Mutant(
        "All offsets of a state update are in 32 bits.",
        "selective_state_update/selective_state_update.cu",
        "using Offset = Select<kIndex32, int, index_t>;",
        "using Offset = int;",
        ("families/test_wide_strides.py::test_entries_gigabytes_apart[selective_state_update-3-0-9-16-x_out]",),
    ),
    Mutant(
        "A state update finds its slot in 32 bits.",
        "selective_state_update/selective_state_update.cu",
        "const StateRows<Traits> from_rows = rows + slot * p.state_stride[0];",
        "const StateRows<Traits> from_rows = rows + static_cast<int>(slot * p.state_stride[0]);",
        (
            (
                "families/test_wide_strides.py::test_entries_gigabytes_apart"
                "[selective_state_update-2-0-9-16-spare_0-state]"
            ),
        ),
    ),
)

MUTANTS = (*_COMMON, *_CONVOLUTIONS, *_SCANS, *_STATE_UPDATES, *_NARROW)
"""All of them."""
