// Every kind of shuffle by the same distance, a row of `out` each.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Shuffles {
    const void* x;
    void* out;
    int distance;
    int padding;
};

template <typename T, int kWidth>
__global__ void shuffles_kernel(const Shuffles p) {
    const T x = static_cast<const T*>(p.x)[threadIdx.x];
    T* out = static_cast<T*>(p.out) + threadIdx.x;
    out[0 * blockDim.x] = __shfl_sync(0xffffffffu, x, p.distance, kWidth);
    out[1 * blockDim.x] = __shfl_up_sync(0xffffffffu, x, p.distance, kWidth);
    out[2 * blockDim.x] = __shfl_down_sync(0xffffffffu, x, p.distance, kWidth);
    out[3 * blockDim.x] = __shfl_xor_sync(0xffffffffu, x, p.distance, kWidth);
}
