// One to four tokens of a selective state space model with one decay a head, by replay: the formula, and when states
// are written, are selective_state_update_replay.cu's, for x, B and C of bfloat16, contiguous rows of heads, and a
// window of at most 16 tokens.
//
// Layout: a warp has 64 rows of some heads of one group, one head after the other, and needs no other warp. Tiles are
// 16 of the rows, and lane 4 g + q has every fourth 16 bytes of the rows 2 g and 2 g + 1 of each. With one token it
// finishes the two of tile q, with several all eight for token q.
//
// kDState  d_state    state_t  the pool of states    a_t  A    kMany  several tokens
#include "selective_state_update/replay_few_states.cuh"
#include "selective_state_update/replay_few_tokens.cuh"

inline constexpr int kMostRanked = 256;  // sequences

struct SelectiveStateUpdateReplayFewParams {
    ReplayFewOperands operands;
};

template <typename Base, bool kMany>
struct ReplayFewRows : Base {
    static constexpr bool kHasMany = kMany;
    static constexpr int kWindows = 16;
    static constexpr int kXVecs = 8;
    static constexpr int kTiles = 4;
    static constexpr int kWarpRows = kTiles * Base::kTile;
    static constexpr int kTokens = kMany ? 4 : 1;
    static constexpr int kOwnRows = kMany ? 8 : 2;  // that a lane finishes, for one token
    // Tiles that are on their way at once, 8 KiB of a warp: with 12 KiB the steps below took 2 and 3 us more.
    static constexpr int kPart = Base::kChunks > 4 ? 1 : Base::kChunks > 2 ? 2 : 4;
    static constexpr bool kIsInt8 = kIsSame<typename Base::State, signed char>;
    static constexpr bool kIsBfloat16 = kIsSame<typename Base::State, __nv_bfloat16>;
    static constexpr int kMatrixChunks = Base::kElements / 8;  // of B or C, 16 bytes each

    // Row r of the lane's group in the tile that begins at the first row.
    __device__ __forceinline__ static int row(const WarpRows& warp, int r) {
        return warp.first_row + lane_id() / 4 * 2 + r;
    }
};

