// Marks the numbers that blocks of the next launches hand over to each other as not yet there, and leaves zeros for the
// sums of chunks that no sequence needs. Through empty sequences, where chunks are shared, gradients of states pass.
//
// Layout: the front of scratch, and for packed sequences with chunks of their own the sums over tokens behind it. A
// block has some of the sequences.
//
// kVec  floats per thread    kHasStates  whether sequences that share chunks begin with states
// kHasRows  whether sequences are rows of a batch
#include "selective_scan/scan_bwd.cuh"

struct SelectiveScanBwdStartParams {
    SelectiveScanBwdOperands operands;
};

template <int kVec, bool kHasStates, bool kHasRows>
struct SelectiveScanBwdStartTraits {
    static constexpr int kThreads = 256;
};

// The gradient of an empty sequence's state.
template <int kThreads>
__device__ __forceinline__ void pass_through(const SelectiveScanBwdOperands& p, int number) {
    const index_t *const from = p.dlast_state_stride, *const to = p.dinitial_state_stride;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < p.dim * p.d_state; i += kThreads) {
        const int channel = i / p.d_state, n = i % p.d_state;
        float gradient = 0.0f;
        if (p.dlast_state != nullptr) gradient = p.dlast_state[number * from[0] + channel * from[1] + n * from[2]];
        p.dinitial_state[number * to[0] + channel * to[1] + n * to[2]] = gradient;
    }
}

template <int kVec, bool kHasStates, bool kHasRows,
          typename Traits = SelectiveScanBwdStartTraits<kVec, kHasStates, kHasRows>>
__global__ void __launch_bounds__(Traits::kThreads)
    selective_scan_bwd_start_kernel(const SelectiveScanBwdStartParams params) {
    const SelectiveScanBwdOperands& p = params.operands;
    if constexpr (kHasStates) {
        for (int number = static_cast<int>(blockIdx.x); number < p.sequences; number += static_cast<int>(gridDim.x)) {
            if (first_token(p, number + 1) <= first_token(p, number)) pass_through<Traits::kThreads>(p, number);
        }
    }
    if constexpr (kHasRows) {
        // In scratch memory, which no caller has given.
        int* const starts = static_cast<int*>(const_cast<void*>(p.query_start_loc));
        const int first = static_cast<int>(blockIdx.x * Traits::kThreads + threadIdx.x);
        for (int number = first; number <= p.sequences; number += static_cast<int>(gridDim.x) * Traits::kThreads) {
            starts[number] = number * p.row_tokens;
        }
    }
    const index_t at = (static_cast<index_t>(blockIdx.x) * Traits::kThreads + threadIdx.x) * kVec;
    if (at >= p.filled + p.zeros) return;
    Vec<float, kVec> filling;
#pragma unroll
    for (int i = 0; i < kVec; ++i) filling.words[i] = at < p.filled ? kUnset : 0;
    store(p.scratch + at, filling);
}
