// Threads behind the row's end return, and the others wait for them.
#include "common/params.cuh"

template <int kThreads>
__global__ void left_before_barrier_kernel(const Row p) {
    if (threadIdx.x >= p.length) return;
    __syncthreads();
    p.out[threadIdx.x] = p.x[threadIdx.x];
}
