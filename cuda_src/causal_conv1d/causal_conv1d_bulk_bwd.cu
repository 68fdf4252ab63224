// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for rows of many aligned
// vectors, each of them one sequence that starts from zeros. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dout, dx (batch, dim, seqlen), seqlen stride 1, rows of whole 16-byte vectors at aligned addresses. A row
// is cut into units of kGroups groups; a group is one vector per lane of a warp. A channel's units, row after row,
// count as one list, and a warp walks a part of it from its end to its beginning. Of each of x and dout a unit is
// brought to shared memory by one bulk copy, that of x with the vectors before it that the first lanes reach into. What
// lanes do with a group is what causal_conv1d_bwd does. No atomics on sums.
//
// kWidth    filter taps              input_t   x, dout and dx            weight_t  weight, and bias unless float
// kGroups   groups a unit, 1 or 2    kSilu     silu after the sum
#include "causal_conv1d/conv_bwd_row.cuh"
#include "common/warp_copies.cuh"

// The arguments are only those that rows without states need: they arrive by cache lines, one miss after another.
struct CausalConv1dBulkBwdParams {
    const void* x;
    const void* dout;
    void* dx;
    const void* weight;
    const void* bias;
    void* dweight;
    void* dbias;
    float* scratch;
    FastDiv row_units;       // units a row
    FastDiv channel_groups;  // blocks that have different channels
    unsigned warps_shift;    // binary logarithm of the warps a channel in a block
    unsigned row_vecs;       // vectors a row
    unsigned units;          // units a channel, in all rows
    unsigned warp_units;     // units that a warp walks
    int dim;
    int seqlen;
    index_t x_stride[3];  // batch, dim, seqlen; as those of every launch of the gradients
    index_t dout_stride[3];
    index_t dx_stride[3];
    index_t weight_stride[2];
    index_t bias_stride;
    index_t dweight_stride[2];
    index_t dbias_stride;
    int bias_is_float32;
    int dweight_is_float32;
    int dbias_is_float32;
    int taps_are_packed;
};

// The same as the functions of the gradients take them, with nothing for the rest.
__device__ __forceinline__ CausalConv1dBwdOperands operands_of(const CausalConv1dBulkBwdParams& params) {
    CausalConv1dBwdOperands p = parameters_of(params);
    p.x = params.x;
    p.dout = params.dout;
    p.dx = params.dx;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        p.x_stride[i] = params.x_stride[i];
        p.dout_stride[i] = params.dout_stride[i];
        p.dx_stride[i] = params.dx_stride[i];
    }
    p.seqlen = params.seqlen;
    return p;
}

template <int kWidth, typename input_t, typename weight_t, int kGroups, bool kSilu>
struct CausalConv1dBulkBwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = kWidth <= 4 ? 6 : 1;
    static constexpr int kWarps = kThreads / kWarpSize;
    // Units of one group are for small problems: B1 D2048 L2048 in bfloat16 takes 9.9 us on an H200 with three of them
    // and 10.2 with two units of two groups, B8 D4096 L2048 101.4 and 100.2.
    static constexpr int kStages = 4 - kGroups;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(input_t));
    static constexpr int kUnitVecs = kGroups * kWarpSize;
    static constexpr int kHaloVecs = (kWidth - 1 + kVec - 1) / kVec;
    // Room for the vectors before a unit. A whole line of 128 bytes: lines of global memory are lines of shared memory,
    // else a bulk copy writes every one of them in two pieces.
    static constexpr int kBeforeVecs = 8;
    static constexpr int kStageVecs = kBeforeVecs + 2 * kUnitVecs;
    static_assert(kIsWidth<kWidth> && kHaloVecs <= kBeforeVecs);
};

