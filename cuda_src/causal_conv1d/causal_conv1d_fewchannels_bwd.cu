// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for few contiguous
// channels of many tokens, in rows that are one sequence each and start from zeros. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dout, dx (batch, dim, seqlen), dim stride 1, seqlen stride dim: a row is contiguous. A token is kVecs
// vectors of 8 bytes. Tokens count as tiles, of which a warp takes one, and then the one as many tiles further as there
// are warps: all of them together go through memory from its beginning to its end. A tile and the width - 1 inputs
// before it come to shared memory by one bulk copy of x and one of dout, and the results leave by one. A lane has
// kTokens consecutive tokens of a vector, a strip; the first gradients of the strip behind it are another lane's. Those
// behind the last strip are not there: the last width - 1 tokens of a tile are the first of the next one.
//
// kWidth    filter taps, 1 to 4      input_t   x, dout and dx            weight_t  weight, and bias unless float
// kVecs     vectors a token, 4 or 8  kSilu     silu after the sum
#include "causal_conv1d/conv_bwd_channels.cuh"
#include "common/warp_copies.cuh"

// The arguments are only those that such rows need: they arrive by cache lines, one miss after another.
struct CausalConv1dFewchannelsBwdParams {
    const void* x;
    const void* dout;
    void* dx;
    const void* weight;
    const void* bias;
    void* dweight;
    void* dbias;
    float* scratch;
    FastDiv row_tiles;   // tiles a row
    FastDiv token_vecs;  // vectors a token: kVecs
    unsigned tiles;      // in all rows
    unsigned warps;      // of all blocks
    int seqlen;
    int dim;
    index_t row_stride[3];  // of x, dout and dx, in elements
    index_t weight_stride[2];
    index_t bias_stride;
    index_t dweight_stride[2];
    index_t dbias_stride;
    int bias_is_float32;
    int dweight_is_float32;
    int dbias_is_float32;
    int taps_are_packed;
};

template <int kWidth, typename input_t, typename weight_t, int kVecs, bool kSilu>
struct CausalConv1dFewchannelsBwdTraits {
    static constexpr int kThreads = 128;
    // B1 D16 L2**20 in bfloat16 takes 29.0 us on an H200 with three blocks on a multiprocessor, 29.9 with four and 30.0
    // with five.
    static constexpr int kMinBlocks = 3;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kVec = 8 / static_cast<int>(sizeof(input_t));
    // Three stages, or longer strips, have more on its way and begin later. The same took with four blocks 30.7 us with
    // strips of 5 tokens, 31.2 with 7 and with 9, and 32.6 with three stages of 5.
    static constexpr int kStages = 2;
    // An odd number: a warp's accesses to shared memory fall into all banks.
    static constexpr int kTokens = 5;
    static constexpr int kStrips = kWarpSize / kVecs;
    static constexpr int kTileTokens = kStrips * kTokens;
    static constexpr int kTileVecs = kTileTokens * kVecs;
    // Of x, from the inputs before the tile on, and of dout.
    static constexpr int kStageVecs = kHalo * kVecs + 2 * kTileVecs;
    static constexpr int kWarpVecs = kStages * kStageVecs + kTileVecs;
    static constexpr int kVecBytes = static_cast<int>(sizeof(Vec<input_t, kVec>));
    static constexpr int kWalkBytes = kWarps * kWarpVecs * kVecBytes;
    static constexpr int kSumBytes = (kWidth + 1) * kThreads * static_cast<int>(sizeof(ChannelSums<kVec>));
    static constexpr int kSharedBytes = kSumBytes > kWalkBytes ? kSumBytes : kWalkBytes;
    static_assert(kWidth >= 1 && kTokens >= kHalo && kTokens % 2 == 1);
};

