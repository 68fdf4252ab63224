// The launch before a convolution of packed sequences whose results go over x: scratch as conv_borders.cuh has it, the
// states of sequences that cross a border, and all snapshots that a tile does not have to take.
//
// Layout: x (dim, total). A warp has a border, or some rows of snapshots, in 32 channels; neighbouring warps are
// neighbours along the channels.
//
// kWidth    filter taps              input_t   x                         state_t   the pool of states
#include "causal_conv1d/conv_borders.cuh"
#include "causal_conv1d/conv_state.cuh"

struct CausalConv1dVarlenBordersParams {
    CausalConv1dVarlenOperands operands;
    FastDiv dim_warps;  // warps across the channels
    unsigned borders;
    unsigned tasks;  // borders, and groups of snapshots
};

template <int kWidth, typename input_t, typename state_t>
struct CausalConv1dVarlenBordersTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = kWidth <= 4 ? 6 : 1;
    static constexpr int kWarps = kThreads / kWarpSize;
    static_assert(kIsWidth<kWidth>);
};

// The sequence across a border.
struct Crossing {
    int number;
    int slot;        // -1 where no sequence crosses the border
    bool has_state;  // this is the first border that it crosses
    SnapshotRows prefixes;

    // The sequence across the border in front of `token`. All lanes of a warp take part.
    __device__ __forceinline__ Crossing(const CausalConv1dVarlenOperands& p, int token)
        : number(0), slot(-1), has_state(false), prefixes{0, 0} {
        visit_runs<true>(p, token - 1, token, [&](int run, int begin, int end, int start, unsigned lanes) {
            if (lanes == 0) return;
            const int lane = lowest(lanes);
            number = from_lane(run, lane);
            slot = from_lane(end, lane) > token ? from_lane(start, lane) : -1;
            has_state = slot >= 0 && from_lane(begin, lane) >= token - p.border_tokens;
        });
        if (has_state) prefixes = find_snapshots(p, number, 1, 0, kWarpSize, [](int) { return true; });
        has_state = has_state && (p.has_states || prefixes.begin < prefixes.end);
    }
};

// Keeps what lies at the border in front of tile `tile`.
template <int kWidth, typename input_t, typename state_t>
__device__ __forceinline__ void keep_border(const CausalConv1dVarlenOperands& p, const Crossing& crossing, int tile,
                                            index_t channel) {
    constexpr int kHalo = kWidth - 1;
    const Border<kWidth, input_t, state_t, 1> border(p, tile, channel);
    border.keep_inputs(p, tile, channel);
    if (!crossing.has_state) return;
    const int number = crossing.number;
    store_prefix_snapshots<kWidth, input_t, state_t, 1, false>(p, crossing.prefixes, number, channel, false);
    SequencePrefix<kWidth, input_t, state_t, 1, true> prefix(p, number);
    prefix.load(p, channel);
    if (goes_on<true>(p, number)) {
#pragma unroll
        for (int i = 0; i < kHalo; ++i) store(border.state + i * border.step, prefix.past[i]);
    }
    prefix.update_state(p, channel);
    store_prefix_snapshots<kWidth, input_t, state_t, 1, false>(p, crossing.prefixes, number, channel, true);
}

template <int kWidth, typename input_t, typename state_t,
          typename Traits = CausalConv1dVarlenBordersTraits<kWidth, input_t, state_t>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_borders_kernel(const CausalConv1dVarlenBordersParams params) {
    const CausalConv1dVarlenOperands& p = params.operands;
    let_follower_start();

    const unsigned warp = blockIdx.x * Traits::kWarps + threadIdx.x / kWarpSize;
    const QuotientRemainder task_dim = divide(warp, params.dim_warps);
    if (task_dim.quotient >= params.tasks) return;  // whole warps leave: the shuffles stay complete
    const index_t channel = static_cast<index_t>(task_dim.remainder) * kWarpSize + lane_id();
    if (task_dim.quotient < params.borders) {
        if constexpr (kWidth > 1) {
            const int tile = static_cast<int>(task_dim.quotient) + 1;
            const Crossing crossing(p, tile * p.border_tokens);
            if (channel >= p.dim) return;
            // The inputs in any case: tiles load them before they know whether a sequence crosses the border.
            keep_border<kWidth, input_t, state_t>(p, crossing, tile, channel);
        }
    } else if (channel < p.dim) {
        const int group = static_cast<int>(task_dim.quotient - params.borders);
        store_other_snapshots<kSnapshotsAtOnce, kWidth, input_t, state_t, 1, false>(
            p, group * kSnapshotsAtOnce, channel, [&](const Snapshot& snapshot, const SnapshotSource& source) {
                return is_in_tile(p, source) ? is_left_to_tile(p, snapshot, source)
                                             : is_of_prefix<kWidth>(p, snapshot, source);
            });
    }
}
