// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for packed sequences with contiguous tokens.
//
// Layout: x, out (dim, total), token stride 1; any strides when kVec is 1. There are two kinds of
// blocks. Most take every channel's tokens as one row, as causal_conv1d_fwd does: a warp has a tile of it, kLaneVecs
// groups of 32 consecutive vectors, halos come by shuffle, and a search in query_start_loc finds the sequences of the
// tile. They leave out the prefix of every sequence, its first kWidth - 1 tokens. The others compute prefixes, where a
// thread owns one channel of one sequence, and update its state: row blocks do not touch states. All blocks of 32
// channels follow each other, so that prefixes find x in the L2 cache.
//
// kWidth    filter taps              input_t   x and outputs             weight_t  weight, and bias unless float
// state_t   the pool of states       kVec      elements an access        kLaneVecs vectors a lane
// kSilu     silu after the sum
// kAddressed  slots may be in columns, states may go to other slots or be only read, there may be snapshots of them,
//             padding may stay as it is
// kGated    inputs and results are multiplied by gates, or residuals added to results
#include "causal_conv1d/conv_row.cuh"
#include "causal_conv1d/conv_tile.cuh"

struct CausalConv1dVarlenRowsFwdParams {
    CausalConv1dVarlenOperands operands;
    FastDiv group_blocks;  // blocks per 32 channels
    FastDiv row_tiles;     // tiles per row
    unsigned row_blocks;   // blocks per 32 channels that have rows
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, int kLaneVecs, bool kSilu,
          bool kAddressed, bool kGated>
struct CausalConv1dVarlenRowsFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kGroup = 32;  // channels that have consecutive blocks
    static_assert(kIsWidth<kWidth> && kLaneVecs >= 1);
};

// All tokens as the rows of one batch entry without a past.
template <bool kGated>
__device__ __forceinline__ CausalConv1dOperands as_rows(const CausalConv1dVarlenOperands& p) {
    CausalConv1dOperands rows{};
    rows.x = p.x;
    rows.seqlen = p.total;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        rows.x_stride[1 + i] = p.x_stride[i];
        if (!kGated) continue;
        rows.pre_gate_stride[1 + i] = p.pre_gate_stride[i];
        rows.post_gate_stride[1 + i] = p.post_gate_stride[i];
        rows.residual_stride[1 + i] = p.residual_stride[i];
    }
    if (kGated) {
        rows.pre_gate = p.pre_gate;
        rows.post_gate = p.post_gate;
        rows.residual = p.residual;
    }
    return rows;
}

