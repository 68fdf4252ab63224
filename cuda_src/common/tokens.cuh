// Tokens of a row in registers, and single numbers of one of two types.
#pragma once

#include "common/vec.cuh"

// kCount tokens of a row in the type that memory has.
template <typename T, int kCount, int kVec>
struct Tokens {
    static constexpr int kAccess = kVec < kCount ? kVec : kCount;
    Vec<T, kAccess> parts[kCount / kAccess];

    __device__ __forceinline__ void load(const T* at, index_t step) {
#pragma unroll
        for (int i = 0; i < kCount / kAccess; ++i) {
            parts[i] = ::load<kAccess>(kVec == 1 ? at + i * step : at + i * kAccess);
        }
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < kCount / kAccess; ++i) parts[i] = Vec<T, kAccess>::zero();
    }

    // Loads the tokens from `begin` to `end` - 1; the others are zero.
    __device__ __forceinline__ void load_edge(const T* at, index_t step, int begin, int end) {
        clear();
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            if (i >= begin && i < end) parts[i / kAccess].put(i % kAccess, at[kVec == 1 ? i * step : i]);
        }
    }

    // Loads consecutive tokens of which the first `count` are there; the others are zero.
    __device__ __forceinline__ void load_front(const T* at, int count) {
        if (count >= kCount) {
            load(at, 1);
        } else {
            load_edge(at, 1, 0, count);
        }
    }

    __device__ __forceinline__ float to_float(int i) const { return parts[i / kAccess].to_float(i % kAccess); }
};

template <int kVec, typename T, int kCount>
__device__ __forceinline__ void store_tokens(T* at, index_t step, const float (&values)[kCount]) {
    constexpr int kAccess = kVec < kCount ? kVec : kCount;
#pragma unroll
    for (int i = 0; i < kCount; i += kAccess) {
        float part[kAccess];
#pragma unroll
        for (int j = 0; j < kAccess; ++j) part[j] = values[i + j];
        store(kVec == 1 ? at + i * step : at + i, Vec<T, kAccess>::from_floats(part));
    }
}

// Stores the first `count` of consecutive tokens.
template <int kVec, typename T, int kCount>
__device__ __forceinline__ void store_front(T* at, int count, const float (&values)[kCount]) {
    if (count >= kCount) {
        store_tokens<kVec>(at, 1, values);
        return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        if (i < count) at[i] = Dtype<T>::from_float(values[i]);
    }
}

// A number that is a float or a T in memory. It is kept as it was loaded, because converting it waits for the load.
template <typename T>
struct RawNumber {
    unsigned word = 0;

    __device__ __forceinline__ void load(const void* p, index_t at, int is_float32) {
        if (is_float32) {
            word = ::load<1>(static_cast<const float*>(p) + at).words[0];
        } else {
            word = ::load<1>(static_cast<const T*>(p) + at).words[0];
        }
    }

    __device__ __forceinline__ float to_float(int is_float32) const {
        return is_float32 ? __uint_as_float(word) : Dtype<T>::unpack(word, 0);
    }
};

// Stores a number that is a float or a T in memory.
template <typename T>
__device__ __forceinline__ void store_number(void* p, index_t at, int is_float32, float value) {
    if (is_float32) {
        static_cast<float*>(p)[at] = value;
    } else {
        static_cast<T*>(p)[at] = Dtype<T>::from_float(value);
    }
}
