// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for tokens whose
// channels are contiguous, in aligned pairs of 8-byte vectors, and rows of whole steps, each of them one sequence that
// starts from zeros. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dout, dx (batch, dim, seqlen), dim stride 1. Threads walk as in causal_conv1d_channellast_bwd, which takes
// all other calls: here nothing is looked at for every token but the token itself, and two neighbouring threads bring
// the tokens of both, so that an access has 16 bytes. A step is two pieces; while one is walked the next one is on its
// way. All threads of a warp make the same number of steps. No atomics.
//
// kWidth    filter taps, 1 to 4      input_t   x, dout and dx            weight_t  weight, and bias unless float
// kBlock    threads a block          kSilu     silu after the sum
#include "causal_conv1d/conv_bwd_channels.cuh"
#include "common/warp.cuh"

// The arguments are only those that such rows need: they arrive by cache lines, one miss after another.
struct CausalConv1dChannelpairsBwdParams {
    const void* x;
    const void* dout;
    void* dx;
    const void* weight;
    const void* bias;
    void* dweight;
    void* dbias;
    float* scratch;
    FastDiv block_vecs;    // channel vectors a block
    FastDiv dim_blocks;    // blocks across the channels
    FastDiv row_steps;     // steps a row
    unsigned block_walks;  // walks that a block makes side by side
    unsigned walk_steps;   // steps a walk, 2 or more
    unsigned steps;        // in all rows
    int walks_are_parts;   // each walk leaves its sums, or each block
    int dim;
    // Bytes: from a row to the next, of a token, of two, and from behind a row's last token to the next row.
    index_t x_bytes[4];
    index_t dout_bytes[4];
    index_t dx_bytes[4];
    index_t weight_stride[2];
    index_t bias_stride;
    index_t dweight_stride[2];
    index_t dbias_stride;
    int bias_is_float32;
    int dweight_is_float32;
    int dbias_is_float32;
    int taps_are_packed;
};

template <int kWidth, typename input_t, typename weight_t, int kBlock, bool kSilu>
struct CausalConv1dChannelpairsBwdTraits {
    static constexpr int kThreads = kBlock;
    static constexpr int kMinBlocks = 2;
    // Pieces in shared memory or on their way there, one of them being walked. Four in small blocks are better only for
    // short walks: half as many threads begin and end them, and there is room for the launch that adds up the sums.
    // Prototypes took 11.0 us on an H200 with them for B1 D2048 L2048 in bfloat16 and 11.6 with two in large blocks,
    // but 111 and 103 for B8 D4096 L2048.
    static constexpr int kStages = kThreads > 128 ? 2 : 4;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kVec = 8 / static_cast<int>(sizeof(input_t));
    static constexpr int kPieceTokens = 4;
    static constexpr int kPieces = 2;
    static constexpr int kTokens = kPieces * kPieceTokens;
    // Vectors of x, then of dout.
    static constexpr int kPieceSlots = 2 * kPieceTokens * kThreads;
    static constexpr int kPieceBytes = kPieceSlots * static_cast<int>(sizeof(Vec<input_t, kVec>));
    static constexpr int kSumBytes = (kWidth + 1) * kThreads * static_cast<int>(sizeof(ChannelSums<kVec>));
    // The gradients of the first width - 1 tokens of every thread's walk, and of the walks behind the last ones.
    static constexpr int kFirsts = kThreads + kWarpSize;
    static constexpr int kFirstBytes = kHalo * kVec * kFirsts * static_cast<int>(sizeof(float));
    static constexpr int kWalkBytes = kStages * kPieceBytes + kFirstBytes;
    static constexpr int kSharedBytes = kSumBytes > kWalkBytes ? kSumBytes : kWalkBytes;
    static_assert(kWidth >= 1 && kPieceTokens >= kHalo);
};

// Brings pieces for a thread and its neighbour: every second token of both, an access of 16 bytes each.
template <int kPieceTokens, int kThreads>
struct PairFetch {
    using Words = Vec<float, 4>;
    static constexpr int kTokenBytes = 8 * kThreads;  // in shared memory

    const CausalConv1dChannelpairsBwdParams& params;
    const char* x_at;
    const char* dout_at;
    char* to;
    int left;      // pieces
    int row_left;  // of the row

