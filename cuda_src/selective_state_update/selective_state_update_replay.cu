// One or several tokens of a selective state space model with one decay a head, by replay: the state in memory is that
// of some tokens ago, and x, B and dt' of the tokens since then are in rings. With S0, s and s_j as in replay.cuh, and
// p_t the sum of a = dt' * A over the new tokens up to t:
//     y_t = exp(p_t) * (exp(s) * S0 C_t + sum_j exp(s_j) * dt'_j * (B_j . C_t) * x_j)
//           + sum_{i <= t} exp(p_t - p_i) * dt'_i * (B_i . C_t) * x_i + D * x_t,    out = y * silu(z)
// The new tokens are put behind the live ones in the rings, in rows that no other block reads. Where the rings would
// then hold more than `window` tokens, the live ones are put in the state, and it is written.
//
// Layout: that of states is selective_state_update.cu's. A block has rows of one head: its groups of lanes share the
// products B . C of the head's live tokens, and hand them on in shared memory.
//
// kDState  d_state, at most when kMasked  input_t  x and out               state_t  the pool of states
// a_t      A                              b_t      B and C                 kVec     elements per access
// kRows    rows that a group loads at once
// kWindow  live tokens at most
// kMasked      d_state is less than kDState
// kMany        several tokens
// kStochastic  states are rounded up or down at random
// kIndex32     all offsets fit in int32, those of states and rings from the beginning of their slot
#include "selective_state_update/replay.cuh"

struct SelectiveStateUpdateReplayParams {
    ReplayOperands operands;
};

// How a block divides live tokens among its groups of lanes, and among the lanes that stand for one row.
template <typename Base, int kBlockWarps, int kWindow, bool kMany>
struct ReplayRows : Base {
    static constexpr int kWarps = kBlockWarps;
    static constexpr int kBlockGroups = Base::kGroups * kWarps;
    static constexpr int kPasses = (kWindow + kBlockGroups - 1) / kBlockGroups;
    static constexpr int kShares = kWarpSize / Base::kTile;
    static constexpr int kShare = (kWindow + kShares - 1) / kShares;
    static constexpr bool kHasMany = kMany;
    static constexpr int kTokens = kMany ? kMaxReplayTokens : 1;
    static constexpr int kWindows = kWindow;
    static constexpr int kProducts = kWindow + (kMany ? kMaxReplayTokens : 0);  // per new token
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows, int kWindow,
          bool kMasked, bool kMany, bool kStochastic, bool kIndex32>
struct SelectiveStateUpdateReplayTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
    using Rows = ReplayRows<RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, true, kMasked, false, false,
                                      false, kStochastic, kIndex32>,
                            kThreads / kWarpSize, kWindow, kMany>;
};

// The lane's part of the product of two vectors, added up over the lanes of its group.
template <typename Traits>
__device__ __forceinline__ float multiply(const typename TokenMatrices<Traits>::Vector (&a)[Traits::kChunks],
                                          const typename TokenMatrices<Traits>::Vector (&b)[Traits::kChunks]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Traits::kElements; ++i) {
        const int chunk = i / Traits::kVecs, at = i % Traits::kVecs;
        sum = fmaf(a[chunk].to_float(at), b[chunk].to_float(at), sum);
    }
    return sum_over_lanes(sum, Traits::kLanes);
}

// The live tokens as they are in memory: a lane has its group's parts of some rows of B, and x of the row that it stands
// for in some tokens.
template <typename Traits>
struct LiveTokens {
    using input_t = typename Traits::Input;

    typename TokenMatrices<Traits>::Vector B[Traits::kPasses][Traits::kChunks];
    Vec<input_t, 1> x[Traits::kShare];
    float step;  // dt', one token a lane

    // The token of pass `pass` of the lane's group.
    __device__ __forceinline__ static int token(int pass) {
        return (pass * Traits::kWarps + threadIdx.x / kWarpSize) * Traits::kGroups +
               lane_id() / Traits::kLanes;
    }
    // The i-th token that the lane has x of.
    __device__ __forceinline__ static int token_of_x(int i) { return lane_id() / Traits::kTile * Traits::kShare + i; }

