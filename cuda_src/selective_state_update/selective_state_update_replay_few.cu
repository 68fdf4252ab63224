// One to four tokens of a selective state space model with one decay a head, by replay: the formula, and when states
// are written, are selective_state_update_replay.cu's, for x, B and C of bfloat16, contiguous rows of heads, and a
// window of at most 16 tokens.
//
// Layout: a warp has 64 rows of a head, and needs no other warp. Lane 4 g + q has every fourth 16 bytes of the rows 8 g
// to 8 g + 7, two rows of each of four tiles. With one token it finishes the two of tile q, with several all eight for
// token q.
//
// kDState  d_state    state_t  the pool of states    a_t  A    kMany  several tokens
#include "selective_state_update/replay_fold.cuh"
#include "selective_state_update/replay_products.cuh"

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
    // Tiles that are on their way at once, 8 KiB of a warp: with 12 KiB the steps below take 52 and 44 us.
    static constexpr int kPart = Base::kChunks > 4 ? 1 : Base::kChunks > 2 ? 2 : 4;
    static constexpr bool kIsInt8 = kIsSame<typename Base::State, signed char>;
    // Whether tensor cores multiply states by C: they are numbers of bfloat16, or codes that few instructions make so.
    static constexpr bool kMultipliesStates = kIsInt8 || kIsSame<typename Base::State, typename Base::Matrix>;
    static constexpr int kMatrixChunks = Base::kElements / 8;  // of B or C, 16 bytes each

    // Row r of the lane's group in the tile that begins at the warp's first row.
    __device__ __forceinline__ static int row(const WarpRows& warp, int r) {
        return warp.first_row + lane_id() / 4 * 8 + r;
    }
};

template <int kDState, typename state_t, typename a_t, bool kMany>
struct SelectiveStateUpdateReplayFewTraits {
    static constexpr int kThreads = 128;
    // On an H200 steps of 64 sequences of Mamba-2 with 128 heads and states of bfloat16, some of which flush, take 50
    // us with 3 blocks, 51 with 4 and 64 with 5, which spill; 4 tokens of 32 sequences 41 with 2, 45 with 3 and 52
    // with 4.
    // Without tensor cores their products take registers.
    static constexpr int kMinBlocks = kMany || !kHasTensorCores ? 2 : 3;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(state_t));
    using Rows = ReplayFewRows<RowTraits<kDState, __nv_bfloat16, state_t, a_t, __nv_bfloat16, kVec, 2, true, false,
                                         false, false, false, false, true, 4, SelectiveStateUpdateSingleOperands>,
                               kMany>;
};

// The new token that the lane's group stands for, as a column of products: lane q gets those of token q.
template <typename Traits>
__device__ __forceinline__ int new_token(int tokens) {
    return Traits::kHasMany ? min(lane_id() / 8, tokens - 1) : 0;
}

// The lane's part of B or C of a token, in accesses of 16 bytes that the lanes of a row take in turn.
template <typename Traits>
struct TokenMatrix {
    Vec<__nv_bfloat16, 8> parts[Traits::kMatrixChunks];

    __device__ __forceinline__ void load(const __nv_bfloat16* from, bool exists = true) {
#pragma unroll
        for (int i = 0; i < Traits::kMatrixChunks; ++i) {
            parts[i] = Vec<__nv_bfloat16, 8>::zero();
            if (exists) parts[i] = ::load<8, Memory::kMutable>(from + (i * 4 + lane_id() % 4) * 8);
        }
    }

    // The products of the group's two rows with the new tokens' parts: sums[0] and sums[2] are those of the lane's.
    __device__ __forceinline__ void multiply(const TokenMatrix& first, const TokenMatrix& second,
                                             float (&sums)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < Traits::kMatrixChunks; ++i) {
#pragma unroll
            for (int w = 0; w < 4; w += 2) {
                const unsigned a[4] = {first.parts[i].words[w], second.parts[i].words[w], first.parts[i].words[w + 1],
                                       second.parts[i].words[w + 1]};
                const unsigned b[2] = {parts[i].words[w], parts[i].words[w + 1]};
                multiply_add<__nv_bfloat16>(sums, a, b);
            }
        }
    }
};

