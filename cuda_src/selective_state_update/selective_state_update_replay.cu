// One or several tokens of a selective state space model with one decay a head, by replay: the state in memory is that
// of some tokens ago, and x, B and dt' of the tokens since then are in rings. With S0, s and s_j as in replay.cuh, and
// p_t the sum of a = dt' * A over the new tokens up to t:
//     y_t = exp(p_t) * (exp(s) * S0 C_t + sum_j exp(s_j) * dt'_j * (B_j . C_t) * x_j)
//           + sum_{i <= t} exp(p_t - p_i) * dt'_i * (B_i . C_t) * x_i + D * x_t,    out = y * silu(z)
// The new tokens are put behind the live ones in the rings, in rows that no other block reads. Where the rings would
// then hold more than `window` tokens, the live ones are put in the state, and it is written.
//
// Layout: that of states is selective_state_update.cu's. A warp has some tiles of rows of some heads of one group, one
// after the other, and needs no other warp: the products B . C of the live tokens are the same for all its heads.
//
// kDState  d_state, at most when kMasked  input_t  x and out               state_t  the pool of states
// a_t      A                              b_t      B and C                 kVec     elements per access
// kRows    rows that a group loads at once
// kWindow  live tokens at most            kXVec    rows per access to x of live tokens
// kTensor      x, B and C are of bfloat16, and tensor cores put them in states: 4 lanes share 2 rows
// kMasked      d_state is less than kDState
// kMany        several tokens
// kStochastic  states are rounded up or down at random
// kIndex32     all offsets fit in int32, those of states and rings from the beginning of their slot
// kByColumns   cursors are in two arrays
#include "selective_state_update/replay_fold.cuh"
#include "selective_state_update/replay_products.cuh"

struct SelectiveStateUpdateReplayParams {
    ReplayOperands operands;
};

// How a warp divides live tokens among its groups of lanes, and new ones among the lanes that stand for one row.
template <typename Base, int kBlockWarps, int kWindow, int kXVec, bool kTensor, bool kMany, bool kColumns>
struct ReplayRows : Base {
    static constexpr int kWarps = kBlockWarps;
    static constexpr int kPasses = (kWindow + Base::kGroups - 1) / Base::kGroups;
    static constexpr int kRepeats = kWarpSize / Base::kTile;
    static constexpr int kXVecs = kXVec < Base::kTile ? kXVec : Base::kTile;
    static constexpr int kNewShare = kMany ? (kMaxReplayTokens + kRepeats - 1) / kRepeats : 1;
    static constexpr bool kHasMany = kMany;
    static constexpr int kTokens = kMany ? kMaxReplayTokens : 1;
    static constexpr int kWindows = kWindow;
    static constexpr int kProducts = kWindow + kTokens;  // per new token
    // Rows of the group that are put in memory at once.
    static constexpr int kPart = Base::kRowsOfGroup < 4 ? Base::kRowsOfGroup : 4;
    static constexpr bool kUsesTensorCores = kTensor;
    static_assert(!kTensor || (Base::kLanes == 4 && Base::kRowsOfGroup == 2), "a fragment is 16 rows on 4 lanes each");
    static constexpr bool kByColumns = kColumns;
    static constexpr bool kMultipliesStates = kTensor && kIsSame<typename Base::State, typename Base::Matrix>;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows, int kWindow,
          int kXVec, bool kTensor, bool kMasked, bool kMany, bool kStochastic, bool kIndex32, bool kByColumns>
struct SelectiveStateUpdateReplayTraits {
    static constexpr int kThreads = 128;
    using Rows = ReplayRows<RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, true, kMasked, false, false,
                                      false, kStochastic, kIndex32, kTensor ? 4 : kWarpSize>,
                            kThreads / kWarpSize, kWindow, kXVec, kTensor, kMany, kByColumns>;
    // On an H200 a step of 64 sequences of Mamba-2 with 128 heads takes 45 us with 4 blocks and states of bfloat16, 50
    // with 2 and 52 with 3; with float32 91, 75 and 81.
    // Lanes with more of a row, or with B and C of more bits, would spill most of it for 4.
    static constexpr bool kHasFew = sizeof(state_t) == 2 && kIsSame<state_t, b_t> && kDState <= 128;
    static constexpr int kMinBlocks = !kHasFew ? 2 : kMany ? 3 : 4;
};

// C * S of the row that the lane stands for, of the t-th new token. `sums` are those of 8 tokens, by tensor cores.
template <typename Traits>
__device__ __forceinline__ float read_states(const TileInputs<Traits>& tile, const TokenMatrices<Traits>& maps, int t,
                                             float (&sums)[4]) {
    if constexpr (Traits::kMultipliesStates) {
        if (t % 8 == 0) multiply_rows<Traits>(tile.raw[0], tile.raw[1], maps.C, sums);
        const int lane = lane_id() % 8 * 4 + t % 8 / 2;
        const float low = from_lane(t % 2 == 0 ? sums[0] : sums[1], lane);
        const float high = from_lane(t % 2 == 0 ? sums[2] : sums[3], lane);
        return lane_id() % 16 < 8 ? low : high;
    } else {
        float sums[Traits::kRowsOfGroup];
#pragma unroll
        for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
            float state[Traits::kElements];
            to_floats<Traits>(tile.raw[r], state);
            sums[r] = 0.0f;
#pragma unroll
            for (int i = 0; i < Traits::kElements; ++i) {
                sums[r] = fmaf(state[i], maps.C[i / Traits::kVecs].to_float(i % Traits::kVecs), sums[r]);
            }
        }
        return gather_own_sum<Traits>(sums);
    }
}

