// One to four tokens of a selective state space model with one decay a head, by replay: the formula, and when states
// are written, are selective_state_update_replay.cu's, for x, B and C of bfloat16, contiguous rows of heads, and a
// window of at most 16 tokens.
//
// Layout: a warp has 64 rows of some heads of one group, one head after the other, and needs no other warp; heads of
// sequences that flush are divided among further warps, too. Tiles are 16 of the rows, and lane 4 g + q has every
// fourth 16 bytes of the rows 2 g and 2 g + 1 of each. With one token it finishes the two of tile q, with several all
// eight for token q.
//
// kDState  d_state    state_t  the pool of states    a_t  A    kMany  several tokens    kByColumns  cursors are in two
// arrays
#include "selective_state_update/replay_few_states.cuh"
#include "selective_state_update/replay_few_tokens.cuh"

struct SelectiveStateUpdateReplayFewParams {
    ReplayFewOperands operands;
};

template <typename Base, bool kMany, bool kColumns>
struct ReplayFewRows : Base {
    static constexpr bool kByColumns = kColumns;
    static constexpr bool kHasMany = kMany;
    static constexpr int kWindows = 16;
    static constexpr int kXVecs = 8;
    static constexpr int kTiles = 4;
    static constexpr int kWarpRows = kTiles * Base::kTile;
    static constexpr int kTokens = kMany ? 4 : 1;
    static constexpr int kOwnRows = kMany ? 8 : 2;  // that a lane finishes, for one token
    // Tiles that are on their way at once, 8 KiB of a warp: with 12 KiB the steps below took 2 and 3 us more.
    static constexpr int kPart = Base::kChunks > 4 ? 1 : Base::kChunks > 2 ? 2 : 4;
    // Whether heads that flush are divided. Of bfloat16 it takes as long in parts.
    static constexpr bool kDivides = !kMany && (Base::kIsQuantised || sizeof(typename Base::State) == 4);
    static constexpr bool kIsInt8 = kIsSame<typename Base::State, signed char>;
    static constexpr bool kIsFloat8 = kIsSame<typename Base::State, float8_e4m3fn>;
    static constexpr bool kIsBfloat16 = kIsSame<typename Base::State, __nv_bfloat16>;
    // Whether the first states are asked for before the ring is, for which the cursor has to be known: 64 sequences of
    // int8 take 25.9 us so and 26.4 otherwise, 16 of bfloat16 14.8 and 14.0, 64 of float32 78.4 and 75.5.
    static constexpr bool kStatesFirst = kMany || (sizeof(typename Base::State) < 4 && !kIsBfloat16);
    static constexpr int kMatrixChunks = Base::kElements / 8;  // of B or C, 16 bytes each

    // Row r of the lane's group in the tile that begins at the first row.
    __device__ __forceinline__ static int row(const WarpRows& warp, int r) {
        return warp.first_row + lane_id() / 4 * 2 + r;
    }
};

template <int kDState, typename state_t, typename a_t, bool kMany, bool kByColumns>
struct SelectiveStateUpdateReplayFewTraits {
    static constexpr int kThreads = 128;
    // On an H200 steps of 64 sequences of Mamba-2 with 128 heads, some of which flush, take 3 % longer with 4 blocks
    // where states are bfloat16, 5 % where they are int8: some arguments of what flushes are kept in memory then. With
    // one head a warp, 4 tokens of 32 sequences took 41 us with 2, 45 with 3 and 52 with 4.
    // Without tensor cores their products take registers.
    static constexpr int kMinBlocks = kMany || !kHasTensorCores ? 2 : 3;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(state_t));
    using Rows = ReplayFewRows<RowTraits<kDState, __nv_bfloat16, state_t, a_t, __nv_bfloat16, kVec, 2, true, false,
                                         false, false, false, false, true, 4, SelectiveStateUpdateSingleOperands>,
                               kMany, kByColumns>;
};

