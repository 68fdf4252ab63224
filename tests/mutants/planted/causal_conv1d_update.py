"""Bugs in decode steps of convolutions."""

from __future__ import annotations

from tests.mutants import Mutant

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
_UPDATE_ROWS_LONGER = "causal_conv1d_update-53-3-seqlen_1-pool_columns_and_one"
_MOVED_RING = (
    "causal_conv1d_update-136-14-seqlen_3-pool_channels_longer-slots_odd-index_mixed-mode_circular-longer_3-moved"
)
_PACKED_MOST = "causal_conv1d_update-136-9-slots_odd-table_column-moved-lengths_4,0,2,7,1-most_3"
_PACKED_BEHIND = "causal_conv1d_update-136-9-pool_channels_longer-slots_odd-index_mixed-lengths_4,0,2,7,1-behind_3"
_PACKED_ROWS = (
    "causal_conv1d_update-131-1023-layout_last_offset_by_1-pool_columns-slots_odd-lengths_1,1,0-most_1-behind_5"
)
_FRESH = "causal_conv1d_update-131-1023-layout_last_offset_by_1-slots_odd-fresh"
_FRESH_ROWS = "causal_conv1d_update-131-1023-layout_last_offset_by_1-pool_columns-slots_odd-fresh"
_MOVED_MANY = "causal_conv1d_update-131-1023-layout_last_offset_by_1-pool_columns-slots_odd-table_column-moved"
_FEW_MOVED = "causal_conv1d_update-131-11-pool_columns_and_one-slots_odd-index_mixed-table_column-longer_2-moved"
_SEVERAL = "causal_conv1d_update-136-5-seqlen_6-pool_channels_sliced-slots_odd-index_int64-window_channels-rows"
_SEVERAL_PACKED = "causal_conv1d_update-136-9-slots_odd-window_channels-lengths_6,0,1,5-most_5-behind_2"
_SEVERAL_GUESSED = "causal_conv1d_update-136-10-slots_odd-lengths_2,2,2,0,4"
_SEVERAL_ROWS = "causal_conv1d_update-136-9-pool_columns-slots_odd-window_columns-lengths_6,0,1,5-most_5-behind_2"
_SEVERAL_LONG_ROWS = "causal_conv1d_update-136-9-seqlen_3-pool_columns_and_one-slots_odd-window_columns-rows-whole"
_FEW_SPLIT = "causal_conv1d_update_split-100,36-20-seqlen_1-width_3-out_last_sliced_dim-slots_odd"
_FEW_PACKED = "causal_conv1d_update-131-11-pool_columns_and_one-slots_odd-index_int64-lengths_1,0,2-most_1-behind_3"
_FEW_LARGE = "causal_conv1d_update-1160-120-slots_odd-lengths_1,0,2,1-most_1-behind_3"
_FEW_GUESSED = "causal_conv1d_update-140-11-pool_columns-slots_None-moved-lengths_1,0,2,1-most_1-behind_3"
_FEW_FRESH = "causal_conv1d_update-136-11-pool_columns-slots_odd-pad_slot_id_3-null-keep-fresh"
_FEW_COLUMNS = (
    "causal_conv1d_update-260-5-width_14-weight_dtype_bfloat16-state_dtype_float16-pool_channels_sliced-activation_None"
)
_FEW_FLOAT_BIAS = (
    "causal_conv1d_update-260-5-width_9-weight_dtype_float16-state_dtype_float16-bias_float32-pool_columns_and_one"
    "-activation_None"
)
_FEW_GATED = "causal_conv1d_update-136-7-slots_odd-gates_pre_gate_post_gate_residual"
_GATED_RING = "causal_conv1d_update-136-7-seqlen_3-slots_odd-index_mixed-mode_circular-gates_post_gate_residual"
_GATED_PACKED = (
    "causal_conv1d_update-136-7-slots_odd-lengths_3,1,0,5-behind_2-gates_pre_gate_post_gate_residual"
    "-beside_channel_first"
)
_GATED_WINDOWS = (
    "causal_conv1d_update-70-7-seqlen_3-width_3-layout_last_sliced_dim_by_2-pool_channels_longer-slots_odd"
    "-window_columns-token_slots_3-whole-gates_pre_gate"
)
_GATED_OVERLAID = "causal_conv1d_update-136-7-seqlen_4-pool_columns-window_overlaid_dense-rows-gates_pre_gate_post_gate"
_PACKED_ACCEPTED = "causal_conv1d_update-136-9-mode_accepted-lengths_3,1,5,2-held_3"
_OWN_SLOT = "causal_conv1d_update-136-7-pool_channels_longer-index_mixed-frozen-lengths_3,1,0,5-token_slots_3"
_WHOLE = "causal_conv1d_update-136-7-seqlen_3-pool_channels_longer-slots_odd-window_columns-token_slots_3-whole"
_OVERLAID = "causal_conv1d_update-136-7-pool_columns-window_overlaid-lengths_3,1,0,5"
_OVERLAID_DENSE = "causal_conv1d_update-136-7-seqlen_4-slots_odd-window_overlaid_dense-rows"
_WINDOW_OF_ROW = "causal_conv1d_update-136-4-seqlen_5-layout_last_offset_by_1-pool_columns_and_one-window_columns"
_STEP_OF_BLOCKS = "families/test_blocks.py::test_a_step_goes_from_block_to_block[int64-channels-1-3-emulator]"
_LINKS = "causal_conv1d_update-136-7-seqlen_9-slots_odd-index_mixed-window_columns-tree-links"
_SMALL_TREE = "causal_conv1d_update-136-7-seqlen_4-slots_odd-index_mixed-window_channels-tree-links"
_TREE = "causal_conv1d_update-136-7-seqlen_5-slots_odd-index_mixed-window_columns-token_slots_4-tree"