// The weight of the lane's live token in the result of a new one, before that one's own decay.
template <typename Traits>
__device__ __forceinline__ float weigh(const SequenceStep& step, const Weights& weights, const float* of_token) {
    // What a token beyond the live ones has is whatever the memory held.
    return lane_id() < step.live ? weights.own * of_token[lane_id()] : 0.0f;
}

// Puts x of a new token in the ring, and finishes and stores its result.
template <typename Traits>
__device__ __forceinline__ void finish_token(const ReplayOperands& p, const TileCursor<Traits>& at,
                                             const RingCursor& cursor, int t, const TokenInputs<Traits>& inputs,
                                             const RowParameters<Traits>& parameters, float y) {
    if (at.token.is_row) {
        ::store(at.ring.x_at(p, cursor.row(p, cursor.live + t), at.warp.own_row(p.operands)), inputs.x);
    }
    at.token.after(p.operands, t).store(p.operands, finish_result<Traits>(p.operands, parameters, inputs, y));
}

// y of one tile's only new token, but for D.
template <typename Traits>
__device__ __forceinline__ float replay_token(const ReplayOperands& p, const SequenceStep& step,
                                              const Head<Traits>& head, const TileInputs<Traits>& tile,
                                              const TokenMatrices<Traits>& maps, const float* products) {
    float sums[4];
    const float from_state = read_states<Traits>(tile, maps, 0, sums) * (head.weights.state * tile.scale);
    const float y = from_state + tile.old.sum(weigh<Traits>(step, head.weights, products));
    const float fresh = from_lane(head.step, 0) * products[Traits::kWindows];
    return fmaf(exp2_approx(from_lane(head.power, 0)), y, fresh * tile.inputs.x.to_float(0));
}

