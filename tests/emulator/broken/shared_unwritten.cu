// Shifts a row through shared memory, one element of which only the first block writes.
#include "common/params.cuh"

template <int kThreads>
__global__ void shared_unwritten_kernel(const Row p) {
    __shared__ float row[kThreads + 1];
    row[threadIdx.x] = p.x[threadIdx.x];
    if (blockIdx.x == 0) row[kThreads] = 0;
    __syncthreads();
    p.out[blockIdx.x * kThreads + threadIdx.x] = row[threadIdx.x + 1];
}
