// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for the next tokens of sequences with their last
// inputs in a pool of states, which then move left to make room for the new inputs.
//
// As causal_conv1d_update_few does few things, for several tokens: of a general kernel not all blocks run at once, and
// what a second wave of blocks costs is as much again.
//
// Packed sequences are taken to have the same number of tokens until their borders are there; one that has others then
// loads those: 64 x 6144 with 3 tokens take 4.92 us so, 5.22 if they wait for the borders, and 4.86 where tokens are
// not packed (H200).
//
// Layout: x (sequence, token, dim), the results and the states with contiguous channels, aligned to kVec; a state is
// kStateLen columns of any stride, or with kRows contiguous ones of each channel. A thread owns kVec channels of one
// sequence, a block those of one sequence only. It has the inputs that states and results depend on in registers, as
// memory has them, four tokens at a time. Those of trees it has in shared memory, for there they are found by numbers
// that are not known when the kernel is compiled.
//
// kWidth     filter taps              input_t  x, outputs and states  weight_t  weight, and bias unless float
// kVec       channels a thread        kSilu    silu after the sum
// kStateLen  columns of a state, kWidth - 1 or kWidth
// kPacked    sequences have any numbers of tokens, one behind the other
// kWindows   the inputs before each next token go to intermediate windows
// kMany      sequences may have more tokens than a thread has in registers; trees of up to kTreeRows
// kTree      each token follows an earlier one or the state
// kRows      states and intermediate windows have contiguous columns, kStateLen of each channel
#include "causal_conv1d/conv_column.cuh"
#include "causal_conv1d/conv_few.cuh"
#include "common/trees.cuh"
#include "common/warp.cuh"

// Tokens that a thread has in registers.
inline constexpr int kTokensAtOnce = 4;

// Most tokens of a tree.
inline constexpr int kTreeRows = 16;

// Strides are in elements. What every launch reads comes first: arguments arrive by cache lines, one miss after
// another.
struct CausalConv1dUpdateSeveralParams {
    const void* x;
    void* conv_state;
    const void* weight;
    const void* bias;
    const void* conv_state_indices;
    void* out;
    const void* query_start_loc;
    void* intermediate_conv_window;
    const void* intermediate_state_indices;
    const void* parents;  // null where links are given
    const void* retrieve_next_token;
    const void* retrieve_next_sibling;
    void* retrieve_parent_token;  // receives parents, 0 for none, unless it is null
    int seqlen;                   // tokens per sequence, with query_start_loc at most
    int dim;
    int slots;  // slots of conv_state
    int pad_slot_id;
    int conv_state_indices_stride;
    int conv_state_indices_is_int64;
    int bias_bytes;             // per channel, 0 without bias
    int is_read_only;           // states are not written
    int x_stride[2];            // sequence, token
    int out_stride[2];          // sequence, token
    int conv_state_stride[2];   // slot, column
    int total;                  // tokens of all sequences and of padding, with query_start_loc
    int query_start_loc_words;  // words from one border to the next
    int assumed_tokens;         // tokens that a packed sequence is taken to have
    int intermediate_state_indices_stride;
    int intermediate_state_indices_is_int64;
    int intermediate_rows;
    int intermediate_steps;
    int intermediate_conv_window_stride[3];  // row, token, column
    int parents_stride[2];                   // sequence, token
    int retrieve_next_token_stride[2];
    int retrieve_next_sibling_stride[2];
    int retrieve_parent_token_stride[2];
    int parents_is_int64;
    int retrieve_next_token_is_int64;
    int retrieve_next_sibling_is_int64;
    int retrieve_parent_token_is_int64;
};

template <int kWidth, typename input_t, typename weight_t, int kVec, bool kSilu, int kStateLen, bool kPacked,
          bool kWindows, bool kMany, bool kTree, bool kRows>
