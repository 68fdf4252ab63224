// Barriers, shuffles and votes. The rules are those of sm_70 and later, and stricter than the hardware's where it
// forgives: no thread may wait for one that has returned, and all must wait in the same call.
#pragma once

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "emulator.h"
#include "qualifiers.h"

__forceinline__ void __syncthreads() {
    emulator::barrier("__syncthreads");
}
__forceinline__ void __syncwarp(unsigned mask = 0xffffffffu) {
    emulator::exchange("__syncwarp", mask, 0);
}

namespace emulator {

template <typename T>
inline constexpr bool kShuffled =
    std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, long> ||
    std::is_same_v<T, unsigned long> || std::is_same_v<T, long long> || std::is_same_v<T, unsigned long long> ||
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, __half> ||
    std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __nv_bfloat162>;

// The value of the lane that `source` picks for this one in its segment of `width` lanes.
template <typename T, typename Source>
__forceinline__ T shuffle(const char* what, unsigned mask, T value, int width, Source source) {
    static_assert(kShuffled<T>, "the toolkit has no shuffle of this type");
    if (width < 1 || width > kWarp || (width & (width - 1)) != 0) refuse_width(what, width);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    const Lanes& lanes = exchange(what, mask, bits);
    const int own = static_cast<int>(lane());
    const int first = own & ~(width - 1);
    std::memcpy(&value, &lanes.values[source(own, first)], sizeof value);
    return value;
}

}  // namespace emulator

template <typename T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int from, int width = warpSize) {
    return emulator::shuffle("__shfl_sync", mask, value, width,
                             [=](int, int first) { return first + (from & (width - 1)); });
}

template <typename T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
    return emulator::shuffle("__shfl_up_sync", mask, value, width, [=](int own, int first) {
        return delta > static_cast<unsigned>(own - first) ? own : own - static_cast<int>(delta);
    });
}

template <typename T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
    return emulator::shuffle("__shfl_down_sync", mask, value, width, [=](int own, int first) {
        return delta >= static_cast<unsigned>(first + width - own) ? own : own + static_cast<int>(delta);
    });
}

template <typename T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize) {
    return emulator::shuffle("__shfl_xor_sync", mask, value, width, [=](int own, int first) {
        const int from = own ^ (lane_mask & (warpSize - 1));
        return from < first + width ? from : own;
    });
}

namespace emulator {

// The lanes whose predicate is true.
__forceinline__ unsigned vote(const char* what, unsigned mask, bool predicate) {
    const Lanes& lanes = exchange(what, mask, predicate);
    unsigned ballot = 0;
    for (int i = 0; i < kWarp; ++i) ballot |= static_cast<unsigned>(lanes.values[i] & 1) << i;
    return ballot & lanes.brought;
}

}  // namespace emulator

__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate) {
    return emulator::vote("__ballot_sync", mask, predicate != 0);
}
__forceinline__ int __any_sync(unsigned mask, int predicate) {
    return emulator::vote("__any_sync", mask, predicate != 0) != 0;
}
