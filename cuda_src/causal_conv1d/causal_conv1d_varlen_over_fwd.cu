// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for packed sequences with contiguous channels, where
// out is x itself. The launch in front, causal_conv1d_varlen_prefixes, leaves two things in scratch: the inputs before
// each block's tokens, which another block may have overwritten, and the results of prefixes. This one starts early: it
// loads inputs and finds sequences while the first one runs.
//
// Layout: x (dim, total), dim stride 1; any strides when kVec is 1. A thread owns kVec channels of kTokens consecutive
// tokens, as in causal_conv1d_varlen_fwd, and no thread of a block stores before all have loaded.
//
// kWidth    filter taps              input_t   x and out                 weight_t  weight, and bias unless float
// kVec      channels an access       kTokens   tokens a thread           kSilu     silu after the sum
// kFollows  there is a launch in front
#include "causal_conv1d/conv_borders.cuh"
#include "causal_conv1d/conv_tile.cuh"

struct CausalConv1dVarlenOverFwdParams {
    CausalConv1dVarlenOperands operands;
    FastDiv block_vecs;  // channel vectors per block
    FastDiv dim_blocks;  // blocks across the channels
    int tiles;           // tiles per block
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, bool kFollows>
struct CausalConv1dVarlenOverFwdTraits {
    static constexpr int kThreads = 256;
    // Channel vectors per block at most. On an H200 1 x 8192 takes 77.7 us; 78 to 84 with 16 and 128, 256 or 512
    // threads, 77.4 and 82.8 with 32 and 512 or 128.
    static constexpr int kBlockVecs = 32;
    static constexpr bool kIsLean = kWidth <= 4;
    static constexpr int kLeanBlocks = kArch == 90 ? 4 : 3;  // elsewhere a few variants would spill
    static constexpr int kMinBlocks = kIsLean ? kLeanBlocks : 1;
    static constexpr bool kIsScaled = kSilu && kIsLean;
    static_assert(kIsWidth<kWidth> && kTokens >= 1 && kTokens < 32);
};

// The roles of the tokens of a block's tiles, and the rows of scratch that results of prefixes wait in.
template <int kWidth, int kTokens, int kThreads>
struct OverRoles {
    static constexpr int kHalo = kWidth - 1;
    TokenRoles<kTokens, true>* roles;  // in shared memory, one per tile
    int* rows;                         // one per token

    __device__ __forceinline__ OverRoles() {
        __shared__ TokenRoles<kTokens, true> shared_roles[kThreads];
        __shared__ int shared_rows[kThreads * kTokens];
        roles = shared_roles;
        rows = shared_rows;
    }

