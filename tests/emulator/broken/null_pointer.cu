// Reads a tensor that may be absent without asking.
#include "common/params.cuh"

template <int kThreads>
__global__ void null_pointer_kernel(const Row p) {
    p.out[threadIdx.x] = p.x[threadIdx.x];
}
