// Threads behind the row's end do not wait for the preceding kernel.
#include "common/params.cuh"

template <int kThreads>
__global__ void left_before_wait_kernel(const Row p) {
    if (threadIdx.x >= p.length) return;
    cudaGridDependencySynchronize();
    p.out[threadIdx.x] = p.x[threadIdx.x];
}