MUTANTS = (
    Mutant(
        "One token's new state lacks the input itself.",
        "causal_conv1d/causal_conv1d_update.cu",
        "for (int k = 0; k <= kHalo; ++k) {",
        "for (int k = 0; k < kHalo; ++k) {",
        (_STEP,),
    ),
    Mutant(
        "A longer state moves by one column too few.",
        "causal_conv1d/conv_update_tokens.cuh",
        "if (is_row) target.take(columns, min(place.goes_to, p.state_len), tokens.count(p));",
        "if (is_row) target.take(columns, min(place.goes_to - 1, p.state_len), tokens.count(p));",
        ("causal_conv1d_update-136-3-seqlen_2-pool_channels_longer",),
    ),
    Mutant(
        "A ring begins one column late.",
        "causal_conv1d/conv_update_tokens.cuh",
        "% p.state_len) - kHalo;",
        "% p.state_len) - kHalo + 1;",
        (_RING,),
    ),
    Mutant(
        "Rejected tokens count as accepted.",
        "causal_conv1d/conv_update_tokens.cuh",
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
        "A final state without a slot goes before the pool.",
        "causal_conv1d/causal_conv1d_update_rows.cu",
        "if (!p.is_read_only && (!kAddressed || target >= 0)) rows[i].store(p, share.channel, target);",
        "if (!p.is_read_only) rows[i].store(p, share.channel, target);",
        (_MOVED_MANY,),
    ),
    Mutant(
        "A ring in another slot has only the new columns.",
        "causal_conv1d/conv_update_tokens.cuh",
        "if (kAddressed && is_ring && (target.slot != columns.slot || columns.is_fresh))",
        "if (false)",
        (_MOVED_RING,),
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
        (_FRESH, _FRESH_ROWS),
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
        "causal_conv1d/conv_update_tokens.cuh",
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
        "last.at(above + k, k)",
        "last.at(k, k)",
        (_TREE,),
    ),
    Mutant(
        "A small step keeps the columns that it had.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "inputs[i / kStateLen][i % kStateLen + 1];",
        "inputs[i / kStateLen][i % kStateLen];",
        (_FEW_FRESH,),
    ),
    Mutant(
        "A small step drops its own input where columns lie apart.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "store(to + k * p.conv_state_stride[1], columns[k + 1]);",
        "store(to + k * p.conv_state_stride[1], columns[k]);",
        (_FEW_COLUMNS,),
    ),
    Mutant(
        "A small step's filter reads a longer state's first columns.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "inputs[c] + kFirst, nullptr)",
        "inputs[c], nullptr)",
        (_FEW_COLUMNS,),
    ),
    Mutant(
        "A small step goes on from a slot that is not to be read.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "    if (!kAddressed || indices.past != 0) {",
        "    if (true) {",
        (_FEW_FRESH,),
    ),
    Mutant(
        "A packed step keeps the token that it took for its own before it knew where its sequence begins.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "holds & (begin == row) & (end == row + 1);",
        "holds & (end == row + 1);",
        (_FEW_GUESSED,),
    ),
    Mutant(
        "A packed step with four channels a thread keeps the token that it took for its own.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "holds & (begin == row + lane_id() % 2)",
        "holds",
        (_FEW_LARGE,),
    ),
    Mutant(
        "A packed sequence with four channels a thread ends where it begins.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "from_lane(static_cast<int>(begin), 1)",
        "from_lane(static_cast<int>(begin), 0)",
        (_FEW_LARGE,),
    ),
    Mutant(
        "Blocks of a large packed step take the channels that smaller blocks would.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "static_cast<int>(blockDim.x) : Traits",
        "Traits::kUsualThreads : Traits",
        (_FEW_LARGE,),
    ),
    Mutant(
        "A packed sequence without tokens takes the one that lies where its own would.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "holds & (begin == row) & (end == row + 1);",
        "holds & (begin == row);",
        (_FEW_GUESSED,),
    ),
    Mutant(
        "A small step's final state without a slot goes before the pool.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "to = target < 0 ? nullptr : state_at(target);",
        "to = state_at(target);",
        (_FEW_MOVED,),
    ),
    Mutant(
        "A small step's bias is not of its own dtype.",
        "causal_conv1d/conv_few.cuh",
        "p.bias_bytes == sizeof(float) ? __uint_as_float(raw_bias[c]) : other;",
        "other;",
        (_FEW_FLOAT_BIAS,),
    ),
    Mutant(
        "Packed tokens behind the last sequence of a small step keep what their results hold.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "batch + 1 == static_cast<int>(gridDim.x) ? p.total : row + tokens;",
        "row + tokens;",
        (_FEW_PACKED,),
    ),
    Mutant(
        "The first token of a packed sequence without a slot keeps what its result holds.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "for (t += row; t < end; ++t)",
        "for (t += row + 1; t < end; ++t)",
        (_FEW_PACKED,),
    ),
    Mutant(
        "Threads beyond the last channel load what is behind it.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "min(own_channel, p.dim - kVec);",
        "own_channel;",
        (_FEW_PACKED,),
    ),
    Mutant(
        "The inputs before a token of a small tree are those of its number.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "i < kHalo ? i - 1 : kHalo + parent",
        "parent < i ? i - 1 : 0",
        (_SMALL_TREE,),
    ),
    Mutant(
        "A small tree leaves the state before its last token.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "path[1 - Traits::kFirst + k]",
        "path[k]",
        (_SMALL_TREE,),
    ),
    Mutant(
        "The parents in a small tree are written for the first sequence.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "tree.table.store(p, batch,",
        "tree.table.store(p, 0,",
        (_SMALL_TREE,),
    ),
    Mutant(
        "A step of several tokens reads a longer state's first columns.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "(Traits::kFirst + k) * p.conv_state_stride[1]",
        "k * p.conv_state_stride[1]",
        (_SEVERAL,),
    ),
    Mutant(
        "A step of several tokens leaves a state without its last one.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "inputs[last - Traits::kFirst + k]",
        "inputs[last - 1 + k]",
        (_SEVERAL_PACKED,),
    ),
    Mutant(
        "A window among several tokens is that before its own token.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "path[k + 1]",
        "path[k]",
        (_SEVERAL,),
    ),
    Mutant(
        "The states of several tokens in rows are those of the first channel.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "columns[kFirst + i % kCount].element(i / kCount)",
        "columns[kFirst + i % kCount].element(0)",
        (_SEVERAL_ROWS,),
    ),
    Mutant(
        "A window of several tokens in rows is that before its own token.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "store_rows<kStateLen, kWidth - kStateLen>",
        "store_rows<kStateLen, 0>",
        (_SEVERAL_ROWS,),
    ),
    Mutant(
        "Longer rows of several tokens are read from their first column on.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "c * kStateLen + Traits::kFirst + k",
        "c * kStateLen + k",
        (_SEVERAL_LONG_ROWS,),
    ),
    Mutant(
        "Later tokens of several follow the first ones' past.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "inputs[k] = inputs[kTokens + k];",
        "inputs[k] = inputs[k];",
        (_SEVERAL,),
    ),
    Mutant(
        "Packed tokens behind the last sequence of several keep what their results hold.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "if (batch + 1 == static_cast<int>(kRows ? gridDim.y : gridDim.x)) behind = p.total - begin;",
        "",
        (_SEVERAL_PACKED,),
    ),
    Mutant(
        "A packed sequence of several tokens keeps those that it took for its own before it knew where it begins.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "border == static_cast<unsigned>(begin) && next_border",
        "next_border",
        (_SEVERAL_GUESSED,),
    ),
    Mutant(
        "A packed sequence of several tokens has as many as it was taken to have.",
        "causal_conv1d/causal_conv1d_update_several.cu",
        "next_border == static_cast<unsigned>(begin + tokens)",
        "true",
        (_SEVERAL_GUESSED,),
    ),
    Mutant(
        "A small step's later results begin where their channels do in x.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "channel - p.range_begin[i];",
        "channel;",
        (_FEW_SPLIT,),
    ),
    Mutant(
        "A small step's results are all as far apart as the first one's.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "token * p.range_stride[i] +",
        "token * p.range_stride[0] +",
        (_FEW_SPLIT,),
    ),
    Mutant(
        "The high half of an index does not count.",
        "common/vec.cuh",
        "high == 0 && low != excluded",
        "low != excluded",
        ("causal_conv1d_update-70-40-slots_odd-index_int64-longer_1",),
    ),
    Mutant(
        "The slot of padding is a slot of a small step.",
        "common/vec.cuh",
        "low != excluded && static_cast",
        "static_cast",
        (_FEW_FRESH,),
    ),
    Mutant(
        "A small step's filter reads inputs in front of the gate.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "if (kGated && p.pre_gate != nullptr) x = multiply(x, pre);",
        "",
        (_FEW_GATED,),
    ),
    Mutant(
        "A small step's results are not multiplied by the gate behind it.",
        "causal_conv1d/causal_conv1d_update_few.cu",
        "if (kGated && p.post_gate != nullptr) multiply_rounded(y, post);",
        "",
        (_FEW_GATED,),
    ),
    Mutant(
        "Steps of several tokens keep inputs in front of the gate.",
        "causal_conv1d/conv_token_states.cuh",
        "return load_token<kVec, input_t, kGated>(p, tokens.entry, channel, tokens.begin + token);",
        "return load_token<kVec, input_t>(p, tokens.entry, channel, tokens.begin + token);",
        (_GATED_WINDOWS,),
    ),
    Mutant(
        "Windows over each other hold inputs in front of the gate.",
        "causal_conv1d/conv_token_states.cuh",
        "? load_token<1, input_t, kGated>(",
        "? load_token<1, input_t>(",
        (_GATED_OVERLAID,),
    ),
    Mutant(
        "The residual of a step of several tokens is the gate.",
        "causal_conv1d/conv_update.cuh",
        "add(y, load_elements<kVec, input_t>(p.residual, p.residual_stride,",
        "add(y, load_elements<kVec, input_t>(p.post_gate, p.residual_stride,",
        (_GATED_RING,),
    ),
    Mutant(
        "Gates of packed tokens are those of the first sequence.",
        "causal_conv1d/conv_update_tokens.cuh",
        "apply_gates<input_t>(p, y, tokens.entry, columns.channel, tokens.begin + t);",
        "apply_gates<input_t>(p, y, tokens.entry, columns.channel, t);",
        (_GATED_PACKED,),
    ),
    Mutant(
        "The kernel of gates takes x for ungated.",
        "causal_conv1d/causal_conv1d_update_gated.cu",
        "kAddressed, kPacked, kTokenStates, true>(p, share);",
        "kAddressed, kPacked, kTokenStates, false>(p, share);",
        (_GATED_RING,),
    ),
    Mutant(
        "A tree of more tokens than are loaded at once takes the first ones again.",
        "causal_conv1d/causal_conv1d_update_tree.cu",
        "if (kIsAhead) group = next;",
        "",
        (_TREE,),
    ),
    Mutant(
        "A state of as many columns as the filter reads is not left behind a tree.",
        "causal_conv1d/causal_conv1d_update_tree.cu",
        "stores_last && p.state_len == kHalo",
        "stores_last && p.state_len == kWidth",
        (_TREE,),
    ),
    Mutant(
        "Final states of a prefix cache go to the first block.",
        "causal_conv1d/conv_update_sequence.cuh",
        "batch * p.conv_state_indices_stride + number * p.slot_column_stride,",
        "batch * p.conv_state_indices_stride,",
        (_STEP_OF_BLOCKS,),
    ),
    Mutant(
        "A sibling counts as a child.",
        "common/trees.cuh",
        "static_cast<short>(~token)",
        "static_cast<short>(token)",
        (_LINKS,),
    ),
    Mutant(
        "A link to an earlier token counts.",
        "common/trees.cuh",
        "child > token && child < p.seqlen",
        "child >= 0 && child < p.seqlen",
        (_LINKS,),
    ),
    Mutant(
        "Parents of all tokens go where that of the first one is wanted.",
        "common/trees.cuh",
        "sequence * stride[0] + t * stride[1];",
        "sequence * stride[0];",
        (_LINKS,),
    ),
)
