// A sequence of a decode step: the slots that its state is in and goes to, and its tokens.
#pragma once

#include "causal_conv1d/conv_update.cuh"

// Whether there is such a sequence.
template <bool kPacked>
__device__ __forceinline__ bool is_sequence(const CausalConv1dUpdateOperands& p, int batch) {
    return batch < (kPacked ? p.sequences : p.batch);
}

// What index arrays say of a sequence. Numbers are kept as they were loaded, so that one wait serves for all: a wait
// for each made steps with slots of their own for final states 9 % slower. What only kAddressed or kPacked kernels do
// costs the others nothing: a hundred instructions more are 5 % of the smallest steps.
template <bool kAddressed, bool kPacked>
struct SequenceIndices {
    int batch;
    bool is_there;
    bool has_column;
    unsigned past;
    int own;
    RawIndex slot;
    RawIndex target;
    RawIndex begin;
    RawIndex end;

    __device__ __forceinline__ void load(const CausalConv1dUpdateOperands& p, int batch_) {
        batch = batch_;
        is_there = is_sequence<kPacked>(p, batch);
        index_t place = batch * p.conv_state_indices_stride;
        if constexpr (!kAddressed && !kPacked) {
            const void* const slots = p.conv_state_indices;
            own = is_there ? slot_in_pool(
                                 p, slots == nullptr ? batch : load_index(slots, place, p.conv_state_indices_is_int64))
                           : -1;
            return;
        }
        if constexpr (kPacked) {
            // What is behind the last sequence is empty.
            const index_t stride = p.query_start_loc_stride;
            begin.load(p.query_start_loc, min(batch, p.sequences) * stride, p.query_start_loc_is_int64);
            end.load(p.query_start_loc, min(batch + 1, p.sequences) * stride, p.query_start_loc_is_int64);
        }
        has_column = true;
        if constexpr (kAddressed) {
            if (is_there && p.dst_state_indices != nullptr) {
                target.load(p.dst_state_indices, batch * p.dst_state_indices_stride, p.dst_state_indices_is_int64);
            }
            past = 1;
            if (is_there && p.has_initial_state != nullptr) {
                past = load_constant(static_cast<const unsigned char*>(p.has_initial_state) +
                                     batch * p.has_initial_state_stride);
            }
            if (is_there && p.state_column != nullptr) {
                const index_t column =
                    load_index(p.state_column, batch * p.state_column_stride, p.state_column_is_int64);
                has_column = column >= 0 && column < p.slot_columns;
                place += has_column ? column * p.slot_column_stride : 0;
            }
        }
        if (is_there && p.conv_state_indices != nullptr) {
            slot.load(p.conv_state_indices, place, p.conv_state_indices_is_int64);
        }
    }

    // The slot that the sequence starts from; -1 for one that is pad_slot_id or not in the pool. Results are zeros
    // then.
    __device__ __forceinline__ int start(const CausalConv1dUpdateOperands& p) const {
        if constexpr (!kAddressed && !kPacked) return own;
        if (!is_there || !has_column) return -1;
        if (p.conv_state_indices == nullptr) return batch < p.slots ? batch : -1;
        return slot_in_pool(p, slot.value(p.conv_state_indices_is_int64));
    }

    // The slot that the state goes to which starts from this one, unless the call leaves none; -1 for none.
    __device__ __forceinline__ int final(const CausalConv1dUpdateOperands& p, int start) const {
        if (!kAddressed || p.dst_state_indices == nullptr) return start;
        if (!is_there) return -1;
        const index_t number = target.value(p.dst_state_indices_is_int64);
        if (!p.dst_is_column) return slot_in_pool(p, number);
        if (number < 0 || number >= p.slot_columns) return -1;
        return slot_in_pool(
            p, load_index(p.conv_state_indices, batch * p.conv_state_indices_stride + number * p.slot_column_stride,
                          p.conv_state_indices_is_int64));
    }

    // Whether the sequence starts from zeros, whatever its slot holds.
    __device__ __forceinline__ bool is_fresh(const CausalConv1dUpdateOperands& p) const {
        return kAddressed && p.has_initial_state != nullptr && past == 0;
    }
};

