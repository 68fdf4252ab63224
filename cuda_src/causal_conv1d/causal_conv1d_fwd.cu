// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for rows whose sequence is contiguous.
//
// Layout: x, out (batch, dim, seqlen), seqlen stride 1; any strides when kVec is 1. One warp owns a tile of one row:
// kSlots groups of 32 consecutive vectors, one of each group a lane. A warp's vectors are all loaded before the first
// is used; the halo of kWidth - 1 inputs comes from the lane below by shuffle, for the first group's low lanes from
// memory. No shared memory and no barrier.
//
// kWidth    filter taps              input_t   x, out and states         weight_t  weight, and bias unless float
// kVec      elements an access       kSlots    vectors a lane            kSilu     silu after the sum
// kSeqIdx   tokens see only their own sequence number                kStates   initial or final states are given
#include "causal_conv1d/conv_row.cuh"
#include "common/fastdiv.cuh"

struct CausalConv1dFwdParams {
    CausalConv1dOperands operands;
    FastDiv row_tiles;  // tiles a row
    FastDiv dim_div;    // rows a batch entry
    unsigned tiles;     // tiles in all
    index_t row_vecs;   // vectors a row
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kSlots, bool kSilu, bool kSeqIdx, bool kStates>
struct CausalConv1dFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = kRowMinBlocks<kWidth>;
    static constexpr int kWarps = kThreads / kWarpSize;
    static_assert(kWidth >= 1 && kWidth <= 16 && kSlots >= 1);
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kSlots, bool kSilu, bool kSeqIdx, bool kStates,
          typename Traits = CausalConv1dFwdTraits<kWidth, input_t, weight_t, kVec, kSlots, kSilu, kSeqIdx, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_fwd_kernel(const CausalConv1dFwdParams params) {
    using Window = ConvWindow<kWidth, input_t, kVec>;
    using Vector = typename Window::Vector;
    const CausalConv1dOperands p = with_states<kStates>(params.operands);

    const unsigned tile = blockIdx.x * Traits::kWarps + threadIdx.x / kWarpSize;
    if (tile >= params.tiles) return;  // whole warps leave: the shuffles below stay complete
    const QuotientRemainder row_tile = divide(tile, params.row_tiles);
    const QuotientRemainder batch_channel = divide(row_tile.quotient, params.dim_div);
    const ConvRow<input_t, kVec> row(p, batch_channel.quotient, batch_channel.remainder);
    const index_t first_vec = static_cast<index_t>(row_tile.remainder) * (kSlots * kWarpSize) + lane_id();

    // The neighbouring warp's vectors come last: asked for first, they would reach memory as lone sectors.
    const bool has_wrapped = lane_wraps<Window::kHaloVecs>() && row_tile.remainder > 0;
    Vector x[kSlots];
    Vector wrapped = Vector::zero();
#pragma unroll
    for (int i = 0; i < kSlots; ++i) { x[i] = load_whole(p, row, row.first_token(first_vec + i * kWarpSize)); }
    if (has_wrapped) wrapped = load_whole(p, row, row.first_token(first_vec - kWarpSize));
#pragma unroll
    for (int i = 0; i < kSlots; ++i) { add_edge<kWidth>(p, row, row.first_token(first_vec + i * kWarpSize), x[i]); }
    if (has_wrapped) add_edge<kWidth>(p, row, row.first_token(first_vec - kWarpSize), wrapped);
    float taps[kWidth];
    load_taps<kWidth, weight_t>(p, row.channel, taps);
    const float bias = load_bias<weight_t>(p, row.channel);

#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
        const index_t vec = first_vec + i * kWarpSize;
        const index_t token = row.first_token(vec);
        const Window window(p, row, token, i == 0 ? wrapped : x[i == 0 ? 0 : i - 1], x[i]);
        const ConvSums<kSeqIdx, kVec> sums(p, row.batch, token, taps, bias, window);
        store_tokens<Keep::kNormal>(p, row, token, sums.template outputs<input_t, kSilu>());
        if (p.final_states != nullptr && vec == params.row_vecs - 1) {
            store_final_state<kWidth, input_t>(p, row.batch, row.channel);
        }
    }
}
