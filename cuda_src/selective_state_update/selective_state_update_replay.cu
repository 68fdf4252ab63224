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
#include "common/mma.cuh"
#include "selective_state_update/replay.cuh"

struct SelectiveStateUpdateReplayParams {
    ReplayOperands operands;
};

// How a warp divides live tokens among its groups of lanes, and new ones among the lanes that stand for one row.
template <typename Base, int kBlockWarps, int kWindow, int kXVec, bool kTensor, bool kMany>
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
    static constexpr bool kMultipliesStates = kTensor && kIsSame<typename Base::State, typename Base::Matrix>;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows, int kWindow,
          int kXVec, bool kTensor, bool kMasked, bool kMany, bool kStochastic, bool kIndex32>
struct SelectiveStateUpdateReplayTraits {
    static constexpr int kThreads = 128;
    using Rows = ReplayRows<RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, true, kMasked, false, false,
                                      false, kStochastic, kIndex32, kTensor ? 4 : kWarpSize>,
                            kThreads / kWarpSize, kWindow, kXVec, kTensor, kMany>;
    // On an H200 a step of 64 sequences of Mamba-2 with 128 heads takes 45 us with 4 blocks and states of bfloat16, 50
    // with 2 and 52 with 3; with float32 91, 75 and 81.
    // Lanes with more of a row, or with B and C of more bits, would spill most of it for 4.
    static constexpr bool kHasFew = sizeof(state_t) == 2 && !Rows::kIsQuantised && sizeof(b_t) == 2 && kDState <= 128;
    static constexpr int kMinBlocks = !kHasFew ? 2 : kMany ? 3 : 4;
};

// The product of two vectors, of which the lanes of a group have parts.
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

// What a warp does for a sequence.
struct SequenceStep {
    int slot;
    int entry;
    int begin;
    int tokens;
    int live;      // live tokens that count
    bool goes_on;  // from the state in memory
    bool folds;    // the live tokens go to the state
};

template <typename T, int kVec>
__device__ __forceinline__ unsigned word_of(const Vec<T, kVec>& v, int i) {
    return v.words[i];
}

template <typename T, int kCount>
__device__ __forceinline__ unsigned word_of(const PackedVec<T, kCount>& v, int i) {
    return v.word(i);
}

// The products of two rows a group of lanes with C of 8 new tokens: a lane of a group that has the rows g and g + 8
// gets those of row g with the tokens 2 q and 2 q + 1, if it is its lane q, and then those of row g + 8.
template <typename Traits, typename Row>
__device__ __forceinline__ void multiply_rows(const Row (&first)[Traits::kChunks], const Row (&second)[Traits::kChunks],
                                              const typename TokenMatrices<Traits>::Vector (&C)[Traits::kChunks],
                                              float (&sums)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < Traits::kChunks; ++i) {
#pragma unroll
        for (int half = 0; half < Traits::kVecs / 2; half += 2) {
            const unsigned a[4] = {word_of(first[i], half), word_of(second[i], half), word_of(first[i], half + 1),
                                   word_of(second[i], half + 1)};
            const unsigned b[2] = {word_of(C[i], half), word_of(C[i], half + 1)};
            multiply_add<typename Traits::Matrix>(sums, a, b);
        }
    }
}

// The lane's part of C of the new tokens from `begin` on, as tensor cores take it: that of one token a group.
template <typename Traits>
__device__ __forceinline__ void load_C(const ReplayOperands& p, const TokenCursor<Traits>& first, int begin, int tokens,
                                       TokenMatrices<Traits>& maps) {
    const int token = min(begin + lane_id() / Traits::kLanes, tokens - 1);
    if (Traits::kHasMany) maps.load(p.operands, first.after(p.operands, token));
}

