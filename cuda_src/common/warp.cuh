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

// The lanes of the warp for which a condition holds, a bit each.
__device__ __forceinline__ unsigned lanes_where(bool holds) {
    return __ballot_sync(kAllLanes, holds);
}

// What a lane holds; behind the last lane follows the first.
__device__ __forceinline__ int from_lane(int value, int lane) {
    return __shfl_sync(kAllLanes, value, lane & (kWarpSize - 1));
}

// The sum over each group of `lanes` consecutive lanes, a power of two, in every one of them.
__device__ __forceinline__ float sum_over_lanes(float value, int lanes) {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
        if (distance < lanes) value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
}
