"""Bugs in dense convolutions."""

from __future__ import annotations

from tests.mutants import Mutant
from tests.mutants.planted.ids import FWD

_FWD_STATES = "causal_conv1d_fn-2-3-1029-width_6-dtype_float16-layout_sliced_alike-initial-final"
_FWD_ALL = "causal_conv1d_fn-1-2-513-width_5-dtype_float32-seq_idx-initial-final"
_ODD = "causal_conv1d_fn-2-24-19-width_6-weight_dtype_float32-others_strided-initial-final"
_SHORT = "causal_conv1d_fn-5-3-64-width_3-dtype_float16-weight_dtype_float32-seq_idx-initial-final"
_SHORT_WALK = "causal_conv1d_fn-1030-7-64-width_16-processors_1"
_SHORT_LANES = (
    "causal_conv1d_fn-605-8-72-width_9-dtype_float16-weight_dtype_float32-bias_float32-others_strided-activation_None"
    "-processors_1"
)
_LAST = "causal_conv1d_fn-2-130-21-dtype_float32-layout_channel_last-seq_idx-initial-final"
_ODD_CHANNELS = (
    "causal_conv1d_fn-2-130-40-dtype_float16-layout_last_sliced_dim_by_3-others_offset-seq_idx-initial-final"
)
_ODD_INNER = "causal_conv1d_fn-1-45-262-layout_last_sliced_dim_by_3-others_offset-seq_idx-initial-final"
_ODD_TOKENS = "causal_conv1d_fn-2-129-37-layout_last_sliced_dim_by_3"
_SHIFTED = "causal_conv1d_fn-1-9-1100-layout_sliced_seq-initial-final"
_GATED_DENSE = (
    "causal_conv1d_fn-2-3-300-width_7-dtype_float16-layout_offset_alike-seq_idx-initial-final-gates_pre_gate_post_gate"
    "-beside_offset_by_1"
)

_WIDE = "causal_conv1d_fn-1-2-2312-width_16-weight_dtype_float32-initial-final"
_WIDE_UNITS = "causal_conv1d_fn-1-2-2304-width_16-dtype_float16-activation_None"
_LAST_WIDE = "causal_conv1d_fn-1-136-75-width_16-dtype_float16-weight_dtype_float32-layout_channel_last-initial-final"
_LAST_UNITS = "causal_conv1d_fn-1-72-330-width_9-dtype_float16-layout_channel_last-processors_1"