// The weights of live tokens in results: exp(s_j) * dt'_j * (B_j . C). Lane 4 g + q has those of the tokens g, g + 8
// and so on, for new token q.
template <typename Traits>
struct LiveWeights {
    static constexpr int kCount = Traits::kWindows / 8;

    float own[kCount];

    // C: of the new token that the lane's group stands for.
    __device__ __forceinline__ void multiply(const ReplayFewOperands& p, const Ring<Traits>& ring,
                                             const RingCursor& cursor, int live, const TokenMatrix<Traits>& C) {
#pragma unroll
        for (int i = 0; i < kCount; i += 2) {
            own[i] = own[i + 1] = 0.0f;
            if (8 * i >= live) continue;
            TokenMatrix<Traits> B[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int token = 8 * (i + half) + lane_id() / 4;
                B[half].load(ring.B + cursor.row(p, token) * Traits::d_state(p.operands), token < live);
            }
            float sums[4];
            C.multiply(B[0], B[1], sums);
            own[i] = sums[0];
            own[i + 1] = sums[2];
        }
    }

    __device__ __forceinline__ void weigh(const Weights& weights, int live) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const int token = 8 * i + lane_id() / 4;
            const float weight = from_lane(weights.own, token);
            // What a token beyond the live ones has is whatever the memory held.
            own[i] = token < live ? weight * own[i] : 0.0f;
        }
    }

    // The weight of live token `begin + distance`, both of one eight of tokens, for the new token of lane q.
    __device__ __forceinline__ float of(int begin, int distance) const {
        return from_lane(own[begin / 8], (begin % 8 + distance) * 4 + lane_id() % 4);
    }
};

// x of every fourth live token, from q on, in the eight rows of the lane's group.
template <typename Traits>
struct LiveTokens {
    using input_t = __nv_bfloat16;

    Vec<input_t, 8> x[4];

    __device__ __forceinline__ static int token(int i) { return 4 * i + lane_id() % 4; }

    __device__ __forceinline__ void load(const ReplayFewOperands& p, const RingCursor& cursor, const input_t* at,
                                         int live) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = Vec<input_t, 8>::zero();
            if (token(i) < live) {
                x[i] = ::load<8, Memory::kMutable>(at + cursor.row(p, token(i)) * p.operands.headdim);
            }
        }
    }

    // The sums of weight * x over all live tokens, of the lane's own two rows.
    __device__ __forceinline__ void sum(const LiveWeights<Traits>& weights, float (&own)[Traits::kOwnRows]) const {
        float sums[8] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float weight = weights.of(4 * i, lane_id() % 4);
#pragma unroll
            for (int e = 0; e < 8; ++e) sums[e] = fmaf(weight, x[i].to_float(e), sums[e]);
        }
        sum_parts_over_lanes<4>(sums);
        own[0] = sums[0];
        own[1] = sums[1];
    }
};

// The live tokens as they are put in states: the lane's ones are those of LiveTokens.
template <typename Traits>
struct FoldTokens {
    using input_t = __nv_bfloat16;
    using Half = PackedVec<input_t, Traits::kVecs / 2>;
    using Live = LiveTokens<Traits>;

    Half B[Traits::kChunks][4];  // in the elements that the lane's group stands for

