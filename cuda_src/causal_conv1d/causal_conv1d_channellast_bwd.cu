// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for tokens whose
// channels are contiguous. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dx (batch, dim, seqlen), dim stride 1; any strides when kVec is 1. dout the same, or any strides element
// by element. A thread owns kVec channels and walks along runs of consecutive tokens, kTokens a step. It copies the
// steps ahead asynchronously into a ring in shared memory, from where no other thread reads them. It carries the last
// width - 1 inputs and gradients from step to step, so that a token's gradient is computed once. At step t it knows dx[t - (width - 1)]; to finish a run's last ones it
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
    static constexpr int kMinBlocks = kIsLean ? 4 : 1;
    static constexpr int kStages = kTokens <= 4 ? 4 : 2;  // steps in the ring: the one in use and those on the way
    static constexpr int kHalo = kWidth - 1;
    // Of a column of sums in shared memory: neighbouring channels of a vector are in different banks.
    static constexpr int kPitch = kThreads + 32 / kVec;
    static_assert(kWidth >= 1 && kWidth <= 16 && kTokens >= kHalo);
};

// A block's ring, and behind the last step its sums.
template <typename Traits, typename Vector, int kTokens, int kSums>
union BlockShared {
    static constexpr int kThreads = Traits::kThreads;
    struct {
        Vector x[Traits::kStages][kTokens][Traits::kThreads];
        Vector dout[Traits::kStages][kTokens][Traits::kThreads];
    } ring;
    float sums[kSums][Traits::kPitch];
};

