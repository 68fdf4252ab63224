// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for x with contiguous channels of 16 bits, and tokens
// that begin at any element.
//
// Layout: x, out (batch, dim, seqlen), dim stride 1. A thread owns the channels of two words, of kTokens consecutive
// tokens, and the lanes of a warp consecutive channels of the same tokens. A token's phase is 1 where it begins in the
// middle of an aligned word, else 0. A lane loads the word that its first channel is in and the next one, and where the
// phase is 1 the lane above has its last channel. Results go the other way: a lane stores the first two aligned words
// that begin in its channels, of which the lane above may have the last channel. The lanes at both ends of a warp
// overlap the next warps'. Phases choose among bytes, not among branches: a small call would wait for their code. There
// is no shared memory and no barrier.
//
// kWidth    filter taps              input_t   x, out and states         weight_t  weight, and bias unless float
// kVec      channels an access       kTokens   tokens a thread           kSilu     silu after the sum
// kSeqIdx   tokens see only their own sequence number                kStates   initial or final states are given
#include "causal_conv1d/conv_channels.cuh"
#include "common/fastdiv.cuh"
#include "common/warp.cuh"

struct CausalConv1dOddchannelsFwdParams {
    CausalConv1dOperands operands;
    FastDiv dim_blocks;   // blocks across the channels
    FastDiv time_blocks;  // blocks along the sequence
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, bool kSeqIdx,
          bool kStates>
struct CausalConv1dOddchannelsFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr bool kIsLean = kWidth <= 4 && !kSeqIdx && !kStates;
    static constexpr int kMinBlocks = kIsLean ? 8 : 5;
    static constexpr bool kIsScaled = kSilu && kIsLean;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kLanes = 30;  // lanes of a warp with results
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kRows = kHalo + kTokens;
    static_assert(kIsWidth<kWidth> && kTokens >= 1 && sizeof(input_t) == 2 && kVec == 4);
};

// The phases of successive tokens, which come again after two.
struct Phases {
    int even;
    int odd;

    // Takes the first token's address and the distance between tokens in elements.
    template <typename T>
    __device__ __forceinline__ Phases(const T* p, index_t step) {
        even = static_cast<int>(reinterpret_cast<size_t>(p) / sizeof(T)) & 1;
        odd = even + static_cast<int>(step) & 1;
    }

    __device__ __forceinline__ int of(int i) const { return i % 2 == 0 ? even : odd; }

    // The vector that begins as many elements behind the beginning of a lane's as token i's phase is, and ends in that
    // of the lane above.
    template <typename T>
    __device__ __forceinline__ Vec<T, 4> move_later(const Vec<T, 4>& v, int i) const {
        const unsigned bytes = of(i) != 0 ? 0x5432u : 0x3210u;
        const unsigned above = word_above(v.words[0]);
        return {__byte_perm(v.words[0], v.words[1], bytes), __byte_perm(v.words[1], above, bytes)};
    }
};

// Four elements from an aligned word on.
template <typename T>
__device__ __forceinline__ Vec<T, 4> load_words(const T* p) {
    return {load<2>(p).words[0], load<2>(p + 2).words[0]};
}

template <typename T>
__device__ __forceinline__ void store_words(T* p, const Vec<T, 4>& v) {
    store(p, Vec<T, 2>{v.words[0]});
    store(p + 2, Vec<T, 2>{v.words[1]});
}

