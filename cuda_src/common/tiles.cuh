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
    static constexpr int kTokens = 16;
    static constexpr int kOwn = kTokens / kParts;
    static constexpr int kTile = kLanes * kTokens;
    static constexpr int kChannels = kThreads / kGroup;  // of a block
    static constexpr int kStates = 16;                   // at most
    static constexpr int kVec = 16 / static_cast<int>(sizeof(T));
    static constexpr int kFours = kTokens / 4;
    static constexpr int kMinBlocks = kAtOnce > 1 ? 3 : 4;
    static constexpr int kColumns = kLanes + 2;  // with a gap that keeps fours in different banks
};

// A block's: B and C of the tile's tokens, in fours that neighbouring lanes read from neighbouring places; the rates A
// / log(2) and the states of its channels, with a gap that keeps channels in different banks.
template <typename Shape>
struct TileShared {
    using Matrix = float[Shape::kStates][Shape::kFours][Shape::kColumns][4];
    alignas(16) Matrix B;
    alignas(16) Matrix C;
    float rate[Shape::kChannels][Shape::kStates + 1];
    float state[Shape::kChannels][Shape::kStates + 1];
};

// One matrix of a tile's tokens on its way to shared memory, by all threads.
template <typename Shape>
struct TileMatrix {
    using T = typename Shape::input_t;
    static constexpr int kVec = Shape::kVec;
    static constexpr int kVectors = Shape::kTile / kVec;  // of a state
    static constexpr int kRows = Shape::kThreads / kVectors;
    static constexpr int kRounds = (Shape::kStates + kRows - 1) / kRows;
    static_assert(kRows * kVectors == Shape::kThreads, "all threads have as much to do");
    Vec<T, kVec> raw[kRounds];

    __device__ __forceinline__ static int first_row() { return static_cast<int>(threadIdx.x) / kVectors; }
    __device__ __forceinline__ static int first_token() { return static_cast<int>(threadIdx.x) % kVectors * kVec; }

    // The tokens from `tile` on; what is not among `begin` to `end` - 1 becomes zero.
    __device__ __forceinline__ void load(const T* from, index_t stride, int d_state, int tile, int begin, int end,
                                         bool is_edge) {
        const int token = tile + first_token();
        const T* at = from + first_row() * stride + token;
#pragma unroll
        for (int i = 0; i < kRounds; ++i) {
            if (first_row() + i * kRows < d_state) {
                raw[i] = is_edge ? load_part<kVec>(at, begin - token, end - token) : ::load<kVec>(at);
            }
            // Or else every round's address takes a register through the whole walk.
            at = opaque(at + kRows * stride);
        }
    }

    __device__ __forceinline__ void store(typename TileShared<Shape>::Matrix& to, int d_state) const {
#pragma unroll
        for (int i = 0; i < kRounds; ++i) {
            const int n = first_row() + i * kRows;
            if (n >= d_state) continue;
#pragma unroll
            for (int j = 0; j < kVec; j += 4) {
                const int four = (first_token() + j) / 4;
                const float values[4] = {raw[i].to_float(j), raw[i].to_float(j + 1), raw[i].to_float(j + 2),
                                         raw[i].to_float(j + 3)};
                ::store(to[n][four % Shape::kFours][four / Shape::kFours], Vec<float, 4>::from_floats(values));
            }
        }
    }
};
