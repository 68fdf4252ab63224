// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for packed sequences with contiguous channels.
//
// Layout: x (dim, total), dim stride 1; any strides when kVec is 1. Each range of channels (x | B | C, or q | k | v)
// has an output. There are two kinds of blocks. Most have tiles: a thread owns kVec channels of kTokens consecutive
// tokens and, as in causal_conv1d_channellast_fwd, loads all input vectors before it uses the first. While these are on
// their way, the first warp finds the sequences of these tokens by a search in query_start_loc, and tells the others.
// Tiles leave out the prefix of every sequence, its first kWidth - 1 tokens. The other blocks compute prefixes, where a
// thread owns kVec channels of one sequence, and update its state: tiles do not touch states.
//
// kWidth    filter taps              input_t   x and outputs             weight_t  weight, and bias unless float
// state_t   the pool of states       kVec      channels an access        kTokens   tokens a thread
// kSilu     silu after the sum       kRouted   vectors may cross the borders of ranges
// kAddressed  slots may be in columns, states may go to other slots or be only read, there may be snapshots of them,
//             padding may stay as it is
// kGated    inputs and results are multiplied by gates, or residuals added to results
// kPayload  raw inputs are copied to a payload
// kWhole    tokens of a sequence up to which it counts as all prefix, where most have as few, so that most tiles have
//           nothing but prefixes; there are no snapshots. A warp has the prefixes of several sequences in the same
//           channels. Else 0
#include "causal_conv1d/conv_tile.cuh"

