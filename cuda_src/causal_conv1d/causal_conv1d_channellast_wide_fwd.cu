// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for x with contiguous channels and wide filters, which
// are bound by issued instructions, not by memory.
//
// Layout: x, out (batch, dim, seqlen), dim stride 1, tokens aligned to 16 bytes, dim a multiple of as many. A warp owns
// kChannels channels, two a lane, of params.tokens consecutive tokens and walks them kTokens at a time, side by side
// with the other warps of its block, with the last inputs in registers: every input is loaded and converted once, and
// the filter, too. Tokens come to shared memory by copies of 16 bytes that are started kStages units ahead, and results
// leave by stores of 16 bytes from there: that takes half of the instructions of accesses by every lane to its
// channels.
//
// kWidth    filter taps              input_t   x, out and states         weight_t  weight, and bias unless float
// kSilu     silu after the sum       kStates   initial or final states are given
#include "causal_conv1d/conv_channels.cuh"
#include "common/fastdiv.cuh"
#include "common/warp.cuh"

struct CausalConv1dChannellastWideFwdParams {
    CausalConv1dOperands operands;
    FastDiv dim_blocks;  // blocks across the channels
    FastDiv walks;       // blocks along the sequence
    int tokens;          // tokens per block, a multiple of kTokens
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu, bool kStates>
struct CausalConv1dChannellastWideFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 4;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kStages = 3;
    static constexpr int kTokens = 16;
    static constexpr int kVec = 2;  // channels per lane
    static constexpr int kChannels = 64;
    static_assert(kIsWidth<kWidth> && kWidth <= kTokens && kChannels == kVec * kWarpSize && sizeof(input_t) == 2);
};

template <int kWidth, typename input_t, typename weight_t, bool kSilu, bool kStates,
          typename Traits = CausalConv1dChannellastWideFwdTraits<kWidth, input_t, weight_t, kSilu, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_channellast_wide_fwd_kernel(const CausalConv1dChannellastWideFwdParams params) {
    constexpr int kVec = Traits::kVec;
    constexpr int kHalo = kWidth - 1, kTokens = Traits::kTokens, kStages = Traits::kStages;
    constexpr int kWide = 16 / static_cast<int>(sizeof(input_t));  // channels per access to global memory
    constexpr int kAccesses = Traits::kChannels / kWide;           // per token
    constexpr int kRows = kWarpSize / kAccesses;                   // tokens per access of a warp
    using Vector = Vec<input_t, kVec>;
    using Wide = Vec<input_t, kWide>;
    using Stage = input_t[kTokens][Traits::kChannels];
    const CausalConv1dOperands p = with_states<kStates>(params.operands);
    __shared__ alignas(128) Stage memory[Traits::kWarps][kStages];

    const unsigned warp = uniform(threadIdx.x / kWarpSize);
    const QuotientRemainder rest_dim = divide(blockIdx.x, params.dim_blocks);
    const QuotientRemainder batch_walk = divide(rest_dim.quotient, params.walks);
    const index_t batch = batch_walk.quotient;
    const index_t token = static_cast<index_t>(batch_walk.remainder) * params.tokens;
    const int count = static_cast<int>(p.seqlen - token < params.tokens ? p.seqlen - token : params.tokens);
    const index_t first_channel =
        (static_cast<index_t>(rest_dim.remainder) * (blockDim.x / kWarpSize) + warp) * Traits::kChannels;
    // Lanes without channels, and warps without any, have the filter of the last one, and no inputs: no result of
    // theirs is stored.
    const int channels =
        static_cast<int>(p.dim - first_channel < Traits::kChannels ? p.dim - first_channel : Traits::kChannels);
    const int lane_channel = lane_id() * kVec;
    const index_t channel = first_channel + min(lane_channel, channels - kVec);

    // The lane's place among accesses of 16 bytes: the channels of a row, and the row among those of one access.
    const int column = lane_id() % kAccesses * kWide, row = lane_id() / kAccesses;
    const bool has_column = column < channels;
    const index_t x_step = p.x_stride[2], out_step = p.out_stride[2];
    // A walk begins with the tokens before its first, which a row's first walk has none of.
    const bool has_past = token > 0;
    const input_t* from =
        static_cast<const input_t*>(p.x) + batch * p.x_stride[0] + first_channel + column + (token + row) * x_step;
    from = opaque(has_past ? from - kTokens * x_step : from);
    input_t* to =
        static_cast<input_t*>(p.out) + batch * p.out_stride[0] + first_channel + column + (token + row) * out_step;
    Stage* const stages = memory[warp];
    int ahead = count + (has_past ? kTokens : 0) - row;
    // Starts to bring the next tokens to a stage. Behind the last one it keeps what it holds: no result of that is
    // stored.
    const auto fetch = [&](int stage) {
#pragma unroll
        for (int i = 0; i < kTokens; i += kRows) {
            if (has_column && i < ahead) copy_async(&stages[stage][i + row][column], as_global(from));
            from = opaque(from + kRows * x_step);
        }
        ahead -= kTokens;
        end_copy_group();
    };
    if (has_past) {
        fetch(0);
    } else {
        end_copy_group();
    }
#pragma unroll
    for (int i = 1; i < kStages; ++i) fetch(i);
    const ChannelFilter<kWidth, weight_t, kVec> filter(p, channel);
    // Element i % kTokens is the input of token i.
    float bias[kVec], taps[kVec][kWidth], ring[kVec][kTokens];
    filter.to_floats(taps, bias);
    if constexpr (kSilu) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) scale_for_silu<input_t>(taps[c], bias[c]);
    }
    wait_for_copy_groups<kStages - 1>();
    sync_warp();
#pragma unroll
    for (int i = kTokens - kHalo; i < kTokens; ++i) {
        Vector input = Vector::zero();
        if (has_past) {
            input = load<kVec, Memory::kMutable>(&stages[0][i][lane_channel]);
        } else if (kStates) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                input.put(c, load_past<kWidth, input_t>(p, batch, channel + c, i - kTokens));
            }
        }
#pragma unroll
        for (int c = 0; c < kVec; ++c) ring[c][i] = input.to_float(c);
    }
    int stage = 1, free_stage = 0;
#pragma unroll 1
    for (int left = count; left > 0; left -= kTokens) {
        wait_for_copy_groups<kStages - 2>();
        // Warps that run on by themselves read memory in shorter pieces: 77.9 us instead of 76.3 for 8 x 4096 x 2048
        // with 16 taps (H200).
        __syncthreads();
        // The warp has stored the results of the stage before: it is free.
        fetch(free_stage);
        free_stage = stage;
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            input_t* const slot = &stages[stage][i][lane_channel];
            const Vector input = load<kVec, Memory::kMutable>(slot);
            float out[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                ring[c][i] = input.to_float(c);
                float window[kWidth];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) window[k] = ring[c][(i + k + kTokens - kHalo) % kTokens];
                out[c] = activate<input_t, kSilu, false, true>(convolve<false>(taps[c], bias[c], window, nullptr), 0);
            }
            store(slot, Vector::from_floats(out));
        }
        sync_warp();
#pragma unroll
        for (int i = 0; i < kTokens; i += kRows) {
            const Wide results = load<kWide, Memory::kMutable>(&stages[stage][i + row][column]);
            if (has_column && i + row < left) store(as_global(to), results);
            to = opaque(to + kRows * out_step);
        }
        stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    if (p.final_states != nullptr && token + count == p.seqlen && lane_channel < channels) {
#pragma unroll 1
        for (int c = 0; c < kVec; ++c) store_final_state<kWidth, input_t>(p, batch, channel + c);
    }
}
