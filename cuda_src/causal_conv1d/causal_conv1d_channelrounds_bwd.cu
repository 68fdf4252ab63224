// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for many tokens of many
// contiguous channels, in rows that are one sequence each and start from zeros. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dout, dx (batch, dim, seqlen), dim stride 1, rows of whole pieces that lie one behind the other, channels
// in aligned pairs of 8-byte vectors. A piece is kTokens consecutive tokens of a vector. A block goes through the
// tokens of its part in rounds: in each of them every thread has a piece, and all pieces of a block are one run of
// tokens. What a piece needs of the one before it comes through shared memory: inputs, and one round later the
// gradients with which a thread computes dx from width - 1 tokens before its piece on. After the last round of a part
// there is one more for the inputs at its end.
//
// Threads that each walk along tokens of their own, as in causal_conv1d_channelpairs_bwd, have fewer instructions, but
// read and write at as many places at a time as there are walks: B8 D4096 L2048 in bfloat16 takes 103.8 us on an H200
// so and 101.2 in rounds, of which 100.2 and 98.5 are left without any arithmetic, and B1 D8192 L8192 106.8 and 102.1.
// A kernel that only adds x and dout takes 93.5.
//
// kWidth    filter taps, 1 to 4      input_t   x, dout and dx            weight_t  weight, and bias unless float
// kSilu     silu after the sum
#include "causal_conv1d/conv_bwd_channels.cuh"

// The arguments are only those that such rows need: they arrive by cache lines, one miss after another.
struct CausalConv1dChannelroundsBwdParams {
    const void* x;
    const void* dout;
    void* dx;
    const void* weight;
    const void* bias;
    void* dweight;
    void* dbias;
    float* scratch;
    FastDiv block_vecs;     // channel vectors a block
    FastDiv dim_blocks;     // blocks across the channels
    FastDiv row_pieces;     // pieces a row
    unsigned round_pieces;  // pieces of a vector in a round of a block
    unsigned rounds;        // rounds a part
    unsigned pieces;        // pieces of a vector in all rows
    int dim;
    // Bytes of x, dout and dx: of a token, of a round, and from an access of a thread to the next in a round.
    index_t token_bytes[3];
    index_t round_bytes[3];
    index_t access_bytes[3];
    index_t weight_stride[2];
    index_t bias_stride;
    index_t dweight_stride[2];
    index_t dbias_stride;
    int bias_is_float32;
    int dweight_is_float32;
    int dbias_is_float32;
    int taps_are_packed;
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu>
struct CausalConv1dChannelroundsBwdTraits {
    static constexpr int kThreads = 128;
    // B8 D4096 L2048 in bfloat16 takes 102.6 us on an H200 with three blocks on a multiprocessor, 107.7 with four and
    // 112.0 with two.
    static constexpr int kMinBlocks = 3;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kVec = 8 / static_cast<int>(sizeof(input_t));
    // With pieces of 4 tokens and five blocks it takes 107.1.
    static constexpr int kTokens = 8;
    static constexpr int kMostVecs = 32;  // channel vectors a block
    static constexpr int kStages = 2;
    // Vectors of x, then of dout.
    static constexpr int kStageSlots = 2 * kTokens * kThreads;
    // The last gradients of the pieces of two rounds, and of the piece before them.
    static constexpr int kRingSlots = 2 * kThreads + kMostVecs;
    // The last inputs of a round, and of the next one.
    static constexpr int kInputSlots = 2 * kMostVecs;
    static constexpr int kVecBytes = static_cast<int>(sizeof(Vec<input_t, kVec>));
    static constexpr int kSlotBytes = (kStages * kStageSlots + kHalo * kInputSlots) * kVecBytes;
    static constexpr int kRingBytes = kHalo * kRingSlots * static_cast<int>(sizeof(ChannelSums<kVec>));
    static constexpr int kSumBytes = (kWidth + 1) * kThreads * static_cast<int>(sizeof(ChannelSums<kVec>));
    static constexpr int kWalkBytes = kSlotBytes + kRingBytes;
    static constexpr int kSharedBytes = kSumBytes > kWalkBytes ? kSumBytes : kWalkBytes;
    static_assert(kWidth >= 1 && kTokens > kHalo);
};

// Brings the pieces of a block's rounds, in the order in which memory has them: an access has 16 bytes.
template <int kTokens, int kThreads, int kVecBytes>
struct RoundFetch {
    using Words = Vec<float, 4>;
    static constexpr int kAccesses = kTokens * kVecBytes / 16;
    static constexpr int kAccessBytes = kThreads / kAccesses * kVecBytes;  // in shared memory, from one to the next

    const CausalConv1dChannelroundsBwdParams& params;
    const char* x_at;
    const char* dout_at;
    char* to;
    unsigned piece;
    unsigned end;  // behind the last piece

