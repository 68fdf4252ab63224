// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for tokens whose
// channels are contiguous. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dx (batch, dim, seqlen), dim stride 1; any strides when kVec is 1. dout the same, or any strides element
// by element. A row is cut into steps of kTokens tokens, and the steps of all rows count as one list. A thread owns
// kVec channels and walks a part of the list; the walks of a block follow each other. While it walks a step, the tokens
// of the next ones are copied to places of its own in shared memory: no barrier. It carries the last width - 1 inputs
// and gradients from step to step, so that each token's gradient is computed once. At step t it knows
// dx[t - (width - 1)]; to finish the last tokens of a walk it takes the first gradients of the next walk, which their
// thread leaves in shared memory; those of the next block's walk it computes itself. The parameters' gradients stay in
// registers until a walk's end; the block adds up those of its threads in a fixed order. No atomics.
//
// kWidth    filter taps              input_t   x, dout and dx            weight_t  weight, and bias unless float
// kVec      channels an access       kTokens   tokens a step             kBlock    threads a block
// kSilu     silu after the sum       kSeqIdx   tokens see only their own sequence number
// kStates   initial states, or gradients of states, are given or wanted
#include "causal_conv1d/conv_bwd_channels.cuh"

struct CausalConv1dChannellastBwdParams {
    CausalConv1dBwdOperands operands;
    FastDiv block_vecs;    // channel vectors a block
    FastDiv dim_blocks;    // blocks across the channels
    FastDiv row_steps;     // steps a row
    unsigned block_walks;  // walks that a block makes side by side
    unsigned walk_steps;   // steps a walk
    unsigned steps;        // in all rows
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, int kBlock, bool kSilu, bool kSeqIdx,
          bool kStates>
struct CausalConv1dChannellastBwdTraits {
    static constexpr int kThreads = kBlock;
    static constexpr Rows kRows = kRowsOf<kSeqIdx, false>;
    static constexpr int kMinBlocks = kWidth > 4 ? 1 : 512 / kThreads;
    static constexpr int kHalo = kWidth - 1;
    // Steps whose tokens are in shared memory or on their way there, one of them being walked. With a third, B8 D4096
    // L2048 in bfloat16 takes 115 us on an H200 instead of 107.
    static constexpr int kStageSlots = 2 * kTokens * kThreads;
    static constexpr int kStageBytes = kStageSlots * static_cast<int>(sizeof(Vec<input_t, kVec>));
    static constexpr int kStages = kStageBytes <= 128 * kThreads ? 2 : 1;
    static constexpr int kSumBytes = (kWidth + 1) * kThreads * static_cast<int>(sizeof(ChannelSums<kVec>));
    // The gradients of the first width - 1 tokens of every thread's walk.
    static constexpr int kFirstBytes = kHalo * kVec * kThreads * static_cast<int>(sizeof(float));
    static constexpr int kWalkBytes = kStages * kStageBytes + kFirstBytes;
    static constexpr int kSharedBytes = kSumBytes > kWalkBytes ? kSumBytes : kWalkBytes;
    static_assert(kIsWidth<kWidth> && kTokens >= kHalo);
};

// What a thread carries from step to step, and what it does in one. Most steps lie inside a sequence and know nothing
// of others; only the rest look at every token for where it belongs.
template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, Rows kRows, bool kStates,
          int kThreads>
struct GradientWalk {
    static constexpr int kHalo = kWidth - 1;
    using Vector = Vec<input_t, kVec>;

    const CausalConv1dBwdOperands& p;
    index_t channel;
    int batch;
    int first;       // token of the walk in this row
    int count;       // tokens of the row from that one on
    input_t* dx_at;  // width - 1 tokens behind the others
    float x[kHalo + kTokens][kVec];
    float gradients[kHalo + kTokens][kVec];
    int seq[kWidth];  // numbers of the sequences of the last width - 1 tokens, and of the current one

    __device__ __forceinline__ GradientWalk(const CausalConv1dBwdOperands& p_, index_t channel_)
        : p(p_), channel(channel_) {}

    // Begins a row, or inside one with the width - 1 inputs before the token.
    __device__ __forceinline__ void begin(int batch_, int token, const Vector (&before)[kWidth]) {
        batch = batch_;
        first = token;
        count = p.seqlen - first;
        const int from = first - kHalo;
        dx_at = at_token<kVec, input_t>(p.dx, p.dx_stride, batch, channel, from);
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            set_input(i, before[i]);
            if (from < 0 && p.initial_states != nullptr) load_state(i, from + i + kHalo);
#pragma unroll
            for (int c = 0; c < kVec; ++c) gradients[i][c] = 0.0f;
            if (kRows == Rows::kNumbered) seq[i] = load_seq_idx(p, batch, from + i);
        }
    }

