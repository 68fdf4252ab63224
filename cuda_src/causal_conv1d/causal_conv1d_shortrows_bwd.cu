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
// channel at a time; dx takes the place of dout there and leaves by vectors again. So do states and their gradients,
// those of several sequences at a time. Vectors that lie inside a sequence are walked at once, others token by token;
// sequences of one token need no walk. The parameters' gradients stay in registers until the walk's end; the block adds
// up those of its warps, which have consecutive parts of the same channels, in a fixed order. No atomics.
//
// kWidth    filter taps              input_t   x, dout and dx            weight_t  weight, and bias unless float
// kSilu     silu after the sum       kStates   initial states, or gradients of states, are given or wanted
#include "causal_conv1d/conv_bwd_row_walk.cuh"
#include "common/fastdiv.cuh"

struct CausalConv1dShortrowsBwdParams {
    CausalConv1dBwdOperands operands;
    FastDiv channel_groups;  // groups of 32 channels
    unsigned walk_chunks;    // chunks per walk
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu, bool kStates>
struct CausalConv1dShortrowsBwdTraits {
    static constexpr int kThreads = 128;
    // What bounds long sequences is where memory is: without its arithmetic, 16 sequences of 512 in 8192 channels take
    // this kernel 141 us in bfloat16 on an H200, and 129 with it. Pieces of 128 bytes, two warps a block and six
    // blocks, take 122 us without arithmetic and 164 with it. 512 random sequences take 142 us without arithmetic and
    // 191 with it. More rows at a time find memory in shorter pieces: with 5 blocks, 16 sequences of 512 in 8192
    // channels take 154 us in bfloat16 on an H200 instead of 138.
    static constexpr int kMinBlocks = kArch >= 80 ? 4 : 3;  // before, a lane would keep some words in memory
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

template <int kWidth, typename input_t, typename weight_t, bool kSilu, bool kStates,
          typename Traits = CausalConv1dShortrowsBwdTraits<kWidth, input_t, weight_t, kSilu, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_shortrows_bwd_kernel(const CausalConv1dShortrowsBwdParams params) {
    constexpr int kVec = Traits::kVec, kStages = Traits::kStages;
    using Vector = Vec<input_t, kVec>;
    using Chunks = RowChunks<Traits, input_t>;
    using Walk = RowWalk<Chunks, kWidth, input_t, weight_t, kSilu, kStates>;
    const CausalConv1dBwdOperands p = with_states<kStates>(params.operands);
    __shared__ Vector memory[Traits::kWarps][kWarpSize * Traits::kPitch];
    __shared__ alignas(16) unsigned char states[kStates ? Traits::kWarps : 1][2 * Walk::Rows::kBytes];

    const QuotientRemainder part_group = divide(blockIdx.x, params.channel_groups);
    const int warp = static_cast<int>(uniform(threadIdx.x / kWarpSize));
    const int walk_tokens = static_cast<int>(params.walk_chunks) * Traits::kChunk;
    const int number = static_cast<int>(part_group.quotient) * Traits::kWarps + warp;
    const int first = static_cast<int>(min(static_cast<index_t>(number) * walk_tokens, static_cast<index_t>(p.total)));
    const int last = min(first + walk_tokens, p.total);
    const unsigned first_channel = part_group.remainder * kWarpSize;
    const unsigned channel = min(first_channel + lane_id(), static_cast<unsigned>(p.dim - 1));

    const ChannelFilter<kWidth, weight_t, 1> filter(p, channel);
    const Chunks chunks(p, memory[warp], first_channel, first, last);
    // Before the copies: what it loads would take as long as they do. 512 random sequences in 8192 channels take 194.5
    // us on an H200 so, and 199.5 behind them.
    Walk walk(p, chunks, channel, states[kStates ? warp : 0], filter);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) chunks.fetch(i);
    // The last walk goes on behind the tokens.
    const int walk_end = first < last && last == p.total ? last + 1 : last;
    int chunk = 0;
#pragma unroll 1
    for (int token = first; token < walk_end; token += kVec) {
        const bool is_first_of_chunk = (token - first) % Traits::kChunk == 0 && token < last;
        if (is_first_of_chunk) {
            wait_for_copy_groups<kStages - 2>();
            sync_warp();
        }
        walk.add_vector(token);
        if (is_first_of_chunk) {
            // The chunk before is complete now. A lane fetches to where it has flushed from.
            sync_warp();
            if (chunk > 0) chunks.flush(chunk - 1);
            chunks.fetch(chunk + kStages - 1);
            ++chunk;
        }
    }
    if (first < last) {
        walk.end();
        sync_warp();
        chunks.flush(chunk - 1);
    }

    // The sums of the block's warps, in the place of the chunks.
    if (p.scratch != nullptr) let_follower_start();
    wait_for_copies();
    __syncthreads();
    float (*const shared)[kWidth + 1][kWarpSize] = reinterpret_cast<float (*)[kWidth + 1][kWarpSize]>(memory);
#pragma unroll
    for (int j = 0; j <= kWidth; ++j)
        shared[warp][j][lane_id()] = walk.window.sums[0].at(j) * kSumScale<input_t, kSilu>;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < (kWidth + 1) * kWarpSize; i += Traits::kThreads) {
        const unsigned to = first_channel + i % kWarpSize;
        if (to >= static_cast<unsigned>(p.dim)) continue;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < Traits::kWarps; ++w) sum += shared[w][i / kWarpSize][i % kWarpSize];
        store_block_sum<kWidth, weight_t>(p, part_group.quotient, to, i / kWarpSize, sum);
    }
}