    __device__ __forceinline__ void fetch(int stage) {
        if (left <= 0) return;
        --left;
        char* const piece = to + stage * 2 * kPieceTokens * kTokenBytes;
#pragma unroll
        for (int i = 0; i < kPieceTokens; i += 2) {
            copy_vector_async<true>(reinterpret_cast<Words*>(piece + i * kTokenBytes),
                                    reinterpret_cast<const float*>(x_at));
            copy_vector_async<true>(reinterpret_cast<Words*>(piece + (kPieceTokens + i) * kTokenBytes),
                                    reinterpret_cast<const float*>(dout_at));
            x_at += params.x_bytes[2];
            dout_at += params.dout_bytes[2];
        }
        if (--row_left > 0) return;
        row_left = static_cast<int>(params.row_steps.divisor) * 2;
        x_at += params.x_bytes[3];
        dout_at += params.dout_bytes[3];
    }
};

// The same number, which is there only when a word is that was loaded. Blocks have one layer of threads, which the
// compiler does not know.
__device__ __forceinline__ int after(int number, unsigned word) {
    return number + static_cast<int>(word & (blockDim.z - 1));
}

// What a thread carries from piece to piece.
template <int kWidth, typename input_t, int kVec, int kTokens, bool kSilu, int kThreads, int kFirsts>
struct PairWalk {
    static constexpr int kHalo = kWidth - 1;
    using Vector = Vec<input_t, kVec>;

    char* dx_at;  // width - 1 tokens behind the others
    float taps[kVec][kWidth];
    float bias[kVec];
    float x[kHalo + kTokens][kVec];
    float gradients[kHalo + kTokens][kVec];
    ParameterSums<kWidth> sums[kVec];

    // Begins a row, or inside one with the inputs before the token.
    __device__ __forceinline__ void begin(const Vector (&before)[kWidth]) {
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            set_input(i, before[i]);
#pragma unroll
            for (int c = 0; c < kVec; ++c) gradients[i][c] = 0.0f;
        }
    }

    // The tokens of a piece. `begins`: those before it belong to another walk or to no row. `firsts`, unless null:
    // where the first gradients of the walk are to be, kFirsts apart.
    __device__ __forceinline__ void walk(const Vector* slots, bool begins, float* firsts, index_t dx_bytes) {
        Vector results[kTokens];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            add_token(i, slots[i * kThreads], slots[(kTokens + i) * kThreads]);
            results[i] = input_gradients(i);
        }
        // Behind the sums: a condition among them would keep the compiler from mixing tokens.
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            if (i >= kHalo || !begins) put(results[i]);
            dx_at += dx_bytes;
        }
        if (begins && firsts != nullptr) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) {
#pragma unroll
                for (int c = 0; c < kVec; ++c) firsts[(i * kVec + c) * kFirsts] = gradients[kHalo + i][c];
            }
        }
        carry<kTokens>();
    }

    // The gradients of the width - 1 tokens behind a walk to where they are to be, from the inputs around its end.
    __device__ __forceinline__ void look_ahead(const Vector (&inputs)[2 * kWidth], const Vector (&douts)[kWidth],
                                               float* firsts) {
#pragma unroll
        for (int i = 0; i < 2 * kHalo; ++i) set_input(i, inputs[i]);
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            float of_token[kVec];
            set_gradient(i, douts[i], of_token);
#pragma unroll
            for (int c = 0; c < kVec; ++c) firsts[(i * kVec + c) * kFirsts] = of_token[c];
        }
    }

    // The gradients of the inputs of the last width - 1 tokens. Those of the tokens behind them lie in `firsts`; if
    // that is null there are none.
    __device__ __forceinline__ void end(const float* firsts, index_t dx_bytes) {
#pragma unroll
        for (int i = 0; i < kHalo; ++i, dx_at += dx_bytes) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                gradients[kHalo + i][c] = firsts == nullptr ? 0.0f : firsts[(i * kVec + c) * kFirsts];
            }
            put(input_gradients(i));
        }
    }

 private:
    __device__ __forceinline__ void set_input(int i, const Vector& v) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) x[i][c] = v.to_float(c);
    }

    // The gradients before the activation of the token in x[i + width - 1].
    __device__ __forceinline__ void set_gradient(int i, const Vector& dout, float (&to)[kVec]) const {
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = x[i + k][c];
            to[c] = token_gradient<kSilu, input_t>(taps[c], bias[c], window, dout.to_float(c));
        }
    }

    __device__ __forceinline__ void add_token(int i, const Vector& input, const Vector& dout) {
        set_input(kHalo + i, input);
        set_gradient(i, dout, gradients[kHalo + i]);
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = x[i + k][c];
            sums[c].add(gradients[kHalo + i][c], window);
        }
    }

    // Those of the inputs of the token that is width - 1 before that in x[i + width - 1].
    __device__ __forceinline__ Vector input_gradients(int i) const {
        float dx[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            float following[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) following[k] = gradients[i + k][c];
            dx[c] = input_gradient<Rows::kOne>(taps[c], following, nullptr);
        }
        return Vector::from_floats(dx);
    }

    __device__ __forceinline__ void put(const Vector& v) const { store(reinterpret_cast<input_t*>(dx_at), v); }

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
        }
    }
};

