// The causal convolution itself, for any memory layout: operands, taps, and what lies before the first token.
#pragma once

#include "causal_conv1d/conv_gates.cuh"
#include "common/activation.cuh"
#include "common/vec.cuh"

// The widest filter, in taps.
inline constexpr int kMaxWidth = 16;

template <int kWidth>
inline constexpr bool kIsWidth = kWidth >= 1 && kWidth <= kMaxWidth;

// Strides are in elements. bias, seq_idx, initial_states, final_states, the gates and residual may be null; only kGated
// kernels read the last three. bias holds float when bias_is_float32, else the type of weight; the states hold the type
// of x.
struct CausalConv1dOperands {
    const void* x;
    const void* weight;
    const void* bias;
    const int* seq_idx;
    const void* initial_states;
    void* out;
    void* final_states;
    const void* pre_gate;
    const void* post_gate;
    const void* residual;
    index_t x_stride[3];               // batch, dim, seqlen
    index_t out_stride[3];             // batch, dim, seqlen
    index_t initial_states_stride[3];  // batch, dim, width - 1
    index_t final_states_stride[3];    // batch, dim, width - 1
    index_t weight_stride[2];          // dim, width
    index_t seq_idx_stride[2];         // batch, seqlen
    index_t bias_stride;
    index_t seqlen;
    int batch;
    int dim;
    int bias_is_float32;
    int taps_are_packed;  // weight and bias are contiguous, and aligned to the taps and biases of a channel vector
    index_t pre_gate_stride[3];  // batch, dim, seqlen
    index_t post_gate_stride[3];
    index_t residual_stride[3];
};

// Lets the compiler drop the code for states when there are none: it costs registers.
template <bool kStates>
__device__ __forceinline__ CausalConv1dOperands with_states(CausalConv1dOperands p) {
    if (!kStates) p.initial_states = p.final_states = nullptr;
    return p;
}

// The bias of a channel, 0 without one. Operands: those of any convolution, with weight, bias, their strides,
// bias_is_float32 and taps_are_packed.
template <typename weight_t, typename Operands>
__device__ __forceinline__ float load_bias(const Operands& p, index_t channel) {
    if (p.bias == nullptr) return 0.0f;
    const index_t at = channel * p.bias_stride;
    if (p.bias_is_float32) return load_constant(static_cast<const float*>(p.bias) + at);
    return load<1>(static_cast<const weight_t*>(p.bias) + at).to_float(0);
}

template <int kWidth, typename weight_t, typename Operands>
__device__ __forceinline__ void load_taps(const Operands& p, index_t channel, float (&taps)[kWidth]) {
    const weight_t* weight = static_cast<const weight_t*>(p.weight) + channel * p.weight_stride[0];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) taps[k] = load<1>(weight + k * p.weight_stride[1]).to_float(0);
}

// bias + sum over k of taps[k] * x[k], where x holds the kWidth inputs that end at a token and seq their sequence
// numbers. All kernels sum in this order, so that their results are bitwise equal.
template <bool kSeqIdx, int kWidth>
__device__ __forceinline__ float convolve(const float (&taps)[kWidth], float bias, const float* x, const int* seq) {
    float sum = bias;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
        if (!kSeqIdx || seq[k] == seq[kWidth - 1]) sum = fmaf(taps[k], x[k], sum);
    }
    return sum;
}

// Multiplies taps and bias, and so their sums, by kSiluScale: a power of two, so this is exact.
template <typename out_t, int kWidth>
__device__ __forceinline__ void scale_for_silu(float (&taps)[kWidth], float& bias) {
    bias *= kSiluScale<out_t>;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) taps[k] *= kSiluScale<out_t>;
}

// The output of a token from its sum and its sequence number. kIsScaled: the sum is already scaled for silu.
template <typename out_t, bool kSilu, bool kSeqIdx, bool kIsScaled = false>
__device__ __forceinline__ float activate(float sum, int seq) {
    if (kSilu) sum = silu<out_t>(kIsScaled ? sum : sum * kSiluScale<out_t>);
    return kSeqIdx && seq < 0 ? 0.0f : sum;
}

// The sequence number of a token. Inputs before the first token count as part of the first token's sequence.
__device__ __forceinline__ int load_seq_idx(const CausalConv1dOperands& p, index_t batch, index_t token) {
    const index_t at = token < 0 ? 0 : token;
    return at < p.seqlen ? __ldg(p.seq_idx + batch * p.seq_idx_stride[0] + at * p.seq_idx_stride[1]) : -1;
}

// The input of a token before the first: from the initial state, which begins at token -(kWidth - 1), else zero.
template <int kWidth, typename input_t>
__device__ __forceinline__ input_t load_past(const CausalConv1dOperands& p, index_t batch, index_t channel,
                                             index_t token) {
    if (p.initial_states == nullptr || token < -(kWidth - 1)) return Dtype<input_t>::from_float(0.0f);
    return static_cast<const input_t*>(
        p.initial_states)[batch * p.initial_states_stride[0] + channel * p.initial_states_stride[1] +
                          (kWidth - 1 + token) * p.initial_states_stride[2]];
}

// Writes the last kWidth - 1 inputs of a row as its final state; kGated: times pre_gate.
template <int kWidth, typename input_t, bool kGated = false>
__device__ __forceinline__ void store_final_state(const CausalConv1dOperands& p, index_t batch, index_t channel) {
    const input_t* x = static_cast<const input_t*>(p.x) + batch * p.x_stride[0] + channel * p.x_stride[1];
    input_t* state =
        static_cast<input_t*>(p.final_states) + batch * p.final_states_stride[0] + channel * p.final_states_stride[1];
#pragma unroll 1
    for (int i = 0; i < kWidth - 1; ++i) {
        const index_t token = p.seqlen - (kWidth - 1) + i;
        input_t input = token >= 0 ? x[token * p.x_stride[2]] : load_past<kWidth, input_t>(p, batch, channel, token);
        if constexpr (kGated) {
            if (token >= 0 && p.pre_gate != nullptr) {
                const index_t* stride = p.pre_gate_stride;
                const input_t* const gate = static_cast<const input_t*>(p.pre_gate) + batch * stride[0] +
                                            channel * stride[1] + token * stride[2];
                input = multiply(load<1>(x + token * p.x_stride[2]), load<1>(gate)).element(0);
            }
        }
        state[i * p.final_states_stride[2]] = input;
    }
}
