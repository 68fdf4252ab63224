"""Bugs in convolutions of packed sequences, but for contiguous tokens alone and results over x."""

from __future__ import annotations

from tests.mutants import Mutant
from tests.mutants.planted.ids import MOVED_ROWS, MOVED_SHORT, SNAPSHOTS_ROWS

_VARLEN = "causal_conv1d_varlen_fn-136-2x0+19+2+0+3x1+50+0-slots_odd-index_int64"
_SINGLES = "causal_conv1d_varlen_fn-252-off2+70x1+3+0+40x1+2x2+5+20x1+off1-slots_odd-processors_1"
_SINGLES_MOVED = (
    "causal_conv1d_varlen_fn-252-off2+70x1+3+0+40x1+2x2+5+20x1+off1-width_3-dtype_float16-weight_dtype_float32"
    "-initial_all-moved-processors_1"
)
_WHOLE = "causal_conv1d_varlen_fn-252-off2+30x3+0+40x2+2x5+1+33+20x1+9+32+off3-slots_odd-processors_1"
_ROUTED = "causal_conv1d_split-61,3,1,1,6,64-40+0+3x1-slots_odd"
_L2NORM = "causal_conv1d_qkv_split-2,1,2,64,64,32-off5+20+0+3-l2norm"
_L2NORM_SMALL = (
    "causal_conv1d_qkv_split-2,3,2,1,1,1-12+3-width_2-dtype_float32-state_dtype_float16-out_spaced-others_strided-l2norm"
    "-eps_0.25"
)
_L2NORM_LONG = "causal_conv1d_qkv_split-2,1,2,64,64,32-off5+420+0+3+90-l2norm-processors_1"
_L2NORM_WALKED = "causal_conv1d_qkv_split-2,1,2,64,64,32-off5+9x1+0+2+17+14+0+3+31+40in200+off4-l2norm-processors_1"
_L2NORM_EPS = "causal_conv1d_qkv_split-2,2,1,5,5,3-12+3-slots_odd-l2norm-eps_0.01"
_STATES = "causal_conv1d_varlen_states-136-9x1+7-3-out_channels-index_int64"
_STATES_EVERY = "causal_conv1d_varlen_states-6-2+30-16-dtype_float32-layout_sliced_by_2-out_channels-spacing_3"
_CARRIED = "causal_conv1d_varlen_states-136-2+4+0+3+off2+1-4-out_channels-previous_channels_sliced"
_STATES_MANY = "causal_conv1d_varlen_states-8208-4x2+0+7x12+off3+2x1+5-9-out_channels-previous_channels"
_SNAPSHOTS = "causal_conv1d_varlen_fn-136-off2+20+0+3x1+30+2-pool_channels_longer-slots_odd-longer_2-snapshots_pool"
_SNAPSHOTS_MOVED = "causal_conv1d_varlen_fn-16-9+70+3-width_16-initial_all-moved-snapshots_pool"
_SNAPSHOTS_WHOLE = (
    "causal_conv1d_varlen_fn-136-off2+20+3x1+30+off4-others_strided-pool_channels_longer-initial_all-snapshots_whole"
)
_SNAPSHOTS_L2NORM = "causal_conv1d_qkv_split-1,1,1,256,256,8-12+3+1-dtype_float32-initial_all-snapshots_whole-l2norm"
_GATED = "causal_conv1d_varlen_fn-136-off2+20+0+3x1+30+2-width_3-initial_all-activation_None-gates_pre_gate_post_gate"
_GATED_ROWS = (
    "causal_conv1d_varlen_fn-3-off2+20+0+3x1+30+2-width_7-layout_tokens-initial_all-activation_None"
    "-gates_pre_gate_post_gate-beside_tokens_sliced"
)
_DENSE = "causal_conv1d_varlen_fn-5-3x1029-layout_channel_first-pool_columns-initial_all-moved-snapshots_pool-dense"
_MOVED = "causal_conv1d_varlen_fn-136-5x9+2x2+17-pool_channels_longer-slots_odd-index_mixed-table_column-moved"
_MOVED_STEP = "causal_conv1d_update-136-14-slots_odd-index_mixed-table_column-longer_3-moved"
_KEPT = "causal_conv1d_varlen_fn-136-off2+20+3x1+30+off4-pool_channels_longer-slots_odd-longer_2-keep"
_READ_ONLY = "causal_conv1d_varlen_fn-136-20+0+2x1+30-pool_channels_longer-initial_None-read_only"

