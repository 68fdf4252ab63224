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

// The number that all lanes have, where the compiler knows that it is the same: what follows from it is computed once
// for all, and control flow that depends on it is the warp's.
template <typename Int>
__device__ __forceinline__ Int uniform(Int number) {
    if constexpr (kArch >= 80) {
        return __reduce_max_sync(kAllLanes, number);
    } else {
        return number;
    }
}

// What a lane holds; behind the last lane follows the first.
__device__ __forceinline__ int from_lane(int value, int lane) {
    return __shfl_sync(kAllLanes, value, lane & (kWarpSize - 1));
}

__device__ __forceinline__ float from_lane(float value, int lane) {
    return __shfl_sync(kAllLanes, value, lane & (kWarpSize - 1));
}

// The sums of kRows values over each group of kLanes consecutive lanes, both powers of two: a lane gets that of the
// value whose number is its own modulo kRows. With every step a lane has half as many values left to add.
template <int kRows, int kLanes>
__device__ __forceinline__ float sum_rows_over_lanes(float (&values)[kRows]) {
    static_assert(kRows <= kLanes && kLanes <= kWarpSize, "every lane is left with one value");
#pragma unroll
    for (int distance = 1; distance < kRows; distance *= 2) {
        const bool is_upper = (lane_id() & distance) != 0;
#pragma unroll
        for (int i = 0; i < kRows / (2 * distance); ++i) {
            const float kept = is_upper ? values[2 * i + 1] : values[2 * i];
            const float sent = is_upper ? values[2 * i] : values[2 * i + 1];
            values[i] = kept + __shfl_xor_sync(kAllLanes, sent, distance);
        }
    }
    float sum = values[0];
#pragma unroll
    for (int distance = kRows; distance < kLanes; distance *= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    return sum;
}

// What the lane of a number holds, of each group of kLanes consecutive lanes.
template <int kLanes>
__device__ __forceinline__ float from_group_lane(float value, int lane) {
    return kLanes == 1 ? value : __shfl_sync(kAllLanes, value, lane, kLanes);
}

// One step of sum_parts_over_lanes, and those of half the distance, a quarter and so on. Loops whose ends depend on an
// outer one are not unrolled, and their arrays are in memory.
template <int kDistance, int kStep, int kHalf, int kCount>
__device__ __forceinline__ void halve_over_lanes(float (&values)[kCount]) {
    if constexpr (kDistance > 0) {
        const bool is_upper = (lane_id() & kDistance * kStep) != 0;
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
            const float kept = is_upper ? values[i + kHalf] : values[i];
            const float sent = is_upper ? values[i] : values[i + kHalf];
            values[i] = kept + __shfl_xor_sync(kAllLanes, sent, kDistance * kStep);
        }
        halve_over_lanes<kDistance / 2, kStep, kHalf / 2>(values);
    }
}

// Sums of kCount values over each group of kLanes lanes, powers of two, that are kStep lanes apart. A lane is left with
// kCount / kLanes of them, or one, in front: the values follow each other as the lanes do, whose numbers count modulo
// kCount.
template <int kLanes, int kStep = 1, int kCount>
__device__ __forceinline__ void sum_parts_over_lanes(float (&values)[kCount]) {
    constexpr int kParts = kLanes < kCount ? kLanes : kCount;
    halve_over_lanes<kParts / 2, kStep, kCount / 2>(values);
#pragma unroll
    for (int distance = kParts; distance < kLanes; distance *= 2) {
#pragma unroll
        for (int i = 0; i < kCount / kParts; ++i) values[i] += __shfl_xor_sync(kAllLanes, values[i], distance * kStep);
    }
}

// The kParts * kOwn values of which each of kParts lanes, kStep apart, has kOwn: they follow each other as the lanes
// do.
template <int kParts, int kStep, int kOwn, int kCount>
__device__ __forceinline__ void share_parts_over_lanes(const float (&own)[kOwn], float (&all)[kCount]) {
    static_assert(kParts <= 2 && kParts * kOwn == kCount);
    const bool is_upper = kParts > 1 && (lane_id() & kStep) != 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const float other = kParts > 1 ? __shfl_xor_sync(kAllLanes, own[i], kStep) : own[i];
        all[i] = is_upper ? other : own[i];
        all[kCount - kOwn + i] = is_upper ? own[i] : other;
    }
}

// The sum over each group of `lanes` consecutive lanes, a power of two, in every one of them.
__device__ __forceinline__ float sum_over_lanes(float value, int lanes) {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
        if (distance < lanes) value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
}

// Recurrences end = begin * whole + end, kCount of them, over each group of kLanes consecutive lanes, of which the
// first begins with `before`: a lane gets what it begins with, and what it ends with in `end`, which held what it adds
// by itself. `whole` is lost.
template <int kLanes, int kCount>
__device__ __forceinline__ void scan_over_lanes(float (&whole)[kCount], const float (&before)[kCount],
                                                float (&end)[kCount], float (&begin)[kCount]) {
    const bool is_first = lane_id() % kLanes == 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        if (is_first) {
            end[i] = fmaf(whole[i], before[i], end[i]);
            // From then on nothing comes before it: whoever has counted the first lane in multiplies by zero, too, and
            // so needs no condition.
            whole[i] = 0.0f;
        }
    }
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const float lower_end = __shfl_up_sync(kAllLanes, end[i], distance, kLanes);
            const float lower_whole = __shfl_up_sync(kAllLanes, whole[i], distance, kLanes);
            end[i] = fmaf(whole[i], lower_end, end[i]);
            whole[i] *= lower_whole;
        }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        const float lower_end = __shfl_up_sync(kAllLanes, end[i], 1, kLanes);
        begin[i] = is_first ? before[i] : lower_end;
    }
}
