// One decode step of a convolution: the slot of each sequence, its tokens, and its filter.
#pragma once

#include "causal_conv1d/conv_channels.cuh"
#include "causal_conv1d/conv_column.cuh"
#include "causal_conv1d/conv_ranges.cuh"
#include "common/sequences.cuh"

// Strides are in elements. All but x, conv_state and weight may be null. With cache_seqlens a state is a ring, without
// it a row that moves. The fields that every launch reads come first: arguments arrive by cache lines, one miss after
// another.
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
    int window_columns_are_packed;  // the channels of a thread are contiguous and aligned in a column of a window
    int query_start_loc_is_int64;
    int token_state_indices_is_int64;
    int parents_is_int64;
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

// What only kAddressed kernels do costs the others nothing: a hundred instructions more are 5 % of the smallest steps.

// The slot that a sequence starts from; -1 for one that is pad_slot_id or not in the pool. Results are zeros then.
template <bool kAddressed>
__device__ __forceinline__ int load_slot(const CausalConv1dUpdateOperands& p, int batch) {
    const void* const slots = p.conv_state_indices;
    const index_t stride = p.conv_state_indices_stride;
    if constexpr (kAddressed) {
        if (slots == nullptr) return batch < p.slots ? batch : -1;
        return slot_in_pool(p, load_given_slot(p, slots, stride, p.conv_state_indices_is_int64, batch));
    } else {
        return slot_in_pool(
            p, slots == nullptr ? batch : load_index(slots, batch * stride, p.conv_state_indices_is_int64));
    }
}

// Whether a sequence starts from zeros, whatever its slot holds.
template <bool kAddressed>
__device__ __forceinline__ bool is_fresh(const CausalConv1dUpdateOperands& p, int batch) {
    return kAddressed && p.has_initial_state != nullptr && !has_past(p, batch);
}

// The slot that a sequence leaves its state in, unless the call leaves none; -1 for none.
template <bool kAddressed>
__device__ __forceinline__ int load_target(const CausalConv1dUpdateOperands& p, int batch, int slot) {
    return kAddressed ? load_final_slot(p, batch, slot) : slot;
}

// Where the tokens of a sequence are in x and in the results: in batch entry `entry`, from token `begin` on. Without
// kPacked all sequences have as many.
template <bool kPacked>
struct SequenceTokens {
    int entry;
    int begin;
    int computed;
    int all;
    int behind;  // in the packed tensor, the first token of no sequence that this one has to mark as padding

    // A sequence's share of the tokens behind the last sequence is every one at a distance of all sequences, so that
    // threads share them evenly. An empty sequence begins inside the tensor, where its threads may load.
    __device__ __forceinline__ SequenceTokens(const CausalConv1dUpdateOperands& p, int batch)
        : entry(batch), begin(0), computed(p.seqlen), all(p.seqlen), behind(p.total) {
        if (!kPacked || p.query_start_loc == nullptr) return;
        entry = 0;
        begin = first_token(p, batch);
        all = batch < p.sequences ? max(first_token(p, batch + 1) - begin, 0) : 0;
        begin = min(begin, p.total - 1);
        computed = min(all, p.seqlen);
        behind = first_token(p, p.sequences) + batch;
    }

    // Tokens with results.
    __device__ __forceinline__ int count(const CausalConv1dUpdateOperands& p) const {
        return kPacked ? computed : p.seqlen;
    }
    // Tokens, those behind the ones with results included, which are padding.
    __device__ __forceinline__ int length(const CausalConv1dUpdateOperands& p) const {
        return kPacked ? all : p.seqlen;
    }
};

template <bool kPacked>
__device__ __forceinline__ bool is_sequence(const CausalConv1dUpdateOperands& p, int batch) {
    return batch < (kPacked ? p.sequences : p.batch);
}

// The inputs of a token. They are not constant: the call may write its outputs over them.
template <int kVec, typename input_t>
__device__ __forceinline__ Vec<input_t, kVec> load_token(const CausalConv1dUpdateOperands& p, int batch,
                                                         index_t channel, int token) {
    return load<kVec, Memory::kMutable>(static_cast<const input_t*>(p.x) + batch * p.x_stride[0] +
                                        along_channels<kVec>(channel, p.x_stride[1]) + token * p.x_stride[2]);
}

// The inputs of the first token of a sequence, or of the last sequence for one behind that.
template <int kVec, typename input_t, bool kPacked>
__device__ __forceinline__ Vec<input_t, kVec> load_first_token(const CausalConv1dUpdateOperands& p,
                                                               const SequenceTokens<kPacked>& tokens, index_t channel) {
    return load_token<kVec, input_t>(p, min(tokens.entry, p.batch - 1), channel, tokens.begin);
}

