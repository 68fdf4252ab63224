// One decode step of a convolution: the slot of each sequence, its tokens, and its filter.
#pragma once

#include "causal_conv1d/conv_channels.cuh"
#include "causal_conv1d/conv_column.cuh"
#include "causal_conv1d/conv_ranges.cuh"
#include "common/sequences.cuh"

// Strides are in elements. All but x, conv_state and weight may be null. With cache_seqlens a state is a ring, without
// it a row that moves. Only kGated kernels read the gates and the residual. The fields that every launch reads come
// first: arguments arrive by cache lines, one miss after another.
struct CausalConv1dUpdateOperands {
    const void* x;
    void* conv_state;
    const void* weight;
    const void* bias;
    const void* cache_seqlens;
    const void* conv_state_indices;
    const void* num_accepted_tokens;
    void* intermediate_conv_window;
    const void* intermediate_state_indices;
    const void* state_column;
    const void* dst_state_indices;
    const void* has_initial_state;
    const void* query_start_loc;
    const void* token_state_indices;
    const void* parents;
    const void* pre_gate;
    const void* post_gate;
    const void* residual;
    void* out[kMaxRanges];
    index_t x_stride[3];           // batch, dim, token
    index_t conv_state_stride[3];  // slot, dim, column
    index_t conv_state_indices_stride;
    index_t slots;  // slots of conv_state
    index_t pad_slot_id;
    FastDiv block_vecs;  // channel vectors per block
    FastDiv dim_blocks;  // blocks across the channels
    unsigned rows;       // sequences side by side in a block
    int batch;           // sequences, or 1 where packed tokens belong to none
    int dim;
    int seqlen;  // tokens per sequence, with query_start_loc at most
    int state_len;
    int bias_is_float32;
    int taps_are_packed;
    int states_are_packed;   // the channels of a thread are contiguous and aligned in a column
    int windows_are_packed;  // the part of a token's intermediate window that a thread has is contiguous and aligned
    int is_read_only;        // states are not written
    int keeps_padding;       // results of sequences without a slot are not written, instead of zeros
    int conv_state_indices_is_int64;
    int cache_seqlens_is_int64;
    int num_accepted_tokens_is_int64;
    int intermediate_state_indices_is_int64;
    int ranges;
    index_t out_stride[4 * kMaxRanges];  // batch, token, head, channel of the head, for each range
    int range_end[kMaxRanges];           // the channel behind the last one of each range
    FastDiv head_dim[kMaxRanges];
    int range_is_packed[kMaxRanges];  // channel vectors are vectors of the output, unless they cross the range's end
    index_t intermediate_conv_window_stride[4];  // row, token, dim, column
    index_t weight_stride[2];                    // dim, width
    index_t bias_stride;
    index_t cache_seqlens_stride;
    index_t num_accepted_tokens_stride;
    index_t intermediate_state_indices_stride;
    index_t intermediate_rows;
    index_t state_column_stride;
    index_t slot_columns;  // columns of conv_state_indices, with state_column
    index_t slot_column_stride;
    index_t dst_state_indices_stride;
    index_t has_initial_state_stride;
    int state_column_is_int64;
    int dst_state_indices_is_int64;
    int sequences;
    int total;  // tokens of all sequences and of padding, with query_start_loc
    index_t query_start_loc_stride;
    index_t token_state_indices_stride[2];  // sequence, token
    index_t parents_stride[2];              // sequence, token
    int token_state_columns;                // tokens per sequence that token_state_indices has slots for
    int intermediate_steps;
    int windows_are_whole;          // intermediate windows have all columns of a state
    int windows_are_overlaid;       // a token's window is that of the token before it, one column on
    int windows_are_one;            // and so all windows of a thread are one aligned piece of memory
    int window_columns_are_packed;  // the channels of a thread are contiguous and aligned in a column of a window
    int query_start_loc_is_int64;
    int token_state_indices_is_int64;
    int parents_is_int64;
    index_t pre_gate_stride[3];  // batch, dim, token
    index_t post_gate_stride[3];
    index_t residual_stride[3];
    int dst_is_column;  // dst_state_indices has columns of conv_state_indices
};

