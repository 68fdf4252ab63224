// out[t] = act(bias + sum_w weight[w] * x[path(t, kWidth - 1 - w)]) for the drafted tokens of sequences, each of which
// follows an earlier one or the sequence's last inputs in a pool of states: path(t, i) is the input i steps before t.
//
// Layout: x (batch, dim, seqlen) and the pool (slots, dim, state_len) of any strides; vectors lie along the channels.
// A thread owns kVec channels of one sequence. A block finds the parents of its sequences' tokens first. A thread has
// the last inputs of the state in registers and several tokens on their way; the inputs before a token on its path are
// in its caches from the tokens before. It leaves the state after each token where it is wanted.
//
// kWidth   filter taps           input_t  x and outputs         weight_t  weight, and bias unless float
// state_t  the pool of states    kVec     channels a thread     kSilu     silu after the sum
// kRanges  how channels fall into ranges
#include "causal_conv1d/conv_token_states.cuh"
#include "common/trees.cuh"

struct CausalConv1dUpdateTreeParams {
    const void* retrieve_next_token;  // null where parents are given
    const void* retrieve_next_sibling;
    void* retrieve_parent_token;  // receives parents, 0 for none, unless it is null
    CausalConv1dUpdateOperands operands;
    index_t retrieve_next_token_stride[2];  // sequence, token
    index_t retrieve_next_sibling_stride[2];
    index_t retrieve_parent_token_stride[2];
    int retrieve_next_token_is_int64;
    int retrieve_next_sibling_is_int64;
    int retrieve_parent_token_is_int64;
    FastDiv tree_tokens;  // seqlen
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
    const short* parents;

    __device__ __forceinline__ Vec<input_t, kVec> load(int token) const {
        return load_token<kVec, input_t>(p, tokens.entry, channel, token);
    }
    __device__ __forceinline__ int parent(int token) const { return parents[token]; }
    __device__ __forceinline__ int depth(int token, int most) const {
        int found = 0;
        for (; token >= 0 && found < most; ++found) token = parent(token);
        return found;
    }
};

// The last kHalo inputs of the state before a sequence.
template <int kHalo, typename state_t, int kVec>
struct LastInputs {
    Vec<state_t, kVec> columns[kHalo > 0 ? kHalo : 1];

    __device__ __forceinline__ explicit LastInputs(const StateColumns<state_t, kVec>& source) {
#pragma unroll
        for (int k = 0; k < kHalo; ++k) columns[k] = source.load(source.p->state_len - kHalo + k);
    }

    // Column `from` or a later one, by a number that is not known when the kernel is compiled.
    __device__ __forceinline__ Vec<state_t, kVec> at(int column, int from) const {
        Vec<state_t, kVec> found = columns[from];
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
            if (k > from) found = select(column == k, columns[k], found);
        }
        return found;
    }
};

// The inputs that a token's result depends on but the token itself, the earliest first.
template <int kHalo, typename input_t, typename state_t, int kVec>
__device__ __forceinline__ void load_past(const Tree<input_t, kVec>& tree, const LastInputs<kHalo, state_t, kVec>& last,
                                          int token, float (&past)[kVec * (kHalo + 1)]) {
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
            const Vec<state_t, kVec> column = last.at(above + k, k);
#pragma unroll
            for (int c = 0; c < kVec; ++c) values[c] = column.to_float(c);
        }
#pragma unroll
        for (int c = 0; c < kVec; ++c) past[c * (kHalo + 1) + k] = values[c];
    }
}

