// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for tokens whose
// channels are contiguous. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dx (batch, dim, seqlen), dim stride 1; any strides when kVec is 1. dout the same, or any strides element
// by element. A thread owns kVec channels and walks along runs of consecutive tokens, kTokens a step, all of whose
// loads are issued before the first is used. It carries the last width - 1 inputs and gradients from step to step, so
// that a token's gradient is computed once. At step t it knows dx[t - (width - 1)]; to finish a run's last ones it
// walks width - 1 tokens into the next run. The rows' runs count as one list, which blocks share out evenly. The
// parameters' gradients stay in registers until a thread's last run; the block adds up those of its threads in a fixed
// order. No atomics.
//
// kWidth    filter taps              input_t   x, dout and dx            weight_t  weight, and bias unless float
// kVec      channels an access       kTokens   tokens a step             kSilu     silu after the sum
// kSeqIdx   tokens see only their own sequence number                kPacked   rows are packed sequences
// kStates   initial states, or gradients of states, are given or wanted
#include "causal_conv1d/conv_bwd.cuh"
#include "causal_conv1d/conv_channels.cuh"
#include "common/fastdiv.cuh"

struct CausalConv1dChannellastBwdParams {
    CausalConv1dBwdOperands operands;
    FastDiv block_vecs;   // channel vectors a block
    FastDiv dim_blocks;   // blocks across the channels
    FastDiv row_runs;     // runs a row
    unsigned block_runs;  // runs that a block walks at a time
    unsigned rounds;      // runs that a thread walks one after the other
    unsigned runs;        // in all
    int steps;            // steps a run
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, bool kSeqIdx,
          bool kPacked, bool kStates>
struct CausalConv1dChannellastBwdTraits {
    static constexpr int kThreads = 128;
    static constexpr Rows kRows = kRowsOf<kSeqIdx, kPacked>;
    static constexpr bool kIsLean = kWidth <= 4 && kRows == Rows::kOne && !kStates;
    // As many as registers allow without spilling: what one block computes, others load.
    static constexpr int kMinBlocks = kIsLean ? sizeof(input_t) == 4 ? 5 : 4 : 1;
    static constexpr int kHalo = kWidth - 1;
    // Of a column of sums in shared memory: neighbouring channels of a vector are in different banks.
    static constexpr int kPitch = kThreads + 32 / kVec;
    static_assert(kWidth >= 1 && kWidth <= 16 && kTokens >= kHalo);
};

// Adds up a block's sums, one thread a channel and parameter, and writes them.
template <typename Traits, int kWidth, typename weight_t, int kVec>
__device__ __forceinline__ void store_block_sums(const CausalConv1dBwdOperands& p,
                                                 const ParameterSums<kWidth> (&sums)[kVec], float scale,
                                                 unsigned block_vecs, unsigned block_runs, index_t first_channel,
                                                 unsigned part) {
    __shared__ float shared[kVec * (kWidth + 1)][Traits::kPitch];
#pragma unroll
    for (int j = 0; j <= kWidth; ++j) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) shared[j * kVec + c][threadIdx.x] = sums[c].at(j) * scale;
    }
    __syncthreads();
    const unsigned channels = block_vecs * kVec;
    for (unsigned i = threadIdx.x; i < channels * (kWidth + 1); i += Traits::kThreads) {
        const unsigned j = i / channels;
        const unsigned at = i - j * channels;
        if (first_channel + at >= p.dim) continue;
        const float* column = &shared[j * kVec + at % kVec][at / kVec];
        float sum = 0.0f;
        for (unsigned run = 0; run < block_runs; ++run) sum += column[run * block_vecs];
        store_block_sum<kWidth, weight_t>(p, part, first_channel + at, static_cast<int>(j), sum);
    }
}

// What a thread carries from step to step, and what it does in one.
template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, Rows kRows, bool kStates>
struct GradientWalk {
    static constexpr int kHalo = kWidth - 1;
    using Vector = Vec<input_t, kVec>;