    // The tokens from `token` on. Leaves the gradients of the first width - 1 of a walk in `firsts`, kThreads apart.
    __device__ __forceinline__ void step(const Vector* slots, int token, float* firsts, bool is_first,
                                         const float (&taps)[kVec][kWidth], const float (&bias)[kVec],
                                         ParameterSums<kWidth> (&sums)[kVec]) {
        if (is_plain(token)) {
            walk_together(slots, token, firsts, is_first, taps, bias, sums);
        } else if constexpr (kRows != Rows::kOne || kStates) {
            walk_singly(slots, token, firsts, is_first, taps, bias, sums);
        }
    }

    // The gradients of the inputs of a row's last width - 1 tokens, before the token `end`.
    __device__ __forceinline__ void end_row(int end, const float (&taps)[kVec][kWidth]) {
        float next[kWidth][kVec];
        int next_seq[kWidth];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            next_seq[i] = PackedRun::kPadding;
#pragma unroll
            for (int c = 0; c < kVec; ++c) next[i][c] = 0.0f;
        }
        finish(end, next, next_seq, taps);
    }

    // The same of a walk inside a row. The gradients of the width - 1 tokens behind it lie in `firsts`, when that is
    // not null; else those tokens lie in `slots`.
    __device__ __forceinline__ void end_walk(int end, const float* firsts, const Vector* slots,
                                             const float (&taps)[kVec][kWidth], const float (&bias)[kVec]) {
        float next[kWidth][kVec];
        int next_seq[kWidth];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            if constexpr (kRows == Rows::kNumbered) next_seq[i] = load_seq_idx(p, batch, end + i);
            if (firsts != nullptr) {
#pragma unroll
                for (int c = 0; c < kVec; ++c) next[i][c] = firsts[(i * kVec + c) * kThreads];
                continue;
            }
            set_input(kHalo + i, slots[i * kThreads]);
            const Vector dout = slots[(kTokens + i) * kThreads];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                float window[kWidth];
                int numbers[kWidth];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) {
                    window[k] = x[i + k][c];
                    if (kRows == Rows::kNumbered) {
                        numbers[k] = i + k < kHalo ? seq[i + k < kHalo ? i + k : 0]
                                                   : next_seq[i + k < kHalo ? 0 : i + k - kHalo];
                    }
                }
                if (kRows == Rows::kNumbered) keep_own_inputs(numbers, window);
                next[i][c] = token_gradient<kSilu, input_t>(taps[c], bias[c], window, dout.to_float(c));
                if (kRows != Rows::kOne && next_seq[i] < 0) next[i][c] = 0.0f;
            }
        }
        finish(end, next, next_seq, taps);
    }

 private:
    // Whether a step's tokens and the width - 1 before them are in one sequence, and no state has to do with them.
    __device__ __forceinline__ bool is_plain(int token) const {
        bool is_same = !kStates || (token >= kHalo && token + kTokens <= p.seqlen);
        if constexpr (kRows == Rows::kNumbered) {
            const int own = load_seq_idx(p, batch, token);
            is_same = is_same && own >= 0;
#pragma unroll
            for (int i = 0; i < kHalo; ++i) is_same = is_same && seq[i] == own;
#pragma unroll
            for (int i = 1; i < kTokens; ++i) is_same = is_same && load_seq_idx(p, batch, token + i) == own;
        }
        return is_same;
    }

    // All tokens of a plain step. The numbers of the last ones stay those of the first.
    __device__ __forceinline__ void walk_together(const Vector* slots, int token, float* firsts, bool is_first,
                                                  const float (&taps)[kVec][kWidth], const float (&bias)[kVec],
                                                  ParameterSums<kWidth> (&sums)[kVec]) {
        Vector results[kTokens];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            set_input(kHalo + i, slots[i * kThreads]);
            float dx[kVec];
            add_token<Rows::kOne>(i, slots[(kTokens + i) * kThreads], taps, bias, sums, dx);
            results[i] = Vector::from_floats(dx);
        }
        // Behind the sums: a condition among them would keep the compiler from mixing tokens.