// The filters of kVec channels, of which some may be none.
template <int kWidth, typename weight_t, int kVec>
__device__ __forceinline__ void load_filters(const CausalConv1dOperands& p, int channel, float (&taps)[kVec][kWidth],
                                             float (&bias)[kVec]) {
    if (channel < 0 || channel + kVec <= p.dim) {
        const ChannelFilter<kWidth, weight_t, kVec> filter(p, max(channel, 0));
        filter.to_floats(taps, bias);
    } else {
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            const int near = min(channel + c, p.dim - 1);
            load_taps<kWidth, weight_t>(p, near, taps[c]);
            bias[c] = load_bias<weight_t>(p, near);
        }
    }
}

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, bool kSeqIdx,
          bool kStates,
          typename Traits =
              CausalConv1dOddchannelsFwdTraits<kWidth, input_t, weight_t, kVec, kTokens, kSilu, kSeqIdx, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_oddchannels_fwd_kernel(const CausalConv1dOddchannelsFwdParams params) {
    using Vector = Vec<input_t, kVec>;
    constexpr int kHalo = Traits::kHalo;
    constexpr int kRows = Traits::kRows;
    const CausalConv1dOperands p = with_states<kStates>(params.operands);

    const int warp = uniform(static_cast<int>(threadIdx.x) / kWarpSize);
    const QuotientRemainder rest_dim = divide(blockIdx.x, params.dim_blocks);
    const QuotientRemainder batch_time = divide(rest_dim.quotient, params.time_blocks);
    const index_t batch = batch_time.quotient;
    const index_t token = (static_cast<index_t>(batch_time.remainder) * Traits::kWarps + warp) * kTokens;
    if (token > 0 && token >= p.seqlen) return;  // whole warps leave: the shuffles below stay complete
    const int channel = (static_cast<int>(rest_dim.remainder) * Traits::kLanes + lane_id() - 1) * kVec;

    // Row i holds token + i - kHalo; rows begin to end - 1 lie inside the sequence.
    const int begin = token < kHalo ? kHalo - static_cast<int>(token) : 0;
    const int end = p.seqlen - token < kTokens ? kHalo + static_cast<int>(p.seqlen - token) : kRows;
    const index_t x_step = p.x_stride[2];
    const input_t* const x_tile = static_cast<const input_t*>(p.x) + batch * p.x_stride[0] + (token - kHalo) * x_step;
    const Phases x_phases(x_tile, x_step);
    // Lanes beside the channels load what the nearest lane with some does.
    const int near_channel = min(max(channel, 0), p.dim & -kVec);
    const input_t* const x_at[2] = {x_tile - x_phases.of(0) + near_channel,
                                    x_tile + (x_step - x_phases.of(1)) + near_channel};
    Vector x[kRows];
    // What precedes and follows a token inside the sequence is memory of x, too, or lies between two of its tokens.
    if (token > kHalo && token + kTokens < p.seqlen) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const input_t* const at = x_at[i % 2] + i / 2 * (2 * x_step);
            x[i] = load_words(at);
        }
    } else {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            x[i] = Vector::zero();
            if (i < begin || i >= end) continue;
            const input_t* const at = x_at[i % 2] + i / 2 * (2 * x_step);
            const int first = near_channel - x_phases.of(i);
            const index_t own = token + i - kHalo;
            if ((first < 0 || first + kVec > p.dim) && (own == 0 || own + 1 == p.seqlen)) {
                x[i] = load_part<kVec>(at, -first, p.dim - first);
            } else {
                x[i] = load_words(at);
            }
        }
    }
    float bias[kVec];
    float taps[kVec][kWidth];
    load_filters<kWidth, weight_t>(p, channel, taps, bias);
#pragma unroll
    for (int i = 0; i < kRows; ++i) x[i] = x_phases.move_later(x[i], i);
    if (begin > 0 && p.initial_states != nullptr) {
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                if (i >= begin || channel < 0 || channel + c >= p.dim) continue;
                x[i].put(c, load_past<kWidth, input_t>(p, batch, channel + c, token + i - kHalo));
            }
        }
    }
    if constexpr (Traits::kIsScaled) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) scale_for_silu<input_t>(taps[c], bias[c]);
    }
    int seq[kRows];
    if constexpr (kSeqIdx) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) seq[i] = load_seq_idx(p, batch, token + i - kHalo);
    }
    const index_t out_step = p.out_stride[2];
    input_t* const out_tile = static_cast<input_t*>(p.out) + batch * p.out_stride[0] + token * out_step;
    const Phases out_phases(out_tile, out_step);
    Vector y[kTokens];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
        float out[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = x[i + k].to_float(c);
            out[c] = activate<input_t, kSilu, kSeqIdx, Traits::kIsScaled>(
                convolve<kSeqIdx>(taps[c], bias[c], window, seq + i), seq[kHalo + i]);
        }
        y[i] = out_phases.move_later(Vector::from_floats(out), i);
    }
    if (lane_id() >= Traits::kLanes) return;
    input_t* const out_at[2] = {out_tile + out_phases.of(0) + channel,
                                out_tile + (out_step + out_phases.of(1)) + channel};
    if (channel >= 0 && channel + kVec < p.dim && end == kRows) {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) store_words(out_at[i % 2] + i / 2 * (2 * out_step), y[i]);
    } else {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            const int first = channel + out_phases.of(i);
            if (kHalo + i < end) store_part(out_at[i % 2] + i / 2 * (2 * out_step), y[i], -first, p.dim - first);
        }
    }
    if (p.final_states != nullptr && token + kTokens >= p.seqlen) {
#pragma unroll 1
        for (int c = 0; c < kVec; ++c) {
            if (channel >= 0 && channel + c < p.dim) store_final_state<kWidth, input_t>(p, batch, channel + c);
        }
    }
}
