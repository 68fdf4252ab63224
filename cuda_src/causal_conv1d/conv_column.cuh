// A column of a pool of convolution states: one past input of each channel.
#pragma once

#include "common/vec.cuh"

// The index of a channel along an axis of this stride, which is 1 where vectors lie along it.
template <int kVec>
__device__ __forceinline__ index_t along_channels(index_t channel, index_t stride) {
    return kVec > 1 ? channel : channel * stride;
}

// One column of the state of kVec consecutive channels. The kernel writes to the pool, so it does not read it through
// the read-only cache.
template <typename state_t, int kVec>
struct StateColumn {
    state_t* at;
    index_t channel_step;
    bool is_packed;  // the channels are contiguous and aligned

    // The column `distance` elements away.
    __device__ __forceinline__ StateColumn operator+(index_t distance) const {
        return {at + distance, channel_step, is_packed};
    }

    __device__ __forceinline__ Vec<state_t, kVec> load_all() const {
        if (kVec == 1 || is_packed) return load<kVec, Memory::kMutable>(at);
        Vec<state_t, kVec> v = Vec<state_t, kVec>::zero();
#pragma unroll
        for (int c = 0; c < kVec; ++c) v.put(c, at[c * channel_step]);
        return v;
    }

    __device__ __forceinline__ void store_all(const Vec<state_t, kVec>& v) const {
        if (kVec == 1 || is_packed) {
            store(at, v);
        } else {
#pragma unroll
            for (int c = 0; c < kVec; ++c) at[c * channel_step] = v.element(c);
        }
    }
};

template <typename to_t, typename from_t, int kVec>
__device__ __forceinline__ Vec<to_t, kVec> convert(const Vec<from_t, kVec>& v) {
    if constexpr (kIsSame<to_t, from_t>) {
        return v;
    } else {
        float values[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) values[c] = v.to_float(c);
        return Vec<to_t, kVec>::from_floats(values);
    }
}