    __device__ __forceinline__ FoldTokens(const ReplayFewOperands& p, const RingCursor& cursor, const input_t* ring,
                                          int live) {
#pragma unroll
        for (int chunk = 0; chunk < Traits::kChunks; ++chunk) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                B[chunk][i] = Half::zero();
                const int element = (chunk * 8 + lane_id() / 4) * (Traits::kVecs / 2);
                if (Live::token(i) < live) {
                    const int row = cursor.row(p, Live::token(i));
                    B[chunk][i].template load<Memory::kMutable>(ring + row * Traits::kElements * 4 + element);
                }
            }
        }
    }

    // The lane's tokens times their weights in two rows, of which x begins at `at`.
    __device__ __forceinline__ static void multiply(const ReplayFewOperands& p, const RingCursor& cursor,
                                                    const input_t* at, int live, const Weights& weights,
                                                    unsigned (&inputs)[kFoldTerms][4]) {
        float products[2][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            Vec<input_t, 2> x = Vec<input_t, 2>::zero();
            if (Live::token(i) < live) {
                x = ::load<2, Memory::kMutable>(at + cursor.row(p, Live::token(i)) * p.operands.headdim);
            }
            const float weight = from_lane(weights.own, Live::token(i));
#pragma unroll
            for (int r = 0; r < 2; ++r) products[r][i] = weight * x.to_float(r);
        }
        split_products<input_t>(products, inputs);
    }
};

// The sums of weight * x over all live tokens in the eight rows of the lane's group, for the new token of lane q.
template <typename Traits>
__device__ __forceinline__ void sum_live(const ReplayFewOperands& p, const RingCursor& cursor, const __nv_bfloat16* at,
                                         int live, const LiveWeights<Traits>& weights, float (&sums)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = 0.0f;
#pragma unroll
    for (int first = 0; first < Traits::kWindows; first += 4) {
        if (first >= live) break;
        Vec<__nv_bfloat16, 8> x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = Vec<__nv_bfloat16, 8>::zero();
            if (first + i < live) {
                x[i] = ::load<8, Memory::kMutable>(at + cursor.row(p, first + i) * p.operands.headdim);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float weight = weights.of(first, i);
#pragma unroll
            for (int e = 0; e < 8; ++e) sums[e] = fmaf(weight, x[i].to_float(e), sums[e]);
        }
    }
}

// The states of tiles in shared memory. On their way they take no registers, and the compiler does not put off the
// copies until what comes before their use has been waited for. Copies take lines of 128 bytes as they lie in memory,
// of which the lanes of a row would have half at once.
template <typename Traits>
struct StagedTiles {
    using State = typename Traits::State;
    using StateVec = typename Traits::StateVec;
    static constexpr int kDState = Traits::kElements * 4;
    static constexpr int kRowVecs = Traits::kChunks * 4;
    static constexpr int kPairVecs = 2 * kRowVecs;  // of a group's rows, which lie one behind the other
    static constexpr int kTileVecs = Traits::kGroups * kPairVecs;
    static constexpr int kVecs = Traits::kPart * kTileVecs;

    StateVec* staged;
    const State* from;  // the warp's first row

    __device__ __forceinline__ StagedTiles(StateVec* staged, const State* from) : staged(staged), from(from) {}

    // Where a vector of a tile lies: in odd groups every other 64 bytes change places, for the lanes of two groups read
    // at once, and would meet in the same banks.
    __device__ __forceinline__ StateVec* place(int tile, int group, int number) const {
        return staged + tile % Traits::kPart * kTileVecs + ((group * kPairVecs + number) ^ group % 2 * 4);
    }

    // Starts to copy a tile, if there is one; the copies of a tile are a group.
    __device__ __forceinline__ void start(int tile) const {
        if (tile < Traits::kTiles) {
#pragma unroll
            for (int i = 0; i < kTileVecs; i += kWarpSize) {
                const int group = i / kPairVecs + lane_id() / kPairVecs;
                const int number = i % kPairVecs + lane_id() % kPairVecs;
                copy_async(place(tile, group, number),
                           from + (group * 8 + 2 * tile) * kDState + number * Traits::kVecs);
            }
        }
        end_copy_group();
    }

    // Waits for the oldest tile on its way.
    __device__ __forceinline__ void wait() const {
        wait_for_copy_groups<Traits::kPart - 1>();
        sync_warp();
    }

