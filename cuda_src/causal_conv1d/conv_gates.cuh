// Gates and residuals around a convolution: post_gate * round(act(conv(round(pre_gate * x)))) + residual.
#pragma once

#include "common/vec.cuh"

// a * b, rounded to T.
template <typename T, int kVec>
__device__ __forceinline__ Vec<T, kVec> multiply(const Vec<T, kVec>& a, const Vec<T, kVec>& b) {
    float products[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) products[i] = a.to_float(i) * b.to_float(i);
    return Vec<T, kVec>::from_floats(products);
}

// Results times a gate: they are rounded to T before.
template <typename T, int kVec>
__device__ __forceinline__ void multiply_rounded(float (&y)[kVec], const Vec<T, kVec>& gate) {
    const Vec<T, kVec> rounded = Vec<T, kVec>::from_floats(y);
#pragma unroll
    for (int i = 0; i < kVec; ++i) y[i] = rounded.to_float(i) * gate.to_float(i);
}

template <typename T, int kVec>
__device__ __forceinline__ void add(float (&y)[kVec], const Vec<T, kVec>& residual) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) y[i] += residual.to_float(i);
}

// Loads kRows consecutive tokens from number `from` on, `at` being the address of that one; zeros for tokens outside 0
// to `tokens` - 1.
template <typename T, int kVec, int kRows, typename Int>
__device__ __forceinline__ void load_tokens(Vec<T, kVec> (&to)[kRows], const T* at, index_t step, Int from,
                                            Int tokens) {
    if (from >= 0 && from + kRows <= tokens) {
#pragma unroll
        for (int i = 0; i < kRows; ++i, at += step) to[i] = load<kVec>(at);
    } else {
#pragma unroll
        for (int i = 0; i < kRows; ++i, at += step) {
            to[i] = Vec<T, kVec>::zero();
            if (from + i >= 0 && from + i < tokens) to[i] = load<kVec>(at);
        }
    }
}

// What follows the convolution of kTokens tokens of kVec channels, loaded before the first result is there.
template <typename T, int kVec, int kTokens>
struct TileGates {
    Vec<T, kVec> post[kTokens];
    Vec<T, kVec> residual[kTokens];
    bool has_post;
    bool has_residual;

    // Pointers are null where there is no such array, else at the first of the tokens, which has number `from`.
    template <typename Int>
    __device__ __forceinline__ TileGates(const T* post_gate, index_t post_step, const T* residual_,
                                         index_t residual_step, Int from, Int tokens)
        : has_post(post_gate != nullptr), has_residual(residual_ != nullptr) {
        if (has_post) load_tokens(post, post_gate, post_step, from, tokens);
        if (has_residual) load_tokens(residual, residual_, residual_step, from, tokens);
    }

    __device__ __forceinline__ void apply(int i, float (&y)[kVec]) const {
        if (has_post) multiply_rounded(y, post[i]);
        if (has_residual) add(y, residual[i]);
    }
};

// In the place of TileGates where there are none.
struct NoGates {
    template <int kVec>
    __device__ __forceinline__ void apply(int, const float (&)[kVec]) const {}
};
