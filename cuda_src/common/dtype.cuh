// Storage types. Memory holds float, __half or __nv_bfloat16, or codes of 8 or 16 bits; arithmetic is float32;
// registers hold 32-bit words of one float, two 16-bit elements or four bytes, the earlier in memory in the lower bits.
#pragma once

#include "common/platform.cuh"

template <typename A, typename B>
inline constexpr bool kIsSame = false;
template <typename A>
inline constexpr bool kIsSame<A, A> = true;

template <typename T>
struct Dtype;

template <>
struct Dtype<float> {
    static constexpr int kPerWord = 1;
    __device__ static float to_float(float v) { return v; }
    __device__ static float from_float(float v) { return v; }
    __device__ static unsigned bits(float v) { return __float_as_uint(v); }
    __device__ static float element(unsigned word, int) { return __uint_as_float(word); }
    __device__ static float unpack(unsigned word, int) { return __uint_as_float(word); }
    __device__ static unsigned pack(const float* v) { return __float_as_uint(v[0]); }
};

template <>
struct Dtype<__half> {
    static constexpr int kPerWord = 2;
    __device__ static float to_float(__half v) { return __half2float(v); }
    __device__ static __half from_float(float v) { return __float2half_rn(v); }
    __device__ static unsigned bits(__half v) { return __half_as_ushort(v); }
    __device__ static __half element(unsigned word, int i) {
        return __ushort_as_half(static_cast<unsigned short>(word >> (16 * i)));
    }
    __device__ static float unpack(unsigned word, int i) { return to_float(element(word, i)); }
    __device__ static unsigned pack(const float* v) { return bits(from_float(v[0])) | bits(from_float(v[1])) << 16; }
};

template <>
struct Dtype<__nv_bfloat16> {
    static constexpr int kPerWord = 2;
    __device__ static float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
    __device__ static __nv_bfloat16 from_float(float v) { return __float2bfloat16_rn(v); }
    __device__ static unsigned bits(__nv_bfloat16 v) { return __bfloat16_as_ushort(v); }
    __device__ static __nv_bfloat16 element(unsigned word, int i) {
        return __ushort_as_bfloat16(static_cast<unsigned short>(word >> (16 * i)));
    }
    // A bfloat16 is the upper half of the float of the same value: no conversion instruction is needed.
    __device__ static float unpack(unsigned word, int i) {
        return __uint_as_float(i == 0 ? word << 16 : word & 0xffff0000u);
    }
    __device__ static unsigned pack(const float* v) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(v[0], v[1]);
        return bits(__low2bfloat16(pair)) | bits(__high2bfloat16(pair)) << 16;
    }
};

// An 8-bit float with 4 bits of exponent and 3 of mantissa (Micikevicius et al., "FP8 Formats for Deep Learning",
// 2022): no infinities, a NaN of either sign, and no more than 448.
struct float8_e4m3fn {
    unsigned char bits;
};

// The largest code of a format in which numbers are codes times a scale; 0 for the others.
template <typename T>
inline constexpr float kMaxCode = 0.0f;
template <>
inline constexpr float kMaxCode<signed char> = 127.0f;
template <>
inline constexpr float kMaxCode<short> = 32767.0f;
template <>
inline constexpr float kMaxCode<float8_e4m3fn> = 448.0f;

// The lowest bits of a mantissa make floats of integers, and integers of floats: conversion instructions have a quarter
// of the throughput. The integer is the nearest one to the product, which is not rounded before; the even one between
// two.
__device__ __forceinline__ unsigned integer_bits(float v, float factor) {
    // 1.5 * 2**23: of a sum with it the lowest bits are those of the integer, negative ones included.
    return __float_as_uint(fmaf(v, factor, 12582912.0f));
}

template <>
struct Dtype<signed char> {
    static constexpr int kPerWord = 4;
    __device__ static unsigned bits(signed char v) { return static_cast<unsigned char>(v); }
    __device__ static float unpack(unsigned word, int i) {
        // 2**23 + 128 + v.
        return __uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440u | i)) - 8388736.0f;
    }
    __device__ static unsigned pack(const float (&v)[4], float factor) {
        const unsigned low = __byte_perm(integer_bits(v[0], factor), integer_bits(v[1], factor), 0x0040u);
        const unsigned high = __byte_perm(integer_bits(v[2], factor), integer_bits(v[3], factor), 0x0040u);
        return __byte_perm(low, high, 0x5410u);
    }
};

template <>
struct Dtype<short> {
    static constexpr int kPerWord = 2;
    __device__ static unsigned bits(short v) { return static_cast<unsigned short>(v); }
    __device__ static float unpack(unsigned word, int i) {
        // 2**23 + 2**15 + v.
        return __uint_as_float(__byte_perm(word ^ 0x80008000u, 0x4b000000u, i == 0 ? 0x7410u : 0x7432u)) - 8421376.0f;
    }
    __device__ static unsigned pack(const float (&v)[2], float factor) {
        return __byte_perm(integer_bits(v[0], factor), integer_bits(v[1], factor), 0x5410u);
    }
};

template <>
struct Dtype<float8_e4m3fn> {
    static constexpr int kPerWord = 4;
    __device__ static unsigned bits(float8_e4m3fn v) { return v.bits; }
    __device__ static float unpack(unsigned word, int i) { return e4m3_to_float(word, i); }
    __device__ static unsigned pack(const float (&v)[4], float factor) {
        return floats_to_e4m3(__fmul_rn(v[0], factor), __fmul_rn(v[1], factor)) |
               floats_to_e4m3(__fmul_rn(v[2], factor), __fmul_rn(v[3], factor)) << 16;
    }
};
