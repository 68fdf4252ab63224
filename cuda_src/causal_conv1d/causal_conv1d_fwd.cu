// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for x with contiguous tokens: long rows.
//
// Layout: x, out (batch, dim, seqlen), seqlen stride 1; any strides when kVec is 1. A row is the tokens of one channel.
// One warp owns a tile of one row: kLaneVecs groups of 32 consecutive vectors, of which each lane has one per group. A
// warp loads all its vectors before it uses the first; the halo of kWidth - 1 inputs comes from the lane below by
// shuffle, and from memory for the first group's lowest lanes. There is no shared memory and no barrier.
//
// kWidth    filter taps              input_t   x, out and states         weight_t  weight, and bias unless float
// kVec      elements an access       kLaneVecs vectors a lane            kSilu     silu after the sum
// kSeqIdx   tokens see only their own sequence number                kStates   initial or final states are given
// kGated    inputs and results are multiplied by gates, or residuals added to results
// kShifted  rows of x are not as far from alignment as those of out: vectors lie where out is aligned
#include "causal_conv1d/conv_row.cuh"
#include "common/fastdiv.cuh"

struct CausalConv1dFwdParams {
    CausalConv1dOperands operands;
    FastDiv row_tiles;  // tiles per row
    FastDiv dim_div;    // rows per batch entry
    unsigned tiles;     // tiles of the launch
    index_t row_vecs;   // vectors per row
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kLaneVecs, bool kSilu, bool kSeqIdx,
          bool kStates, bool kGated, bool kShifted>
struct CausalConv1dFwdTraits {
    static constexpr int kThreads = 128;
    // With sequence numbers 0.75 of copy (H200) instead of 0.70 with as many blocks as fit.
    static constexpr int kMinBlocks = kSeqIdx && !kStates && !kGated && kWidth <= 4 ? 8 : kRowMinBlocks<kWidth>;
    static constexpr int kWarps = kThreads / kWarpSize;
    static_assert(kIsWidth<kWidth> && kLaneVecs >= 1);
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kLaneVecs, bool kSilu, bool kSeqIdx,
          bool kStates, bool kGated, bool kShifted,
          typename Traits = CausalConv1dFwdTraits<kWidth, input_t, weight_t, kVec, kLaneVecs, kSilu, kSeqIdx, kStates,
                                                  kGated, kShifted>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_fwd_kernel(const CausalConv1dFwdParams params) {
    using Window = ConvWindow<kWidth, input_t, kVec>;
    using Vector = typename Window::Vector;
    const CausalConv1dOperands p = with_states<kStates>(params.operands);

    const unsigned tile = blockIdx.x * Traits::kWarps + threadIdx.x / kWarpSize;
    if (tile >= params.tiles) return;  // whole warps leave: the shuffles below stay complete
    const QuotientRemainder row_tile = divide(tile, params.row_tiles);
    const QuotientRemainder batch_channel = divide(row_tile.quotient, params.dim_div);
    ConvRow<input_t, kVec> row(p, batch_channel.quotient, batch_channel.remainder);
    if constexpr (kShifted) row.phase = reinterpret_cast<size_t>(row.out) / sizeof(input_t) % kVec;
    const index_t first_vec = static_cast<index_t>(row_tile.remainder) * (kLaneVecs * kWarpSize) + lane_id();

    // The neighbouring warp's vectors come last: asked for first, they would reach memory as lone sectors.
    const bool has_wrapped = lane_wraps<Window::kHaloVecs>() && row_tile.remainder > 0;
    Vector x[kLaneVecs];
    Vector wrapped = Vector::zero();
    RowGates<input_t, kVec, kLaneVecs> gates;
    if constexpr (kGated) {
        CausalConv1dOperands present = p;
        present.initial_states = nullptr;
        load_tile<kWidth>(present, row, first_vec, has_wrapped, x, wrapped);
        gates.load(p, row.batch, row.channel, first_vec, has_wrapped);
    } else if constexpr (kShifted) {
        load_shifted_tile<kWidth>(p, row, first_vec, has_wrapped, x, wrapped);
    } else {
#pragma unroll
        for (int i = 0; i < kLaneVecs; ++i) { x[i] = load_whole(p, row, row.first_token(first_vec + i * kWarpSize)); }
        if (has_wrapped) wrapped = load_whole(p, row, row.first_token(first_vec - kWarpSize));
#pragma unroll
        for (int i = 0; i < kLaneVecs; ++i) {
            add_edge<kWidth>(p, row, row.first_token(first_vec + i * kWarpSize), x[i]);
        }
        if (has_wrapped) add_edge<kWidth>(p, row, row.first_token(first_vec - kWarpSize), wrapped);
    }
    float taps[kWidth];
    load_taps<kWidth, weight_t>(p, row.channel, taps);
    const float bias = load_bias<weight_t>(p, row.channel);
    // Behind the filter, which so does not wait for inputs.
    if constexpr (kGated) gates.template open<kWidth>(p, row, first_vec, has_wrapped, x, wrapped);

#pragma unroll
    for (int i = 0; i < kLaneVecs; ++i) {
        const index_t vec = first_vec + i * kWarpSize;
        const index_t token = row.first_token(vec);
        const Window window(p, row, token, i == 0 ? wrapped : x[i == 0 ? 0 : i - 1], x[i]);
        const ConvSums<kSeqIdx, kVec> sums(p, row.batch, token, taps, bias, window);
        Vector results = sums.template outputs<input_t, kSilu>();
        if constexpr (kGated) results = gates.template apply<kSilu>(i, sums);
        store_tokens<Keep::kWhole>(p, row, token, results);
        if (p.final_states != nullptr && vec == params.row_vecs - 1) {
            store_final_state<kWidth, input_t, kGated>(p, row.batch, row.channel);
        }
    }
}
