// All 16-bit patterns as floats, and floats as 16-bit patterns, one by one and in pairs.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Conversions {
    const unsigned short* patterns;
    const float* floats;
    float* widened;
    unsigned short* narrowed;
    unsigned* paired;
    int count;
    int padding;
};

__device__ inline float widen(__half v) {
    return __half2float(v);
}
__device__ inline float widen(__nv_bfloat16 v) {
    return __bfloat162float(v);
}
__device__ inline unsigned short bits(__half v) {
    return __half_as_ushort(v);
}
__device__ inline unsigned short bits(__nv_bfloat16 v) {
    return __bfloat16_as_ushort(v);
}

template <typename T>
struct Pattern;

template <>
struct Pattern<__half> {
    __device__ static __half of(unsigned short bits) { return __ushort_as_half(bits); }
    __device__ static __half of(float v) { return __float2half_rn(v); }
    __device__ static unsigned pair(float a, float b) { return bits(of(a)) | static_cast<unsigned>(bits(of(b))) << 16; }
};

template <>
struct Pattern<__nv_bfloat16> {
    __device__ static __nv_bfloat16 of(unsigned short bits) { return __ushort_as_bfloat16(bits); }
    __device__ static __nv_bfloat16 of(float v) { return __float2bfloat16_rn(v); }
    __device__ static unsigned pair(float a, float b) {
        const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
        return bits(__low2bfloat16(v)) | static_cast<unsigned>(bits(__high2bfloat16(v))) << 16;
    }
};

template <typename T>
__global__ void conversions_kernel(const Conversions p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    p.widened[i] = widen(Pattern<T>::of(p.patterns[i]));
    p.narrowed[i] = bits(Pattern<T>::of(p.floats[i]));
    p.paired[i] = Pattern<T>::pair(p.floats[i], p.floats[p.count - 1 - i]);
}
