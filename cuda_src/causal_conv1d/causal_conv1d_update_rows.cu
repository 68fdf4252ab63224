// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for the next tokens of sequences with their last
// inputs in the last kWidth - 1 columns of a pool of states, which then move left to make room for the new inputs.
//
// Layout: x (batch, dim, seqlen) of any strides, channels contiguous when kVec > 1; the columns of a state contiguous,
// one channel after another. A thread owns kVec channels of one sequence, or of several when there is one token. It
// loads their states as vectors along columns and channels, all before it uses the first, keeps each in registers for
// all tokens, and stores it once.
//
// kWidth      filter taps              input_t  x and outputs         weight_t  weight, and bias unless float
// kStateLen   columns of a state       state_t  the pool of states    kVec      channels a thread
// kSilu       silu after the sum       kRanges  how channels fall into ranges
// kSequences  sequences a thread where there is one token; else 0
// kAddressed  slots may be in columns, states may go to other slots or start from zeros, padding may stay as it is
// kPacked     sequences have any numbers of tokens, one behind the other
// kTokenStates  the state after each token may go to a slot, and to intermediate windows
#include "causal_conv1d/conv_token_states.cuh"

struct CausalConv1dUpdateRowsParams {
    CausalConv1dUpdateOperands operands;
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges,
          int kStateLen, int kSequences, bool kAddressed, bool kPacked, bool kTokenStates>
struct CausalConv1dUpdateRowsTraits {
    static constexpr int kThreads = 128;
    // Of 80 registers a thread, instead of 72, fewer blocks run at a time: 0.73 of copy instead of 0.81.
    static constexpr bool kIsTight =
        kSequences == 2 && kAddressed != kPacked && kVec == 4 && kWidth <= 4 && kRanges == Ranges::kOne;
    // With the states after single tokens 12.1 us instead of 12.9 (H200, 64 x 8192, 4 tokens).
    static constexpr bool kIsWave =
        kTokenStates && kVec == 2 && sizeof(state_t) == 2 && kWidth <= 4 && kRanges == Ranges::kOne && !kPacked;
    static constexpr int kMinBlocks = kIsTight ? 7 : kIsWave ? 8 : 1;
    static constexpr int kFirst = kStateLen - (kWidth - 1);  // first column that the filter reads
    static_assert(kIsWidth<kWidth> && kFirst >= 0 && kStateLen > 0);
};

// The states of a thread's channels, in registers. The filter reads columns from kFirst on.
template <typename input_t, typename state_t, int kVec, int kStateLen, int kFirst>
struct StateRow {
    static constexpr int kCount = kVec * kStateLen;
    static constexpr int kHalo = kStateLen - kFirst;

    PackedVec<state_t, kCount> packed;
    float state[kCount];

    // Loads the state in a slot, if there is one.
    __device__ __forceinline__ void load(const CausalConv1dUpdateOperands& p, index_t channel, int slot,
                                         bool is_fresh) {
        if (slot >= 0 && !is_fresh) packed.template load<Memory::kMutable>(at(p, channel, slot));
    }

    __device__ __forceinline__ void to_floats() {
#pragma unroll
        for (int j = 0; j < kCount; ++j) state[j] = packed.to_float(j);
    }

    // Input k before a token, in channel c.
    __device__ __forceinline__ float input(int k, int c) const { return state[c * kStateLen + kFirst + k]; }

    // Moves the state left by one column, which the input of a token fills.
    __device__ __forceinline__ void advance(const Vec<input_t, kVec>& x) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
#pragma unroll
            for (int j = 0; j + 1 < kStateLen; ++j) state[c * kStateLen + j] = state[c * kStateLen + j + 1];
            state[(c + 1) * kStateLen - 1] = x.to_float(c);
        }
    }

    __device__ __forceinline__ void store(const CausalConv1dUpdateOperands& p, index_t channel, int slot) const {
        store_packed(at(p, channel, slot), state);
    }

    // Writes the state, or its last kHalo columns, to a token's intermediate window.
    __device__ __forceinline__ void store_window_of(const CausalConv1dUpdateOperands& p, const WindowRow& row,
                                                    int token, index_t channel) const {
        if (kStateLen == kHalo || p.windows_are_whole) {
            store_window<state_t, kVec, kStateLen>(p, row, token, channel, state);
        } else if constexpr (kHalo > 0) {
            float window[kVec * kHalo];
#pragma unroll
            for (int i = 0; i < kVec * kHalo; ++i) { window[i] = input(i % kHalo, i / kHalo); }
            store_window<state_t, kVec, kHalo>(p, row, token, channel, window);
        }
    }

 private:
    __device__ __forceinline__ static state_t* at(const CausalConv1dUpdateOperands& p, index_t channel, int slot) {
        return static_cast<state_t*>(p.conv_state) + channel * kStateLen + slot * p.conv_state_stride[0];
    }
};

// Advances one sequence by all of its tokens.
template <typename Filter, typename Traits, int kWidth, typename input_t, typename state_t, int kVec, Ranges kRanges,
          int kStateLen, bool kAddressed, bool kPacked, bool kTokenStates>
