// The parameters' gradients from the sums that blocks have left, added in a fixed order: the same bits on every run.
#pragma once

#include "causal_conv1d/conv_bwd.cuh"
#include "common/fastdiv.cuh"
#include "common/warp.cuh"

// Adds up (parts, width + 1, dim) sums: block number `block` has 2**across_shift consecutive sums of a part, and a
// thread one of them in every part that is kThreads >> across_shift further. Params: with dim_div, parts and
// across_shift. Operands: those of the gradients, or what of them is needed here. All threads of a block take part, and
// wait for the kernel that leaves the sums.
template <int kWidth, typename weight_t, int kThreads, typename Operands, typename Params>
__device__ __forceinline__ void add_up_parts(const Operands& p, const Params& share, unsigned block) {
    constexpr int kAtOnce = 8;  // loads in flight
    __shared__ float shared[kThreads];
    const unsigned sums = (kWidth + 1) * share.dim_div.divisor;
    const unsigned across = 1u << share.across_shift;
    const unsigned rows = kThreads >> share.across_shift;
    const unsigned number = (block << share.across_shift) + (threadIdx.x & (across - 1));
    const QuotientRemainder parameter_channel = divide(min(number, sums - 1), share.dim_div);
    const float* const at = p.scratch + number;
    float sum = 0.0f;
    wait_for_leader();
    if (number < sums) {
#pragma unroll 1
        for (unsigned part = threadIdx.x >> share.across_shift; part < share.parts; part += kAtOnce * rows) {
            float loaded[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const unsigned from = part + i * rows;
                loaded[i] = from < share.parts ? at[static_cast<index_t>(from) * sums] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) sum += loaded[i];
        }
    }
    // Those of a warp, then those of all warps.
    shared[threadIdx.x] = sum_over_lanes_apart(sum, static_cast<int>(across));
    __syncthreads();
    if (threadIdx.x >= across || number >= sums) return;
    sum = 0.0f;
#pragma unroll
    for (unsigned warp = 0; warp < kThreads / kWarpSize; ++warp) sum += shared[warp * kWarpSize + threadIdx.x];
    store_parameter_gradient<kWidth, weight_t>(p, parameter_channel.remainder,
                                               static_cast<int>(parameter_channel.quotient), sum);
}
