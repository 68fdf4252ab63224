"""Bugs in steps with rings."""

from __future__ import annotations

from tests.mutants import Mutant

_REPLAY = "selective_state_update_replay-"
_TOKEN = _REPLAY + "5-4-8-128-groups_2"
_FLOAT32 = _REPLAY + "9-4-8-64-groups_2-dtype_float32-window_7-room_1"
_FORCED = _REPLAY + "7-2-20-128-dtypes_float32-pool_slot_strided-odd-index_int64-forced"
_FRESH = _REPLAY + "5-2-6-128-fresh-beyond_2-odd-index_int64-null_slot_0-keep-forced"
_MANY = _REPLAY + "6-4-20-128-groups_2-tokens_5-dtype_float32-odd-index_int64-window_8-room_5-forced"
_MANY_TENSOR = _REPLAY + "4-2-9-64-tokens_16-state_dtype_float32-lies_fused-window_17-room_16"
_HEADS = _REPLAY + "5-4-40-128-groups_2-without_D-work_2,3"
_ODD_ROWS = _REPLAY + "3-6-37-128-groups_2-dtype_float32-window_6-forced-work_3,3"
_FOLD = _REPLAY + "5-4-8-128-groups_2-fold"
_FOLD_SOME = _REPLAY + "5-4-8-128-groups_2-fold-committed"
_FOLD_LEFT = _REPLAY + "3-2-10-128-live_0-fold"
_FOLD_NONE = _REPLAY + "3-2-48-128-dtype_float16-dtypes_z_B_C-force_rows=8-live_0-fold-committed"
_FOLD_ROWS = _REPLAY + "3-2-40-128-force_rows=4-fold"
_INT8 = _REPLAY + "5-4-8-128-groups_2-state_dtype_int8"
_WHOLE = _REPLAY + "5-4-64-128-groups_2-window_16-work_1,0"
_WHOLE_INT8 = _REPLAY + "5-2-64-128-state_dtype_int8-pool_slot_strided-odd-index_int64-forced-work_1,0"
_WHOLE_HEADS = _REPLAY + "5-4-64-128-groups_2-window_16-work_2,1"
_WHOLE_INT8_HEADS = _REPLAY + "5-6-64-128-groups_2-state_dtype_int8-pool_slot_strided-window_16-forced-work_3,1"
_WHOLE_RANKED = _REPLAY + "36-2-64-64-index_int64-null_slot_3-window_2-forced-work_2,1"
_WHOLE_MANY = _REPLAY + "4-4-64-128-groups_2-tokens_4-odd-index_int64-window_16-room_4-forced-work_1,0"
_WHOLE_PARTS = _REPLAY + "5-4-64-128-groups_2-state_dtype_int8-odd-index_int64-window_16-live_16-work_2,20"
_WHOLE_FLOAT8 = _REPLAY + "5-4-64-64-groups_2-state_dtype_float8_e4m3fn-window_5-forced-work_2,3"
_FOLD_HEADS = _REPLAY + "6-4-64-128-groups_2-state_dtype_int8-lies_fused-odd-index_int64-force_heads=1-fold"
_FOLD_HEADS_FULL = _REPLAY + "5-3-32-128-state_dtype_int8-pool_slot_strided-force_heads=1-window_16-live_16-fold"
_FOLD_HEADS_EMPTY = _REPLAY + "4-4-32-64-dtype_float32-state_dtype_float8_e4m3fn-without_all-force_heads=1-live_0-fold"
_FOLD_CODES = _REPLAY + "5-2-37-128-groups_2-state_dtype_int8-odd-index_int64-fold"
_FOLD_CODES_EMPTY = (
    _REPLAY + "5-4-24-128-groups_2-dtype_float16-state_dtype_float8_e4m3fn-null_slot_0-keep-force_rows=4-live_0-fold"
)
_COMMIT = "selective_state_update_commit-7-12"
_MATERIALISE = "selective_state_update_materialise-5-4-8-128-groups_2-dtype_float32-targets-count"

_HEADER = "selective_state_update/replay.cuh"
_TILES = "selective_state_update/replay_tiles.cuh"
_FOLDS = "selective_state_update/replay_fold.cuh"
_STATES = "selective_state_update/fold.cuh"
_STEP = "selective_state_update/whole_step.cuh"
_KERNEL = "selective_state_update/selective_state_update_replay.cu"
_WALKED = "selective_state_update/quantised_heads.cuh"
_BY_COLUMNS = "replay_by_columns-5-4-8-128-groups_2"
_FEW_BY_COLUMNS = "replay_by_columns-36-2-64-64-index_int64-window_2-work_2,1"
_FEW = "selective_state_update/selective_state_update_replay_few.cu"
_FEW_FLUSHED = "selective_state_update/replay_few_flushed.cuh"
_FEW_TOKENS = "selective_state_update/replay_few_tokens.cuh"
_FEW_STATES = "selective_state_update/replay_few_states.cuh"

