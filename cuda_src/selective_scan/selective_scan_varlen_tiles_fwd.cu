// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that, for packed sequences whose states are in a pool.
//
// Layout: u, delta, z and out (dim, total), B and C (ngroups, d_state, total), the tokens contiguous and rows aligned
// to 16 bytes, wherever among them a sequence begins; d_state up to 16; the pool (slots, dim, d_state) of any strides.
// kLanes lanes own a channel of a sequence and 16 or 8 consecutive tokens each of a tile, or kParts times as many, each
// with a part of the states. When sequences are alike a block has one of them. When they are mixed the first blocks
// have the long ones: a block finds one of them, and then every so-many-th further. The others have runs of neighbours,
// and of those the short ones, of which one lane owns a channel; and those of few tokens, which are walked token by
// token (selective_scan/scan_few.cuh). What precedes the first sequence and what follows the last count as sequences,
// whose results are zeros. Shared memory: B and C of the tile, rates and states of the block's channels.
//
// input_t  u, delta, z, out, B and C    state_t  the pool of states    kLanes, kParts, kAtOnce  of sequences that are
// not short                             kMixed   long sequences and others
#include "selective_scan/scan_few.cuh"
#include "selective_scan/scan_tiles.cuh"

struct SelectiveScanVarlenTilesFwdParams {
    SelectiveScanVarlenOperands operands;
};

template <typename input_t, typename state_t, int kLanes, int kParts, int kAtOnce, bool kMixed>
struct SelectiveScanVarlenTilesFwdTraits {
    static constexpr int kThreads = 128;
    using Long = TileShape<input_t, kLanes, kParts, kAtOnce>;
    static constexpr int kMinBlocks = Long::kMinBlocks;
    using Short = TileShape<input_t, 1, 1, kAtOnce>;
    using Few = FewShape<input_t, state_t, 4, 4, Long::kVec>;
    static_assert(kThreads == Long::kThreads && kThreads == Short::kThreads && kThreads == Few::kThreads);
    static_assert(Few::kChannels == Short::kChannels, "a run's channels are a block's");
    union Shared {
        TileShared<Long> of_long;
        TileShared<Short> of_short;
    };
};

// All tokens of a sequence, of as many channels as a block has.
template <typename Shape, typename state_t>
__device__ __forceinline__ void scan_sequence(const SelectiveScanVarlenOperands& p, TileShared<Shape>& shared,
                                              int first_channel, int number) {
    const int begin = uniform(first_token(p, number)), end = uniform(first_token(p, number + 1));
    if (begin >= end) return;
    const int slot = uniform(load_slot(p, number));
    TileScan<Shape, SelectiveScanVarlenOperands> scan(p, shared, 0, first_channel);
    if (slot < 0) {
        scan.store_zeros(begin, end);
        return;
    }
    const index_t* stride = p.ssm_states_stride;
    state_t* const states = static_cast<state_t*>(p.ssm_states) + slot * stride[0];
    if (p.has_states && has_past(p, number)) scan.load_states(states, stride[1], stride[2]);
    scan.template walk<true>(begin, end, [](int) {});
    if (p.has_states) scan.store_states(states, stride[1], stride[2]);
}

template <typename input_t, typename state_t, int kLanes, int kParts, int kAtOnce, bool kMixed,
          typename Traits = SelectiveScanVarlenTilesFwdTraits<input_t, state_t, kLanes, kParts, kAtOnce, kMixed>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_varlen_tiles_fwd_kernel(const SelectiveScanVarlenTilesFwdParams params) {
    const SelectiveScanVarlenOperands& p = params.operands;
    __shared__ typename Traits::Shared shared;
    const QuotientRemainder row_block = divide(blockIdx.x, p.dim_blocks);
    const int row = static_cast<int>(row_block.quotient);
    const int channel = static_cast<int>(row_block.remainder) * Traits::Long::kChannels;
    if constexpr (!kMixed) {
        scan_sequence<typename Traits::Long, state_t>(p, shared.of_long, channel, row - 1);
    } else if (row < p.long_at_a_time) {
        each_long(p, row, [&](int number) {
            scan_sequence<typename Traits::Long, state_t>(p, shared.of_long, opaque(channel), number);
        });
    } else {
        const unsigned of_long = p.dim_blocks.divisor * p.long_at_a_time;
        const QuotientRemainder block_run = divide(blockIdx.x - of_long, p.runs);
        const int first_channel = static_cast<int>(block_run.quotient) * Traits::Few::kChannels;
        const SequenceRun run(p, static_cast<int>(block_run.remainder) * p.run_sequences - 1, p.run_sequences);
        for (unsigned todo = uniform(run.between(p.few_tokens, p.short_tokens)); todo != 0; todo &= todo - 1) {
            scan_sequence<typename Traits::Short, state_t>(p, shared.of_short, opaque(first_channel),
                                                           run.first + lowest(todo));
        }
        scan_few<typename Traits::Few>(p, run, first_channel);
    }
}
