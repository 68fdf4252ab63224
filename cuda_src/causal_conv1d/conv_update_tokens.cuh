// All tokens of one sequence in a decode step, one after another.
#pragma once

#include "causal_conv1d/conv_token_states.cuh"

// Which columns the tokens of one sequence read and write, of which there are `count`.
template <int kHalo>
struct StatePlace {
    int first;    // column of the earliest of the kHalo inputs before the first token
    int goes_to;  // column that this input moves to, later inputs following it; negative columns are dropped
    bool is_ring;
    bool is_valid;

    // What says where the inputs are, unless they are in the last columns.
    __device__ __forceinline__ static RawIndex load(const CausalConv1dUpdateOperands& p, int batch) {
        RawIndex raw;
        if (p.cache_seqlens != nullptr) {
            raw.load(p.cache_seqlens, batch * p.cache_seqlens_stride, p.cache_seqlens_is_int64);
        } else if (p.num_accepted_tokens != nullptr) {
            raw.load(p.num_accepted_tokens, batch * p.num_accepted_tokens_stride, p.num_accepted_tokens_is_int64);
        }
        return raw;
    }

    __device__ __forceinline__ StatePlace(const CausalConv1dUpdateOperands& p, const RawIndex& raw, int count)
        : first(p.state_len - kHalo), goes_to(first - count), is_ring(p.cache_seqlens != nullptr), is_valid(true) {
        if (is_ring && p.state_len > 0) {
            first = static_cast<int>(raw.value(p.cache_seqlens_is_int64) % p.state_len) - kHalo;
            if (first < 0) first += p.state_len;
            if (first < 0) first += p.state_len;
        } else if (p.num_accepted_tokens != nullptr) {
            const index_t accepted = raw.value(p.num_accepted_tokens_is_int64);
            is_valid = accepted <= first + 1 && count <= first + 1;
            first = is_valid && accepted > 1 ? static_cast<int>(accepted) - 1 : 0;
            goes_to = -1;
        }
    }

    // The column of input i, counted from the earliest.
    __device__ __forceinline__ int column(const CausalConv1dUpdateOperands& p, int i) const {
        return is_ring && first + i >= p.state_len ? (first + i) % p.state_len : first + i;
    }
};

// Advances one sequence by all of its tokens. The first loads are issued before a result is used.
template <typename Filter, int kWidth, typename input_t, typename state_t, int kVec, Ranges kRanges, bool kAddressed,
          bool kPacked, bool kTokenStates, bool kGated>
