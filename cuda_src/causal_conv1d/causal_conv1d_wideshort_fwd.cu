// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for short rows of whole vectors and wide filters, which
// are bound by issued instructions as much as by memory.
//
// Layout: x, out (batch, dim, seqlen), seqlen stride 1, every row aligned and a multiple of kVec tokens. A warp has the
// vectors of as many whole rows as its lanes have room for, of consecutive channels, and walks batch entries: each lane
// has the same vector of every entry, and loads its filter once. Vectors come to shared memory by copies that are
// started kStages entries ahead, and the halo of kWidth - 1 inputs from there. What precedes a row is a vector of
// zeros.
//
// kWidth    filter taps              input_t   x and out                 weight_t  weight, and bias unless float
// kSilu     silu after the sum
#include "causal_conv1d/conv_channels.cuh"
#include "causal_conv1d/conv_row.cuh"
#include "common/fastdiv.cuh"

struct CausalConv1dWideshortFwdParams {
    CausalConv1dOperands operands;
    FastDiv row_vecs;       // vectors per row
    FastDiv channel_warps;  // warps across the channels
    unsigned warps;         // warps of the launch
    int entries;            // batch entries per warp
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu>
struct CausalConv1dWideshortFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 10;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kStages = 3;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(input_t));
    static_assert(kIsWidth<kWidth> && sizeof(input_t) == 2);
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu,
          typename Traits = CausalConv1dWideshortFwdTraits<kWidth, input_t, weight_t, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_wideshort_fwd_kernel(const CausalConv1dWideshortFwdParams params) {
    constexpr int kVec = Traits::kVec, kStages = Traits::kStages;
    using Window = ConvWindow<kWidth, input_t, kVec>;
    using Vector = typename Window::Vector;
    using Stage = Vector[kWarpSize + 1];  // a lane's vectors, and zeros
    const CausalConv1dOperands p = with_states<false>(params.operands);
    __shared__ alignas(16) Stage memory[Traits::kWarps][kStages];

    // Kept, instead of read anew for every use.
    const int lane = opaque(lane_id());
    const unsigned warp = uniform(threadIdx.x / kWarpSize);
    const unsigned number = blockIdx.x * Traits::kWarps + warp;
    if (number >= params.warps) return;
    const QuotientRemainder walk_group = divide(number, params.channel_warps);
    const unsigned rows = divide(kWarpSize, params.row_vecs).quotient;
    const QuotientRemainder row_vec = divide(lane, params.row_vecs);
    const index_t channel = static_cast<index_t>(walk_group.remainder) * rows + row_vec.quotient;
    // Lanes without a row do what one with the first vector of a row does, and store nothing.
    const bool is_idle = row_vec.quotient >= rows || channel >= p.dim;
    const int vec = is_idle ? 0 : static_cast<int>(row_vec.remainder);
    const index_t batch = static_cast<index_t>(walk_group.quotient) * params.entries;
    const index_t left = p.batch - batch;
    const int entries = left < params.entries ? static_cast<int>(left) : params.entries;
    const ConvRow<input_t, kVec> row(p, batch, is_idle ? 0 : channel);

    Stage* const stages = memory[warp];
    if (lane < kStages) stages[lane][kWarpSize] = Vector::zero();
    int before[Window::kHaloVecs];
#pragma unroll
    for (int j = 0; j < Window::kHaloVecs; ++j) before[j] = vec > j ? lane - 1 - j : kWarpSize;
    const input_t* from = opaque(row.x + vec * kVec);
    int ahead = entries;
    // Starts to bring the next batch entry to a stage.
    const auto fetch = [&](int stage) {
        if (ahead > 0) copy_async(stages[stage] + lane, as_global(from));
        from = opaque(from + p.x_stride[0]);
        --ahead;
        end_copy_group();
    };
#pragma unroll
    for (int i = 0; i < kStages; ++i) fetch(i);
    const ChannelFilter<kWidth, weight_t, 1> filter(p, row.channel);
    float taps[1][kWidth], bias[1];
    filter.to_floats(taps, bias);
    if constexpr (kSilu) scale_for_silu<input_t>(taps[0], bias[0]);
    input_t* to = opaque(row.out + vec * kVec);
    int stage = 0;
#pragma unroll 1
    for (int entry = 0; entry < entries; ++entry) {
        wait_for_copy_groups<kStages - 1>();
        sync_warp();
        Vector halo[Window::kHaloVecs];
#pragma unroll
        for (int j = 0; j < Window::kHaloVecs; ++j) halo[j] = stages[stage][before[j]];
        const Window window(halo, stages[stage][lane]);
        const ConvSums<false, kVec> sums(p, row.batch, 0, taps[0], bias[0], window);
        const Vector results = sums.template outputs<input_t, kSilu, true>();
        if (!is_idle) store<Keep::kStream>(as_global(to), results);
        // The stage is free when all lanes have read it.
        sync_warp();
        fetch(stage);
        to = opaque(to + p.out_stride[0]);
        stage = stage + 1 == kStages ? 0 : stage + 1;
    }
}