    __device__ __forceinline__ void load(const ReplayOperands& p, const WarpRows& warp, const Ring<Traits>& ring,
                                         const RingCursor& cursor, int live) {
        step = load_steps<Traits>(p, ring, cursor, live);
#pragma unroll
        for (int pass = 0; pass < Traits::kPasses; ++pass) {
#pragma unroll
            for (int i = 0; i < Traits::kChunks; ++i) B[pass][i] = TokenMatrices<Traits>::Vector::zero();
            if (token(pass) < live) ring.load_B(p, cursor.row(p, token(pass)), B[pass]);
        }
        const int row = min(warp.first_row + lane_id() % Traits::kTile, p.operands.headdim - 1);
#pragma unroll
        for (int i = 0; i < Traits::kShare; ++i) {
            x[i] = Vec<input_t, 1>::zero();
            if (token_of_x(i) < live) {
                x[i] = ::load<1, Memory::kMutable>(ring.x_at(p, cursor.row(p, token_of_x(i)), row));
            }
        }
    }

    // Leaves exp(s_j) * dt'_j * (B_j . C) of the tokens of the lane's group in `products`.
    __device__ __forceinline__ void multiply(const typename TokenMatrices<Traits>::Vector (&C)[Traits::kChunks],
                                             const Weights& weights, int live, float* products) const {
#pragma unroll
        for (int pass = 0; pass < Traits::kPasses; ++pass) {
            if (pass * Traits::kBlockGroups >= live) break;
            const float product = ::multiply<Traits>(B[pass], C) * from_lane(weights.own, token(pass));
            if (lane_id() % Traits::kLanes == 0 && token(pass) < live) products[token(pass)] = product;
        }
    }

    // The sum of products * x over the live tokens, for the row that the lane stands for.
    __device__ __forceinline__ float sum(int live, const float* products) const {
        float sums[1] = {0.0f};
#pragma unroll
        for (int i = 0; i < Traits::kShare; ++i) {
            // A product beyond the live tokens is whatever the memory held.
            if (token_of_x(i) < live) sums[0] = fmaf(products[token_of_x(i)], x[i].to_float(0), sums[0]);
        }
        sum_parts_over_lanes<Traits::kShares, Traits::kTile>(sums);
        return sums[0];
    }
};

// dt' of the new tokens, one a lane, and how they decay.
template <typename Traits>
struct NewSteps {
    float step;   // dt'; 0 beyond the tokens
    float power;  // of 2, by which the token decays what was before it
    float left;   // exp(p_t)

    __device__ __forceinline__ NewSteps(const ReplayOperands& p, const RowParameters<Traits>& parameters,
                                        const RawNumber<typename Traits::Input>& dt, float scale, int tokens) {
        step = step_length<Traits>(p.operands, parameters, dt);
        if (lane_id() >= tokens) step = 0.0f;
        power = scale * step;
        float powers = power;
        if constexpr (Traits::kHasMany) {
#pragma unroll
            for (int distance = 1; distance < kMaxReplayTokens; distance *= 2) {
                const float lower = from_lane(powers, lane_id() - distance);
                if (lane_id() >= distance) powers += lower;
            }
        }
        left = exp2_approx(powers);
    }
};

// Leaves exp(p_t - p_i) * dt'_i * (B_i . C_t) of all new tokens i <= t in `products`.
template <typename Traits>
__device__ __forceinline__ void multiply_new(const ReplayOperands& p, const TokenCursor<Traits>& first,
                                             const NewSteps<Traits>& steps, int tokens, float* products) {
    for (int from = 0; from < tokens; from += Traits::kBlockGroups) {
        const int i = from + LiveTokens<Traits>::token(0);
        TokenMatrices<Traits> own;
        own.load(p.operands, first.after(p.operands, min(i, tokens - 1)));
        const float step = from_lane(steps.step, i);
        float power = 0.0f;
        for (int t = 0; t < tokens; ++t) {
            TokenMatrices<Traits> other;
            other.load(p.operands, first.after(p.operands, t));
            const float further = from_lane(steps.power, t);
            if (t > i) power += further;
            const float product = multiply<Traits>(own.B, other.C) * exp2_approx(power) * step;
            if (lane_id() % Traits::kLanes == 0 && i <= t) products[t * Traits::kProducts + i] = product;
        }
    }
}