template <int kWidth, typename input_t, typename weight_t, int kBlock, bool kSilu,
          typename Traits = CausalConv1dChannelpairsBwdTraits<kWidth, input_t, weight_t, kBlock, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_channelpairs_bwd_kernel(const CausalConv1dChannelpairsBwdParams params) {
    constexpr int kStages = Traits::kStages, kFirsts = Traits::kFirsts;
    constexpr int kHalo = Traits::kHalo, kVec = Traits::kVec, kPieceTokens = Traits::kPieceTokens;
    using Vector = Vec<input_t, kVec>;
    const CausalConv1dBwdOperands p = parameters_of(params);
    __shared__ BlockMemory<Traits::kSharedBytes> memory;

    const QuotientRemainder walk_vec = divide(threadIdx.x, params.block_vecs);
    const QuotientRemainder part_dim = divide(blockIdx.x, params.dim_blocks);
    const index_t first_channel = static_cast<index_t>(part_dim.remainder) * params.block_vecs.divisor * kVec;
    const index_t channel = first_channel + walk_vec.remainder * kVec;
    const unsigned begin =
        min((part_dim.quotient * params.block_walks + walk_vec.quotient) * params.walk_steps, params.steps);
    const unsigned end = min(begin + params.walk_steps, params.steps);
    const QuotientRemainder batch_step = divide(begin < end ? begin : 0, params.row_steps);
    int left = static_cast<int>(end - begin);
    int row_left = static_cast<int>(params.row_steps.divisor - batch_step.remainder);
    const bool ends_inside = left > 0 && end < params.steps && divide(end, params.row_steps).remainder != 0;
    const bool looks_ahead = ends_inside && walk_vec.quotient + 1 == params.block_walks;

    Vector* const slots = reinterpret_cast<Vector*>(memory.bytes) + threadIdx.x;
    float* const firsts = reinterpret_cast<float*>(memory.bytes + kStages * Traits::kPieceBytes) + threadIdx.x;
    const index_t channel_bytes = channel * static_cast<index_t>(sizeof(input_t));
    // The thread's channels at the first token of a step.
    const auto at = [&](const void* pointer, const index_t* bytes, const QuotientRemainder& row_step) {
        const index_t token = static_cast<index_t>(row_step.remainder) * Traits::kTokens;
        return static_cast<const char*>(pointer) + channel_bytes + row_step.quotient * bytes[0] + token * bytes[1];
    };
    const char* const x = at(params.x, params.x_bytes, batch_step);
    const char* const dout = at(params.dout, params.dout_bytes, batch_step);
    // Vector i behind a token.
    const auto vector_at = [&](const char* token, int i, const index_t* bytes) {
        return load<kVec>(reinterpret_cast<const input_t*>(token + i * bytes[1]));
    };
    const int odd = threadIdx.x % 2;
    PairFetch<kPieceTokens, Traits::kThreads> fetch{params,
                                                    x + odd * (params.x_bytes[1] - 8),
                                                    dout + odd * (params.dout_bytes[1] - 8),
                                                    reinterpret_cast<char*>(slots + odd * (Traits::kThreads - 1)),
                                                    2 * left,
                                                    2 * row_left};
    if (kStages > 2 && params.scratch != nullptr) let_follower_start();
    Vector before[kWidth];
#pragma unroll
    for (int i = 0; i < kHalo; ++i) {
        before[i] = batch_step.remainder > 0 ? vector_at(x, i - kHalo, params.x_bytes) : Vector::zero();
    }
    // Behind the block's last walk: at once, because at the end all other threads would wait for it.
    Vector ahead[2 * kWidth], dout_ahead[kWidth];
    if (looks_ahead) {
        const QuotientRemainder end_step = divide(end, params.row_steps);
        const char* const x_end = at(params.x, params.x_bytes, end_step);
        const char* const dout_end = at(params.dout, params.dout_bytes, end_step);
#pragma unroll
        for (int i = 0; i < 2 * kHalo; ++i) ahead[i] = vector_at(x_end, i - kHalo, params.x_bytes);
#pragma unroll
        for (int i = 0; i < kHalo; ++i) dout_ahead[i] = vector_at(dout_end, i, params.dout_bytes);
    }
    const ChannelFilter<kWidth, weight_t, kVec> filter(p, channel);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
        // The third piece when the filter is there: B1 D2048 L2048 in float16 takes 10.5 us on an H200 so, 10.8 with
        // all pieces at once.
        if (i == 2) fetch.left = after(fetch.left, filter.raw_taps.parts[0].words[0] | filter.raw_bias[0]);
        fetch.fetch(i);
        end_copy_group();
    }
    const index_t dx_bytes = params.dx_bytes[1];
    PairWalk<kWidth, input_t, kVec, kPieceTokens, kSilu, Traits::kThreads, kFirsts> walk;
    walk.dx_at = const_cast<char*>(at(params.dx, params.dx_bytes, batch_step)) - kHalo * dx_bytes;
    filter.to_floats(walk.taps, walk.bias);