#pragma unroll
        for (int i = 0; i < kTokens; ++i, dx_at += p.dx_stride[2]) {
            if (is_own(token + i - kHalo)) store(dx_at, results[i]);
        }
        if (is_first) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) keep_first(firsts, i, gradients[kHalo + i]);
        }
        carry<kTokens>();
    }

    // Token by token.
    __device__ __forceinline__ void walk_singly(const Vector* slots, int token, float* firsts, bool is_first,
                                                const float (&taps)[kVec][kWidth], const float (&bias)[kVec],
                                                ParameterSums<kWidth> (&sums)[kVec]) {
#pragma unroll 1
        for (int i = 0; i < kTokens; ++i, ++token, dx_at += p.dx_stride[2]) {
            set_input(kHalo, slots[i * kThreads]);
            if constexpr (kRows == Rows::kNumbered) seq[kHalo] = load_seq_idx(p, batch, token);
            float dx[kVec];
            add_token<kRows>(0, slots[(kTokens + i) * kThreads], taps, bias, sums, dx);
            if (is_first && i < kHalo) keep_first(firsts, i, gradients[kHalo]);
            store_input_gradient(token - kHalo, dx);
            carry<1>();
        }
    }

    // The token in x[i + width - 1]: its gradient and sums, and the input's gradient width - 1 tokens before it.
    template <Rows kAs>
    __device__ __forceinline__ void add_token(int i, const Vector& dout, const float (&taps)[kVec][kWidth],
                                              const float (&bias)[kVec], ParameterSums<kWidth> (&sums)[kVec],
                                              float (&dx)[kVec]) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = x[i + k][c];
            if (kAs == Rows::kNumbered) keep_own_inputs(seq + i, window);
            float g = token_gradient<kSilu, input_t>(taps[c], bias[c], window, dout.to_float(c));
            if (kAs != Rows::kOne) g = seq[i + kHalo] < 0 ? 0.0f : g;
            gradients[i + kHalo][c] = g;
            sums[c].add(g, window);
            dx[c] = gradient_of_input<kAs>(i, c, taps);
        }
    }

    template <Rows kAs>
    __device__ __forceinline__ float gradient_of_input(int i, int c, const float (&taps)[kVec][kWidth]) const {
        float following[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) following[k] = gradients[i + k][c];
        return input_gradient<kAs>(taps[c], following, seq + i);
    }

    // The gradients of the width - 1 inputs before the token `end`, from those of the tokens from there on.
    __device__ __forceinline__ void finish(int end, float (&next)[kWidth][kVec], int (&next_seq)[kWidth],
                                           const float (&taps)[kVec][kWidth]) {
#pragma unroll
        for (int i = 0; i < kHalo; ++i, dx_at += p.dx_stride[2]) {
            if (kRows != Rows::kOne) seq[kHalo] = next_seq[i];
            float dx[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                gradients[kHalo][c] = next[i][c];
                dx[c] = gradient_of_input<kRows>(0, c, taps);
            }
            store_input_gradient(end - kHalo + i, dx);
            carry<1>();
        }
    }

    // Of the token that seq[0] is of.
    __device__ __forceinline__ void store_input_gradient(int token, float (&dx)[kVec]) const {
        if constexpr (kStates && kHalo > 0) add_states(token, dx);
        if (is_own(token)) store(dx_at, Vector::from_floats(dx));
    }

    __device__ __forceinline__ static void keep_first(float* firsts, int i, const float (&of_token)[kVec]) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) firsts[(i * kVec + c) * kThreads] = of_token[c];
    }

    // Keeps what the tokens kCount further need.
    template <int kCount>
    __device__ __forceinline__ void carry() {
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                x[i][c] = x[kCount + i][c];
                gradients[i][c] = gradients[kCount + i][c];
            }
            if (kRows != Rows::kOne && kCount == 1) seq[i] = seq[i + 1];
        }
    }

    __device__ __forceinline__ void set_input(int i, const Vector& v) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) x[i][c] = v.to_float(c);
    }

    // A column of the row's initial state: column 0 is width - 1 tokens before the first token.
    __device__ __forceinline__ void load_state(int i, int column) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) x[i][c] = load_initial<input_t>(p, batch, channel + c, column);
    }

    __device__ __forceinline__ bool is_own(int token) const {
        return static_cast<unsigned>(token - first) < static_cast<unsigned>(count);
    }

    // Adds the gradient of the final state to that of the token that seq[0] is of, and writes that of a row's initial
    // state, which is that of a token before the row.
    __device__ __forceinline__ void add_states(int token, float (&dx)[kVec]) const {
        const bool is_initial = token < 0 && first == 0;
        if (p.dfinal_states != nullptr && token >= p.seqlen - kHalo && (is_own(token) || is_initial)) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                dx[c] += final_gradient<kWidth, input_t>(p, batch, channel + c, token, p.seqlen);
            }
        }
        if (p.dinitial_states != nullptr && is_initial) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                store_initial_gradient<input_t>(p, batch, channel + c, token + kHalo, dx[c]);
            }
        }
    }
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, int kBlock, bool kSilu, bool kSeqIdx,
          bool kStates,
          typename Traits = CausalConv1dChannellastBwdTraits<kWidth, input_t, weight_t, kVec, kTokens, kBlock, kSilu,
                                                             kSeqIdx, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_channellast_bwd_kernel(const CausalConv1dChannellastBwdParams params) {
    constexpr int kHalo = Traits::kHalo;
    constexpr int kStages = Traits::kStages;
    using Vector = Vec<input_t, kVec>;
    using Fetch = TokenFetch<input_t, kVec, kTokens, Traits::kThreads>;
    using Walk =
        GradientWalk<kWidth, input_t, weight_t, kVec, kTokens, kSilu, Traits::kRows, kStates, Traits::kThreads>;
    const CausalConv1dBwdOperands p = with_states<kStates>(params.operands);
    __shared__ BlockMemory<Traits::kSharedBytes> memory;

    const QuotientRemainder walk_vec = divide(threadIdx.x, params.block_vecs);
    const QuotientRemainder part_dim = divide(blockIdx.x, params.dim_blocks);
    const index_t first_channel = static_cast<index_t>(part_dim.remainder) * params.block_vecs.divisor * kVec;
    const bool is_idle = walk_vec.quotient >= params.block_walks || first_channel + walk_vec.remainder * kVec >= p.dim;
    const index_t channel = is_idle ? 0 : first_channel + walk_vec.remainder * kVec;
    const unsigned begin =
        min((part_dim.quotient * params.block_walks + walk_vec.quotient) * params.walk_steps, params.steps);
    const unsigned end = is_idle ? begin : min(begin + params.walk_steps, params.steps);
    const bool ends_inside = end > begin && end < params.steps && divide(end, params.row_steps).remainder != 0;
    const bool looks_ahead = ends_inside && walk_vec.quotient + 1 == params.block_walks;

    StepCursor<kTokens> cursor(params.row_steps, begin, static_cast<int>(end - begin));
    Fetch fetch(p, cursor, channel);
    fetch.cursor.left += looks_ahead ? 1 : 0;
    // A thread reads only what it has brought itself: no barrier.
    Vector* const slots = reinterpret_cast<Vector*>(memory.bytes) + threadIdx.x;
    constexpr int kStageSlots = Traits::kStageSlots;
    float* const firsts = reinterpret_cast<float*>(memory.bytes + kStages * Traits::kStageBytes) + threadIdx.x;
    Vector before[kWidth];
#pragma unroll
    for (int i = 0; i < kHalo; ++i) {
        before[i] = cursor.token > 0 ? load<kVec>(fetch.x_at - (kHalo - i) * p.x_stride[2]) : Vector::zero();
    }
    const ChannelFilter<kWidth, weight_t, kVec> filter(p, channel);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
        fetch.fetch(slots + i * kStageSlots);
        end_copy_group();
    }
    Walk walk(p, channel);
    float bias[kVec];
    float taps[kVec][kWidth];
    filter.to_floats(taps, bias);
    ParameterSums<kWidth> sums[kVec];
