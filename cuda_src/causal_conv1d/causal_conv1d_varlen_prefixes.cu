// The first of two launches for packed sequences with contiguous channels and results over x: all that reads inputs
// which the second one, causal_conv1d_varlen_over_fwd, overwrites. It keeps the inputs at borders between tiles and the
// results of prefixes in scratch (conv_borders.cuh, conv_state.cuh), updates states and stores snapshots.
//
// Layout: x (dim, total), dim stride 1; any strides when kVec is 1. A warp has a border, a prefix or some rows of
// snapshots in 32 channel vectors, and in the next 32 of its share of the channels: what it knows of a sequence took
// one load after another. The warps of a block are of one kind.
//
// kWidth    filter taps              input_t   x and out                 weight_t  weight, and bias unless float
// state_t   the pool of states       kVec      channels an access        kSilu     silu after the sum
#include "causal_conv1d/conv_borders.cuh"
#include "causal_conv1d/conv_state.cuh"

struct CausalConv1dVarlenPrefixesParams {
    CausalConv1dVarlenOperands operands;
    FastDiv dim_shares;  // shares of the channels
    int share;           // channels of a share, a multiple of those of a warp
    int borders;
    int border_groups;  // blocks with borders, for 32 channel vectors
    int prefix_groups;  // blocks with prefixes
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu>
struct CausalConv1dVarlenPrefixesTraits {
    static constexpr int kThreads = 128;
    static constexpr int kLeanBlocks = 6;
    static constexpr int kMinBlocks = kWidth <= 4 ? kLeanBlocks : 1;
    static constexpr int kWarps = kThreads / kWarpSize;
    static_assert(kIsWidth<kWidth>);
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu,
          typename Traits = CausalConv1dVarlenPrefixesTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_prefixes_kernel(const CausalConv1dVarlenPrefixesParams params) {
    const CausalConv1dVarlenOperands& p = params.operands;
    let_follower_start();

    const QuotientRemainder group_dim = divide(blockIdx.x, params.dim_shares);
    const index_t first_channel = static_cast<index_t>(group_dim.remainder) * params.share;
    const index_t last = min(first_channel + params.share, static_cast<index_t>(p.dim));
    const index_t own_channel = first_channel + lane_id() * kVec;
    constexpr int kStep = kWarpSize * kVec;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    int group = static_cast<int>(group_dim.quotient);
    if constexpr (kWidth > 1) {
        if (group < params.border_groups) {
            const int tile = group * Traits::kWarps + warp + 1;
            if (tile > params.borders) return;
#pragma unroll 2
            for (index_t channel = own_channel; channel < last; channel += kStep) {
                Border<kWidth, input_t, state_t, kVec>(p, tile, channel).keep_inputs(p, tile, channel);
            }
            return;
        }
        group -= params.border_groups;
        if (group < params.prefix_groups) {
            const int first = group * Traits::kWarps;
            const SnapshotRows rows = find_prefix_snapshots<Traits::kThreads, kWidth>(p, first, Traits::kWarps);
            if (first + warp >= p.sequences) return;
            SequencePrefix<kWidth, input_t, state_t, kVec, true> prefix(p, first + warp);
            if (prefix.length == 0) return;
#pragma unroll 1
            for (index_t channel = own_channel; channel < last; channel += kStep) {
                convolve_found_prefix<kWidth, input_t, weight_t, state_t, kVec, kSilu, Ranges::kOne, true, false, true>(
                    p, rows, prefix, channel);
            }
            return;
        }
        group -= params.prefix_groups;
    }
#pragma unroll 1
    for (index_t channel = own_channel; channel < last; channel += kStep) {
        store_inner_snapshots<kSnapshotsAtOnce, kWidth, input_t, state_t, kVec, false>(
            p, (group * Traits::kWarps + warp) * kSnapshotsAtOnce, channel);
    }
}
