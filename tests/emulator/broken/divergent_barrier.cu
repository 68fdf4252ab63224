// Each half of the block waits at a barrier of its own; that both are counted as one is the hardware's kindness.
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
