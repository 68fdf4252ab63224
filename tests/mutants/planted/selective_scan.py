"""Bugs in scans of whole rows, but for their gradients alone, and in what packed sequences share with them."""

from __future__ import annotations

from tests.mutants import Mutant
from tests.mutants.planted.ids import SCAN_BWD_FLOAT, SWEEPS_KEPT

_SCAN = "selective_scan_fn-2-35-43-layout_offset_by_1-processors_1"
_SCAN_SEGMENTS = "selective_scan_fn-1-6-516-d_state_8-groups_2-params_-constants_C"
_TILES = "selective_scan_fn-3-20-200-processors_24"
_TILES_ALONE = "selective_scan_fn-2-70-48-processors_1"
_SWEEPS = "selective_scan_fn-3-40-264-processors_1"
_SWEEPS_TURNED = "selective_scan_fn-2-72-265-layout_channel_last-matrices_by_state-processors_1"
_TILES_PARTS = "selective_scan_fn-2-35-264-without_chunk_states_out-processors_30"
_TILES_ONE_STAGE = "selective_scan_fn-1-5-508-d_state_8-dtype_float32-without_chunk_states_out-processors_2"
_TILES_SEGMENTS = "selective_scan_fn-1-3-2560-d_state_12-dtype_float32-processors_1"
_TURNED = "selective_scan_fn-3-40-70-layout_channel_last-matrices_by_state"
_TURNED_TILES = "selective_scan_fn-3-24-200-layout_channel_last-matrices_by_state"
_TURNED_SEGMENTS = "selective_scan_fn-1-24-2824-layout_channel_last-matrices_by_state"
_ROWS_BETWEEN = (
    "selective_scan_fn-1-8-779-d_state_8-without_initial_state_last_state_out_chunk_states_out-layout_channel_last"
    "-matrices_by_state-processors_1"
)
_OTHERWISE = "selective_scan_fn-2-72-265-layout_channel_last-delta_channel_first-matrices_by_state_fused"
_OTHERWISE_VECTORS = "selective_scan_fn-2-40-264-delta_channel_last-matrices_by_state-processors_32"
_OTHERWISE_BWD = "selective_scan_bwd-2-24-265-layout_channel_last-delta_channel_first-matrices_by_state"
_OTHERWISE_BWD_SLICED = "selective_scan_bwd-1-16-259-layout_channel_last-delta_sliced_alike-matrices_by_state"
_UNALIGNED_FIRST = (
    "selective_scan_fn-1-24-262-dtype_float16-without_z_initial_state_last_state_out_chunk_states_out-layout_offset_by_4"
    "-processors_1"
)
_PHASES = "selective_scan_fn-1-200-149-without_chunk_states_out-processors_1"
_PHASES_KEPT = "selective_scan_fn-2-40-769-processors_1"
_PHASES_SWEPT = "selective_scan_fn-1-200-277-processors_1"
_PHASES_WIDE = "selective_scan_fn-1-9-300-d_state_24-processors_1"
_PHASES_ALONE = "selective_scan_fn-1-65-267-without_chunk_states_out-processors_4"
_PHASES_OF_ENTRIES = (
    "selective_scan_fn-4-33-261-d_state_3-dtype_float16-without_z_last_state_out_chunk_states_out-processors_1"
)
_PHASES_ALIKE = (
    "selective_scan_fn-1-40-776-d_state_8-dtype_float32-without_chunk_states_out-layout_offset_by_4-processors_1"
)
_UNALIGNED = "selective_scan_fn-2-64-259-groups_2-layout_offset_by_1-matrices_fused-processors_1"
_FEW_STATES = "selective_scan_fn-1-35-262-d_state_3-groups_5-dtype_float16-params_-processors_1"
_PARTS = "selective_scan_fn-2-35-43"
_FEW_STATES_SHORT = "selective_scan_fn-2-30-77-d_state_4-without_chunk_states_out-others_strided-processors_1"
_ROUNDS = "selective_scan_fn-1-42-43-layout_offset_by_1-processors_1"
_ROUNDS_OF_GROUPS = "selective_scan_fn-2-24-70-d_state_9-groups_3-dtype_float16-others_strided-processors_1"
_WINDOWS = "selective_scan_fn-1-3-1016-loud_5"
_WINDOW = "selective_scan_fn-1-2-520-dtype_float32-without_z"
_WIDE = "selective_scan_fn-1-9-536-d_state_20"
_WIDE_TURNED = "selective_scan_fn-1-24-530-d_state_24-groups_2-layout_channel_last-matrices_by_state"

