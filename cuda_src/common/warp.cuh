// The only shuffles of the tree. Every lane of the warp takes part in each.
#pragma once

#include "common/vec.cuh"

static constexpr int kWarpSize = 32;
static constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_id() {
    return threadIdx.x % kWarpSize;
}

// The vector `v` of the lane `distance` lanes below, from word kFirstWord on; earlier words are zero. The lowest lanes
// wrap around and get `wrapped` of the highest ones, so that a warp's pairs (wrapped, v) read as one row.
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

// The vector that begins kDistance elements behind the beginning of `v`, and ends in what is next.
template <int kDistance, typename T, int kVec, typename Next>
__device__ __forceinline__ Vec<T, kVec> joined(const Vec<T, kVec>& v, Next next_word) {
    constexpr int kWords = Vec<T, kVec>::kWords;
    constexpr int kFirst = kDistance / Vec<T, kVec>::kPerWord;
    constexpr bool kIsInside = kDistance % Vec<T, kVec>::kPerWord != 0;
    unsigned words[2 * kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = v.words[i];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[kWords + i] = i < kFirst + kIsInside ? next_word(i) : 0;
    Vec<T, kVec> shifted;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
        shifted.words[i] = words[kFirst + i];
        if (kIsInside) shifted.words[i] = __byte_perm(words[kFirst + i], words[kFirst + i + 1], 0x5432u);
    }
    return shifted;
}

// The vector that begins kDistance elements behind the beginning of a lane's, and ends in that of the lane above. What
// ends in none is undefined.
template <int kDistance, typename T, int kVec>
__device__ __forceinline__ Vec<T, kVec> shift_out(const Vec<T, kVec>& v) {
    return joined<kDistance>(v, [&](int i) { return __shfl_down_sync(kAllLanes, v.words[i], 1); });
}

// The same, where the highest lane's ends in the lowest lane's `after`: a warp's pairs (v, after) read as one row.
template <int kDistance, typename T, int kVec>
__device__ __forceinline__ Vec<T, kVec> shift_out(const Vec<T, kVec>& v, const Vec<T, kVec>& after) {
    return joined<kDistance>(v, [&](int i) {
        const unsigned offered = lane_id() == 0 ? after.words[i] : v.words[i];
        return __shfl_sync(kAllLanes, offered, (lane_id() + 1) & (kWarpSize - 1));
    });
}

// The number of the lane kDistance above; of the highest lanes it is their own.
template <int kDistance>
__device__ __forceinline__ float of_lane_above(float number) {
    return __shfl_down_sync(kAllLanes, number, kDistance);
}

// Waits for all lanes of the warp: what they have written to shared memory before, each of them sees afterwards.
__device__ __forceinline__ void sync_warp() {
    __syncwarp();
}

// The lanes of the warp where a condition holds, as a bit per lane.
__device__ __forceinline__ unsigned lanes_where(bool holds) {
    return __ballot_sync(kAllLanes, holds);
}

// The number of the lowest bit that is set.
__device__ __forceinline__ int lowest(unsigned bits) {
    return __ffs(static_cast<int>(bits)) - 1;
}

// The number of the highest bit that is set.
__device__ __forceinline__ int highest(unsigned bits) {
    return 31 - __clz(static_cast<int>(bits));
}

// A number that is the same in all lanes, now known to the compiler to be so: it computes what follows from it once for
// the warp, and treats branches on it as uniform.
template <typename Int>
__device__ __forceinline__ Int uniform(Int number) {
    if constexpr (kArch >= 80) {
        return __reduce_max_sync(kAllLanes, number);
    } else {
        return number;
    }
}

// The numbers of all lanes joined; every lane gets the result.
template <typename Int, typename Join>
__device__ __forceinline__ Int join_over_lanes(Int number, Join join) {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
        number = join(number, __shfl_xor_sync(kAllLanes, number, distance));
    }
    return number;
}

// The least number that any lane has.
template <typename Int>
__device__ __forceinline__ Int min_over_lanes(Int number) {
    if constexpr (kArch >= 80) {
        return __reduce_min_sync(kAllLanes, number);
    } else {
        return join_over_lanes(number, [](Int a, Int b) { return min(a, b); });
    }
}

// The bits that are set in any lane.
template <typename Bits>
__device__ __forceinline__ Bits any_over_lanes(Bits bits) {
    if constexpr (kArch >= 80) {
        return __reduce_or_sync(kAllLanes, bits);
    } else {
        return join_over_lanes(bits, [](Bits a, Bits b) { return a | b; });
    }
}

// The value of a lane; lane numbers count modulo the warp size.
__device__ __forceinline__ int from_lane(int value, int lane) {
    return __shfl_sync(kAllLanes, value, lane & (kWarpSize - 1));
}

__device__ __forceinline__ float from_lane(float value, int lane) {
    return __shfl_sync(kAllLanes, value, lane & (kWarpSize - 1));
}

