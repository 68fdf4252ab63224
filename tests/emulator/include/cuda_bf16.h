// The toolkit's bfloat16 type, as far as kernels use it: storage, and conversions that round to nearest even.
#pragma once

#include "intrinsics.h"

struct __nv_bfloat16 {
    unsigned short bits;
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

__forceinline__ unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) {
    return v.bits;
}
__forceinline__ __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    return {bits};
}
__forceinline__ float __bfloat162float(__nv_bfloat16 v) {
    return __uint_as_float(unsigned{v.bits} << 16);
}

inline __nv_bfloat16 __float2bfloat16_rn(float v) {
    const unsigned bits = __float_as_uint(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};  // the hardware's only NaN
    return {static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

__forceinline__ __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) {
    return v.x;
}
__forceinline__ __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) {
    return v.y;
}
__forceinline__ __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
