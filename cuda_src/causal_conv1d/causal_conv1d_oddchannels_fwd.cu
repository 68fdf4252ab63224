// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for x with contiguous channels of 16 bits, and tokens
// that begin at any element.
//
// Layout: x, out (batch, dim, seqlen), dim stride 1. A thread owns kVec channels of kTokens consecutive tokens, and the
// lanes of a warp consecutive channels of the same tokens. A token's phase is the number of elements from an aligned
// vector to where the token begins. A lane loads the vector that its first channel is in, and the rest of its channels
// comes from the lane above by shuffle. Results go the other way: a lane stores the first aligned vector that begins in
// its channels, the end of which the lane above has computed. The lanes at both ends of a warp overlap the next warps'.
// There is no shared memory and no barrier.
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
    // About as causal_conv1d_channellast_fwd has them: 75.0 us for 8 x 4097 x 2048 (H200), with 7 blocks 79.3. With
    // states 87.2 us instead of 96.5 with 5 blocks; with sequence numbers 99.5, and 101.2 with 6.
    static constexpr bool kIsLean = kWidth <= 4 && !kSeqIdx && !kStates;
    static constexpr int kMinBlocks = kIsLean ? 8 : kStates ? 6 : 5;
    static constexpr bool kIsScaled = kSilu && kIsLean;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kLanes = 30;  // lanes of a warp with results
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kRows = kHalo + kTokens;
    static_assert(kIsWidth<kWidth> && kTokens >= 1 && sizeof(input_t) == 2 && kVec == 4);
};

// The phases of successive tokens.
struct Phases {
    int first;
    int turn;  // the next token's phase less a token's, modulo 4

    // Takes the first token's address and the distance between tokens in elements.
    template <typename T>
    __device__ __forceinline__ Phases(const T* p, index_t step)
        : first(static_cast<int>(reinterpret_cast<size_t>(p) / sizeof(T)) & 3), turn(static_cast<int>(step) & 3) {}

    __device__ __forceinline__ int of(int i) const { return first + i * turn & 3; }
    // The elements from the beginning of token i to the next aligned vector.
    __device__ __forceinline__ int ahead(int i) const { return -(first + i * turn) & 3; }
};

// Vectors kStart, kStart + 4 and so on, each moved to begin as many elements later.
template <int kDistance, int kStart, typename T, int kCount>
__device__ __forceinline__ void move_later(Vec<T, 4> (&rows)[kCount]) {
#pragma unroll
    for (int i = kStart; i < kCount; i += 4) rows[i] = shift_out<kDistance>(rows[i]);
}

// Moves vector i by distance(i) elements, which comes again after four vectors and is the same in all lanes. Branches
// choose among moves of a few instructions: by distances that are not known when the kernel is compiled a move takes
// three times as many.
template <int kStart = 0, typename T, int kCount, typename Distance>
__device__ __forceinline__ void move_later(Vec<T, 4> (&rows)[kCount], Distance distance) {
    if constexpr (kStart < 4) {
        const int own = distance(kStart);
        if (own == 1) {
            move_later<1, kStart>(rows);
        } else if (own == 2) {
            move_later<2, kStart>(rows);
        } else if (own == 3) {
            move_later<3, kStart>(rows);
        }
        move_later<kStart + 1>(rows, distance);
    }
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
    // Phases come again after kVec tokens.
    const input_t* x_at[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) x_at[i] = x_tile + (i * x_step - x_phases.of(i)) + channel;
    Vector x[kRows];
    // What precedes and follows a token inside the sequence is memory of x, too, or lies between two of its tokens.
    const bool is_near = channel >= 0 && channel < p.dim + kVec;
    if (token > kHalo && token + kTokens < p.seqlen) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            x[i] = Vector::zero();
            if (is_near) x[i] = load<kVec>(x_at[i % kVec] + i / kVec * (kVec * x_step));
        }
    } else {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            x[i] = Vector::zero();
            if (!is_near || i < begin || i >= end) continue;
            const int first = channel - x_phases.of(i);
            const index_t own = token + i - kHalo;
            const input_t* const at = x_at[i % kVec] + i / kVec * (kVec * x_step);
            if ((first < 0 || first + kVec > p.dim) && (own == 0 || own + 1 == p.seqlen)) {
                x[i] = load_part<kVec>(at, -first, p.dim - first);
            } else {
                x[i] = load<kVec>(at);
            }
        }
    }
    float bias[kVec];
    float taps[kVec][kWidth];
    load_filters<kWidth, weight_t>(p, channel, taps, bias);
    move_later(x, [&](int i) { return x_phases.of(i); });
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
        y[i] = Vector::from_floats(out);
    }

    const index_t out_step = p.out_stride[2];
    input_t* const out_tile = static_cast<input_t*>(p.out) + batch * p.out_stride[0] + token * out_step;
    const Phases out_phases(out_tile, out_step);
    move_later(y, [&](int i) { return out_phases.ahead(i); });
    if (lane_id() >= Traits::kLanes) return;
    input_t* out_at[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) out_at[i] = out_tile + (i * out_step + out_phases.ahead(i)) + channel;
    const bool is_inner = channel >= 0 && channel + 2 * kVec - 1 <= p.dim;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
        if (kHalo + i >= end) continue;
        input_t* const at = out_at[i % kVec] + i / kVec * (kVec * out_step);
        const int first = channel + out_phases.ahead(i);
        if (is_inner) {
            store(at, y[i]);
        } else {
            store_part(at, y[i], -first, p.dim - first);
        }
    }
    if (p.final_states != nullptr && token + kTokens >= p.seqlen) {
#pragma unroll 1
        for (int c = 0; c < kVec; ++c) {
            if (channel >= 0 && channel + c < p.dim) store_final_state<kWidth, input_t>(p, batch, channel + c);
        }
    }
}
