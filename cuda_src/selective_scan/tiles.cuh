// Tiles of tokens that lanes share: how a block is divided, and what its threads have in shared memory.
#pragma once

#include "common/vec.cuh"

// kParts times kLanes lanes own a channel: each lane kTokens consecutive tokens of a tile, and one of kParts
// interleaved partitions of the states. Work that does not depend on the state is shared out among the partitions.
template <int kThreads_, typename T, int kLanes_, int kParts_, int kAtOnce_, int kTokens_>
struct TileShape {
    using input_t = T;
    static constexpr int kThreads = kThreads_;
    static constexpr int kLanes = kLanes_;
    static constexpr int kParts = kParts_;
    static constexpr int kAtOnce = kAtOnce_;  // states that a lane computes interleaved, to hide latency
    static constexpr int kGroup = kLanes * kParts;
    static constexpr int kTokens = kTokens_;
    static constexpr int kOwn = kTokens / kParts;
    static constexpr int kTile = kLanes * kTokens;
    static constexpr int kChannels = kThreads / kGroup;  // per block
    static constexpr int kStates = 16;                   // per channel at most
    static constexpr int kVec = 16 / static_cast<int>(sizeof(T));
    static constexpr int kVectors = kTokens / kVec;  // per lane of a tile
    // Stages of the matrices in shared memory: with two, the next tile's are copied while this tile's are used.
    static constexpr int kStages = kTile * sizeof(T) <= 512 ? 2 : 1;
};

// The shared memory of a block: B and C of the tile's tokens, as they are in global memory but with vectors in an order
// in which those that neighbouring lanes read, and those that neighbouring threads write, are in different banks; the
// decay rates A / log(2) and the states of its channels, with a gap that keeps channels in different banks.
template <typename Shape>
struct TileShared {
    using T = typename Shape::input_t;
    using Matrix = T[Shape::kStates][Shape::kVectors][Shape::kLanes][Shape::kVec];
    alignas(16) Matrix B[Shape::kStages];
    alignas(16) Matrix C[Shape::kStages];
    float rate[Shape::kChannels][Shape::kStates + 1];
    float state[Shape::kChannels][Shape::kStates + 1];

    // The column of the i-th vector of a lane's tokens.
    __device__ __forceinline__ static unsigned column(unsigned i, unsigned lane) {
        return lane ^ i * (8 / Shape::kVectors) % Shape::kLanes;
    }
};

// Copies one matrix of a tile's tokens to shared memory, together with all other threads of the block.
template <typename Shape>
struct MatrixCopy {
    using T = typename Shape::input_t;
    using Matrix = typename TileShared<Shape>::Matrix;
    static constexpr int kVec = Shape::kVec;
    static constexpr unsigned kRowVectors = Shape::kTile / kVec;
    static constexpr unsigned kRows = Shape::kThreads / kRowVectors;  // copied at a time
    static constexpr unsigned kRounds = (Shape::kStates + kRows - 1) / kRows;
    static_assert(kRows * kRowVectors == Shape::kThreads, "all threads have as much to do");

    const T* at;  // the thread's vector of its first row, in the tile at token 0

    // Opaque, or else the address is computed again for every tile.
    __device__ __forceinline__ MatrixCopy(const T* matrix, index_t stride)
        : at(opaque(matrix + first_row() * stride + number() * kVec)) {}

    // All tokens of the tile, asynchronously.
    __device__ __forceinline__ void copy(Matrix& to, index_t stride, unsigned d_state, int tile) const {
        each_row(to, stride, d_state, tile, [](T* place, const T* from) { copy_async(place, from); });
    }

    // The tokens `begin` to `end` - 1 of the tile; the others become zero.
    __device__ __forceinline__ void copy_part(Matrix& to, index_t stride, unsigned d_state, int tile, int begin,
                                              int end) const {
        const int token = tile + static_cast<int>(number()) * kVec;
        each_row(to, stride, d_state, tile,
                 [=](T* place, const T* from) { store(place, load_part<kVec>(from, begin - token, end - token)); });
    }

 private:
    __device__ __forceinline__ static unsigned first_row() { return threadIdx.x / kRowVectors; }
    // The number of the thread's vector in a row.
    __device__ __forceinline__ static unsigned number() { return threadIdx.x % kRowVectors; }

    template <typename Copy>
    __device__ __forceinline__ void each_row(Matrix& to, index_t stride, unsigned d_state, int tile, Copy copy) const {
        const unsigned lane = number() / Shape::kVectors, i = number() % Shape::kVectors;
        const T* from = at + tile;
#pragma unroll
        for (unsigned round = 0; round < kRounds; ++round) {
            const unsigned n = first_row() + round * kRows;
            if (n < d_state) copy(to[n][i][TileShared<Shape>::column(i, lane)], from);
            // Opaque, or else every round's address takes a register through the whole walk.
            from = opaque(from + kRows * stride);
        }
    }
};