// Stores a vector's results, and zeros for padding. Results of prefixes are left out.
template <typename input_t, int kVec>
__device__ __forceinline__ void store_by_role(const ConvRow<input_t, kVec>& row, int token, const Vec<input_t, kVec>& v,
                                              const TokenRoles<kVec>& roles) {
    if (roles.inner == TokenRoles<kVec>::kAll) {
        store(row.out + token * row.out_step, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
        input_t* const to = row.out + (token + i) * row.out_step;
        if (roles.inner >> i & 1) *to = v.element(i);
        if (roles.padding >> i & 1) *to = Dtype<input_t>::from_float(0.0f);
    }
}

// Convolves one tile of one row but for the prefixes of sequences. All lanes of a warp take part.
template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, int kLaneVecs, bool kSilu,
          bool kAddressed, bool kGated>
__device__ __forceinline__ void convolve_row_tile(const CausalConv1dVarlenOperands& p, index_t channel,
                                                  index_t row_tile) {
    using Window = ConvWindow<kWidth, input_t, kVec>;
    using Vector = typename Window::Vector;
    const CausalConv1dOperands rows = as_rows<kGated>(p);
    ConvRow<input_t, kVec> row(rows, 0, channel);
    auto destination = destination_of<input_t, 1, Ranges::kMany>(p, channel, 0, 0);
    row.out = destination.to;
    row.out_step = kVec > 1 ? 1 : destination.step;
    const index_t tile_vec = row_tile * (kLaneVecs * kWarpSize);
    const index_t first_vec = tile_vec + lane_id();

    const bool has_wrapped = lane_wraps<Window::kHaloVecs>() && row_tile > 0;
    Vector x[kLaneVecs], wrapped;
    RowGates<input_t, kVec, kLaneVecs> gates;
    load_tile<kWidth>(rows, row, first_vec, has_wrapped, x, wrapped);
    if constexpr (kGated) gates.load(rows, 0, channel, first_vec, has_wrapped);
    float taps[kWidth];
    load_taps<kWidth, weight_t>(p, channel, taps);
    const float bias = load_bias<weight_t>(p, channel);
    // One search for all groups of vectors.
    constexpr int kGroupTokens = kWarpSize * kVec;
    const int first = static_cast<int>(row.first_token(tile_vec));
    TokenRoles<kVec> roles[kLaneVecs]{};
    visit_sequences<kAddressed>(p, max(0, first), first + kLaneVecs * kGroupTokens, kWidth - 1,
                                [&](int begin, int end, bool is_sequence) {
#pragma unroll
                                    for (int i = 0; i < kLaneVecs; ++i) {
                                        const int from = first + i * kGroupTokens;
                                        if (begin < from + kGroupTokens && end > from) {
                                            roles[i].add(begin, end, is_sequence, from + lane_id() * kVec, kWidth - 1);
                                        }
                                    }
                                });

    // Behind the search, which so does not wait for inputs.
    if constexpr (kGated) gates.template open<kWidth>(rows, row, first_vec, has_wrapped, x, wrapped);
#pragma unroll
    for (int i = 0; i < kLaneVecs; ++i) {
        const int token = first + (i * kWarpSize + lane_id()) * kVec;
        const Window window(rows, row, token, i == 0 ? wrapped : x[i == 0 ? 0 : i - 1], x[i]);
        const ConvSums<false, kVec> sums(rows, 0, token, taps, bias, window);
        Vector results = sums.template outputs<input_t, kSilu>();
        if constexpr (kGated) results = gates.template apply<kSilu>(i, sums);
        store_by_role(row, token, results, roles[i]);
    }
}

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, int kLaneVecs, bool kSilu,
          bool kAddressed, bool kGated,
          typename Traits = CausalConv1dVarlenRowsFwdTraits<kWidth, input_t, weight_t, state_t, kVec, kLaneVecs, kSilu,
                                                            kAddressed, kGated>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_rows_fwd_kernel(const CausalConv1dVarlenRowsFwdParams params) {
    const CausalConv1dVarlenOperands& p = params.operands;

    const QuotientRemainder group_block = divide(blockIdx.x, params.group_blocks);
    const index_t first_channel = static_cast<index_t>(group_block.quotient) * Traits::kGroup;
    const unsigned warp = threadIdx.x / kWarpSize;
    if (group_block.remainder < params.row_blocks) {
        const QuotientRemainder row_tile = divide(group_block.remainder * Traits::kWarps + warp, params.row_tiles);
        const index_t channel = first_channel + row_tile.quotient;
        // Whole warps leave: the shuffles stay complete.
        if (row_tile.quotient >= Traits::kGroup || channel >= p.dim) return;
        convolve_row_tile<kWidth, input_t, weight_t, state_t, kVec, kLaneVecs, kSilu, kAddressed, kGated>(
            p, channel, row_tile.remainder);
        return;
    }
    if constexpr (kAddressed) {
        const unsigned snapshot_block = params.group_blocks.divisor - p.snapshot_groups;
        if (group_block.remainder >= snapshot_block) {
            const index_t channel = first_channel + lane_id();
            const unsigned group = (group_block.remainder - snapshot_block) * Traits::kWarps + warp;
            store_snapshots_of_warp<kWidth, input_t, state_t, kGated>(p, static_cast<int>(group) * kWarpSize, channel);
            return;
        }
    }
    if constexpr (kWidth > 1) {
        const int first = static_cast<int>((group_block.remainder - params.row_blocks) * Traits::kWarps);
        const int number = first + static_cast<int>(warp);
        const index_t channel = first_channel + lane_id();
        SnapshotRows rows{0, 0};
        if constexpr (kAddressed) rows = find_prefix_snapshots<Traits::kThreads, kWidth>(p, first, Traits::kWarps);
        if (number >= p.sequences || channel >= p.dim) return;
        convolve_prefix<kWidth, input_t, weight_t, state_t, 1, kSilu, Ranges::kMany, kAddressed, kGated>(
            p, rows, number, channel);
    }
}