MUTANTS = (
    Mutant(
        "A plain scan applies no softplus to v of at most -4.",
        "selective_scan/scan.cuh",
        "own_dt[i] = p.delta_softplus ? softplus(v) : v;",
        "own_dt[i] = p.delta_softplus && v > -4.0f ? softplus(v) : v;",
        ("selective_scan_fn-2-35-43-layout_offset_by_1-loud_20-processors_1",),
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
        ("selective_scan_fn-1-3-1032-d_state_26",),
    ),
    Mutant(
        "All segments before the last begin with the last one's state.",
        "selective_scan/selective_scan_carry.cu",
        "const index_t segment = min(from + i, segments - 2);",
        "const index_t segment = segments - 2;",
        (_TILES_SEGMENTS, "selective_scan_fn-1-3-1032-d_state_26"),
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
        """                    __syncthreads();
                    Base::template fetch<kHasOutput>(stage, first, tile, end);""",
        "                    Base::template fetch<kHasOutput>(stage, first, tile, end);",
        (_TILES_ONE_STAGE,),
    ),
    Mutant(
        "States beyond those that a tile has at a time have the matrices of the first ones.",
        "selective_scan/tile_matrices.cuh",
        "            from += first * stride;\n",
        "",
        (_WIDE,),
    ),
    Mutant(
        "The same where channels are contiguous.",
        "selective_scan/tile_matrices.cuh",
        "const T* at = from + tile * step + first;",
        "const T* at = from + tile * step;",
        (_WIDE_TURNED,),
    ),
    Mutant(
        "Such states are advanced with the matrices of those before them.",
        "selective_scan/scan_tiles.cuh",
        """                if (kIsDouble && first > 0) stage ^= 1;
                Base::""",
        "                Base::",
        (_WIDE,),
    ),
    Mutant(
        "Where channels are contiguous their matrices are overwritten while others read them.",
        "selective_scan/scan_tiles.cuh",
        """                // They have arrived, and all threads have used those before them, and left results.
                __syncthreads();""",
        "                // They have arrived, and all threads have used those before them, and left results.",
        (_WIDE_TURNED, _ROWS_BETWEEN),
    ),
    Mutant(
        "A tile's matrices are read before their copies are waited for.",
        "selective_scan/tile_block.cuh",
        "        wait_for_copies();\n        if (tile >= begin) return;",
        "        if (tile >= begin) return;",
        (_TILES,),
    ),
    Mutant(
        "A tile's matrices are read before all threads have copied them.",
        "selective_scan/scan_tiles.cuh",
        """                // They have arrived, and all threads have used those before them.
                __syncthreads();""",
        "                // They have arrived, and all threads have used those before them.",
        (_TILES,),
    ),
    Mutant(
        "States are stored while the last tile is scanned.",
        "selective_scan/scan_tiles.cuh",
        """            if (kIsDouble) stage ^= 1;
            tile = next;
        }
        __syncthreads();""",
        """            if (kIsDouble) stage ^= 1;
            tile = next;
        }""",
        (_TILES, _TILES_PARTS),
    ),
    Mutant(
        "Chunks' states are read before all threads have left the tile.",
        "selective_scan/selective_scan_tiles_fwd.cu",
        """            scan.wait_for_states();
            const index_t* const stride = p.chunk_states_stride;""",
        "            const index_t* const stride = p.chunk_states_stride;",
        (_SWEEPS,),
    ),
    Mutant(
        "Without D a tile multiplies u by 0.",
        "selective_scan/scan_tiles.cuh",
        "p.D != nullptr ? with_D : tokens.y[t]",
        "with_D",
        (
            (
                "families/test_special_values.py::test_infinities_and_nan_are_those_of_the_formula"
                "[unit-emulated-input-rows-2-35-72-d_state_8-without_D_z-processors_1]"
            ),
        ),
    ),
    Mutant(
        "The part of a tile behind the last token counts.",
        "selective_scan/scan_tiles.cuh",
        "t >= tokens.behind)) own_dt[t] = 0.0f;",
        "t > tokens.behind)) own_dt[t] = 0.0f;",
        (_TILES_PARTS, _SCAN, _TILES),
    ),
    Mutant(
        "A sweep's steps are read before all lanes have stored them.",
        "selective_scan/scan_sweeps.cuh",
        "        store_packed(steps + part * kOwn + kStep, own_dt_u);\n        sync_warp();",
        "        store_packed(steps + part * kOwn + kStep, own_dt_u);",
        (_SWEEPS,),
    ),
    Mutant(
        "A sweep's matrices are read before all threads have turned them.",
        "selective_scan/scan_sweeps.cuh",
        """            // The matrices of this tile have arrived, and all threads have used those of the tile before.
            __syncthreads();""",
        "            // The matrices of this tile have arrived, and all threads have used those of the tile before.",
        (_SWEEPS, _SWEEPS_TURNED),
    ),
    Mutant(
        "The part of a sweep behind the last token counts.",
        "selective_scan/scan_sweeps.cuh",
        "t >= behind)) own_dt[t] = 0.0f;",
        "t > behind)) own_dt[t] = 0.0f;",
        (_SWEEPS_TURNED, SWEEPS_KEPT),
    ),
    Mutant(
        "Sweeps keep no states between tiles.",
        "selective_scan/scan_sweeps.cuh",
        "            keep_states(state, h);\n            if (next >= end) break;",
        "            if (next >= end) keep_states(state, h);\n            if (next >= end) break;",
        (_SWEEPS,),
    ),
    Mutant(
        "Turned results of a sweep go to the tile's first tokens.",
        "selective_scan/scan_sweeps.cuh",
        "T* const place = own_place(stage, Rows::kZ, at - tile);",
        "T* const place = own_place(stage, Rows::kZ, 0);",
        (_SWEEPS_TURNED,),
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
        "selective_scan/tile_matrices.cuh",
        "if (n < d_state) copy(to[n][i]",
        "if (n < d_state) copy(to[n][0]",
        (_TILES_ALONE,),
    ),
    Mutant(
        "What lower lanes have of a recurrence does not decay.",
        "common/warp.cuh",
        "whole = lane % kLanes == 0 ? 1.0f : lower_whole;",
        "whole = 1.0f;",
        (SCAN_BWD_FLOAT,),
    ),
    Mutant(
        "Results that are turned go to the tile behind theirs.",
        "selective_scan/scan_tiles.cuh",
        "store_rows(other, tile - Shape::kTile, end);",
        "store_rows(other, tile, end);",
        (_TURNED_SEGMENTS,),
    ),
    Mutant(
        "A turned tile's rows are read before they are there.",
        "selective_scan/scan_tiles.cuh",
        "wait_for_copies();\n            // What this tile needs",
        "// What this tile needs",
        (_TURNED_SEGMENTS,),
    ),
    Mutant(
        "Tokens behind the last one of turned rows are not zeros.",
        "selective_scan/tile_rows.cuh",
        "(has_channel && tile + number < end)",
        "has_channel",
        (_TURNED,),
    ),
    Mutant(
        "States beyond the last one take part in turning.",
        "selective_scan/tile_matrices.cuh",
        "if (n < d_state && token >= begin && token < end) {",
        "if (token >= begin && token < end) {",
        ("selective_scan_fn-1-12-2824-d_state_12-dtype_float32-layout_channel_last-matrices_by_state",),
    ),
    Mutant(
        "Rows of the next tile that the states leave no time for are not copied.",
        "selective_scan/scan_tiles.cuh",
        "            while (kIsSpread && left > 0) copy_one();\n",
        "",
        (_ROWS_BETWEEN,),
    ),
    Mutant(
        "A row that is copied between states goes to the stage in use.",
        "selective_scan/scan_tiles.cuh",
        "shared.rows.copy_if(is_left, now ^ 1, left,",
        "shared.rows.copy_if(is_left, now, left,",
        (_ROWS_BETWEEN,),
    ),
    Mutant(
        "Inputs that are loaded behind a tile's states are this tile's once more.",
        "selective_scan/scan_tiles.cuh",
        "if (kIsSoon && next < end) load_inputs(inputs, next, begin, end);",
        "if (kIsSoon && next < end) load_inputs(inputs, tile, begin, end);",
        (_TILES_PARTS,),
    ),
    Mutant(
        "Results of such tiles go to the tile behind theirs.",
        "selective_scan/scan_tiles.cuh",
        "store_rows(now ^ 1, tile - Shape::kTile, end);",
        "store_rows(now ^ 1, tile, end);",
        (_ROWS_BETWEEN,),
    ),
    Mutant(
        "Vectors of states keep their order while lanes expect another.",
        "selective_scan/tile_matrices.cuh",
        "(own ^ round * kRoundLanes % 8 * kVec)",
        "own",
        (_ROWS_BETWEEN,),
    ),
    Mutant(
        "Halves of vectors of states change places while lanes expect that they do not.",
        "selective_scan/tile_matrices.cuh",
        "(kHasHalves ? lane / 8 * kHalf : 0)",
        "0",
        (_ROWS_BETWEEN,),
    ),
    Mutant(
        "States of a token that does not count are those of the tile before.",
        "selective_scan/tile_matrices.cuh",
        """            if (!kIsWhole && (number < begin || number >= end)) {
                store(place, Vec<T, kVec>::zero());""",
        "            if (!kIsWhole && (number < begin || number >= end)) {",
        (_TURNED_TILES,),
    ),
    Mutant(
        "Copies of arrays that lie otherwise have the last tile's columns in place of the first one's.",
        "selective_scan/selective_scan_turn.cu",
        "first_column * p.turned_stride[2] + first_row",
        "first_row",
        (_OTHERWISE,),
    ),
    Mutant(
        "A copy reads behind the last column.",
        "selective_scan/selective_scan_turn.cu",
        "if (i + kVec <= count) {",
        "if (count > -1000) {",
        (_OTHERWISE,),
    ),
    Mutant(
        "A copy reads behind the last row.",
        "selective_scan/selective_scan_turn.cu",
        "if (row + j < p.row_count) {",
        "if (row + j < p.row_count + 1) {",
        (_OTHERWISE_VECTORS,),
    ),
    Mutant(
        "Vectors of a column are looked for where another column has them.",
        "selective_scan/selective_scan_turn.cu",
        "(lane ^ column / kWide)",
        "lane",
        (_OTHERWISE,),
    ),
    Mutant(
        "The second entry's copy goes over the first one's.",
        "selective_scan/selective_scan_turn.cu",
        "outer.quotient * p.turned_stride[0]",
        "0 * p.turned_stride[0]",
        (_OTHERWISE_VECTORS,),
    ),
    Mutant(
        "A copy back leaves out the last elements of rows that are no whole vectors.",
        "selective_scan/selective_scan_turn.cu",
        "if (i + j < count) p[i + j] = v.element(i + j);",
        "if (i + j + 1 < count) p[i + j] = v.element(i + j);",
        (_OTHERWISE_BWD,),
    ),
    Mutant(
        "A copy back writes behind the last element of a row.",
        "selective_scan/selective_scan_turn.cu",
        "if (i + kTurnedVec <= count) {",
        "if (i < count) {",
        (_OTHERWISE_BWD_SLICED,),
    ),
    Mutant(
        "Rows that are not aligned are copied from the aligned vector in front.",
        "selective_scan/selective_scan_align.cu",
        "if (distance != 0) v = behind",
        "if (distance > kVec) v = behind",
        (_UNALIGNED,),
    ),
    Mutant(
        "Words two behind are taken from one behind.",
        "selective_scan/selective_scan_align.cu",
        "(whole & 2) != 0 ? words[i + 2]",
        "(whole & 2) != 0 ? words[i + 1]",
        (_UNALIGNED,),
    ),
    Mutant(
        "Elements in the middle of a word are taken from its beginning.",
        "selective_scan/selective_scan_align.cu",
        "distance % kPerWord != 0 ?",
        "distance % kPerWord > 1 ?",
        (_UNALIGNED,),
    ),
    Mutant(
        "Vectors that begin in front of a row are loaded whole.",
        "selective_scan/selective_scan_align.cu",
        "if (loaded >= 0 && behind_loaded <= p.length) {",
        "if (behind_loaded <= p.length) {",
        (_UNALIGNED_FIRST,),
    ),
    Mutant(
        "Vectors that end behind a row are loaded whole.",
        "selective_scan/selective_scan_align.cu",
        "behind_loaded <= p.length) {",
        "behind_loaded <= p.length + kVec) {",
        (_UNALIGNED,),
    ),
    Mutant(
        "Results that are copied back go on into the next row.",
        "selective_scan/selective_scan_align.cu",
        "if (first >= 0 && first + kVec <= p.length) {",
        "if (first >= 0) {",
        (_UNALIGNED,),
    ),
    Mutant(
        "The second entry's rows are copied from the first one's.",
        "selective_scan/selective_scan_align.cu",
        "outer.quotient * stride[0]",
        "0 * stride[0]",
        (_UNALIGNED,),
    ),
    Mutant(
        "A block has neighbouring channels of different phases.",
        "selective_scan/tile_block.cuh",
        "        if constexpr (kHasPhases) c <<= p.phase_bits;",
        "",
        (_PHASES,),
    ),
    Mutant(
        "Channels beyond the last are those of another phase.",
        "selective_scan/tile_block.cuh",
        "return kHasPhases ? (number < p.dim ? number : first_channel) : min(number, p.dim - 1);",
        "return min(number, p.dim - 1);",
        (_PHASES,),
    ),
    Mutant(
        "Blocks of no channels go on.",
        "selective_scan/selective_scan_tiles_fwd.cu",
        "    if (kPhases && first_channel >= p.dim) return;",
        "",
        (_PHASES_ALONE,),
    ),
    Mutant(
        "Every entry of a batch has the phases of the first one.",
        "selective_scan/tile_block.cuh",
        "const index_t row = batch * p.u_stride[0] +",
        "const index_t row =",
        (_PHASES_OF_ENTRIES,),
    ),
    Mutant(
        "Tiles of rows with phases begin with a multiple of a vector's tokens.",
        "selective_scan/tile_block.cuh",
        "return (begin + phase) / Shape::kAlign * Shape::kAlign - phase;",
        "return begin / Shape::kAlign * Shape::kAlign;",
        (_PHASES,),
    ),
    Mutant(
        "Copies of B and C are taken to begin with a vector.",
        "selective_scan/tile_block.cuh",
        "* p.matrix_phase_step + phase;",
        "* p.matrix_phase_step;",
        (_PHASES,),
    ),
    Mutant(
        "Copies of B and C are counted from phase 0.",
        "selective_scan/tile_block.cuh",
        "(phase - p.first_phase) *",
        "phase *",
        (_PHASES_ALIKE,),
    ),
    Mutant(
        "States before chunks are those in front of their tiles.",
        "selective_scan/scan_tiles.cuh",
        "h = t < phase ? next : h;",
        "h = t < phase - 1 ? next : h;",
        (_PHASES_KEPT,),
    ),
    Mutant(
        "Every lane keeps states with its own tokens.",
        "selective_scan/scan_tiles.cuh",
        "dt[t] = from_lane(tokens.dt[t], first_lane);",
        "dt[t] = tokens.dt[t];",
        (_PHASES_KEPT,),
    ),
    Mutant(
        "The states behind the first 16 are kept in place of these.",
        "selective_scan/scan_tiles.cuh",
        "kept[(first + n) * p.chunk_states_stride[3]]",
        "kept[n * p.chunk_states_stride[3]]",
        (_PHASES_WIDE,),
    ),
    Mutant(
        "Sweeps keep the states before every second chunk.",
        "selective_scan/selective_scan_tiles_fwd.cu",
        "const int next = token + Scan::kKeepsEvery;",
        "const int next = token + 2 * Scan::kKeepsEvery;",
        (_PHASES_SWEPT,),
    ),
    Mutant(
        "All copies of an array go to the same place.",
        "selective_scan/selective_scan_align.cu",
        " + blockIdx.z * p.next_copy",
        "",
        (_PHASES,),
    ),
    Mutant(
        "The first copy begins with a vector.",
        "selective_scan/selective_scan_align.cu",
        " + p.offset",
        "",
        (_PHASES_ALIKE,),
    ),
    Mutant(
        "Short rows of few states go on through what lies behind the last token.",
        "selective_scan/selective_scan_short_fwd.cu",
        "if (t >= live) dt[t] = 0.0f;",
        "",
        (_FEW_STATES, _FEW_STATES_SHORT),
    ),
    Mutant(
        "Few states before a chunk are those before its second tile.",
        "selective_scan/selective_scan_short_fwd.cu",
        "tile % Segment::kChunk == 0",
        "tile % Segment::kChunk == kTile",
        (_FEW_STATES,),
    ),
    Mutant(
        "Lanes with few states beyond the last channel read there.",
        "selective_scan/selective_scan_short_fwd.cu",
        "min(segment.first_channel + thread / kLanes, p.dim - 1)",
        "segment.first_channel + thread / kLanes",
        (_FEW_STATES,),
    ),
    Mutant(
        "Channels with few states have B and C of the group of their block's first one.",
        "selective_scan/selective_scan_short_fwd.cu",
        "divide(static_cast<unsigned>(channel), p.group_dim)",
        "divide(static_cast<unsigned>(segment.first_channel), p.group_dim)",
        (_FEW_STATES,),
    ),
    Mutant(
        "Few states are followed by one that is not there.",
        "selective_scan/selective_scan_short_fwd.cu",
        "                if (n >= p.d_state) continue;\n",
        "",
        (_FEW_STATES,),
    ),
    Mutant(
        "Tiles with few states have the gate of the tile before.",
        "selective_scan/selective_scan_short_fwd.cu",
        "next_z.load_front(z + tile, p.seqlen - tile - first);",
        "next_z.load_front(z, p.seqlen - first);",
        (_FEW_STATES,),
    ),
    Mutant(
        "The results of a short row leave out the last part of its states.",
        "selective_scan/scan_parts.cuh",
        "for (int i = 1; i < kParts; ++i)",
        "for (int i = 1; i < kParts - 1; ++i)",
        (_PARTS,),
    ),
    Mutant(
        "A short row's parts are read before all warps have left theirs.",
        "selective_scan/scan_parts.cuh",
        "        __syncthreads();\n",
        "",
        (_PARTS,),
    ),
    Mutant(
        "A thread finishes tokens of its own lane's channel, whatever it is that it has parts of.",
        "selective_scan/scan_parts.cuh",
        "min(base + finished / kTile, p.dim - 1)",
        "min(base + among / kLanes, p.dim - 1)",
        (_PARTS,),
    ),
    Mutant(
        "Short rows with parts go on through what lies behind the last token.",
        "selective_scan/scan_parts.cuh",
        "if (t >= live) dt[t] = 0.0f;",
        "",
        (_PARTS,),
    ),
    Mutant(
        "The parts of states before a chunk are those before the next one.",
        "selective_scan/selective_scan_parts_fwd.cu",
        "tile / kChunk * stride[1]",
        "(tile / kChunk + 1) % 2 * stride[1]",
        (_WINDOWS,),
    ),
    Mutant(
        "Lanes with parts beyond the last channel read there.",
        "selective_scan/scan_parts.cuh",
        "return min(base + among / kLanes, p.dim - 1);",
        "return base + among / kLanes;",
        (_PARTS,),
    ),
    Mutant(
        "The next channel of a block begins with the states of the one before.",
        "selective_scan/scan_parts.cuh",
        "                    state[s] = next_state[s].to_float(0);\n",
        "",
        (_ROUNDS,),
    ),
    Mutant(
        "The next channel of a block has the rates of the one before.",
        "selective_scan/scan_parts.cuh",
        "                    power[s] = next_rate[s] * kLog2E;\n",
        "                    power[s] = is_first ? next_rate[s] * kLog2E : power[s];\n",
        (_ROUNDS,),
    ),
    Mutant(
        "The next channel of a block has B and C of the group of the one before.",
        "selective_scan/scan_parts.cuh",
        "next_group != group || next_tile",
        "next_tile",
        (_ROUNDS_OF_GROUPS,),
    ),
    Mutant(
        "Tokens behind a window have B and C of the first one.",
        "selective_scan/scan_parts.cuh",
        "bring_window(next_group, next_tile / kWindow * kWindow, next_window)",
        "bring_window(next_group, 0, next_window)",
        (_WINDOWS,),
    ),
    Mutant(
        "A window is read before it has come.",
        "selective_scan/scan_parts.cuh",
        "                wait_for_copies();\n",
        "",
        (_WINDOWS,),
    ),
    Mutant(
        "The next window comes over the one that is read.",
        "selective_scan/scan_parts.cuh",
        "Shape::kWindows == 2 && !is_first ? window ^ 1 : 0",
        "0",
        (_WINDOWS,),
    ),
    Mutant(
        "The only window is brought before all lanes have read the one before.",
        "selective_scan/scan_parts.cuh",
        "                    sync_warp();\n                    bring_window",
        "                    bring_window",
        (_WINDOW,),
    ),
    Mutant(
        "A warp brings B and C of states that are not there.",
        "selective_scan/scan_parts.cuh",
        "first_n + s < p.d_state ? row.length() - begin : 0",
        "row.length() - begin",
        (_ROUNDS_OF_GROUPS,),
    ),
    Mutant(
        "The next tile of few states begins with its first lane's state.",
        "selective_scan/selective_scan_short_fwd.cu",
        "state[from + s] = from_group_lane<kLanes>(h[s], kLanes - 1)",
        "state[from + s] = from_group_lane<kLanes>(h[s], 0)",
        (_FEW_STATES_SHORT,),
    ),
)