// Where the tokens of a sequence are in x and in the results: in batch entry `entry`, from token `begin` on. Without
// kPacked all sequences have as many.
template <bool kPacked>
struct SequenceTokens {
    int entry;
    int begin;
    int computed;
    int all;
    int behind;  // in the packed tensor, the first token behind those of the last sequence; for others its end

    // An empty sequence begins inside the tensor, where its threads may load.
    template <bool kAddressed>
    __device__ __forceinline__ SequenceTokens(const CausalConv1dUpdateOperands& p,
                                              const SequenceIndices<kAddressed, kPacked>& indices)
        : entry(indices.batch), begin(0), computed(p.seqlen), all(p.seqlen), behind(p.total) {
        if constexpr (kPacked) {
            entry = 0;
            begin = indices.begin.clamped(p.query_start_loc_is_int64, p.total);
            const int end = max(indices.end.clamped(p.query_start_loc_is_int64, p.total), begin);
            all = end - begin;
            begin = min(begin, p.total - 1);
            computed = min(all, p.seqlen);
            if (indices.batch + 1 >= p.sequences) behind = end;
        }
    }

    // Tokens with results.
    __device__ __forceinline__ int count(const CausalConv1dUpdateOperands& p) const {
        return kPacked ? computed : p.seqlen;
    }
    __device__ __forceinline__ bool has_any() const { return !kPacked || computed > 0; }
    // Tokens, those behind the ones with results included, which are padding.
    __device__ __forceinline__ int length(const CausalConv1dUpdateOperands& p) const {
        return kPacked ? all : p.seqlen;
    }
};

// The inputs of the first token of a sequence, or of the last sequence for one behind that.
template <int kVec, typename input_t, bool kPacked>
__device__ __forceinline__ Vec<input_t, kVec> load_first_token(const CausalConv1dUpdateOperands& p,
                                                               const SequenceTokens<kPacked>& tokens, index_t channel) {
    return load_token<kVec, input_t>(p, kPacked ? 0 : min(tokens.entry, p.batch - 1), channel, tokens.begin);
}

// Zeros for the tokens of a sequence that have no results: all of them, or those that are too many and, by the last
// sequence, those of no sequence; unless results keep what they hold there.
template <typename input_t, int kVec, Ranges kRanges, bool kAddressed, bool kPacked>
__device__ __forceinline__ void store_padding(const CausalConv1dUpdateOperands& p,
                                              const SequenceTokens<kPacked>& tokens, index_t channel,
                                              bool has_results) {
    if ((!kPacked && has_results) || (kAddressed && p.keeps_padding)) return;
    if constexpr (!kPacked) {
        // Unrolled: as a plain loop it makes the smallest steps 9 % slower.
        auto destination = destination_of<input_t, kVec, kRanges>(p, channel, tokens.entry, 0);
        for (int t = 0; t < p.seqlen; ++t, destination.advance()) destination.store_vector(Vec<input_t, kVec>::zero());
        return;
    }
    const int count = has_results ? tokens.count(p) : 0;
    auto destination = destination_of<input_t, kVec, kRanges>(p, channel, tokens.entry, tokens.begin + count);
    const int behind = kPacked ? p.total - tokens.behind : 0;
#pragma unroll 1
    for (int left = tokens.length(p) - count + behind; left > 0; --left, destination.advance()) {
        destination.store_vector(Vec<input_t, kVec>::zero());
    }
}

// The next tokens of a sequence, several of which are on their way before the first is used.
template <typename input_t, int kVec, bool kGated = false>
struct TokenGroup {
    static constexpr int kTokens = 4;

    Vec<input_t, kVec> x[kTokens];

    // Loads the tokens from number `from` on, of those that there are.
    template <bool kPacked>
    __device__ __forceinline__ void load(const CausalConv1dUpdateOperands& p, const SequenceTokens<kPacked>& tokens,
                                         index_t channel, int from) {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            x[i] = Vec<input_t, kVec>::zero();
            if (from + i < tokens.count(p))
                x[i] = load_token<kVec, input_t, kGated>(p, tokens.entry, channel, tokens.begin + from + i);
        }
    }
};
