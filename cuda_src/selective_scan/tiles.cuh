// What the threads of a block that share the tokens of a tile have in shared memory.
#pragma once

#include "selective_scan/tile_rows.cuh"

struct NoTileRows {};

// The states of the channels of a block, with a gap that keeps channels in different banks.
template <typename Shape>
using TileStates = float[Shape::kChannels][Shape::kMost + 1];

template <typename Shape>
using TakenStates = float[Shape::kTaken * Shape::kChannels][Shape::kMost + 1];

struct NoTileStates {};

// What sweeps have in shared memory besides: B and C of a tile and the next as floats, four tokens at a time
// in an order in which those that threads write at once are in different banks; and dt and dt * u of each warp's
// channels in a sweep.
template <typename Shape>
struct SweepShared {
    static constexpr int kHalves = Shape::kByChannel ? 1 : Shape::kVec / 4;
    static constexpr int kPitch = Shape::kTile + 4;
    static constexpr int kStepPitch = Shape::kSweep + 4;
    static constexpr int kWarpChannels = 32 / Shape::kParts;
    using Steps = float[kWarpChannels][kStepPitch];
    alignas(16) float matrices[2][2][Shape::kStates][kPitch];  // by stage, B and C
    alignas(16) Steps steps[Shape::kThreads / 32][2];          // by warp, dt and dt * u

    // The place in a row of the four tokens from token `t` on.
    __device__ __forceinline__ static constexpr int place(int t) {
        return t / 4 % kHalves * (Shape::kTile / kHalves) + t / (4 * kHalves) * 4;
    }
};

struct NoSweepShared {};

// The shared memory of a block: B and C of the tile's tokens, where kByState as MatrixByState has them, else each
// state's in the order of its tokens but with vectors in an order in which those that neighbouring lanes read, and
// those that neighbouring threads write, are in different banks; the decay rates A / log(2), as states, the states of
// its channels and those taken; and, where channels are contiguous, u, delta and z.
template <typename Shape>
struct TileShared {
    using ByToken = typename Shape::input_t[Shape::kStates][Shape::kVectors][Shape::kLanes][Shape::kVec];
    using ByState = typename Shape::input_t[Shape::kTile * Shape::kStates];
    using Matrix = Select<Shape::kByState, ByState, ByToken>;
    alignas(16) Matrix B[Shape::kStages];
    alignas(16) Matrix C[Shape::kStages];
    TileStates<Shape> rate;
    TileStates<Shape> state;
    Select<Shape::kTakes, TakenStates<Shape>, NoTileStates> taken;
    Select<Shape::kByChannel, TileRows<Shape>, NoTileRows> rows;
    Select<Shape::kSweeps, SweepShared<Shape>, NoSweepShared> sweep;

    // The column of the i-th vector of a lane's tokens.
    __device__ __forceinline__ static unsigned column(unsigned i, unsigned lane) {
        return lane ^ i * (8 / Shape::kVectors) % Shape::kLanes;
    }
};
