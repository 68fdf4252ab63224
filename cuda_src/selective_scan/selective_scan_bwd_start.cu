// Marks the numbers that blocks of the next launches hand over to each other as not yet there, and leaves zeros for the
// sums of chunks that no sequence needs.
//
// Layout: the front of scratch, and for packed sequences with chunks of their own the sums over tokens behind it.
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
    if (at >= p.filled + p.zeros) return;
    Vec<float, kVec> filling;
#pragma unroll
    for (int i = 0; i < kVec; ++i) filling.words[i] = at < p.filled ? kUnset : 0;
    store(p.scratch + at, filling);
}
