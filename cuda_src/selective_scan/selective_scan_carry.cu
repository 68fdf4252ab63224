// The states before every segment of a selective scan, from those behind segments that begin with zeros:
// before[i + 1] = before[i] * exp(A * sum of dt) + behind[i], the second of three launches.
//
// Layout: scratch, in place. A thread owns one state of one channel in all segments.
//
// kAhead  segments loaded before the first of them is used
#include "selective_scan/scan_segments.cuh"

struct SelectiveScanCarryParams {
    SelectiveScanOperands operands;
    FastDiv states;    // d_state
    FastDiv channels;  // dim
};

template <int kAhead>
struct SelectiveScanCarryTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
    static_assert(kAhead >= 1);
};

template <int kAhead, typename Traits = SelectiveScanCarryTraits<kAhead>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_carry_kernel(const SelectiveScanCarryParams params) {
    const SelectiveScanOperands& p = params.operands;
    const QuotientRemainder row_n = divide(blockIdx.x * Traits::kThreads + threadIdx.x, params.states);
    const QuotientRemainder batch_channel = divide(row_n.quotient, params.channels);
    const int batch = static_cast<int>(batch_channel.quotient), channel = static_cast<int>(batch_channel.remainder);
    const int n = static_cast<int>(row_n.remainder), segments = static_cast<int>(p.segments.divisor);
    if (batch >= p.batch) return;
    const ScanScratch scratch(p);
    const float a = load<1>(static_cast<const float*>(p.A) + channel * p.A_stride[0] + n * p.A_stride[1]).to_float(0);
    float h = 0.0f;
    if (p.initial_state != nullptr) {
        const index_t* stride = p.initial_state_stride;
        h = load<1>(p.initial_state + batch * stride[0] + channel * stride[1] + n * stride[2]).to_float(0);
    }
    const float rate = a * kLog2E;
    float* const first = scratch.state(p, batch, 0, channel) + n;
    const float* const first_step = scratch.step(p, batch, 0, channel);
    const index_t row = static_cast<index_t>(p.dim) * p.d_state;
    for (int from = 0; from < segments; from += kAhead) {
        float behind[kAhead], steps[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            // Nothing is known of the last segment, and nothing comes after it.
            const index_t segment = min(from + i, segments - 2);
            behind[i] = load<1, Memory::kMutable>(first + segment * row).to_float(0);
            steps[i] = load<1, Memory::kMutable>(first_step + segment * p.dim).to_float(0);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (from + i < segments) first[(from + i) * row] = h;
            h = fmaf(h, exp2_approx(rate * steps[i]), behind[i]);
        }
    }
}
