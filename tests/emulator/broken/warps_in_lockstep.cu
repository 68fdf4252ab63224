// Reads a tile that another warp has written, twice, with no barrier before the second tile overwrites the first: right
// only as long as no warp gets ahead of another.
#include "common/params.cuh"

template <int kThreads>
__global__ void warps_in_lockstep_kernel(const Row p) {
    __shared__ float tile[kThreads];
    float sum = 0.0f;
    for (int round = 0; round < 2; ++round) {
        tile[threadIdx.x] = p.x[threadIdx.x] + round;
        __syncthreads();
        // The lanes of a warp wait for each other here, but warps do not.
        sum += __shfl_xor_sync(0xffffffffu, tile[kThreads - 1 - threadIdx.x], 1);
    }
    p.out[threadIdx.x] = sum;
}
