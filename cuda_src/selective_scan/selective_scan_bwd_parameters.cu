// dA, dD, ddelta_bias and constant dB and dC, out of the sums over a chunk's tokens that the blocks of
// selective_scan_bwd have left.
//
// Layout: sums (chunk, dim, d_state), those of dD and ddelta_bias (chunk, dim, warp, 2). A thread owns one number of a kind,
// which is the block's place in the grid's second axis: dA, dB, dC, or both of dD and ddelta_bias.
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
    if ((kind == kDB && !p.constant_B) || (kind == kDC && !p.constant_C)) return;
    const unsigned number = blockIdx.x * Traits::kThreads + threadIdx.x;
    const int states = kind == kVectors ? 2 : p.d_state;
    if (number >= static_cast<unsigned>(p.dim) * states) return;
    const int channel = static_cast<int>(number) / states, n = static_cast<int>(number) % states;
    // dD and ddelta_bias have a part for every warp of a block.
    constexpr int kWarps = ChunkShape<input_t>::kWarps;
    const int warps = kind == kVectors ? kWarps : 1;
    const index_t chunk_step = static_cast<index_t>(p.dim) * warps * states;
    const float* const first = p.scratch +
                               (kind == kDA   ? p.rates_at
                                : kind == kDB ? p.constants_at
                                : kind == kDC ? p.more_constants_at
                                              : p.vectors_at) +
                               static_cast<index_t>(channel) * warps * states + n;
    const int count = p.batch * p.chunks * warps;
    float sum = 0.0f;
    for (int from = 0; from < count; from += kAhead) {
        float part[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int each = min(from + i, count - 1);
            part[i] = load<1, Memory::kMutable>(first + each / warps * chunk_step + each % warps * states).to_float(0);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (from + i < count) sum += part[i];
        }
    }
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