#pragma unroll
    for (int c = 0; c < kVec; ++c) {
        if constexpr (kSilu) scale_for_silu<input_t>(walk.taps[c], walk.bias[c]);
        walk.sums[c] = ParameterSums<kWidth>::zero();
    }
    if (looks_ahead) walk.look_ahead(ahead, dout_ahead, firsts + params.block_vecs.divisor);
    walk.begin(before);
    bool begins = true;
    float* walk_firsts = firsts;
    int base = 0;  // the stage of a step's first piece
#pragma unroll 1
    for (unsigned step = 0; step < params.walk_steps; ++step) {
        // All first gradients are there, long before a walk ends.
        if (step == 1) __syncthreads();
        if (left <= 0) continue;
#pragma unroll
        for (int piece = 0; piece < 2; ++piece) {
            wait_for_copy_groups<kStages - 2>();
            sync_warp();
            // The free stage is the one that was walked last.
            fetch.fetch((base + piece + kStages - 1) % kStages);
            end_copy_group();
            walk.walk(slots + (base + piece) * Traits::kPieceSlots, piece == 0 && begins, walk_firsts, dx_bytes);
        }
        begins = false;
        walk_firsts = nullptr;
        base = (base + 2) % kStages;
        --left;
        if (--row_left == 0) {
            walk.end(nullptr, dx_bytes);
            const Vector none[kWidth] = {};
            walk.begin(none);
            row_left = static_cast<int>(params.row_steps.divisor);
            walk.dx_at += params.dx_bytes[3] - kHalo * dx_bytes;
            begins = true;
        }
    }
    if (params.walks_are_parts) {
        const index_t part = static_cast<index_t>(part_dim.quotient) * params.block_walks + walk_vec.quotient;
        float* const at_part = params.scratch + part * (kWidth + 1) * params.dim + channel;
#pragma unroll
        for (int j = 0; j <= kWidth; ++j) {
            float own[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) own[c] = walk.sums[c].at(j) * kSumScale<input_t, kSilu>;
            store(at_part + static_cast<index_t>(j) * params.dim, ChannelSums<kVec>::from_floats(own));
        }
    }
    if (kHalo > 0 && ends_inside) walk.end(firsts + params.block_vecs.divisor, dx_bytes);
    if (params.walks_are_parts) return;
    store_block_sums<Traits, kWidth, weight_t>(p, walk.sums, kSumScale<input_t, kSilu>, params.block_vecs,
                                               params.block_walks, first_channel, part_dim.quotient,
                                               reinterpret_cast<ChannelSums<kVec>(*)[Traits::kThreads]>(memory.bytes));
}
