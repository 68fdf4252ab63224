// dB and dC that depend on the token, out of the sums over channels that the blocks of selective_scan_bwd have left.
//
// Layout: sums (chunk, group, split, 2, d_state, 256). A block has one row of tokens; a thread owns one of them.
//
// input_t  dB and dC    kAhead  splits that are loaded before the first of them is used
#include "selective_scan/scan_bwd.cuh"

struct SelectiveScanBwdMatricesParams {
    SelectiveScanBwdOperands operands;
};

template <typename input_t, int kAhead>
struct SelectiveScanBwdMatricesTraits {
    static constexpr int kThreads = 256;
    static_assert(kThreads == kChunk);
};

template <typename input_t, int kAhead, typename Traits = SelectiveScanBwdMatricesTraits<input_t, kAhead>>
__global__ void __launch_bounds__(Traits::kThreads)
    selective_scan_bwd_matrices_kernel(const SelectiveScanBwdMatricesParams params) {
    const SelectiveScanBwdOperands& p = params.operands;
    const QuotientRemainder share_row = divide(blockIdx.x, p.matrix_rows);
    const QuotientRemainder chunk_group = divide(share_row.quotient, p.groups);
    const int splits = p.dim > 0 ? static_cast<int>(p.splits.divisor) : 0;
    const int batch = static_cast<int>(chunk_group.quotient) / p.chunks;
    const int chunk = static_cast<int>(chunk_group.quotient) % p.chunks;
    const bool is_C = p.constant_B || static_cast<int>(share_row.remainder) >= p.d_state;
    const int n = static_cast<int>(share_row.remainder) % p.d_state;
    const ChunkTokens tokens(p, batch, chunk, p.shares_chunks);
    const int token = static_cast<int>(threadIdx.x);
    if (token >= tokens.stored) return;
    const index_t row = static_cast<index_t>(2) * p.d_state * kChunk;
    const float* const first = p.scratch + p.matrices_at + static_cast<index_t>(share_row.quotient) * splits * row +
                               ((is_C ? p.d_state : 0) + n) * kChunk + token;
    float sum = 0.0f;
    for (int from = 0; from < splits; from += kAhead) {
        float part[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            part[i] = load<1, Memory::kMutable>(first + min(from + i, splits - 1) * row).to_float(0);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (from + i < splits) sum += part[i];
        }
    }
    const index_t* const stride = is_C ? p.dC_stride : p.dB_stride;
    input_t* const to = static_cast<input_t*>(is_C ? p.dC : p.dB);
    to[batch * stride[0] + chunk_group.remainder * stride[1] + n * stride[2] + (tokens.begin + token) * stride[3]] =
        Dtype<input_t>::from_float(sum);
}