#pragma unroll
    for (int c = 0; c < kVec; ++c) {
        if constexpr (kSilu) scale_for_silu<input_t>(taps[c], bias[c]);
        sums[c] = ParameterSums<kWidth>::zero();
    }
    if (cursor.has_step()) walk.begin(cursor.batch, cursor.token, before);
    int stage = 0;
    bool is_first = true;
#pragma unroll 1
    while (cursor.has_step()) {
        // The free stage is the one that was walked last.
        if constexpr (kStages > 1) wait_for_copy_groups<kStages - 2>();
        const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
        fetch.fetch(slots + free_stage * kStageSlots);
        end_copy_group();
        if constexpr (kStages == 1) wait_for_copy_groups<0>();
        walk.step(slots + stage * kStageSlots, cursor.token, firsts, is_first, taps, bias, sums);
        is_first = false;
        stage = stage + 1 == kStages ? 0 : stage + 1;
        const int behind = cursor.token + kTokens;
        if (cursor.next()) {
            walk.end_row(behind, taps);
            const Vector none[kWidth] = {};
            if (cursor.has_step()) walk.begin(cursor.batch, 0, none);
        }
    }
    if (kStages == 1) fetch.fetch(slots);
    wait_for_copies();
    // The next walk's first gradients are there.
    __syncthreads();
    if (kHalo > 0 && ends_inside) {
        walk.end_walk(cursor.token, looks_ahead ? nullptr : firsts + params.block_vecs.divisor,
                      slots + stage * kStageSlots, taps, bias);
    }
    store_block_sums<Traits, kWidth, weight_t>(p, sums, kSumScale<input_t, kSilu>, params.block_vecs,
                                               params.block_walks, first_channel, part_dim.quotient,
                                               reinterpret_cast<ChannelSums<kVec>(*)[Traits::kThreads]>(memory.bytes));
}