    __device__ __forceinline__ void read(int tile, StateVec (&raw)[2][Traits::kChunks]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int i = 0; i < Traits::kChunks; ++i) {
                const StateVec* from = place(tile, lane_id() / 4, r * kRowVecs + i * 4 + lane_id() % 4);
                raw[r][i] = ::load<Traits::kVecs, Memory::kMutable>(reinterpret_cast<const State*>(from));
            }
        }
    }
};

// C of the new tokens, in the order in which the lane has elements of states.
template <typename Traits>
struct StateFactors {
    using Vector = PackedVec<__nv_bfloat16, Traits::kVecs>;
    static constexpr int kTokens = Traits::kMultipliesStates ? 1 : Traits::kTokens;

    const __nv_bfloat16* from;
    int token_stride;
    int tokens;
    Vector C[Traits::kChunks];  // of one token, which for tensor cores is that of the lane's group

    __device__ __forceinline__ StateFactors(const __nv_bfloat16* from, int token_stride, int tokens)
        : from(from), token_stride(token_stride), tokens(tokens) {
        load(Traits::kMultipliesStates ? new_token<Traits>(tokens) : 0, C);
    }

    __device__ __forceinline__ void load(int token, Vector (&to)[Traits::kChunks]) const {
#pragma unroll
        for (int i = 0; i < Traits::kChunks; ++i) {
            to[i].template load<Memory::kConstant>(from + token * token_stride + Traits::element(i));
        }
    }

    // C * S of the group's two rows of a tile, for the new token of lane q.
    __device__ __forceinline__ void multiply(const typename Traits::StateVec (&raw)[2][Traits::kChunks],
                                             float (&y)[2]) const {
        if constexpr (Traits::kMultipliesStates) {
            float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < Traits::kChunks; ++i) {
#pragma unroll
                for (int w = 0; w < Traits::kVecs / 2; w += 2) {
                    unsigned a[4], b[2] = {C[i].word(w), C[i].word(w + 1)};
                    if constexpr (Traits::kIsInt8) {
                        // In the order in which a word of codes gives its pairs.
                        b[0] = __byte_perm(C[i].word(w), C[i].word(w + 1), 0x5410u);
                        b[1] = __byte_perm(C[i].word(w), C[i].word(w + 1), 0x7632u);
                    }
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        if constexpr (Traits::kIsInt8) {
                            codes_to_pairs(raw[r][i].words[w / 2], a[r], a[2 + r]);
                        } else {
                            a[r] = raw[r][i].words[w];
                            a[2 + r] = raw[r][i].words[w + 1];
                        }
                    }
                    multiply_add<__nv_bfloat16>(sums, a, b);
                }
            }
            y[0] = sums[0];
            y[1] = sums[2];
        } else {
            y[0] = y[1] = 0.0f;
            // C of several tokens would take too many registers.
#pragma unroll 1
            for (int t = 0; t < kTokens; ++t) {
                Vector of_token[Traits::kChunks];
                if constexpr (Traits::kHasMany) load(min(t, tokens - 1), of_token);
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    float sum = 0.0f;
#pragma unroll
                    for (int i = 0; i < Traits::kElements; ++i) {
                        const int chunk = i / Traits::kVecs, at = i % Traits::kVecs;
                        const float factor = (Traits::kHasMany ? of_token : C)[chunk].to_float(at);
                        sum = fmaf(raw[r][chunk].to_float(at), factor, sum);
                    }
                    sum = sum_over_lanes(sum, 4);
                    y[r] = !Traits::kHasMany || lane_id() % 4 == t ? sum : y[r];
                }
            }
        }
    }
};

// Decays of the new token that lane q stands for: exp(p_q), and of each token up to it exp(p_q - p_i) * dt'_i.
template <typename Traits>
struct NewDecays {
    float whole;
    float inputs[Traits::kTokens];

