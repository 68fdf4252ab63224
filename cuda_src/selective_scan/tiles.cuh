// Tiles of tokens that lanes share: how a block is divided, and what its threads have in shared memory.
#pragma once

#include "common/vec.cuh"

// kParts times kLanes lanes have a channel: each kTokens consecutive tokens of a tile, and of their states every
// kParts-th. What belongs to tokens alone each of the parts does for its share of them.
template <typename T, int kLanes_, int kParts_, int kAtOnce_>
struct TileShape {
    using input_t = T;
    static constexpr int kThreads = 128;
    static constexpr int kLanes = kLanes_;
    static constexpr int kParts = kParts_;
    static constexpr int kAtOnce = kAtOnce_;  // states that a lane has under way: what one waits for others hide
    static constexpr int kGroup = kLanes * kParts;
    static constexpr int kTokens = kAtOnce > 2 ? 8 : 16;
    static constexpr int kOwn = kTokens / kParts;
    static constexpr int kTile = kLanes * kTokens;
    static constexpr int kChannels = kThreads / kGroup;  // of a block
    static constexpr int kStates = 16;                   // at most
    static constexpr int kVec = 16 / static_cast<int>(sizeof(T));
    static constexpr int kVectors = kTokens / kVec;  // of a lane's tokens
    static constexpr int kMinBlocks = kAtOnce > 1 ? 3 : 4;
    // Of the matrices in shared memory: where there is room the next tile's are on their way there.
    static constexpr int kStages = kTile * sizeof(T) <= 512 ? 2 : 1;
};

// A block's: B and C of the tile's tokens, as they are in global memory but with vectors in an order in which those
// that neighbouring lanes read, and those that neighbouring threads write, are in different banks; the rates A / log(2)
// and the states of its channels, with a gap that keeps channels in different banks.
template <typename Shape>
struct TileShared {
    using T = typename Shape::input_t;
    using Matrix = T[Shape::kStates][Shape::kVectors][Shape::kLanes][Shape::kVec];
    alignas(16) Matrix B[Shape::kStages];
    alignas(16) Matrix C[Shape::kStages];
    float rate[Shape::kChannels][Shape::kStates + 1];
    float state[Shape::kChannels][Shape::kStates + 1];

    // Where the i-th vector of a lane's tokens is.
    __device__ __forceinline__ static unsigned column(unsigned i, unsigned lane) {
        return lane ^ i * (8 / Shape::kVectors) % Shape::kLanes;
    }
};

// A thread's part in bringing one matrix of a tile's tokens to shared memory, which all threads do.
template <typename Shape>
struct MatrixCopy {
    using T = typename Shape::input_t;
    using Matrix = typename TileShared<Shape>::Matrix;
    static constexpr int kVec = Shape::kVec;
    static constexpr unsigned kRowVectors = Shape::kTile / kVec;
    static constexpr unsigned kRows = Shape::kThreads / kRowVectors;  // at a time
    static constexpr unsigned kRounds = (Shape::kStates + kRows - 1) / kRows;
    static_assert(kRows * kRowVectors == Shape::kThreads, "all threads have as much to do");

    const T* at;  // of its first row, in the tile at token 0

    // Opaque, or else it is computed again for every tile.
    __device__ __forceinline__ MatrixCopy(const T* matrix, index_t stride)
        : at(opaque(matrix + first_row() * stride + number() * kVec)) {}

    // All tokens of the tile, asynchronously.
    __device__ __forceinline__ void copy(Matrix& to, index_t stride, unsigned d_state, int tile) const {
        each_row(to, stride, d_state, tile, [](T* place, const T* from) { copy_async(place, from); });
    }

    // Those among `begin` to `end` - 1; the others become zero.
    __device__ __forceinline__ void copy_part(Matrix& to, index_t stride, unsigned d_state, int tile, int begin,
                                              int end) const {
        const int token = tile + static_cast<int>(number()) * kVec;
        each_row(to, stride, d_state, tile,
                 [=](T* place, const T* from) { store(place, load_part<kVec>(from, begin - token, end - token)); });
    }

 private:
    __device__ __forceinline__ static unsigned first_row() { return threadIdx.x / kRowVectors; }
    // Of its vector in a row.
    __device__ __forceinline__ static unsigned number() { return threadIdx.x % kRowVectors; }

    template <typename Copy>
    __device__ __forceinline__ void each_row(Matrix& to, index_t stride, unsigned d_state, int tile, Copy copy) const {
        const unsigned lane = number() / Shape::kVectors, i = number() % Shape::kVectors;
        const T* from = at + tile;
#pragma unroll
        for (unsigned round = 0; round < kRounds; ++round) {
            const unsigned n = first_row() + round * kRows;
            if (n < d_state) copy(to[n][i][TileShared<Shape>::column(i, lane)], from);
            // Or else every round's address takes a register through the whole walk.
            from = opaque(from + kRows * stride);
        }
    }
};
