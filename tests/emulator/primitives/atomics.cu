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
    unsigned* cells = reinterpret_cast<unsigned*>(p.cells);
    atomicSub(p.cells + 1, x);
    atomicMin(p.cells + 2, x);
    atomicMax(p.cells + 3, x);
    atomicAnd(cells + 4, ~(1u << (x & 31)));
    atomicOr(cells + 5, 1u << (x & 31));
    atomicXor(p.cells + 6, x);
    atomicInc(cells + 7, 10);
    atomicDec(cells + 8, 10);
    if (x == 7) atomicExch(p.cells + 9, x);
    // The largest by compare and swap, as one would for a type that has no atomicMax.
    for (int seen = p.cells[10]; x > seen;) {
        const int before = atomicCAS(p.cells + 10, seen, x);
        if (before == seen) break;
        seen = before;
    }
    atomicAdd(p.sums, static_cast<float>(x));
}