template <typename Traits>
struct ReplayFewShared {
    typename Traits::StateVec tiles[StagedTiles<Traits>::kVecs];
    typename StagedTokens<Traits>::TokenVec tokens[StagedTokens<Traits>::kVecs];
};

// The scales of a head's rows, from `row` on; nullptr for states without scales.
template <typename Traits>
__device__ __forceinline__ float* scales_of(const ReplayFewOperands& p, int slot, int head, int row) {
    if constexpr (Traits::kIsQuantised) {
        return static_cast<float*>(p.state_scale) + slot * static_cast<index_t>(p.scale_stride[0]) +
               head * p.scale_stride[1] + row;
    } else {
        return nullptr;
    }
}

// What a warp knows of its sequence, and of the group of its heads.
template <typename Traits>
struct ReplayFewWarp {
    using input_t = __nv_bfloat16;
    static constexpr TileRange kAll = {0, Traits::kTiles};
    // What a lane keeps of C * S: of its own rows, or parts of those of its group.
    static constexpr int kKept =
        Traits::kHasMany || StateFactors<Traits>::kIsSplit ? 2 * Traits::kTiles : Traits::kOwnRows;

    const ReplayFewOperands& p;
    const SequenceStep& step;
    const RingCursor& cursor;
    const StagedTokens<Traits>& old;
    const LiveProducts<Traits>& live_products;
    const float (&products)[4];  // B . C of the new tokens
    const StateFactors<Traits>& factors;
    int row;    // the lane's first own one
    int token;  // the lane's own one

    // Of the lane's rows in tile q of a head.
    __device__ __forceinline__ float* scales(const WarpRows& warp) const {
        return scales_of<Traits>(p, step.slot, warp.head, Traits::row(warp, lane_id() % 4 * Traits::kTile));
    }

    __device__ __forceinline__ OwnRows<Traits> own_x(const HeadTokens<Traits>& head) const {
        OwnRows<Traits> own = head.x[0];
#pragma unroll
        for (int i = 1; i < Traits::kTokens; ++i) own.take(i == token, head.x[i]);
        return own;
    }

    __device__ __forceinline__ void load(HeadTokens<Traits>& head, const WarpRows& warp, const Ring<Traits>& ring,
                                         bool has_past = true) const {
        head.load(p, warp, step.tokens, row, token, scales(warp));
        if (has_past) head.live_step = load_steps<Traits>(p, ring, cursor, step.live);
    }

    // Puts the live tokens in a tile of a head's states, which is in shared memory.
    __device__ __forceinline__ void fold(const StagedTiles<Traits>& tiles, WarpRows warp, int number, int parity,
                                         const HeadTokens<Traits>& head, const Weights& weights,
                                         const FoldTokens<Traits>& tokens) const {
        typename Traits::StateVec raw[2][Traits::kChunks];
        tiles.read(number, raw);
        unsigned inputs[kFoldTerms][4];
        old.multiply(weights, parity, number, inputs);
        float left[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            left[r] = weights.state;
            if constexpr (Traits::kIsQuantised) left[r] *= from_lane(head.scale[r], lane_id() / 4 * 4 + number);
        }
        warp.first_row += Traits::kTile * number;
        float* const to = scales_of<Traits>(p, step.slot, warp.head, Traits::row(warp, 0));
        const SelectiveStateUpdateSingleOperands& s = p.operands;
        StateRows<Traits> rows =
            StateRows<Traits>(s.state, s.state_stride + 1, warp) + step.slot * static_cast<index_t>(s.state_stride[0]);
        rows.row_step = Traits::kElements * 4;
        RowFactors<Traits> found;
        fold_two_rows<Traits>(s, warp, rows, raw, left, found, [&](int chunk, float (&state)[2][Traits::kVecs]) {
            add_products<Traits>(inputs, tokens.B[chunk], state);
        });
        if constexpr (Traits::kIsQuantised) {
            if (lane_id() % 4 < 2) to[lane_id() % 4] = scale_of_factor(found.kept);
        }
    }

