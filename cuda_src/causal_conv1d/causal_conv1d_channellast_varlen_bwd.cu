// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for packed sequences
// with contiguous channels. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dx (dim, total), dim stride 1; any strides when kVec is 1. dout the same, or any strides element by
// element. A thread owns kVec channels and walks along a part of the tokens, kTokens per step; the walks of a block
// follow each other. While it walks a step, the tokens of the next one are copied to places of its own in shared
// memory: no barrier. Steps that lie inside a sequence are walked at once, others token by token. The parameters'
// gradients stay in registers until a walk's end; the block adds up those of its threads in a fixed order. No atomics.
//
// kWidth    filter taps              input_t   x, dout and dx            weight_t  weight, and bias unless float
// kVec      channels an access       kTokens   tokens a step             kSilu     silu after the sum
// kStates   initial states, or gradients of states, are given or wanted
#include "causal_conv1d/conv_bwd_channels.cuh"
#include "causal_conv1d/conv_bwd_sequences.cuh"

struct CausalConv1dChannellastVarlenBwdParams {
    CausalConv1dBwdOperands operands;
    FastDiv block_vecs;    // channel vectors a block
    FastDiv dim_blocks;    // blocks across the channels
    unsigned block_walks;  // walks that a block makes side by side
    unsigned walk_steps;   // steps a walk
    unsigned steps;        // of all tokens
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, bool kStates>
struct CausalConv1dChannellastVarlenBwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = kWidth > 4 ? 2 : 3;
    static constexpr int kPlain = kWidth <= 4 ? 4 : kTokens;  // tokens that are walked at once
    static constexpr int kStageSlots = 2 * kTokens * kThreads;
    static constexpr int kStageBytes = kStageSlots * static_cast<int>(sizeof(Vec<input_t, kVec>));
    static constexpr int kStages = kStageBytes <= 8192 ? 3 : kStageBytes <= 16384 ? 2 : 1;
    static constexpr int kSumBytes = (kWidth + 1) * kThreads * static_cast<int>(sizeof(ChannelSums<kVec>));
    static constexpr int kSharedBytes = kSumBytes > kStages* kStageBytes ? kSumBytes : kStages * kStageBytes;
    static_assert(kIsWidth<kWidth> && kTokens >= kWidth - 1);
};

template <
    int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, bool kStates,
    typename Traits = CausalConv1dChannellastVarlenBwdTraits<kWidth, input_t, weight_t, kVec, kTokens, kSilu, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_channellast_varlen_bwd_kernel(const CausalConv1dChannellastVarlenBwdParams params) {
    constexpr int kHalo = kWidth - 1, kStages = Traits::kStages, kThreads = Traits::kThreads, kPlain = Traits::kPlain;
    using Vector = Vec<input_t, kVec>;
    using Walk = SequenceWalk<kWidth, input_t, weight_t, kVec, kSilu, kStates>;
    const CausalConv1dBwdOperands p = with_states<kStates>(params.operands);
    __shared__ BlockMemory<Traits::kSharedBytes> memory;

    const QuotientRemainder walk_vec = divide(threadIdx.x, params.block_vecs);
    const QuotientRemainder part_dim = divide(blockIdx.x, params.dim_blocks);
    const unsigned first_channel = part_dim.remainder * params.block_vecs.divisor * kVec;
    const bool is_idle = walk_vec.quotient >= params.block_walks ||
                         first_channel + walk_vec.remainder * kVec >= static_cast<unsigned>(p.dim);
    const unsigned channel = is_idle ? 0 : first_channel + walk_vec.remainder * kVec;
    const unsigned begin =
        min((part_dim.quotient * params.block_walks + walk_vec.quotient) * params.walk_steps, params.steps);
    const unsigned end = is_idle ? begin : min(begin + params.walk_steps, params.steps);
    // Without tokens there may be sequences without them.
    const bool has_walk = begin < end;
    const int first = static_cast<int>(begin) * kTokens;
    const int last = has_walk ? min(static_cast<int>(end) * kTokens, p.total) : first;

    const ChannelFilter<kWidth, weight_t, kVec> filter(p, channel);
    const input_t* const x = at_token<kVec, const input_t>(p.x, p.x_stride, 0, channel, 0);
    const auto input = [&](int token) { return load<kVec>(x + token * p.x_stride[2]); };
    // What is brought next: pointers that move take fewer instructions than addresses of tokens.
    int next_token = first;
    const input_t* next_x = x + first * p.x_stride[2];
    const input_t* next_dout =
        static_cast<const input_t*>(p.dout) + channel * p.dout_stride[1] + first * p.dout_stride[2];
    const auto fetch = [&](Vector* x_slots) {
        Vector* const dout_slots = x_slots + kTokens * kThreads;
        const index_t x_step = p.x_stride[2], dout_step = p.dout_stride[2];
        if (next_token + kTokens <= last && p.dout_is_packed) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i, next_x += x_step, next_dout += dout_step) {
                copy_vector_async<true>(x_slots + i * kThreads, next_x);
                copy_vector_async<true>(dout_slots + i * kThreads, next_dout);
            }
        } else {
#pragma unroll 1
            for (int i = 0; i < min(kTokens, last - next_token); ++i, next_x += x_step, next_dout += dout_step) {
                x_slots[i * kThreads] = load<kVec>(next_x);
                dout_slots[i * kThreads] = load_apart<kVec>(next_dout, p.dout_stride[1], p.dout_is_packed != 0);
            }
        }
        next_token += kTokens;
        end_copy_group();
    };
    Vector* const slots = reinterpret_cast<Vector*>(memory.bytes) + threadIdx.x;
    constexpr int kStageSlots = Traits::kStageSlots;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(slots + i * kStageSlots);
    input_t* const dx = at_token<kVec, input_t>(p.dx, p.dx_stride, 0, channel, 0);
    const index_t dx_step = p.dx_stride[2];
    // Evicted first from the L2 cache: 16 sequences of 512 in 8192 channels take 111.4 us on an H200 instead of 115.1.
    const auto put_at = [](input_t* to, const float (&values)[kVec]) {
        store<Keep::kStream>(to, Vector::from_floats(values));
    };
    const auto put = [&](int token, const float (&values)[kVec]) { put_at(dx + token * dx_step, values); };
    Walk walk(p, channel, first, last, is_idle, filter);
    const auto see = [&](int token, float (&values)[kVec]) {
        const Vector of_input = input(token);
#pragma unroll
        for (int c = 0; c < kVec; ++c) values[c] = of_input.to_float(c);
    };
    if (has_walk) walk.begin();
    // The last walk makes a step behind the tokens: there may be sequences without any.
    const int walk_end = has_walk && last == p.total ? static_cast<int>(end + 1) * kTokens : last;
    const auto read = [](const Vector* slot, int i, float (&inputs)[kVec], float (&douts)[kVec]) {
        const Vector of_input = slot[i * kThreads], of_output = slot[(kTokens + i) * kThreads];
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            inputs[c] = of_input.to_float(c);
            douts[c] = of_output.to_float(c);
        }
    };
    int stage = 0;
