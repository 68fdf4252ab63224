// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that, for packed sequences of many tokens whose states are in a pool.
//
// Layout: u, delta, z and out (dim, total), B and C (ngroups, d_state, total), the tokens contiguous and rows aligned
// to 16 bytes, wherever among them a sequence begins; d_state up to 16; the pool (slots, dim, d_state) of any strides.
// kLanes lanes own a channel of a sequence and 16 or 8 consecutive tokens each of a tile, or kParts times as many, each
// with a part of the states; of a short sequence one lane does, and few of the blocks have work. What precedes the
// first sequence and what follows the last count as sequences, whose results are zeros. Shared memory: B and C of the
// tile, rates and states of the block's channels.
//
// input_t  u, delta, z, out, B and C    state_t  the pool of states    kLanes, kParts, kAtOnce  of sequences that are
// not short
#include "common/scan_tiles.cuh"
#include "common/scan_varlen.cuh"

struct SelectiveScanVarlenTilesFwdParams {
    SelectiveScanVarlenOperands operands;
};

template <typename input_t, typename state_t, int kLanes, int kParts, int kAtOnce>
struct SelectiveScanVarlenTilesFwdTraits {
    static constexpr int kThreads = 128;
    using Long = TileShape<input_t, kLanes, kParts, kAtOnce>;
    using Short = TileShape<input_t, 1, 1, kAtOnce>;
    static constexpr int kBlocksOfShort = Short::kChannels / Long::kChannels;
    static_assert(kThreads == Long::kThreads && kThreads == Short::kThreads);
    union Shared {
        TileShared<Long> of_long;
        TileShared<Short> of_short;
    };
};

// All tokens of a sequence, of as many channels as a block has.
template <typename Shape, typename state_t>
__device__ __forceinline__ void scan_sequence(const SelectiveScanVarlenOperands& p, TileShared<Shape>& shared,
                                              int first_channel, int number, int begin, int end) {
    const int slot = load_slot(p, number);
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

template <typename input_t, typename state_t, int kLanes, int kParts, int kAtOnce>
__global__ void __launch_bounds__(
    128, SelectiveScanVarlenTilesFwdTraits<input_t, state_t, kLanes, kParts, kAtOnce>::Long::kMinBlocks)
    selective_scan_varlen_tiles_fwd_kernel(const SelectiveScanVarlenTilesFwdParams params) {
    using Traits = SelectiveScanVarlenTilesFwdTraits<input_t, state_t, kLanes, kParts, kAtOnce>;
    const SelectiveScanVarlenOperands& p = params.operands;
    __shared__ typename Traits::Shared shared;
    const QuotientRemainder row_block = divide(blockIdx.x, p.dim_blocks);
    const int number = static_cast<int>(row_block.quotient) - 1, block = static_cast<int>(row_block.remainder);
    const int begin = first_token(p, number), end = first_token(p, number + 1);
    if (begin >= end) return;
    const int channel = block * Traits::Long::kChannels;
    if (end - begin > p.short_tokens) {
        scan_sequence<typename Traits::Long, state_t>(p, shared.of_long, channel, number, begin, end);
    } else if (block % Traits::kBlocksOfShort == 0) {
        scan_sequence<typename Traits::Short, state_t>(p, shared.of_short, channel, number, begin, end);
    }
}
