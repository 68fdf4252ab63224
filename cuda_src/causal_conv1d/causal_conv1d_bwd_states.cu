// Gradients of the initial states of packed sequences, behind causal_conv1d_bwd: walks along sequences leave these,
// too. A sequence's first width - 1 sums see its state xe[0] to xe[width - 2]; with their gradients g[0] to g[width -
// 2], zero behind its last token:
//
//     dinitial[j] = sum_{i <= j} weight[j - i] * g[i], and what the final state's gradient has for a column of xe
//
// Layout: any strides. A thread owns one channel of one sequence; consecutive threads own consecutive channels. A
// sequence without initial state, or with a slot that is padding, gets zeros. The first blocks add up what the
// launch before has left of the parameters' sums: a launch of their own would take longer.
//
// kWidth    filter taps              input_t   x and dout                weight_t  weight, and bias unless float
// kSilu     silu after the sum
#include "causal_conv1d/conv_bwd_sum.cuh"

struct CausalConv1dBwdStatesParams {
    CausalConv1dBwdOperands operands;
    FastDiv dim_blocks;   // blocks across the channels
    unsigned sum_blocks;  // blocks that add up sums
    FastDiv dim_div;
    unsigned parts;
    unsigned across_shift;  // binary logarithm of the sums of a part that a block has
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu>
struct CausalConv1dBwdStatesTraits {
    static constexpr int kThreads = 256;
    static constexpr int kMinBlocks = 1;
    static constexpr int kHalo = kWidth - 1;
    static_assert(kWidth >= 2 && kWidth <= 16);
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu,
          typename Traits = CausalConv1dBwdStatesTraits<kWidth, input_t, weight_t, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_bwd_states_kernel(const CausalConv1dBwdStatesParams params) {
    constexpr int kHalo = Traits::kHalo;
    const CausalConv1dBwdOperands& p = params.operands;

    if (blockIdx.x < params.sum_blocks) {
        add_up_parts<kWidth, weight_t, Traits::kThreads>(p, params, blockIdx.x);
        return;
    }
    wait_for_leader();
    const QuotientRemainder sequence_block = divide(blockIdx.x - params.sum_blocks, params.dim_blocks);
    const int number = static_cast<int>(sequence_block.quotient);
    const index_t channel = static_cast<index_t>(sequence_block.remainder) * Traits::kThreads + threadIdx.x;
    if (channel >= p.dim) return;
    const int begin = first_token(p, number);
    const int end = max(begin, first_token(p, number + 1));
    const int slot = load_slot(p, number);
    if (slot < 0 || !follows_state(p, number)) {
        for (int j = 0; j < kHalo; ++j) store_initial_gradient<input_t>(p, number, channel, j, 0.0f);
        return;
    }

    float taps[kWidth];
    load_taps<kWidth, weight_t>(p, channel, taps);
    float bias = load_bias<weight_t>(p, channel);
    if constexpr (kSilu) scale_for_silu<input_t>(taps, bias);
    const input_t* x = static_cast<const input_t*>(p.x) + channel * p.x_stride[1];
    const input_t* dout = static_cast<const input_t*>(p.dout) + channel * p.dout_stride[1];
    float inputs[2 * kHalo];
    float gradients[kHalo];
#pragma unroll
    for (int i = 0; i < kHalo; ++i) {
        inputs[i] = load_initial<input_t>(p, slot, channel, i);
        const bool is_there = begin + i < end;
        inputs[kHalo + i] = is_there ? Dtype<input_t>::to_float(x[(begin + i) * p.x_stride[2]]) : 0.0f;
        gradients[i] = is_there ? Dtype<input_t>::to_float(dout[(begin + i) * p.dout_stride[2]]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kHalo; ++i) {
        float window[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) window[k] = inputs[i + k];
        gradients[i] = token_gradient<kSilu, input_t>(taps, bias, window, gradients[i]);
    }
#pragma unroll
    for (int j = 0; j < kHalo; ++j) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i <= j; ++i) sum = fmaf(taps[j - i], gradients[i], sum);
        sum += final_gradient<kWidth, input_t>(p, number, channel, begin - kHalo + j, end);
        store_initial_gradient<input_t>(p, number, channel, j, sum);
    }
}