    // rate: A in powers of two; step: dt' of the lane's token, 0 beyond the last one.
    __device__ __forceinline__ NewDecays(float rate, float step) {
        float power = 0.0f;
#pragma unroll
        for (int i = Traits::kTokens - 1; i >= 0; --i) {
            const float of_token = Traits::kHasMany ? from_lane(step, i) : step;
            inputs[i] = exp2_approx(power) * of_token;
            if (!Traits::kHasMany || i <= lane_id() % 4) power += rate * of_token;
        }
        whole = exp2_approx(power);
    }
};

template <typename Traits>
__device__ __forceinline__ void replay_few(const ReplayFewOperands& p, const WarpRows& warp,
                                           typename Traits::StateVec* shared) {
    using input_t = __nv_bfloat16;
    using Own = Vec<input_t, Traits::kOwnRows>;
    constexpr int kDState = Traits::kElements * 4;
    const SelectiveStateUpdateSingleOperands& s = p.operands;
    SequenceStep step = {};
    step.entry = warp.batch;
    step.tokens = Traits::kHasMany ? p.tokens : 1;
    step.goes_on = true;
    step.slot = uniform(load_slot<Traits>(s, warp.batch));
    wait_for_preceding();
    const int group_row = warp.first_row + lane_id() / 4 * 8;
    const int row = group_row + (Traits::kHasMany ? 0 : lane_id() % 4 * 2);  // the lane's first own one
    const int token = Traits::kHasMany ? lane_id() % 4 : 0;
    const bool is_token = token < step.tokens;
    const auto place = [&](const int* stride, int of_token, int of_row) {
        return warp.batch * stride[0] + of_token * stride[1] + warp.head * stride[2] + of_row;
    };
    input_t* const out = static_cast<input_t*>(s.out) + place(s.out_stride, token, row);
    if (step.slot < 0) {
        if (is_token && !s.keeps_padding) ::store(out, Own::zero());
        return;
    }
    const index_t slot_stride = s.state_stride[0];
    const auto* const states = static_cast<const typename Traits::State*>(s.state) + step.slot * slot_stride +
                               warp.head * s.state_stride[1] + warp.first_row * kDState;
    const StagedTiles<Traits> tiles(shared, states);
#pragma unroll
    for (int m = 0; m < Traits::kPart; ++m) tiles.start(m);
    // Of the rows 2 q and 2 q + 1 of the lane's group.
    float* scales = nullptr;
    float scale[2];
    if constexpr (Traits::kIsQuantised) {
        scales = static_cast<float*>(p.state_scale) + step.slot * static_cast<index_t>(p.scale_stride[0]) +
                 warp.head * p.scale_stride[1] + group_row;
        scale[0] = scales[lane_id() % 4 * 2];
        scale[1] = scales[lane_id() % 4 * 2 + 1];
    }
    const int group = static_cast<int>(s.group_heads.quotient(warp.head));
    const auto* const C_at = static_cast<const input_t*>(s.C) + warp.batch * s.C_stride[0] + group * s.C_stride[2];
    const auto* const B_at = static_cast<const input_t*>(s.B) + warp.batch * s.B_stride[0] + group * s.B_stride[2];
    TokenMatrix<Traits> C, B;
    // The compiler would put loads of constants behind the barrier.
    C.load(C_at + new_token<Traits>(step.tokens) * s.C_stride[1]);
    // The lane's group stands for another token here: as a row of the product, not as a column.
    const int appended = Traits::kHasMany ? min(lane_id() / 4, step.tokens - 1) : 0;
    B.load(B_at + appended * s.B_stride[1]);
    RowParameters<Traits> parameters;
    parameters.load(s, warp);
    RawNumber<input_t> dt;
    const int of_lane = Traits::kHasMany ? min(lane_id(), step.tokens - 1) : 0;
    dt.load(s.dt, place(s.dt_stride, of_lane, 0), s.dt_is_float32);
    Own x[Traits::kTokens];
#pragma unroll
    for (int i = 0; i < Traits::kTokens; ++i) {
        x[i] = Own::zero();
        if (i < step.tokens) {
            // The call may write its outputs over x.
            x[i] = ::load<Traits::kOwnRows, Memory::kMutable>(static_cast<const input_t*>(s.x) +
                                                              place(s.x_stride, i, row));
        }
    }
    Own z = Own::zero();
    if (s.z != nullptr && is_token) {
        z = ::load<Traits::kOwnRows>(static_cast<const input_t*>(s.z) + place(s.z_stride, token, row));
    }
    RawNumber<input_t> D[Traits::kOwnRows];
    if (s.D != nullptr) {
#pragma unroll
        for (int r = 0; r < Traits::kOwnRows; ++r) {
            D[r].load(s.D, warp.head * s.D_stride[0] + (row + r) * s.D_stride[1], s.D_is_float32);
        }
    }
    bool is_forced = false;
    if (p.force_flush != nullptr) {
        is_forced = static_cast<const unsigned char*>(p.force_flush)[warp.batch * p.force_flush_stride] != 0;
    }
    // The cursor comes last, behind a barrier: whatever is loaded after it the compiler would put behind the wait for
    // it.
    sync_warp();
    const RingCursor cursor(p, step.slot);
    step.live = cursor.live;
    step.folds = uniform(static_cast<int>(is_forced)) != 0 || step.live + step.tokens > p.window;
    const Ring<Traits> ring(p, step.slot, warp.head);
    const float live_step = load_steps<Traits>(p, ring, cursor, step.live);
    LiveTokens<Traits> old;
    if constexpr (!Traits::kHasMany) old.load(p, cursor, ring.x + group_row, step.live);
    LiveWeights<Traits> live_weights;
    live_weights.multiply(p, ring, cursor, step.live, C);
    float products[4];
    C.multiply(B, B, products);
    const float own_step = of_lane == lane_id() || !Traits::kHasMany ? step_length<Traits>(s, parameters, dt) : 0.0f;
    Own own_x = x[0];
#pragma unroll
    for (int i = 1; i < Traits::kTokens; ++i) own_x = select(i == token, x[i], own_x);
    // What the new tokens leave for later steps.
    if (is_token) ::store(ring.x_at(p, cursor.row(p, cursor.live + token), row), own_x);
    if (warp.first_row == 0) {
        if (lane_id() < step.tokens) ring.dt[cursor.row(p, cursor.live + lane_id())] = own_step;
        if (warp.head % static_cast<int>(s.group_heads.divisor) == 0 && lane_id() / 4 < step.tokens) {
            input_t* const to = ring.B + cursor.row(p, cursor.live + appended) * kDState;
#pragma unroll
            for (int i = 0; i < Traits::kMatrixChunks; ++i) ::store(to + (i * 4 + lane_id() % 4) * 8, B.parts[i]);
        }
        if (warp.head == 0 && lane_id() == 0) cursor.leave(step.tokens, step.folds ? cursor.live : 0);
    }
    const float rate = kLog2E * parameters.A[0][0].to_float(0);
    const Weights weights(rate, live_step);
    live_weights.weigh(weights, step.live);
    float y[Traits::kOwnRows];
    if constexpr (Traits::kHasMany) {
        sum_live<Traits>(p, cursor, ring.x + group_row, step.live, live_weights, y);
    } else {
        old.sum(live_weights, y);
    }
    const StateFactors<Traits> factors(C_at, s.C_stride[1], step.tokens);
    const auto read_tile = [&](int m, float (&left)[2]) {
        typename Traits::StateVec raw[2][Traits::kChunks];
        tiles.wait();
        tiles.read(m, raw);
        float of_tile[2];
        factors.multiply(raw, of_tile);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            left[r] = weights.state;
            if constexpr (Traits::kIsQuantised) left[r] *= from_lane(scale[r], lane_id() / 4 * 4 + m);
            of_tile[r] *= left[r];
            if constexpr (Traits::kHasMany) {
#pragma unroll
                for (int i = 0; i < Traits::kTiles; ++i) y[2 * i + r] += i == m ? of_tile[r] : 0.0f;
            } else {
                y[r] += lane_id() % 4 == m ? of_tile[r] : 0.0f;
            }
        }
    };
    float left[2];
    if (step.folds) {
        // All that the tiles share: their loop waits for little but states.
        const FoldTokens<Traits> tokens(p, cursor, ring.B, step.live);
        WarpRows tile = warp;
#pragma unroll 1
        for (int m = 0; m < Traits::kTiles; ++m, tile.first_row += 2) {
            read_tile(m, left);
            // Reads the tile once more, instead of keeping it in registers.
            sync_warp();
            typename Traits::StateVec raw[2][Traits::kChunks];
            tiles.read(m, raw);
            StateRows<Traits> rows = StateRows<Traits>(s.state, s.state_stride + 1, tile) + step.slot * slot_stride;
            rows.row_step = kDState;
            RowFactors<Traits> found;
            unsigned inputs[kFoldTerms][4];
            FoldTokens<Traits>::multiply(p, cursor, ring.x + group_row + 2 * m, step.live, weights, inputs);
            fold_two_rows<Traits>(s, tile, rows, raw, left, found, [&](int chunk, float (&state)[2][Traits::kVecs]) {
                add_products<Traits>(inputs, tokens.B[chunk], state);
            });
            if constexpr (Traits::kIsQuantised) {
                const int r = lane_id() % 4;
                if (r < 2) scales[2 * m + r] = scale_of_factor(found.kept);
            }
            sync_warp();
            tiles.start(m + Traits::kPart);
        }
    } else {
#pragma unroll
        for (int m = 0; m < Traits::kTiles; ++m) {
            read_tile(m, left);
            sync_warp();
            tiles.start(m + Traits::kPart);
        }
    }
    const NewDecays<Traits> decays(rate, own_step);
