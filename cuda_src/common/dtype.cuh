// Storage types. Memory holds float, __half or __nv_bfloat16; arithmetic is float32; registers hold 32-bit words
// of one float or two 16-bit elements, the earlier in memory in the lower half.
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