// The results of one tile's new tokens.
template <typename Traits>
__device__ __forceinline__ void replay_tokens(const ReplayOperands& p, const TileCursor<Traits>& at,
                                              const RingCursor& cursor, const SequenceStep& step,
                                              const Head<Traits>& head, const TileInputs<Traits>& tile,
                                              TokenMatrices<Traits> maps, const float* products) {
    using input_t = typename Traits::Input;
    const SelectiveStateUpdateOperands& s = p.operands;
    // x of some new tokens in the row that the lane stands for: results may lie where x does.
    Vec<input_t, 1> x[Traits::kNewShare];
    const int first_new = lane_id() / Traits::kTile * Traits::kNewShare;
    const index_t first = step.entry * s.x_stride[0] + step.begin * s.x_stride[1] + at.warp.head * s.x_stride[2];
#pragma unroll
    for (int i = 0; i < Traits::kNewShare; ++i) {
        x[i] = Vec<input_t, 1>::zero();
        if (first_new + i < step.tokens) {
            const index_t place = first + (first_new + i) * s.x_stride[1] + at.row * s.x_stride[3];
            x[i] = ::load<1, Memory::kMutable>(static_cast<const input_t*>(s.x) + place);
        }
    }
    RowParameters<Traits> parameters;
    parameters.D = tile.D;
    TokenInputs<Traits> inputs = tile.inputs;
    float decayed = 0.0f, powers = 0.0f;
    float sums[4];
    for (int t = 0; t < step.tokens; ++t) {
        const TokenCursor<Traits> token = at.token.after(s, t);
        if (t > 0 && token.is_row) inputs.load(s, token);
        if constexpr (Traits::kMultipliesStates) {
            if (t % 8 == 0) load_C<Traits>(p, at.token, t, step.tokens, maps);
        } else {
            if (t > 0) maps.load(s, token);
        }
        const float* of_token = products + t * Traits::kProducts;
        const float from_state = read_states<Traits>(tile, maps, t, sums) * (head.weights.state * tile.scale);
        const float old = from_state + tile.old.sum(weigh<Traits>(step, head.weights, of_token));
        const float further = from_lane(head.power, t);
        powers += further;
        if (lane_id() < t) decayed += further;
        float own = 0.0f;
        if (lane_id() <= t) own = exp2_approx(decayed) * head.step * of_token[Traits::kWindows + lane_id()];
        float fresh[1] = {0.0f};
#pragma unroll
        for (int i = 0; i < Traits::kNewShare; ++i) {
            const float weight = from_lane(own, first_new + i);
            // A later token may be NaN, and is rejected then.
            if (first_new + i <= t) fresh[0] = fmaf(weight, x[i].to_float(0), fresh[0]);
        }
        sum_parts_over_lanes<Traits::kRepeats, Traits::kTile>(fresh);
        finish_token<Traits>(p, at, cursor, t, inputs, parameters, fmaf(exp2_approx(powers), old, fresh[0]));
    }
}

// Puts B of the new tokens behind the live ones, once for each group.
template <typename Traits>
__device__ __forceinline__ void append_B(const ReplayOperands& p, const TileCursor<Traits>& at,
                                         const RingCursor& cursor, const SequenceStep& step,
                                         const TokenMatrices<Traits>& maps) {
    const int group_heads = static_cast<int>(p.operands.group_heads.divisor);
    if (at.warp.head % group_heads != 0 || lane_id() >= Traits::kLanes) return;
    at.ring.store_B(p, cursor.row(p, cursor.live), maps.B);
    for (int t = 1; t < step.tokens; ++t) {
        TokenMatrices<Traits> more;
        more.load(p.operands, at.token.after(p.operands, t));
        at.ring.store_B(p, cursor.row(p, cursor.live + t), more.B);
    }
}

// The rows of a warp's i-th tile.
template <typename Traits>
__device__ __forceinline__ WarpRows tile_of(const ReplayOperands& p, WarpRows begin, int i) {
    begin.head += i / p.warp_tiles;
    begin.first_row += i % p.warp_tiles * Traits::kTile;
    return begin;
}

