// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for contiguous channels
// that fill the multiprocessors with one block each, in rows that are one sequence each and start from zeros. With g[t]
// = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dout, dx (batch, dim, seqlen), dim stride 1, rows that lie one behind the other, tokens aligned to 16
// bytes. A block has all tokens of a column: up to 16 words of 4 bytes of each token. So it has the whole sums of its
// channels, and no second launch adds them up. A lane walks along consecutive tokens of a word; a row is a whole number
// of walks. A warp brings pieces of kPieceTokens tokens of all of its walks, 16 bytes an access, while it walks the
// piece before.
//
// B1 D4096 L2048 in bfloat16 takes 15.8 us on an H200 so and 16.9 in causal_conv1d_channelpairs_bwd. With loads to
// registers instead of shared memory a prototype took 17.8.
//
// kWidth    filter taps, 1 to 4      input_t   x, dout and dx            weight_t  weight, and bias unless float
// kSilu     silu after the sum
#include "causal_conv1d/conv_bwd_channels.cuh"
#include "common/warp.cuh"

// The arguments are only those that such rows need: they arrive by cache lines, one miss after another.
struct CausalConv1dChannelcolumnsBwdParams {
    const void* x;
    const void* dout;
    void* dx;
    const void* weight;
    const void* bias;
    void* dweight;
    void* dbias;
    FastDiv column_words;     // words of a token that a block has
    FastDiv row_walks;        // walks a row
    unsigned walk_pieces;     // pieces a walk, a multiple of kStages
    unsigned token_bytes[3];  // from a token to the next, of x, dout and dx
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
struct CausalConv1dChannelcolumnsBwdTraits {
    static constexpr int kThreads = 512;
    static constexpr int kMinBlocks = 1;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kVec = 4 / static_cast<int>(sizeof(input_t));
    static constexpr int kPieceTokens = 4;
    static constexpr int kMostWords = 16;  // words of a token that a block has
    // Pieces in shared memory or on their way there, one of them being walked. Prototypes with 8
    // words a block took 10.7 us on an H200 with four for B1 D2048 L2048 in bfloat16, 10.9 with three and 12.1 with
    // six: what is needed later delays what is needed first.
    static constexpr int kStages = 4;
    // A token of all walks of a warp.
    static constexpr int kTokenBytes = 4 * kWarpSize;
    // Of x, then of dout.
    static constexpr int kStageBytes = 2 * kPieceTokens * kTokenBytes;
    static constexpr int kWarpBytes = kStages * kStageBytes;
    // Dynamic shared memory of a block: kWarps * kWarpBytes.
    static constexpr int kDynamicBytes = 65536;
    static_assert(kWidth >= 1 && kPieceTokens > kHalo && kDynamicBytes == kWarps * kWarpBytes);
};

// Brings pieces of all walks of a warp: a lane 16 bytes of one token of x and of dout.
template <typename Traits>
struct ColumnFetch {
    using Words = Vec<float, 4>;

    const char* x_at;
    const char* dout_at;
    size_t x_bytes;  // from a piece to the next
    size_t dout_bytes;
    unsigned char* to;
    unsigned left;  // pieces

