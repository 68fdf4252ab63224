"""Bugs in scans of packed sequences."""

from __future__ import annotations

from tests.mutants import Mutant
from tests.mutants.planted.ids import SWEEPS_KEPT

_PHASES = "selective_scan_varlen_fn-36-off3+100+171+off3-slots_odd-processors_1"
_RUNS = "selective_scan_varlen_fn-70-off3+20x3+40+60x2+30+17+off2-slots_odd-processors_1"
_RUNS_TURNED = (
    "selective_scan_varlen_fn-72-off3+20x3+40+60x2+30+17+off2-layout_channels-matrices_by_state-slots_odd-processors_1"
)
_FEW_TURNED = (
    "selective_scan_varlen_fn-136-off5+3+40+0+133+17x1+off10-d_state_8-layout_channels-matrices_by_state-slots_odd"
)
_KEPT_LANES = (
    "selective_scan_varlen_fn-70-off5+3+40+0+133+5x1+off10-d_state_7-index_mixed-initial_all-moved-snapshots_pool"
)
_KEPT_TILES = "selective_scan_varlen_fn-128-200+236+300+200-index_mixed-initial_all-moved-snapshots_pool"
_SWEEPS_IN_ORDER = "selective_scan_varlen_fn-128-200+236+300+200-snapshots_own-every_5-processors_1"
_SWEEPS_BACKWARD = "selective_scan_varlen_fn-128-300-snapshots_own-every_-40-processors_1"
_TILES_IN_ORDER = "selective_scan_varlen_fn-128-200+236+300+200-snapshots_own-every_40"
_TILES_IN_STEP = "selective_scan_varlen_fn-128-512+280-snapshots_own-every_32"
_LANES_IN_ORDER = "selective_scan_varlen_fn-70-off5+3+40+0+133+5x1+off10-d_state_7-snapshots_own-every_3"
_MOVED_LANES = (
    "selective_scan_varlen_fn-70-off5+3+40+0+133+5x1+off10-d_state_7-slots_odd-index_mixed-table_column-moved"
)
_MOVED_TILES = (
    "selective_scan_varlen_fn-128-off5+3+40+0+133+17x1+off10-dtype_float32-slots_odd-index_mixed-table_column-moved"
)
_CODES_LANES = (
    "selective_scan_varlen_fn-9-20+3+41-d_state_40-dtype_float32-state_dtype_float8_e4m3fn-index_mixed-initial_all"
    "-moved-snapshots_pool"
)
_CODES_TILES = (
    "selective_scan_varlen_fn-128-200+236+300+200-d_state_12-state_dtype_int8-index_mixed-initial_all-moved"
    "-snapshots_pool"
)
_CODES_FEW = "selective_scan_varlen_fn-35-40x1-state_dtype_int8-initial_all"
_CODES_RANDOM = (
    "selective_scan_varlen_fn-128-25x2+24+30+3+269-dtype_float16-state_dtype_int16-pool_spaced-slots_odd-initial_all"
    "-longer_2-snapshots_own-seed_11"
)
_WIDE_CODES = "selective_scan_varlen_fn-4-300+204-d_state_256-state_dtype_float8_e4m3fn-initial_all-seed_5"
_WIDE_KEPT = (
    "selective_scan_varlen_fn-8-200+236+300-d_state_24-groups_2-dtype_float16-state_dtype_int8-slots_odd-longer_2"
    "-snapshots_own-every_40"
)
_PADDED = "selective_scan_varlen_fn-24-off13+200+213+off9-layout_channels-matrices_by_state-slots_odd"
_PADDED_KEPT = "selective_scan_varlen_fn-24-off3+203+236+off2-layout_channels-matrices_by_state-keep"
_BATCH_LANES = "selective_scan_varlen_fn-35-3x9-layout_channel_first-slots_odd-keep-dense"
_BATCH_TILES = "selective_scan_varlen_fn-128-3x136-groups_1-layout_channel_first-slots_odd-snapshots_pool-dense"

_SHARED = "selective_scan_varlen_fn-9-off5+42+37-d_state_3-dtype_float16-state_dtype_bfloat16-initial_all"
_SHARED_ODD = "selective_scan_varlen_fn-5-off3+100+171+off3-slots_odd"
_SHARED_FOUR = "selective_scan_varlen_fn-7-off2+33+41+50+37"
_SHARED_MOVED = "selective_scan_varlen_fn-6-33+41+50+37-table_column-moved"