struct CausalConv1dUpdateSeveralTraits {
    static constexpr int kThreads = 128;
    // So that a step of 64 sequences and 8192 channels is one wave of blocks. With rows, 4 tokens of 64 sequences take
    // 11.4 us with 10 blocks (H200) and 11.6 with 12, those of 8, as kMany, 3.58 and 3.14.
    static constexpr int kMinBlocks = kWidth > 4 || sizeof(input_t) > 2 ? 1 : !kRows ? 8 : kMany ? 12 : 10;
    static constexpr int kTokens = kTokensAtOnce;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kFirst = kStateLen - kHalo;  // first column that the filter reads
    static constexpr int kTreeTokens = kMany ? kTreeRows : kTokens;
    static_assert(kIsWidth<kWidth> && kHalo > 0 && (kFirst == 0 || kFirst == 1) && !(kTree && (kPacked || kRows)));
};

struct NoTree {};

// Writes column k + kFirst of `columns` as column k of rows of kCount contiguous columns, one channel after another.
template <int kCount, int kFirst, typename T, int kVec, int kColumns>
__device__ __forceinline__ void store_rows(T* to, const Vec<T, kVec> (&columns)[kColumns]) {
    PackedVec<T, kVec * kCount> rows = PackedVec<T, kVec * kCount>::zero();
#pragma unroll
    for (int i = 0; i < kVec * kCount; ++i) rows.put(i, columns[kFirst + i % kCount].element(i / kCount));
    rows.store(to);
}

// A tree of tokens in shared memory: the inputs of each thread's channels, first the kHalo in front of the sequence.
template <int kThreads, int kHalo, int kTokens, typename Vector>
struct TreeInputs {
    TreeTable<kThreads, kTokens> table;
    Vector rows[kHalo + kTokens][kThreads];

    __device__ __forceinline__ Vector& row(int i) { return rows[i][threadIdx.x]; }

    // The row that precedes one on its path.
    __device__ __forceinline__ int before(int i) const {
        const int parent = table.parents[max(i - kHalo, 0)];
        return i < kHalo ? i - 1 : kHalo + parent;
    }
};