template <int kWidth, typename input_t, typename weight_t, int kGroups, bool kSilu,
          typename Traits = CausalConv1dBulkBwdTraits<kWidth, input_t, weight_t, kGroups, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_bulk_bwd_kernel(const CausalConv1dBulkBwdParams params) {
    constexpr int kVec = Traits::kVec, kUnitVecs = Traits::kUnitVecs, kStages = Traits::kStages;
    using Gradients = RowGradients<kWidth, input_t, weight_t, kVec, false, kSilu, Rows::kOne, false>;
    using Vector = Vec<input_t, kVec>;
    using Vecs = Place<kVec, false>;
    const CausalConv1dBwdOperands p = operands_of(params);
    // x, from the vectors before a unit on, and dout.
    __shared__ alignas(128) Vector memory[Traits::kWarps][kStages][Traits::kStageVecs];
    __shared__ WarpBarriers<kStages> barriers[Traits::kWarps];

    const QuotientRemainder part_channels = divide(blockIdx.x, params.channel_groups);
    const ChannelLanes lanes(kWarpSize);
    const unsigned warp = uniform(threadIdx.x / kWarpSize);
    const unsigned channel_warps = 1u << params.warps_shift;
    const index_t wanted = static_cast<index_t>(part_channels.remainder * Traits::kWarps + warp) >> params.warps_shift;
    const bool is_idle = wanted >= p.dim;
    const index_t channel = is_idle ? 0 : wanted;
    const unsigned part_warp = (part_channels.quotient << params.warps_shift) + (warp & (channel_warps - 1));
    const int begin = static_cast<int>(min(part_warp * params.warp_units, params.units));
    const int end = is_idle ? begin : static_cast<int>(min(begin + params.warp_units, params.units));

    const QuotientRemainder batch_unit = divide(max(end - 1, 0), params.row_units);
    const GroupStep by = {0, 1, static_cast<int>(params.row_units.divisor)};
    const int row_vecs = static_cast<int>(params.row_vecs);
    LaneWalk<const input_t, 2> inputs(batch_unit);
    inputs.add(0, static_cast<const input_t*>(p.x) + channel * p.x_stride[1], p.x_stride);
    inputs.add(1, static_cast<const input_t*>(p.dout) + channel * p.dout_stride[1], p.dout_stride);
    LaneWalk<input_t, 1> outputs(batch_unit);
    outputs.add(0, static_cast<input_t*>(p.dx) + channel * p.dx_stride[1], p.dx_stride);
    const LaneWalk<const input_t, 2> top = inputs;

    Vector(*const stages)[Traits::kStageVecs] = memory[warp];
    WarpCopies<kStages> copies(barriers[warp]);
    int next_unit = end - 1;
    // Starts to bring the next unit to a stage. What lies behind the end of its row are zeros.
    const auto fetch = [&](int stage) {
        if (next_unit >= begin) {
            const int first = inputs.vec * kUnitVecs, count = min(kUnitVecs, row_vecs - first);
            const int before = first > 0 ? Traits::kHaloVecs : 0;
            Vector* const x_slots = stages[stage] + Traits::kBeforeVecs;
            Vector* const dout_slots = x_slots + kUnitVecs;
            if (count < kUnitVecs) {
#pragma unroll 1
                for (int i = count + lane_id(); i < kUnitVecs; i += kWarpSize) {
                    x_slots[i] = dout_slots[i] = Vector::zero();
                }
                copies.order_stores();
            }
            copies.expect(stage, (before + 2 * count) * static_cast<int>(sizeof(Vector)));
            copies.copy(stage, x_slots - before, inputs.row[0] + (first - before) * kVec, before + count);
            copies.copy(stage, dout_slots, inputs.row[1] + first * kVec, count);
            inputs.step(by);
        }
        --next_unit;
        copies.end();
    };
    const auto fetch_first = [&] {
#pragma unroll 1
        for (int i = 0; i < kStages; ++i) fetch(i);
    };
    // Loads behind the copies take as long as these. Where blocks run one after the other that delays nothing, and
    // copies that start early count: B2 D4096 L2048 in bfloat16 takes 29.6 us on an H200 so and 30.1 with the filter
    // first, B1 D2048 L2048 with units of one group 10.6 and 9.9.
    if constexpr (kGroups > 1) fetch_first();
    const typename Gradients::Filter filter(p, channel);
    if constexpr (kGroups == 1) fetch_first();

    Gradients gradients(p, lanes, channel, row_vecs, filter);
    const VectorSequences<kWidth, kVec> one_sequence{};
    // A warp's list may end inside a row.
    if (kWidth > 1 && begin < end && top.vec + 1 < by.row_vecs) {
        gradients.begin_behind(top.batch, top.row[0], top.row[1], (top.vec + 1) * kUnitVecs * kVec, one_sequence);
    }
    int stage = 0;
#pragma unroll 1
    for (int unit = end - 1; unit >= begin; --unit) {
        copies.wait(stage);
        const Vector* const x_slots = stages[stage] + Traits::kBeforeVecs;
#pragma unroll
        for (int group = kGroups - 1; group >= 0; --group) {
            const Vector* const own_group = x_slots + group * kWarpSize;
            const Vecs place(outputs.batch, outputs.vec * kUnitVecs + group * kWarpSize + lane_id(), outputs.row[0]);
            gradients.template add<Rows::kOne>(place, outputs.row[0], place.vec < row_vecs, own_group,
                                               own_group - kWarpSize, own_group[lane_id()],
                                               own_group[kUnitVecs + lane_id()], one_sequence);
        }
        outputs.step(by);
        // The stage is free when all lanes have read it.
        sync_warp();
        fetch(stage);
        stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    store_block_sums<Traits, kWidth, weight_t>(p, gradients.sums, kSumScale<input_t, kSilu>, lanes, channel_warps,
                                               is_idle ? p.dim : channel, part_channels.quotient);
}
