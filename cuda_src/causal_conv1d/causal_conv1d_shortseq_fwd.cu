// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for x with contiguous tokens: short rows.
//
// Layout: x, out (batch, dim, seqlen), seqlen stride 1; any strides when kVec is 1. The vectors of all rows of one
// batch entry count as one list, of which a warp takes 32 consecutive ones, so that lanes stay busy at any row length.
// A lane holds the same place of kLaneVecs consecutive batch entries, so that one set of taps serves them all. The halo
// comes from the lane below by shuffle. There is no shared memory and no barrier.
//
// kWidth    filter taps              input_t   x, out and states         weight_t  weight, and bias unless float
// kVec      elements an access       kLaneVecs vectors a lane            kSilu     silu after the sum
// kSeqIdx   tokens see only their own sequence number                kStates   initial or final states are given
#include "causal_conv1d/conv_row.cuh"
#include "common/fastdiv.cuh"

struct CausalConv1dShortseqFwdParams {
    CausalConv1dOperands operands;
    FastDiv row_vecs;     // vectors per row
    FastDiv blocks;       // blocks per batch entry
    unsigned batch_vecs;  // vectors per batch entry
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kLaneVecs, bool kSilu, bool kSeqIdx,
          bool kStates>
struct CausalConv1dShortseqFwdTraits {
    static constexpr int kThreads = 64;
    static constexpr int kMinBlocks = kRowMinBlocks<kWidth>;
    static_assert(kIsWidth<kWidth> && kLaneVecs >= 1);
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kLaneVecs, bool kSilu, bool kSeqIdx,
          bool kStates,
          typename Traits =
              CausalConv1dShortseqFwdTraits<kWidth, input_t, weight_t, kVec, kLaneVecs, kSilu, kSeqIdx, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_shortseq_fwd_kernel(const CausalConv1dShortseqFwdParams params) {
    using Window = ConvWindow<kWidth, input_t, kVec>;
    using Vector = typename Window::Vector;
    using Row = ConvRow<input_t, kVec>;
    const CausalConv1dOperands p = with_states<kStates>(params.operands);

    const QuotientRemainder group_block = divide(blockIdx.x, params.blocks);
    const index_t batch = static_cast<index_t>(group_block.quotient) * kLaneVecs;
    const unsigned place = group_block.remainder * Traits::kThreads + threadIdx.x;
    if (place - lane_id() >= params.batch_vecs) return;  // whole warps leave: the shuffles below stay complete
    const QuotientRemainder channel_vec = divide(place, params.row_vecs);
    const bool is_place = place < params.batch_vecs;
    const index_t channel = is_place ? channel_vec.quotient : 0;

    Row rows[kLaneVecs];
    index_t tokens[kLaneVecs];
    bool is_row[kLaneVecs];
    Vector x[kLaneVecs];
    Vector wrapped[kLaneVecs];
#pragma unroll
    for (int i = 0; i < kLaneVecs; ++i) {
        is_row[i] = is_place && batch + i < p.batch;
        rows[i] = Row(p, is_row[i] ? batch + i : batch, channel);
        tokens[i] = rows[i].first_token(channel_vec.remainder);
        x[i] = is_row[i] ? load_whole(p, rows[i], tokens[i]) : Vector::zero();
        wrapped[i] = Vector::zero();
    }
    // The neighbouring warp's vectors come last: asked for first, they would reach memory as lone sectors.
    if (lane_wraps<Window::kHaloVecs>() && place >= kWarpSize) {
        const QuotientRemainder before = divide(place - kWarpSize, params.row_vecs);
        if (before.remainder + 1 < params.row_vecs.divisor) {
#pragma unroll
            for (int i = 0; i < kLaneVecs; ++i) {
                if (batch + i >= p.batch) break;
                const Row row(p, batch + i, before.quotient);
                wrapped[i] = load_whole(p, row, row.first_token(before.remainder));
                add_edge<kWidth>(p, row, row.first_token(before.remainder), wrapped[i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < kLaneVecs; ++i) {
        if (is_row[i]) add_edge<kWidth>(p, rows[i], tokens[i], x[i]);
    }
    float taps[kWidth];
    load_taps<kWidth, weight_t>(p, channel, taps);
    const float bias = load_bias<weight_t>(p, channel);

#pragma unroll
    for (int i = 0; i < kLaneVecs; ++i) {
        const Window window(p, rows[i], tokens[i], wrapped[i], x[i]);
        if (!is_row[i]) continue;
        const ConvSums<kSeqIdx, kVec> sums(p, batch + i, tokens[i], taps, bias, window);
        // Measured on an H200: 0.97 of copy on rows of 64 tokens instead of 0.91 with ordinary stores. Long rows do not
        // gain.
        store_tokens<Keep::kStream>(p, rows[i], tokens[i], sums.template outputs<input_t, kSilu>());
        if (p.final_states != nullptr && channel_vec.remainder == params.row_vecs.divisor - 1) {
            store_final_state<kWidth, input_t>(p, batch + i, channel);
        }
    }
}
