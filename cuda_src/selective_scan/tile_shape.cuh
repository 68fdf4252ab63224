// How a block shares out the tokens of a tile among its lanes.
#pragma once

#include "common/vec.cuh"

// kParts times kLanes lanes own a channel: each lane kTokens consecutive tokens of a tile, and one of kParts
// interleaved partitions of the states. Work that does not depend on the state is shared out among the partitions. With
// one lane and several partitions each lane walks all tokens (selective_scan/scan_sweeps.cuh).
// kByChannel: channels are contiguous in global memory, and states in B and C, not tokens. kTakes: states inside a tile
// can be taken, behind one token of a lane at most and behind kTaken in all. kMost: states per channel at most. With
// more than kStates, which kIsWide says, a tile's B and C are in shared memory for kStates of them at a time.
// kHasPhases: rows of contiguous tokens have phases (selective_scan/tile_block.cuh). kKeepsEvery: the tokens from one
// state that is kept to the next one, inside of tiles; 0 where none is kept so.
template <int kThreads_, typename T, int kLanes_, int kParts_, int kAtOnce_, int kTokens_, bool kByChannel_,
          bool kTakes_, int kMost_ = 16, bool kHasPhases_ = false, int kKeepsEvery_ = 0>
struct TileShape {
    using input_t = T;
    static constexpr bool kByChannel = kByChannel_;
    static constexpr bool kTakes = kTakes_;
    static constexpr int kThreads = kThreads_;
    static constexpr int kLanes = kLanes_;
    static constexpr int kParts = kParts_;
    static constexpr int kAtOnce = kAtOnce_;  // states that a lane computes interleaved, to hide latency
    static constexpr int kGroup = kLanes * kParts;
    static constexpr bool kSweeps = kLanes == 1 && kParts > 1;
    // Whether B and C are in shared memory as they are in global memory, a token's states contiguous: a lane loads
    // those of a token that it computes at a time. Of one state a lane loads several tokens.
    static constexpr bool kByState = kByChannel && kAtOnce > 1 && !kSweeps;
    // From one state that a lane computes to the next one at the same time.
    static constexpr int kStateStep = kByState ? 1 : kParts;
    // Rows of more tokens of a sweep's channels would not fit in shared memory.
    static constexpr int kTokens = kSweeps && kByChannel ? 16 / int{sizeof(T)} * kParts : kTokens_;
    // Tokens per sweep, of which a lane itself loads, prepares and finishes kOwn.
    static constexpr int kSweep = kParts == 2 && !(kByChannel && sizeof(T) == 4) ? 16 : 4 * kParts;
    static constexpr int kOwn = (kSweeps ? kSweep : kTokens) / kParts;
    static constexpr int kTile = kLanes * kTokens;
    static constexpr int kChannels = kThreads / kGroup;  // per block
    static constexpr int kStates = 16;
    static constexpr int kMost = kMost_;
    static constexpr bool kIsWide = kMost > kStates;
    static constexpr bool kHasPhases = kHasPhases_;
    static constexpr int kKeepsEvery = kKeepsEvery_;
    static_assert(kHasPhases ? !kByChannel : kKeepsEvery == 0);
    // Shared memory has room for one alone where there are more states and two stages of B and C.
    static constexpr int kTaken = kTile > 64 && (kMost <= 128 || kByChannel) ? kTile / 64 : 1;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(T));
    static constexpr int kAlign = kByChannel ? 1 : kVec;  // a tile begins with a multiple of this many tokens
    static constexpr int kVectors = kTokens / kVec;       // per lane of a tile
    // Stages of what is in shared memory for a tile: with two, the next tile's is copied while this tile's is used.
    static constexpr bool kHasRoom = kByChannel ? sizeof(T) == 2 && !(kIsWide && kTakes) : kTile * sizeof(T) <= 512;
    static constexpr int kStages = kHasRoom && !kSweeps ? 2 : 1;

    // The number of this thread's part, and of its channel in the block. In sweeps the lowest bit and the highest ones
    // of a lane's number in the warp say its part: a vector per lane then takes half the accesses to shared memory, if
    // each lane reads the same as a neighbour.
    __device__ __forceinline__ static int part() {
        const unsigned thread = threadIdx.x;
        if (!kSweeps) return static_cast<int>(thread) / kLanes % kParts;
        return static_cast<int>(thread % 2 + thread % 32 / (64 / kParts) * 2);
    }
    __device__ __forceinline__ static int channel() {
        const unsigned thread = threadIdx.x;
        if (!kSweeps) return static_cast<int>(thread) / kGroup;
        return static_cast<int>(thread / 32 * (32 / kParts) + thread / 2 % (32 / kParts));
    }
};
