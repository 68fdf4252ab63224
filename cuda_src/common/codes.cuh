// Rows of quantised states: a code per element and a scale per row, S = code * scale. The scale is that of the row's
// largest magnitude, found anew whenever the row is stored.
#pragma once

#include "common/philox.cuh"

// A row of smaller magnitude is stored as zeros: its scale would be no normal number, and its inverse infinite.
inline constexpr float kLeastMagnitude = 3.8518598887744717e-34f;  // 2**-111

// The largest magnitude of kCount values; NaN if one of them is.
template <int kCount>
__device__ __forceinline__ float largest_magnitude(const float (&values)[kCount]) {
    // Magnitudes are in the order of their bits, NaN above all others, and integers are compared by threes.
    constexpr int kPairs = (kCount + 1) / 2;
    unsigned pairs[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
        const float second = values[2 * i + 1 < kCount ? 2 * i + 1 : 2 * i];
        pairs[i] = __float_as_uint(max_or_nan(fabsf(values[2 * i]), fabsf(second)));
    }
    unsigned largest = pairs[0];
#pragma unroll
    for (int i = 1; i + 1 < kPairs; i += 2) largest = max_of_three(largest, pairs[i], pairs[i + 1]);
    if constexpr (kPairs % 2 == 0) largest = max(largest, pairs[kPairs - 1]);
    return __uint_as_float(largest);
}

// What turns a row of this largest magnitude into codes; NaN for one that is not finite, 0 for one above 2**126.
template <typename state_t>
__device__ __forceinline__ float code_factor(float magnitude) {
    return magnitude < kLeastMagnitude ? 1.0f : quotient(kMaxCode<state_t>, magnitude);
}

// The scale that belongs to a factor: NaN where the row has no codes.
__device__ __forceinline__ float scale_of_factor(float factor) {
    return quotient(1.0f, factor);
}

// The code of an element times its row's factor, rounded by 16 random bits.
template <typename state_t>
__device__ __forceinline__ state_t code_stochastically(float value, float factor, unsigned random) {
    // The product may be a little more than the largest code, which must not be rounded up.
    constexpr float kMost = kMaxCode<state_t>;
    return round_stochastically<state_t>(fminf(fmaxf(__fmul_rn(value, factor), -kMost), kMost), random);
}

// The random words for the elements 8 * draw to 8 * draw + 7 of a slot, in the state after a token of a sequence.
__device__ __forceinline__ uint4 random_words(unsigned long long draw, unsigned sequence, unsigned token,
                                              unsigned long long seed, int rounds) {
    const uint4 counter = make_uint4(static_cast<unsigned>(draw), static_cast<unsigned>(draw >> 32), sequence, token);
    return philox(counter, make_uint2(static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)), rounds);
}

// The 16 random bits of element `number` of eight.
__device__ __forceinline__ unsigned random_bits(const uint4& words, int number) {
    const unsigned word = number < 4 ? (number < 2 ? words.x : words.y) : (number < 6 ? words.z : words.w);
    return number % 2 == 0 ? word & 0xffffu : word >> 16;
}
