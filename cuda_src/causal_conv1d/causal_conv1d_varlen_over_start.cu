// Sets the counters by which blocks with results over x see whether another one has read what they overwrite.
//
// Layout: contiguous. A thread sets one vector.
//
// kVec  counters per thread
#include "causal_conv1d/conv_varlen.cuh"

struct CausalConv1dVarlenOverStartParams {
    CausalConv1dVarlenOperands operands;
    index_t counters_at;  // bytes of scratch before the counters
    int counters;
};

template <int kVec>
struct CausalConv1dVarlenOverStartTraits {
    static constexpr int kThreads = 32;
};

template <int kVec, typename Traits = CausalConv1dVarlenOverStartTraits<kVec>>
__global__ void __launch_bounds__(Traits::kThreads)
    causal_conv1d_varlen_over_start_kernel(const CausalConv1dVarlenOverStartParams params) {
    let_follower_start();
    const int at = static_cast<int>(blockIdx.x * Traits::kThreads + threadIdx.x) * kVec;
    if (at >= params.counters) return;
    Vec<float, kVec> filling;
#pragma unroll
    for (int i = 0; i < kVec; ++i) filling.words[i] = 0xffffffffu;
    store(reinterpret_cast<float*>(static_cast<char*>(params.operands.scratch) + params.counters_at) + at, filling);
}
