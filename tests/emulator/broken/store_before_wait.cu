// Every thread writes before it waits.
#include "common/params.cuh"

template <int kThreads>
__global__ void store_before_wait_kernel(const Row p) {
    p.out[threadIdx.x] = p.x[threadIdx.x];
    cudaGridDependencySynchronize();
}
