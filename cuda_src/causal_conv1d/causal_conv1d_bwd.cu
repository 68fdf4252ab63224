// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for rows whose sequence
// is contiguous. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dx (batch, dim, seqlen), seqlen stride 1; any strides when kVec is 1. dout the same, or any strides
// element by element. A channel's vectors, row after row, count as one list. A group is what the lanes of a warp hold
// of it at a time, one vector each; where rows are very short, the lanes share several consecutive channels. A warp
// walks a part of the list from its end to its beginning, and copies the groups ahead of it asynchronously into a ring
// in shared memory. Inputs before a vector come from the ring, gradients behind it from the lane above by shuffle,
// those of the highest lane from the lowest in the group before. The parameters' gradients stay in registers until the
// warp's last group; the block adds up those of its lanes and warps in a fixed order. No atomics on sums.
//
// Packed sequences are one row. A warp knows the sequence that the last group was in, and computes groups inside it as
// those of a plain row. Where sequences meet, it looks up their beginnings together and marks them as bits in shared
// memory, from which each lane takes those around its vector.
//
// kWidth    filter taps              input_t   x, dout and dx            weight_t  weight, and bias unless float
// kVec      elements an access       kStages   groups in the ring        kSilu     silu after the sum
// kEdges    vectors may lie inside a row only in part
// kSeqIdx   tokens see only their own sequence number                kPacked   rows are packed sequences
// kStates   initial states, or gradients of states, are given or wanted
#include "causal_conv1d/conv_bwd_row.cuh"

struct CausalConv1dBwdParams {
    CausalConv1dBwdOperands operands;
    FastDiv row_vecs;        // vectors a row
    FastDiv channel_groups;  // blocks that have different channels
    unsigned lanes;          // a channel in a warp, a power of two
    unsigned lanes_shift;    // its binary logarithm
    unsigned warps_shift;    // binary logarithm of the warps a channel in a block
    unsigned vecs;           // vectors a channel, in all rows
    unsigned groups;         // groups a channel, in all rows
    unsigned warp_groups;    // groups that a warp walks
    unsigned step_rows;      // whole rows between a lane's vectors of two groups
    unsigned step_vecs;      // vectors between them beyond those rows
    int is_dense;            // x and dout have no gaps: what lies around a row is memory, too
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kStages, bool kEdges, bool kSilu, bool kSeqIdx,
          bool kPacked, bool kStates>
struct CausalConv1dBwdTraits {
    static constexpr int kThreads = 128;
    static constexpr Rows kRows = kRowsOf<kSeqIdx, kPacked>;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr bool kIsLean = kWidth <= 4 && kRows == Rows::kOne && !kStates;
    static constexpr int kMinBlocks = kIsLean ? 6 : kPacked && kWidth <= 4 ? 5 : 1;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kHaloVecs = (kHalo + kVec - 1) / kVec;
    static_assert(kWidth >= 1 && kWidth <= 16 && kStages >= 3);
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kStages, bool kEdges, bool kSilu, bool kSeqIdx,
          bool kPacked, bool kStates,
          typename Traits =
              CausalConv1dBwdTraits<kWidth, input_t, weight_t, kVec, kStages, kEdges, kSilu, kSeqIdx, kPacked, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_bwd_kernel(const CausalConv1dBwdParams params) {
    using Gradients = RowGradients<kWidth, input_t, weight_t, kVec, kEdges, kSilu, Traits::kRows, kStates>;
    using Vector = Vec<input_t, kVec>;
    using Vecs = Place<kVec, kEdges>;
    const CausalConv1dBwdOperands p = with_states<kStates>(params.operands);
    __shared__ Vector ring[kStages][2][Traits::kThreads];

    const QuotientRemainder part_channels = divide(blockIdx.x, params.channel_groups);
    const ChannelLanes lanes(params.lanes);
    const unsigned warp = uniform(threadIdx.x / kWarpSize);
    const unsigned channel_warps = 1u << params.warps_shift;
    const index_t wanted =
        (static_cast<index_t>(part_channels.remainder * Traits::kWarps + warp) >> params.warps_shift) *
            (kWarpSize >> params.lanes_shift) +
        (lane_id() >> params.lanes_shift);
    const bool is_idle = wanted >= p.dim;
    const index_t channel = is_idle ? 0 : wanted;
    const unsigned part_warp = (part_channels.quotient << params.warps_shift) + (warp & (channel_warps - 1));
    const int begin = static_cast<int>(min(part_warp * params.warp_groups, params.groups));
    const int end = static_cast<int>(min(begin + params.warp_groups, params.groups));

    const unsigned last = max(end - 1, 0) * lanes.count + lanes.number;
    // The groups of which a lane has a vector. What comes from registers here would be computed again in every group.
    const int highest = opaque(is_idle ? -1 : last < params.vecs ? end - 1 : end - 2);
    // Of the group before the lowest, the first vectors need what is in reach.
    const int lowest =
        opaque(is_idle ? end : max(0, begin - (lanes.number >= lanes.count - Traits::kHaloVecs ? 1 : 0)));
    const QuotientRemainder batch_vec = divide(last, params.row_vecs);
    const GroupStep by = {static_cast<int>(params.step_rows), static_cast<int>(params.step_vecs),
                          static_cast<int>(params.row_vecs.divisor)};
    LaneWalk<const input_t, 2> inputs(batch_vec);
    inputs.add(0, static_cast<const input_t*>(p.x) + channel * p.x_stride[1], p.x_stride);
    inputs.add(1, static_cast<const input_t*>(p.dout) + channel * p.dout_stride[1], p.dout_stride);
    LaneWalk<input_t, 1> outputs(batch_vec);
    outputs.add(0, static_cast<input_t*>(p.dx) + channel * p.dx_stride[1], p.dx_stride);
    const LaneWalk<const input_t, 2> top = inputs;

    const input_t* const x_end = static_cast<const input_t*>(p.x) + static_cast<index_t>(p.batch) * p.dim * p.seqlen;
    // Starts to copy a group to the lane's place in a stage of the ring.
    const auto fetch = [&](int group, Vector* slot) {
        if (group >= lowest) {
            Vector* const dout_slot = slot + Traits::kThreads;
            const Vecs place(inputs.batch, inputs.vec, inputs.row[0]);
            const input_t* const x_at = place.at(inputs.row[0], p.x_stride[2]);
            bool is_memory = group <= highest;
            if (kEdges && is_memory && !place.is_whole(p.seqlen)) {
                is_memory = params.is_dense && place.token < p.seqlen && x_at >= p.x && x_at + kVec <= x_end;
            }
            const bool is_part = group <= highest && place.token < p.seqlen;
            if (is_memory) {
                copy_vector_async(slot, x_at);
            } else {
                *slot = is_part ? load_part<kVec>(x_at, place.begin(), place.end(p.seqlen)) : Vector::zero();
            }
            if (is_memory && p.dout_is_packed) {
                copy_vector_async(dout_slot, place.at(inputs.row[1], p.dout_stride[2]));
            } else {
                Vector part = Vector::zero();
                if (is_part) {
#pragma unroll
                    for (int j = 0; j < kVec; ++j) {
                        if (j >= place.begin() && j < place.end(p.seqlen)) {
                            part.put(j, inputs.row[1][(place.token + j) * p.dout_stride[2]]);
                        }
                    }
                }
                *dout_slot = part;
            }
        }
        end_copy_group();
        inputs.step(by);
    };
    // Before the copies: loads that are behind them take as long as they do.
    const typename Gradients::Filter filter(p, channel);
    constexpr int kStageSlots = 2 * Traits::kThreads;
    Vector* const warp_slots = ring[0][0] + (threadIdx.x - lane_id());
    // A loop: unrolled, the code is longer and no faster.
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) fetch(end - 1 - i, warp_slots + i * kStageSlots + lane_id());

