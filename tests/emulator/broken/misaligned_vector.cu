// Reads vectors of four from the beginning of the row, whatever its alignment.
#include "common/params.cuh"

template <int kThreads>
__global__ void misaligned_vector_kernel(const Row p) {
    const float4 v = __ldg(reinterpret_cast<const float4*>(p.x) + threadIdx.x);
    p.out[threadIdx.x] = v.x + v.y + v.z + v.w;
}
