// Marks the numbers that blocks of the next launches hand over to each other as not yet there.
//
// Layout: the front of scratch.
//
// kVec  floats per thread
#include "selective_scan/scan_bwd.cuh"

struct SelectiveScanBwdStartParams {
    SelectiveScanBwdOperands operands;
};

template <int kVec>
struct SelectiveScanBwdStartTraits {
    static constexpr int kThreads = 256;
};

template <int kVec, typename Traits = SelectiveScanBwdStartTraits<kVec>>
__global__ void __launch_bounds__(Traits::kThreads)
    selective_scan_bwd_start_kernel(const SelectiveScanBwdStartParams params) {
    const SelectiveScanBwdOperands& p = params.operands;
    const index_t at = (static_cast<index_t>(blockIdx.x) * Traits::kThreads + threadIdx.x) * kVec;
    if (at >= p.filled) return;
    Vec<float, kVec> unset;
#pragma unroll
    for (int i = 0; i < kVec; ++i) unset.words[i] = kUnset;
    store(p.scratch + at, unset);
}
