// The toolkit's half type, as far as kernels use it: storage, and conversions that round to nearest even.
#pragma once

#include "intrinsics.h"

struct __half {
    unsigned short bits;
};

__forceinline__ unsigned short __half_as_ushort(__half v) {
    return v.bits;
}
__forceinline__ __half __ushort_as_half(unsigned short bits) {
    return {bits};
}

inline float __half2float(__half v) {
    const unsigned sign = (v.bits & 0x8000u) << 16;
    const unsigned magnitude = v.bits & 0x7fffu;
    if (magnitude >= 0x7c00u) {  // infinite or NaN
        return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    }
    // A half read as the upper bits of a float has its exponent too small by 127 - 15, subnormals included.
    return __uint_as_float(sign | magnitude << 13) * 0x1p112f;
}

inline __half __float2half_rn(float v) {
    const unsigned bits = __float_as_uint(v);
    const unsigned sign = bits >> 16 & 0x8000u;
    const unsigned magnitude = bits & 0x7fffffffu;
    unsigned half;
    if (magnitude > 0x7f800000u) {
        return {0x7fff};  // the hardware's only NaN
    } else if (magnitude >= 0x477ff000u) {
        half = 0x7c00u;  // 65520, halfway from the largest half to the next, and above
    } else if (magnitude < 0x38800000u) {
        // Below the smallest normal half: adding 0.5 leaves a multiple of 2**-24 in the low bits, rounded once.
        half = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    } else {
        // Half of the last place, less one where the last place is even, carries exactly when it rounds up.
        half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    }
    return {static_cast<unsigned short>(sign | half)};
}
