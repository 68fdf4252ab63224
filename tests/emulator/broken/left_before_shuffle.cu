// Lanes behind the row's end return, and the others name them in a mask.
#include "common/params.cuh"

__device__ __forceinline__ float from_lane_below(float v) {
    return __shfl_up_sync(0xffffffffu, v, 1);
}

template <int kThreads>
__global__ void left_before_shuffle_kernel(const Row p) {
    if (threadIdx.x >= p.length) return;
    p.out[threadIdx.x] = from_lane_below(p.x[threadIdx.x]);
}
