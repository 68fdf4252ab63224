// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for packed sequences
// with contiguous tokens. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dout, dx (dim, total), token stride 1, rows of whole aligned vectors of 16 bytes. A warp walks a part of
// the tokens of 32 channels, one lane per channel: sequences begin and end alike for all of its lanes, and accesses to
// a state are of neighbouring channels. x and dout come through shared memory, a chunk of kChunkVecs vectors per
// channel at a time; dx takes the place of dout there and leaves by vectors again. Vectors that lie inside a sequence
// are walked at once, others token by token. The parameters' gradients stay in registers until the walk's end; the
// block adds up those of its warps, which have consecutive parts of the same channels, in a fixed order. No atomics.
//
// kWidth    filter taps              input_t   x, dout and dx            weight_t  weight, and bias unless float
// kSilu     silu after the sum       kStates   initial states, or gradients of states, are given or wanted
#include "causal_conv1d/conv_bwd_sequences.cuh"
#include "common/fastdiv.cuh"

struct CausalConv1dShortrowsBwdParams {
    CausalConv1dBwdOperands operands;
    FastDiv channel_groups;  // groups of 32 channels
    unsigned walk_chunks;    // chunks per walk
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu, bool kStates>
struct CausalConv1dShortrowsBwdTraits {
    static constexpr int kThreads = 128;
    // More rows at a time find memory in shorter pieces: with 5 blocks, 16 sequences of 512 in 8192 channels take 154
    // us in bfloat16 on an H200 instead of 138.
    static constexpr int kMinBlocks = 4;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kStages = 2;
    static constexpr int kChunkVecs = 4;
    static constexpr int kMinWidth = 2;
    static constexpr int kMaxWidth = 5;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(input_t));
    static constexpr int kChunk = kChunkVecs * kVec;  // tokens
    // Vectors from one channel to the next in shared memory: an odd number, so that neighbours are in different banks.
    static constexpr int kPitch = kStages * 2 * kChunkVecs + 1;
    static_assert(kWidth >= kMinWidth && kWidth <= kMaxWidth && kWidth - 1 <= kVec,
                  "a vector completes the one before");
};

// A warp's chunks in shared memory: for every channel, stage by stage, those of x and of dout.
template <typename Traits, typename input_t>
struct RowChunks {
    static constexpr int kVec = Traits::kVec, kChunkVecs = Traits::kChunkVecs;
    static constexpr int kRowsAtOnce = kWarpSize / kChunkVecs;
    using Vector = Vec<input_t, kVec>;

    const CausalConv1dBwdOperands& p;
    Vector* memory;  // of the warp
    index_t first_channel;
    int first;  // token of the walk
    int last;

    // The row of a lane's accesses, and its vector: eight lanes that access shared memory at once are in all banks.
    __device__ __forceinline__ static int row_of(int turn) {
        const int row = lane_id() / kChunkVecs;
        return turn * kRowsAtOnce + row / 2 + row % 2 * (kRowsAtOnce / 2);
    }
    __device__ __forceinline__ static int vec_of() { return lane_id() % kChunkVecs; }

    __device__ __forceinline__ static int stage_of(int chunk) { return chunk % Traits::kStages * 2 * kChunkVecs; }

    __device__ __forceinline__ index_t channel_of(int row) const {
        return min(first_channel + row, static_cast<index_t>(p.dim - 1));
    }

    // Starts to bring a chunk.
    __device__ __forceinline__ void fetch(int chunk) const {
        const int token = first + chunk * Traits::kChunk + vec_of() * kVec;
        if (token < last) {
#pragma unroll
            for (int i = 0; i < kWarpSize / kRowsAtOnce; ++i) {
                const int row = row_of(i);
                Vector* const to = memory + row * Traits::kPitch + stage_of(chunk) + vec_of();
                const index_t channel = channel_of(row);
                // A chunk is half a line: with whole lines in the L2 cache, 16 sequences of 512 in 8192 channels take
                // 152 us in bfloat16 on an H200 instead of 176.
                copy_async<16, true>(to, static_cast<const input_t*>(p.x) + channel * p.x_stride[1] + token);
                copy_async<16, true>(to + kChunkVecs,
                                     static_cast<const input_t*>(p.dout) + channel * p.dout_stride[1] + token);
            }
        }
        end_copy_group();
    }

    // Stores the chunk's results.
    __device__ __forceinline__ void flush(int chunk) const {
        const int token = first + chunk * Traits::kChunk + vec_of() * kVec;
        if (token >= last) return;
#pragma unroll
        for (int i = 0; i < kWarpSize / kRowsAtOnce; ++i) {
            const int row = row_of(i);
            if (first_channel + row >= p.dim) continue;
            const Vector* const from = memory + row * Traits::kPitch + stage_of(chunk) + kChunkVecs + vec_of();
            store(static_cast<input_t*>(p.dx) + channel_of(row) * p.dx_stride[1] + token,
                  load<kVec, Memory::kMutable>(reinterpret_cast<const input_t*>(from)));
        }
    }

