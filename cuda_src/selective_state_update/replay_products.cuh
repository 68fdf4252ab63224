// B . C of the tokens of a step with rings: of the live ones and of the new ones, each with C of the new ones.
#pragma once

#include "common/mma.cuh"
#include "selective_state_update/replay_tiles.cuh"

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

// Does what multiply_all does, by tensor cores.
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