struct CausalConv1dVarlenFwdParams {
    CausalConv1dVarlenOperands operands;
    FastDiv block_vecs;  // channel vectors per block
    FastDiv dim_blocks;  // blocks across the channels, which make a group
    BlockGroups mix;
    unsigned tiles;  // tiles, or prefixes where a thread has one, per block
    int prefixes;    // sequences per thread of blocks with prefixes
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, int kTokens, bool kSilu,
          bool kRouted, bool kAddressed, bool kGated, bool kPayload, int kWhole>
struct CausalConv1dVarlenFwdTraits {
    static constexpr int kThreads = 128;
    // Half of a multiprocessor's threads when taps and window fit 64 registers.
    static constexpr bool kIsLean = kWidth <= 4 && !kRouted;
    // An eighth block saves 2 % of the time, unless registers spill for it.
    static constexpr int kLeanBlocks = kArch >= 90 && (sizeof(weight_t) == 2 || sizeof(input_t) == 4) ? 8 : 7;
    // Gates are further vectors that are loaded before the first is used.
    static constexpr int kMinBlocks = !kIsLean                                                        ? 1
                                      : kGated                                                        ? 4
                                      : kPayload || (kWhole > 0 && sizeof(state_t) > sizeof(input_t)) ? 6
                                                                                                      : kLeanBlocks;
    static constexpr Ranges kRanges = kRouted ? Ranges::kRouted : Ranges::kMany;
    static constexpr bool kIsScaled = kSilu && kIsLean;
    static constexpr int kMostPrefixes = 8;  // per warp
    // Where kWhole > 0, one block has the tiles of kShare blocks across the channels: the search in query_start_loc
    // takes longer than all else that a tile without tokens has to do. With 16, 1000 single tokens, 300 and 9 took 86
    // us instead of 51 (H200, 8192 channels): the tiles that do have tokens wait for each other.
    static constexpr int kShare = 4;
    static constexpr unsigned kParts = kTokens >= 2 ? 2 : 1;  // of a tile, one after the other, where kWhole > 0
    static_assert(kIsWidth<kWidth> && kTokens >= 1 && kTokens < 32);
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, int kTokens, bool kSilu,
          bool kRouted, bool kAddressed, bool kGated, bool kPayload, int kWhole,
          typename Traits = CausalConv1dVarlenFwdTraits<kWidth, input_t, weight_t, state_t, kVec, kTokens, kSilu,
                                                        kRouted, kAddressed, kGated, kPayload, kWhole>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_fwd_kernel(const CausalConv1dVarlenFwdParams params) {
    const CausalConv1dVarlenOperands& p = params.operands;

    const QuotientRemainder row_vec = divide(threadIdx.x, params.block_vecs);
    const QuotientRemainder group_dim = divide(blockIdx.x, params.dim_blocks);
    const index_t channel =
        (static_cast<index_t>(group_dim.remainder) * params.block_vecs.divisor + row_vec.remainder) * kVec;
    const int tiles = static_cast<int>(params.tiles);
    const int row = static_cast<int>(row_vec.quotient);
    const bool is_idle = row >= tiles || channel >= p.dim;
    const GroupRole group(group_dim.quotient, params.mix);
    const int first = static_cast<int>(group.number) * tiles;
    if (!group.is_prefix) {
        if (kPayload && group_dim.remainder == 0) {
            const int threads = static_cast<int>(Traits::kThreads);
            store_payload_gates<input_t>(p, first * kTokens, tiles * kTokens, static_cast<int>(threadIdx.x), threads);
        }
        if constexpr (kWhole > 0) {
            constexpr unsigned kShare = Traits::kShare;
            const unsigned shares = (params.dim_blocks.divisor + kShare - 1) / kShare;
            const unsigned share =
                group.number * params.dim_blocks.divisor + static_cast<unsigned>(group_dim.remainder);
            const int first_tile = static_cast<int>(share / shares) * tiles;
            if (static_cast<unsigned>(first_tile) * kTokens >= static_cast<unsigned>(p.total)) return;
            const BlockRoles<kTokens, Traits::kThreads> block_roles;
            block_roles.template find<kAddressed>(p, first_tile * kTokens, tiles, kWidth - 1, whole_tokens<kWhole>(p));
            if (!block_roles.have_tokens(tiles)) return;
            // Few blocks come here. Parts of their tiles leave the registers to those with prefixes.
            constexpr int kPart = kTokens / Traits::kParts;
            const index_t step = static_cast<index_t>(params.block_vecs.divisor) * kVec;
            index_t first_channel = share % shares * kShare * step;
#pragma unroll 1
            for (unsigned i = 0; i < kShare * Traits::kParts && first_channel < p.dim; ++i) {
                const index_t own = first_channel + row_vec.remainder * kVec;
                const bool is_outside = row >= tiles || own >= p.dim;
                convolve_tile<Traits, kWidth, input_t, weight_t, kVec, kPart, kSilu, kAddressed, kGated, kPayload,
                              kWhole>(p, first_tile * kTokens + static_cast<int>(i % Traits::kParts) * kPart * tiles,
                                      tiles, min(row, tiles - 1), is_outside ? 0 : own, is_outside);
                __syncthreads();
                if (i % Traits::kParts == Traits::kParts - 1) first_channel += step;
            }
            return;
        }
        // Idle threads read another thread's memory: all of them take part in the search.
        convolve_tile<Traits, kWidth, input_t, weight_t, kVec, kTokens, kSilu, kAddressed, kGated, kPayload, kWhole>(
            p, first * kTokens, tiles, min(row, tiles - 1), is_idle ? 0 : channel, is_idle);
        return;
    }
    if constexpr (kWhole > 0) {
        convolve_prefixes<kWhole, Traits::kThreads / kWarpSize, Traits::kMostPrefixes, kWidth, input_t, weight_t,
                          state_t, kVec, kSilu, Traits::kRanges, kAddressed>(p, (first + row) * params.prefixes,
                                                                             params.prefixes, channel, is_idle);
        return;
    }
    if constexpr (kAddressed) {
        // Snapshots follow prefixes: their blocks, too, wait for one load after another, while those of tiles move
        // memory.
        const int snapshot_group = static_cast<int>(group.number - params.mix.prefix_groups + p.snapshot_groups);
        if (snapshot_group >= 0) {
            if (is_idle) return;
            store_inner_snapshots<kSnapshotsAtOnce, kWidth, input_t, state_t, kVec, kGated>(
                p, (snapshot_group * tiles + row) * kSnapshotsAtOnce, channel);
            return;
        }
    }
    if constexpr (kWidth > 1) {
        SnapshotRows rows{0, 0};
        if constexpr (kAddressed) rows = find_prefix_snapshots<Traits::kThreads, kWidth>(p, first, tiles);
        if (is_idle || first + row >= p.sequences) return;
        convolve_prefix<kWidth, input_t, weight_t, state_t, kVec, kSilu, Traits::kRanges, kAddressed, kGated>(
            p, rows, first + row, channel);
    }
}