template <int kWidth, typename input_t, typename weight_t, int kVecs, bool kSilu,
          typename Traits = CausalConv1dFewchannelsBwdTraits<kWidth, input_t, weight_t, kVecs, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_fewchannels_bwd_kernel(const CausalConv1dFewchannelsBwdParams params) {
    constexpr int kHalo = Traits::kHalo, kVec = Traits::kVec, kTokens = Traits::kTokens, kStages = Traits::kStages;
    constexpr int kTileTokens = Traits::kTileTokens, kTileVecs = Traits::kTileVecs;
    // A tile's tokens that are no other tile's.
    constexpr int kOwnTokens = kTileTokens - kHalo;
    using Vector = Vec<input_t, kVec>;
    using Wide = Vec<input_t, 2 * kVec>;
    const CausalConv1dBwdOperands p = parameters_of(params);
    __shared__ BlockMemory<Traits::kSharedBytes> memory;
    __shared__ WarpBarriers<kStages> barriers[Traits::kWarps];

    const unsigned warp = uniform(threadIdx.x / kWarpSize);
    Vector* const stages = reinterpret_cast<Vector*>(memory.bytes) + warp * Traits::kWarpVecs;
    Vector* const results = stages + kStages * Traits::kStageVecs;
    const unsigned first_tile = blockIdx.x * Traits::kWarps + warp;
    WarpCopies<kStages> copies(barriers[warp]);
    unsigned next_tile = first_tile;
    // Starts to bring the next tile to a stage. What lies before or behind its row are zeros.
    const auto fetch = [&](int stage) {
        if (next_tile < params.tiles) {
            const QuotientRemainder row_tile = divide(next_tile, params.row_tiles);
            const int token = static_cast<int>(row_tile.remainder) * kOwnTokens;
            const int before = token > 0 ? kHalo : 0, count = min(kTileTokens, params.seqlen - token);
            Vector* const x_slots = stages + stage * Traits::kStageVecs + kHalo * kVecs;
            Vector* const dout_slots = x_slots + kTileVecs;
            if (before < kHalo || count < kTileTokens) {
                for (int i = lane_id(); i < (kHalo - before) * kVecs; i += kWarpSize) x_slots[-1 - i] = Vector::zero();
                for (int i = count * kVecs + lane_id(); i < kTileVecs; i += kWarpSize) {
                    x_slots[i] = dout_slots[i] = Vector::zero();
                }
                copies.order_stores();
                sync_warp();
            }
            const auto at = [&](const void* pointer, index_t row_stride) {
                return static_cast<const input_t*>(pointer) + row_tile.quotient * row_stride +
                       static_cast<index_t>(token) * (kVecs * kVec);
            };
            copies.expect(stage, (before + 2 * count) * kVecs * Traits::kVecBytes);
            copies.copy(stage, reinterpret_cast<Wide*>(x_slots - before * kVecs),
                        at(params.x, params.row_stride[0]) - before * (kVecs * kVec), (before + count) * kVecs / 2);
            copies.copy(stage, reinterpret_cast<Wide*>(dout_slots), at(params.dout, params.row_stride[1]),
                        count * kVecs / 2);
        }
        next_tile += params.warps;
        copies.end();
    };
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) fetch(i);

    const int vec = lane_id() % kVecs, strip = lane_id() / kVecs;
    const ChannelFilter<kWidth, weight_t, kVec> filter(p, vec * kVec);
    float taps[kVec][kWidth];
    float bias[kVec];
    filter.to_floats(taps, bias);
    ParameterSums<kWidth> sums[kVec];
#pragma unroll
    for (int c = 0; c < kVec; ++c) {
        if constexpr (kSilu) scale_for_silu<input_t>(taps[c], bias[c]);
        sums[c] = ParameterSums<kWidth>::zero();
    }
    int stage = 0;
#pragma unroll 1
    for (unsigned tile = first_tile; tile < params.tiles; tile += params.warps) {
        copies.wait(stage);
        const Vector* const x_slots = stages + stage * Traits::kStageVecs + strip * kTokens * kVecs + vec;
        const Vector* const dout_slots = x_slots + kHalo * kVecs + kTileVecs;
        float x[kHalo + kTokens][kVec];
        float gradients[kTokens + kHalo][kVec];
        Vector dx[kTokens];
        const auto add_result = [&](int i) {
            float values[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                float following[kWidth];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) following[k] = gradients[i + k][c];
                values[c] = input_gradient<Rows::kOne>(taps[c], following, nullptr);
            }
            dx[i] = Vector::from_floats(values);
        };
#pragma unroll
        for (int i = 0; i < kHalo + kTokens; ++i) {
            const Vector input = x_slots[i * kVecs];
#pragma unroll
            for (int c = 0; c < kVec; ++c) x[i][c] = input.to_float(c);
            const int token = i - kHalo;
            if (token < 0) continue;
            const Vector dout = dout_slots[token * kVecs];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                float window[kWidth];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) window[k] = x[token + k][c];
                const float g = token_gradient<kSilu, input_t>(taps[c], bias[c], window, dout.to_float(c));
                gradients[token][c] = g;
                if (token < kTokens - kHalo || strip + 1 < Traits::kStrips) sums[c].add(g, window);
            }
            if (token >= kHalo) add_result(token - kHalo);
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) gradients[kTokens + i][c] = of_lane_above<kVecs>(gradients[i][c]);
            add_result(kTokens - kHalo + i);
        }
        // The stage is free when all lanes have read it.
        sync_warp();
        fetch(stage);
        const QuotientRemainder row_tile = divide(tile, params.row_tiles);
        const int token = static_cast<int>(row_tile.remainder) * kOwnTokens;
        wait_for_sent();
#pragma unroll
        for (int i = 0; i < kTokens; ++i) results[(strip * kTokens + i) * kVecs + vec] = dx[i];
        send_vectors(static_cast<input_t*>(params.dx) + row_tile.quotient * params.row_stride[2] +
                         static_cast<index_t>(token) * (kVecs * kVec),
                     reinterpret_cast<const Wide*>(results), min(kOwnTokens, params.seqlen - token) * kVecs / 2);
        stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    wait_for_sent();
    store_block_sums<Traits, kWidth, weight_t>(p, sums, kSumScale<input_t, kSilu>, params.token_vecs,
                                               Traits::kThreads / kVecs, 0, blockIdx.x,
                                               reinterpret_cast<ChannelSums<kVec>(*)[Traits::kThreads]>(memory.bytes));
}
