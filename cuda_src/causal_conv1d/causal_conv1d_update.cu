// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for the next tokens of sequences with their last
// inputs in a pool of states, which the call brings up to date.
//
// Layout: x (batch, dim, seqlen) and the pool (slots, dim, state_len) of any strides; vectors lie along the channels.
// A thread owns kVec channels of one sequence, or of several when there is one token. It reads the kWidth - 1 inputs
// before the first token into registers, once. A state is a row of columns that moves left, or a ring. The columns of a
// row that count are its last ones, or earlier ones when some of the tokens that it has seen were not accepted.
//
// kWidth   filter taps           input_t  x and outputs         weight_t  weight, and bias unless float
// state_t  the pool of states    kVec     channels a thread     kSilu     silu after the sum
// kRanges  how channels fall into ranges
// kSequences  sequences a thread where there is one token, no ring, no rejected token and no intermediate window; else
// 0
// kAddressed  slots may be in columns, states may go to other slots or start from zeros, padding may stay as it is
// kPacked     sequences have any numbers of tokens, one behind the other
// kTokenStates  the state after each token may go to a slot, windows have all columns or lie over each other
#include "causal_conv1d/conv_update_tokens.cuh"

struct CausalConv1dUpdateParams {
    CausalConv1dUpdateOperands operands;
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges,
          int kSequences, bool kAddressed, bool kPacked, bool kTokenStates>
struct CausalConv1dUpdateTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
    static_assert(kIsWidth<kWidth>);
};

// Advances kSequences sequences by one token each. All loads are issued before the first result is used.
template <typename Filter, int kWidth, typename input_t, typename state_t, int kVec, Ranges kRanges, int kSequences,
          bool kAddressed, bool kPacked>
__device__ __forceinline__ void update_single(const CausalConv1dUpdateOperands& p,
                                              const UpdateShare<kVec, kSequences>& share) {
    constexpr int kHalo = kWidth - 1;
    const int first = p.state_len - kHalo;
    SequenceIndices<kAddressed, kPacked> indices[kSequences];
    StateColumns<state_t, kVec> columns[kSequences];
    Vec<input_t, kVec> x[kSequences];
#pragma unroll
    for (int i = 0; i < kSequences; ++i) indices[i].load(p, share.batch(p, i));
#pragma unroll
    for (int i = 0; i < kSequences; ++i) {
        if (!kPacked) x[i] = load_first_token<kVec, input_t>(p, SequenceTokens<kPacked>(p, indices[i]), share.channel);
    }
    const typename Filter::Raw raw(p, share.channel);
    Vec<state_t, kVec> window[kSequences][kWidth];
#pragma unroll
    for (int i = 0; i < kSequences; ++i) {
        if (kPacked) x[i] = load_first_token<kVec, input_t>(p, SequenceTokens<kPacked>(p, indices[i]), share.channel);
        columns[i] = {&p, indices[i].start(p), share.channel, indices[i].is_fresh(p)};
        if (columns[i].slot < 0) continue;
#pragma unroll
        for (int k = 0; k < kHalo; ++k) window[i][k] = columns[i].load(first + k);
    }
    const Filter filter(raw);
#pragma unroll
    for (int i = 0; i < kSequences; ++i) {
        const int batch = share.batch(p, i);
        if (batch >= p.batch) return;
        const SequenceTokens<kPacked> tokens(p, indices[i]);
        const bool has_results = columns[i].slot >= 0 && tokens.has_any();
        store_padding<input_t, kVec, kRanges, kAddressed>(p, tokens, share.channel, has_results);
        if (!has_results) continue;
        window[i][kHalo] = convert<state_t>(x[i]);
        destination_of<input_t, kVec, kRanges>(p, share.channel, tokens.entry, tokens.begin)
            .store_vector(filter.output(x[i], [&](int k, int c) { return window[i][k].to_float(c); }));
        const StateColumns<state_t, kVec> target = columns[i].in(indices[i].final(p, columns[i].slot));
        if (p.is_read_only || (kAddressed && target.slot < 0)) continue;
        target.take(columns[i], first - 1, 1);
#pragma unroll
        for (int k = 0; k <= kHalo; ++k) {
            if (k > 0 || first > 0) target.at(first - 1 + k).store_all(window[i][k]);
        }
    }
}

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges,
          int kSequences, bool kAddressed, bool kPacked, bool kTokenStates,
          typename Traits = CausalConv1dUpdateTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu, kRanges,
                                                     kSequences, kAddressed, kPacked, kTokenStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_update_kernel(const CausalConv1dUpdateParams params) {
    using Filter = UpdateFilter<kWidth, input_t, weight_t, kVec, kSilu>;
    const CausalConv1dUpdateOperands& p = params.operands;
    wait_for_preceding();
    const UpdateShare<kVec, kSequences == 0 ? 1 : kSequences> share(p);
    if (share.is_empty) return;
    if constexpr (kSequences > 0) {
        update_single<Filter, kWidth, input_t, state_t, kVec, kRanges, kSequences, kAddressed, kPacked>(p, share);
    } else {
        update_sequence<Filter, kWidth, input_t, state_t, kVec, kRanges, kAddressed, kPacked, kTokenStates, false>(
            p, share);
    }
}
