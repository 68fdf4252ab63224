// The gradients that are sums of what the blocks of selective_scan_bwd have left: dB and dC that depend on the token,
// summed over channels, and dA, dD, ddelta_bias and constant dB and dC, summed over tokens.
//
// Layout: sums over channels (chunk, group, split, 2, d_state, 256), over tokens (chunk, dim, d_state), those of dD and
// ddelta_bias (chunk, dim, warp, 2). The first blocks have 256 / kShares tokens of one row of dB or dC: a thread owns
// one of them and one of kShares shares of the splits, which follow each other; the first share's threads add up the
// shares. In the other blocks a thread owns one number of dA, dB, dC, or of both dD and ddelta_bias.
//
// input_t  dB and dC, and dD and ddelta_bias where they are not float32    kShares  shares of the splits
// kAhead   splits that are loaded before the first of them is used
#include "selective_scan/scan_bwd.cuh"

struct SelectiveScanBwdSumsParams {
    SelectiveScanBwdOperands operands;
    unsigned matrix_blocks;  // blocks that have dB and dC
    FastDiv kind_blocks;     // blocks that have numbers of one kind
};

template <typename input_t, int kShares, int kAhead>
struct SelectiveScanBwdSumsTraits {
    static constexpr int kThreads = 256;
    static constexpr int kTokens = kThreads / kShares;
    static constexpr int kChunksAhead = 8;  // chunks that are loaded before the first of them is used
    static_assert(kThreads == kChunk);
};

enum Kind { kDA, kVectors, kDB, kDC };

// The parts of a sum from `begin` to `end` - 1, which are `step` floats apart, added up in their order.
template <int kAhead>
__device__ __forceinline__ float sum_of_parts(const float* first, index_t step, int begin, int end) {
    float sum = 0.0f;
    for (int from = begin; from < end; from += kAhead) {
        float part[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            part[i] = load<1, Memory::kMutable>(first + min(from + i, end - 1) * step).to_float(0);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (from + i < end) sum += part[i];
        }
    }
    return sum;
}

template <typename T, typename Traits, int kShares, int kAhead>
__device__ __forceinline__ void sum_over_channels(const SelectiveScanBwdOperands& p, unsigned block) {
    constexpr int kTokens = Traits::kTokens;
    __shared__ float shared[kShares][kTokens];
    const QuotientRemainder share_row = divide(block / kShares, p.matrix_rows);
    const QuotientRemainder chunk_group = divide(share_row.quotient, p.groups);
    const int splits = p.dim > 0 ? static_cast<int>(p.splits.divisor) : 0;
    const int batch = static_cast<int>(chunk_group.quotient) / p.chunks;
    const int chunk = static_cast<int>(chunk_group.quotient) % p.chunks;
    const bool is_C = p.constant_B || static_cast<int>(share_row.remainder) >= p.d_state;
    const int n = static_cast<int>(share_row.remainder) % p.d_state;
    const ChunkTokens tokens(p, batch, chunk, p.shares_chunks);
    const int token = static_cast<int>(block) % kShares * kTokens + static_cast<int>(threadIdx.x) % kTokens;
    const int share = static_cast<int>(threadIdx.x) / kTokens;
    const bool is_stored = token < tokens.stored;
    const int each = (splits + kShares - 1) / kShares, begin = share * each, end = min(begin + each, splits);
    const index_t row = static_cast<index_t>(2) * p.d_state * kChunk;
    const float* const first = p.scratch + p.matrices_at + static_cast<index_t>(share_row.quotient) * splits * row +
                               ((is_C ? p.d_state : 0) + n) * kChunk + token;
    float sum = is_stored ? sum_of_parts<kAhead>(first, row, begin, end) : 0.0f;
    if constexpr (kShares > 1) {
        shared[share][token % kTokens] = sum;
        __syncthreads();
        sum = shared[0][token % kTokens];
#pragma unroll
        for (int i = 1; i < kShares; ++i) sum += shared[i][token % kTokens];
    }
    if (!is_stored || share > 0) return;
    const index_t* const stride = is_C ? p.dC_stride : p.dB_stride;
    T* const to = static_cast<T*>(is_C ? p.dC : p.dB);
    to[batch * stride[0] + chunk_group.remainder * stride[1] + n * stride[2] + (tokens.begin + token) * stride[3]] =
        Dtype<T>::from_float(sum);
}

template <typename T, typename Traits>
__device__ __forceinline__ void sum_over_tokens(const SelectiveScanBwdOperands& p, int kind, unsigned block) {
    if ((kind == kDB && !p.constant_B) || (kind == kDC && !p.constant_C)) return;
    // dD and ddelta_bias have a part for every warp of a block, two numbers each.
    constexpr int kWarps = ChunkShape<T>::kWarps;
    const int columns = kind == kVectors ? 2 * kWarps : p.d_state;
    const unsigned count = static_cast<unsigned>(p.dim) * columns;
    const unsigned number = block * Traits::kThreads + threadIdx.x;
    if (block * Traits::kThreads >= count) return;
    const index_t at = kind == kDA        ? p.rates_at
                       : kind == kVectors ? p.vectors_at
                       : kind == kDB      ? p.constants_at
                                          : p.more_constants_at;
    float sum =
        sum_of_parts<Traits::kChunksAhead>(p.scratch + at + min(number, count - 1), count, 0, p.batch * p.chunks);
    if (kind == kVectors) {
        // A channel's numbers are neighbouring lanes': every second one is of the same gradient.
        float sums[1] = {sum};
        sum_parts_over_lanes<kWarps, 2>(sums);
        sum = sums[0];
    }
    if (number >= count) return;
    const int channel = static_cast<int>(number) / columns, n = static_cast<int>(number) % columns;
    if (kind == kDA) p.dA[channel * p.dA_stride[0] + n * p.dA_stride[1]] = sum;
    if (kind == kDB) store_number<T>(p.dB, channel * p.dB_stride[1] + n * p.dB_stride[2], p.B_is_float32, sum);
    if (kind == kDC) store_number<T>(p.dC, channel * p.dC_stride[1] + n * p.dC_stride[2], p.C_is_float32, sum);
    if (kind == kVectors && n == 0 && p.dD != nullptr) {
        store_number<T>(p.dD, channel * p.dD_stride, p.D_is_float32, sum);
    }
    if (kind == kVectors && n == 1 && p.ddelta_bias != nullptr) {
        store_number<T>(p.ddelta_bias, channel * p.ddelta_bias_stride, p.delta_bias_is_float32, sum);
    }
}

template <typename input_t, int kShares, int kAhead,
          typename Traits = SelectiveScanBwdSumsTraits<input_t, kShares, kAhead>>
__global__ void __launch_bounds__(Traits::kThreads)
    selective_scan_bwd_sums_kernel(const SelectiveScanBwdSumsParams params) {
    const SelectiveScanBwdOperands& p = params.operands;
    wait_for_leader();
    if (blockIdx.x < params.matrix_blocks) {
        sum_over_channels<input_t, Traits, kShares, kAhead>(p, blockIdx.x);
    } else {
        const QuotientRemainder kind_block = divide(blockIdx.x - params.matrix_blocks, params.kind_blocks);
        sum_over_tokens<input_t, Traits>(p, static_cast<int>(kind_block.quotient), kind_block.remainder);
    }
}