template <int kWidth, typename input_t, typename weight_t, int kVec, bool kSilu, int kStateLen, bool kPacked,
          bool kWindows, bool kMany, bool kTree, bool kRows,
          typename Traits = CausalConv1dUpdateSeveralTraits<kWidth, input_t, weight_t, kVec, kSilu, kStateLen, kPacked,
                                                            kWindows, kMany, kTree, kRows>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_update_several_kernel(const CausalConv1dUpdateSeveralParams p) {
    constexpr int kHalo = Traits::kHalo, kTokens = Traits::kTokens;
    wait_for_preceding();
    // Blocks of successive channels of rows run together: 11.4 us instead of 11.6.
    const int batch = static_cast<int>(kRows ? blockIdx.y : blockIdx.x);
    // Threads beyond the last channel compute what the last ones do, and store nothing.
    const int own_channel = static_cast<int>((kRows ? blockIdx.x : blockIdx.y) * Traits::kThreads + threadIdx.x) * kVec;
    const int channel = min(own_channel, p.dim - kVec);
    RawIndex raw_slot, raw_row;
    if (p.conv_state_indices != nullptr) {
        raw_slot.load(p.conv_state_indices, batch * p.conv_state_indices_stride, p.conv_state_indices_is_int64);
    }
    int tokens = p.seqlen, begin = 0, behind = tokens;
    int first = batch * p.x_stride[0], first_out = batch * p.out_stride[0];
    if constexpr (kPacked) {
        tokens = p.assumed_tokens;
        begin = min(batch * tokens, p.total - tokens);
        behind = tokens;
        first = begin * p.x_stride[1];
        first_out = begin * p.out_stride[1];
    }
    if (kWindows && p.intermediate_state_indices != nullptr) {
        raw_row.load(p.intermediate_state_indices, batch * p.intermediate_state_indices_stride,
                     p.intermediate_state_indices_is_int64);
    }
    const FewFilter<kWidth, weight_t, kVec> raw(p, channel);
    const input_t* x = static_cast<const input_t*>(p.x) + first + channel;
    input_t* out = static_cast<input_t*>(p.out) + first_out + channel;
    using Vector = Vec<input_t, kVec>;
    using Tree = Select<kTree, TreeInputs<Traits::kThreads, kHalo, Traits::kTreeTokens, Vector>, NoTree>;
    __shared__ Tree tree;
    if constexpr (kTree) {
#pragma unroll 1
        for (int t = 0; t < tokens; ++t) copy_vector_async(&tree.row(kHalo + t), x + t * p.x_stride[1]);
    }
    // The inputs in front of the first token of a group, and those of its tokens.
    Vector inputs[kHalo + kTokens];
    const auto load_inputs = [&](int count) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t, x += p.x_stride[1]) {
            inputs[kHalo + t] = Vector::zero();
            if (t < count) inputs[kHalo + t] = load<kVec, Memory::kMutable>(x);
        }
    };
    if constexpr (!kTree) load_inputs(tokens);
    // The lowest words of borders: wrong ones give wrong results, not wrong accesses.
    unsigned border = 0, next_border = 0;
    if constexpr (kPacked) {
        const int* const borders = static_cast<const int*>(p.query_start_loc) + batch * p.query_start_loc_words;
        border = load_word<Memory::kMutable, unsigned>(borders);
        next_border = load_word<Memory::kMutable, unsigned>(borders + p.query_start_loc_words);
    }
    sync_warp();
    if (!kTree && own_channel >= p.dim) return;
    const int slot =
        p.conv_state_indices == nullptr ? (batch < p.slots ? batch : -1) : raw_slot.below(p.slots, p.pad_slot_id);
    const auto take_borders = [&] {
        const unsigned total = static_cast<unsigned>(p.total);
        begin = static_cast<int>(min(border, total));
        behind = max(static_cast<int>(min(next_border, total)) - begin, 0);
        tokens = min(behind, p.seqlen);
        x = static_cast<const input_t*>(p.x) + begin * p.x_stride[1] + channel;
        out = static_cast<input_t*>(p.out) + begin * p.out_stride[1] + channel;
    };
    // Behind the tokens of the last sequence lie those of none.
    const auto extend_last = [&] {
        if (batch + 1 == static_cast<int>(kRows ? gridDim.y : gridDim.x)) behind = p.total - begin;
    };
    const auto store_zeros = [&](int from) {
        if constexpr (kPacked) extend_last();
#pragma unroll 1
        for (int t = from; t < behind; ++t, out += p.out_stride[1]) {
            if (!kTree || own_channel < p.dim) store(out, Vector::zero());
        }
    };
    if (slot < 0) {
        if constexpr (kPacked) take_borders();
        store_zeros(0);
        return;
    }
    input_t* const state = static_cast<input_t*>(p.conv_state) + slot * static_cast<index_t>(p.conv_state_stride[0]) +
                           channel * (kRows ? kStateLen : 1);
    if constexpr (kRows) {
        PackedVec<input_t, kVec * kStateLen> rows;
        rows.template load<Memory::kMutable>(state);
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
            inputs[k] = Vector::zero();
#pragma unroll
            for (int c = 0; c < kVec; ++c) inputs[k].put(c, rows.element(c * kStateLen + Traits::kFirst + k));
        }
    }