__device__ __forceinline__ void update_tokens(const CausalConv1dUpdateOperands& p,
                                              const SequenceIndices<kAddressed, kPacked>& indices,
                                              const SequenceTokens<kPacked>& tokens,
                                              const StateColumns<state_t, kVec>& columns,
                                              const StatePlace<kWidth - 1>& place, const typename Filter::Raw& raw,
                                              TokenGroup<input_t, kVec, kGated>& inputs) {
    constexpr int kHalo = kWidth - 1;
    Vec<state_t, kVec> past[kWidth];
#pragma unroll
    for (int k = 0; k < kHalo; ++k) past[k] = columns.load(place.column(p, k));
    const Filter filter(raw);
    const StateColumns<state_t, kVec> target = columns.in(indices.final(p, columns.slot));
    const bool is_kept = !p.is_read_only && (!kAddressed || target.slot >= 0);
    const bool is_row = !place.is_ring && is_kept;
    const bool is_ring = place.is_ring && is_kept;

    // The inputs of each channel, the earliest first. A float holds the values of any dtype exactly.
    float window[kHalo > 0 ? kVec * kHalo : 1];
#pragma unroll
    for (int i = 0; i < kVec * kHalo; ++i) window[i] = past[i % kHalo].to_float(i / kHalo);
    const Chain<input_t, kVec, kPacked, kGated> chain{p, tokens, columns.channel};
    const WindowRow row(p, indices.batch, columns.slot);
    if constexpr (kTokenStates && kHalo > 1) store_windows<kHalo, input_t, kGated>(p, row, tokens, columns);
    // A state that is just the inputs before a token is in registers after each.
    const bool is_longer = p.state_len > kHalo && p.num_accepted_tokens == nullptr;
    int own = -1;
    if (kTokenStates && is_longer) own = store_token_states(chain, p, indices.batch, columns, row);
    if (is_row) target.take(columns, min(place.goes_to, p.state_len), tokens.count(p));
    if (kAddressed && is_ring && (target.slot != columns.slot || columns.is_fresh))
        target.take(columns, p.state_len, 0);
    if (own >= 0) store_state(chain, columns, columns, own, p.state_len);
    auto destination = destination_of<input_t, kVec, kRanges>(p, columns.channel, tokens.entry, tokens.begin);
    for (int from = 0; from < tokens.count(p); from += inputs.kTokens) {
        if (from > 0) inputs.load(p, tokens, columns.channel, from);
#pragma unroll
        for (int i = 0; i < inputs.kTokens; ++i) {
            const int t = from + i;
            if (t >= tokens.count(p)) break;
            const Vec<input_t, kVec>& x = inputs.x[i];
            float y[kVec];
            filter.results(x, [&](int k, int c) { return window[c * kHalo + k]; }, y);
            if constexpr (kGated) apply_gates<input_t>(p, y, tokens.entry, columns.channel, tokens.begin + t);
            destination.store_vector(Vec<input_t, kVec>::from_floats(y));
            destination.advance();
            float leaving[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                leaving[c] = kHalo > 0 ? window[c * kHalo] : x.to_float(c);
#pragma unroll
                for (int k = 0; k + 1 < kHalo; ++k) window[c * kHalo + k] = window[c * kHalo + k + 1];
                if (kHalo > 0) window[(c + 1) * kHalo - 1] = x.to_float(c);
            }
            if (is_row && place.goes_to + t >= 0) {
                target.at(place.goes_to + t).store_all(Vec<state_t, kVec>::from_floats(leaving));
            }
            if (is_ring && t >= tokens.count(p) - p.state_len) {
                target.at(place.column(p, kHalo + t)).store_all(convert<state_t>(x));
            }
            if constexpr (kTokenStates && kHalo > 0) {
                if (!p.windows_are_whole) store_window<state_t, kVec, kHalo>(p, row, t, columns.channel, window);
                const int slot = is_longer ? -1 : load_token_slot(p, indices.batch, t);
                if (slot >= 0) store_columns<state_t, kVec, kHalo>(columns.in(slot), 0, window);
            }
        }
    }
    if constexpr (kHalo > 0) {
        if (is_row) store_columns<state_t, kVec, kHalo>(target, place.goes_to + tokens.count(p), window);
    }
}

// Advances the sequence of a thread's share.
template <typename Filter, int kWidth, typename input_t, typename state_t, int kVec, Ranges kRanges, bool kAddressed,
          bool kPacked, bool kTokenStates, bool kGated>
__device__ __forceinline__ void update_sequence(const CausalConv1dUpdateOperands& p,
                                                const UpdateShare<kVec, 1>& share) {
    SequenceIndices<kAddressed, kPacked> indices;
    indices.load(p, share.first);
    RawIndex before;
    if (indices.is_there) before = StatePlace<kWidth - 1>::load(p, share.first);
    const typename Filter::Raw raw(p, share.channel);
    const SequenceTokens<kPacked> tokens(p, indices);
    TokenGroup<input_t, kVec, kGated> inputs;
    inputs.load(p, tokens, share.channel, 0);
    const StateColumns<state_t, kVec> columns{&p, indices.start(p), share.channel, indices.is_fresh(p)};
    const StatePlace<kWidth - 1> place(p, before, tokens.count(p));
    const bool has_results = columns.slot >= 0 && place.is_valid && tokens.has_any();
    store_padding<input_t, kVec, kRanges, kAddressed>(p, tokens, share.channel, has_results);
    if (!has_results) return;
    update_tokens<Filter, kWidth, input_t, state_t, kVec, kRanges, kAddressed, kPacked, kTokenStates, kGated>(
        p, indices, tokens, columns, place, raw, inputs);
}
