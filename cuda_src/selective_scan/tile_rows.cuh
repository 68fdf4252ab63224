// How u, delta, z and the results of a tile pass through shared memory where channels are contiguous.
#pragma once

#include "selective_scan/tile_shape.cuh"

// u, delta and z of a tile's tokens in the channels of a block, as they are in global memory. A gap behind the tokens
// that a lane reads at a time keeps them in different banks.
template <typename Shape>
struct TileRows {
    using T = typename Shape::input_t;
    static constexpr int kVec = Shape::kChannels < Shape::kVec ? Shape::kChannels : Shape::kVec;  // channels per access
    static constexpr int kU = 0;
    static constexpr int kDelta = 1;
    static constexpr int kZ = 2;                                                // and in its place the results
    static constexpr int kGap = Shape::kSweeps ? Shape::kOwn : Shape::kTokens;  // tokens between gaps
    // Two stages of as many states as channels may have, and of rows, would not fit.
    static constexpr int kStages = Shape::kSweeps ? 2 : Shape::kIsWide ? 1 : Shape::kStages;
    static constexpr int kVectors = Shape::kChannels / kVec;  // per token
    static constexpr int kRounds = (Shape::kTile * kVectors + Shape::kThreads - 1) / Shape::kThreads;
    static constexpr int kRoundTokens = Shape::kThreads / kVectors;
    using Tile = T[Shape::kTile * Shape::kChannels + Shape::kTile / kGap * kVec];
    alignas(16) Tile elements[kStages][3];

    __device__ __forceinline__ static int index(int token, int channel) {
        return token * Shape::kChannels + token / kGap * kVec + channel;
    }

    // The first channel in the block, and the token in the tile, of a thread's first vector.
    __device__ __forceinline__ static int channel() { return static_cast<int>(threadIdx.x) % kVectors * kVec; }
    __device__ __forceinline__ static int token() { return static_cast<int>(threadIdx.x) / kVectors; }

    // Starts to copy the tokens of a tile before `end`, and this thread's channels if there are such: where kIsWhole
    // all exist. The others become zero. `from` is this thread's first vector, and `step` elements are a token.
    template <bool kIsWhole>
    __device__ __forceinline__ void copy(int stage, int row, const T* from, index_t step, int tile, int end,
                                         bool has_channel) {
        each<kIsWhole>(elements[stage][row], from, step, tile, end, has_channel,
                       [](T* place, const T* at, bool exists) {
                           if (exists) {
                               copy_async<kVec* int{sizeof(T)}>(place, at);
                           } else {
                               ::store(place, Vec<T, kVec>::zero());
                           }
                       });
    }

    // Starts to copy all of a tile where a condition holds.
    __device__ __forceinline__ void copy_if(bool condition, int stage, int row, const T* from, index_t step, int tile) {
        each<true>(elements[stage][row], from, step, tile, tile, true,
                   [=](T* place, const T* at, bool) { copy_async_if<kVec* int{sizeof(T)}>(condition, place, at); });
    }

    // Stores the results of those tokens.
    template <bool kIsWhole>
    __device__ __forceinline__ void store(int stage, T* to, index_t step, int tile, int end, bool has_channel) {
        each<kIsWhole>(elements[stage][kZ], to, step, tile, end, has_channel, [](T* place, T* at, bool exists) {
            if (exists) ::store(at, load<kVec, Memory::kMutable>(place));
        });
    }

 private:
    // Visits this thread's vectors: calls body(place in shared memory, address, whether it exists).
    template <bool kIsWhole, typename Pointer, typename Body>
    __device__ __forceinline__ static void each(Tile& to, Pointer at, index_t step, int tile, int end, bool has_channel,
                                                Body body) {
        at += tile * step;
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int number = token() + round * kRoundTokens;
            if (Shape::kTile * kVectors < Shape::kThreads && number >= Shape::kTile) continue;
            body(to + index(number, channel()), at, kIsWhole || (has_channel && tile + number < end));
            at += kRoundTokens * step;
        }
    }
};
