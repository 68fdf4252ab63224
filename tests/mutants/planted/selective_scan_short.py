"""Bugs in scans whose warps share the states of a channel, or whose lanes have all of few states."""

from __future__ import annotations

from tests.mutants import Mutant

_FEW_STATES = "selective_scan_fn-1-35-262-d_state_3-groups_5-dtype_float16-params_-processors_1"
_PARTS = "selective_scan_fn-2-35-43"
_FEW_STATES_SHORT = "selective_scan_fn-2-30-77-d_state_4-without_chunk_states_out-others_strided-processors_1"
_ROUNDS = "selective_scan_fn-1-42-43-layout_offset_by_1-processors_1"
_ROUNDS_OF_GROUPS = "selective_scan_fn-2-24-70-d_state_9-groups_3-dtype_float16-others_strided-processors_1"
_WINDOWS = "selective_scan_fn-1-3-1016-loud_5"
_WINDOW = "selective_scan_fn-1-2-520-dtype_float32-without_z"

MUTANTS = (
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
