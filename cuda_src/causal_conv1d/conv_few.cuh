// Filters of decode steps that do no more than most calls ask for.
#pragma once

#include "causal_conv1d/conv.cuh"

// The filters of a thread's channels, contiguous and aligned, in the form that memory has: ChannelFilter without
// branches.
template <int kWidth, typename weight_t, int kVec>
struct FewFilter {
    PackedVec<weight_t, kVec * kWidth> raw_taps;
    unsigned raw_bias[kVec];  // words of floats, or of weight_t

    // Params: those of a kernel with weight, bias and bias_bytes.
    template <typename Params>
    __device__ __forceinline__ FewFilter(const Params& p, int channel) {
        raw_taps.template load<Memory::kMutable>(static_cast<const weight_t*>(p.weight) + channel * kWidth);
#pragma unroll
        for (int c = 0; c < kVec; ++c) raw_bias[c] = 0;
        // One address for both, which waits for no comparison.
        const char* const own_bias = static_cast<const char*>(p.bias) + channel * p.bias_bytes;
        if (p.bias_bytes == sizeof(float)) load_raw<float>(own_bias);
        if (sizeof(weight_t) < sizeof(float) && p.bias_bytes == sizeof(weight_t)) load_raw<weight_t>(own_bias);
    }

    template <typename Params>
    __device__ __forceinline__ void to_floats(const Params& p, float (&taps)[kVec][kWidth], float (&bias)[kVec]) const {
#pragma unroll
        for (int i = 0; i < kVec * kWidth; ++i) taps[i / kWidth][i % kWidth] = raw_taps.to_float(i);
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            constexpr int kPerWord = Dtype<weight_t>::kPerWord;
            const float other = Dtype<weight_t>::unpack(raw_bias[c / kPerWord], c % kPerWord);
            bias[c] = p.bias_bytes == sizeof(float) ? __uint_as_float(raw_bias[c]) : other;
        }
    }

 private:
    template <typename T>
    __device__ __forceinline__ void load_raw(const void* bias) {
        PackedVec<T, kVec> v;
        v.template load<Memory::kMutable>(static_cast<const T*>(bias));
#pragma unroll
        for (int i = 0; i < PackedVec<T, kVec>::kWords; ++i) raw_bias[i] = v.word(i);
    }
};