// The same as multiply_all by tensor cores.
template <typename Traits>
__device__ __forceinline__ void multiply_all_tensor(const ReplayOperands& p, const Ring<Traits>& ring,
                                                    const RingCursor& cursor, const SequenceStep& step,
                                                    const TokenCursor<Traits>& first, const TokenMatrices<Traits>& maps,
                                                    float* products) {
    const int group = lane_id() / Traits::kLanes;
    for (int begin = 0; begin < step.tokens; begin += 8) {
        TokenMatrices<Traits> C = maps;
        load_C<Traits>(p, first, begin, step.tokens, C);
        const int token = begin + 2 * (lane_id() % Traits::kLanes);
        for (int j = 0; j < step.live; j += 16) {
            typename TokenMatrices<Traits>::Vector B[2][Traits::kChunks];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int i = 0; i < Traits::kChunks; ++i) B[half][i] = TokenMatrices<Traits>::Vector::zero();
                const int row = j + 8 * half + group;
                if (row < step.live) ring.load_B(p, cursor.row(p, row), B[half]);
            }
            float sums[4];
            multiply_rows<Traits>(B[0], B[1], C.C, sums);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = j + i / 2 * 8 + group, t = token + i % 2;
                if (row < step.live && t < step.tokens) products[t * Traits::kProducts + row] = sums[i];
            }
        }
        TokenMatrices<Traits> B[2] = {maps, maps};
        if constexpr (Traits::kHasMany) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                B[half].load(p.operands, first.after(p.operands, min(8 * half + group, step.tokens - 1)));
            }
        }
        float sums[4];
        multiply_rows<Traits>(B[0].B, B[1].B, C.C, sums);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = i / 2 * 8 + group, t = token + i % 2;
            if (row <= t && t < step.tokens) products[t * Traits::kProducts + Traits::kWindows + row] = sums[i];
        }
    }
    sync_warp();
}

// Leaves B . C of all new tokens' C with all live tokens' B, and with the B of the new tokens up to them, in
// `products`.
template <typename Traits>
__device__ __forceinline__ void multiply_all(const ReplayOperands& p, const Ring<Traits>& ring,
                                             const RingCursor& cursor, const SequenceStep& step,
                                             const TokenCursor<Traits>& first, const TokenMatrices<Traits>& maps,
                                             float* products) {
    const int group = lane_id() / Traits::kLanes;
    const bool writes = lane_id() % Traits::kLanes == 0;
    constexpr int kAtOnce = Traits::kPasses < 4 ? Traits::kPasses : 4;
    for (int from = 0; from < step.live; from += kAtOnce * Traits::kGroups) {
        typename TokenMatrices<Traits>::Vector B[kAtOnce][Traits::kChunks];
#pragma unroll
        for (int pass = 0; pass < kAtOnce; ++pass) {
#pragma unroll
            for (int i = 0; i < Traits::kChunks; ++i) B[pass][i] = TokenMatrices<Traits>::Vector::zero();
            const int j = from + pass * Traits::kGroups + group;
            if (j < step.live) ring.load_B(p, cursor.row(p, j), B[pass]);
        }
        for (int t = 0; t < step.tokens; ++t) {
            TokenMatrices<Traits> at = maps;
            if (Traits::kHasMany && t > 0) at.load(p.operands, first.after(p.operands, t));
#pragma unroll
            for (int pass = 0; pass < kAtOnce; ++pass) {
                const int j = from + pass * Traits::kGroups + group;
                const float product = multiply<Traits>(B[pass], at.C);
                if (writes && j < step.live) products[t * Traits::kProducts + j] = product;
            }
        }
    }
    for (int t = 0; t < step.tokens; ++t) {
        TokenMatrices<Traits> at = maps;
        if (Traits::kHasMany && t > 0) at.load(p.operands, first.after(p.operands, t));
        for (int from = 0; from <= t; from += Traits::kGroups) {
            TokenMatrices<Traits> own = maps;
            const int i = from + group;
            if (Traits::kHasMany && i <= t) own.load(p.operands, first.after(p.operands, i));
            const float product = multiply<Traits>(own.B, at.C);
            if (writes && i <= t) products[t * Traits::kProducts + Traits::kWindows + i] = product;
        }
    }
    sync_warp();
}