#pragma unroll 1
    for (int token = first; token < walk_end; token += kTokens) {
        // The free stage is the one that was walked last.
        if constexpr (kStages > 1) wait_for_copy_groups<kStages - 2>();
        fetch(slots + (stage == 0 ? kStages - 1 : stage - 1) * kStageSlots);
        if constexpr (kStages == 1) wait_for_copy_groups<0>();
        const Vector* const own = slots + stage * kStageSlots;
#pragma unroll 1
        for (int part = token; part < token + kTokens; part += kPlain) {
            const int stop = min(part + kPlain, last);
            int next = min(part, last);
            do {
                if (walk.is_behind(next)) walk.turn(next, see, put);
                const int until = walk.end_before(stop);
                if (walk.is_padding()) {
                    const float zeros[kVec] = {};
#pragma unroll 1
                    for (; next < until; ++next) put(next, zeros);
                } else if (until - next == kPlain) {
                    const Vector* const own_part = own + (part - token) * kThreads;
                    float results[kPlain][kVec];
                    walk.add_plain(
                        [&](int i, float (&inputs)[kVec], float (&douts)[kVec]) { read(own_part, i, inputs, douts); },
                        results);
                    next = until;
                    // Behind the sums: a condition among them would keep the compiler from mixing tokens.
                    input_t* to = dx + (part - kHalo) * dx_step;
                    if (walk.owns(part - kHalo)) {
#pragma unroll
                        for (int i = 0; i < kHalo; ++i, to += dx_step) put_at(to, results[i]);
                    } else {
                        walk.put_before(part, results, put);
                        to += kHalo * dx_step;
                    }
#pragma unroll
                    for (int i = kHalo; i < kPlain; ++i, to += dx_step) put_at(to, results[i]);
                } else {
#pragma unroll 1
                    for (; next < until; ++next) {
                        float inputs[kVec], douts[kVec];
                        read(own, next - token, inputs, douts);
                        walk.add(next, inputs, douts, put);
                    }
                }
            } while (next < stop);
        }
        stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    if (has_walk) {
        walk.end(
            [&](int token, float (&inputs)[kVec], float (&douts)[kVec]) {
                see(token, inputs);
                const Vector of_output = load_apart<kVec>(
                    static_cast<const input_t*>(p.dout) + channel * p.dout_stride[1] + token * p.dout_stride[2],
                    p.dout_stride[1], p.dout_is_packed != 0);
#pragma unroll
                for (int c = 0; c < kVec; ++c) douts[c] = of_output.to_float(c);
            },
            put);
    }
    wait_for_copies();
    store_block_sums<Traits, kWidth, weight_t>(p, walk.window.sums, kSumScale<input_t, kSilu>, params.block_vecs,
                                               params.block_walks, first_channel, part_dim.quotient,
                                               reinterpret_cast<ChannelSums<kVec>(*)[Traits::kThreads]>(memory.bytes));
}
