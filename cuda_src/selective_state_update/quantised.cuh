// Rows of quantised states: a code per element and a scale per row, S = code * scale.
//
// The scale of a row is that of its largest magnitude, which the lanes that share the row find by shuffles whenever
// they store it. A lane reads and writes the scale of its own row alone, so that what a warp has stored it can load
// again.
#pragma once

#include "selective_state_update/states.cuh"

// Traits: how a kernel divides rows among lanes (RowTraits in steps.cuh).

// Where the scale of the lane's own row lies, `at` elements behind the first scale; stride: head, row.
__device__ __forceinline__ float* scale_place(const SelectiveStateUpdateOperands& p, const WarpRows& warp, void* scales,
                                              index_t at, const index_t* stride) {
    return static_cast<float*>(scales) + at + warp.head * stride[0] + warp.own_row(p) * stride[1];
}

// Factors of the rows that a group stores one after the other; nothing for states without scales.
template <typename Traits, bool kIsQuantised = Traits::kIsQuantised>
struct RowFactors {
    __device__ __forceinline__ float find(int, const float (&)[Traits::kElements]) { return 1.0f; }
    __device__ __forceinline__ void store_scale(const typename Traits::Operands&, const WarpRows&, float*,
                                                bool = true) const {}
};

template <typename Traits>
struct RowFactors<Traits, true> {
    float kept = 1.0f;  // in lane i of a group that of row i

    // The factor of row r of the group, from the lane's elements of it; all lanes of the warp take part.
    __device__ __forceinline__ float find(int r, const float (&state)[Traits::kElements]) {
        float magnitude = 0.0f;
#pragma unroll
        for (int i = 0; i < Traits::kElements; ++i) magnitude = max_or_nan(magnitude, fabsf(state[i]));
        const float factor = code_factor<typename Traits::State>(max_over_lanes<Traits::kLanes>(magnitude));
        kept = lane_id() % Traits::kLanes == r ? factor : kept;
        return factor;
    }

    // Stores the scale of the lane's own row, when all rows have their factors.
    __device__ __forceinline__ void store_scale(const SelectiveStateUpdateOperands& p, const WarpRows& warp,
                                                float* place, bool exists = true) const {
        constexpr int kGroups = Traits::kGroups;
        const float factor = from_lane(kept, lane_id() % kGroups * Traits::kLanes + lane_id() / kGroups);
        if (exists && warp.is_row(p, Traits::kTile)) *place = scale_of_factor(factor);
    }
};
