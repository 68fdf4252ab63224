// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for rows of whole vectors and wide filters, which are
// bound by issued instructions, not by memory.
//
// Layout: x, out (batch, dim, seqlen), seqlen stride 1, every row aligned and a multiple of kVec tokens. A row is the
// tokens of one channel. A warp walks a part of one row, kLaneVecs groups of 32 consecutive vectors at a time, of which
// each lane has one per group; the filter is loaded once. Tokens come to shared memory by copies that are started
// kStages units ahead, each with the vectors before it, and the halo of kWidth - 1 inputs from there: shuffles and the
// choice between two groups' vectors would take four times the instructions.
//
// kWidth    filter taps              input_t   x, out and states         weight_t  weight, and bias unless float
// kSilu     silu after the sum       kStates   initial or final states are given
// kLaneVecs vectors a lane
#include "causal_conv1d/conv_channels.cuh"
#include "causal_conv1d/conv_row.cuh"
#include "common/fastdiv.cuh"

struct CausalConv1dWideFwdParams {
    CausalConv1dOperands operands;
    FastDiv row_walks;  // warps per row
    FastDiv dim_div;    // rows per batch entry
    unsigned walks;     // warps of the launch
    int walk_vecs;      // vectors per warp, a multiple of those it has at a time
    index_t row_vecs;   // vectors per row
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu, bool kStates, int kLaneVecs>
struct CausalConv1dWideFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 7;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kStages = 2;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(input_t));
    static constexpr int kUnitVecs = kLaneVecs * kWarpSize;
    static_assert(kIsWidth<kWidth> && kLaneVecs >= 1 && sizeof(input_t) == 2);
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu, bool kStates, int kLaneVecs,
          typename Traits = CausalConv1dWideFwdTraits<kWidth, input_t, weight_t, kSilu, kStates, kLaneVecs>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_wide_fwd_kernel(const CausalConv1dWideFwdParams params) {
    constexpr int kVec = Traits::kVec;
    using Window = ConvWindow<kWidth, input_t, kVec>;
    using Vector = typename Window::Vector;
    constexpr int kHaloVecs = Window::kHaloVecs;
    constexpr int kStages = Traits::kStages, kUnitVecs = Traits::kUnitVecs;
    using Stage = Vector[kHaloVecs + kUnitVecs];
    const CausalConv1dOperands p = with_states<kStates>(params.operands);
    __shared__ alignas(16) Stage memory[Traits::kWarps][kStages];

    // Kept, instead of read anew for every use.
    const int lane = opaque(lane_id());
    const unsigned warp = uniform(threadIdx.x / kWarpSize);
    const unsigned walk = blockIdx.x * Traits::kWarps + warp;
    if (walk >= params.walks) return;
    const QuotientRemainder row_walk = divide(walk, params.row_walks);
    const QuotientRemainder batch_channel = divide(row_walk.quotient, params.dim_div);
    const ConvRow<input_t, kVec> row(p, batch_channel.quotient, batch_channel.remainder);
    const index_t first_vec = static_cast<index_t>(row_walk.remainder) * params.walk_vecs;
    const index_t row_left = params.row_vecs - first_vec;
    const int vecs = row_left < params.walk_vecs ? static_cast<int>(row_left) : params.walk_vecs;

    Stage* const stages = memory[warp];
    const input_t* from = opaque(row.x + (first_vec + lane) * kVec);
    int ahead = vecs - lane;
    // Starts to bring the next unit to a stage, and the vectors before it where the row has them.
    const auto fetch = [&](int stage, bool has_halo) {
        Vector* const slots = stages[stage] + lane;
#pragma unroll
        for (int i = 0; i < kLaneVecs; ++i) {
            if (i * kWarpSize < ahead) {
                copy_async(slots + kHaloVecs + i * kWarpSize, as_global(from) + i * kWarpSize * kVec);
            }
        }
        if (has_halo && lane < kHaloVecs && ahead + lane > 0) { copy_async(slots, as_global(from) - kHaloVecs * kVec); }
        from = opaque(from + kUnitVecs * kVec);
        ahead -= kUnitVecs;
        end_copy_group();
    };
    if (first_vec == 0 && lane < kHaloVecs) {
        Vector past = Vector::zero();
        add_past<kWidth>(p, row, (lane - kHaloVecs) * kVec, past);
        stages[0][lane] = past;
    }
    fetch(0, first_vec > 0);
#pragma unroll
    for (int i = 1; i < kStages; ++i) fetch(i, true);
    const ChannelFilter<kWidth, weight_t, 1> filter(p, row.channel);
    float taps[1][kWidth], bias[1];
    filter.to_floats(taps, bias);
    if constexpr (kSilu) scale_for_silu<input_t>(taps[0], bias[0]);
    input_t* to = opaque(row.out + (first_vec + lane) * kVec);
    int stage = 0;
#pragma unroll 1
    for (int left = vecs - lane, units = vecs; units > 0; units -= kUnitVecs, left -= kUnitVecs) {
        wait_for_copy_groups<kStages - 1>();
        sync_warp();
        const Vector* const slots = stages[stage] + kHaloVecs + lane;
#pragma unroll
        for (int i = 0; i < kLaneVecs; ++i) {
            // Behind the walk's end this is what the stage held before, and no result of that is stored.
            Vector halo[kHaloVecs];
#pragma unroll
            for (int j = 0; j < kHaloVecs; ++j) halo[j] = slots[i * kWarpSize - 1 - j];
            const Window window(halo, slots[i * kWarpSize]);
            const ConvSums<false, kVec> sums(p, row.batch, 0, taps[0], bias[0], window);
            const Vector results = sums.template outputs<input_t, kSilu, true>();
            if (i * kWarpSize < left) store(as_global(to) + i * kWarpSize * kVec, results);
        }
        // The stage is free when all lanes have read it.
        sync_warp();
        fetch(stage, true);
        to = opaque(to + kUnitVecs * kVec);
        stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    if (kStates && p.final_states != nullptr && row_left <= params.walk_vecs && lane == 0) {
        store_final_state<kWidth, input_t>(p, row.batch, row.channel);
    }
}
