// Taps and biases of the consecutive channels of one thread.
#pragma once

#include "causal_conv1d/conv.cuh"

// The filters of kVec channels in the form that memory has. Converting an element waits for it, and a thread first
// issues further loads. kPacked: taps are known to be packed.
template <int kWidth, typename weight_t, int kVec, bool kPacked = false>
struct ChannelFilter {
    using Taps = PackedVec<weight_t, kVec * kWidth>;

    Taps raw_taps;
    unsigned raw_bias[kVec];  // words of floats, or of weight_t
    bool bias_is_float;

    // Operands: those of any convolution, with weight, bias, their strides, bias_is_float32 and taps_are_packed.
    template <typename Operands>
    __device__ __forceinline__ ChannelFilter(const Operands& p, index_t channel) {
        if (kPacked || p.taps_are_packed) {
            raw_taps.template load<Memory::kConstant>(static_cast<const weight_t*>(p.weight) + channel * kWidth);
        } else {
            raw_taps = Taps::zero();
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                const weight_t* weight = static_cast<const weight_t*>(p.weight) + (channel + c) * p.weight_stride[0];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) raw_taps.put(c * kWidth + k, weight[k * p.weight_stride[1]]);
            }
        }
        bias_is_float =
            sizeof(weight_t) == 4 || p.bias == nullptr || p.bias_is_float32 || !(kPacked || p.taps_are_packed);
        if (p.bias == nullptr) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) raw_bias[c] = 0;
        } else if (!kPacked && !p.taps_are_packed) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) raw_bias[c] = __float_as_uint(load_bias<weight_t>(p, channel + c));
        } else if (bias_is_float) {
            load_raw<float>(p.bias, channel);
        } else {
            load_raw<weight_t>(p.bias, channel);
        }
    }

    __device__ __forceinline__ void to_floats(float (&taps)[kVec][kWidth], float (&bias)[kVec]) const {
#pragma unroll
        for (int i = 0; i < kVec * kWidth; ++i) taps[i / kWidth][i % kWidth] = raw_taps.to_float(i);
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            constexpr int kPerWord = Dtype<weight_t>::kPerWord;
            const float other = Dtype<weight_t>::unpack(raw_bias[c / kPerWord], c % kPerWord);
            bias[c] = bias_is_float ? __uint_as_float(raw_bias[c]) : other;
        }
    }

 private:
    template <typename T>
    __device__ __forceinline__ void load_raw(const void* bias, index_t channel) {
        PackedVec<T, kVec> v;
        v.template load<Memory::kConstant>(static_cast<const T*>(bias) + channel);
#pragma unroll
        for (int i = 0; i < PackedVec<T, kVec>::kWords; ++i) raw_bias[i] = v.word(i);
    }
};
