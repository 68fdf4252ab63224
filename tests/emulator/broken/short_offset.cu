// Computes an offset in 32 bits that needs more.
#include "common/params.cuh"

template <int kThreads>
__global__ void short_offset_kernel(const Row p) {
    const int row = 1 + static_cast<int>(threadIdx.x);
    p.out[threadIdx.x] = p.x[row * p.step];
}