template <int kDState, typename state_t, typename a_t, bool kMany>
struct SelectiveStateUpdateReplayFewTraits {
    static constexpr int kThreads = 128;
    // On an H200 steps of 64 sequences of Mamba-2 with 128 heads, some of which flush, take 43 us with 3 blocks and 47
    // with 4 where states are bfloat16, 29 and 44 where they are int8: what flushes keeps more in memory. With one head
    // a warp, 4 tokens of 32 sequences took 41 with 2, 45 with 3 and 52 with 4.
    // Without tensor cores their products take registers.
    static constexpr int kMinBlocks = kMany || !kHasTensorCores ? 2 : 3;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(state_t));
    using Rows = ReplayFewRows<RowTraits<kDState, __nv_bfloat16, state_t, a_t, __nv_bfloat16, kVec, 2, true, false,
                                         false, false, false, false, true, 4, SelectiveStateUpdateSingleOperands>,
                               kMany>;
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

    // Brings what a head needs to the L2 cache.
    __device__ __forceinline__ void prefetch_next(const WarpRows& warp, const Ring<Traits>& ring) const {
        const SelectiveStateUpdateSingleOperands& s = p.operands;
        const auto place = [&](const int* stride) {
            return warp.batch * stride[0] + token * stride[1] + warp.head * stride[2] + row;
        };
        prefetch(ring.dt + cursor.row(p, 0));
        if constexpr (Traits::kIsQuantised) prefetch(scales(warp));
        if (token < step.tokens) {
            prefetch(static_cast<const input_t*>(s.x) + place(s.x_stride));
            if (s.z != nullptr) prefetch(static_cast<const input_t*>(s.z) + place(s.z_stride));
        }
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

    // Stores the results of a head. of_states: C * S of the lane's own rows, which are still to be multiplied by what
    // is left of them.
    __device__ __forceinline__ void finish(input_t* out, const HeadTokens<Traits>& head, const Weights& weights,
                                           float rate, float own_step, int parity,
                                           const float (&of_states)[Traits::kOwnRows]) const {
        const SelectiveStateUpdateSingleOperands& s = p.operands;
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
#pragma unroll
        for (int i = 0; i < Traits::kOwnRows; i += 2) {
            const float pair[2] = {y[i], y[i + 1]};
            ::store(out + OwnRows<Traits>::row(i), Vec<input_t, 2>::from_floats(pair));
        }
    }

    // Replays the heads from that of `warp` on. What is in shared memory is on its way, and `next` has been loaded.
    // With kFolds live tokens are put in states, which takes the registers for what is loaded ahead: this is a function
    // of its own for the compiler, which would keep that in memory in the other case, too.
    template <bool kFolds>
    __device__ __forceinline__ void replay(WarpRows warp, StagedTiles<Traits>& tiles, Ring<Traits>& ring,
                                           HeadTokens<Traits>& next, input_t* out) const {
        const SelectiveStateUpdateSingleOperands& s = p.operands;
#pragma unroll 1
        for (int heads = p.warp_heads, parity = 0; heads > 0; --heads, parity ^= 1) {
            const bool is_last = heads == 1;
            HeadTokens<Traits> head;
            if constexpr (kFolds) {
                load(head, warp, ring);
            } else {
                head = next;
            }
            float own_step = 0.0f;
            if (!Traits::kHasMany || lane_id() < step.tokens) {
                own_step = step_length<Traits>(s, head.parameters, head.dt);
            }
            // What the new tokens leave for later steps.
            if (token < step.tokens) own_x(head).store(ring.x_at(p, cursor.row(p, cursor.live + token), row));
            if (warp.first_row == 0 && lane_id() < step.tokens) {
                ring.dt[cursor.row(p, cursor.live + lane_id())] = own_step;
            }
            ring.x += p.ring_rows * s.headdim;
            ring.dt += p.ring_rows;
            if (!is_last) {
                WarpRows following = warp;
                ++following.head;
                if constexpr (kFolds) {
                    prefetch_next(following, ring);
                } else {
                    // The next head's inputs are on their way while this one's are used.
                    load(next, following, ring);
                }
            }
            const float rate = kLog2E * head.parameters.A[0][0].to_float(0);
            const Weights weights(rate, head.live_step);
            float of_states[Traits::kOwnRows] = {};
            const auto read_tile = [&](int m) {
                typename Traits::StateVec raw[2][Traits::kChunks];
                tiles.wait();
                tiles.read(m, raw);
                float of_tile[2];
                factors.multiply(raw, of_tile);
#pragma unroll
                for (int i = 0; i < Traits::kOwnRows; ++i) {
                    const bool is_own = Traits::kHasMany ? i / 2 == m : lane_id() % 4 == m;
                    of_states[i] = is_own ? of_tile[i % 2] : of_states[i];
                }
            };
            const auto start_next = [&](int m) {
                sync_warp();
                if (m == 0 && !is_last) old.start(ring.x + warp.first_row, parity ^ 1);
                tiles.start(m + Traits::kPart, is_last);
            };
            if constexpr (kFolds) {
                // All that the tiles share: their loop waits for little but states.
                const FoldTokens<Traits> tokens(p, cursor, ring.B, step.live);
#pragma unroll 1
                for (int m = 0; m < Traits::kTiles; ++m) {
                    read_tile(m);
                    // Reads the tile once more, instead of keeping it in registers.
                    sync_warp();
                    fold(tiles, warp, m, parity, head, weights, tokens);
                    start_next(m);
                }
                // Loads once more what would take registers all the time.
                WarpRows same = warp;
                same.head = opaque(warp.head);
                HeadTokens<Traits> again;
                load(again, same, ring, false);
                again.scale[0] = head.scale[0];
                again.scale[1] = head.scale[1];
                finish(out, again, weights, rate, own_step, parity, of_states);
            } else {
#pragma unroll
                for (int m = 0; m < Traits::kTiles; ++m) {
                    read_tile(m);
                    start_next(m);
                }
                finish(out, head, weights, rate, own_step, parity, of_states);
            }
            tiles.from += tiles.next;
            out += s.out_stride[2];
            ++warp.head;
        }
    }
};