// x of the live tokens in the rows of a tile, by accesses of kXVecs rows of one token a lane.
template <typename Traits>
struct LiveInputs {
    using input_t = typename Traits::Input;
    static constexpr int kVec = Traits::kXVecs;
    static constexpr int kRowLanes = Traits::kTile / kVec;  // lanes that share a token's rows
    static constexpr int kTokens = kWarpSize / kRowLanes;   // tokens at once
    static constexpr int kPasses = (Traits::kWindows + kTokens - 1) / kTokens;

    Vec<input_t, kVec> x[kPasses];

    // The lane's token of a pass.
    __device__ __forceinline__ static int token(int pass) { return pass * kTokens + lane_id() / kRowLanes; }

    __device__ __forceinline__ void load(const ReplayOperands& p, const RingCursor& cursor, const WarpRows& warp,
                                         const input_t* ring, int live) {
        const int row = warp.first_row + lane_id() % kRowLanes * kVec;
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            x[pass] = Vec<input_t, kVec>::zero();
            if (token(pass) < live && row < p.operands.headdim) {
                x[pass] = ::load<kVec, Memory::kMutable>(ring + cursor.row(p, token(pass)) * p.operands.headdim + row);
            }
        }
    }

    // The sum of weight * x over the tokens, of the row that the lane stands for; each lane has one token's weight.
    __device__ __forceinline__ float sum(float weight) const {
        float sums[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) sums[i] = 0.0f;
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            const float own = from_lane(weight, token(pass));
#pragma unroll
            for (int i = 0; i < kVec; ++i) sums[i] = fmaf(own, x[pass].to_float(i), sums[i]);
        }
        sum_parts_over_lanes<kTokens, kRowLanes>(sums);
        const int row = lane_id() % Traits::kTile;
        if constexpr (kVec <= kTokens) {
            return from_lane(sums[0], row % kVec * kRowLanes + row / kVec);
        } else {
            constexpr int kLeft = kVec / kTokens;
            float found = 0.0f;
#pragma unroll
            for (int i = 0; i < kLeft; ++i) {
                const float each = from_lane(sums[i], row % kVec / kLeft * kRowLanes + row / kVec);
                if (row % kLeft == i) found = each;
            }
            return found;
        }
    }
};

// Of one tile, as it is in memory.
template <typename Traits>
struct TileInputs {
    typename Traits::StateVec raw[Traits::kRowsOfGroup][Traits::kChunks];
    LiveInputs<Traits> old;
    float scale;
    RawNumber<typename Traits::Input> D;
    TokenInputs<Traits> inputs;  // of the first new token
};

// Of one head, as it is in memory.
template <typename Traits>
struct HeadInputs {
    float step;                            // dt' of the lane's live token
    RawNumber<typename Traits::Input> dt;  // of the lane's new token
    RowParameters<Traits> parameters;
};

// Where the inputs of a tile are.
template <typename Traits>
struct TileCursor {
    using input_t = typename Traits::Input;

    WarpRows warp;
    StateRows<Traits> rows;
    Ring<Traits> ring;
    TokenCursor<Traits> token;  // the first new one
    int row;                    // that the lane stands for

    // Goes on to the next tile of the head.
    __device__ __forceinline__ void advance(const SelectiveStateUpdateOperands& p) {
        warp.first_row += Traits::kTile;
        rows = rows + Traits::kRowsOfGroup * rows.row_step;
        const int before = row;
        row = min(warp.first_row + lane_id() % Traits::kTile, p.headdim - 1);
        token.move_rows(p, row - before);
        token.is_row = warp.is_row(p, Traits::kTile);
    }