// Puts the new tokens behind the live ones.
template <typename Traits>
__device__ __forceinline__ void append(const ReplayOperands& p, const WarpRows& warp, const Ring<Traits>& ring,
                                       const RingCursor& cursor, const TokenCursor<Traits>& first,
                                       TokenInputs<Traits> inputs, TokenMatrices<Traits> maps,
                                       const NewSteps<Traits>& steps, int tokens) {
    const int group_heads = static_cast<int>(p.operands.group_heads.divisor);
    const bool is_first = warp.first_row == 0;
    if (is_first && lane_id() < tokens) ring.dt[cursor.row(p, cursor.live + lane_id())] = steps.step;
    for (int t = 0; t < tokens; ++t) {
        const int row = cursor.row(p, cursor.live + t);
        if (t > 0) {
            inputs.load(p.operands, first.after(p.operands, t));
            maps.load(p.operands, first.after(p.operands, t));
        }
        if (first.is_row) ::store(ring.x_at(p, row, warp.own_row(p.operands)), inputs.x);
        if (is_first && warp.head % group_heads == 0 && lane_id() < Traits::kLanes) ring.store_B(p, row, maps.B);
    }
}

// Adds the products of the new tokens up to t, in the row that the lane stands for.
template <typename Traits>
__device__ __forceinline__ float add_new(const ReplayOperands& p, const TokenCursor<Traits>& first, int t,
                                         const float* products, float y) {
    for (int i = 0; i <= t; ++i) {
        const TokenCursor<Traits> at = first.after(p.operands, i);
        const auto* x = static_cast<const typename Traits::Input*>(p.operands.x) + at.x;
        // Another lane may have written its result over the x of a row that this one does not stand for.
        if (at.is_row) y = fmaf(products[i], ::load<1, Memory::kMutable>(x).to_float(0), y);
    }
    return y;
}