    // Stores the results of a head. kept: C * S, which is still to be multiplied by what is left of the states.
    __device__ __forceinline__ void finish(input_t* out, const HeadTokens<Traits>& head, const Weights& weights,
                                           float rate, float own_step, int parity, const float (&kept)[kKept],
                                           const TileRange& tiles) const {
        const SelectiveStateUpdateSingleOperands& s = p.operands;
        float of_states[Traits::kOwnRows];
        join(kept, of_states);
        float y[Traits::kOwnRows];
        old.sum(LiveWeights<Traits>(live_products, weights, step.live), step.live, parity, y);
        const NewDecays<Traits> decays(rate, own_step);
#pragma unroll
        for (int r = 0; r < Traits::kOwnRows; ++r) {
            float unit = weights.state * factors.unit;
            if constexpr (Traits::kIsQuantised) {
                unit *= Traits::kHasMany ? from_lane(head.scale[r % 2], lane_id() / 4 * 4 + r / 2) : head.scale[r];
            }
            y[r] = fmaf(of_states[r], unit, y[r]) * decays.whole;
        }
#pragma unroll
        for (int i = 0; i < Traits::kTokens; ++i) {
            const float product = Traits::kHasMany ? from_lane(products[0], i * 4 + token) : products[0];
            const float input = decays.inputs[i] * product;
            // A later token may be NaN, and is rejected then.
            if (i > token) continue;
#pragma unroll
            for (int r = 0; r < Traits::kOwnRows; ++r) y[r] = fmaf(input, head.x[i].to_float(r), y[r]);
        }
        const OwnRows<Traits> own = own_x(head);
#pragma unroll
        for (int r = 0; r < Traits::kOwnRows; ++r) {
            if (s.D != nullptr) y[r] = fmaf(head.D[r].to_float(s.D_is_float32), own.to_float(r), y[r]);
            if (s.z != nullptr) y[r] *= silu<float>(head.z.to_float(r));
        }
        // Results may lie where x does, which the other lanes have loaded.
        if constexpr (Traits::kHasMany) sync_warp();
        if (token >= step.tokens) return;
        OwnRows<Traits> results;
#pragma unroll
        for (int i = 0; i < Traits::kOwnRows; i += 2) {
            const float pair[2] = {y[i], y[i + 1]};
            results.pairs[i / 2] = Vec<input_t, 2>::from_floats(pair);
        }
        results.store(out, tiles);
    }

    // What the new tokens leave for later steps; gives dt' of the lane's one.
    __device__ __forceinline__ float append(const WarpRows& warp, const Ring<Traits>& ring,
                                            const HeadTokens<Traits>& head, const TileRange& tiles) const {
        float own_step = 0.0f;
        if (!Traits::kHasMany || lane_id() < step.tokens) {
            own_step = step_length<Traits>(p.operands, head.parameters, head.dt);
        }
        if (token < step.tokens) own_x(head).store(ring.x_at(p, cursor.row(p, cursor.live + token), row), tiles);
        if (warp.first_row == 0 && tiles.begin == 0 && lane_id() < step.tokens) {
            ring.dt[cursor.row(p, cursor.live + lane_id())] = own_step;
        }
        return own_step;
    }

    // C * S of the oldest tile on its way, which is tile m of a head.
    __device__ __forceinline__ void multiply(const StagedTiles<Traits>& tiles, int m, float (&kept)[kKept]) const {
        typename Traits::StateVec raw[2][Traits::kChunks];
        tiles.wait();
        tiles.read(m, raw);
        float of_tile[2];
        factors.multiply(raw, of_tile);
#pragma unroll
        for (int i = 0; i < kKept; ++i) {
            const bool is_own = kKept > 2 ? i / 2 == m : lane_id() % 4 == m;
            kept[i] = is_own ? of_tile[i % 2] : kept[i];
        }
    }