    // All threads call this before a barrier, for the tiles of the tokens from `first` on.
    __device__ __forceinline__ void find(const CausalConv1dVarlenOperands& p, int first, int tiles) const {
        const int first_of_warp = static_cast<int>(threadIdx.x) - lane_id();
        if (first_of_warp >= tiles) return;
        const int from = first + first_of_warp * kTokens;
        const int to = first + min(tiles, first_of_warp + kWarpSize) * kTokens;
        const int token = first + min(static_cast<int>(threadIdx.x), tiles - 1) * kTokens;
        TokenRoles<kTokens, true> own{};
        visit_runs<true>(p, from, to, [&](int number, int begin, int end, int slot, unsigned left) {
            const unsigned sequences = lanes_where(slot >= 0);
            if (p.keeps_padding) left &= sequences;
            left &= ~lanes_where(slot >= 0 && is_alone<kWidth>(p, end - begin));
            const int row = PrefixRows<kWidth>(p).first(number, begin);
            for (; left != 0; left &= left - 1) {
                const int lane = lowest(left);
                const bool is_sequence = (sequences >> lane & 1) != 0;
                const int run_begin = from_lane(begin, lane), run_row = from_lane(row, lane);
                const int run_end = from_lane(end, lane);
                own.add(run_begin, run_end, is_sequence, token, kHalo);
                const int prefix = run_begin + lane_id();
                if (is_sequence && lane_id() < kHalo && prefix >= from && prefix < min(run_end, to)) {
                    rows[prefix - first] = run_row + lane_id();
                }
            }
        });
        roles[threadIdx.x] = own;
    }
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, bool kFollows,
          typename Traits = CausalConv1dVarlenOverFwdTraits<kWidth, input_t, weight_t, kVec, kTokens, kSilu, kFollows>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_over_fwd_kernel(const CausalConv1dVarlenOverFwdParams params) {
    using Inputs = TileInputs<kWidth, input_t, kVec, kTokens, false, Memory::kMutable>;
    const CausalConv1dVarlenOperands& p = params.operands;

    const QuotientRemainder row_vec = divide(threadIdx.x, params.block_vecs);
    const QuotientRemainder group_dim = divide(blockIdx.x, params.dim_blocks);
    const index_t own_channel =
        (static_cast<index_t>(group_dim.remainder) * params.block_vecs.divisor + row_vec.remainder) * kVec;
    const int group = static_cast<int>(group_dim.quotient), row = static_cast<int>(row_vec.quotient);
    // Idle threads read another thread's memory: all of them take part in the search.
    const bool is_idle = row >= params.tiles || own_channel >= p.dim;
    const index_t channel = is_idle ? 0 : own_channel;
    const int tile = min(row, params.tiles - 1);
    const int first = group * params.tiles * kTokens, token = first + tile * kTokens;
    const ChannelFilter<kWidth, weight_t, kVec> filter(p, channel);
    Inputs inputs(p, token, channel);
    const OverRoles<kWidth, kTokens, Traits::kThreads> block_roles;
    block_roles.find(p, first, params.tiles);
    if constexpr (kFollows) wait_for_leader();
    const int before = kWidth - 1 - tile * kTokens;  // inputs before the block's tokens
    if (before > 0 && group > 0) {
        const Border<kWidth, input_t, input_t, kVec> border(p, group, channel);
#pragma unroll
        for (int i = 0; i < kWidth - 1; ++i) {
            if (i < before) inputs.x[i] = border.load_input(kWidth - 1 - before + i);
        }
    }
    float bias[kVec];
    float taps[kVec][kWidth];
    filter.to_floats(taps, bias);
    if constexpr (Traits::kIsScaled) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) scale_for_silu<input_t>(taps[c], bias[c]);
    }
    // Behind the barrier all inputs of the block are there.
    __syncthreads();
    const TokenRoles<kTokens, true> roles = block_roles.roles[tile];
    if (is_idle) return;
    const index_t step = p.x_stride[1];
    input_t* const x = static_cast<input_t*>(p.out[0]) + along_channels<kVec>(channel, p.x_stride[0]) + token * step;
    if (roles.inner != 0) {
        input_t* to = x;
#pragma unroll
        for (int i = 0; i < kTokens; ++i, to += step) {
            float y[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                y[c] = inputs.template output<kSilu, Traits::kIsScaled>(i, c, taps[c], bias[c]);
            }
            if (roles.inner >> i & 1) store(to, Vec<input_t, kVec>::from_floats(y));
        }
    }
    if (roles.padding != 0) {
        input_t* to = x;
#pragma unroll
        for (int i = 0; i < kTokens; ++i, to += step) {
            if (roles.padding >> i & 1) store(to, Vec<input_t, kVec>::zero());
        }
    }
    if (roles.prefix != 0) {
        const input_t* const results = PrefixRows<kWidth>(p).template at<input_t>(p, channel);
        const int* const rows = block_roles.rows + tile * kTokens;
        Vec<input_t, kVec> v[kTokens];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            if (roles.prefix >> i & 1)
                v[i] = load<kVec, Memory::kMutable>(results + static_cast<index_t>(rows[i]) * p.dim);
        }
        input_t* to = x;
#pragma unroll
        for (int i = 0; i < kTokens; ++i, to += step) {
            if (roles.prefix >> i & 1) store(to, v[i]);
        }
    }
}