template <typename Traits>
__device__ __forceinline__ void replay(const ReplayOperands& p, const WarpRows& warp, float* products) {
    const SelectiveStateUpdateOperands& s = p.operands;
    int entry = warp.batch, begin = 0, tokens = 1;
    if constexpr (Traits::kHasMany) {
        const SequenceTokens<Traits> sequence(s, warp);
        entry = sequence.entry;
        begin = sequence.begin;
        tokens = sequence.end - begin;
        if (tokens <= 0) return;
    }
    const int slot = load_slot<Traits>(s, warp.batch);
    const TokenCursor<Traits> first(s, warp, entry, begin);
    TokenInputs<Traits> inputs;
    inputs.load(s, first);
    TokenMatrices<Traits> maps;
    maps.load(s, first);
    RowParameters<Traits> parameters;
    parameters.load(s, warp);
    if (slot < 0 || tokens > min(kMaxReplayTokens, min(p.window, p.ring_rows - p.window))) {
        store_padding<Traits>(s, warp, entry, begin, begin + tokens);
        return;
    }
    const bool goes_on = has_past(s, warp.batch);
    const StateRows<Traits> rows =
        StateRows<Traits>(s.state, s.state_stride + 1, warp) + slot * s.state_stride[0];
    typename Traits::StateVec raw[Traits::kRowsOfGroup][Traits::kChunks];
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) load_row<Traits>(s, warp, rows, r, raw[r], goes_on);
    float scale = 1.0f;
    if constexpr (Traits::kIsQuantised) {
        if (goes_on) scale = load_scale<Traits>(scale_of_slot<Traits>(p, warp, slot));
    }
    const RingCursor cursor(p, slot);
    const int live = goes_on ? cursor.live : 0;
    const bool is_forced =
        !goes_on || (p.force_flush != nullptr &&
                     static_cast<const unsigned char*>(p.force_flush)[warp.batch * p.force_flush_stride] != 0);
    const bool folds = is_forced || live + tokens > p.window;
    const Ring<Traits> ring(p, slot, warp.head);
    LiveTokens<Traits> old;
    old.load(p, warp, ring, cursor, live);

    RawNumber<typename Traits::Input> dt = inputs.dt;
    if constexpr (Traits::kHasMany) dt.load(s.dt, first.after(s, min(lane_id(), tokens - 1)).dt, s.dt_is_float32);
    const float exponent = kLog2E * parameters.A[0][0].to_float(0);
    const NewSteps<Traits> steps(p, parameters, dt, exponent, tokens);
    append<Traits>(p, warp, ring, cursor, first, inputs, maps, steps, tokens);
    if (warp.head == 0 && warp.first_row == 0 && lane_id() == 0) cursor.leave(tokens, folds ? cursor.live : 0);

    const Weights weights(exponent, old.step);
    if constexpr (Traits::kHasMany) {
        for (int t = 0; t < tokens; ++t) {
            TokenMatrices<Traits> at;
            at.load(s, first.after(s, t));
            old.multiply(at.C, weights, live, products + t * Traits::kProducts);
        }
        multiply_new<Traits>(p, first, steps, tokens, products + Traits::kWindows);
    } else {
        old.multiply(maps.C, weights, live, products);
    }
    __syncthreads();
    // The last token is the first: a result may lie where x of its token was.
    for (int t = tokens - 1; t >= 0; --t) {
        TokenCursor<Traits> at = first;
        if constexpr (Traits::kHasMany) {
            at = first.after(s, t);
            inputs.load(s, at);
            maps.load(s, at);
        }
        float sums[Traits::kRowsOfGroup];
#pragma unroll
        for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
            float state[Traits::kElements];
            to_floats<Traits>(raw[r], state);
            sums[r] = 0.0f;
#pragma unroll
            for (int i = 0; i < Traits::kElements; ++i) {
                sums[r] = fmaf(state[i], maps.C[i / Traits::kVecs].to_float(i % Traits::kVecs), sums[r]);
            }
        }
        const float* own = products + t * Traits::kProducts;
        float y = from_lane(steps.left, t) * fmaf(weights.state * scale, gather_own_sum<Traits>(sums), old.sum(live, own));
        if constexpr (Traits::kHasMany) {
            y = add_new<Traits>(p, first, t, own + Traits::kWindows, y);
        } else {
            const float step = from_lane(steps.step, 0);
            y = fmaf(multiply<Traits>(maps.B, maps.C) * step, inputs.x.to_float(0), y);
        }
        at.store(s, finish_result<Traits>(s, parameters, inputs, y));
    }
    if (!folds) return;
    float state[Traits::kRowsOfGroup][Traits::kElements];
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) to_floats<Traits>(raw[r], state[r]);
    fold<Traits>(p, warp, ring, cursor, weights, live, scale, state);
    RowFactors<Traits> factors;
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) store_row<Traits>(s, warp, rows, r, 0, state[r], factors.find(r, state[r]));
    factors.store_scale(s, warp, scale_of_slot<Traits>(p, warp, slot));
}

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows, int kWindow,
          bool kMasked, bool kMany, bool kStochastic, bool kIndex32,
          typename Traits = SelectiveStateUpdateReplayTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kWindow,
                                                             kMasked, kMany, kStochastic, kIndex32>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_replay_kernel(const SelectiveStateUpdateReplayParams params) {
    using Rows = typename Traits::Rows;
    __shared__ float products[Rows::kTokens * Rows::kProducts];
    const ReplayOperands& p = params.operands;
    // The warps of a block are those of one head: all of them leave, or none.
    const WarpRows warp(p.operands, blockIdx.x * Rows::kWarps + threadIdx.x / kWarpSize, Rows::kTile);
    if (warp.batch >= max(p.operands.batch, 1)) return;
    replay<Rows>(p, warp, products);
}
