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
)