MUTANTS = (
    Mutant(
        "Zeros of padding go to some of a block's channels where these have one phase.",
        "selective_scan/scan_varlen.cuh",
        "min(Shape::kChannels << phase_bits,",
        "min(Shape::kChannels,",
        (_PHASES,),
    ),
    Mutant(
        "Padding behind the last sequence has the channels of the block's number.",
        "selective_scan/selective_scan_varlen_tiles_fwd.cu",
        "store_padding<typename Traits::Long>(p, first_channel_of<typename Traits::Long>(p, again.remainder),",
        "store_padding<typename Traits::Long>(p, static_cast<int>(again.remainder) * Traits::Long::kChannels,",
        (_PHASES,),
    ),
    Mutant(
        "A tile's matrices have what is in front of a sequence.",
        "selective_scan/tile_block.cuh",
        "        B.clear_front(shared.B[stage], p.d_state, first, tile, begin);\n",
        "",
        (_WIDE_KEPT,),
    ),
    Mutant(
        "A tile's matrices have what is behind a sequence.",
        "selective_scan/tile_matrices.cuh",
        "const int bytes = min(max(end - token(tile), 0), kVec)",
        "const int bytes = (end - token(tile) > 0 ? kVec : 0)",
        ("selective_scan_varlen_fn-33-30+40+50-slots_odd-processors_1",),
    ),
    Mutant(
        "Codes of more than 16 states have the scale of some of them.",
        "selective_scan/tile_block.cuh",
        "factors[round] = Shape::kIsWide ? of_one :",
        "factors[round] =",
        (_WIDE_CODES,),
    ),
    Mutant(
        "A snapshot inside a sweep follows one token more.",
        "selective_scan/scan_sweeps.cuh",
        "for (int t = first; t < behind; ++t) {",
        "for (int t = first; t <= behind; ++t) {",
        (SWEEPS_KEPT,),
    ),
    Mutant(
        "Behind a snapshot in a sweep the next one repeats it from its beginning.",
        "selective_scan/scan_sweeps.cuh",
        "repeat(from, steps, rate, state, first, kept - at);",
        "repeat(from, steps, rate, state, 0, kept - at);",
        (_SWEEPS_IN_ORDER,),
    ),
    Mutant(
        "Of the rows of snapshots that a warp looks at one by one the last is passed over.",
        "common/snapshots.cuh",
        "own = {NextSnapshot::kNone, first + kWarpSize - 1, -1};",
        "own = {NextSnapshot::kNone, first + kWarpSize, -1};",
        (_SWEEPS_IN_ORDER, _LANES_IN_ORDER),
    ),
    Mutant(
        "Rows of snapshots count as in order whatever their positions.",
        "common/snapshots.cuh",
        "const bool falls = own < (lane == 0 ? before : lower);",
        "const bool falls = own < min(0, lane == 0 ? before : lower);",
        (_SWEEPS_BACKWARD,),
    ),
    Mutant(
        "A long packed sequence's state goes to the slot of its number.",
        "selective_scan/selective_scan_varlen_fwd.cu",
        "store_states(pool, target,",
        "store_states(pool, number,",
        ("selective_scan_varlen_fn-5-16+8+40-d_state_24",),
    ),
    Mutant(
        "A packed sequence without a slot is left as it was.",
        "selective_scan/selective_scan_varlen_tiles_fwd.cu",
        "if (!p.keeps_padding) store_zeros<Shape>(p, batch, first_channel, begin, end, phase_bits);",
        "",
        ("selective_scan_varlen_fn-33-30+40+50-slots_odd-processors_1",),
    ),
    Mutant(
        "The padding in front of sequences that are alike is left as it was.",
        "selective_scan/scan_varlen.cuh",
        "if (number == 0) store_zeros",
        "if (number > p.sequences) store_zeros",
        (_PADDED,),
    ),
    Mutant(
        "The padding behind sequences that are alike is left as it was.",
        "selective_scan/scan_varlen.cuh",
        "if (number >= p.sequences - 1) {",
        "if (number > p.sequences) {",
        (_PADDED,),
    ),
    Mutant(
        "Padding around sequences becomes zeros where it is to stay as it was.",
        "selective_scan/scan_varlen.cuh",
        "if (p.keeps_padding || (number > 0",
        "if ((number > 0",
        (_PADDED_KEPT,),
    ),
    Mutant(
        "Zeros of contiguous channels are those of one channel.",
        "selective_scan/scan_varlen.cuh",
        "c = number % kAcross << phase_bits; c < channels",
        "c = number % kAcross << phase_bits; c < min(1, channels)",
        (_PADDED,),
    ),
    Mutant(
        "A sequence of as many tokens as a short one may have is left out.",
        "selective_scan/runs.cuh",
        "tokens > 0 && tokens <= most",
        "tokens > 0 && tokens < most",
        ("selective_scan_varlen_fn-35-128+16x1-loud_20",),
    ),
    Mutant(
        "The state of a short sequence is one that begins anew.",
        "selective_scan/scan_few_windows.cuh",
        "has_past && exists);",
        "false);",
        ("selective_scan_varlen_fn-35-8+3x1+5+16+9+7-state_dtype_bfloat16-without_D_z-others_strided-pool_transposed",),
    ),
    Mutant(
        "The state of a short sequence, brought in vectors, is that of the sequence before.",
        "selective_scan/scan_few_windows.cuh",
        "copy_vector_async(&to.parts[k], first + at + k * kWidth);",
        "if (i == 0) copy_vector_async(&to.parts[k], first + at + k * kWidth);",
        (_RUNS,),
    ),
    Mutant(
        "A short sequence's lane reads its neighbour's B.",
        "selective_scan/scan_few.cuh",
        "b[i] = ::load<kStates, Memory::kMutable>(matrices + n);",
        "b[i] = ::load<kStates, Memory::kMutable>(matrices + (n ^ kStates));",
        (_FEW_TURNED,),
    ),
    Mutant(
        "The next rows of short sequences are copied over those that are scanned.",
        "selective_scan/scan_few_rows.cuh",
        "start(stage ^ 1, batch + kBatch);",
        "start(stage, batch + kBatch);",
        (_RUNS_TURNED,),
    ),
    Mutant(
        "Rows of short sequences are read before all lanes have copied theirs.",
        "selective_scan/scan_few_rows.cuh",
        "        wait_for_copies();\n        sync_warp();",
        "        wait_for_copies();",
        (_RUNS_TURNED,),
    ),
    Mutant(
        "Rows of all tokens of a batch are stored.",
        "selective_scan/scan_few_rows.cuh",
        "if (!has_channels || (scanned >> token(round) & 1) == 0) continue;",
        "if (!has_channels) continue;",
        (_RUNS_TURNED,),
    ),
    Mutant(
        "The second of two tokens of a short sequence has the first one's B.",
        "selective_scan/scan_few_windows.cuh",
        "matrices + 2 * i * Shape::kHalf);",
        "matrices);",
        (_RUNS,),
    ),
    Mutant(
        "A packed scan of few tokens leaves its state where it found it.",
        "selective_scan/scan_few.cuh",
        "p.states_is_vectors, target, h,",
        "p.states_is_vectors, slot, h,",
        (_MOVED_LANES, _MOVED_TILES),
    ),
    Mutant(
        "A packed scan of several lanes a channel leaves its state where it found it.",
        "selective_scan/selective_scan_varlen_fwd.cu",
        "store_states(pool, target,",
        "store_states(pool, slot,",
        (_MOVED_LANES,),
    ),
    Mutant(
        "A packed scan by tiles leaves its state where it found it.",
        "selective_scan/selective_scan_varlen_tiles_fwd.cu",
        "store_slot<1>(shared.state, pool, target,",
        "store_slot<1>(shared.state, pool, slot,",
        (_MOVED_TILES,),
    ),
    Mutant(
        "A packed scan of few tokens stores zeros over padding that is to be kept.",
        "selective_scan/scan_few.cuh",
        "scan.scanned |= slot >= 0 || !p.keeps_padding ? bits : 0;",
        "scan.scanned |= bits;",
        ("selective_scan_varlen_fn-70-off5+3+40+0+133+5x1+off10-d_state_7-slots_odd-table_first-longer_3-keep",),
    ),
    Mutant(
        "A scan's snapshots are taken in the order of their rows.",
        "common/snapshots.cuh",
        "other.position < next.position || (other.position == next.position && other.row < next.row)",
        "other.row >= 0 && (next.row < 0 || other.row < next.row)",
        (_KEPT_TILES, _KEPT_LANES),
    ),
    Mutant(
        "A scan of few tokens keeps the state behind the next token.",
        "selective_scan/scan_few.cuh",
        "row.sequence == number && row.position == position",
        "row.sequence == number && row.position + 1 == position",
        (_KEPT_LANES,),
    ),
    Mutant(
        "A scan ends a run for a snapshot one token late.",
        "selective_scan/scan_varlen.cuh",
        "const int to = cursor.first_where(interrupts);",
        "const int to = min(end, cursor.first_where(interrupts) + 1);",
        (_KEPT_LANES,),
    ),
    Mutant(
        "A scan's codes have the scale of some of a channel's states.",
        "selective_scan/scan_states.cuh",
        "max_over_lanes<kLanes>(magnitude)",
        "max_over_lanes<kLanes / 2>(magnitude)",
        (_CODES_LANES, _CODES_TILES, _CODES_FEW),
    ),
    Mutant(
        "A scan by lanes stores a scale in the slot that the state came from.",
        "selective_scan/selective_scan_varlen_fwd.cu",
        "*to.scale(at, scan.channel) =",
        "*to.scale(slot, scan.channel) =",
        (_CODES_LANES,),
    ),
    Mutant(
        "A scan by tiles starts from codes without their scale.",
        "selective_scan/selective_scan_varlen_tiles_fwd.cu",
        "to_float(0) * pool.load_scale(slot, channel);",
        "to_float(0);",
        (_CODES_TILES,),
    ),
    Mutant(
        "A scan of few tokens starts from codes without their scale.",
        "selective_scan/scan_few_windows.cuh",
        "raw.to_float(i) * scales[r]",
        "raw.to_float(i)",
        (_CODES_FEW,),
    ),
    Mutant(
        "A scan of few tokens gives every channel the scale of its group's first.",
        "selective_scan/scan_few.cuh",
        "factor = own == r ? factors[r] : factor;",
        "factor = own == r ? factors[0] : factor;",
        (_CODES_FEW,),
    ),
    Mutant(
        "A scan of few tokens rounds snapshots by the numbers of the next token.",
        "selective_scan/scan_few.cuh",
        "{number, position - 1}",
        "{number, position}",
        (_CODES_RANDOM,),
    ),
    Mutant(
        "A scan rounds all states of a vector by the same random bits.",
        "selective_scan/scan_states.cuh",
        "number % 8 + i)",
        "number % 8)",
        ("selective_scan_varlen_fn-40-19+5+9+2-d_state_8-dtype_float16-state_dtype_int8-seed_1-rounds_7",),
    ),
    Mutant(
        "A scan by lanes reads the first row of a batch for all.",
        "selective_scan/selective_scan_varlen_fwd.cu",
        "scan(p, kBatch ? number : 0, channel)",
        "scan(p, 0, channel)",
        (_BATCH_LANES,),
    ),
    Mutant(
        "A scan by tiles reads the first row of a batch for all.",
        "selective_scan/selective_scan_varlen_tiles_fwd.cu",
        "const int batch = kMixed ? 0 : number;",
        "const int batch = 0;",
        (_BATCH_TILES,),
    ),
    Mutant(
        "A scan of few tokens stores results of tokens that are others'.",
        "selective_scan/scan_few_windows.cuh",
        "scanned == kAll",
        "scanned != 0",
        ("selective_scan_varlen_fn-150-200+37x1+3-spare_0-initial_all",),
    ),
    Mutant(
        "A scan of few tokens goes on with the batch of tokens before.",
        "selective_scan/scan_few_apart.cuh",
        "inputs = ahead;",
        "",
        ("selective_scan_varlen_fn-35-16+8+3+13-state_dtype_bfloat16-layout_channels-pool_slots_innermost",),
    ),
    Mutant(
        "A scan of few tokens misses a snapshot at a sequence's first token.",
        "selective_scan/scan_few.cuh",
        "scan.next_position(rows, own_snapshot, number, 0, end - begin)",
        "scan.next_position(rows, own_snapshot, number, 1, end - begin)",
        (_KEPT_LANES,),
    ),
    Mutant(
        "All snapshots inside a tile get the states of the first one.",
        "common/snapshots.cuh",
        "__popc(others & ((2u << lane) - 1));",
        "0;",
        (_TILES_IN_ORDER,),
    ),
    Mutant(
        "Snapshots of one position inside a tile count as several.",
        "common/snapshots.cuh",
        "lanes_where(lane > 0 && own_token != before);",
        "lanes_where(lane > 0);",
        (_TILES_IN_ORDER,),
    ),
    Mutant(
        "A state inside a tile is taken one token late.",
        "selective_scan/scan_tiles.cuh",
        "found = token - 1 - first;",
        "found = min(token - first, kTokens - 1);",
        (_TILES_IN_ORDER,),
    ),
    Mutant(
        "A snapshot inside a tile is of the states behind the tile.",
        "selective_scan/selective_scan_varlen_tiles_fwd.cu",
        "place < 0 ? shared.state : shared.taken + place * Shape::kChannels",
        "shared.state",
        (_TILES_IN_ORDER,),
    ),
    Mutant(
        "States behind any token of a lane are taken behind its last one.",
        "common/snapshots.cuh",
        "tokens % kTokens != 0 ? kCut : 0",
        "0",
        ("selective_scan_varlen_fn-128-512+280-state_dtype_float16-snapshots_own-every_72",),
    ),
    Mutant(
        "All lanes keep the states of a tile's snapshots in the same place.",
        "selective_scan/scan_tiles.cuh",
        "__popc(takers & ((1u << lane) - 1))",
        "0",
        (_TILES_IN_STEP,),
    ),
    Mutant(
        "Of snapshots that are stored at once all are the first one.",
        "common/snapshots.cuh",
        "i + lane / (kWarpSize / kCopies)",
        "i",
        (_TILES_IN_STEP,),
    ),
    Mutant(
        "States of a tile's snapshots go to the rows of the block's first channel.",
        "selective_scan/scan_tiles.cuh",
        "place * Shape::kChannels + local : -1",
        "place * Shape::kChannels : -1",
        (_TILES_IN_STEP,),
    ),
    Mutant(
        "Warps that share states go through what lies in front of a packed sequence.",
        "selective_scan/scan_parts.cuh",
        "if (Row::kHasLead && next_tile + first_finished + t < row.lead) dt[t] = dt_u[t] = 0.0f;",
        "",
        (_SHARED,),
    ),
    Mutant(
        "B in front of a packed sequence is multiplied by zero, whatever it is.",
        "selective_scan/scan_parts.cuh",
        "if (among < row.lead) shared.matrices",
        "if (among < row.lead - 8) shared.matrices",
        (_SHARED,),
    ),
    Mutant(
        "Results go to what lies in front of a packed sequence.",
        "selective_scan/scan_parts.cuh",
        "if (t >= lead && t < live) to[t]",
        "if (t < live) to[t]",
        (_SHARED,),
    ),
    Mutant(
        "A packed sequence that begins with zeros goes on from its slot.",
        "selective_scan/selective_scan_varlen_parts_fwd.cu",
        "p.has_states && start.goes_on ? slot : -1",
        "p.has_states ? slot : -1",
        (_SHARED_FOUR,),
    ),
    Mutant(
        "Warps that share states leave the last state where they found the first one.",
        "selective_scan/selective_scan_varlen_parts_fwd.cu",
        "uniform(load_target(p, number, slot))",
        "slot",
        (_SHARED_MOVED,),
    ),
    Mutant(
        "Warps that share states leave a sequence without a slot as it was.",
        "selective_scan/selective_scan_varlen_parts_fwd.cu",
        "if (slot < 0 && !p.keeps_padding) store_zeros",
        "if (slot < -1 && !p.keeps_padding) store_zeros",
        (_SHARED_ODD,),
    ),
    Mutant(
        "Warps that share states leave the padding around sequences as it was.",
        "selective_scan/selective_scan_varlen_parts_fwd.cu",
        "        store_padding<Shape>(p, base, number);\n",
        "",
        (_SHARED_ODD,),
    ),
    Mutant(
        "The next window of a packed sequence has B and C of the first sequence.",
        "selective_scan/scan_parts.cuh",
        "first_n * stride[2] + row.first + begin;",
        "first_n * stride[2] + begin;",
        (_SHARED_ODD,),
    ),
)
