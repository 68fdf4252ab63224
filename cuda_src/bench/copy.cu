// out[i] = x[i]: the least that a kernel can do with memory, and so the time that other kernels are measured against.
//
// Layout: x and out contiguous and aligned. A thread moves one vector.
//
// kVec    floats an access
#include "common/vec.cuh"

struct CopyParams {
    const float* x;
    float* out;
    index_t vecs;  // vectors of x
};

template <int kVec>
struct CopyTraits {
    static constexpr int kThreads = 256;
};

template <int kVec, typename Traits = CopyTraits<kVec>>
__global__ void __launch_bounds__(Traits::kThreads) copy_kernel(const CopyParams p) {
    const index_t i = static_cast<index_t>(blockIdx.x) * Traits::kThreads + threadIdx.x;
    if (i < p.vecs) store(p.out + i * kVec, load<kVec>(p.x + i * kVec));
}
