// The launch before a convolution of packed sequences whose results go over x: scratch as conv_borders.cuh has it, the
// states of sequences that cross a border, and all snapshots that a tile does not have to take.
//
// Layout: x (dim, total), dim stride 1; any strides when kVec is 1. A warp has a border, or some rows of snapshots, in 32
// channel vectors; neighbouring warps are neighbours along the channels.
//
// kWidth    filter taps              input_t   x                         state_t   the pool of states
// kVec      channels an access
#include "causal_conv1d/conv_borders.cuh"
#include "causal_conv1d/conv_state.cuh"

struct CausalConv1dVarlenBordersParams {
    CausalConv1dVarlenOperands operands;
    FastDiv dim_warps;  // warps across the channels
    unsigned borders;
    unsigned tasks;  // borders, and groups of snapshots
};

template <int kWidth, typename input_t, typename state_t, int kVec>
struct CausalConv1dVarlenBordersTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
    static constexpr int kWarps = kThreads / kWarpSize;
    static_assert(kIsWidth<kWidth>);
};

// Keeps what lies at the border in front of tile `tile`. All lanes of a warp take part; idle ones store nothing.
template <int kWidth, typename input_t, typename state_t, int kVec>
__device__ __forceinline__ void keep_border(const CausalConv1dVarlenOperands& p, int tile, index_t channel,
                                            bool is_idle) {
    constexpr int kHalo = kWidth - 1;
    const int token = tile * p.border_tokens;
    const Border<kWidth, input_t, state_t, kVec> border(p, tile, channel);
    const input_t* const x = static_cast<const input_t*>(p.x) + along_channels<kVec>(channel, p.x_stride[0]) +
                             (token - kHalo) * p.x_stride[1];
    Vec<input_t, kVec> inputs[kHalo];
#pragma unroll
    for (int i = 0; i < kHalo; ++i) inputs[i] = load<kVec>(x + i * p.x_stride[1]);
    int number = 0, begin = 0, end = 0, slot = -1;
    visit_runs<true>(p, token - 1, token, [&](int number_, int begin_, int end_, int slot_, unsigned lanes) {
        if (lanes == 0) return;
        const int lane = lowest(lanes);
        number = from_lane(number_, lane);
        begin = from_lane(begin_, lane);
        end = from_lane(end_, lane);
        slot = from_lane(slot_, lane);
    });
    if (slot < 0 || end <= token) return;
    if (!is_idle) {
#pragma unroll
        for (int i = 0; i < kHalo; ++i) store(border.input + i * border.step, inputs[i]);
    }
    if (!p.has_states && p.snapshot_rows == 0) return;
    // The first border that the sequence crosses has its state.
    if (begin < token - p.border_tokens) return;
    const SnapshotRows rows = find_snapshots(p, number, 1, 0, kWarpSize, [](int) { return true; });
    if (is_idle) return;
    store_prefix_snapshots<kWidth, input_t, state_t, kVec, false>(p, rows, number, channel, false);
    SequencePrefix<kWidth, input_t, state_t, kVec, true> prefix(p, number);
    prefix.load(p, channel);
    if (goes_on<true>(p, number)) {
#pragma unroll
        for (int i = 0; i < kHalo; ++i) store(border.state + i * border.step, prefix.past[i]);
    }
    prefix.update_state(p, channel);
    store_prefix_snapshots<kWidth, input_t, state_t, kVec, false>(p, rows, number, channel, true);
}

template <int kWidth, typename input_t, typename state_t, int kVec,
          typename Traits = CausalConv1dVarlenBordersTraits<kWidth, input_t, state_t, kVec>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_borders_kernel(const CausalConv1dVarlenBordersParams params) {
    const CausalConv1dVarlenOperands& p = params.operands;

    const unsigned warp = blockIdx.x * Traits::kWarps + threadIdx.x / kWarpSize;
    const QuotientRemainder task_dim = divide(warp, params.dim_warps);
    if (task_dim.quotient >= params.tasks) return;  // whole warps leave: the shuffles stay complete
    const index_t channel = (static_cast<index_t>(task_dim.remainder) * kWarpSize + lane_id()) * kVec;
    const bool is_idle = channel >= p.dim;
    if (task_dim.quotient < params.borders) {
        if constexpr (kWidth > 1) {
            keep_border<kWidth, input_t, state_t, kVec>(p, static_cast<int>(task_dim.quotient) + 1,
                                                        is_idle ? 0 : channel, is_idle);
        }
    } else if (!is_idle) {
        const int group = static_cast<int>(task_dim.quotient - params.borders);
        store_other_snapshots<kSnapshotsAtOnce, kWidth, input_t, state_t, kVec, false>(
            p, group * kSnapshotsAtOnce, channel, [&](const Snapshot& snapshot, const SnapshotSource& source) {
                return is_in_tile(p, source) ? is_left_to_tile(p, snapshot, source)
                                             : is_of_prefix<kWidth>(p, snapshot, source);
            });
    }
}