    // C * S of the lane's own rows.
    __device__ __forceinline__ static void join(const float (&kept)[kKept], float (&own)[Traits::kOwnRows]) {
#pragma unroll
        for (int r = 0; r < Traits::kOwnRows; ++r) {
            if constexpr (StateFactors<Traits>::kIsSplit) {
                float parts[Traits::kTiles];
#pragma unroll
                for (int m = 0; m < Traits::kTiles; ++m) parts[m] = kept[2 * m + r];
                own[r] = sum_rows_over_lanes<Traits::kTiles, 4>(parts);
            } else {
                own[r] = kept[r];
            }
        }
    }

    // Replays `heads` heads from that of `warp` on. What is in shared memory is on its way, and `next` has been loaded.
    __device__ __forceinline__ void replay(WarpRows warp, int heads, StagedTiles<Traits>& tiles, Ring<Traits>& ring,
                                           HeadTokens<Traits>& next, input_t* out) const {
#pragma unroll 1
        for (int parity = 0; heads > 0; --heads, parity ^= 1) {
            const bool is_last = heads == 1;
            const HeadTokens<Traits> head = next;
            const float own_step = append(warp, ring, head, kAll);
            ring.x += p.ring_rows * p.operands.headdim;
            ring.dt += p.ring_rows;
            if (!is_last) {
                WarpRows following = warp;
                ++following.head;
                // The next head's inputs are on their way while this one's are used.
                load(next, following, ring);
            }
            const float rate = kLog2E * head.parameters.A[0][0].to_float(0);
            const Weights weights(rate, head.live_step);
            float kept[kKept] = {};
#pragma unroll
            for (int m = 0; m < Traits::kTiles; ++m) {
                multiply(tiles, m, kept);
                sync_warp();
                if (m == 0 && !is_last) old.start(ring.x + warp.first_row, parity ^ 1);
                tiles.start(m + Traits::kPart, is_last ? Traits::kTiles : 2 * Traits::kTiles);
            }
            finish(out, head, weights, rate, own_step, parity, kept, kAll);
            tiles.from += tiles.next;
            out += p.operands.out_stride[2];
            ++warp.head;
        }
    }

    // Replays tiles of a head and puts its live tokens in their states, which takes the registers for what other warps
    // load ahead.
    __device__ __forceinline__ void replay_and_fold(const WarpRows& warp, const TileRange& range,
                                                    StagedTiles<Traits>& tiles, const Ring<Traits>& ring,
                                                    const HeadTokens<Traits>& head, input_t* out) const {
        const float own_step = append(warp, ring, head, range);
        const float rate = kLog2E * head.parameters.A[0][0].to_float(0);
        const Weights weights(rate, head.live_step);
        float kept[kKept] = {};
        // All that the tiles share: their loop waits for little but states.
        const FoldTokens<Traits> tokens(p, cursor, ring.B, step.live);
#pragma unroll 1
        for (int m = range.begin; m < range.end; ++m) {
            multiply(tiles, m, kept);
            // Reads the tile once more, instead of keeping it in registers.
            sync_warp();
            fold(tiles, warp, m, 0, head, weights, tokens);
            sync_warp();
            tiles.start(m + Traits::kPart, range.end);
        }
        // Loads once more what would take registers all the time.
        WarpRows same = warp;
        same.head = opaque(warp.head);
        HeadTokens<Traits> again;
        load(again, same, ring, false);
        again.scale[0] = head.scale[0];
        again.scale[1] = head.scale[1];
        finish(out, again, weights, rate, own_step, 0, kept, range);
    }
};