    __device__ __forceinline__ TileCursor(const ReplayOperands& p, const WarpRows& warp, const SequenceStep& step)
        : warp(warp),
          rows(StateRows<Traits>(p.operands.state, p.operands.state_stride + 1, warp) +
               step.slot * p.operands.state_stride[0]),
          ring(p, step.slot, warp.head),
          token(p.operands, warp, step.entry, step.begin) {
        row = min(warp.first_row + lane_id() % Traits::kTile, p.operands.headdim - 1);
    }

    __device__ __forceinline__ void load(const ReplayOperands& p, const RingCursor& cursor, const SequenceStep& step,
                                         TileInputs<Traits>& to) const {
        if (step.goes_on && warp.first_row + Traits::kTile <= p.operands.headdim) {
#pragma unroll
            for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
#pragma unroll
                for (int i = 0; i < Traits::kChunks; ++i) {
                    to.raw[r][i] = Traits::StateVec::zero();
                    if (Traits::element(i) < Traits::d_state(p.operands)) {
                        to.raw[r][i] = ::load<Traits::kVecs, Memory::kMutable>(rows.at(r, i));
                    }
                }
            }
        } else {
#pragma unroll
            for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
                load_row<Traits>(p.operands, warp, rows, r, to.raw[r], step.goes_on);
            }
        }
        to.scale = 1.0f;
        if (Traits::kIsQuantised && step.goes_on) {
            to.scale = load_scale<Traits>(scale_of_slot<Traits>(p, warp, step.slot));
        }
        to.old.load(p, cursor, warp, ring.x, step.live);
        // Other lanes' rows are not there, or not theirs.
        if (!token.is_row) return;
        to.inputs.load(p.operands, token);
        if (p.operands.D != nullptr) {
            const index_t* stride = p.operands.D_stride;
            to.D.load(p.operands.D, warp.head * stride[0] + warp.own_row(p.operands) * stride[1],
                      p.operands.D_is_float32);
        }
    }

    __device__ __forceinline__ void load(const ReplayOperands& p, const RingCursor& cursor, const SequenceStep& step,
                                         HeadInputs<Traits>& to) const {
        to.step = load_steps<Traits>(p, ring, cursor, step.live);
        to.parameters.load(p.operands, warp);
        const int own = Traits::kHasMany ? min(lane_id(), step.tokens - 1) : 0;
        to.dt.load(p.operands.dt, token.after(p.operands, own).dt, p.operands.dt_is_float32);
    }
};

// What the tiles of a head share: decays, and the weights of tokens.
template <typename Traits>
struct Head {
    Weights weights;
    float step;   // dt' of the lane's new token; 0 beyond them
    float power;  // of 2, by which that token decays what was before it

    __device__ __forceinline__ Head(const ReplayOperands& p, const HeadInputs<Traits>& inputs, int tokens)
        : weights(kLog2E * inputs.parameters.A[0][0].to_float(0), inputs.step) {
        step = step_length<Traits>(p.operands, inputs.parameters, inputs.dt);
        if (lane_id() >= tokens) step = 0.0f;
        power = kLog2E * inputs.parameters.A[0][0].to_float(0) * step;
    }
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

// Two elements of 16 bits as a pair.
template <typename T, int kCount>
__device__ __forceinline__ unsigned pair_of(const PackedVec<T, kCount>& low, const PackedVec<T, kCount>& high, int i) {
    const unsigned half = i % 2 == 0 ? 0x5410u : 0x7632u;
    return __byte_perm(low.word(i / 2), high.word(i / 2), half);
}

// Live tokens as tensor cores take them, 16 in a block: the lane's weights times x, and where B of its tokens is, in
// the ring. Lane q of a group has the tokens 4 q to 4 q + 3 of a block. The products are rounded to bfloat16 kTerms
// times, each time what the last rounding has left: float32 has the bits of three.
template <typename Traits>
struct FoldInputs {
    using input_t = typename Traits::Input;
    static constexpr int kTerms = 3;
    static constexpr int kBlocks = Traits::kWindows / 16;
    static constexpr int kHalf = Traits::kVecs / 2;

