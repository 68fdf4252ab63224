// Lanes vote in two branches, both by the same device function, which each of them calls.
#include "common/params.cuh"

__device__ __forceinline__ bool any_above(float v, float bound) {
    return __any_sync(0xffffffffu, v > bound);
}

template <int kThreads>
__global__ void divergent_helper_kernel(const Row p) {
    const float v = p.x[threadIdx.x];
    if (threadIdx.x % 2 == 0) {
        p.out[threadIdx.x] = any_above(v, 1);  // of even lanes
    } else {
        p.out[threadIdx.x] = any_above(v, 2);  // of odd lanes
    }
}