#pragma unroll
    for (int r = 0; r < Traits::kOwnRows; ++r) y[r] *= decays.whole;
#pragma unroll
    for (int i = 0; i < Traits::kTokens; ++i) {
        const float input = decays.inputs[i] * (Traits::kHasMany ? from_lane(products[0], i * 4 + token) : products[0]);
        // A later token may be NaN, and is rejected then.
        if (i > token) continue;
#pragma unroll
        for (int r = 0; r < Traits::kOwnRows; ++r) y[r] = fmaf(input, x[i].to_float(r), y[r]);
    }
#pragma unroll
    for (int r = 0; r < Traits::kOwnRows; ++r) {
        if (s.D != nullptr) y[r] = fmaf(D[r].to_float(s.D_is_float32), own_x.to_float(r), y[r]);
        if (s.z != nullptr) y[r] *= silu<float>(z.to_float(r));
    }
    // Results may lie where x does, which the other lanes have loaded.
    if constexpr (Traits::kHasMany) sync_warp();
    if (is_token) ::store(out, Own::from_floats(y));
}

template <int kDState, typename state_t, typename a_t, bool kMany,
          typename Traits = SelectiveStateUpdateReplayFewTraits<kDState, state_t, a_t, kMany>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_replay_few_kernel(const SelectiveStateUpdateReplayFewParams params) {
    using Rows = typename Traits::Rows;
    constexpr int kVecs = StagedTiles<Rows>::kVecs;
    __shared__ alignas(16) typename Rows::StateVec shared[Traits::kThreads / kWarpSize][kVecs];
    const ReplayFewOperands& p = params.operands;
    const int number = uniform(static_cast<int>(threadIdx.x / kWarpSize));
    const WarpRows warp(p.operands, blockIdx.x * (Traits::kThreads / kWarpSize) + number, Rows::kWarpRows);
    // Whole warps leave: the shuffles stay complete.
    if (warp.batch >= p.operands.batch) return wait_for_preceding();
    replay_few<Rows>(p, warp, shared[number]);
}