    const CausalConv1dBwdOperands& p;
    index_t batch;
    index_t channel;
    int first;  // token of the run
    int count;  // of the run's tokens that exist
    const input_t* x_at;
    const input_t* dout_at;
    input_t* dx_at;  // width - 1 tokens behind the others
    Vector x[kHalo + kTokens];
    float gradients[kHalo + kTokens][kVec];
    int seq[kHalo + kTokens];

    __device__ __forceinline__ GradientWalk(const CausalConv1dBwdOperands& p_, index_t batch_, index_t channel_,
                                            int first_, int run_tokens)
        : p(p_), batch(batch_), channel(channel_), first(first_), count(min(run_tokens, p_.seqlen - first_)) {
        const int from = first - kHalo;
        x_at = at<const input_t>(p.x, p.x_stride, from);
        dout_at = static_cast<const input_t*>(p.dout) + batch * p.dout_stride[0] + channel * p.dout_stride[1] +
                  first * p.dout_stride[2];
        dx_at = at<input_t>(p.dx, p.dx_stride, from);
#pragma unroll
        for (int i = 0; i < kHalo; ++i, x_at += p.x_stride[2]) {
            x[i] = Vector::zero();
            if (from + i >= 0 && from + i < p.seqlen) {
                x[i] = load<kVec>(x_at);
            } else if (kRows != Rows::kPacked && from + i < 0 && p.initial_states != nullptr) {
#pragma unroll
                for (int c = 0; c < kVec; ++c) {
                    x[i].put(
                        c, Dtype<input_t>::from_float(load_initial<input_t>(p, batch, channel + c, from + i + kHalo)));
                }
            }
#pragma unroll
            for (int c = 0; c < kVec; ++c) gradients[i][c] = 0.0f;
        }
    }

    // The tokens from `token` on, of which the last width - 1 are the next run's in the last step.
    __device__ __forceinline__ void step(int token, bool is_last, const float (&taps)[kVec][kWidth],
                                         const float (&bias)[kVec], ParameterSums<kWidth> (&sums)[kVec]) {
        Vector dout[kTokens];
        load_tokens(token, dout);
        load_numbers<kRows>(p, batch, token - kHalo, seq);
        Vector results[kTokens];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            float dx[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                float window[kWidth];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) window[k] = x[i + k].to_float(c);
                keep_own_inputs<kRows, kWidth, input_t>(p, channel + c, token + i, seq + i, window);
                float g = token_gradient<kSilu, input_t>(taps[c], bias[c], window, dout[i].to_float(c));
                if (kRows != Rows::kOne) g = seq[i + kHalo] < 0 ? 0.0f : g;
                gradients[i + kHalo][c] = g;
                sums[c].add(i >= kTokens - kHalo && is_last ? 0.0f : g, window);
                float following[kWidth];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) following[k] = gradients[i + k][c];
                dx[c] = input_gradient<kRows>(taps[c], following, seq + i);
            }
            if constexpr (kStates && kHalo > 0) add_states(token + i - kHalo, seq[i], dx);
            results[i] = Vector::from_floats(dx);
        }
        // Behind the sums: a condition among them would keep the compiler from mixing tokens.
