// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for x with contiguous channels.
//
// Layout: x, out (batch, dim, seqlen), dim stride 1; any strides when kVec is 1. A thread owns kVec channels of kTokens
// consecutive tokens. It loads all kWidth - 1 + kTokens input vectors before it uses the first: neighbouring threads
// load the halo as well, so it comes from the L1 cache. Threads of a block lie along channels first, then along tokens.
// There is no shared memory and no barrier, and no tile waits for another.
//
// kWidth    filter taps              input_t   x, out and states         weight_t  weight, and bias unless float
// kVec      channels an access       kTokens   tokens a thread           kSilu     silu after the sum
// kSeqIdx   tokens see only their own sequence number                kStates   initial or final states are given
// kGated    inputs and results are multiplied by gates, or residuals added to results
#include "causal_conv1d/conv_channels.cuh"
#include "common/fastdiv.cuh"

struct CausalConv1dChannellastFwdParams {
    CausalConv1dOperands operands;
    FastDiv block_vecs;   // channel vectors per block
    FastDiv dim_blocks;   // blocks across the channels
    FastDiv time_blocks;  // blocks along the sequence
    unsigned tiles;       // tiles of kTokens per block
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, bool kSeqIdx,
          bool kStates, bool kGated>
struct CausalConv1dChannellastFwdTraits {
    static constexpr int kThreads = 128;
    // Half of a multiprocessor's threads when taps and window fit 64 registers.
    static constexpr bool kIsLean = kWidth <= 4 && !kSeqIdx && !kStates && !kGated;
    // Instead of as many as fit, on an H200: 0.95 of copy instead of 0.77 with states, 0.82 instead of 0.66 with
    // sequence numbers, which take more registers.
    static constexpr int kMinBlocks = kIsLean ? 8 : kWidth > 4 || kGated ? 1 : kSeqIdx ? 6 : 8;
    // Scaling the taps saves one multiplication per output. Without the bound on registers it costs occupancy.
    static constexpr bool kIsScaled = kSilu && kIsLean;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kRows = kHalo + kTokens;
    static_assert(kIsWidth<kWidth> && kTokens >= 1);
};

// An array beside x at kVec channels of a token; null where there is no array.
template <typename T, int kVec>
__device__ __forceinline__ const T* beside_x(const void* array, const index_t* stride, index_t batch, index_t channel,
                                             index_t token) {
    if (array == nullptr) return nullptr;
    return static_cast<const T*>(array) + batch * stride[0] + channel * (kVec > 1 ? 1 : stride[1]) + token * stride[2];
}

template <typename Gates, typename input_t, int kVec>
__device__ __forceinline__ Gates gates_of(const CausalConv1dOperands& p, index_t batch, index_t channel,
                                          index_t token) {
    if constexpr (kIsSame<Gates, NoGates>) {
        return {};
    } else {
        return {beside_x<input_t, kVec>(p.post_gate, p.post_gate_stride, batch, channel, token),
                p.post_gate_stride[2],
                beside_x<input_t, kVec>(p.residual, p.residual_stride, batch, channel, token),
                p.residual_stride[2],
                token,
                p.seqlen};
    }
}

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, bool kSeqIdx,
          bool kStates, bool kGated,
          typename Traits = CausalConv1dChannellastFwdTraits<kWidth, input_t, weight_t, kVec, kTokens, kSilu, kSeqIdx,
                                                             kStates, kGated>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_channellast_fwd_kernel(const CausalConv1dChannellastFwdParams params) {
    using Vector = Vec<input_t, kVec>;
    constexpr int kHalo = Traits::kHalo;
    constexpr int kRows = Traits::kRows;
    const CausalConv1dOperands p = with_states<kStates>(params.operands);

    const QuotientRemainder tile_vec = divide(threadIdx.x, params.block_vecs);
    const QuotientRemainder rest_dim = divide(blockIdx.x, params.dim_blocks);
    const QuotientRemainder batch_time = divide(rest_dim.quotient, params.time_blocks);
    const index_t batch = batch_time.quotient;
    const index_t channel =
        (static_cast<index_t>(rest_dim.remainder) * params.block_vecs.divisor + tile_vec.remainder) * kVec;
    const index_t token = (static_cast<index_t>(batch_time.remainder) * params.tiles + tile_vec.quotient) * kTokens;
    if (tile_vec.quotient >= params.tiles || channel >= p.dim || token > 0 && token >= p.seqlen) return;

    // Row i holds token + i - kHalo; rows begin to end - 1 lie inside the sequence.
    const int begin = token < kHalo ? kHalo - static_cast<int>(token) : 0;
    const int end = p.seqlen - token < kTokens ? kHalo + static_cast<int>(p.seqlen - token) : kRows;
    const index_t x_step = p.x_stride[2];
    const input_t* x_tile = static_cast<const input_t*>(p.x) + batch * p.x_stride[0] +
                            channel * (kVec > 1 ? 1 : p.x_stride[1]) + (token - kHalo) * x_step;
    Vector x[kRows];
    if (begin == 0 && end == kRows) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) x[i] = load<kVec>(x_tile + i * x_step);
    } else {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            x[i] = Vector::zero();
            if (i >= begin && i < end) x[i] = load<kVec>(x_tile + i * x_step);
        }
        if (begin > 0 && p.initial_states != nullptr) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) {
#pragma unroll
                for (int c = 0; c < kVec; ++c) {
                    if (i < begin) x[i].put(c, load_past<kWidth, input_t>(p, batch, channel + c, token + i - kHalo));
                }
            }
        }
    }

    if constexpr (kGated) {
        if (p.pre_gate != nullptr) {
            const index_t step = p.pre_gate_stride[2];
            Vector gates[kRows];
            load_tokens(gates, beside_x<input_t, kVec>(p.pre_gate, p.pre_gate_stride, batch, channel, token - kHalo),
                        step, token - kHalo, p.seqlen);
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                if (i >= begin) x[i] = multiply(x[i], gates[i]);
            }
        }
    }
    const ChannelFilter<kWidth, weight_t, kVec> filter(p, channel);
    float bias[kVec];
    float taps[kVec][kWidth];
    filter.to_floats(taps, bias);
    if constexpr (Traits::kIsScaled) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) scale_for_silu<input_t>(taps[c], bias[c]);
    }
    int seq[kRows];
    if constexpr (kSeqIdx) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) seq[i] = load_seq_idx(p, batch, token + i - kHalo);
    }

    using Gates = Select<kGated, TileGates<input_t, kVec, kTokens>, NoGates>;
    const Gates gates = gates_of<Gates, input_t, kVec>(p, batch, channel, token);
    const index_t out_step = p.out_stride[2];
    input_t* out_tile = static_cast<input_t*>(p.out) + batch * p.out_stride[0] +
                        channel * (kVec > 1 ? 1 : p.out_stride[1]) + token * out_step;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
        float out[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = x[i + k].to_float(c);
            out[c] = activate<input_t, kSilu, kSeqIdx, Traits::kIsScaled>(
                convolve<kSeqIdx>(taps[c], bias[c], window, seq + i), seq[kHalo + i]);
        }
        gates.apply(i, out);
        if constexpr (kGated && kSeqIdx) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) out[c] = seq[kHalo + i] < 0 ? 0.0f : out[c];
        }
        if (kHalo + i < end) store(out_tile + i * out_step, Vector::from_floats(out));
    }
    if (p.final_states != nullptr && token + kTokens >= p.seqlen) {
#pragma unroll 1
        for (int c = 0; c < kVec; ++c) store_final_state<kWidth, input_t, kGated>(p, batch, channel + c);
    }
}
