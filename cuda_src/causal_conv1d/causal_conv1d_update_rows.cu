// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for the next tokens of sequences with their last
// inputs in the last kWidth - 1 columns of a pool of states, which then move left to make room for the new inputs.
//
// Layout: x (batch, dim, seqlen) of any strides, channels contiguous when kVec > 1; the columns of a state contiguous,
// one channel after another. A thread owns kVec channels of kSequences sequences. It loads their states as vectors
// along columns and channels, all before it uses the first, keeps each in registers for all tokens, and stores it once.
//
// kWidth      filter taps              input_t  x and outputs         weight_t  weight, and bias unless float
// kStateLen   columns of a state       state_t  the pool of states    kVec      channels a thread
// kSilu       silu after the sum       kRanges  how channels fall into ranges
// kSequences  sequences a thread
// kAddressed  slots may be in columns, states may go to other slots or start from zeros, padding may stay as it is
// kPacked     sequences may have any numbers of tokens, one behind the other
// kTokenStates  the state after each token may go to a slot, and to intermediate windows
#include "causal_conv1d/conv_update.cuh"

struct CausalConv1dUpdateRowsParams {
    CausalConv1dUpdateOperands operands;
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges,
          int kStateLen, int kSequences, bool kAddressed, bool kPacked, bool kTokenStates>
struct CausalConv1dUpdateRowsTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
    static constexpr int kFirst = kStateLen - (kWidth - 1);  // first column that the filter reads
    static_assert(kIsWidth<kWidth> && kFirst >= 0 && kStateLen > 0);
};

// Writes the state after a token to the token's slot, and all of it or its last columns to the intermediate window.
template <int kHalo, int kStateLen, typename state_t, int kVec>
__device__ __forceinline__ void store_token_state(const CausalConv1dUpdateOperands& p, int batch, WindowRow row,
                                                  int token, index_t channel, state_t* pool,
                                                  const float (&state)[kVec * kStateLen]) {
    const int slot = load_token_slot(p, batch, token);
    if (slot >= 0) store_packed(pool + slot * p.conv_state_stride[0], state);
    if (!row.exists || token >= p.intermediate_steps) return;
    if (kStateLen == kHalo || p.windows_are_whole) {
        store_window<state_t, kVec, kStateLen, kStateLen == kHalo>(p, row.number, token, channel, state);
    } else if constexpr (kHalo > 0) {
        float window[kVec * kHalo];
#pragma unroll
        for (int i = 0; i < kVec * kHalo; ++i) window[i] = state[i / kHalo * kStateLen + i % kHalo + kStateLen - kHalo];
        store_window<state_t, kVec, kHalo, true>(p, row.number, token, channel, window);
    }
}

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges,
          int kStateLen, int kSequences, bool kAddressed, bool kPacked, bool kTokenStates,
          typename Traits = CausalConv1dUpdateRowsTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu, kRanges,
                                                         kStateLen, kSequences, kAddressed, kPacked, kTokenStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_update_rows_kernel(const CausalConv1dUpdateRowsParams params) {
    const CausalConv1dUpdateOperands& p = params.operands;
    const UpdateShare<kVec, kSequences> share(p);
    if (share.is_empty) return;

    int slot[kSequences];
    int target[kSequences];  // where each state is left, -1 for nowhere
    Vec<input_t, kVec> x[kSequences];
#pragma unroll
    for (int i = 0; i < kSequences; ++i) {
        const int batch = share.batch(p, i);
        const bool is_there = is_sequence<kPacked>(p, batch);
        slot[i] = is_there ? load_slot<kAddressed>(p, batch) : -1;
        target[i] = is_there ? load_target<kAddressed>(p, batch, slot[i]) : -1;
    }
#pragma unroll
    for (int i = 0; i < kSequences; ++i) {
        const SequenceTokens<kPacked> tokens(p, share.batch(p, i));
        x[i] = load_first_token<kVec, input_t>(p, tokens, share.channel);
    }
    const ChannelFilter<kWidth, weight_t, kVec> raw(p, share.channel);
    state_t* const pool = static_cast<state_t*>(p.conv_state) + share.channel * kStateLen;
    PackedVec<state_t, kVec * kStateLen> packed[kSequences];
#pragma unroll
    for (int i = 0; i < kSequences; ++i) {
        if (kAddressed) packed[i] = {};
        if (slot[i] >= 0 && !is_fresh<kAddressed>(p, share.batch(p, i)))
            packed[i].template load<Memory::kMutable>(pool + slot[i] * p.conv_state_stride[0]);
    }
    const UpdateFilter<kWidth, input_t, weight_t, kVec, kSilu> filter(raw);
#pragma unroll
    for (int i = 0; i < kSequences; ++i) {
        const int batch = share.batch(p, i);
        if (batch >= p.batch) return;
        const SequenceTokens<kPacked> tokens(p, batch);
        store_padding<input_t, kVec, kRanges, kAddressed>(p, batch, tokens, share.channel);
        if (slot[i] < 0) {
            store_no_tokens<input_t, kVec, kRanges, kAddressed>(p, tokens, share.channel);
            continue;
        }
        if (kPacked && tokens.count(p) == 0) continue;
        float state[kVec * kStateLen];
#pragma unroll
        for (int j = 0; j < kVec * kStateLen; ++j) state[j] = packed[i].to_float(j);
        auto destination = destination_of<input_t, kVec, kRanges>(p, share.channel, tokens.entry, tokens.begin);
        for (int t = 0; t < tokens.count(p); ++t, destination.advance()) {
            if (t > 0) x[i] = load_token<kVec, input_t>(p, tokens.entry, share.channel, tokens.begin + t);
            destination.store_vector(
                filter.output(x[i], [&](int k, int c) { return state[c * kStateLen + Traits::kFirst + k]; }));
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
#pragma unroll
                for (int j = 0; j + 1 < kStateLen; ++j) state[c * kStateLen + j] = state[c * kStateLen + j + 1];
                state[(c + 1) * kStateLen - 1] = x[i].to_float(c);
            }
            if constexpr (kTokenStates) {
                const WindowRow row(p, batch, slot[i]);
                store_token_state<kWidth - 1, kStateLen, state_t, kVec>(p, batch, row, t, share.channel, pool, state);
            }
        }
        if (!p.is_read_only && (!kAddressed || target[i] >= 0))
            store_packed(pool + target[i] * p.conv_state_stride[0], state);
    }
}