    Gradients gradients(p, lanes, channel, by.row_vecs, filter);
    PackedSequences<Traits, kWidth, kVec, kEdges, kStates> packed;
    // A warp's list ends inside a row only where one channel has all its lanes.
    if (Traits::kHalo > 0 && begin < end && lanes.count == kWarpSize &&
        static_cast<unsigned>(end) * kWarpSize < params.vecs) {
        const int batch = from_lane(top.batch, kWarpSize - 1), vec = from_lane(top.vec, kWarpSize - 1) + 1;
        if (vec < by.row_vecs) {
            const input_t* const row = top.row[0] + (batch - top.batch) * top.stride[0];
            const int token = Vecs(batch, vec, row).token;
            packed.find(p, token - Traits::kHalo, token + Traits::kHalo, lane_id());
            gradients.begin_behind(batch, row, top.row[1] + (batch - top.batch) * top.stride[1], token,
                                   packed.sequences);
        }
    }
    // The token of vectors that lie behind a row, so far before it that they see zeros. The one before them may reach
    // into the next row, where there may be infinities and NaN, which times gradients of 0 are NaN in this row's sums.
    constexpr int kUnseeing = -kVec - Traits::kHalo;
    int own_stage = 0, free_stage = (kStages - 1) * kStageSlots;
#pragma unroll 1
    for (int group = end - 1; group >= begin; --group) {
        // This group and the one before it are there; all lanes have read the one behind it.
        wait_for_copy_groups<kStages - 3>();
        sync_warp();
        fetch(group - (kStages - 1), warp_slots + free_stage + lane_id());
        const Vector* const own_group = warp_slots + own_stage;
        free_stage = own_stage;
        own_stage = own_stage < (kStages - 1) * kStageSlots ? own_stage + kStageSlots : 0;
        Vecs place(outputs.batch, outputs.vec, outputs.row[0]);
        Vector x = own_group[lane_id()];
        Vector dout = own_group[Traits::kThreads + lane_id()];
        if (kEdges && !place.is_whole(p.seqlen)) {
            x = keep_part(x, place.begin(), place.end(p.seqlen));
            dout = keep_part(dout, place.begin(), place.end(p.seqlen));
            if (Traits::kRows == Rows::kOne && place.token >= p.seqlen && place.vec > 0) place.token = kUnseeing;
        }
        const bool is_plain = packed.enter(p, lanes, group, place.phase);
        if ((Traits::kRows != Rows::kOne || kStates) && group > highest) {
            place.batch = 0;
            place.token = place.vec = by.row_vecs * kVec;
            if (kEdges && Traits::kRows == Rows::kOne) place.token = kUnseeing;
        }
        if (is_plain) {
            gradients.template add<Rows::kOne>(place, outputs.row[0], group <= highest, own_group,
                                               warp_slots + own_stage, x, dout, packed.sequences);
        } else if constexpr (Traits::kRows != Rows::kOne) {
            gradients.template add<Traits::kRows>(place, outputs.row[0], group <= highest, own_group,
                                                  warp_slots + own_stage, x, dout, packed.sequences);
        }
        outputs.step(by);
    }
    store_block_sums<Traits, kWidth, weight_t>(p, gradients.sums, kSumScale<input_t, kSilu>, lanes, channel_warps,
                                               is_idle ? p.dim : channel, part_channels.quotient);
}
