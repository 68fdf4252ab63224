// Reverses a row through shared memory without a barrier between the writes and the reads.
#include "common/params.cuh"

template <int kThreads>
__global__ void barrier_missing_kernel(const Row p) {
    __shared__ float row[kThreads];
    row[threadIdx.x] = p.x[threadIdx.x];
    p.out[threadIdx.x] = row[kThreads - 1 - threadIdx.x];
}
