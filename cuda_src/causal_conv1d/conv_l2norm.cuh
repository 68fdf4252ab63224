// Heads of packed sequences whose results are L2-normalised: the channels of a group of lanes, and the norms.
#pragma once

#include "causal_conv1d/conv_varlen.cuh"

// The channels that a group of lanes has. Params: those of a kernel with normalised heads.
struct LaneGroup {
    int range;
    int range_begin;  // the first channel of the range
    int begin;
    int width;  // channels; 0 behind the end of the range
    int lanes;
    int lane;
    bool is_normalized;  // the same for the whole warp

    template <typename Params>
    __device__ __forceinline__ LaneGroup(const Params& params, int unit) {
        const CausalConv1dVarlenOperands& p = params.operands;
        range = 0;
        while (range + 1 < p.ranges && unit >= params.unit_end[range]) ++range;
        lanes = params.unit_lanes[range];
        // Lanes are a power of two: a division would take a fifth of the instructions in front of a tile's loads.
        const int shift = lowest(static_cast<unsigned>(lanes));
        lane = lane_id() & (lanes - 1);
        const int first_unit = range == 0 ? 0 : params.unit_end[range - 1];
        range_begin = range == 0 ? 0 : p.range_end[range - 1];
        const int index = ((unit - first_unit) * kWarpSize + lane_id()) >> shift;
        begin = range_begin + index * params.unit_width[range];
        width = max(0, min(params.unit_width[range], p.range_end[range] - begin));
        is_normalized = range < params.normalized;
    }

    // The first channel of the lane, of those that the lanes have at once; any where it has none.
    template <int kVec>
    __device__ __forceinline__ index_t channel() const {
        return lane * kVec < width ? begin + lane * kVec : 0;
    }
};

// Replaces sums of squares by what the results are multiplied by, 1 / sqrt(sum + eps): kAtOnce sums, each over the same
// group of `lanes` consecutive lanes. Lanes share them out, so that each adds up and takes the root of only a few.
template <int kAtOnce>
__device__ __forceinline__ void sums_to_scales(float (&sums)[kAtOnce], int lanes, float eps) {
    if (lanes < kAtOnce) {
        sum_each_over_lanes(sums, lanes);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) sums[i] = rsqrtf(sums[i] + eps);
        return;
    }
    const float own = sum_over_lanes<kAtOnce>(sum_rows_over_lanes<kAtOnce, kAtOnce>(sums), lanes);
    const float scale = rsqrtf(own + eps);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sums[i] = from_group_lane<kAtOnce>(scale, i);
}