// Replays the heads of a task, of which the states of the first one are on their way.
template <bool kFolds, typename Traits>
__device__ __forceinline__ void replay_heads(const ReplayFewOperands& p, const SequenceStep& step,
                                             const ReplayFewTask& task, StagedTiles<Traits>& tiles,
                                             typename StagedTokens<Traits>::TokenVec* staged, __nv_bfloat16* out) {
    using input_t = __nv_bfloat16;
    constexpr int kDState = Traits::kElements * 4;
    const SelectiveStateUpdateSingleOperands& s = p.operands;
    const WarpRows& warp = task.rows;
    const RingCursor cursor(p, step.slot, task.cursor);
    const int row = Traits::row(warp, Traits::kHasMany ? 0 : lane_id() % 4 * Traits::kTile);
    const int token = Traits::kHasMany ? lane_id() % 4 : 0;
    // The lane's group stands for another token here: as a row of the product, not as a column.
    const int appended = Traits::kHasMany ? min(lane_id() / 4, step.tokens - 1) : 0;
    const int group = static_cast<int>(s.group_heads.quotient(warp.head));
    const auto* const C_at = static_cast<const input_t*>(s.C) + warp.batch * s.C_stride[0] + group * s.C_stride[2];
    const auto* const B_at = static_cast<const input_t*>(s.B) + warp.batch * s.B_stride[0] + group * s.B_stride[2];
    Ring<Traits> ring(p, step.slot, warp.head);
    const StagedTokens<Traits> old(p, cursor, staged);
    old.start(ring.x + warp.first_row, 0);
    end_copy_group();
    TokenMatrix<Traits> C, B;
    C.load(C_at + new_token<Traits>(step.tokens) * s.C_stride[1]);
    B.load(B_at + appended * s.B_stride[1]);
    HeadTokens<Traits> next;
    next.load(p, warp, step.tokens, row, token,
              scales_of<Traits>(p, step.slot, warp.head, Traits::row(warp, lane_id() % 4 * Traits::kTile)));
    next.live_step = load_steps<Traits>(p, ring, cursor, step.live);
    const LiveMatrices<Traits> live(p, ring, cursor, step.live);
    if constexpr (!Traits::kStatesFirst) tiles.start(task.range<Traits>());
    // Everything is asked for before anything is waited for.
    const StateFactors<Traits> factors(C_at, s.C_stride[1], step.tokens);
    const LiveProducts<Traits> live_products(live, step.live, C);
    float products[4];
    C.multiply(B, B, products);
    if (warp.first_row == 0 && (!kFolds || task.range<Traits>().begin == 0)) {
        if (warp.head % static_cast<int>(s.group_heads.divisor) == 0 && lane_id() / 4 < step.tokens) {
            input_t* const to = ring.B + cursor.row(p, cursor.live + appended) * kDState;
#pragma unroll
            for (int i = 0; i < Traits::kMatrixChunks; ++i) ::store(to + (i * 4 + lane_id() % 4) * 8, B.parts[i]);
        }
        if constexpr (!Traits::kByColumns) {
            if (warp.head == 0 && lane_id() == 0) cursor.leave(step.tokens, kFolds ? cursor.live : 0);
        }
    }
    // States that are asked for behind the tokens come behind them, too.
    if constexpr (Traits::kStatesFirst) wait_for_copies();
    const ReplayFewWarp<Traits> own{p, step, cursor, old, live_products, products, factors, row, token};
    if constexpr (kFolds) {
        own.replay_and_fold(warp, task.range<Traits>(), tiles, ring, next, out);
    } else {
        own.replay(warp, p.warp_heads, tiles, ring, next, out);
    }
}

