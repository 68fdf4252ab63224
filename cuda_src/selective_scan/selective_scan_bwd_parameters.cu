// dA, dD, ddelta_bias and constant dB and dC, out of the sums over a chunk's tokens that the blocks of
// selective_scan_bwd have left.
//
// Layout: sums (chunk, dim, d_state), those of dD and ddelta_bias (chunk, dim, warp, 2). A thread owns one number of a
// kind, which is the block's place in the grid's second axis: dA, dB, dC, or both of dD and ddelta_bias.
//
// input_t  constant dB and dC, dD and ddelta_bias where they are not float32
// kAhead   chunks that are loaded before the first of them is used
#include "selective_scan/scan_bwd.cuh"

struct SelectiveScanBwdParametersParams {
    SelectiveScanBwdOperands operands;
};

template <typename input_t, int kAhead>
struct SelectiveScanBwdParametersTraits {
    static constexpr int kThreads = 128;
};

enum Kind { kDA, kDB, kDC, kVectors };

// Stores a number that is a float or a T.
template <typename T>
__device__ __forceinline__ void store_number(void* to, index_t at, float value, int is_float32) {
    if (is_float32) {
        static_cast<float*>(to)[at] = value;
    } else {
        static_cast<T*>(to)[at] = Dtype<T>::from_float(value);
    }
}

template <typename input_t, int kAhead, typename Traits = SelectiveScanBwdParametersTraits<input_t, kAhead>>
__global__ void __launch_bounds__(Traits::kThreads)
    selective_scan_bwd_parameters_kernel(const SelectiveScanBwdParametersParams params) {
    const SelectiveScanBwdOperands& p = params.operands;
    const int kind = static_cast<int>(blockIdx.y);
    wait_for_leader();
    if ((kind == kDB && !p.constant_B) || (kind == kDC && !p.constant_C)) return;
    // dD and ddelta_bias have a part for every warp of a block, two numbers each.
    constexpr int kWarps = ChunkShape<input_t>::kWarps;
    const int columns = kind == kVectors ? 2 * kWarps : p.d_state;
    const unsigned count = static_cast<unsigned>(p.dim) * columns;
    const unsigned number = blockIdx.x * Traits::kThreads + threadIdx.x;
    if (blockIdx.x * Traits::kThreads >= count) return;
    const float* const first = p.scratch +
                               (kind == kDA   ? p.rates_at
                                : kind == kDB ? p.constants_at
                                : kind == kDC ? p.more_constants_at
                                              : p.vectors_at) +
                               min(number, count - 1);
    const int chunks = p.batch * p.chunks;
    float sum = 0.0f;
    for (int from = 0; from < chunks; from += kAhead) {
        float part[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            part[i] =
                load<1, Memory::kMutable>(first + static_cast<index_t>(min(from + i, chunks - 1)) * count).to_float(0);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (from + i < chunks) sum += part[i];
        }
    }
    if (kind == kVectors) {
        // A channel's numbers are neighbouring lanes': every second one is of the same gradient.
        float sums[1] = {sum};
        sum_parts_over_lanes<kWarps, 2>(sums);
        sum = sums[0];
    }
    const int channel = static_cast<int>(number) / columns, n = static_cast<int>(number) % columns;
    if (number >= count) return;
    if (kind == kDA) p.dA[channel * p.dA_stride[0] + n * p.dA_stride[1]] = sum;
    if (kind == kDB) store_number<input_t>(p.dB, channel * p.dB_stride[1] + n * p.dB_stride[2], sum, p.B_is_float32);
    if (kind == kDC) store_number<input_t>(p.dC, channel * p.dC_stride[1] + n * p.dC_stride[2], sum, p.C_is_float32);
    if (kind == kVectors && n == 0 && p.dD != nullptr) {
        store_number<input_t>(p.dD, channel * p.dD_stride, sum, p.D_is_float32);
    }
    if (kind == kVectors && n == 1 && p.ddelta_bias != nullptr) {
        store_number<input_t>(p.ddelta_bias, channel * p.ddelta_bias_stride, sum, p.delta_bias_is_float32);
    }
}