#pragma unroll
    for (int k = 0; k < (kRows ? 0 : kHalo); ++k) {
        const input_t* const column = state + (Traits::kFirst + k) * p.conv_state_stride[1];
        if constexpr (kTree) {
            copy_vector_async(&tree.row(k), column);
        } else {
            inputs[k] = load<kVec, Memory::kMutable>(column);
        }
    }
    if constexpr (kTree) {
        // Numbers of tokens of one sequence divide by its length to 0.
        const FastDiv seqlen{static_cast<unsigned>(p.seqlen), 0, 31};
        tree.table.fill(p, p, seqlen, batch, tokens);
        if (blockIdx.y == 0) tree.table.store(p, batch, tokens, 0, static_cast<int>(threadIdx.x), Traits::kThreads);
        wait_for_copies();
        if (own_channel >= p.dim) return;
    }
    int row = -1;
    if constexpr (kWindows) {
        const index_t number =
            p.intermediate_state_indices == nullptr ? slot : raw_row.value(p.intermediate_state_indices_is_int64);
        if (number >= 0 && number < p.intermediate_rows) row = static_cast<int>(number);
    }
    if constexpr (kPacked) {
        const bool has_those =
            border == static_cast<unsigned>(begin) && next_border == static_cast<unsigned>(begin + tokens);
        if (!has_those || tokens == 0) {
            take_borders();
            if (tokens == 0) {
                store_zeros(0);
                return;
            }
            load_inputs(tokens);
        }
    }
    float taps[kVec][kWidth], bias[kVec];
    raw.to_floats(p, taps, bias);
    // Stores the result of a token and its window, from the kWidth inputs that end in it.
    const auto output = [&](int token, const Vector(&path)[kWidth]) {
        float y[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = path[k].to_float(c);
            y[c] = activate<input_t, kSilu, false>(convolve<false>(taps[c], bias[c], window, nullptr), 0);
        }
        store(out, Vector::from_floats(y));
        out += p.out_stride[1];
        if constexpr (kWindows) {
            if (row >= 0 && token < p.intermediate_steps) {
                input_t* const to = static_cast<input_t*>(p.intermediate_conv_window) +
                                    row * static_cast<index_t>(p.intermediate_conv_window_stride[0]) +
                                    token * p.intermediate_conv_window_stride[1] + channel * (kRows ? kStateLen : 1);
                if constexpr (kRows) store_rows<kStateLen, kWidth - kStateLen>(to, path);
#pragma unroll
                for (int k = 0; k < (kRows ? 0 : kHalo); ++k)
                    store(to + k * p.intermediate_conv_window_stride[2], path[k + 1]);
            }
        }
    };
    if constexpr (kTree) {
        Vector path[kWidth];
#pragma unroll 1
        for (int t = 0; t < tokens; ++t) {
            int at = kHalo + t;
#pragma unroll
            for (int k = kHalo; k >= 0; --k) {
                path[k] = tree.row(at);
                at = tree.before(at);
            }
            output(t, path);
        }
        if (p.is_read_only) return;
#pragma unroll
        for (int k = 0; k < kStateLen; ++k) store(state + k * p.conv_state_stride[1], path[1 - Traits::kFirst + k]);
    } else {
#pragma unroll 1
        for (int from = 0;; from += kTokens) {
            const int count = min(tokens - from, kTokens);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                if (t >= count) break;
                Vector path[kWidth];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) path[k] = inputs[t + k];
                output(from + t, path);
            }
            if (!kMany || from + kTokens >= tokens) {
#pragma unroll
                for (int last = 1; last <= kTokens; ++last) {
                    if (last != count || p.is_read_only) continue;
                    Vector columns[kStateLen];
#pragma unroll
                    for (int k = 0; k < kStateLen; ++k) columns[k] = inputs[last - Traits::kFirst + k];
                    if constexpr (kRows) store_rows<kStateLen, 0>(state, columns);
#pragma unroll
                    for (int k = 0; k < (kRows ? 0 : kStateLen); ++k) {
                        store(state + k * p.conv_state_stride[1], columns[k]);
                    }
                }
                break;
            }
#pragma unroll
            for (int k = 0; k < kHalo; ++k) inputs[k] = inputs[kTokens + k];
            load_inputs(tokens - from - kTokens);
        }
        if constexpr (kPacked) store_zeros(tokens);
    }
}