// Replays the heads of a task: the first one of those that flush.
template <typename Traits>
__device__ __forceinline__ void replay_few(const ReplayFewOperands& p, ReplayFewTask& task,
                                           ReplayFewShared<Traits>& shared) {
    using input_t = __nv_bfloat16;
    constexpr int kDState = Traits::kElements * 4;
    const SelectiveStateUpdateSingleOperands& s = p.operands;
    const WarpRows& warp = task.rows;
    const TileRange range = task.range<Traits>();
    SequenceStep step = {};
    step.entry = warp.batch;
    step.tokens = Traits::kHasMany ? p.tokens : 1;
    step.goes_on = true;
    step.slot = task.slot;
    const int row = Traits::row(warp, Traits::kHasMany ? 0 : lane_id() % 4 * Traits::kTile);
    const int token = Traits::kHasMany ? lane_id() % 4 : 0;
    input_t* out = static_cast<input_t*>(s.out) + warp.batch * s.out_stride[0] + token * s.out_stride[1] +
                   warp.head * s.out_stride[2] + row;
    if (step.slot < 0) {
        for (int heads = p.warp_heads; heads > 0; --heads, out += s.out_stride[2]) {
            if (token < step.tokens && !s.keeps_padding) OwnRows<Traits>::zero().store(out, range);
        }
        return;
    }
    const auto* const states = static_cast<const typename Traits::State*>(s.state) +
                               step.slot * static_cast<index_t>(s.state_stride[0]) + warp.head * s.state_stride[1] +
                               warp.first_row * kDState;
    StagedTiles<Traits> tiles(shared.tiles, states, s.state_stride[1]);
    unsigned char force = 0;
    if (!task.is_found) {
        // Behind states it would wait for those of all warps.
        force = load_force(p, warp.batch);
        task.cursor = load_cursor<Traits::kByColumns>(p, step.slot);
    }
    if constexpr (Traits::kStatesFirst) tiles.start(range);
    if (!task.is_found) {
        task.flushes = uniform(static_cast<int>(is_flushed<Traits>(p, task.cursor, force))) != 0;
        if (task.flushes && p.kept_heads == 0) {
            wait_for_copies();
            return;
        }
    }
    step.live = uniform(min(max(static_cast<int>(task.cursor.y), 0), p.window));
    step.folds = task.flushes;
    if (task.flushes) {
        replay_heads<true, Traits>(p, step, task, tiles, shared.tokens, out);
    } else {
        replay_heads<false, Traits>(p, step, task, tiles, shared.tokens, out);
    }
}

template <int kDState, typename state_t, typename a_t, bool kMany, bool kByColumns,
          typename Traits = SelectiveStateUpdateReplayFewTraits<kDState, state_t, a_t, kMany, kByColumns>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_replay_few_kernel(const SelectiveStateUpdateReplayFewParams params) {
    using Rows = typename Traits::Rows;
    constexpr int kWarps = Traits::kThreads / kWarpSize;
    __shared__ alignas(16) ReplayFewShared<Rows> shared[kWarps];
    const ReplayFewOperands& p = params.operands;
    const int warp = uniform(static_cast<int>(threadIdx.x / kWarpSize));
    // Warps that walk over heads come last. The warps of a block share what the heads of a group have in common.
    const int number = static_cast<int>(blockIdx.x) * kWarps + warp - p.spare_warps;
    const int first = blockIdx.y * kMostRanked;
    ReplayFewTask task = {};
    bool has_task = number >= 0;
    if (has_task) {
        task.rows = WarpRows(p.operands, number, Rows::kWarpRows);
        // Whole warps leave: the shuffles stay complete.
        if (task.rows.batch >= min(p.operands.batch - first, kMostRanked)) return wait_for_preceding();
        task.rows.batch += first;
        task.rows.head *= p.warp_heads;
        task.tiles.end = Rows::kTiles;
        task.slot = uniform(load_slot<Rows>(p.operands, task.rows.batch));
    }
    wait_for_preceding();
    FlushedHeads<Rows> heads{first, -1, number};
#pragma unroll 1
    for (;;) {
        if (has_task) {
            replay_few<Rows>(p, task, shared[warp]);
            if (!task.flushes) return;
            sync_warp();
        }
        if (p.warp_heads == p.kept_heads || !heads.next(p, task)) return;
        has_task = true;
    }
}