// Replays the heads of a warp from when its cursor is known. C, B: of the new tokens, as columns and as rows of
// products.
template <bool kFolds, typename Traits>
__device__ __forceinline__ void replay_heads(const ReplayFewOperands& p, const SequenceStep& step, const WarpRows& warp,
                                             const RingCursor& cursor, const TokenMatrix<Traits>& C,
                                             const TokenMatrix<Traits>& B, const StateFactors<Traits>& factors,
                                             StagedTiles<Traits>& tiles, HeadTokens<Traits>& next,
                                             typename StagedTokens<Traits>::TokenVec* staged, __nv_bfloat16* out) {
    using input_t = __nv_bfloat16;
    constexpr int kDState = Traits::kElements * 4;
    const SelectiveStateUpdateSingleOperands& s = p.operands;
    const int row = Traits::row(warp, Traits::kHasMany ? 0 : lane_id() % 4 * Traits::kTile);
    const int token = Traits::kHasMany ? lane_id() % 4 : 0;
    const int appended = Traits::kHasMany ? min(lane_id() / 4, step.tokens - 1) : 0;
    Ring<Traits> ring(p, step.slot, warp.head);
    next.live_step = load_steps<Traits>(p, ring, cursor, step.live);
    const StagedTokens<Traits> old(p, cursor, staged);
    old.start(ring.x + warp.first_row, 0);
    end_copy_group();
    const LiveProducts<Traits> live_products(p, ring, cursor, step.live, C);
    float products[4];
    C.multiply(B, B, products);
    if (warp.first_row == 0) {
        if (warp.head % static_cast<int>(s.group_heads.divisor) == 0 && lane_id() / 4 < step.tokens) {
            input_t* const to = ring.B + cursor.row(p, cursor.live + appended) * kDState;
#pragma unroll
            for (int i = 0; i < Traits::kMatrixChunks; ++i) ::store(to + (i * 4 + lane_id() % 4) * 8, B.parts[i]);
        }
        if (warp.head == 0 && lane_id() == 0) cursor.leave(step.tokens, kFolds ? cursor.live : 0);
    }
    wait_for_copies();
    const ReplayFewWarp<Traits> own{p, step, cursor, old, live_products, products, factors, row, token};
    own.template replay<kFolds>(warp, tiles, ring, next, out);
}

// The sequence that is the `rank`-th when those that flush come first. They take longest: the last warps would go on
// while most of the GPU has nothing to do.
template <typename Traits>
__device__ __forceinline__ int sequence_of_rank(const ReplayFewOperands& p, int rank) {
    constexpr int kParts = kMostRanked / kWarpSize;
    const SelectiveStateUpdateSingleOperands& s = p.operands;
    bool flushes[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
        flushes[i] = false;
        if (i * kWarpSize >= s.batch) continue;
        const int sequence = i * kWarpSize + lane_id();
        const int slot = sequence < s.batch ? load_slot<Traits>(s, sequence) : -1;
        if (slot < 0) continue;
        const int live = min(max(static_cast<int>(RingCursor::load(p, slot).y), 0), p.window);
        flushes[i] = live + (Traits::kHasMany ? p.tokens : 1) > p.window;
        if (p.force_flush != nullptr) {
            flushes[i] |= static_cast<const unsigned char*>(p.force_flush)[sequence * p.force_flush_stride] != 0;
        }
    }
    unsigned flushing[kParts];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
        flushing[i] = lanes_where(flushes[i]);
        count += __popc(flushing[i]);
    }
    const bool is_first = rank < count;
    if (!is_first) rank -= count;
    unsigned among = 0;
    int begin = 0, place = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
        const int rest = s.batch - i * kWarpSize;
        const unsigned all = rest >= kWarpSize ? kAllLanes : rest > 0 ? (1u << rest) - 1u : 0u;
        const unsigned candidates = (is_first ? flushing[i] : ~flushing[i]) & all;
        if (rank >= 0 && rank < __popc(candidates)) {
            among = candidates;
            begin = i * kWarpSize;
            place = rank;
        }
        rank -= __popc(candidates);
    }
    const unsigned below = among & ((1u << lane_id()) - 1u);
    return begin + lowest(lanes_where((among >> lane_id() & 1u) != 0 && __popc(below) == place));
}

