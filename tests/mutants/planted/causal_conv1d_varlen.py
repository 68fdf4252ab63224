"""Bugs in convolutions of packed sequences, but for results over x."""

from __future__ import annotations

from tests.mutants import Mutant
from tests.mutants.planted.ids import MOVED_ROWS

_VARLEN = "causal_conv1d_varlen_fn-136-2x0+19+2+0+3x1+50+0-slots_odd-index_int64"
_VARLEN_ROWS = "causal_conv1d_varlen_fn-3-513+0+260+1-width_6-dtype_float16-layout_tokens_aligned-pool_columns"
_SINGLE_ROWS = "causal_conv1d_varlen_fn-40-300x1-layout_tokens-pool_columns"
_SINGLE_ROWS_AMONG = (
    "causal_conv1d_varlen_fn-72-31x1+2+97x1+3+0+60x1+off2-weight_dtype_float32-layout_tokens-pool_columns-initial_all"
)
_STAGED = (
    "causal_conv1d_varlen_fn-136-off3+9+1+30+2+0+25+3x5+41+60+4x7+off2+120+3+3-dtype_float16-layout_tokens-pool_columns"
    "-processors_1"
)
_STAGED_MANY = "causal_conv1d_varlen_fn-64-300x2-layout_tokens-pool_columns-slots_None-processors_1"
_STAGED_FAR = (
    "causal_conv1d_varlen_fn-40-140x2+1000+140x2-layout_tokens-pool_columns-slots_odd-initial_all-processors_1"
)
_SHORTROWS = "causal_conv1d_varlen_fn-36-off3+253+1+255+1+2+3+63+65+off9+20x1+0+93-layout_tokens-slots_odd-initial_all"
_SINGLES = "causal_conv1d_varlen_fn-252-off2+70x1+3+0+40x1+2x2+5+20x1+off1-slots_odd-processors_1"
_SINGLES_MOVED = (
    "causal_conv1d_varlen_fn-252-off2+70x1+3+0+40x1+2x2+5+20x1+off1-width_3-dtype_float16-weight_dtype_float32"
    "-initial_all-moved-processors_1"
)
_WHOLE = "causal_conv1d_varlen_fn-252-off2+30x3+0+40x2+2x5+33+20x1+9+32+off3-slots_odd-processors_1"
_ROUTED = "causal_conv1d_split-61,3,1,1,6,64-40+0+3x1-slots_odd"
_L2NORM = "causal_conv1d_qkv_split-2,1,2,64,64,32-off5+20+0+3-l2norm"
_L2NORM_SMALL = (
    "causal_conv1d_qkv_split-2,3,2,1,1,1-12+3-width_2-dtype_float32-state_dtype_float16-out_spaced-others_strided-l2norm"
    "-eps_0.25"
)
_L2NORM_LONG = "causal_conv1d_qkv_split-2,1,2,64,64,32-off5+420+0+3+90-l2norm-processors_1"
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
_SNAPSHOTS_ROWS = (
    "causal_conv1d_varlen_fn-33-off2+20+0+3x1+30+2-dtype_float16-layout_tokens-pool_columns-slots_odd-longer_2"
    "-snapshots_pool"
)
_SNAPSHOTS_RUNS = (
    "causal_conv1d_varlen_fn-72-off3+130+0+2x1+127+9+90-layout_tokens-pool_columns-slots_odd-snapshots_pool"
)
_SNAPSHOTS_FLOAT32 = (
    "causal_conv1d_varlen_fn-68-off3+130+0+2x1+127+9+90-width_5-dtype_float32-layout_tokens-pool_columns-index_int64"
    "-snapshots_pool"
)
_MANY_ROWS = (
    "causal_conv1d/test_slots.py::test_states_that_hold_inputs_of_the_old_one_are_found_among_many_rows[32-C-emulator]"
)
_EVERY_TOKEN = "causal_conv1d/test_slots.py::test_states_after_every_token_are_the_inputs_before_them[6-C-emulator]"
_EVERY_TOKEN_WHOLE = _EVERY_TOKEN.replace("[6", "[32")
_SNAPSHOTS_L2NORM = "causal_conv1d_qkv_split-1,1,1,256,256,8-12+3+1-dtype_float32-initial_all-snapshots_whole-l2norm"
_GATED = "causal_conv1d_varlen_fn-136-off2+20+0+3x1+30+2-width_3-initial_all-activation_None-gates_pre_gate_post_gate"
_GATED_ROWS = (
    "causal_conv1d_varlen_fn-3-off2+20+0+3x1+30+2-width_7-layout_tokens-initial_all-activation_None"
    "-gates_pre_gate_post_gate-beside_tokens_sliced"
)
_DENSE = "causal_conv1d_varlen_fn-5-3x1029-layout_channel_first-pool_columns-initial_all-moved-snapshots_pool-dense"
_MOVED = "causal_conv1d_varlen_fn-136-5x9+2x2+17-pool_channels_longer-slots_odd-index_mixed-table_column-moved"
_MOVED_SHORT = (
    "causal_conv1d_varlen_fn-33-5x9+2x2+17-layout_tokens-pool_columns-slots_odd-index_mixed-table_column-moved"
)
_MOVED_STEP = "causal_conv1d_update-136-14-slots_odd-index_mixed-table_column-longer_3-moved"
_KEPT = "causal_conv1d_varlen_fn-136-off2+20+3x1+30+off4-pool_channels_longer-slots_odd-longer_2-keep"
_READ_ONLY = "causal_conv1d_varlen_fn-136-20+0+2x1+30-pool_channels_longer-initial_None-read_only"

