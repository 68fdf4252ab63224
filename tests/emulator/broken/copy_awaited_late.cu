// Reverses a row through shared memory by asynchronous copies, and waits for all but the last `step` groups of them.
#include "common/params.cuh"

template <int kThreads>
__global__ void copy_awaited_late_kernel(const Row p) {
    __shared__ float row[kThreads];
    __pipeline_memcpy_async(row + threadIdx.x, p.x + threadIdx.x, sizeof(float));
    __pipeline_commit();
    __pipeline_wait_prior(p.step);
    __syncthreads();
    p.out[threadIdx.x] = row[kThreads - 1 - threadIdx.x];
}