// warp: from its first head on, and of a sequence's rank where those that flush come first.
template <typename Traits>
__device__ __forceinline__ void replay_few(const ReplayFewOperands& p, WarpRows warp, ReplayFewShared<Traits>& shared) {
    using input_t = __nv_bfloat16;
    constexpr int kDState = Traits::kElements * 4;
    const SelectiveStateUpdateSingleOperands& s = p.operands;
    SequenceStep step = {};
    if (p.flushes_first) {
        wait_for_preceding();
        warp.batch = sequence_of_rank<Traits>(p, warp.batch);
    }
    step.entry = warp.batch;
    step.tokens = Traits::kHasMany ? p.tokens : 1;
    step.goes_on = true;
    step.slot = uniform(load_slot<Traits>(s, warp.batch));
    if (!p.flushes_first) wait_for_preceding();
    const int row = Traits::row(warp, Traits::kHasMany ? 0 : lane_id() % 4 * Traits::kTile);
    const int token = Traits::kHasMany ? lane_id() % 4 : 0;
    input_t* out = static_cast<input_t*>(s.out) + warp.batch * s.out_stride[0] + token * s.out_stride[1] +
                   warp.head * s.out_stride[2] + row;
    if (step.slot < 0) {
        for (int heads = p.warp_heads; heads > 0; --heads, out += s.out_stride[2]) {
            if (token < step.tokens && !s.keeps_padding) OwnRows<Traits>::zero().store(out);
        }
        return;
    }
    const auto* const states = static_cast<const typename Traits::State*>(s.state) +
                               step.slot * static_cast<index_t>(s.state_stride[0]) + warp.head * s.state_stride[1] +
                               warp.first_row * kDState;
    StagedTiles<Traits> tiles(shared.tiles, states, s.state_stride[1]);
#pragma unroll
    for (int m = 0; m < Traits::kPart; ++m) tiles.start(m, false);
    const int group = static_cast<int>(s.group_heads.quotient(warp.head));
    const auto* const C_at = static_cast<const input_t*>(s.C) + warp.batch * s.C_stride[0] + group * s.C_stride[2];
    const auto* const B_at = static_cast<const input_t*>(s.B) + warp.batch * s.B_stride[0] + group * s.B_stride[2];
    TokenMatrix<Traits> C, B;
    // The compiler would put loads of constants behind the barrier.
    C.load(C_at + new_token<Traits>(step.tokens) * s.C_stride[1]);
    // The lane's group stands for another token here: as a row of the product, not as a column.
    const int appended = Traits::kHasMany ? min(lane_id() / 4, step.tokens - 1) : 0;
    B.load(B_at + appended * s.B_stride[1]);
    bool is_forced = false;
    if (p.force_flush != nullptr) {
        is_forced = static_cast<const unsigned char*>(p.force_flush)[warp.batch * p.force_flush_stride] != 0;
    }
    HeadTokens<Traits> next;
    next.load(p, warp, step.tokens, row, token,
              scales_of<Traits>(p, step.slot, warp.head, Traits::row(warp, lane_id() % 4 * Traits::kTile)));
    // The cursor comes last, behind a barrier: whatever is loaded after it the compiler would put behind the wait for
    // it.
    sync_warp();
    const uint2 words = RingCursor::load(p, step.slot);
    const StateFactors<Traits> factors(C_at, s.C_stride[1], step.tokens);
    const RingCursor cursor(p, step.slot, words);
    step.live = cursor.live;
    step.folds = uniform(static_cast<int>(is_forced)) != 0 || step.live + step.tokens > p.window;
    if (step.folds) {
        // Loads again what the other case has loaded ahead: else the compiler would keep it in memory for both.
        const StateFactors<Traits> again(opaque(C_at), s.C_stride[1], step.tokens);
        replay_heads<true, Traits>(p, step, warp, cursor, C, B, again, tiles, next, shared.tokens, out);
    } else {
        replay_heads<false, Traits>(p, step, warp, cursor, C, B, factors, tiles, next, shared.tokens, out);
    }
}

template <int kDState, typename state_t, typename a_t, bool kMany,
          typename Traits = SelectiveStateUpdateReplayFewTraits<kDState, state_t, a_t, kMany>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_replay_few_kernel(const SelectiveStateUpdateReplayFewParams params) {
    using Rows = typename Traits::Rows;
    __shared__ alignas(16) ReplayFewShared<Rows> shared[Traits::kThreads / kWarpSize];
    const ReplayFewOperands& p = params.operands;
    const int number = uniform(static_cast<int>(threadIdx.x / kWarpSize));
    WarpRows warp(p.operands, blockIdx.x * (Traits::kThreads / kWarpSize) + number, Rows::kWarpRows);
    warp.head *= p.warp_heads;
    // Whole warps leave: the shuffles stay complete.
    if (warp.batch >= p.operands.batch) return wait_for_preceding();
    replay_few<Rows>(p, warp, shared[number]);
}