// Zeros for a sequence's tokens from number `from` on, unless results keep what they hold there.
template <typename input_t, int kVec, Ranges kRanges, bool kAddressed, bool kPacked>
__device__ __forceinline__ void store_no_tokens(const CausalConv1dUpdateOperands& p,
                                                const SequenceTokens<kPacked>& tokens, index_t channel, int from = 0) {
    if (kAddressed && p.keeps_padding) return;
    auto destination = destination_of<input_t, kVec, kRanges>(p, channel, tokens.entry, tokens.begin + from);
    for (int t = from; t < tokens.length(p); ++t, destination.advance())
        destination.store_vector(Vec<input_t, kVec>::zero());
}

// Zeros for what a sequence leaves of a packed tensor: its tokens that are too many, and its share of those that belong
// to no sequence.
template <typename input_t, int kVec, Ranges kRanges, bool kAddressed, bool kPacked>
__device__ __forceinline__ void store_padding(const CausalConv1dUpdateOperands& p, int batch,
                                              const SequenceTokens<kPacked>& tokens, index_t channel) {
    if (!kPacked || p.query_start_loc == nullptr || (kAddressed && p.keeps_padding)) return;
    store_no_tokens<input_t, kVec, kRanges, kAddressed>(p, tokens, channel, tokens.count(p));
    const Vec<input_t, kVec> zero = Vec<input_t, kVec>::zero();
    for (int t = 0; batch == 0 && t < tokens.begin; ++t)
        destination_of<input_t, kVec, kRanges>(p, channel, 0, t).store_vector(zero);
    for (int t = tokens.behind; t < p.total; t += p.batch)
        destination_of<input_t, kVec, kRanges>(p, channel, 0, t).store_vector(zero);
}

// The row of the intermediate windows that belongs to a sequence, if there is one.
struct WindowRow {
    index_t number;
    bool exists;

    __device__ __forceinline__ WindowRow(const CausalConv1dUpdateOperands& p, int batch, int slot) : number(slot) {
        if (p.intermediate_state_indices != nullptr) {
            number = load_index(p.intermediate_state_indices, batch * p.intermediate_state_indices_stride,
                                p.intermediate_state_indices_is_int64);
        }
        exists = p.intermediate_conv_window != nullptr && number >= 0 && number < p.intermediate_rows;
    }
};

// Where the intermediate window of a token begins, in a thread's first channel.
template <typename state_t>
__device__ __forceinline__ state_t* window_at(const CausalConv1dUpdateOperands& p, index_t row, int token,
                                              index_t channel) {
    const index_t* stride = p.intermediate_conv_window_stride;
    return static_cast<state_t*>(p.intermediate_conv_window) + row * stride[0] + token * stride[1] +
           channel * stride[2];
}

// Writes the last kColumns inputs of each channel up to a token to the intermediate window. Of windows that lie over
// each other each has one input that the last one does not have.
template <typename state_t, int kVec, int kColumns, bool kMayBeOverlaid>
__device__ __forceinline__ void store_window(const CausalConv1dUpdateOperands& p, index_t row, int token,
                                             index_t channel, const float (&window)[kVec * kColumns]) {
    const index_t* stride = p.intermediate_conv_window_stride;
    state_t* at = window_at<state_t>(p, row, token, channel);
    if (p.windows_are_packed) {
        store_packed(at, window);
        return;
    }
    const int first = kMayBeOverlaid && p.windows_are_overlaid && token > 0 ? kColumns - 1 : 0;
#pragma unroll
    for (int i = 0; i < kVec * kColumns; ++i) {
        if (i % kColumns >= first)
            at[i / kColumns * stride[2] + i % kColumns * stride[3]] = Dtype<state_t>::from_float(window[i]);
    }
}

// The slot that the state after a token goes to; -1 for none.
__device__ __forceinline__ int load_token_slot(const CausalConv1dUpdateOperands& p, int batch, int token) {
    if (p.token_state_indices == nullptr || token >= p.token_state_columns) return -1;
    const index_t* stride = p.token_state_indices_stride;
    return slot_in_pool(
        p, load_index(p.token_state_indices, batch * stride[0] + token * stride[1], p.token_state_indices_is_int64));
}

// Taps and biases of a thread's channels, as floats.
template <int kWidth, typename input_t, typename weight_t, int kVec, bool kSilu>
struct UpdateFilter {
    using Raw = ChannelFilter<kWidth, weight_t, kVec>;

    float bias[kVec];
    float taps[kVec][kWidth];

    __device__ __forceinline__ explicit UpdateFilter(const Raw& raw) { raw.to_floats(taps, bias); }

    // The outputs of a token. past(k, c) gives input k of the kWidth - 1 before it, in channel c.
    template <typename Past>
    __device__ __forceinline__ Vec<input_t, kVec> output(const Vec<input_t, kVec>& x, Past past) const {
        float y[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth - 1; ++k) window[k] = past(k, c);
            window[kWidth - 1] = x.to_float(c);
            y[c] = activate<input_t, kSilu, false>(convolve<false>(taps[c], bias[c], window, nullptr), 0);
        }
        return Vec<input_t, kVec>::from_floats(y);
    }
};
