// Transposes each block's tile through every form of shared memory, in three dimensions of threads and blocks.
struct SharedMemory {
    const float* x;
    float* out;
};

template <int kX, typename T>
struct Cell {
    using Type = T;
};

// A variable of its own for every instantiation, although the type is the same.
template <int kWhich, int kSize>
__device__ float* own_variable() {
    static __shared__ float variable[kSize];
    return variable;
}

// A declaration that is a comment, __shared__ float a, b; and a real one over several lines.
template <int kX, int kY>
__global__ void shared_memory_kernel(const SharedMemory p) {
    extern __shared__ __align__(16) float dynamic[];
    __shared__ __align__(16) float tile[kX][kY + 1];
    __shared__ typename Cell<kX, float>::Type total;
    const int thread = threadIdx.x + kX * (threadIdx.y + kY * threadIdx.z);
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const float x = p.x[block * kX * kY + thread];
    static_assert(sizeof(tile) == kX * (kY + 1) * sizeof(float));

    dynamic[thread] = x;
    tile[threadIdx.x][threadIdx.y] = x;
    own_variable<0, kX * kY>()[thread] = x + 1;
    own_variable<1, kX * kY>()[thread] = x + 2;
    if (thread == 0) total = 0;
    __syncthreads();
    if (thread < 3) atomicAdd(&total, dynamic[thread]);
    __syncthreads();
    const int other = kX * kY - 1 - thread;
    const float copies = own_variable<0, kX * kY>()[other] * 100 + own_variable<1, kX * kY>()[other] * 10000;
    p.out[block * kX * kY + thread] = tile[thread / kY][thread % kY] + copies + total * 1000000;
}
