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
#include "selective_scan/scan_few.cuh"
#include "selective_scan/scan_varlen.cuh"

struct SelectiveScanVarlenFwdParams {
    SelectiveScanVarlenOperands operands;
};

template <typename input_t, int kLanes, int kStates, int kVec, int kBVec, int kCVec, typename state_t, bool kSnapshots>
struct SelectiveScanVarlenFwdTraits {
    static constexpr int kThreads = 128;
    using Shape = ScanShape<kThreads, input_t, kLanes, kStates, kVec, kBVec, kCVec>;
    // Snapshots take registers that a third block would need.
    static constexpr int kMinBlocks = kSnapshots && Shape::kMinBlocks > 2 ? 2 : Shape::kMinBlocks;
    using Few = FewShape<kThreads, input_t, state_t, kLanes, kStates, 1>;
};

// Scans one sequence in one channel.
template <typename Shape, typename state_t, bool kSnapshots>
__device__ __forceinline__ void scan_long(const SelectiveScanVarlenOperands& p, int channel, int number) {
    const int begin = first_token(p, number), end = first_token(p, number + 1);
    const int slot = load_start_slot(p, number);
    ChannelScan<Shape, SelectiveScanVarlenOperands> scan(p, 0, channel);
    if (slot < 0) {
        if (!p.keeps_padding) scan.store_zeros(begin, end);
        return;
    }
    const index_t* stride = p.ssm_states_stride;
    state_t* const pool = static_cast<state_t*>(p.ssm_states) + scan.channel * stride[1];
    if (p.has_states && has_past(p, number)) {
        const state_t* const states = pool + slot * stride[0];
        Vec<state_t, 1> raw[Shape::kStates];
#pragma unroll
        for (int s = 0; s < Shape::kStates; ++s) {
            raw[s] = Vec<state_t, 1>::zero();
            if (scan.is_state(s)) raw[s] = load<1, Memory::kMutable>(states + scan.number(s) * stride[2]);
        }
#pragma unroll
        for (int s = 0; s < Shape::kStates; ++s) scan.h[s] = raw[s].to_float(0);
    }
    const auto store = [&](state_t* states, index_t step) {
#pragma unroll
        for (int s = 0; s < Shape::kStates; ++s) {
            if (scan.is_state(s)) states[scan.number(s) * step] = Dtype<state_t>::from_float(scan.h[s]);
        }
    };
    if constexpr (kSnapshots) {
        state_t* const kept = snapshots_of<state_t>(p) + scan.channel * p.snapshot_stride[1];
        walk_by_snapshots(
            p, scan, number, begin, end, [](int, int token) { return token % Shape::kTokens == 0; }, [] {},
            [&](int at) {
                if (!scan.is_idle) store(kept + at * p.snapshot_stride[0], p.snapshot_stride[2]);
            });
    } else {
        scan.template walk<true>(begin, end, [](int) {});
    }
    const int target = load_target(p, number, slot);
    if (target < 0 || scan.is_idle) return;
    store(pool + target * stride[0], stride[2]);
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
        each_long(p, static_cast<int>(row_block.quotient),
                  [&](int number) { scan_long<Shape, state_t, kSnapshots>(p, opaque(channel), number); });
        return;
    }
    if constexpr (Few::kIsPossible) {
        const QuotientRemainder block_run = divide(blockIdx.x - of_long, p.runs);
        const SequenceRun run(p, static_cast<int>(block_run.remainder) * p.run_sequences - 1, p.run_sequences);
        __shared__ FewShared<Few> shared[Few::kThreads / kWarpSize];
        scan_few<Few, kSnapshots>(p, shared, run, static_cast<int>(block_run.quotient) * Few::kChannels);
    }
}