template <typename Filter, int kWidth, typename input_t, typename state_t, int kVec, Ranges kRanges>
__device__ __forceinline__ void update_tree(const CausalConv1dUpdateOperands& p, const SequenceTokens<false>& tokens,
                                            const StateColumns<state_t, kVec>& source, int target, const Filter& filter,
                                            const short* parents, TokenGroup<input_t, kVec>& group) {
    constexpr int kHalo = kWidth - 1;
    const int batch = tokens.entry;
    const Tree<input_t, kVec> tree{p, tokens, source.channel, parents};
    const LastInputs<kHalo, state_t, kVec> past(source);
    const WindowRow row(p, batch, source.slot);
    const bool keeps_whole = p.token_state_indices != nullptr || p.windows_are_whole;
    const int own = keeps_whole ? store_token_states(tree, p, batch, source, row) : -1;
    auto destination = destination_of<input_t, kVec, kRanges>(p, source.channel, batch, 0);
    const bool stores_last = !p.is_read_only && target >= 0;
    const int count = tokens.count(p);
    for (int from = 0; from < count; from += TokenGroup<input_t, kVec>::kTokens) {
        // Loaded ahead where registers allow it, and whether there are such tokens or not, for behind a branch it gains
        // nothing. On an H200 10.6 us instead of 12.3 (8 x 8192, 16 tokens of bfloat16) and 13.7 instead of 13.3 (64 x
        // 8192, 4 tokens); of float32 20.1 instead of 17.9.
        constexpr bool kIsAhead = sizeof(input_t) == 2;
        TokenGroup<input_t, kVec> next;
        if (kIsAhead) next.load(p, tokens, source.channel, from + next.kTokens);
        if (!kIsAhead && from > 0) group.load(p, tokens, source.channel, from);
#pragma unroll
        for (int i = 0; i < TokenGroup<input_t, kVec>::kTokens; ++i) {
            const int t = from + i;
            if (t >= count) break;
            float inputs[kVec * kWidth];
            load_past<kHalo>(tree, past, t, inputs);
            const Vec<input_t, kVec>& x = group.x[i];
#pragma unroll
            for (int c = 0; c < kVec; ++c) inputs[c * kWidth + kHalo] = x.to_float(c);
            destination.store_vector(filter.output(x, [&](int k, int c) { return inputs[c * kWidth + k]; }));
            destination.advance();
            if constexpr (kHalo > 0) {
                float window[kVec * kHalo];
#pragma unroll
                for (int j = 0; j < kVec * kHalo; ++j) window[j] = inputs[j / kHalo * kWidth + j % kHalo + 1];
                if (!p.windows_are_whole) store_window<state_t, kVec, kHalo>(p, row, t, source.channel, window);
                if (t + 1 == count && stores_last && p.state_len == kHalo) {
                    store_columns<state_t, kVec, kHalo>(source.in(target), 0, window);
                }
            }
        }
        if (kIsAhead) group = next;
    }
    // What the sequence starts from is overwritten last.
    if (stores_last && p.state_len > kHalo) store_state(tree, source, source.in(target), count - 1, p.state_len);
    if (own >= 0) store_state(tree, source, source.in(source.slot), own, p.state_len);
}

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges,
          typename Traits = CausalConv1dUpdateTreeTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu, kRanges>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_update_tree_kernel(const CausalConv1dUpdateTreeParams params) {
    using Filter = UpdateFilter<kWidth, input_t, weight_t, kVec, kSilu>;
    __shared__ TreeTable<Traits::kThreads> table;
    const CausalConv1dUpdateOperands& p = params.operands;
    wait_for_preceding();
    const UpdateShare<kVec, 1> share(p);
    const int first = static_cast<int>(divide(blockIdx.x, p.dim_blocks).quotient * p.rows);
    // Threads without a share find parents for the others, and load what is there.
    SequenceIndices<true, false> indices;
    indices.load(p, share.is_empty ? first : share.first);
    const index_t channel = share.is_empty ? 0 : share.channel;
    const typename Filter::Raw raw(p, channel);
    const SequenceTokens<false> tokens(p, indices);
    TokenGroup<input_t, kVec> group;
    group.load(p, tokens, channel, 0);
    table.fill(params, p, params.tree_tokens, first, min(static_cast<int>(p.rows), p.batch - first) * p.seqlen);
    if (share.is_empty) return;
    const int slot = indices.start(p);
    if (slot < 0) {
        store_padding<input_t, kVec, kRanges, true>(p, tokens, channel, false);
        return;
    }
    const int row = (share.first - first) * p.seqlen;
    const short* const parents = table.parents + row;
    if (divide(blockIdx.x, p.dim_blocks).remainder == 0) {
        const int vec = static_cast<int>(divide(threadIdx.x, p.block_vecs).remainder);
        table.store(params, share.first, p.seqlen, row, vec, static_cast<int>(p.block_vecs.divisor));
    }
    const StateColumns<state_t, kVec> source{&p, slot, channel, indices.is_fresh(p)};
    update_tree<Filter, kWidth, input_t, state_t, kVec, kRanges>(p, tokens, source, indices.final(p, slot), Filter(raw),
                                                                 parents, group);
}
