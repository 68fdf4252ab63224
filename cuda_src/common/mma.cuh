// Products of small matrices by tensor cores.
#pragma once

#include "common/warp.cuh"

template <typename T>
inline constexpr bool kIsHalf = false;
template <>
inline constexpr bool kIsHalf<__half> = true;

__device__ __forceinline__ unsigned word_of_lane(unsigned word, int lane) {
    return static_cast<unsigned>(from_lane(static_cast<int>(word), lane));
}

// sum += a * b, of a warp: a has 16 rows and 16 columns, b 8 columns. Lane 4 g + q has elements of the rows g and g + 8
// of a and of the column g of b, in pairs of neighbours along the axis that both share: a[0] and b[0] the pair q, a[2]
// and b[1] the pair q + 4, in row g; a[1] and a[3] are those of row g + 8. The lane's sums are those of row g in the
// columns 2 q and 2 q + 1, then those of row g + 8 (PTX, mma.m16n8k16).
template <typename T>
__device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (kHasTensorCores) {
        multiply_add_tile<kIsHalf<T>>(sum, a, b);
    } else {
        const int row = lane_id() / 4 * 4, column = lane_id() % 4 * 8;
        // Unrolled, the words of all lanes would take registers at once: 400 bytes of a step with rings would lie in
        // memory.
#pragma unroll 1
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const unsigned first = word_of_lane(a[2 * half], row + i);
                const unsigned second = word_of_lane(a[2 * half + 1], row + i);
                const unsigned left = word_of_lane(b[half], column + i);
                const unsigned right = word_of_lane(b[half], column + 4 + i);
#pragma unroll
                for (int k = 0; k < 2; ++k) {
                    sum[0] = fmaf(Dtype<T>::unpack(first, k), Dtype<T>::unpack(left, k), sum[0]);
                    sum[1] = fmaf(Dtype<T>::unpack(first, k), Dtype<T>::unpack(right, k), sum[1]);
                    sum[2] = fmaf(Dtype<T>::unpack(second, k), Dtype<T>::unpack(left, k), sum[2]);
                    sum[3] = fmaf(Dtype<T>::unpack(second, k), Dtype<T>::unpack(right, k), sum[3]);
                }
            }
        }
    }
}

// The product of four pairs of signed bytes.
__device__ __forceinline__ int multiply_bytes(unsigned a, unsigned b) {
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 32; i += 8) sum += static_cast<signed char>(a >> i) * static_cast<signed char>(b >> i);
    return sum;
}

// The same for signed integers of 8 bits, exactly: a has 32 columns, and a word four neighbours along the axis that
// both share (PTX, mma.m16n8k32).
__device__ __forceinline__ void multiply_add_codes(int (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (kHasTensorCores) {
        multiply_add_tile_codes(sum, a, b);
    } else {
        const int row = lane_id() / 4 * 4, column = lane_id() % 4 * 8;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const unsigned first = word_of_lane(a[2 * half], row + i);
                const unsigned second = word_of_lane(a[2 * half + 1], row + i);
                const unsigned left = word_of_lane(b[half], column + i);
                const unsigned right = word_of_lane(b[half], column + 4 + i);
                sum[0] += multiply_bytes(first, left);
                sum[1] += multiply_bytes(first, right);
                sum[2] += multiply_bytes(second, left);
                sum[3] += multiply_bytes(second, right);
            }
        }
    }
}
