// What a lane loads of a row for itself, when all loads are to be under way at once.
#pragma once

#include "common/vec.cuh"

// A number of T, or of float, as it is in memory. Of float it is loaded without a condition.
template <typename T>
struct OwnNumber {
    unsigned word;

    __device__ __forceinline__ void load(const void* p, int at, int is_float32) {
        if (sizeof(T) == sizeof(float) || is_float32) {
            word = load_word<Memory::kMutable, unsigned>(static_cast<const float*>(p) + at);
        } else {
            word = ::load<1, Memory::kMutable>(static_cast<const T*>(p) + at).words[0];
        }
    }

    __device__ __forceinline__ float to_float(int is_float32) const {
        return sizeof(T) == sizeof(float) || is_float32 ? __uint_as_float(word) : Dtype<T>::unpack(word, 0);
    }
};