// kRows values, each joined over every group of kLanes consecutive lanes, both powers of two. Lane i of a group gets
// value i modulo kRows. With every step a lane has half as many values left to join.
template <int kRows, int kLanes, typename Join>
__device__ __forceinline__ float join_rows_over_lanes(float (&values)[kRows], Join join) {
    static_assert(kRows <= kLanes && kLanes <= kWarpSize, "every lane is left with one value");
#pragma unroll
    for (int distance = 1; distance < kRows; distance *= 2) {
        const bool is_upper = (lane_id() & distance) != 0;
#pragma unroll
        for (int i = 0; i < kRows / (2 * distance); ++i) {
            const float kept = is_upper ? values[2 * i + 1] : values[2 * i];
            const float sent = is_upper ? values[2 * i] : values[2 * i + 1];
            values[i] = join(kept, __shfl_xor_sync(kAllLanes, sent, distance));
        }
    }
    float joined = values[0];
#pragma unroll
    for (int distance = kRows; distance < kLanes; distance *= 2) {
        joined = join(joined, __shfl_xor_sync(kAllLanes, joined, distance));
    }
    return joined;
}

template <int kRows, int kLanes>
__device__ __forceinline__ float sum_rows_over_lanes(float (&values)[kRows]) {
    return join_rows_over_lanes<kRows, kLanes>(values, [](float a, float b) { return a + b; });
}

// The maxima, NaN where one of the values is.
template <int kRows, int kLanes>
__device__ __forceinline__ float max_rows_over_lanes(float (&values)[kRows]) {
    return join_rows_over_lanes<kRows, kLanes>(values, [](float a, float b) { return max_or_nan(a, b); });
}

// The value of lane `lane` of each group of kLanes consecutive lanes.
template <int kLanes>
__device__ __forceinline__ float from_group_lane(float value, int lane) {
    return kLanes == 1 ? value : __shfl_sync(kAllLanes, value, lane, kLanes);
}

// One step of sum_parts_over_lanes, and the steps of half the distance, a quarter and so on. This is a recursion
// because the compiler does not unroll a loop that ends at a number of an outer loop, and then keeps its arrays in
// memory.
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

// Sums of kCount values over each group of kLanes lanes that are kStep lanes apart; both counts are powers of two. A
// lane is left with kCount / kLanes sums, at least one, at the front of `values`: lane 0 of a group (counted modulo
// kCount) has the first ones, lane 1 the next, and so on.
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

// Joins the kOwn values of each of kParts lanes that are kStep lanes apart, in the order of the lanes.
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

// The sum over each group of `lanes` consecutive lanes, a power of two; every lane of the group gets it. kSummed: the
// value is already the sum of as many consecutive lanes.
template <int kSummed = 1>
__device__ __forceinline__ float sum_over_lanes(float value, int lanes) {
#pragma unroll
    for (int distance = kSummed; distance < kWarpSize; distance *= 2) {
        if (distance < lanes) value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
}

// The sum over the lanes at distances that are multiples of `step`, a power of two; every one of them gets it.
__device__ __forceinline__ float sum_over_lanes_apart(float value, int step) {
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
        if (distance >= step) value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
}

// The sums of kCount values, each over the same group of `lanes` consecutive lanes; every lane of the group gets them.
template <int kCount>
__device__ __forceinline__ void sum_each_over_lanes(float (&values)[kCount], int lanes) {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
        if (distance < lanes) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) values[i] += __shfl_xor_sync(kAllLanes, values[i], distance);
        }
    }
}

// The maximum over each group of kLanes consecutive lanes, NaN if one of them has it; every lane of the group gets it.
template <int kLanes>
__device__ __forceinline__ float max_over_lanes(float value) {
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
        value = max_or_nan(value, __shfl_xor_sync(kAllLanes, value, distance));
    }
    return value;
}

// Scans kCount recurrences v -> whole * v + end over each group of kLanes consecutive lanes, from `before` in front of
// the first lane. On entry `whole` and `end` hold a lane's factor and summand; on return `begin` and `end` hold v in
// front of the lane and behind it, and `whole` is undefined.
template <int kLanes, int kCount>
__device__ __forceinline__ void scan_over_lanes(float (&whole)[kCount], const float (&before)[kCount],
                                                float (&end)[kCount], float (&begin)[kCount]) {
    const bool is_first = lane_id() % kLanes == 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        if (is_first) {
            end[i] = fmaf(whole[i], before[i], end[i]);
            // The first lane has counted `before` in. With a factor of zero, so have all lanes that combine with it,
            // without a condition.
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

// The recurrences v -> whole * v + end of all lower lanes of each group of kLanes consecutive lanes as one: its factor
// and its summand, 1 and 0 for the first lane.
template <int kLanes>
__device__ __forceinline__ void join_lower_lanes(int lane, float& whole, float& end) {
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
        const float lower_end = __shfl_up_sync(kAllLanes, end, distance, kLanes);
        const float lower_whole = __shfl_up_sync(kAllLanes, whole, distance, kLanes);
        if (lane % kLanes >= distance) {
            end = fmaf(whole, lower_end, end);
            whole *= lower_whole;
        }
    }
    const float lower_end = __shfl_up_sync(kAllLanes, end, 1, kLanes);
    const float lower_whole = __shfl_up_sync(kAllLanes, whole, 1, kLanes);
    end = lane % kLanes == 0 ? 0.0f : lower_end;
    whole = lane % kLanes == 0 ? 1.0f : lower_whole;
}
