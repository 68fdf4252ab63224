// What a warp of selective_state_update_replay_few.cu needs of tokens: the products, weights and decays of live and new
// ones, and their rows on the way to it.
#pragma once

#include "selective_state_update/replay_few_flushed.cuh"
#include "selective_state_update/replay_fold.cuh"
#include "selective_state_update/replay_products.cuh"

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

// The lane's part of B of the live tokens g, g + 8 and so on, for lane 4 g + q.
template <typename Traits>
struct LiveMatrices {
    static constexpr int kCount = Traits::kWindows / 8;

    TokenMatrix<Traits> B[kCount];

    __device__ __forceinline__ LiveMatrices(const ReplayFewOperands& p, const Ring<Traits>& ring,
                                            const RingCursor& cursor, int live) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const int token = 8 * i + lane_id() / 4;
            B[i].load(ring.B + cursor.row(p, token) * Traits::d_state(p.operands), token < live);
        }
    }
};

// B_j . C of live tokens, which heads of a group share. Lane 4 g + q has those of the tokens g, g + 8 and so on, for
// new token q.
template <typename Traits>
struct LiveProducts {
    static constexpr int kCount = LiveMatrices<Traits>::kCount;

    float own[kCount];

    // C: of the new token that the lane's group stands for.
    __device__ __forceinline__ LiveProducts(const LiveMatrices<Traits>& matrices, int live,
                                            const TokenMatrix<Traits>& C) {
#pragma unroll
        for (int i = 0; i < kCount; i += 2) {
            own[i] = own[i + 1] = 0.0f;
            if (8 * i >= live) continue;
            float sums[4];
            C.multiply(matrices.B[i], matrices.B[i + 1], sums);
            own[i] = sums[0];
            own[i + 1] = sums[2];
        }
    }
};

// The weights of live tokens in results, exp(s_j) * dt'_j * (B_j . C), of the same tokens.
template <typename Traits>
struct LiveWeights {
    float own[LiveProducts<Traits>::kCount];

    __device__ __forceinline__ LiveWeights(const LiveProducts<Traits>& products, const Weights& weights, int live) {
#pragma unroll
        for (int i = 0; i < LiveProducts<Traits>::kCount; ++i) {
            const int token = 8 * i + lane_id() / 4;
            const float weight = from_lane(weights.own, token);
            // What a token beyond the live ones has is whatever the memory held.
            own[i] = token < live ? weight * products.own[i] : 0.0f;
        }
    }

    // The weight of live token `begin + distance`, both of one eight of tokens, for the new token of lane q.
    __device__ __forceinline__ float of(int begin, int distance) const {
        return from_lane(own[begin / 8], (begin % 8 + distance) * 4 + lane_id() % 4);
    }
};

// x of live tokens in shared memory, of one head and of the next. Tokens that are not live are zeros.
template <typename Traits>
struct StagedTokens {
    using input_t = __nv_bfloat16;
    using TokenVec = Vec<input_t, 8>;
    static constexpr int kPasses = Traits::kWindows / 4;
    static constexpr int kRowVecs = Traits::kWarpRows / 8;  // of a token
    static constexpr int kVecs = 2 * Traits::kWindows * kRowVecs;

    TokenVec* staged;
    int places[kPasses];  // of what the lane copies in a head's ring; negative where a token is not live

    // The lane's tokens: every fourth, from q on.
    __device__ __forceinline__ static int token(int pass) { return 4 * pass + lane_id() % 4; }

    __device__ __forceinline__ StagedTokens(const ReplayFewOperands& p, const RingCursor& cursor, TokenVec* staged)
        : staged(staged) {
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
            places[i] = -1;
            if (token(i) < cursor.live) places[i] = cursor.row(p, token(i)) * p.operands.headdim + lane_id() / 4 * 8;
            if (places[i] >= 0) continue;
#pragma unroll
            for (int parity = 0; parity < 2; ++parity) {
                ::store(reinterpret_cast<input_t*>(place(parity, i, lane_id() % 4, lane_id() / 4)), TokenVec::zero());
            }
        }
    }

    // Where eight rows of token 4 * pass + q lie: those of the four tokens of a pass are read at once, and would meet
    // in the same banks.
    __device__ __forceinline__ TokenVec* place(int parity, int pass, int q, int number) const {
        return staged + ((parity * kPasses + pass) * 4 + q) * kRowVecs + (number + 2 * q) % kRowVecs;
    }

    // Starts to copy the tokens of a head, which is an even or an odd one; from: its warp's first row.
    __device__ __forceinline__ void start(const input_t* from, int parity) const {
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
            if (places[i] >= 0)
                copy_async<16, false, true>(place(parity, i, lane_id() % 4, lane_id() / 4), from + places[i]);
        }
    }

    // x of token 4 * pass + q in the two rows of the lane's group in a tile.
    __device__ __forceinline__ Vec<input_t, 2> read(int parity, int pass, int q, int tile) const {
        const TokenVec* const from = place(parity, pass, q, 2 * tile + lane_id() / 16);
        return ::load<2, Memory::kMutable>(reinterpret_cast<const input_t*>(from) + lane_id() / 4 % 4 * 2);
    }

    // The sums of weight * x over all live tokens, of the lane's own rows and token.
    __device__ __forceinline__ void sum(const LiveWeights<Traits>& weights, int live, int parity,
                                        float (&own)[Traits::kOwnRows]) const {
        float sums[8] = {};
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
            if (Traits::kHasMany && 4 * i >= live) break;
#pragma unroll
            for (int t = 0; t < (Traits::kHasMany ? 4 : 1); ++t) {
                const int q = Traits::kHasMany ? t : lane_id() % 4;
                const float weight = weights.of(4 * i, q);
#pragma unroll
                for (int m = 0; m < Traits::kTiles; ++m) {
                    const Vec<input_t, 2> x = read(parity, i, q, m);
#pragma unroll
                    for (int r = 0; r < 2; ++r) sums[2 * m + r] = fmaf(weight, x.to_float(r), sums[2 * m + r]);
                }
            }
        }
        // A lane has a part of the tokens of its own token's sums, or all of them.
        if constexpr (!Traits::kHasMany) sum_parts_over_lanes<4>(sums);