MUTANTS = (
    Mutant(
        "The rows of a ring do not begin anew behind the last.",
        _HEADER,
        "return row < p.ring_rows ? row : row - p.ring_rows;",
        "return row < p.ring_rows ? row : p.ring_rows - 1;",
        (_TOKEN, _FLOAT32),
    ),
    Mutant(
        "A live token decays by its own dt', too.",
        _HEADER,
        "own = lane_id() + 1 < kWarpSize ? exp2_approx(next) * step : step;",
        "own = exp2_approx(behind) * step;",
        (_TOKEN, _FLOAT32),
    ),
    Mutant(
        "The state does not decay by the live tokens.",
        _HEADER,
        "state = exp2_approx(from_lane(behind, 0));",
        "state = 1.0f;",
        (_TOKEN, _FLOAT32),
    ),
    Mutant(
        "dt' of rows that are not live is read.",
        _HEADER,
        "if (lane_id() >= count) return 0.0f;",
        "if (lane_id() >= p.window) return 0.0f;",
        (_TOKEN, _FLOAT32),
    ),
    Mutant(
        "x of rows that are not live is multiplied by 0.",
        _TILES,
        "if (token(pass) < live && row < p.operands.headdim) {",
        "if (token(pass) < p.window && row < p.operands.headdim) {",
        (_TOKEN, _FLOAT32),
    ),
    Mutant(
        "A ring is put in the state one token too late.",
        _KERNEL,
        "step.live + step.tokens > p.window;",
        "step.live + step.tokens > p.window + 1;",
        (_FLOAT32, _TOKEN),
    ),
    Mutant(
        "A flush puts the new token in the state, too early.",
        _KERNEL,
        "cursor.leave(step.tokens, step.folds ? cursor.live : 0);",
        "cursor.leave(step.tokens, step.folds ? cursor.live + 1 : 0);",
        (_FLOAT32, _TOKEN),
    ),
    Mutant(
        "A forced flush is forgotten.",
        _KERNEL,
        "bool is_forced = !step.goes_on;\n    if (p.force_flush != nullptr) {",
        "bool is_forced = !step.goes_on;\n    if (p.force_flush == nullptr && p.window < 0) {",
        (_FORCED,),
    ),
    Mutant(
        "A sequence that starts from zeros has the tokens of the one before.",
        _KERNEL,
        "step.live = step.goes_on ? cursor.live : 0;",
        "step.live = cursor.live;",
        (_FRESH,),
    ),
    Mutant(
        "Rejected tokens that are NaN change the accepted ones.",
        _KERNEL,
        "if (first_new + i <= t) fresh[0]",
        "fresh[0]",
        ("selective_state_update/test_replay.py::test_a_rejected_token_changes_nothing",),
    ),
    Mutant(
        "A new token decays from the first on.",
        _KERNEL,
        "if (lane_id() < t) decayed += further;",
        "if (lane_id() <= t) decayed += further;",
        (_MANY, _MANY_TENSOR),
    ),
    Mutant(
        "New tokens are put in the rows of the live ones.",
        _KERNEL,
        "at.ring.dt[cursor.row(p, cursor.live + lane_id())] = head.step;",
        "at.ring.dt[cursor.row(p, lane_id())] = head.step;",
        (_TOKEN,),
    ),
    Mutant(
        "B of a group is not put in the ring.",
        _KERNEL,
        "if (at.warp.head % group_heads != 0 ||",
        "if (at.warp.head % group_heads != group_heads ||",
        (_TOKEN,),
    ),
    Mutant(
        "The next tile of a warp is the same again.",
        _TILES,
        "rows = rows + Traits::kRowsOfGroup * rows.row_step;",
        "rows = rows + 0 * rows.row_step;",
        (_HEADS,),
    ),
    Mutant(
        "The next head of a warp is the one after that.",
        _KERNEL,
        "warp.head = at.warp.head + 1;",
        "warp.head = min(at.warp.head + 2, 3);",
        (_HEADS,),
    ),
    Mutant(
        "A tile's lanes go on beyond the last row.",
        _TILES,
        "token.is_row = warp.is_row(p, Traits::kTile);",
        "token.is_row = lane_id() < Traits::kTile;",
        (_ODD_ROWS,),
    ),
    Mutant(
        "Tensor cores put tokens in the columns of others.",
        _FOLDS,
        "const unsigned half = i % 2 == 0 ? 0x5410u : 0x7632u;",
        "const unsigned half = i % 2 != 0 ? 0x5410u : 0x7632u;",
        (_FORCED, _MANY_TENSOR),
    ),
    Mutant(
        "Weights times x are rounded to bfloat16 once.",
        _FOLDS,
        "pair[half] = fabsf(rounded) <= 3.402823466e38f ? pair[half] - rounded : 0.0f;",
        "pair[half] = 0.0f;",
        (_MANY_TENSOR, _INT8),
    ),
    Mutant(
        "The scales of codes do not count in the result.",
        _KERNEL,
        "maps, 0, sums) * (head.weights.state * tile.scale);",
        "maps, 0, sums) * head.weights.state;",
        (_INT8,),
    ),
    Mutant(
        "A whole head's forced flush is forgotten.",
        _FEW_FLUSHED,
        "> p.window || force != 0;",
        "> p.window || force > 1;",
        (_WHOLE_MANY, _WHOLE_INT8),
    ),
    Mutant(
        "A new token of few decays by the one before it, not by its own dt'.",
        _FEW_TOKENS,
        "if (!Traits::kHasMany || i <= lane_id() % 4) power",
        "if (!Traits::kHasMany || i < lane_id() % 4) power",
        (_WHOLE_MANY,),
    ),
    Mutant(
        "Tiles of codes have the scales of the first one.",
        _FEW,
        "left[r] *= from_lane(head.scale[r], lane_id() / 4 * 4 + number);",
        "left[r] *= from_lane(head.scale[r], lane_id() / 4 * 4);",
        (_WHOLE_INT8,),
    ),
    Mutant(
        "Tensor cores multiply every word of states by C of the first.",
        _FEW_STATES,
        "own = from + new_token<Traits>(tokens) * token_stride + lane_id() / 4 % 2 * kWidth;",
        "own = from + new_token<Traits>(tokens) * token_stride;",
        (_WHOLE_INT8, _WHOLE),
    ),
    Mutant(
        "The lowest part of C does not count in products with codes.",
        _FEW_STATES,
        "256.0f, static_cast<float>(products[0]));",
        "256.0f, 0.0f);",
        ("selective_state_update/test_replay.py::test_small_elements_of_c_count_beside_a_large_one",),
    ),
    Mutant(
        "The next head of a warp has the states of this one.",
        _FEW,
        "tiles.from += tiles.next;",
        "tiles.from += 0;",
        (_WHOLE_HEADS, _WHOLE_INT8_HEADS),
    ),
    Mutant(
        "The live tokens of the next head take the place of this one's.",
        _FEW,
        "old.start(ring.x + warp.first_row, parity ^ 1);",
        "old.start(ring.x + warp.first_row, parity);",
        (_WHOLE_HEADS, _WHOLE_INT8_HEADS),
    ),
    Mutant(
        "Rows of shared memory that no live token is copied to keep what they held.",
        _FEW_TOKENS,
        "place(parity, i, lane_id() % 4, lane_id() / 4)), TokenVec::zero());",
        "place(0, i, lane_id() % 4, lane_id() / 4)), TokenVec::zero());",
        (_WHOLE_HEADS,),
    ),
    Mutant(
        "A warp does not count the sequences that flush before its own.",
        _FEW_FLUSHED,
        "p.spare_warps + rank * shares + number % shares;",
        "p.spare_warps + number % shares;",
        (_WHOLE_RANKED,),
    ),
    Mutant(
        "Of a warp's heads that flush, one is flushed again and again.",
        _FEW_FLUSHED,
        "* p.warp_heads + p.kept_heads + further;",
        "* p.warp_heads + p.kept_heads;",
        (_WHOLE_INT8_HEADS,),
    ),
    Mutant(
        "Heads that a warp flushes itself are flushed again.",
        _FEW_FLUSHED,
        "* p.warp_heads + p.kept_heads + further;",
        "* p.warp_heads + further;",
        (_WHOLE_RANKED,),
    ),
    Mutant(
        "A warp flushes a head that is left to others.",
        _FEW,
        "if (task.flushes && p.kept_heads == 0) {",
        "if (task.flushes && p.kept_heads < 0) {",
        (_WHOLE_INT8_HEADS,),
    ),
    Mutant(
        "A warp leaves out heads behind its first one that flushes.",
        _FEW_FLUSHED,
        "worker += workers;",
        "worker += 2 * workers;",
        (_WHOLE_INT8_HEADS,),
    ),
    Mutant(
        "All parts of a head that flushes are the first one.",
        _FEW_FLUSHED,
        "task.tiles.begin = (worker - head * parts) * tiles;",
        "task.tiles.begin = 0;",
        (_WHOLE_PARTS, _WHOLE_FLOAT8),
    ),
    Mutant(
        "A warp that flushes a part of a head stores the results of the others, too.",
        _FEW,
        "finish(out, again, weights, rate, own_step, 0, kept, range);",
        "finish(out, again, weights, rate, own_step, 0, kept, kAll);",
        (_WHOLE_PARTS, _WHOLE_FLOAT8),
    ),
    Mutant(
        "A new token's dt' is left to the warp that has the last part of a head.",
        _FEW,
        "tiles.begin == 0 && lane_id() < step.tokens",
        "tiles.begin == Traits::kTiles - 1 && lane_id() < step.tokens",
        (_WHOLE_INT8,),
    ),
    Mutant(
        "Tensor cores multiply all of a chunk by its first piece of C.",
        _FEW_STATES,
        "pieces[i] = ::load<kWidth>(own + Traits::element(i / kPieces) + i % kPieces * 2 * kWidth);",
        "pieces[i] = ::load<kWidth>(own + Traits::element(i / kPieces));",
        (_WHOLE_FLOAT8,),
    ),
    Mutant(
        "C of 8-bit floats has the unit of codes of 8 bits.",
        _FEW_STATES,
        "unit = from_lane(scale.unit * 128.0f, lane_id() % 4 * 8);",
        "unit = from_lane(scale.unit, lane_id() % 4 * 8);",
        (_WHOLE_FLOAT8,),
    ),
    Mutant(
        "Live tokens are forgotten where warps walk over heads.",
        _WALKED,
        "are_live(lane_id() % 4 == 1 && word > 0)",
        "are_live(lane_id() % 4 == 0 && word > 0)",
        (_FOLD_HEADS, _FOLD_HEADS_FULL),
    ),
    Mutant(
        "What a step without live tokens has put in states is not said where warps walk over heads.",
        _WALKED,
        "lane_id() / 2 == 1) RingCursor",
        "lane_id() / 2 == 2) RingCursor",
        (_FOLD_HEADS_EMPTY,),
    ),
    Mutant(
        "All heads of a warp that has live tokens are the first one.",
        _WALKED,
        "warp.head = heads.first + tile.head;",
        "warp.head = heads.first;",
        (_FOLD_HEADS,),
    ),
    Mutant(
        "Where cursors are in two arrays, rows are taken for live tokens.",
        "selective_state_update/replay.cuh",
        "load_word<Memory::kMutable, unsigned>(live)",
        "load_word<Memory::kMutable, unsigned>(RingCursor::place_of(p, slot))",
        (_BY_COLUMNS,),
    ),
    Mutant(
        "Where cursors are in two arrays, those of other slots are written.",
        _KERNEL,
        "if constexpr (!Traits::kByColumns) {",
        "if constexpr (true) {",
        (_BY_COLUMNS,),
    ),
    Mutant(
        "The step of few tokens writes cursors in two arrays.",
        _FEW,
        "if constexpr (!Traits::kByColumns) {",
        "if constexpr (true) {",
        (_FEW_BY_COLUMNS,),
    ),
    Mutant(
        "All warps of a block that puts live tokens in states take one warp's heads.",
        "selective_state_update/selective_state_update_quantised_fold.cu",
        "blockIdx.x * kWarps + warp",
        "blockIdx.x * kWarps",
        (_FOLD_HEADS, _FOLD_HEADS_FULL, _FOLD_HEADS_EMPTY),
    ),
    Mutant(
        "Live tokens are left in their ring where warps walk over heads.",
        "selective_state_update/selective_state_update_quantised_fold.cu",
        "fold_heads<Rows>(all, static_cast<unsigned>(opaque(static_cast<int>(number))));",
        "",
        (_FOLD_HEADS, _FOLD_HEADS_FULL),
    ),
    Mutant(
        "The second digit of C does not count in products with codes.",
        "selective_state_update/code_digits.cuh",
        "__uint_as_float((127u + 8u * d) << 23);",
        "__uint_as_float((127u + 8u * (d & 2)) << 23);",
        (_WHOLE_INT8, _WHOLE_INT8_HEADS),
    ),
    Mutant(
        "Sequences from the 33rd on have the ranks of the first ones.",
        _FEW_FLUSHED,
        "begin = i * kWarpSize;",
        "begin = 0;",
        (_WHOLE_RANKED,),
    ),
    Mutant(
        "Lanes read a tile that other lanes may still be copying.",
        _FEW_STATES,
        "wait_for_copy_groups<Traits::kPart - 1>();\n        sync_warp();",
        "wait_for_copy_groups<Traits::kPart - 1>();",
        (_WHOLE,),
    ),
    Mutant(
        "Live tokens count in the rows of the next tile.",
        _FEW_TOKENS,
        "place(parity, pass, q, 2 * tile + lane_id() / 16);",
        "place(parity, pass, q, 2 * tile + 2 + lane_id() / 16);",
        (_WHOLE, _WHOLE_INT8),
    ),
    Mutant(
        "A token that goes to the state at once stays live.",
        _STATES,
        "cursor.leave(0, cursor.live);",
        "cursor.leave(1, cursor.live);",
        (_FOLD,),
    ),
    Mutant(
        "What an empty ring has left to be committed stays.",
        _STATES,
        "lane_id() % 4 != 0 && word != 0",
        "lane_id() % 4 == 1 && word != 0",
        (_FOLD_LEFT,),
    ),
    Mutant(
        "A step without anything left to be committed forgets the live tokens.",
        _STATES,
        "lane_id() % 4 != 0 && word != 0",
        "lane_id() % 4 > 1 && word != 0",
        (_FOLD_SOME,),
    ),
    Mutant(
        "Of an empty ring's rows only those are stored that come before the cursor.",
        _STEP,
        "        rows.store(r, state[r]);",
        "        if (r < kEarly) rows.store(r, state[r]);",
        (_FOLD_NONE,),
    ),
    Mutant(
        "The rows of a group follow each other where all rows exist.",
        _STEP,
        "return first + (r * Rows::kGroups * kRow + i",
        "return first + (r * kRow + i",
        (_FOLD_NONE,),
    ),
    Mutant(
        "Rows that live tokens are put in one by one get the results of the last of them.",
        _STATES,
        "if (lane_id() / Traits::kGroups == r) y = own;",
        "y = own;",
        (_FOLD_ROWS,),
    ),
    Mutant(
        "All live tokens are applied to a copy, however many are asked for.",
        _STATES,
        "count = static_cast<int>(min(wanted, static_cast<index_t>(count)));",
        "count = static_cast<int>(count);",
        (_MATERIALISE,),
    ),
    Mutant(
        "The warps of a block put tokens in the same rows.",
        "selective_state_update/selective_state_update_fold.cu",
        "(Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;",
        "(Traits::kThreads / kWarpSize);",
        (_MATERIALISE,),
    ),
    Mutant(
        "The warps of a block step the same rows.",
        "selective_state_update/selective_state_update_fold_single.cu",
        "(Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;",
        "(Traits::kThreads / kWarpSize);",
        (_FOLD,),
    ),
    Mutant(
        "The warps of a block step the same rows of codes.",
        "selective_state_update/selective_state_update_quantised_fold_single.cu",
        "(Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;",
        "(Traits::kThreads / kWarpSize);",
        (_FOLD_CODES,),
    ),
    Mutant(
        "Steps of codes take every ring for an empty one.",
        "selective_state_update/whole_step.cuh",
        "if (lanes_where(lane_id() % 4 == 1 && word > 0) != 0) return false;",
        "",
        (_FOLD_CODES,),
    ),
    Mutant(
        "What an empty ring of codes has left to be committed stays, with few rows.",
        "selective_state_update/whole_step.cuh",
        "if (kLeavesFirst && warp.head == 0",
        "if (false && warp.head == 0",
        (_FOLD_CODES,),
    ),
    Mutant(
        "What an empty ring of codes has left to be committed stays, with four rows.",
        "selective_state_update/whole_step.cuh",
        "if (!kLeavesFirst && warp.head == 0",
        "if (false && warp.head == 0",
        (_FOLD_CODES_EMPTY,),
    ),
    Mutant(
        "A commit forgets what the step has put in the state.",
        "selective_state_update/selective_state_update_commit.cu",
        "live = min(cursor[1] - folded + static_cast<int>(accepted), p.window);",
        "live = min(cursor[1] + static_cast<int>(accepted), p.window);",
        (_COMMIT,),
    ),
    Mutant(
        "A commit accepts tokens beyond the last written row.",
        "selective_state_update/selective_state_update_commit.cu",
        "accepted = min(max(accepted, static_cast<index_t>(0)), static_cast<index_t>(appended));",
        "accepted = max(accepted, static_cast<index_t>(0));",
        (_COMMIT,),
    ),
)