    // `slots`: of x, then of dout, kThreads vectors for the first tokens of all pieces, and so on.
    __device__ __forceinline__ RoundFetch(const CausalConv1dChannelroundsBwdParams& params_, char* slots,
                                          unsigned first_piece, unsigned end_, index_t channel_bytes)
        : params(params_), end(end_) {
        const QuotientRemainder token_vec = divide(2 * threadIdx.x, params.block_vecs);
        const unsigned token = token_vec.quotient, vec = token_vec.remainder;
        const index_t at = static_cast<index_t>(first_piece) * kTokens + token;
        const index_t bytes = channel_bytes + vec * kVecBytes;
        x_at = static_cast<const char*>(params.x) + bytes + at * params.token_bytes[0];
        dout_at = static_cast<const char*>(params.dout) + bytes + at * params.token_bytes[1];
        to = slots + (token % kTokens * kThreads + token / kTokens * params.block_vecs.divisor + vec) * kVecBytes;
        piece = first_piece + token / kTokens;
    }

    __device__ __forceinline__ void fetch(unsigned stage) {
        const unsigned apart = params.round_pieces / kAccesses;
        char* const at = to + stage * 2 * kTokens * kThreads * kVecBytes;
#pragma unroll
        for (int i = 0; i < kAccesses; ++i) {
            if (piece + i * apart >= end) continue;
            copy_vector_async<true>(reinterpret_cast<Words*>(at + i * kAccessBytes),
                                    reinterpret_cast<const float*>(x_at + i * params.access_bytes[0]));
            copy_vector_async<true>(reinterpret_cast<Words*>(at + i * kAccessBytes + kTokens * kThreads * kVecBytes),
                                    reinterpret_cast<const float*>(dout_at + i * params.access_bytes[1]));
        }
        x_at += params.round_bytes[0];
        dout_at += params.round_bytes[1];
        piece += params.round_pieces;
    }
};

// The filter of a thread's channels, its sums, and the gradients of a piece behind those of the width - 1 tokens before
// it.
template <int kWidth, typename input_t, int kVec, int kTokens, bool kSilu>
struct PieceGradients {
    static constexpr int kHalo = kWidth - 1;
    using Vector = Vec<input_t, kVec>;

    float taps[kVec][kWidth];
    float bias[kVec];
    float gradients[kHalo + kTokens][kVec];
    ParameterSums<kWidth> sums[kVec];

    template <typename weight_t>
    __device__ __forceinline__ explicit PieceGradients(const ChannelFilter<kWidth, weight_t, kVec>& filter) {
        filter.to_floats(taps, bias);
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            if constexpr (kSilu) scale_for_silu<input_t>(taps[c], bias[c]);
            sums[c] = ParameterSums<kWidth>::zero();
        }
    }

    // Those of a piece, from its inputs and gradients, kThreads apart, and the inputs before it. `counts`: whether they
    // are part of the sums.
    template <int kThreads>
    __device__ __forceinline__ void add(const Vector (&before)[kWidth], const Vector* slots, bool counts) {
        float x[kHalo + kTokens][kVec];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) set(x[i], before[i]);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            set(x[kHalo + i], slots[i * kThreads]);
            const Vector dout = slots[(kTokens + i) * kThreads];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                float window[kWidth];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) window[k] = x[i + k][c];
                const float g = token_gradient<kSilu, input_t>(taps[c], bias[c], window, dout.to_float(c));
                gradients[kHalo + i][c] = g;
                if (counts) sums[c].add(g, window);
            }
        }
    }

    // Those of the inputs of the token width - 1 before token i of the piece. kEnds: of a row that ends before the
    // piece.
    template <bool kEnds>
    __device__ __forceinline__ Vector of_input(int i) const {
        float dx[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            float following[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) following[k] = kEnds && i + k >= kHalo ? 0.0f : gradients[i + k][c];
            dx[c] = input_gradient<Rows::kOne>(taps[c], following, nullptr);
        }
        return Vector::from_floats(dx);
    }

 private:
    __device__ __forceinline__ static void set(float (&to)[kVec], const Vector& v) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) to[c] = v.to_float(c);
    }
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu,
          typename Traits = CausalConv1dChannelroundsBwdTraits<kWidth, input_t, weight_t, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_channelrounds_bwd_kernel(const CausalConv1dChannelroundsBwdParams params) {
    constexpr int kThreads = Traits::kThreads, kTokens = Traits::kTokens, kMostVecs = Traits::kMostVecs;
    constexpr int kHalo = Traits::kHalo, kVec = Traits::kVec;
    using Vector = Vec<input_t, kVec>;
    const CausalConv1dBwdOperands p = parameters_of(params);
    __shared__ BlockMemory<Traits::kSharedBytes> memory;

    const QuotientRemainder walk_vec = divide(threadIdx.x, params.block_vecs);
    const QuotientRemainder part_dim = divide(blockIdx.x, params.dim_blocks);
    const unsigned vecs = params.block_vecs.divisor, round_pieces = params.round_pieces;
    const unsigned number = walk_vec.quotient, vec = walk_vec.remainder;  // of the thread's piece in a round
    const index_t first_channel = static_cast<index_t>(part_dim.remainder) * vecs * kVec;
    const index_t channel = first_channel + vec * kVec;
    const index_t channel_bytes = channel * static_cast<index_t>(sizeof(input_t));
    const unsigned first = part_dim.quotient * params.rounds * round_pieces;
    const unsigned end = min(first + params.rounds * round_pieces, params.pieces);
    // The piece behind a part, if there is one, is the next part's: here are its inputs' gradients before it.
    const unsigned read_end = min(end + 1, params.pieces);

    Vector* const slots = reinterpret_cast<Vector*>(memory.bytes);
    Vector* const last_inputs = slots + Traits::kStages * Traits::kStageSlots + vec;
    ChannelSums<kVec>* const ring = reinterpret_cast<ChannelSums<kVec>*>(memory.bytes + Traits::kSlotBytes) + vec;
    RoundFetch<kTokens, kThreads, Traits::kVecBytes> fetch(params, reinterpret_cast<char*>(memory.bytes), first,
                                                           read_end,
                                                           first_channel * static_cast<index_t>(sizeof(input_t)));
    fetch.fetch(0);
    if (number == 0) {
        const char* const before = static_cast<const char*>(params.x) + channel_bytes +
                                   (static_cast<index_t>(first) * kTokens - kHalo) * params.token_bytes[0];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            last_inputs[i * kMostVecs] =
                first > 0 ? load<kVec>(reinterpret_cast<const input_t*>(before + i * params.token_bytes[0]))
                          : Vector::zero();
        }
    }
    const ChannelFilter<kWidth, weight_t, kVec> filter(p, channel);
    PieceGradients<kWidth, input_t, kVec, kTokens, kSilu> own(filter);
    char* dx_at = static_cast<char*>(params.dx) + channel_bytes +
                  (static_cast<index_t>(first + number) * kTokens - kHalo) * params.token_bytes[2];
    const auto put = [&](int i, const Vector& v) {
        store(reinterpret_cast<input_t*>(dx_at + i * params.token_bytes[2]), v);
    };
    unsigned piece = first + number;
    unsigned place = number;  // in the ring
    bool begins_row = false;
    // In a round first what the last one has left is finished, in the last round nothing else.