_ALL_LENGTHS = (
    "causal_conv1d_varlen_fn-136-1+2+3+4+5+90-pool_channels_longer-slots_None-initial_all-pad_slot_id_1-moved-null"
)

MUTANTS = (
    Mutant(
        "The prefixes of a block are all that of its first sequence.",
        "causal_conv1d/causal_conv1d_varlen_fwd.cu",
        "p, rows, first + row, channel);",
        "p, rows, first, channel);",
        (_VARLEN,),
    ),
    Mutant(
        "The block's tile of packed sequences is one row further.",
        "causal_conv1d/conv_tile.cuh",
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
        "causal_conv1d/conv_l2norm.cuh",
        "rsqrtf(own + eps)",
        "rsqrtf(own)",
        (_L2NORM_EPS,),
    ),
    Mutant(
        "Eps is dropped where a head has few lanes.",
        "causal_conv1d/conv_l2norm.cuh",
        "rsqrtf(sums[i] + eps)",
        "rsqrtf(sums[i])",
        (_L2NORM_SMALL,),
    ),
    Mutant(
        "Tokens of a long tile are divided by the norm of its first one.",
        "causal_conv1d/conv_l2norm.cuh",
        "from_group_lane<kAtOnce>(scale, i)",
        "from_group_lane<kAtOnce>(scale, 0)",
        (_L2NORM_LONG,),
    ),
    Mutant(
        "Lanes without channels add another lane's squares to a norm.",
        "causal_conv1d/causal_conv1d_varlen_l2norm_fwd.cu",
        "if (is_idle) sums[i] = 0.0f;",
        "",
        (
            (
                "causal_conv1d_qkv_split-2,1,1,96,96,64-12+3-width_3-dtype_float16-weight_dtype_float32"
                "-state_dtype_float32-pool_columns-activation_None-l2norm"
            ),
        ),
    ),
    Mutant(
        "The range of values is normalised, too.",
        "causal_conv1d/conv_l2norm.cuh",
        "is_normalized = range < params.normalized;",
        "is_normalized = range <= params.normalized;",
        (_L2NORM,),
    ),
    Mutant(
        "A warp leaves the rest of a prefix to the next tile.",
        "causal_conv1d/causal_conv1d_varlen_l2norm_short_fwd.cu",
        "min(behind, max(kTokens, first + kHalo))",
        "min(behind, kTokens)",
        (_L2NORM_WALKED,),
    ),
    Mutant(
        "A tile has the tokens of a prefix that begins before it.",
        "causal_conv1d/causal_conv1d_varlen_l2norm_short_fwd.cu",
        "own_results |= bits(first + kHalo, min(behind, kTokens));",
        "own_results |= bits(first, min(behind, kTokens));",
        (_L2NORM_WALKED,),
    ),
    Mutant(
        "A sequence of a tile goes on from the state of the first one.",
        "causal_conv1d/causal_conv1d_varlen_l2norm_short_fwd.cu",
        "current = first + i;",
        "current = lowest(sequences.begins);",
        (_L2NORM_WALKED,),
    ),
    Mutant(
        "The last sequence of a tile keeps its state where it goes on behind the tile.",
        "causal_conv1d/causal_conv1d_varlen_l2norm_short_fwd.cu",
        "if (end != 0) {\n        wait_for_copies();",
        "if (false) {\n        wait_for_copies();",
        (_L2NORM_WALKED,),
    ),
    Mutant(
        "A warp takes the first single token that its lanes have looked up for all of them.",
        "causal_conv1d/conv_state.cuh",
        "places[lowest(whole)]",
        "places[0]",
        (_SINGLES,),
    ),
    Mutant(
        "The state behind a single token keeps its earliest input.",
        "causal_conv1d/conv_state.cuh",
        "store<Keep::kStream>(to, inputs[k]);",
        "store<Keep::kStream>(to, inputs[k - 1]);",
        (_SINGLES,),
    ),
    Mutant(
        "The state behind a single token goes to the slot that the sequence starts from.",
        "causal_conv1d/conv_state.cuh",
        "const int target = kAddressed ? place.target : place.slot;",
        "const int target = place.slot;",
        (_SINGLES_MOVED,),
    ),
    Mutant(
        "The state behind a short sequence is that before its last token.",
        "causal_conv1d/conv_state.cuh",
        "last[c] = window[c][k];",
        "last[c] = window[c][k - 1];",
        (_WHOLE,),
    ),
    Mutant(
        "A warp that walks a short sequence keeps the four tokens that it began with.",
        "causal_conv1d/conv_state.cuh",
        "        load_tokens(left);\n",
        "",
        (_WHOLE,),
    ),
    Mutant(
        "Tiles leave out sequences that are one token too long to be convolved as a whole.",
        "causal_conv1d/conv_tile.cuh",
        "max(halo, whole),",
        "max(halo, whole + 1),",
        (_WHOLE,),
    ),
    Mutant(
        "Among single tokens, tiles with other tokens are left out.",
        "causal_conv1d/conv_tile.cuh",
        "tokens |= roles[i].inner | roles[i].padding;",
        "tokens |= roles[i].padding;",
        (_SINGLES_MOVED,),
    ),
    Mutant(
        "Columns of a state are counted from the sequence's first token.",
        "causal_conv1d/causal_conv1d_varlen_states.cu",
        "const index_t token = end - p.columns + column;",
        "const index_t token = begin + column;",
        (_STATES_EVERY,),
    ),
    Mutant(
        "Threads begin one column apart, not MANY_COLUMNS.",
        "causal_conv1d/causal_conv1d_varlen_states.cu",
        "const int first = sequence_part.remainder * kColumns;",
        "const int first = sequence_part.remainder;",
        (_STATES_MANY,),
    ),
    Mutant(
        "A sequence shorter than its state reads the tokens before it.",
        "causal_conv1d/causal_conv1d_varlen_states.cu",
        "if (token >= begin) {",
        "if (token >= 0) {",
        (_STATES,),
    ),
    Mutant(
        "A final state stays in the slot that its sequence starts from.",
        "common/sequences.cuh",
        "if (p.dst_state_indices == nullptr) return start;",
        "return start;",
        (_MOVED, _MOVED_STEP, MOVED_ROWS),
    ),
    Mutant(
        "A slot is taken out of the first column, whatever state_column says.",
        "common/sequences.cuh",
        "place += column * p.slot_column_stride;",
        "place += 0;",
        (_MOVED, _MOVED_STEP, MOVED_SHORT),
    ),
    Mutant(
        "The last token of a sequence that is one token longer than its prefix is left out.",
        "causal_conv1d/conv_varlen.cuh",
        "end - begin > prefix)",
        "end - begin > prefix + 1)",
        (_ALL_LENGTHS,),
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
        (_SNAPSHOTS, _SNAPSHOTS_L2NORM, SNAPSHOTS_ROWS),
    ),
    Mutant(
        "A snapshot near the sequence's start has zeros in place of the state.",
        "causal_conv1d/conv_snapshots.cuh",
        "source.goes_on ? -static_cast<int>(p.first_column) - (kWidth - 1) : 0",
        "0",
        (_SNAPSHOTS, _SNAPSHOTS_WHOLE),
    ),
    Mutant(
        "A snapshot of whole states reads the state's columns before the filter's as zeros.",
        "causal_conv1d/conv_snapshots.cuh",
        "-static_cast<int>(p.first_column) - (kWidth - 1)",
        "-(kWidth - 1)",
        (_SNAPSHOTS_WHOLE,),
    ),
    Mutant(
        "A snapshot over the slot that its sequence starts from is not stored.",
        "causal_conv1d/conv_snapshots.cuh",
        "if (source.is_over_start(p, snapshot) != is_over_start) continue;",
        "if (source.is_over_start(p, snapshot) || is_over_start) continue;",
        (_SNAPSHOTS_MOVED,),
    ),
    Mutant(
        "Rows of snapshots behind the count are stored.",
        "common/snapshots.cuh",
        "count > p.snapshot_rows ? p.snapshot_rows : static_cast<int>(count)",
        "p.snapshot_rows",
        (_SNAPSHOTS, _SNAPSHOTS_WHOLE, "selective_scan_varlen_fn-128-200+236+300+200-slots_odd-longer_2-snapshots_own"),
    ),
    Mutant(
        "Only the first rows of snapshots of a block's sequences are found.",
        "common/snapshots.cuh",
        "from + highest(hits) + 1}",
        "from + lowest(hits) + 1}",
        (_SNAPSHOTS_MOVED, _SNAPSHOTS_WHOLE),
    ),
    Mutant(
        "A snapshot behind its sequence's last token is stored.",
        "causal_conv1d/conv_snapshots.cuh",
        "length > 0 && snapshot.position <= length;",
        "length > 0;",
        (SNAPSHOTS_ROWS, _SNAPSHOTS),
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