#pragma unroll
        for (int r = 0; r < Traits::kOwnRows; ++r) own[r] = sums[r];
    }

    // The lane's tokens times their weights in the two rows of a tile.
    __device__ __forceinline__ void multiply(const Weights& weights, int parity, int tile,
                                             unsigned (&inputs)[kFoldTerms][4]) const {
        float products[2][4];
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
            const Vec<input_t, 2> x = read(parity, i, lane_id() % 4, tile);
            const float weight = from_lane(weights.own, token(i));
#pragma unroll
            for (int r = 0; r < 2; ++r) products[r][i] = weight * x.to_float(r);
        }
        split_products<input_t>(products, inputs);
    }
};

// B of the live tokens as they are put in states: the lane's ones are those of StagedTokens.
template <typename Traits>
struct FoldTokens {
    using Live = StagedTokens<Traits>;

    TokenPairs<Traits> B[Traits::kChunks];

    __device__ __forceinline__ FoldTokens(const ReplayFewOperands& p, const RingCursor& cursor,
                                          const __nv_bfloat16* ring, int live) {
#pragma unroll
        for (int chunk = 0; chunk < Traits::kChunks; ++chunk) {
            PackedVec<__nv_bfloat16, Traits::kVecs / 2> parts[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                parts[i] = PackedVec<__nv_bfloat16, Traits::kVecs / 2>::zero();
                const int element = (chunk * 8 + lane_id() / 4) * (Traits::kVecs / 2);
                if (Live::token(i) < live) {
                    const int row = cursor.row(p, Live::token(i));
                    parts[i].template load<Memory::kMutable>(ring + row * Traits::kElements * 4 + element);
                }
            }
            B[chunk] = TokenPairs<Traits>(parts);
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

// The lane's own rows of one token, as they are in memory: two of one tile, or of each tile.
template <typename Traits>
struct OwnRows {
    using input_t = __nv_bfloat16;
    static constexpr int kPairs = Traits::kOwnRows / 2;

    Vec<input_t, 2> pairs[kPairs];

    // How far row i is behind the first one.
    __device__ __forceinline__ static int row(int i) { return i / 2 * Traits::kTile + i % 2; }

    __device__ __forceinline__ static OwnRows zero() {
        OwnRows rows;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) rows.pairs[i] = Vec<input_t, 2>::zero();
        return rows;
    }

    template <Memory kMemory>
    __device__ __forceinline__ void load(const input_t* from) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) pairs[i] = ::load<2, kMemory>(from + row(2 * i));
    }

    // Stores the rows of some tiles.
    __device__ __forceinline__ void store(input_t* to, const TileRange& tiles) const {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            if (!Traits::kDivides || tiles.has(lane_id() % 4)) ::store(to + row(2 * i), pairs[i]);
        }
    }

    __device__ __forceinline__ float to_float(int i) const { return pairs[i / 2].to_float(i % 2); }

    __device__ __forceinline__ void take(bool condition, const OwnRows& other) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) pairs[i] = select(condition, other.pairs[i], pairs[i]);
    }
};

// What the results of a head take besides its states and x of its live tokens, as it is in memory.
template <typename Traits>
struct HeadTokens {
    using input_t = __nv_bfloat16;
    using Own = OwnRows<Traits>;

    RowParameters<Traits> parameters;
    RawNumber<input_t> dt;  // of the lane's new token
    float live_step;        // dt' of the lane's live token
    Own x[Traits::kTokens];
    Own z;
    RawNumber<input_t> D[Traits::kOwnRows];
    float scale[2];  // of the rows of the lane's group in tile q

    // row: the lane's first own one; token: its own one; scales: of those rows.
    __device__ __forceinline__ void load(const ReplayFewOperands& p, const WarpRows& warp, int tokens, int row,
                                         int token, const float* scales) {
        const SelectiveStateUpdateSingleOperands& s = p.operands;
        const auto place = [&](const int* stride, int of_token, int of_row) {
            return warp.batch * stride[0] + of_token * stride[1] + warp.head * stride[2] + of_row;
        };
        if constexpr (Traits::kIsQuantised) {
            scale[0] = scales[0];
            scale[1] = scales[1];
        }
        parameters.load(s, warp);
        dt.load(s.dt, place(s.dt_stride, Traits::kHasMany ? min(lane_id(), tokens - 1) : 0, 0), s.dt_is_float32);
#pragma unroll
        for (int i = 0; i < Traits::kTokens; ++i) {
            x[i] = Own::zero();
            if (i < tokens) {
                // The call may write its outputs over x.
                x[i].template load<Memory::kMutable>(static_cast<const input_t*>(s.x) + place(s.x_stride, i, row));
            }
        }
        z = Own::zero();
        if (s.z != nullptr && token < tokens) {
            z.template load<Memory::kConstant>(static_cast<const input_t*>(s.z) + place(s.z_stride, token, row));
        }
        if (s.D != nullptr) {
#pragma unroll
            for (int r = 0; r < Traits::kOwnRows; ++r) {
                D[r].load(s.D, warp.head * s.D_stride[0] + (row + Own::row(r)) * s.D_stride[1], s.D_is_float32);
            }
        }
    }
};