    unsigned inputs[kBlocks][kTerms][4];
    int places[kBlocks][4];

    __device__ __forceinline__ static int token(int block, int i) {
        return block * 16 + lane_id() % Traits::kLanes * 4 + i;
    }

    __device__ __forceinline__ FoldInputs(const ReplayOperands& p, const TileCursor<Traits>& at,
                                          const RingCursor& cursor, const Weights& weights, int live) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            float products[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = cursor.row(p, max(min(token(block, i), live - 1), 0));
                places[block][i] = row * Traits::d_state(p.operands);
                const float weight = from_lane(weights.own, token(block, i));
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int own = min(Traits::row(at.warp, r), p.operands.headdim - 1);
                    products[r][i] = 0.0f;
                    if (token(block, i) < live) {
                        products[r][i] = weight * ::load<1, Memory::kMutable>(at.ring.x_at(p, row, own)).to_float(0);
                    }
                }
            }
#pragma unroll
            for (int term = 0; term < kTerms; ++term) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float* pair = products[i % 2] + i / 2 * 2;
                    const unsigned word = Dtype<input_t>::pack(pair);
                    inputs[block][term][i] = word;
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const float rounded = Dtype<input_t>::unpack(word, half);
                        // Nothing is left of an infinity, and NaN is enough once.
                        pair[half] = fabsf(rounded) <= 3.402823466e38f ? pair[half] - rounded : 0.0f;
                    }
                }
            }
        }
    }

    // Adds the tokens to one vector of each of the lane's two rows.
    __device__ __forceinline__ void add(const ReplayOperands& p, const Ring<Traits>& ring, int live, int chunk,
                                        float (&state)[2][Traits::kVecs]) const {
        const int element = (chunk * Traits::kLanes * 2 + lane_id() / Traits::kLanes) * kHalf;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            if (block * 16 >= live) break;
            PackedVec<input_t, kHalf> B[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                B[i] = PackedVec<input_t, kHalf>::zero();
                if (token(block, i) < live && element < Traits::d_state(p.operands)) {
                    B[i].template load<Memory::kMutable>(ring.B + places[block][i] + element);
                }
            }
#pragma unroll
            for (int e = 0; e < kHalf; ++e) {
                const unsigned b[2] = {pair_of(B[0], B[1], e), pair_of(B[2], B[3], e)};
                float sums[4] = {state[0][e], state[0][e + kHalf], state[1][e], state[1][e + kHalf]};
#pragma unroll
                for (int term = kTerms - 1; term >= 0; --term) multiply_add<input_t>(sums, inputs[block][term], b);
                state[0][e] = sums[0];
                state[0][e + kHalf] = sums[1];
                state[1][e] = sums[2];
                state[1][e + kHalf] = sums[3];
            }
        }
    }
};

// Puts the live tokens in the states of a tile, and these in memory, by tensor cores.
template <typename Traits>
__device__ __forceinline__ void fold_tile_tensor(const ReplayOperands& p, const TileCursor<Traits>& at,
                                                 const RingCursor& cursor, const SequenceStep& step,
                                                 const Weights& weights, const TileInputs<Traits>& tile) {
    const FoldInputs<Traits> inputs(p, at, cursor, weights, step.live);
    float left[2], all[Traits::kIsQuantised ? 2 : 1][Traits::kElements];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        left[r] = weights.state;
        if constexpr (Traits::kIsQuantised) left[r] *= Traits::of_row(tile.scale, r);
    }