template <typename Traits>
__device__ __forceinline__ void replay(const ReplayOperands& p, const WarpRows& begin, float* products) {
    const SelectiveStateUpdateOperands& s = p.operands;
    SequenceStep step = {};
    step.entry = begin.batch;
    step.tokens = 1;
    // Without any sequence there is no slot either.
    step.slot = uniform(begin.batch < s.batch ? load_slot<Traits>(s, begin.batch) : -1);
    wait_for_preceding();
    if constexpr (Traits::kHasMany) {
        for (int i = 0; i < p.warp_heads * p.warp_tiles; ++i) {
            const SequenceTokens<Traits> sequence(s, tile_of<Traits>(p, begin, i));
            step.entry = sequence.entry;
            step.begin = sequence.begin;
            step.tokens = uniform(sequence.end - sequence.begin);
        }
        if (step.tokens <= 0) return;
    }
    const TokenCursor<Traits> first(s, begin, step.entry, step.begin);
    TokenMatrices<Traits> maps;
    maps.load(s, first);
    if (step.slot < 0 || step.tokens > min(kMaxReplayTokens, min(p.window, p.ring_rows - p.window))) {
        for (int i = 0; i < p.warp_heads * p.warp_tiles; ++i) {
            store_padding<Traits>(s, tile_of<Traits>(p, begin, i), step.entry, step.begin, step.begin + step.tokens);
        }
        return;
    }
    step.goes_on = uniform(static_cast<int>(has_past(s, begin.batch))) != 0;
    TileCursor<Traits> at(p, begin, step);
    const RingCursor cursor(p, step.slot, load_cursor<Traits::kByColumns>(p, step.slot));
    step.live = step.goes_on ? cursor.live : 0;
    TileInputs<Traits> tile;
    HeadInputs<Traits> inputs;
    at.load(p, cursor, step, tile);
    at.load(p, cursor, step, inputs);
    bool is_forced = !step.goes_on;
    if (p.force_flush != nullptr) {
        is_forced |= static_cast<const unsigned char*>(p.force_flush)[begin.batch * p.force_flush_stride] != 0;
    }
    step.folds = uniform(static_cast<int>(is_forced)) != 0 || step.live + step.tokens > p.window;
    if constexpr (Traits::kUsesTensorCores) {
        multiply_all_tensor<Traits>(p, at.ring, cursor, step, first, maps, products);
    } else {
        multiply_all<Traits>(p, at.ring, cursor, step, first, maps, products);
    }
    if (begin.first_row == 0) {
        append_B<Traits>(p, at, cursor, step, maps);
        if constexpr (!Traits::kByColumns) {
            if (begin.head == 0 && lane_id() == 0) cursor.leave(step.tokens, step.folds ? cursor.live : 0);
        }
    }
    for (int heads = p.warp_heads; heads > 0; --heads) {
        const Head<Traits> head(p, inputs, step.tokens);
        if (begin.first_row == 0 && lane_id() < step.tokens) {
            at.ring.dt[cursor.row(p, cursor.live + lane_id())] = head.step;
        }
        for (int tiles = p.warp_tiles; tiles > 0; --tiles) {
            const TileCursor<Traits> here = at;
            const TokenInputs<Traits> first_inputs = tile.inputs;
            RowParameters<Traits> parameters;
            parameters.D = tile.D;
            float y = 0.0f;
            if constexpr (Traits::kHasMany) {
                replay_tokens<Traits>(p, here, cursor, step, head, tile, maps, products);
            } else {
                y = replay_token<Traits>(p, step, head, tile, maps, products);
            }
            if (step.folds) {
                if constexpr (Traits::kUsesTensorCores) {
                    fold_tile_tensor<Traits>(p, here, cursor, step, head.weights, tile);
                } else {
                    fold_tile<Traits>(p, here, cursor, step, head.weights, tile);
                }
            }
            // The next tile is on its way while this one's results are finished.
            if (tiles > 1) {
                at.advance(s);
            } else if (heads > 1) {
                WarpRows warp = begin;
                warp.head = at.warp.head + 1;
                at = TileCursor<Traits>(p, warp, step);
                at.load(p, cursor, step, inputs);
            }
            if (tiles > 1 || heads > 1) at.load(p, cursor, step, tile);
            if constexpr (!Traits::kHasMany) { finish_token<Traits>(p, here, cursor, 0, first_inputs, parameters, y); }
        }
    }
}

template <
    int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows, int kWindow,
    int kXVec, bool kTensor, bool kMasked, bool kMany, bool kStochastic, bool kIndex32, bool kByColumns,
    typename Traits = SelectiveStateUpdateReplayTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kWindow, kXVec,
                                                       kTensor, kMasked, kMany, kStochastic, kIndex32, kByColumns>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_replay_kernel(const SelectiveStateUpdateReplayParams params) {
    using Rows = typename Traits::Rows;
    __shared__ float products[Rows::kWarps][Rows::kTokens * Rows::kProducts];
    const ReplayOperands& p = params.operands;
    const int number = uniform(static_cast<int>(threadIdx.x / kWarpSize));
    WarpRows warp(p.operands, blockIdx.x * Rows::kWarps + number, Rows::kTile * p.warp_tiles);
    warp.head *= p.warp_heads;
    // Whole warps leave: the shuffles stay complete.
    if (warp.batch >= max(p.operands.batch, 1)) return wait_for_preceding();
    replay<Rows>(p, warp, products[number]);
}