__device__ __forceinline__ void update_row(const CausalConv1dUpdateOperands& p, int batch, index_t channel) {
    SequenceIndices<kAddressed, kPacked> indices;
    indices.load(p, batch);
    const typename Filter::Raw raw(p, channel);
    const SequenceTokens<kPacked> tokens(p, indices);
    TokenGroup<input_t, kVec> inputs;
    inputs.load(p, tokens, channel, 0);
    const int slot = indices.start(p);
    StateRow<input_t, state_t, kVec, kStateLen, Traits::kFirst> row;
    if (kAddressed) row.packed = {};
    row.load(p, channel, slot, indices.is_fresh(p));
    const Filter filter(raw);
    const bool has_results = slot >= 0 && tokens.has_any();
    store_padding<input_t, kVec, kRanges, kAddressed>(p, tokens, channel, has_results);
    if (!has_results) return;
    row.to_floats();
    const WindowRow window(p, batch, slot);
    if constexpr (kTokenStates && kWidth > 2) {
        const StateColumns<state_t, kVec> columns{&p, slot, channel, indices.is_fresh(p)};
        store_windows<kWidth - 1, input_t, false>(p, window, tokens, columns);
    }
    auto destination = destination_of<input_t, kVec, kRanges>(p, channel, tokens.entry, tokens.begin);
    for (int from = 0; from < tokens.count(p); from += inputs.kTokens) {
        if (from > 0) inputs.load(p, tokens, channel, from);
#pragma unroll
        for (int i = 0; i < inputs.kTokens; ++i) {
            if (from + i >= tokens.count(p)) break;
            destination.store_vector(filter.output(inputs.x[i], [&](int k, int c) { return row.input(k, c); }));
            destination.advance();
            row.advance(inputs.x[i]);
            if constexpr (kTokenStates) {
                row.store_window_of(p, window, from + i, channel);
                const int kept = load_token_slot(p, batch, from + i);
                if (kept >= 0) row.store(p, channel, kept);
            }
        }
    }
    const int target = indices.final(p, slot);
    if (!p.is_read_only && (!kAddressed || target >= 0)) row.store(p, channel, target);
}

// Advances kSequences sequences by one token each. All loads are issued before the first result is used.
template <typename Filter, typename Traits, typename input_t, typename state_t, int kVec, Ranges kRanges, int kStateLen,
          int kSequences, bool kAddressed, bool kPacked>
__device__ __forceinline__ void update_single(const CausalConv1dUpdateOperands& p,
                                              const UpdateShare<kVec, kSequences>& share) {
    SequenceIndices<kAddressed, kPacked> indices[kSequences];
    Vec<input_t, kVec> x[kSequences];
#pragma unroll
    for (int i = 0; i < kSequences; ++i) indices[i].load(p, share.batch(p, i));
#pragma unroll
    for (int i = 0; i < kSequences; ++i) {
        if (!kPacked) x[i] = load_first_token<kVec, input_t>(p, SequenceTokens<kPacked>(p, indices[i]), share.channel);
    }
    const typename Filter::Raw raw(p, share.channel);
    StateRow<input_t, state_t, kVec, kStateLen, Traits::kFirst> rows[kSequences];
#pragma unroll
    for (int i = 0; i < kSequences; ++i) {
        if (kPacked) x[i] = load_first_token<kVec, input_t>(p, SequenceTokens<kPacked>(p, indices[i]), share.channel);
        if (kAddressed) rows[i].packed = {};
        rows[i].load(p, share.channel, indices[i].start(p), indices[i].is_fresh(p));
    }
    const Filter filter(raw);
#pragma unroll
    for (int i = 0; i < kSequences; ++i) {
        const int batch = share.batch(p, i);
        if (batch >= p.batch) return;
        const SequenceTokens<kPacked> tokens(p, indices[i]);
        const int slot = indices[i].start(p);
        const bool has_results = slot >= 0 && tokens.has_any();
        store_padding<input_t, kVec, kRanges, kAddressed>(p, tokens, share.channel, has_results);
        if (!has_results) continue;
        rows[i].to_floats();
        destination_of<input_t, kVec, kRanges>(p, share.channel, tokens.entry, tokens.begin)
            .store_vector(filter.output(x[i], [&](int k, int c) { return rows[i].input(k, c); }));
        rows[i].advance(x[i]);
        const int target = indices[i].final(p, slot);
        if (!p.is_read_only && (!kAddressed || target >= 0)) rows[i].store(p, share.channel, target);
    }
}

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges,
          int kStateLen, int kSequences, bool kAddressed, bool kPacked, bool kTokenStates,
          typename Traits = CausalConv1dUpdateRowsTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu, kRanges,
                                                         kStateLen, kSequences, kAddressed, kPacked, kTokenStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_update_rows_kernel(const CausalConv1dUpdateRowsParams params) {
    using Filter = UpdateFilter<kWidth, input_t, weight_t, kVec, kSilu>;
    const CausalConv1dUpdateOperands& p = params.operands;
    wait_for_preceding();
    const UpdateShare<kVec, kSequences == 0 ? 1 : kSequences> share(p);
    if (share.is_empty) return;
    if constexpr (kSequences > 0) {
        update_single<Filter, Traits, input_t, state_t, kVec, kRanges, kStateLen, kSequences, kAddressed, kPacked>(
            p, share);
    } else {
        update_row<Filter, Traits, kWidth, input_t, state_t, kVec, kRanges, kStateLen, kAddressed, kPacked,
                   kTokenStates>(p, share.first, share.channel);
    }
}
