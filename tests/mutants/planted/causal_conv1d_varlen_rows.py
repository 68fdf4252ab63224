"""Bugs in convolutions of packed sequences with contiguous tokens, but for results over x."""

from __future__ import annotations

from tests.mutants import Mutant
from tests.mutants.planted.ids import MOVED_SHORT, SNAPSHOTS_ROWS

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
_STAGED_WIDE = "causal_conv1d_varlen_fn-296-off1+60+3x1+0+9+40x2+25+3-layout_tokens-pool_columns-processors_1"
_STAGED_BEHIND = "causal_conv1d_varlen_fn-136-60+20x3+5+54-layout_tokens_sliced-pool_columns-initial_all-processors_1"
_SHORTROWS = "causal_conv1d_varlen_fn-36-off3+253+1+255+1+2+3+63+65+off9+20x1+0+93-layout_tokens-slots_odd-initial_all"
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

MUTANTS = (
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
        ("causal_conv1d_varlen_fn-13-1029-layout_tokens-processors_1",),
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
        ": Tile::kBefore + end - kHalo);",
        ": Tile::kBefore + end - kHalo - 1);",
        (_STAGED,),
    ),
    Mutant(
        "The state of a sequence that goes on behind its tile keeps inputs of the tile's end.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "const bool is_behind = end > Tile::kTile;",
        "const bool is_behind = false;",
        (_STAGED_BEHIND,),
    ),
    Mutant(
        "The last inputs behind a tile are taken from the first word that has some of them.",
        "causal_conv1d/conv_short_staged.cuh",
        "return Tile::kTile + ((end - kHalo) & (kPerWord - 1));",
        "return Tile::kTile;",
        (_STAGED,),
    ),
    Mutant(
        "The last inputs behind a tile are copied from behind the last token, too.",
        "causal_conv1d/conv_short_staged.cuh",
        "Tile::kVec >= kPerWord && token + kPerWord <= p.total",
        "Tile::kVec >= kPerWord",
        (_STAGED_BEHIND,),
    ),
    Mutant(
        "Inputs that begin in the middle of a word are taken from its beginning.",
        "causal_conv1d/conv_short_staged.cuh",
        "inner == 0 ? 0x3210 : 0x5432",
        "0x3210",
        (_STAGED,),
    ),
    Mutant(
        "States of channels that do not exist are prefetched.",
        "causal_conv1d/conv_short_staged.cuh",
        "min(p.dim - channel, static_cast<index_t>(kPrefetched))",
        "static_cast<index_t>(kPrefetched)",
        (_STAGED_WIDE,),
    ),
    Mutant(
        "States of sequences that start from zeros are prefetched from where they are not.",
        "causal_conv1d/conv_short_staged.cuh",
        "if (run.slot < 0 || run.slot == ShortRun::kPadding || run.begin < 0) return;",
        "if (run.slot == ShortRun::kPadding || run.begin < 0) return;",
        (_STAGED_WIDE,),
    ),
    Mutant(
        "States of padding between sequences are prefetched.",
        "causal_conv1d/conv_short_staged.cuh",
        "if (run.slot < 0 || run.slot == ShortRun::kPadding || run.begin < 0) return;",
        "if (run.slot < 0 || run.begin < 0) return;",
        (_STAGED_WIDE,),
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
        "A short sequence's final state stays in the slot that the sequence starts from.",
        "causal_conv1d/causal_conv1d_varlen_shortrows_fwd.cu",
        "kAddressed ? load_target<kAddressed>(p, shared.number[number], start) : start;",
        "start;",
        (MOVED_SHORT,),
    ),
    Mutant(
        "Snapshots in short rows hold the inputs one token later.",
        "causal_conv1d/conv_short_snapshots.cuh",
        "int place = behind - p.snapshot_columns;",
        "int place = behind - p.snapshot_columns + (behind < Tile::kTile ? 1 : 0);",
        (SNAPSHOTS_ROWS,),
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
        (SNAPSHOTS_ROWS,),
    ),
    Mutant(
        "A tile stores the snapshots of prefixes, too.",
        "causal_conv1d/conv_short_snapshots.cuh",
        "& !snapshot.is_left(p, start, may_go_on);",
        ";",
        (SNAPSHOTS_ROWS, _SNAPSHOTS_RUNS),
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
        (SNAPSHOTS_ROWS, _SNAPSHOTS_RUNS),
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
        (SNAPSHOTS_ROWS,),
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
)