    // The lane's x at a token of the walk; dout, which dx replaces, is kChunkVecs vectors further.
    __device__ __forceinline__ input_t* at(int token) const {
        const unsigned place = static_cast<unsigned>(token - first);
        return reinterpret_cast<input_t*>(memory + lane_id() * Traits::kPitch +
                                          stage_of(static_cast<int>(place / Traits::kChunk))) +
               place % Traits::kChunk;
    }
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu, bool kStates,
          typename Traits = CausalConv1dShortrowsBwdTraits<kWidth, input_t, weight_t, kSilu, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_shortrows_bwd_kernel(const CausalConv1dShortrowsBwdParams params) {
    constexpr int kVec = Traits::kVec, kHalo = kWidth - 1, kStages = Traits::kStages;
    constexpr int kDoutAt = Traits::kChunkVecs * kVec;  // elements from x to dout
    using Vector = Vec<input_t, kVec>;
    using Walk = SequenceWalk<kWidth, input_t, weight_t, 1, kSilu, kStates>;
    const CausalConv1dBwdOperands p = with_states<kStates>(params.operands);
    __shared__ Vector memory[Traits::kWarps][kWarpSize * Traits::kPitch];

    const QuotientRemainder part_group = divide(blockIdx.x, params.channel_groups);
    const int warp = static_cast<int>(uniform(threadIdx.x / kWarpSize));
    const int walk_tokens = static_cast<int>(params.walk_chunks) * Traits::kChunk;
    const int number = static_cast<int>(part_group.quotient) * Traits::kWarps + warp;
    const int first = static_cast<int>(min(static_cast<index_t>(number) * walk_tokens, static_cast<index_t>(p.total)));
    const int last = min(first + walk_tokens, p.total);
    const index_t first_channel = static_cast<index_t>(part_group.remainder) * kWarpSize;
    const bool is_idle = first_channel + lane_id() >= p.dim;
    const index_t channel = is_idle ? p.dim - 1 : first_channel + lane_id();

    const ChannelFilter<kWidth, weight_t, 1> filter(p, channel);
    const RowChunks<Traits, input_t> chunks{p, memory[warp], first_channel, first, last};
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) chunks.fetch(i);
    Walk walk(p, channel, first, last, is_idle, filter);
    const input_t* const x = static_cast<const input_t*>(p.x) + channel * p.x_stride[1];
    const input_t* const dout = static_cast<const input_t*>(p.dout) + channel * p.dout_stride[1];
    const auto put = [&](int token, const float (&dx)[1]) {
        chunks.at(token)[kDoutAt] = Dtype<input_t>::from_float(dx[0]);
    };
    if (first < last) walk.begin([&](int k, int) { return Dtype<input_t>::to_float(x[first - kHalo + k]); });
    int chunk = 0;
#pragma unroll 1
    for (int token = first; token < last; token += kVec) {
        const bool is_first_of_chunk = (token - first) % Traits::kChunk == 0;
        if (is_first_of_chunk) {
            wait_for_copy_groups<kStages - 2>();
            sync_warp();
        }
        input_t* const at = chunks.at(token);
        if (walk.is_plain(token, kVec)) {
            const Vector own = load<kVec, Memory::kMutable>(at);
            const Vector gradient = load<kVec, Memory::kMutable>(at + kDoutAt);
            float dx[kVec][1];
            walk.add_plain(
                [&](int i, float (&input)[1], float (&of_output)[1]) {
                    input[0] = own.to_float(i);
                    of_output[0] = gradient.to_float(i);
                },
                dx);
            if (token > first) {
                input_t* const before = chunks.at(token - kVec) + kDoutAt + kVec - kHalo;
#pragma unroll
                for (int i = 0; i < kHalo; ++i) before[i] = Dtype<input_t>::from_float(dx[i][0]);
            }
#pragma unroll
            for (int i = kHalo; i < kVec; ++i) at[kDoutAt + i - kHalo] = Dtype<input_t>::from_float(dx[i][0]);
        } else {
#pragma unroll 1
            for (int i = 0; i < kVec; ++i) {
                const float own[1] = {Dtype<input_t>::to_float(at[i])};
                const float gradient[1] = {Dtype<input_t>::to_float(at[kDoutAt + i])};
                walk.add(token + i, own, gradient, put);
            }
        }
        if (is_first_of_chunk) {
            // The chunk before is complete now. A lane fetches to where it has flushed from.
            sync_warp();
            if (chunk > 0) chunks.flush(chunk - 1);
            chunks.fetch(chunk + kStages - 1);
            ++chunk;
        }
    }
    if (first < last) {
        walk.end(
            [&](int token, float (&own)[1], float (&gradient)[1]) {
                own[0] = Dtype<input_t>::to_float(x[token]);
                gradient[0] = Dtype<input_t>::to_float(dout[token]);
            },
            put);
        sync_warp();
        chunks.flush(chunk - 1);
    }

    // The sums of the block's warps, in the place of the chunks.
    wait_for_copies();
    __syncthreads();
    float (*const shared)[kWidth + 1][kWarpSize] = reinterpret_cast<float (*)[kWidth + 1][kWarpSize]>(memory);
#pragma unroll
    for (int j = 0; j <= kWidth; ++j) shared[warp][j][lane_id()] = walk.sums[0].at(j) * kSumScale<input_t, kSilu>;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < (kWidth + 1) * kWarpSize; i += Traits::kThreads) {
        const index_t to = first_channel + i % kWarpSize;
        if (to >= p.dim) continue;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < Traits::kWarps; ++w) sum += shared[w][i / kWarpSize][i % kWarpSize];
        store_block_sum<kWidth, weight_t>(p, part_group.quotient, to, i / kWarpSize, sum);
    }
}
