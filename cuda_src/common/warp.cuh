// The only shuffles of the tree. Every lane of the warp takes part in each.
#pragma once

#include "common/vec.cuh"

static constexpr int kWarpSize = 32;
static constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_id() {
    return threadIdx.x % kWarpSize;
}

// The vector that the lane `distance` lanes below holds, from word kFirstWord on; earlier words are zero. The lowest
// lanes wrap around: they get what the highest hold in `wrapped`, so that a warp's pairs (wrapped, v) read as one row.
template <int kFirstWord, typename T, int kVec>
__device__ __forceinline__ Vec<T, kVec> shift_in(const Vec<T, kVec>& wrapped, const Vec<T, kVec>& v, int distance) {
    Vec<T, kVec> shifted = Vec<T, kVec>::zero();
#pragma unroll
    for (int i = kFirstWord; i < Vec<T, kVec>::kWords; ++i) {
        const unsigned offered = lane_id() >= kWarpSize - distance ? wrapped.words[i] : v.words[i];
        shifted.words[i] = __shfl_sync(kAllLanes, offered, (lane_id() - distance) & (kWarpSize - 1));
    }
    return shifted;
}
