// out[i, :, c] = x[end of sequence i - columns + c], the last tokens of each packed sequence; before its first the last
// columns of previous_states[i], or zeros.
//
// Layout: x (total, dim), out and previous_states (sequences, dim, columns); any strides when kVec is 1, else dim
// stride 1 in all. A thread copies kVec channels of up to kColumns consecutive columns: it reads the boundaries of a
// sequence once, and loads all of its tokens before it stores the first.
//
// input_t   x and out                kVec      channels an access          kColumns  columns a thread
#include "common/fastdiv.cuh"
#include "common/vec.cuh"

struct CausalConv1dVarlenStatesParams {
    const void* x;
    const void* cu_seqlens;
    const void* previous_states;  // may be null
    void* out;
    index_t x_stride[2];                // token, dim
    index_t previous_states_stride[3];  // sequence, dim, column
    index_t out_stride[3];
    index_t cu_seqlens_stride;
    index_t total;        // tokens
    FastDiv dim_vecs;     // channel vectors per token
    FastDiv parts;        // runs of kColumns columns of out
    int columns;          // columns of out
    unsigned total_vecs;  // vectors of channels, in all parts of all sequences
    int cu_seqlens_is_int64;
};

template <typename input_t, int kVec, int kColumns>
struct CausalConv1dVarlenStatesTraits {
    static constexpr int kThreads = 128;
};

// The token where a sequence begins, brought inside the tensor: wrong numbers give wrong results, not wrong accesses.
__device__ __forceinline__ index_t load_boundary(const CausalConv1dVarlenStatesParams& p, index_t number) {
    const index_t token = load_index(p.cu_seqlens, number * p.cu_seqlens_stride, p.cu_seqlens_is_int64);
    return token < 0 ? 0 : token > p.total ? p.total : token;
}

template <typename input_t, int kVec, int kColumns,
          typename Traits = CausalConv1dVarlenStatesTraits<input_t, kVec, kColumns>>
__global__ void __launch_bounds__(Traits::kThreads)
    causal_conv1d_varlen_states_kernel(const CausalConv1dVarlenStatesParams p) {
    const unsigned index = blockIdx.x * Traits::kThreads + threadIdx.x;
    if (index >= p.total_vecs) return;
    const QuotientRemainder row_vec = divide(index, p.dim_vecs);
    const QuotientRemainder sequence_part = divide(row_vec.quotient, p.parts);
    const index_t channel = static_cast<index_t>(row_vec.remainder) * kVec;
    const index_t sequence = sequence_part.quotient;
    const int first = sequence_part.remainder * kColumns;

    const index_t begin = load_boundary(p, sequence), end = load_boundary(p, sequence + 1);
    const index_t tokens = end < begin ? 0 : end - begin;
    Vec<input_t, kVec> v[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
        const index_t column = first + i;
        const index_t token = end - p.columns + column;
        v[i] = Vec<input_t, kVec>::zero();
        if (column >= p.columns) continue;
        if (token >= begin) {
            v[i] = load<kVec>(static_cast<const input_t*>(p.x) + token * p.x_stride[0] + channel * p.x_stride[1]);
        } else if (p.previous_states != nullptr) {
            const index_t* stride = p.previous_states_stride;
            v[i] = load<kVec>(static_cast<const input_t*>(p.previous_states) + sequence * stride[0] +
                              channel * stride[1] + (column + tokens) * stride[2]);
        }
    }
    input_t* const out =
        static_cast<input_t*>(p.out) + sequence * p.out_stride[0] + channel * p.out_stride[1] + first * p.out_stride[2];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
        if (first + i < p.columns) store<Keep::kWhole>(out + i * p.out_stride[2], v[i]);
    }
}