#pragma unroll 1
    for (unsigned round = 0;; ++round) {
        wait_for_copies();
        __syncthreads();
        if (round <= params.rounds) fetch.fetch((round + 1) % 2);
        if (round > 0) {
            const unsigned done = piece - round_pieces;
            if (done <= end) {
                const unsigned before = place == 0 ? 2 * round_pieces : place - 1;
#pragma unroll
                for (int i = 0; i < kHalo; ++i) {
                    const ChannelSums<kVec> of_before = ring[i * Traits::kRingSlots + before * vecs];
#pragma unroll
                    for (int c = 0; c < kVec; ++c) own.gradients[i][c] = of_before.to_float(c);
                }
                if (done > first && (begins_row || done == params.pieces)) {
#pragma unroll
                    for (int i = 0; i < kHalo; ++i) put(i, own.template of_input<true>(i));
                } else if (done > first) {
#pragma unroll
                    for (int i = 0; i < kHalo; ++i) put(i, own.template of_input<false>(i));
                }
                if (done < end) {
#pragma unroll
                    for (int i = kHalo; i < kTokens; ++i) put(i, own.template of_input<false>(i));
                }
            }
            dx_at += params.round_bytes[2];
            place += round_pieces;
            if (place > 2 * round_pieces) place -= 2 * round_pieces + 1;
        }
        if (round > params.rounds) break;
        begins_row = divide(piece, params.row_pieces).remainder == 0;
        if (piece < read_end) {
            const Vector* const of_piece = slots + round % 2 * Traits::kStageSlots + threadIdx.x;
            const Vector* const of_before = number > 0 ? of_piece + (kTokens - kHalo) * kThreads - vecs
                                                       : last_inputs + round % 2 * kHalo * kMostVecs;
            const unsigned apart = number > 0 ? kThreads : kMostVecs;
            Vector before[kWidth];
#pragma unroll
            for (int i = 0; i < kHalo; ++i) before[i] = begins_row ? Vector::zero() : of_before[i * apart];
            own.template add<kThreads>(before, of_piece, piece < end);
#pragma unroll
            for (int i = 0; i < kHalo; ++i) {
                ring[i * Traits::kRingSlots + place * vecs] =
                    ChannelSums<kVec>::from_floats(own.gradients[kTokens + i]);
                if (number + 1 == round_pieces) {
                    last_inputs[((round + 1) % 2 * kHalo + i) * kMostVecs] = of_piece[(kTokens - kHalo + i) * kThreads];
                }
            }
        }
        piece += round_pieces;
    }
    store_block_sums<Traits, kWidth, weight_t>(p, own.sums, kSumScale<input_t, kSilu>, params.block_vecs, round_pieces,
                                               first_channel, part_dim.quotient,
                                               reinterpret_cast<ChannelSums<kVec>(*)[kThreads]>(memory.bytes));
}
