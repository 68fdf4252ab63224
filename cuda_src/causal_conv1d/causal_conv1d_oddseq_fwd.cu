// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for short rows of any length, end to end.
//
// Layout: x, out (batch, dim, seqlen), each batch entry contiguous and aligned to kVec elements, seqlen >= kVec.
// Vectors are cut from a batch entry as if it were one row, so that all of them are aligned and whole. A vector may
// hold the end of a row and the beginning of the next; its lane then computes the sums of both. A lane holds the same
// vector of kLaneVecs consecutive batch entries, so that one set of taps serves them all. The halo comes from the lane
// below by shuffle, whatever row it belongs to, and each row replaces what comes before its first token. There is no
// shared memory and no barrier.
//
// kWidth    filter taps              input_t   x, out and states         weight_t  weight, and bias unless float
// kVec      elements an access       kLaneVecs vectors a lane            kSilu     silu after the sum
// kSeqIdx   tokens see only their own sequence number                kStates   initial or final states are given
#include "causal_conv1d/conv_row.cuh"
#include "common/fastdiv.cuh"

struct CausalConv1dOddseqFwdParams {
    CausalConv1dOperands operands;
    FastDiv row;          // elements per row
    FastDiv blocks;       // blocks per batch entry
    unsigned batch_vecs;  // vectors per batch entry
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kLaneVecs, bool kSilu, bool kSeqIdx,
          bool kStates>
struct CausalConv1dOddseqFwdTraits {
    static constexpr int kThreads = 64;
    static constexpr int kMinBlocks = kRowMinBlocks<kWidth>;
    static_assert(kIsWidth<kWidth> && kLaneVecs >= 1);
};

// The window that begins kWidth - 1 tokens before `token` of a row, with the row's past in place of inputs that precede
// its first token.
template <int kWidth, typename input_t, int kVec>
__device__ __forceinline__ ConvWindow<kWidth, input_t, kVec> seen_from(const CausalConv1dOperands& p,
                                                                       ConvWindow<kWidth, input_t, kVec> window,
                                                                       index_t batch, index_t channel, index_t token) {
    constexpr int kHalo = kWidth - 1;
    if (token >= kHalo) return window;
    const int past = kHalo - static_cast<int>(token);
    const auto replace = [&](int i) {
        if (i >= past) return;
        window.x[i] = Dtype<input_t>::to_float(load_past<kWidth, input_t>(p, batch, channel, token - kHalo + i));
    };
#pragma unroll
    for (int i = 0; i < kHalo; ++i) replace(i);
    if (token >= 0) return window;
#pragma unroll
    for (int i = kHalo; i < kHalo + kVec; ++i) replace(i);
    return window;
}

template <
    int kWidth, typename input_t, typename weight_t, int kVec, int kLaneVecs, bool kSilu, bool kSeqIdx, bool kStates,
    typename Traits = CausalConv1dOddseqFwdTraits<kWidth, input_t, weight_t, kVec, kLaneVecs, kSilu, kSeqIdx, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_oddseq_fwd_kernel(const CausalConv1dOddseqFwdParams params) {
    using Window = ConvWindow<kWidth, input_t, kVec>;
    using Vector = typename Window::Vector;
    const CausalConv1dOperands p = with_states<kStates>(params.operands);

    const QuotientRemainder group_block = divide(blockIdx.x, params.blocks);
    const index_t batch = static_cast<index_t>(group_block.quotient) * kLaneVecs;
    const unsigned place = group_block.remainder * Traits::kThreads + threadIdx.x;
    if (place - lane_id() >= params.batch_vecs) return;  // whole warps leave: the shuffles below stay complete

    // Elements from `first` to `count` - 1 of a batch entry: some end the row of `channel`, the rest begin the next.
    const bool is_place = place < params.batch_vecs;
    const unsigned first = (is_place ? place : 0) * kVec;
    const unsigned count = p.dim * params.row.divisor;
    const int end = count - first < kVec ? static_cast<int>(count - first) : kVec;
    const QuotientRemainder channel_token = divide(first, params.row);
    const index_t channel = channel_token.quotient;
    const index_t token = channel_token.remainder;
    const index_t next_token = token - p.seqlen;
    const bool has_next = next_token + kVec > 0 && channel + 1 < p.dim;

    Vector x[kLaneVecs];
    Vector wrapped[kLaneVecs];
#pragma unroll
    for (int i = 0; i < kLaneVecs; ++i) {
        x[i] = Vector::zero();
        wrapped[i] = Vector::zero();
        if (is_place && end == kVec && batch + i < p.batch) {
            x[i] = load<kVec>(static_cast<const input_t*>(p.x) + (batch + i) * p.x_stride[0] + first);
        }
    }
    // The neighbouring warp's vectors come last: asked for first, they would reach memory as lone sectors.
    if (lane_wraps<Window::kHaloVecs>() && place >= kWarpSize) {
        const unsigned before = (place - kWarpSize) * kVec;
#pragma unroll
        for (int i = 0; i < kLaneVecs; ++i) {
            if (batch + i >= p.batch) break;
            wrapped[i] = load<kVec>(static_cast<const input_t*>(p.x) + (batch + i) * p.x_stride[0] + before);
        }
    }
    float taps[kWidth];
    load_taps<kWidth, weight_t>(p, channel, taps);
    const float bias = load_bias<weight_t>(p, channel);
    float next_taps[kWidth];
    load_taps<kWidth, weight_t>(p, has_next ? channel + 1 : channel, next_taps);
    const float next_bias = load_bias<weight_t>(p, has_next ? channel + 1 : channel);
#pragma unroll
    for (int i = 0; i < kLaneVecs; ++i) {
        if (is_place && end < kVec && batch + i < p.batch) {
            x[i] = load_part<kVec>(static_cast<const input_t*>(p.x) + (batch + i) * p.x_stride[0] + first, 0, end);
        }
    }

#pragma unroll
    for (int i = 0; i < kLaneVecs; ++i) {
        const Window lanes(wrapped[i], x[i], [](Vector&, int) {});
        if (!is_place || batch + i >= p.batch) continue;
        ConvSums<kSeqIdx, kVec> sums(p, batch + i, token, taps, bias,
                                     seen_from<kWidth>(p, lanes, batch + i, channel, token));
        if (has_next) {
            const Window window = seen_from<kWidth>(p, lanes, batch + i, channel + 1, next_token);
            const ConvSums<kSeqIdx, kVec> next(p, batch + i, next_token, next_taps, next_bias, window);
            sums.replace_from(static_cast<int>(-next_token), next);
        }
        const Vector y = sums.template outputs<input_t, kSilu>();
        input_t* out = static_cast<input_t*>(p.out) + (batch + i) * p.out_stride[0] + first;
        if (end == kVec) {
            store<Keep::kStream>(out, y);
        } else {
            store_part(out, y, 0, end);
        }
        if (p.final_states != nullptr && next_token + kVec >= 0) {
            store_final_state<kWidth, input_t>(p, batch + i, channel);
        }
    }
}
