// Even lanes sum up among themselves, odd ones multiply in fewer steps, then all lanes vote.
struct Masks {
    const unsigned* x;
    unsigned* out;
    unsigned threshold;
    unsigned padding;
};

template <bool kOddFirst>
__global__ void masks_kernel(const Masks p) {
    const unsigned x = p.x[threadIdx.x];
    unsigned result = x;
    if ((threadIdx.x % 2 == 1) == kOddFirst) {
        const unsigned mask = kOddFirst ? 0xaaaaaaaau : 0x55555555u;
        for (int distance = 2; distance < 32; distance *= 2) result += __shfl_xor_sync(mask, result, distance);
        __syncwarp();
    } else {
        const unsigned mask = kOddFirst ? 0x55555555u : 0xaaaaaaaau;
        for (int distance = 2; distance < 8; distance *= 2) result *= __shfl_xor_sync(mask, result, distance);
        __syncwarp();
    }
    const bool is_above = x > p.threshold;
    unsigned* out = p.out + threadIdx.x;
    out[0 * blockDim.x] = result;
    out[1 * blockDim.x] = __ballot_sync(0xffffffffu, is_above);
    out[2 * blockDim.x] = __any_sync(0xffffffffu, is_above);
    out[3 * blockDim.x] = threadIdx.x % 32 < 16 ? __ballot_sync(0x0000ffffu, is_above) : 0;
}
