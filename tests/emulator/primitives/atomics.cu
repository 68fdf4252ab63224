// All threads of all blocks apply every atomic, each to a cell of its own. Sums go through shared memory, too.
struct Atomics {
    const int* x;
    int* cells;
    float* sums;
};

template <int kThreads>
__global__ void atomics_kernel(const Atomics p) {
    __shared__ int block_sum;
    const int x = p.x[blockIdx.x * kThreads + threadIdx.x];
    if (threadIdx.x == 0) block_sum = 0;
    __syncthreads();
    atomicAdd(&block_sum, x);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(p.cells + 0, block_sum);
    atomicMax(p.cells + 1, x);
    atomicOr(reinterpret_cast<unsigned*>(p.cells) + 2, 1u << (x & 31));
    atomicAdd(p.sums, static_cast<float>(x));
}
