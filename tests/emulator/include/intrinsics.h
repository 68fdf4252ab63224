// Device functions of one thread: cached loads and stores, bit casts, integer and fast float arithmetic.
#pragma once

#include "qualifiers.h"

template <typename T>
__forceinline__ T __ldg(const T* p) {
    return *p;
}
template <typename T>
__forceinline__ T __ldcs(const T* p) {
    return *p;
}
template <typename T>
__forceinline__ void __stcs(T* p, T value) {
    *p = value;
}
template <typename T>
__forceinline__ void __stwb(T* p, T value) {
    *p = value;
}

namespace emulator {

template <typename To, typename From>
__forceinline__ To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

}  // namespace emulator

__forceinline__ float __uint_as_float(unsigned v) {
    return emulator::bit_cast<float>(v);
}
__forceinline__ unsigned __float_as_uint(float v) {
    return emulator::bit_cast<unsigned>(v);
}

__forceinline__ unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
// Bytes of the two words, those of b above those of a, chosen by the lowest four digits of the selector.
__forceinline__ unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
    unsigned found = 0;
    for (int i = 0; i < 4; ++i) found |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7u) & 0xffu) << 8 * i;
    return found;
}
__forceinline__ int __popc(unsigned v) {
    return __builtin_popcount(v);
}
__forceinline__ int __clz(int v) {
    return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v));
}
__forceinline__ int __ffs(int v) {
    return __builtin_ffs(v);
}

__forceinline__ float __fmul_rn(float a, float b) {
    return a * b;
}
// The nearest integer, of two the even one; NaN gives 0, and what is too large the end of the range.
__forceinline__ int __float2int_rn(float v) {
    if (v != v) return 0;
    return v >= 2147483648.0f ? 2147483647 : v < -2147483648.0f ? -2147483647 - 1 : static_cast<int>(rintf(v));
}

__forceinline__ float __expf(float v) {
    return expf(v);
}
// The programming guide: NaN gives 0.
__forceinline__ float __saturatef(float v) {
    return v > 0.0f ? v < 1.0f ? v : 1.0f : 0.0f;
}
__forceinline__ float rsqrtf(float v) {
    return 1.0f / sqrtf(v);
}

// The programming guide: a divisor above 2**126 gives 0, or NaN for an infinite dividend.
__forceinline__ float __fdividef(float a, float b) {
    constexpr float kLimit = 8.507059173023462e37f;
    return fabsf(b) > kLimit && std::isfinite(b) ? 0.0f * a : a / b;
}

// Unlike std::min, these take two types, as the toolkit's overloads do.
template <typename A, typename B>
__forceinline__ std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmin(static_cast<T>(a), static_cast<T>(b));
    return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <typename A, typename B>
__forceinline__ std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmax(static_cast<T>(a), static_cast<T>(b));
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

__forceinline__ void __trap() {
    __builtin_trap();
}
