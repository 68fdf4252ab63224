// Each half of the block waits at a barrier of its own. The hardware counts both as one, but need not.
#include "common/params.cuh"

template <int kThreads>
__global__ void divergent_barrier_kernel(const Row p) {
    if (threadIdx.x < kThreads / 2) {
        __syncthreads();
        p.out[threadIdx.x] = p.x[threadIdx.x];
    } else {
        __syncthreads();
    }
}