#pragma unroll
        for (int i = 0; i < kTokens; ++i, dx_at += p.dx_stride[2]) {
            if (is_own(token + i - kHalo)) store(dx_at, results[i]);
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            x[i] = x[kTokens + i];
#pragma unroll
            for (int c = 0; c < kVec; ++c) gradients[i][c] = gradients[kTokens + i][c];
        }
    }

 private:
    template <typename T, typename Pointer>
    __device__ __forceinline__ T* at(Pointer pointer, const index_t (&stride)[3], int token) const {
        return static_cast<T*>(pointer) + batch * stride[0] + channel * (kVec > 1 ? 1 : stride[1]) + token * stride[2];
    }

    __device__ __forceinline__ void load_tokens(int token, Vector (&dout)[kTokens]) {
        const index_t x_step = p.x_stride[2], dout_step = p.dout_stride[2];
        if (token + kTokens <= p.seqlen && p.dout_is_packed) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i, x_at += x_step, dout_at += dout_step) {
                x[kHalo + i] = load<kVec>(x_at);
                dout[i] = load<kVec>(dout_at);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kTokens; ++i, x_at += x_step, dout_at += dout_step) {
                x[kHalo + i] = dout[i] = Vector::zero();
                if (token + i < p.seqlen) {
                    x[kHalo + i] = load<kVec>(x_at);
                    dout[i] = load_dout<kVec>(dout_at, p.dout_stride[1], p.dout_is_packed != 0);
                }
            }
        }
    }

    __device__ __forceinline__ bool is_own(int token) const {
        return static_cast<unsigned>(token - first) < static_cast<unsigned>(count);
    }

    // Adds the final state's gradient, and writes the initial state's, which is that of a token before the row.
    __device__ __forceinline__ void add_states(int token, int number, float (&dx)[kVec]) const {
        const bool is_initial = kRows != Rows::kPacked && token < 0 && first == 0;
        if (p.dfinal_states != nullptr && (is_own(token) || is_initial)) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                dx[c] += final_gradient_of<kRows, kWidth, input_t>(p, batch, channel + c, token, number);
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

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, bool kSeqIdx,
          bool kPacked, bool kStates,
          typename Traits = CausalConv1dChannellastBwdTraits<kWidth, input_t, weight_t, kVec, kTokens, kSilu, kSeqIdx,
                                                             kPacked, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_channellast_bwd_kernel(const CausalConv1dChannellastBwdParams params) {
    using Walk = GradientWalk<kWidth, input_t, weight_t, kVec, kTokens, kSilu, Traits::kRows, kStates>;
    constexpr int kHalo = Traits::kHalo;
    const CausalConv1dBwdOperands p = with_states<kStates>(params.operands);

    const QuotientRemainder run_vec = divide(threadIdx.x, params.block_vecs);
    const QuotientRemainder part_dim = divide(blockIdx.x, params.dim_blocks);
    const index_t first_channel = static_cast<index_t>(part_dim.remainder) * params.block_vecs.divisor * kVec;
    const index_t channel = first_channel + run_vec.remainder * kVec;
    const bool is_idle = run_vec.quotient >= params.block_runs || channel >= p.dim;
    const unsigned first_run = part_dim.quotient * params.block_runs * params.rounds + run_vec.quotient;
    const int run_tokens = params.steps * kTokens - kHalo;

    const ChannelFilter<kWidth, weight_t, kVec> filter(p, is_idle ? 0 : channel);
    float bias[kVec];
    float taps[kVec][kWidth];
    filter.to_floats(taps, bias);
    ParameterSums<kWidth> sums[kVec];
#pragma unroll
    for (int c = 0; c < kVec; ++c) {
        if constexpr (kSilu) scale_for_silu<input_t>(taps[c], bias[c]);
        sums[c] = ParameterSums<kWidth>::zero();
    }
#pragma unroll 1
    for (unsigned i = 0, run = first_run; i < params.rounds; ++i, run += params.block_runs) {
        if (is_idle || run >= params.runs) break;
        const QuotientRemainder row_run = divide(run, params.row_runs);
        const int first = static_cast<int>(row_run.remainder) * run_tokens;
        Walk walk(p, row_run.quotient, channel, first, run_tokens);
#pragma unroll 1
        for (int n = 0, token = first; n < params.steps; ++n, token += kTokens) {
            if (token - kHalo >= p.seqlen && n > 0) break;
            walk.step(token, n == params.steps - 1, taps, bias, sums);
        }
    }
    store_block_sums<Traits, kWidth, weight_t>(p, sums, kSumScale<input_t, kSilu>, params.block_vecs.divisor,
                                               params.block_runs, first_channel, part_dim.quotient);
}