// Adds up a block's sums, one thread a channel and parameter, and writes them.
template <typename Traits, int kWidth, typename weight_t, int kVec>
__device__ __forceinline__ void store_block_sums(const CausalConv1dBwdOperands& p,
                                                 const ParameterSums<kWidth> (&sums)[kVec], float scale,
                                                 unsigned block_vecs, unsigned block_runs, index_t first_channel,
                                                 unsigned part, float (&shared)[kVec * (kWidth + 1)][Traits::kPitch]) {
    __syncthreads();
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
template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, Rows kRows, bool kStates,
          typename Shared, int kStages>
struct GradientWalk {
    static constexpr int kHalo = kWidth - 1;
    using Vector = Vec<input_t, kVec>;

    const CausalConv1dBwdOperands& p;
    Shared& shared;
    index_t batch;
    index_t channel;
    int first;  // token of the run
    int count;  // of the run's tokens that exist
    int steps;  // that it takes
    const input_t* x_at;
    const input_t* dout_at;
    input_t* dx_at;  // width - 1 tokens behind the others
    Vector x[kHalo + kTokens];
    float gradients[kHalo + kTokens][kVec];
    int seq[kHalo + kTokens];

    __device__ __forceinline__ GradientWalk(const CausalConv1dBwdOperands& p_, Shared& shared_, index_t batch_,
                                            index_t channel_, int first_, int run_tokens)
        : p(p_), shared(shared_), batch(batch_), channel(channel_), first(first_),
          count(min(run_tokens, p_.seqlen - first_)), steps((count + kHalo + kTokens - 1) / kTokens) {
        const int from = first - kHalo;
        x_at = at<const input_t>(p.x, p.x_stride, first);
        dout_at = static_cast<const input_t*>(p.dout) + batch * p.dout_stride[0] + channel * p.dout_stride[1] +
                  first * p.dout_stride[2];
        dx_at = at<input_t>(p.dx, p.dx_stride, from);
        const input_t* before = x_at - kHalo * p.x_stride[2];
#pragma unroll
        for (int i = 0; i < kStages - 1; ++i) fetch_step(i, i);
#pragma unroll
        for (int i = 0; i < kHalo; ++i, before += p.x_stride[2]) {
            x[i] = Vector::zero();
            if (from + i >= 0 && from + i < p.seqlen) {
                x[i] = load<kVec>(before);
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

    // Walks the run: its last step has the first width - 1 tokens of the next run.
    __device__ __forceinline__ void walk(const float (&taps)[kVec][kWidth], const float (&bias)[kVec],
                                         ParameterSums<kWidth> (&sums)[kVec]) {
        int stage = 0;
#pragma unroll 1
        for (int n = 0; n < steps - 1; ++n) {
            step<false>(n, stage, taps, bias, sums);
            stage = stage + 1 < kStages ? stage + 1 : 0;
        }
        step<true>(steps - 1, stage, taps, bias, sums);
    }

 private:
    template <typename T, typename Pointer>
    __device__ __forceinline__ T* at(Pointer pointer, const index_t (&stride)[3], int token) const {
        return static_cast<T*>(pointer) + batch * stride[0] + channel * (kVec > 1 ? 1 : stride[1]) + token * stride[2];
    }

    // Starts to copy the tokens of a step into a stage of the ring; there are zeros behind a row's end.
    __device__ __forceinline__ void fetch_step(int n, int stage) {
        const index_t x_step = p.x_stride[2], dout_step = p.dout_stride[2];
        const int token = first + n * kTokens;
        if (n < steps) {
            if (token + kTokens <= p.seqlen && p.dout_is_packed) {
#pragma unroll
                for (int i = 0; i < kTokens; ++i) {
                    fetch<kVec>(in_ring(shared.ring.x, stage, i), x_at + i * x_step);
                    fetch<kVec>(in_ring(shared.ring.dout, stage, i), dout_at + i * dout_step);
                }
            } else {
#pragma unroll
                for (int i = 0; i < kTokens; ++i) {
                    Vector one = Vector::zero(), other = Vector::zero();
                    if (token + i < p.seqlen) {
                        one = load<kVec>(x_at + i * x_step);
                        other = load_dout<kVec>(dout_at + i * dout_step, p.dout_stride[1], p.dout_is_packed != 0);
                    }
                    store(in_ring(shared.ring.x, stage, i), one);
                    store(in_ring(shared.ring.dout, stage, i), other);
                }
            }
            x_at += kTokens * x_step;
            dout_at += kTokens * dout_step;
        }
        commit_copies();
    }

    __device__ __forceinline__ static input_t* in_ring(Vector (&ring)[kStages][kTokens][Shared::kThreads], int stage,
                                                       int i) {
        return reinterpret_cast<input_t*>(&ring[stage][i][threadIdx.x]);
    }

    template <bool kIsLast>
    __device__ __forceinline__ void step(int n, int stage, const float (&taps)[kVec][kWidth], const float (&bias)[kVec],
                                         ParameterSums<kWidth> (&sums)[kVec]) {
        const int token = first + n * kTokens;
        wait_for_copies_but<kStages - 2>();
        Vector dout[kTokens];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            x[kHalo + i] = load<kVec, Memory::kMutable>(in_ring(shared.ring.x, stage, i));
            dout[i] = load<kVec, Memory::kMutable>(in_ring(shared.ring.dout, stage, i));
        }
        if (!kIsLast) fetch_step(n + kStages - 1, stage > 0 ? stage - 1 : kStages - 1);
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
                if (i < kTokens - kHalo || !kIsLast) sums[c].add(g, window);
                float following[kWidth];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) following[k] = gradients[i + k][c];
                dx[c] = input_gradient<kRows>(taps[c], following, seq + i);
            }
            if constexpr (kStates && kHalo > 0) add_states(token + i - kHalo, seq[i], dx);
            results[i] = Vector::from_floats(dx);
        }
        const index_t dx_step = p.dx_stride[2];
        if (!kIsLast && n > 0) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i) store(dx_at + i * dx_step, results[i]);
        } else {
#pragma unroll
            for (int i = 0; i < kTokens; ++i) {
                if (is_own(token + i - kHalo)) store(dx_at + i * dx_step, results[i]);
            }
        }
        dx_at += kTokens * dx_step;
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            x[i] = x[kTokens + i];
#pragma unroll
            for (int c = 0; c < kVec; ++c) gradients[i][c] = gradients[kTokens + i][c];
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
    using Shared = BlockShared<Traits, Vec<input_t, kVec>, kTokens, kVec * (kWidth + 1)>;
    using Walk = GradientWalk<kWidth, input_t, weight_t, kVec, kTokens, kSilu, Traits::kRows, kStates, Shared,
                              Traits::kStages>;
    __shared__ Shared shared;
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
        Walk(p, shared, row_run.quotient, channel, first, run_tokens).walk(taps, bias, sums);
    }
    store_block_sums<Traits, kWidth, weight_t>(p, sums, kSumScale<input_t, kSilu>, params.block_vecs.divisor,
                                               params.block_runs, first_channel, part_dim.quotient, shared.sums);
}
