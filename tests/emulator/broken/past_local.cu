// Fills one register more than there is, by its index or by a pointer, before a barrier and after it.
#include "common/params.cuh"

__device__ __noinline__ void put(float* p, int i, float v) {
    p[i] = v;
}

template <int kThreads>
__global__ void past_local_kernel(const Row p) {
    float taps[4];
    for (int i = 0; i < p.length; ++i) taps[i] = p.x[i];
    __syncthreads();
    for (int i = 0; i < p.step; ++i) put(taps, i, p.x[i]);
    p.out[threadIdx.x] = taps[threadIdx.x % 4];
}
