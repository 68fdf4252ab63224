// dweight and dbias from the sums that blocks have left, added in a fixed order: the same bits on every run.
//
// Layout: scratch (parts, width + 1, dim), contiguous. A block owns blockDim.x consecutive sums of a part; the threads
// of one sum take every blockDim.y-th part each. Their sums are added eight at a time, then those of the eights.
//
// kWidth    filter taps              weight_t  dweight and dbias unless float
#include "causal_conv1d/conv_bwd.cuh"
#include "common/fastdiv.cuh"

struct CausalConv1dBwdSumParams {
    CausalConv1dBwdOperands operands;
    FastDiv dim_div;
    unsigned parts;
};

template <int kWidth, typename weight_t>
struct CausalConv1dBwdSumTraits {
    static constexpr int kThreads = 256;
    static constexpr int kMinBlocks = 1;
    static constexpr int kAtOnce = 8;  // loads in flight, and sums that one thread adds
};

template <int kWidth, typename weight_t, typename Traits = CausalConv1dBwdSumTraits<kWidth, weight_t>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_bwd_sum_kernel(const CausalConv1dBwdSumParams params) {
    const CausalConv1dBwdOperands& p = params.operands;
    __shared__ float shared[Traits::kThreads];

    const unsigned sums = (kWidth + 1) * static_cast<unsigned>(p.dim);
    const unsigned number = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    if (number < sums) {
        for (unsigned part = threadIdx.y; part < params.parts; part += Traits::kAtOnce * blockDim.y) {
            float loaded[Traits::kAtOnce];
#pragma unroll
            for (int i = 0; i < Traits::kAtOnce; ++i) {
                const unsigned from = part + i * blockDim.y;
                loaded[i] = from < params.parts ? p.scratch[static_cast<index_t>(from) * sums + number] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < Traits::kAtOnce; ++i) sum += loaded[i];
        }
    }
    const unsigned own = threadIdx.y * blockDim.x + threadIdx.x;
    for (unsigned rows = blockDim.y, apart = 1; rows > 1;
         rows = (rows + Traits::kAtOnce - 1) / Traits::kAtOnce, apart *= Traits::kAtOnce) {
        // Rows whose number is a multiple of `apart` still hold sums.
        shared[own] = sum;
        __syncthreads();
        if (threadIdx.y % (apart * Traits::kAtOnce) == 0) {
            sum = 0.0f;
            for (unsigned i = 0, row = threadIdx.y; i < Traits::kAtOnce && row < blockDim.y; ++i, row += apart) {
                sum += shared[row * blockDim.x + threadIdx.x];
            }
        }
        __syncthreads();
    }
    if (threadIdx.y == 0 && number < sums) {
        const QuotientRemainder parameter_channel = divide(number, params.dim_div);
        store_parameter_gradient<kWidth, weight_t>(p, parameter_channel.remainder,
                                                   static_cast<int>(parameter_channel.quotient), sum);
    }
}
