// dweight and dbias from the sums that blocks have left.
//
// Layout: scratch (parts, width + 1, dim), contiguous. The arguments are only those that this needs: they arrive by
// cache lines, one miss after another, and this launch is as short as its misses.
//
// kWidth    filter taps              weight_t  dweight and dbias unless float
#include "causal_conv1d/conv_bwd_sum.cuh"

struct CausalConv1dBwdSumParams {
    void* dweight;
    void* dbias;
    const float* scratch;
    index_t dweight_stride[2];  // dim, width
    index_t dbias_stride;
    int dweight_is_float32;
    int dbias_is_float32;
    FastDiv dim_div;
    unsigned parts;
    unsigned across_shift;  // binary logarithm of the sums of a part that a block has
};

template <int kWidth, typename weight_t>
struct CausalConv1dBwdSumTraits {
    static constexpr int kThreads = 256;
    static constexpr int kMinBlocks = 1;
};

template <int kWidth, typename weight_t, typename Traits = CausalConv1dBwdSumTraits<kWidth, weight_t>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_bwd_sum_kernel(const CausalConv1dBwdSumParams p) {
    add_up_parts<kWidth, weight_t, Traits::kThreads>(p, p, blockIdx.x);
}
