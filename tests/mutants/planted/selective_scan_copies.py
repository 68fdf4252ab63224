"""Bugs in copies of arrays that lie otherwise than a scan wants them, and in scans of rows that have phases."""

from __future__ import annotations

from tests.mutants import Mutant

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

MUTANTS = (
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
)
