// out[t] = act(bias + sum_w weight[w] * x[path(t, kWidth - 1 - w)]) for the drafted tokens of sequences, each of which
// follows an earlier one or the sequence's last inputs in a pool of states: path(t, i) is the input i steps before t.
//
// Layout: x (batch, dim, seqlen) and the pool (slots, dim, state_len) of any strides; vectors lie along the channels.
// A thread owns kVec channels of one sequence. For each token it walks up to the kWidth - 1 inputs before it, which are
// in its caches from the tokens before, and leaves the state after the token where it is wanted.
//
// kWidth   filter taps           input_t  x and outputs         weight_t  weight, and bias unless float
// state_t  the pool of states    kVec     channels a thread     kSilu     silu after the sum
// kRanges  how channels fall into ranges
#include "causal_conv1d/conv_token_states.cuh"
#include "common/trees.cuh"

struct CausalConv1dUpdateTreeParams {
    CausalConv1dUpdateOperands operands;
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges>
struct CausalConv1dUpdateTreeTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
    static_assert(kIsWidth<kWidth>);
};

// The tokens of a sequence, each of which follows its parent.
template <typename input_t, int kVec>
struct Tree {
    const CausalConv1dUpdateOperands& p;
    const SequenceTokens<false>& tokens;
    index_t channel;

    __device__ __forceinline__ Vec<input_t, kVec> load(int token) const {
        return load_token<kVec, input_t>(p, tokens.entry, channel, token);
    }
    __device__ __forceinline__ int parent(int token) const { return load_parent(p, tokens.entry, token); }
    __device__ __forceinline__ int depth(int token, int most) const {
        int found = 0;
        for (; token >= 0 && found < most; ++found) token = parent(token);
        return found;
    }
};

// The inputs that a token's result depends on but the token itself, the earliest first.
template <int kHalo, typename input_t, typename state_t, int kVec>
__device__ __forceinline__ void load_past(const Tree<input_t, kVec>& tree, const StateColumns<state_t, kVec>& source,
                                          int token, float (&past)[kVec * (kHalo + 1)]) {
    const int first = tree.p.state_len - kHalo;
    int at = tree.parent(token);
    int above = 0;
#pragma unroll
    for (int k = kHalo - 1; k >= 0; --k) {
        float values[kVec];
        if (at >= 0) {
            const Vec<input_t, kVec> x = tree.load(at);
#pragma unroll
            for (int c = 0; c < kVec; ++c) values[c] = x.to_float(c);
            at = tree.parent(at);
            ++above;
        } else {
            const Vec<state_t, kVec> column = source.load(first + above + k);
#pragma unroll
            for (int c = 0; c < kVec; ++c) values[c] = column.to_float(c);
        }
#pragma unroll
        for (int c = 0; c < kVec; ++c) past[c * (kHalo + 1) + k] = values[c];
    }
}

template <typename Filter, int kWidth, typename input_t, typename state_t, int kVec, Ranges kRanges>
__device__ __forceinline__ void update_tree(const CausalConv1dUpdateOperands& p, const SequenceTokens<false>& tokens,
                                            const StateColumns<state_t, kVec>& source, int target,
                                            const Filter& filter) {
    constexpr int kHalo = kWidth - 1;
    const int batch = tokens.entry;
    const Tree<input_t, kVec> tree{p, tokens, source.channel};
    const WindowRow row(p, batch, source.slot);
    const int own = store_token_states(tree, p, batch, source, row);
    auto destination = destination_of<input_t, kVec, kRanges>(p, source.channel, batch, 0);
    for (int t = 0; t < tokens.count(p); ++t, destination.advance()) {
        float inputs[kVec * kWidth];
        load_past<kHalo>(tree, source, t, inputs);
        const Vec<input_t, kVec> x = tree.load(t);
#pragma unroll
        for (int c = 0; c < kVec; ++c) inputs[c * kWidth + kHalo] = x.to_float(c);
        destination.store_vector(filter.output(x, [&](int k, int c) { return inputs[c * kWidth + k]; }));
        if constexpr (kHalo > 0) {
            if (p.windows_are_whole) continue;
            float window[kVec * kHalo];
#pragma unroll
            for (int i = 0; i < kVec * kHalo; ++i) window[i] = inputs[i / kHalo * kWidth + i % kHalo + 1];
            store_window<state_t, kVec, kHalo>(p, row, t, source.channel, window);
        }
    }
    // What the sequence starts from is overwritten last.
    const int last = tokens.count(p) - 1;
    if (!p.is_read_only && target >= 0) store_state(tree, source, source.in(target), last, p.state_len);
    if (own >= 0) store_state(tree, source, source.in(source.slot), own, p.state_len);
}

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges,
          typename Traits = CausalConv1dUpdateTreeTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu, kRanges>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_update_tree_kernel(const CausalConv1dUpdateTreeParams params) {
    using Filter = UpdateFilter<kWidth, input_t, weight_t, kVec, kSilu>;
    const CausalConv1dUpdateOperands& p = params.operands;
    const UpdateShare<kVec, 1> share(p);
    if (share.is_empty) return wait_for_preceding();
    SequenceIndices<true, false> indices;
    indices.load(p, share.first);
    const typename Filter::Raw raw(p, share.channel);
    const int slot = indices.start(p);
    wait_for_preceding();
    const SequenceTokens<false> tokens(p, indices);
    if (slot < 0) {
        store_padding<input_t, kVec, kRanges, true>(p, tokens, share.channel, false);
        return;
    }
    const StateColumns<state_t, kVec> source{&p, slot, share.channel, indices.is_fresh(p)};
    update_tree<Filter, kWidth, input_t, state_t, kVec, kRanges>(p, tokens, source, indices.final(p, slot),
                                                                 Filter(raw));
}
