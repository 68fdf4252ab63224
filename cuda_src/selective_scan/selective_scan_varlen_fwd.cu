// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that, for packed sequences with their states in a pool.
//
// Layout: u, delta, z and out (dim, total), B and C (ngroups, d_state, total), the pool (slots, dim, d_state),
// all of any strides; vectors lie along the tokens, wherever among aligned addresses a sequence begins. kLanes lanes
// own a channel of a sequence from its first token to its last, or store zeros to padding: what precedes the first
// sequence and what follows the last count as sequences, too. The first blocks visit the long sequences `before`,
// `before + long_at_a_time`, … The other blocks have runs of neighbouring sequences and scan the short ones, with
// vectors along the states (selective_scan/scan_few.cuh).
//
// input_t  u, delta, z, out, B and C                  kLanes  lanes per channel    kStates  states per lane
// kVec     tokens per access of u, delta, z and out   kBVec   of B                 kCVec    of C
// state_t  the pool of states                         kSnapshots  states inside sequences are kept, too
#include "selective_scan/scan.cuh"
#include "selective_scan/scan_few_apart.cuh"
#include "selective_scan/scan_varlen.cuh"

struct SelectiveScanVarlenFwdParams {
    SelectiveScanVarlenOperands operands;
};

template <typename input_t, int kLanes, int kStates, int kVec, int kBVec, int kCVec, typename state_t, bool kSnapshots>
struct SelectiveScanVarlenFwdTraits {
    static constexpr int kThreads = 128;
    using Shape = ScanShape<kThreads, input_t, kLanes, kStates, kVec, kBVec, kCVec>;
    using Few = FewShape<kThreads, input_t, state_t, kLanes, kStates, 1>;
    // Snapshots in runs of short sequences take registers that a third block would need.
    static constexpr int kMinBlocks = kSnapshots && Few::kIsPossible && Shape::kMinBlocks > 2 ? 2 : Shape::kMinBlocks;
};

// Scans one sequence in one channel.
template <typename Shape, typename state_t, bool kSnapshots>
__device__ __forceinline__ void scan_long(const SelectiveScanVarlenOperands& p, int channel, int number) {
    constexpr bool kBatch = kSnapshots;
    const SequenceStart start = SequenceStart::load<kBatch>(p, number);
    const int begin = start.begin, end = start.end, slot = start.slot;
    ChannelScan<Shape, SelectiveScanVarlenOperands> scan(p, kBatch ? number : 0, channel);
    if (slot < 0) {
        if (!p.keeps_padding) scan.store_zeros(begin, end);
        return;
    }
    const StateSlots<state_t> pool = pool_of<state_t>(p);
    if (start.goes_on) {
        const state_t* const states = pool.states + scan.channel * pool.stride[1] + slot * pool.stride[0];
        const float scale = pool.load_scale(slot, scan.channel);
        Vec<state_t, 1> raw[Shape::kStates];
#pragma unroll
        for (int s = 0; s < Shape::kStates; ++s) {
            raw[s] = Vec<state_t, 1>::zero();
            if (scan.is_state(s)) raw[s] = load<1, Memory::kMutable>(states + scan.number(s) * pool.stride[2]);
        }
#pragma unroll
        for (int s = 0; s < Shape::kStates; ++s) scan.h[s] = raw[s].to_float(0) * scale;
    }
    const auto store_states = [&](const StateSlots<state_t>& to, int at, int token) {
        const float factor = find_factor<state_t, Shape::kLanes>(scan.h);
        if (scan.is_idle) return;
        state_t* const states = to.states + scan.channel * to.stride[1] + at * to.stride[0];
        const index_t first = static_cast<index_t>(scan.channel) * p.d_state;
#pragma unroll
        for (int s = 0; s < Shape::kStates; ++s) {
            if (!scan.is_state(s)) continue;
            store_state(p, states + scan.number(s) * to.stride[2], scan.h[s], factor, first + scan.number(s),
                        {number, token});
        }
        if (kIsQuantised<state_t> && scan.lane == 0) *to.scale(at, scan.channel) = scale_of_factor(factor);
    };
    if constexpr (kSnapshots) {
        __shared__ SnapshotCursor cursors[Shape::kThreads / kWarpSize];
        SnapshotCursor& cursor = cursors[threadIdx.x / kWarpSize];
        walk_by_snapshots(
            p, cursor, scan, number, begin, end,
            [](int, int token) { return token % Shape::kTokens == 0 ? -1 : token / Shape::kTokens; },
            [&](int at, int token, int) { store_states(snapshots_of<state_t>(p), at, token); });
    } else {
        scan.template walk<true>(begin, end, [](int) {});
    }
    const int target = load_target(p, number, slot);
    if (target >= 0) store_states(pool, target, end - begin - 1);
}

template <
    typename input_t, int kLanes, int kStates, int kVec, int kBVec, int kCVec, typename state_t, bool kSnapshots,
    typename Traits = SelectiveScanVarlenFwdTraits<input_t, kLanes, kStates, kVec, kBVec, kCVec, state_t, kSnapshots>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_varlen_fwd_kernel(const SelectiveScanVarlenFwdParams params) {
    using Shape = typename Traits::Shape;
    using Few = typename Traits::Few;
    const SelectiveScanVarlenOperands& p = params.operands;
    const unsigned of_long = p.dim_blocks.divisor * p.long_at_a_time;
    if (blockIdx.x < of_long) {
        const QuotientRemainder row_block = divide(blockIdx.x, p.dim_blocks);
        const int channel =
            static_cast<int>(row_block.remainder) * Shape::kChannels + static_cast<int>(threadIdx.x) / Shape::kLanes;
        each_long<kSnapshots>(p, static_cast<int>(row_block.quotient),
                              [&](int number) { scan_long<Shape, state_t, kSnapshots>(p, opaque(channel), number); });
        return;
    }
    if constexpr (Few::kIsPossible) {
        const QuotientRemainder block_run = divide(blockIdx.x - of_long, p.runs);
        const SequenceRun run(p, static_cast<int>(block_run.remainder) * p.run_sequences - 1, p.run_sequences);
        __shared__ BatchShared<Few> shared[Few::kThreads / kWarpSize];
        scan_few<FewScan<Few>, kSnapshots>(p, shared, run, static_cast<int>(block_run.quotient) * Few::kChannels);
    }
}
