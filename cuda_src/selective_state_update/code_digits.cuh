// Numbers as codes of 8 bits, by which tensor cores multiply other codes.
#pragma once

#include "common/mma.cuh"

// Whether there are tensor cores; a CPU does what they do.
inline constexpr bool kMultipliesCodes = kArch == 0 || kHasTensorCores;

// The unit in which the largest of some numbers has 22 bits, a power of two: in it a number is an integer of three
// digits, times 2**16, 2**8 and 1, of -128 to 127. So products with codes are exact, and no code becomes a float.
struct CodeScale {
    static constexpr int kDigits = 3;

    float unit;  // NaN where a number is not finite
    float inverse;

    // largest: the magnitude of the largest number.
    __device__ __forceinline__ explicit CodeScale(float largest) {
        // Powers of two by their exponents: 2**(21 - e) and 2**(e - 21) where the magnitude is 2**e to 2**(e + 1).
        const unsigned exponent = max(__float_as_uint(largest) & 0x7f800000u, 22u << 23);
        const float step = __uint_as_float(exponent - (21u << 23));
        unit = largest <= 3.402823466e38f ? step : largest - largest;
        inverse = __uint_as_float((275u << 23) - exponent);
    }

    // The digits of a number as bytes, the lowest one first; the fourth is 0.
    __device__ __forceinline__ unsigned digits(float number) const {
        // Bytes of a sum with 128 in each are those of digits of -128 to 127, with the sign the other way.
        const unsigned integer = integer_bits(number, inverse) - 0x4b400000u;
        return (integer + 0x808080u) ^ 0x808080u;
    }
};

// A sum of up to 22 bits of products with digits d, times 256**d.
__device__ __forceinline__ float times_digit(int sum, int d) {
    const float weight = __uint_as_float((127u + 8u * d) << 23);
    // 1.5 * 2**23 and the sum, as a float.
    return fmaf(__uint_as_float(0x4b400000u + static_cast<unsigned>(sum)), weight, -12582912.0f * weight);
}

// Digit d of four numbers.
__device__ __forceinline__ unsigned digits_of(const unsigned (&digits)[4], unsigned d) {
    const unsigned both = 0x40u + 0x11u * d;
    return __byte_perm(__byte_perm(digits[0], digits[1], both), __byte_perm(digits[2], digits[3], both), 0x5410u);
}
