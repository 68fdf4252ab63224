// The upper lanes vote under a mask that names the lower ones.
#include "common/params.cuh"

template <int kThreads>
__global__ void wrong_mask_kernel(const Row p) {
    if (__any_sync(0x0000ffffu, p.x[threadIdx.x] > 0)) p.out[threadIdx.x] = 0;
}