#pragma unroll
    for (int chunk = 0; chunk < Traits::kChunks; ++chunk) {
        float state[2][Traits::kVecs];
#pragma unroll
        for (int i = 0; i < 2 * Traits::kVecs; ++i) {
            const int r = i / Traits::kVecs, e = i % Traits::kVecs;
            state[r][e] = tile.raw[r][chunk].to_float(e) * left[r];
        }
        inputs.add(p, at.ring, step.live, chunk, state);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if constexpr (Traits::kIsQuantised) {
#pragma unroll
                for (int e = 0; e < Traits::kVecs; ++e) all[r][chunk * Traits::kVecs + e] = state[r][e];
            } else {
                const int row = Traits::row(at.warp, r), element = Traits::element(chunk);
                const auto v = round_states<Traits>(p.operands, at.warp, row, element, 0, state[r], 1.0f);
                if (row < p.operands.headdim && element < Traits::d_state(p.operands)) {
                    ::store<Traits::kKeep>(at.rows.at(r, chunk), v);
                }
            }
        }
    }
    if constexpr (Traits::kIsQuantised) {
        RowFactors<Traits> factors;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            store_row<Traits>(p.operands, at.warp, at.rows, r, 0, all[r], factors.find(r, all[r]));
        }
        factors.store_scale(p.operands, at.warp, scale_of_slot<Traits>(p, at.warp, step.slot));
    }
}

// The same without them.
template <typename Traits>
__device__ __forceinline__ void fold_tile(const ReplayOperands& p, const TileCursor<Traits>& at,
                                          const RingCursor& cursor, const SequenceStep& step, const Weights& weights,
                                          const TileInputs<Traits>& tile) {
    RowFactors<Traits> factors;
#pragma unroll
    for (int first = 0; first < Traits::kRowsOfGroup; first += Traits::kPart) {
        float state[Traits::kPart][Traits::kElements];
#pragma unroll
        for (int r = 0; r < Traits::kPart; ++r) to_floats<Traits>(tile.raw[first + r], state[r]);
        fold<Traits>(p, at.warp, at.ring, cursor, weights, step.live, tile.scale, first, state);
#pragma unroll
        for (int r = 0; r < Traits::kPart; ++r) {
            store_row<Traits>(p.operands, at.warp, at.rows, first + r, 0, state[r], factors.find(first + r, state[r]));
        }
    }
    factors.store_scale(p.operands, at.warp, scale_of_slot<Traits>(p, at.warp, step.slot));
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
    if constexpr (Traits::kHasMany) {
        for (int i = 0; i < p.warp_heads * p.warp_tiles; ++i) {
            const SequenceTokens<Traits> sequence(s, tile_of<Traits>(p, begin, i));
            step.entry = sequence.entry;
            step.begin = sequence.begin;
            step.tokens = uniform(sequence.end - sequence.begin);
        }
        if (step.tokens <= 0) return;
    }
    step.slot = uniform(load_slot<Traits>(s, begin.batch));
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
    const RingCursor cursor(p, step.slot);
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
        if (begin.head == 0 && lane_id() == 0) cursor.leave(step.tokens, step.folds ? cursor.live : 0);
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

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows, int kWindow,
          int kXVec, bool kTensor, bool kMasked, bool kMany, bool kStochastic, bool kIndex32,
          typename Traits = SelectiveStateUpdateReplayTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kWindow,
                                                             kXVec, kTensor, kMasked, kMany, kStochastic, kIndex32>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_replay_kernel(const SelectiveStateUpdateReplayParams params) {
    using Rows = typename Traits::Rows;
    __shared__ float products[Rows::kWarps][Rows::kTokens * Rows::kProducts];
    const ReplayOperands& p = params.operands;
    const int number = uniform(static_cast<int>(threadIdx.x / kWarpSize));
    WarpRows warp(p.operands, blockIdx.x * Rows::kWarps + number, Rows::kTile * p.warp_tiles);
    warp.head *= p.warp_heads;
    // Whole warps leave: the shuffles stay complete.
    if (warp.batch >= max(p.operands.batch, 1)) return;
    replay<Rows>(p, warp, products[number]);
}
