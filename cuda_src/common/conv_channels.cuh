// Taps and biases of the consecutive channels that one thread has.
#pragma once

#include "common/conv.cuh"

// The bias of kVec consecutive channels.
template <typename weight_t, typename Operands, int kVec>
__device__ __forceinline__ void load_channel_bias(const Operands& p, index_t channel, float (&bias)[kVec]) {
    if (p.bias == nullptr || !p.taps_are_packed) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) bias[c] = load_bias<weight_t>(p, channel + c);
    } else if (p.bias_is_float32) {
        const Vec<float, kVec> v = load<kVec>(static_cast<const float*>(p.bias) + channel);
#pragma unroll
        for (int c = 0; c < kVec; ++c) bias[c] = v.to_float(c);
    } else {
        const Vec<weight_t, kVec> v = load<kVec>(static_cast<const weight_t*>(p.bias) + channel);
#pragma unroll
        for (int c = 0; c < kVec; ++c) bias[c] = v.to_float(c);
    }
}

// The taps of kVec consecutive channels, [kWidth][kVec].
template <typename weight_t, typename Operands, int kWidth, int kVec>
__device__ __forceinline__ void load_channel_taps(const Operands& p, index_t channel, float (&taps)[kVec][kWidth]) {
    if (!p.taps_are_packed) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) load_taps<kWidth, weight_t>(p, channel + c, taps[c]);
        return;
    }
    constexpr int kBytes = kVec * kWidth * static_cast<int>(sizeof(weight_t));
    constexpr int kAccess = kBytes % 16 == 0 ? 16 : kBytes % 8 == 0 ? 8 : kBytes % 4 == 0 ? 4 : 2;
    constexpr int kCount = kAccess / static_cast<int>(sizeof(weight_t));
    const weight_t* weight = static_cast<const weight_t*>(p.weight) + channel * kWidth;
#pragma unroll
    for (int i = 0; i < kVec * kWidth; i += kCount) {
        const Vec<weight_t, kCount> v = load<kCount>(weight + i);
#pragma unroll
        for (int j = 0; j < kCount; ++j) taps[(i + j) / kWidth][(i + j) % kWidth] = v.to_float(j);
    }
}