// The share of a thread: kVec channels of kSequences sequences, which are `rows` apart.
template <int kVec, int kSequences>
struct UpdateShare {
    index_t channel;
    int first;
    bool is_empty;

    __device__ __forceinline__ explicit UpdateShare(const CausalConv1dUpdateOperands& p) {
        const QuotientRemainder row_vec = divide(threadIdx.x, p.block_vecs);
        const QuotientRemainder rows_dim = divide(blockIdx.x, p.dim_blocks);
        channel = (static_cast<index_t>(rows_dim.remainder) * p.block_vecs.divisor + row_vec.remainder) * kVec;
        first = static_cast<int>(rows_dim.quotient * kSequences * p.rows + row_vec.quotient);
        is_empty = row_vec.quotient >= p.rows || first >= p.batch || channel >= p.dim;
    }

    __device__ __forceinline__ int batch(const CausalConv1dUpdateOperands& p, int i) const {
        return first + i * static_cast<int>(p.rows);
    }
};

// The elements of a token in x or in an array beside it. They are not constant: the call may write its outputs over x.
template <int kVec, typename input_t>
__device__ __forceinline__ Vec<input_t, kVec> load_elements(const void* array, const index_t (&stride)[3], int batch,
                                                            index_t channel, int token) {
    return load<kVec, Memory::kMutable>(static_cast<const input_t*>(array) + batch * stride[0] +
                                        along_channels<kVec>(channel, stride[1]) + token * stride[2]);
}

// The inputs of a token, times pre_gate where there is one.
template <int kVec, typename input_t, bool kGated = false>
__device__ __forceinline__ Vec<input_t, kVec> load_token(const CausalConv1dUpdateOperands& p, int batch,
                                                         index_t channel, int token) {
    const Vec<input_t, kVec> x = load_elements<kVec, input_t>(p.x, p.x_stride, batch, channel, token);
    if (!kGated || p.pre_gate == nullptr) return x;
    return multiply(x, load_elements<kVec, input_t>(p.pre_gate, p.pre_gate_stride, batch, channel, token));
}

// The results of a token times post_gate plus the residual, where there are such.
template <typename input_t, int kVec>
__device__ __forceinline__ void apply_gates(const CausalConv1dUpdateOperands& p, float (&y)[kVec], int batch,
                                            index_t channel, int token) {
    if (p.post_gate != nullptr) {
        multiply_rounded(y, load_elements<kVec, input_t>(p.post_gate, p.post_gate_stride, batch, channel, token));
    }
    if (p.residual != nullptr) {
        add(y, load_elements<kVec, input_t>(p.residual, p.residual_stride, batch, channel, token));
    }
}

// Taps and biases of a thread's channels, as floats.
template <int kWidth, typename input_t, typename weight_t, int kVec, bool kSilu>
struct UpdateFilter {
    using Raw = ChannelFilter<kWidth, weight_t, kVec>;

    float bias[kVec];
    float taps[kVec][kWidth];

    __device__ __forceinline__ explicit UpdateFilter(const Raw& raw) { raw.to_floats(taps, bias); }

    // The results of a token. past(k, c) gives input k of the kWidth - 1 before it, in channel c.
    template <typename Past>
    __device__ __forceinline__ void results(const Vec<input_t, kVec>& x, Past past, float (&y)[kVec]) const {
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth - 1; ++k) window[k] = past(k, c);
            window[kWidth - 1] = x.to_float(c);
            y[c] = activate<input_t, kSilu, false>(convolve<false>(taps[c], bias[c], window, nullptr), 0);
        }
    }

    // The same, rounded.
    template <typename Past>
    __device__ __forceinline__ Vec<input_t, kVec> output(const Vec<input_t, kVec>& x, Past past) const {
        float y[kVec];
        results(x, past, y);
        return Vec<input_t, kVec>::from_floats(y);
    }
};