MUTANTS = (
    Mutant(
        "A wide filter's walk inside a row has no tokens before it.",
        "causal_conv1d/causal_conv1d_wide_fwd.cu",
        "fetch(0, first_vec > 0);",
        "fetch(0, false);",
        (_WIDE,),
    ),
    Mutant(
        "A wide filter's row begins one token too early in its past.",
        "causal_conv1d/causal_conv1d_wide_fwd.cu",
        "(lane - kHaloVecs) * kVec, past)",
        "(lane - kHaloVecs) * kVec - 1, past)",
        (_WIDE,),
    ),
    Mutant(
        "A stage of a wide filter's row is filled before all lanes have read it.",
        "causal_conv1d/causal_conv1d_wide_fwd.cu",
        """        // The stage is free when all lanes have read it.
        sync_warp();
""",
        "",
        (_WIDE_UNITS,),
    ),
    Mutant(
        "The last unit of a wide filter's walk has a vector too many.",
        "causal_conv1d/causal_conv1d_wide_fwd.cu",
        "if (i * kWarpSize < left) store(",
        "if (i * kWarpSize <= left) store(",
        (_WIDE,),
    ),
    Mutant(
        "The row's last walk does not store the final state of a wide filter.",
        "causal_conv1d/causal_conv1d_wide_fwd.cu",
        "row_left <= params.walk_vecs && lane == 0",
        "row_left < 0 && lane == 0",
        (_WIDE,),
    ),
    Mutant(
        "A walk along contiguous channels inside a sequence has no tokens before it.",
        "causal_conv1d/causal_conv1d_channellast_wide_fwd.cu",
        "const bool has_past = token > 0;",
        "const bool has_past = false;",
        (_LAST_WIDE,),
    ),
    Mutant(
        "A stage of contiguous channels is filled before its results are stored.",
        "causal_conv1d/causal_conv1d_channellast_wide_fwd.cu",
        "int stage = 1, free_stage = 0;",
        "int stage = 1, free_stage = 2;",
        (_LAST_UNITS,),
    ),
    Mutant(
        "Results of contiguous channels leave before all lanes have written them.",
        "causal_conv1d/causal_conv1d_channellast_wide_fwd.cu",
        """        sync_warp();
#pragma unroll
        for (int i = 0; i < kTokens; i += kRows) {
            const Wide""",
        """#pragma unroll
        for (int i = 0; i < kTokens; i += kRows) {
            const Wide""",
        (_LAST_WIDE,),
    ),
    Mutant(
        "A wide filter stores a token behind the walk.",
        "causal_conv1d/causal_conv1d_channellast_wide_fwd.cu",
        "if (has_column && i + row < left)",
        "if (has_column && i + row <= left)",
        (_LAST_WIDE,),
    ),
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
        ("causal_conv1d_fn-2-9-1029-initial-final-processors_1",),
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
        "A short row of a wide filter follows the row before it.",
        "causal_conv1d/causal_conv1d_wideshort_fwd.cu",
        "vec > j ? lane - 1 - j : kWarpSize",
        "lane > j ? lane - 1 - j : kWarpSize",
        (_SHORT_WALK,),
    ),
    Mutant(
        "The last warp across short rows has channels behind the last one.",
        "causal_conv1d/causal_conv1d_wideshort_fwd.cu",
        "row_vec.quotient >= rows || channel >= p.dim",
        "row_vec.quotient >= rows",
        (_SHORT_LANES,),
    ),
    Mutant(
        "A walk over batch entries uses what comes one entry later.",
        "causal_conv1d/causal_conv1d_wideshort_fwd.cu",
        "stage = stage + 1 == kStages ? 0 : stage + 1;",
        "stage = stage + 1 == kStages ? 1 : stage + 1;",
        (_SHORT_WALK,),
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
        "Tokens that begin three elements behind an aligned address are moved by two.",
        "causal_conv1d/causal_conv1d_oddchannels_fwd.cu",
        "move_later<3, kStart>(rows);",
        "move_later<2, kStart>(rows);",
        (_ODD_TOKENS,),
    ),
    Mutant(
        "A lane stores what ends behind an unaligned token's last channel.",
        "causal_conv1d/causal_conv1d_oddchannels_fwd.cu",
        "channel + 2 * kVec - 1 <= p.dim;",
        "channel + kVec - 1 <= p.dim;",
        (_ODD_CHANNELS,),
    ),
    Mutant(
        "The past of unaligned tokens is that of the vector's first channel.",
        "causal_conv1d/causal_conv1d_oddchannels_fwd.cu",
        "load_past<kWidth, input_t>(p, batch, channel + c, token + i - kHalo)",
        "load_past<kWidth, input_t>(p, batch, channel, token + i - kHalo)",
        (_ODD_CHANNELS,),
    ),
    Mutant(
        "Unaligned tokens begin with the end of the batch entry in front of theirs.",
        "causal_conv1d/causal_conv1d_oddchannels_fwd.cu",
        "select(i < begin, Vector::zero(), x[i])",
        "select(i < begin, x[i], x[i])",
        (_ODD_TOKENS,),
    ),
    Mutant(
        "Unaligned tokens of several sequences count as one sequence's.",
        "causal_conv1d/causal_conv1d_oddchannels_fwd.cu",
        "lanes_where(own_seq != first_seq) == 0",
        "lanes_where(own_seq != own_seq) == 0",
        (_ODD_CHANNELS,),
    ),
    Mutant(
        "The first unaligned tokens count as tokens inside a sequence.",
        "causal_conv1d/causal_conv1d_oddchannels_fwd.cu",
        "token > Traits::kHalo && token + kTokens < p.seqlen",
        "token + kTokens < p.seqlen",
        (_ODD_INNER,),
    ),
    Mutant(
        "The last unaligned tokens count as tokens inside a sequence.",
        "causal_conv1d/causal_conv1d_oddchannels_fwd.cu",
        "token > Traits::kHalo && token + kTokens < p.seqlen",
        "token > Traits::kHalo",
        (_ODD_INNER,),
    ),
    Mutant(
        "The last of all unaligned tokens ends as the first one begins.",
        "causal_conv1d/causal_conv1d_oddchannels_fwd.cu",
        "select(i == begin, parts[0], parts[1])",
        "select(i == begin, parts[0], parts[0])",
        (_ODD_TOKENS,),
    ),
    Mutant(
        "The filters of unaligned tokens' last channels are those of the last one.",
        "causal_conv1d/causal_conv1d_oddchannels_fwd.cu",
        "min(channel + c, p.dim - 1);",
        "p.dim - 1;",
        (_ODD_CHANNELS,),
    ),
    Mutant(
        "The highest lane's shifted vector ends in the lowest lane's own.",
        "common/warp.cuh",
        "lane_id() == 0 ? after.words[i] : v.words[i];",
        "v.words[i];",
        (_SHIFTED,),
    ),
    Mutant(
        "A shifted row lacks its past.",
        "causal_conv1d/conv_row.cuh",
        "for (int i = 0; i < kLaneVecs; ++i) add_past",
        "for (int i = 1; i < kLaneVecs; ++i) add_past",
        (_SHIFTED,),
    ),
    Mutant(
        "Taps that are not packed are read without their stride.",
        "causal_conv1d/conv_channels.cuh",
        "weight[k * p.weight_stride[1]]",
        "weight[k]",
        ("causal_conv1d_fn-2-3-65-width_2-layout_channel_last-others_strided-initial",),
    ),
    Mutant(
        "Rows with gates lack their past.",
        "causal_conv1d/conv_row.cuh",
        "            add_past<kWidth>(p, row, row.first_token(first_vec + i * kWarpSize), x[i]);\n",
        "",
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
)
