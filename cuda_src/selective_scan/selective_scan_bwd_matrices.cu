// dB and dC that depend on the token, out of the sums over channels that the blocks of selective_scan_bwd have left.
//
// Layout: sums (chunk, group, split, 2, d_state, 256). A block has 256 / kShares tokens of one row. A thread owns one
// of them and one of kShares shares of the splits, which follow each other; the first share's threads add up the
// shares.
//
// input_t  dB and dC    kShares  shares of the splits    kAhead  splits that are loaded before the first of them is
// used
#include "selective_scan/scan_bwd.cuh"

struct SelectiveScanBwdMatricesParams {
    SelectiveScanBwdOperands operands;
};

template <typename input_t, int kShares, int kAhead>
struct SelectiveScanBwdMatricesTraits {
    static constexpr int kThreads = 256;
    static constexpr int kTokens = kThreads / kShares;
    static_assert(kThreads == kChunk);
};

template <typename input_t, int kShares, int kAhead,
          typename Traits = SelectiveScanBwdMatricesTraits<input_t, kShares, kAhead>>
__global__ void __launch_bounds__(Traits::kThreads)
    selective_scan_bwd_matrices_kernel(const SelectiveScanBwdMatricesParams params) {
    const SelectiveScanBwdOperands& p = params.operands;
    constexpr int kTokens = Traits::kTokens;
    __shared__ float shared[kShares][kTokens];
    wait_for_leader();
    const QuotientRemainder share_row = divide(blockIdx.x / kShares, p.matrix_rows);
    const QuotientRemainder chunk_group = divide(share_row.quotient, p.groups);
    const int splits = p.dim > 0 ? static_cast<int>(p.splits.divisor) : 0;
    const int batch = static_cast<int>(chunk_group.quotient) / p.chunks;
    const int chunk = static_cast<int>(chunk_group.quotient) % p.chunks;
    const bool is_C = p.constant_B || static_cast<int>(share_row.remainder) >= p.d_state;
    const int n = static_cast<int>(share_row.remainder) % p.d_state;
    const ChunkTokens tokens(p, batch, chunk, p.shares_chunks);
    const int token = static_cast<int>(blockIdx.x) % kShares * kTokens + static_cast<int>(threadIdx.x) % kTokens;
    const int share = static_cast<int>(threadIdx.x) / kTokens;
    const bool is_stored = token < tokens.stored;
    const int each = (splits + kShares - 1) / kShares, begin = share * each, end = min(begin + each, splits);
    const index_t row = static_cast<index_t>(2) * p.d_state * kChunk;
    const float* const first = p.scratch + p.matrices_at + static_cast<index_t>(share_row.quotient) * splits * row +
                               ((is_C ? p.d_state : 0) + n) * kChunk + token;
    float sum = 0.0f;
    for (int from = begin; from < end && is_stored; from += kAhead) {
        float part[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            part[i] = load<1, Memory::kMutable>(first + min(from + i, end - 1) * row).to_float(0);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (from + i < end) sum += part[i];
        }
    }
    if constexpr (kShares > 1) {
        shared[share][token % kTokens] = sum;
        __syncthreads();
        sum = shared[0][token % kTokens];
#pragma unroll
        for (int i = 1; i < kShares; ++i) sum += shared[i][token % kTokens];
    }
    if (!is_stored || share > 0) return;
    const index_t* const stride = is_C ? p.dC_stride : p.dB_stride;
    input_t* const to = static_cast<input_t*>(is_C ? p.dC : p.dB);
    to[batch * stride[0] + chunk_group.remainder * stride[1] + n * stride[2] + (tokens.begin + token) * stride[3]] =
        Dtype<input_t>::from_float(sum);
}
