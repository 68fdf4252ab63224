// Reverses a warp's values through shared memory as if its lanes moved in lockstep.
#include "common/params.cuh"

template <int kThreads>
__global__ void syncwarp_missing_kernel(const Row p) {
    static_assert(kThreads == 32);
    extern __shared__ float row[];
    row[threadIdx.x] = p.x[threadIdx.x];
    p.out[threadIdx.x] = row[31 - threadIdx.x];
}
