// dweight and dbias from the sums that blocks have left.
//
// Layout: scratch (parts, width + 1, dim), contiguous. The arguments are only those that this needs: they arrive by
// cache lines, one miss after another, and this launch is as short as its misses.
//
// It starts when the last block of the kernel that leaves the sums has ended its walks: with contiguous channels, B1
// D2048 L2048 in bfloat16 takes 12.2 us on an H200 instead of 13.0 with an ordinary launch and 12.6 where it starts
// with that block. Clusters of 8 blocks that add up their sums in shared memory take 17.9: one of them finds no room
// beside the others. For the last block to add them up there would have to be a counter, and a launch that clears it.
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