MUTANTS = (
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
        "rsqrtf(own + eps)",
        "rsqrtf(own)",
        (_L2NORM_EPS,),
    ),
    Mutant(
        "Eps is dropped where a head has few lanes.",
        "causal_conv1d/causal_conv1d_varlen_l2norm_fwd.cu",
        "rsqrtf(sums[i] + eps)",
        "rsqrtf(sums[i])",
        (_L2NORM_SMALL,),
    ),
    Mutant(
        "Tokens of a long tile are divided by the norm of its first one.",
        "causal_conv1d/causal_conv1d_varlen_l2norm_fwd.cu",
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
        """    if constexpr (!kStaged) __syncthreads();
    // Where the tile lies""",
        "    // Where the tile lies",
        (_SHORTROWS,),
    ),
    Mutant(
        "Short rows are walked before their copies are waited for.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        """    } else {
        wait_for_copies();
    }
    __syncthreads();""",
        """    }
    __syncthreads();""",
        (_SHORTROWS,),
    ),
    Mutant(
        "Prefixes of short rows are finished before the walk has passed them.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        """    if (kStaged) wait_for_copies();
    __syncthreads();""",
        "    if (kStaged) wait_for_copies();",
        (_SHORTROWS,),
    ),
    Mutant(
        "A short sequence's state keeps the inputs before its last ones.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "input<kIsInside>(end - kHalo + i)",
        "input<kIsInside>(end - kHalo + i - 1)",
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
        "Prefixes of short rows are finished before the states in shared memory are there.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "    if (kStaged) wait_for_copies();\n",
        "",
        (_STAGED,),
    ),
    Mutant(
        "States in shared memory are stored before all prefixes have been finished.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        """            __syncthreads();
            states.store(""",
        "            states.store(",
        (_STAGED,),
    ),
    Mutant(
        "Sequences beyond those with room for their states in shared memory go on from the states of the first ones.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "states.fetch(shared, p, first_channel, behind);",
        "states.fetch(shared, p, first_channel, 0);",
        (_STAGED_MANY,),
    ),
    Mutant(
        "The state in shared memory keeps the inputs before a sequence's last ones.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "(x + end - kHalo + i)",
        "(x + end - kHalo + i - 1)",
        (_STAGED,),
    ),
    Mutant(
        "Runs of a tile that are not where they are looked for are left out.",
        "causal_conv1d/conv_short_staged.cuh",
        "are_missed ? -kRuns : __popc(lanes);",
        "__popc(lanes);",
        (_STAGED_FAR,),
    ),
    Mutant(
        "The second warp lists its runs over those of the first.",
        "causal_conv1d/conv_short_staged.cuh",
        "if (i < warp) place += listed[i];",
        "",
        (_STAGED_MANY,),
    ),
    Mutant(
        "A tile's leading tokens in an earlier sequence's prefix are stored again, where states are in shared memory.",
        "causal_conv1d/conv_short_staged.cuh",
        "shared.left_out = max(min(end, begin + Tile::kHalo) - first, 0);",
        "shared.left_out = 0;",
        (_STAGED,),
    ),
    Mutant(
        "A tile of single tokens is convolved before its states are there.",
        "causal_conv1d/conv_short_singles.cuh",
        "    wait_for_copies();\n    __syncthreads();",
        "    __syncthreads();",
        (_SINGLE_ROWS,),
    ),
    Mutant(
        "A tile of single tokens is stored before all of them are convolved.",
        "causal_conv1d/conv_short_singles.cuh",
        """    }
    __syncthreads();
    visit_units""",
        """    }
    visit_units""",
        (_SINGLE_ROWS,),
    ),
    Mutant(
        "A longer sequence among single tokens counts as one of them.",
        "causal_conv1d/conv_short_singles.cuh",
        "place.begin == token && place.length == 1;",
        "place.begin == token;",
        (_SINGLE_ROWS_AMONG,),
    ),
    Mutant(
        "The sequences of single tokens are taken for those at the numbers of their tokens.",
        "causal_conv1d/conv_short_singles.cuh",
        "place.begin == token && place.length == 1;",
        "place.length == 1;",
        (_SINGLE_ROWS_AMONG,),
    ),
    Mutant(
        "A new sequence of one token goes on from what its slot holds.",
        "causal_conv1d/conv_short_singles.cuh",
        "place.has_past ? place.slot : ~place.slot;",
        "place.slot;",
        (_SINGLE_ROWS,),
    ),
    Mutant(
        "The second of a lane's two channels keeps the state of the first.",
        "causal_conv1d/conv_short_singles.cuh",
        "const int last = c * kHalo + kHalo - 1;",
        "const int last = kHalo - 1;",
        (_SINGLE_ROWS,),
    ),
    Mutant(
        "Of the channels of a block of single tokens only 32 are taken where a longer sequence is among them.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "group < groups; ++group",
        "group < 1; ++group",
        (_SINGLE_ROWS_AMONG,),
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
        "Tiles store results of short sequences, too, which begin with a later token.",
        "causal_conv1d/conv_tile.cuh",
        "end - begin <= whole ? whole : halo",
        "end - begin <= whole ? halo - 1 : halo",
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
        (_MOVED, _MOVED_STEP, _MOVED_SHORT),
    ),
    Mutant(
        "A short sequence's final state stays in the slot that the sequence starts from.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "kAddressed ? load_target<kAddressed>(p, shared.number[number], start) : start;",
        "start;",
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
        (_SNAPSHOTS, _SNAPSHOTS_L2NORM, _SNAPSHOTS_ROWS),
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
        (_SNAPSHOTS_ROWS, _SNAPSHOTS),
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
        "Snapshots in short rows hold the inputs one token later.",
        "causal_conv1d/conv_short_snapshots.cuh",
        "int place = behind - p.snapshot_columns;",
        "int place = behind - p.snapshot_columns + (behind < Tile::kTile ? 1 : 0);",
        (_SNAPSHOTS_ROWS,),
    ),
    Mutant(
        "The columns of a snapshot in one run of memory are in another order.",
        "causal_conv1d/conv_short_snapshots.cuh",
        "load<1, Memory::kMutable>(from[i % kHalo] +",
        "load<1, Memory::kMutable>(from[(i + 1) % kHalo] +",
        (_SNAPSHOTS_RUNS,),
    ),
    Mutant(
        "Snapshots in one run of memory are left out where their inputs are in another tile.",
        "causal_conv1d/conv_short_snapshots.cuh",
        "} else if (is_run) {",
        "} else if (false) {",
        (_EVERY_TOKEN_WHOLE,),
    ),
    Mutant(
        "Of the rows that a warp looks at, it stores the first alone.",
        "causal_conv1d/conv_short_snapshots.cuh",
        "if ((others >> i * kLanes & 1) != 0) store_columns",
        "if (i == 0 && (others & 1) != 0) store_columns",
        (_SNAPSHOTS_ROWS,),
    ),
    Mutant(
        "A tile stores the snapshots of prefixes, too.",
        "causal_conv1d/conv_short_snapshots.cuh",
        "& !snapshot.is_left(p, start, may_go_on);",
        ";",
        (_SNAPSHOTS_ROWS, _SNAPSHOTS_RUNS),
    ),
    Mutant(
        "The last tile's share of the rows of snapshots ends as those of others.",
        "causal_conv1d/conv_short_snapshots.cuh",
        "const unsigned end = tile + 1 == tiles ? count : __umulhi",
        "const unsigned end = __umulhi",
        (_EVERY_TOKEN,),
    ),
    Mutant(
        "Snapshots are left to the prefix of the first sequence alone that begins in a tile.",
        "causal_conv1d/conv_short_snapshots.cuh",
        "static_cast<unsigned>(shared.number[last]) - first;",
        "0;",
        (_SNAPSHOTS_ROWS, _SNAPSHOTS_RUNS),
    ),
    Mutant(
        "A tile leaves no snapshots to sequences that begin behind its first token.",
        "causal_conv1d/conv_short.cuh",
        "has_begin || (is_listed && slot >= 0 && begin >= first);",
        "has_begin || (is_listed && slot >= 0 && begin == first);",
        (_SNAPSHOTS_RUNS,),
    ),
    Mutant(
        "Of the rows that are left to prefixes, those that the first warp looks at are stored.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "rows_of_prefixes = enclosing(left_rows);",
        "rows_of_prefixes = left_rows[0];",
        (_MANY_ROWS,),
    ),
    Mutant(
        "A thread looks at one row for those that are left to prefixes.",
        "causal_conv1d/conv_short_snapshots.cuh",
        "if (group >= rows) return found;",
        "if (group >= min(rows, Tile::kThreads)) return found;",
        (_MANY_ROWS,),
    ),
    Mutant(
        "A snapshot over its sequence's start is not left to the prefix.",
        "causal_conv1d/conv_short_snapshots.cuh",
        "(snapshot.slot == shared.runs[run].slot)",
        "(snapshot.slot == ~shared.runs[run].slot)",
        (_MANY_ROWS,),
    ),
    Mutant(
        "A sequence in addressed slots goes on from its state where it is to start from zeros.",
        "causal_conv1d/conv_short.cuh",
        "p.has_initial_state != nullptr ? past != 0 :",
        "p.has_initial_state != nullptr ? true :",
        (_SNAPSHOTS_ROWS,),
    ),
    Mutant(
        "A warp that copies no rows of a tile leaves out its share of the tokens before the tile.",
        "causal_conv1d/conv_short.cuh",
        """            if (kOthers == 0 || static_cast<int>(threadIdx.x) < kRows * Tile::kUnits) {
""",
        """            if (kOthers > 0 && static_cast<int>(threadIdx.x) >= kRows * Tile::kUnits) return;
            {
""",
        (_SNAPSHOTS_FLOAT32,),
    ),
    Mutant(
        "A warp stores the tile's snapshots out of the first rows only.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "        while (rows.begin < rows.end) {",
        "        if (rows.begin < rows.end) {",
        (_EVERY_TOKEN,),
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
