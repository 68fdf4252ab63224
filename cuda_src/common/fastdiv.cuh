// Division of an index below 2**31 by a number known on the host, as a multiplication and a shift.
#pragma once

#include "common/platform.cuh"

// multiplier = floor(2**32 * (2**shift - divisor) / divisor) + 1 with shift = ceil(log2(divisor)); see
// Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994, figure 4.1.
struct FastDiv {
    unsigned divisor;
    unsigned multiplier;
    unsigned shift;

    __device__ __forceinline__ unsigned quotient(unsigned n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

struct QuotientRemainder {
    unsigned quotient;
    unsigned remainder;
};

__device__ __forceinline__ QuotientRemainder divide(unsigned n, const FastDiv& by) {
    const unsigned quotient = by.quotient(n);
    return {quotient, n - quotient * by.divisor};
}
