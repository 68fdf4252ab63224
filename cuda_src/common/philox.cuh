// Philox-4x32 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011): random numbers by counting.
#pragma once

#include "common/dtype.cuh"

// The four random words of a counter. The multipliers and the steps of the key are the paper's.
__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key, int rounds) {
#pragma unroll 1
    for (int i = 0; i < rounds; ++i) {
        const unsigned high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
        const unsigned high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}

// A float rounded to T stochastically by 16 random bits: up with the probability that makes the expected value exact.
template <typename T>
__device__ __forceinline__ T round_stochastically(float v, unsigned random);

template <>
__device__ __forceinline__ __nv_bfloat16 round_stochastically(float v, unsigned random) {
    if (!isfinite(v)) return Dtype<__nv_bfloat16>::from_float(v);
    return __ushort_as_bfloat16(static_cast<unsigned short>((__float_as_uint(v) + random) >> 16));
}

template <>
__device__ __forceinline__ __half round_stochastically(float v, unsigned random) {
    if (!isfinite(v)) return Dtype<__half>::from_float(v);
    const float size = fabsf(v);
    unsigned bits;
    if (size >= 6.103515625e-5f) {
        // A float has 13 bits more than a normal half: dropping them is exact.
        bits = __half_as_ushort(__float2half_rn(__uint_as_float((__float_as_uint(size) + (random >> 3)) & ~0x1fffu)));
    } else {
        // The bits of a subnormal half are its multiple of 2**-24.
        bits = (static_cast<unsigned>(size * 1099511627776.0f) + random) >> 16;
    }
    return __ushort_as_half(static_cast<unsigned short>(bits | (__float_as_uint(v) >> 16 & 0x8000u)));
}

// The integer below or above a number of at most 15 bits before the point, which is first rounded to the nearest
// multiple of 2**-16: else the least number below zero would be -1 now and then.
__device__ __forceinline__ int integer_stochastically(float v, unsigned random) {
    return (__float2int_rn(v * 65536.0f) + static_cast<int>(random)) >> 16;
}

template <>
__device__ __forceinline__ signed char round_stochastically(float v, unsigned random) {
    return static_cast<signed char>(integer_stochastically(v, random));
}

template <>
__device__ __forceinline__ short round_stochastically(float v, unsigned random) {
    return static_cast<short>(integer_stochastically(v, random));
}

template <>
__device__ __forceinline__ float8_e4m3fn round_stochastically(float v, unsigned random) {
    const float size = fabsf(v);
    // A float has 20 bits more than a normal number of 8 bits, of which 16 are drawn, and an exponent 120 larger. Below
    // 2**-6 the bits are those of the multiple of 2**-9.
    const unsigned bits = size >= 0.015625f ? ((__float_as_uint(size) + (random << 4)) >> 20) - (120u << 3)
                                            : (static_cast<unsigned>(size * 33554432.0f) + random) >> 16;
    return {static_cast<unsigned char>(bits | (__float_as_uint(v) >> 24 & 0x80u))};
}
