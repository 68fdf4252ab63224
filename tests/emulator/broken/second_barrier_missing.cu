// Shifts a row twice through shared memory. A thread that is early in the second round overwrites what others still
// read.
#include "common/params.cuh"

template <int kThreads>
__global__ void second_barrier_missing_kernel(const Row p) {
    __shared__ float row[kThreads];
    float value = p.x[threadIdx.x];
    for (int round = 0; round < 2; ++round) {
        row[threadIdx.x] = value;
        __syncthreads();
        value = row[(threadIdx.x + 1) % kThreads];
    }
    p.out[threadIdx.x] = value;
}
