// Live tokens of a step with rings that are put in the states of a tile.
#pragma once

#include "common/mma.cuh"
#include "selective_state_update/replay_tiles.cuh"

// Two elements of 16 bits as a pair.
template <typename T, int kCount>
__device__ __forceinline__ unsigned pair_of(const PackedVec<T, kCount>& low, const PackedVec<T, kCount>& high, int i) {
    const unsigned half = i % 2 == 0 ? 0x5410u : 0x7632u;
    return __byte_perm(low.word(i / 2), high.word(i / 2), half);
}

// Weights times x are rounded to bfloat16 this many times, each time what the last rounding has left: float32 has the
// bits of three.
inline constexpr int kFoldTerms = 3;

// The products of two rows with four tokens as tensor cores take them.
template <typename input_t>
__device__ __forceinline__ void split_products(float (&products)[2][4], unsigned (&inputs)[kFoldTerms][4]) {
#pragma unroll
    for (int term = 0; term < kFoldTerms; ++term) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float* pair = products[i % 2] + i / 2 * 2;
            const unsigned word = Dtype<input_t>::pack(pair);
            inputs[term][i] = word;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float rounded = Dtype<input_t>::unpack(word, half);
                // Nothing is left of an infinity, and NaN is enough once.
                pair[half] = fabsf(rounded) <= 3.402823466e38f ? pair[half] - rounded : 0.0f;
            }
        }
    }
}

// B of the lane's four tokens in the elements of a vector that the lane's group stands for, as tensor cores take them.
template <typename Traits>
struct TokenPairs {
    static constexpr int kHalf = Traits::kVecs / 2;

    unsigned pairs[kHalf][2];

    __device__ __forceinline__ TokenPairs() = default;
    __device__ __forceinline__ explicit TokenPairs(const PackedVec<typename Traits::Input, kHalf> (&B)[4]) {
#pragma unroll
        for (int e = 0; e < kHalf; ++e) {
            pairs[e][0] = pair_of(B[0], B[1], e);
            pairs[e][1] = pair_of(B[2], B[3], e);
        }
    }
};

// Adds the lanes' tokens, four each, to one vector of each of the lane's two rows.
template <typename Traits>
__device__ __forceinline__ void add_products(const unsigned (&inputs)[kFoldTerms][4], const TokenPairs<Traits>& B,
                                             float (&state)[2][Traits::kVecs]) {
    constexpr int kHalf = Traits::kVecs / 2;
#pragma unroll
    for (int e = 0; e < kHalf; ++e) {
        float sums[4] = {state[0][e], state[0][e + kHalf], state[1][e], state[1][e + kHalf]};
#pragma unroll
        for (int term = kFoldTerms - 1; term >= 0; --term) {
            multiply_add<typename Traits::Input>(sums, inputs[term], B.pairs[e]);
        }
        state[0][e] = sums[0];
        state[0][e + kHalf] = sums[1];
        state[1][e] = sums[2];
        state[1][e + kHalf] = sums[3];
    }
}

// Live tokens as tensor cores take them, 16 in a block: the lane's weights times x, and where B of its tokens is, in
// the ring. Lane q of a group has the tokens 4 q to 4 q + 3 of a block.
template <typename Traits>
struct FoldInputs {
    using input_t = typename Traits::Input;
    static constexpr int kBlocks = Traits::kWindows / 16;
    static constexpr int kHalf = Traits::kVecs / 2;

    unsigned inputs[kBlocks][kFoldTerms][4];
    int places[kBlocks][4];

    __device__ __forceinline__ static int token(int block, int i) {
        return block * 16 + lane_id() % Traits::kLanes * 4 + i;
    }

    __device__ __forceinline__ FoldInputs(const ReplayOperands& p, const WarpRows& warp, const Ring<Traits>& ring,
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
                    const int own = min(Traits::row(warp, r), p.operands.headdim - 1);
                    products[r][i] = 0.0f;
                    if (token(block, i) < live) {
                        products[r][i] = weight * ::load<1, Memory::kMutable>(ring.x_at(p, row, own)).to_float(0);
                    }
                }
            }
            split_products<input_t>(products, inputs[block]);
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
            add_products<Traits>(inputs[block], TokenPairs<Traits>(B), state);
        }
    }
};

// Puts live tokens in the states of a tile, and these in memory. left: what remains of each row's states, or codes;
// add: adds the tokens to the lane's vectors of a chunk. Lane r of a group has the factor of row r afterwards.
template <typename Traits, typename Add>
__device__ __forceinline__ void fold_two_rows(const typename Traits::Operands& p, const WarpRows& warp,
                                              const StateRows<Traits>& rows,
                                              const typename Traits::StateVec (&raw)[2][Traits::kChunks],
                                              const float (&left)[2], RowFactors<Traits>& factors, Add add) {
    float all[Traits::kIsQuantised ? 2 : 1][Traits::kElements];
#pragma unroll
    for (int chunk = 0; chunk < Traits::kChunks; ++chunk) {
        float state[2][Traits::kVecs];
#pragma unroll
        for (int i = 0; i < 2 * Traits::kVecs; ++i) {
            const int r = i / Traits::kVecs, e = i % Traits::kVecs;
            state[r][e] = raw[r][chunk].to_float(e) * left[r];
        }
        add(chunk, state);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if constexpr (Traits::kIsQuantised) {
#pragma unroll
                for (int e = 0; e < Traits::kVecs; ++e) all[r][chunk * Traits::kVecs + e] = state[r][e];
            } else {
                const int row = Traits::row(warp, r), element = Traits::element(chunk);
                const auto v = round_states<Traits>(p, warp, row, element, 0, state[r], 1.0f);
                if (row < p.headdim && element < Traits::d_state(p)) { ::store<Traits::kKeep>(rows.at(r, chunk), v); }
            }
        }
    }
    if constexpr (Traits::kIsQuantised) {
#pragma unroll
        for (int r = 0; r < 2; ++r) { store_row<Traits>(p, warp, rows, r, 0, all[r], factors.find(r, all[r])); }
    }
}

// Puts the live tokens in the states of a tile, and these in memory, by tensor cores.
template <typename Traits>
__device__ __forceinline__ void fold_tile_tensor(const ReplayOperands& p, const TileCursor<Traits>& at,
                                                 const RingCursor& cursor, const SequenceStep& step,
                                                 const Weights& weights, const TileInputs<Traits>& tile) {
    float left[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        left[r] = weights.state;
        if constexpr (Traits::kIsQuantised) left[r] *= Traits::of_row(tile.scale, r);
    }
    RowFactors<Traits> factors;
    const FoldInputs<Traits> inputs(p, at.warp, at.ring, cursor, weights, step.live);
    fold_two_rows<Traits>(
        p.operands, at.warp, at.rows, tile.raw, left, factors,
        [&](int chunk, float (&state)[2][Traits::kVecs]) { inputs.add(p, at.ring, step.live, chunk, state); });
    factors.store_scale(p.operands, at.warp, scale_of_slot<Traits>(p, at.warp, step.slot));
}

// Puts the live tokens in the states of a tile, and these in memory, without tensor cores.
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