    __device__ __forceinline__ void fetch(int stage) {
        if (left > 0) {
            --left;
            unsigned char* const at = to + stage * Traits::kStageBytes;
            copy_vector_async<true>(reinterpret_cast<Words*>(at), reinterpret_cast<const float*>(x_at));
            copy_vector_async<true>(reinterpret_cast<Words*>(at + Traits::kPieceTokens * Traits::kTokenBytes),
                                    reinterpret_cast<const float*>(dout_at));
            x_at += x_bytes;
            dout_at += dout_bytes;
        }
        end_copy_group();
    }
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu,
          typename Traits = CausalConv1dChannelcolumnsBwdTraits<kWidth, input_t, weight_t, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_channelcolumns_bwd_kernel(const CausalConv1dChannelcolumnsBwdParams params) {
    constexpr int kHalo = Traits::kHalo, kVec = Traits::kVec, kPieceTokens = Traits::kPieceTokens;
    constexpr int kStages = Traits::kStages, kTokenBytes = Traits::kTokenBytes, kThreads = Traits::kThreads;
    constexpr int kColumnChannels = Traits::kMostWords * kVec;
    using Vector = Vec<input_t, kVec>;
    extern __shared__ __align__(16) unsigned char slots[];
    // The first gradients of every thread's walk.
    __shared__ float firsts[(kHalo > 0 ? kHalo : 1) * kVec][kThreads];
    // Sums of a warp: of every channel, parameter by parameter.
    __shared__ float warp_sums[Traits::kWarps][(kWidth + 1) * kColumnChannels];

    const unsigned words = params.column_words.divisor;
    const QuotientRemainder walk_word = divide(threadIdx.x, params.column_words);
    const unsigned walk = walk_word.quotient, word = walk_word.remainder;
    const unsigned row_walk = divide(walk, params.row_walks).remainder;
    const bool starts_row = row_walk == 0, ends_row = row_walk + 1 == params.row_walks.divisor;
    const unsigned first = walk * params.walk_pieces * kPieceTokens;
    const size_t column_bytes = static_cast<size_t>(blockIdx.x) * words * 4;
    const index_t channel = (static_cast<index_t>(blockIdx.x) * words + word) * kVec;
    // Tokens further, and before.
    const auto further = [](size_t token_bytes, unsigned tokens) { return token_bytes * tokens; };

    const unsigned warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    unsigned char* const own = slots + warp * Traits::kWarpBytes;
    // A quarter of a walk's lanes bring each of the piece's tokens.
    const unsigned token = word / (words / 4), part = word % (words / 4) * 16;
    ColumnFetch<Traits> fetch{
        static_cast<const char*>(params.x) + further(params.token_bytes[0], first + token) + column_bytes + part,
        static_cast<const char*>(params.dout) + further(params.token_bytes[1], first + token) + column_bytes + part,
        further(params.token_bytes[0], kPieceTokens),
        further(params.token_bytes[1], kPieceTokens),
        own + token * kTokenBytes + (lane - word) * 4 + part,
        params.walk_pieces};
    fetch.fetch(0);
    const char* const x = static_cast<const char*>(params.x) + further(params.token_bytes[0], first) + column_bytes;
    Vector before[kWidth];
#pragma unroll
    for (int i = 0; i < kHalo; ++i) {
        const char* const at = x + word * 4 - further(params.token_bytes[0], kHalo - i);
        before[i] = starts_row ? Vector::zero() : load<kVec>(reinterpret_cast<const input_t*>(at));
    }
#pragma unroll
    for (int i = 1; i < kStages - 1; ++i) fetch.fetch(i);
    const ChannelFilter<kWidth, weight_t, kVec> filter(params, channel);
    float taps[kVec][kWidth];
    float bias[kVec];
    filter.to_floats(taps, bias);
    ParameterSums<kWidth> sums[kVec];
#pragma unroll
    for (int c = 0; c < kVec; ++c) {
        if constexpr (kSilu) scale_for_silu<input_t>(taps[c], bias[c]);
        sums[c] = ParameterSums<kWidth>::zero();
    }
    // Inputs and gradients of a piece, behind those of the width - 1 tokens before it.
    float inputs[kHalo + kPieceTokens][kVec];
    float gradients[kHalo + kPieceTokens][kVec];
#pragma unroll
    for (int i = 0; i < kHalo; ++i) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            inputs[i][c] = before[i].to_float(c);
            gradients[i][c] = 0.0f;
        }
    }
    const size_t dx_bytes = params.token_bytes[2];
    char* dx_at = static_cast<char*>(params.dx) + further(dx_bytes, first) + column_bytes + word * 4;
    // Writes the gradient of the input width - 1 tokens before token i of the piece.
    const auto put = [&](int i) {
        float dx[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            float following[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) following[k] = gradients[i + k][c];
            dx[c] = input_gradient<Rows::kOne>(taps[c], following, nullptr);
        }
        char* const at = i < kHalo ? dx_at - further(dx_bytes, kHalo - i) : dx_at + further(dx_bytes, i - kHalo);
        store(reinterpret_cast<input_t*>(at), Vector::from_floats(dx));
    };
    bool begins = true;
#pragma unroll 1
    for (unsigned piece = 0; piece < params.walk_pieces; piece += kStages) {
#pragma unroll
        for (int stage = 0; stage < kStages; ++stage) {
            wait_for_copy_groups<kStages - 2>();
            sync_warp();
            // The free stage is the one that was walked last.
            fetch.fetch((stage + kStages - 1) % kStages);
            const unsigned char* const piece_slots = own + stage * Traits::kStageBytes + lane * 4;
#pragma unroll
            for (int i = 0; i < kPieceTokens; ++i) {
                const auto at = [&](int number) {
                    return *reinterpret_cast<const Vector*>(piece_slots + number * kTokenBytes);
                };
                const Vector input = at(i), dout = at(kPieceTokens + i);
#pragma unroll
                for (int c = 0; c < kVec; ++c) {
                    inputs[kHalo + i][c] = input.to_float(c);
                    float window[kWidth];
#pragma unroll
                    for (int k = 0; k < kWidth; ++k) window[k] = inputs[i + k][c];
                    const float g = token_gradient<kSilu, input_t>(taps[c], bias[c], window, dout.to_float(c));
                    gradients[kHalo + i][c] = g;
                    sums[c].add(g, window);
                }
            }
            if (stage == 0 && begins) {
#pragma unroll
                for (int i = 0; i < kHalo; ++i) {
#pragma unroll
                    for (int c = 0; c < kVec; ++c) firsts[i * kVec + c][threadIdx.x] = gradients[kHalo + i][c];
                }
            } else {
#pragma unroll
                for (int i = 0; i < kHalo; ++i) put(i);
            }
#pragma unroll
            for (int i = kHalo; i < kPieceTokens; ++i) put(i);
            dx_at += further(dx_bytes, kPieceTokens);
#pragma unroll
            for (int i = 0; i < kHalo; ++i) {
#pragma unroll
                for (int c = 0; c < kVec; ++c) {
                    inputs[i][c] = inputs[kPieceTokens + i][c];
                    gradients[i][c] = gradients[kPieceTokens + i][c];
                }
            }
        }
        begins = false;
    }
#pragma unroll
    for (int j = 0; j <= kWidth; ++j) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            const float sum = sum_over_lanes_apart(sums[c].at(j) * kSumScale<input_t, kSilu>, static_cast<int>(words));
            if (lane < words) warp_sums[warp][j * kColumnChannels + word * kVec + c] = sum;
        }
    }
    // The first gradients of all walks are there, too.
    __syncthreads();
    for (unsigned i = threadIdx.x; i < (kWidth + 1) * kColumnChannels; i += kThreads) {
        const unsigned number = i % kColumnChannels;
        if (number >= words * kVec) continue;
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < Traits::kWarps; ++k) sum += warp_sums[k][i];
        store_parameter_gradient<kWidth, weight_t>(params, static_cast<index_t>(blockIdx.x) * words * kVec + number,
                                                   static_cast<int>(i / kColumnChannels), sum);
    }
#pragma unroll
    for (int i = 0; i < kHalo; ++i) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            gradients[kHalo + i][c] = ends_row ? 0.0f : firsts[i * kVec + c][threadIdx.x + words];
        }
    }
#pragma unroll
    for (int i = 0; i < kHalo; ++i) put(i);
}
