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
    int is_in_order;      // a tile's reach from the end of a batch entry lies in the next one, and so in front of it
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, bool kSeqIdx,
          bool kStates>
struct CausalConv1dOddchannelsFwdTraits {
    static constexpr int kThreads = 128;
    // About as causal_conv1d_channellast_fwd has them. On an H200 8 x 4097 x 2048 with states take 75.0 us, with 8
    // blocks 75.9; with sequence numbers 72.4, and 76.8 with 7 blocks, though a few registers spill.
    static constexpr int kMinBlocks = kTokens > 9 ? 5 : kStates && !kSeqIdx ? 7 : 8;
    // Whether tiles inside a batch entry have code of their own, without what its ends and states take. On an H200 8 x
    // 4097 x 2048 with sequence numbers and states take 74.4 us so instead of 76.9. Plain 1 x 2049 x 2048 take 8.1
    // instead of 7.9, and where many tiles are at an end it is slower, too: LONG_ODD_TOKENS in kernels.py.
    static constexpr bool kHasInner = kTokens == 9 && (kSeqIdx || kStates);
    static constexpr bool kIsScaled = kSilu;
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

// The results of kTokens tokens, from the kWidth - 1 inputs before them on. Lane i has the sequence number of row i.
template <bool kSeqIdx, bool kSilu, bool kIsScaled, typename input_t, int kVec, int kWidth, int kRows, int kTokens>
__device__ __forceinline__ void convolve_rows(const Vec<input_t, kVec> (&x)[kRows], const float (&taps)[kVec][kWidth],
                                              const float (&bias)[kVec], int own_seq,
                                              Vec<input_t, kVec> (&y)[kTokens]) {
    int seq[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) seq[i] = kSeqIdx ? from_lane(own_seq, i) : 0;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
        float out[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = x[i + k].to_float(c);
            out[c] = activate<input_t, kSilu, kSeqIdx, kIsScaled>(convolve<kSeqIdx>(taps[c], bias[c], window, seq + i),
                                                                  seq[kRows - kTokens + i]);
        }
        y[i] = Vec<input_t, kVec>::from_floats(out);
    }
}

// Convolves a warp's tile. kIsInner: neither its tokens nor those that they depend on are at an end of a batch entry.
template <typename Traits, bool kIsInner, int kWidth, typename input_t, typename weight_t, int kVec, int kTokens,
          bool kSilu, bool kSeqIdx>
__device__ __forceinline__ void convolve_tile(const CausalConv1dOddchannelsFwdParams& params,
                                              const CausalConv1dOperands& p, index_t batch, index_t token,
                                              int channel) {
    using Vector = Vec<input_t, kVec>;
    constexpr int kHalo = Traits::kHalo;
    constexpr int kRows = Traits::kRows;
    // Row i holds token + i - kHalo; rows begin to end - 1 lie inside the sequence.
    const int begin = !kIsInner && token < kHalo ? kHalo - static_cast<int>(token) : 0;
    const int end = !kIsInner && p.seqlen - token < kTokens ? kHalo + static_cast<int>(p.seqlen - token) : kRows;
    // The sequence number of row i is that of lane i. Where all are the same, no token looks at them. They are loaded
    // before x, for behind what waits for x they are a second wait: 86.8 us instead of 75.7 for 8 x 4097 x 2048 (H200).
    static_assert(kRows <= kWarpSize);
    int own_seq = 0;
    if constexpr (kSeqIdx) {
        const index_t row = token + min(lane_id(), kRows - 1) - kHalo;
        own_seq = load_seq_idx(p, batch, row < p.seqlen ? row : p.seqlen - 1);
    }
    const index_t x_step = p.x_stride[2];
    const input_t* const x_tile = static_cast<const input_t*>(p.x) + batch * p.x_stride[0] + (token - kHalo) * x_step;
    const Phases x_phases(x_tile, x_step);
    // Phases come again after kVec tokens.
    const input_t* x_at[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) x_at[i] = x_tile + (i * x_step - x_phases.of(i)) + channel;
    Vector x[kRows];
    const bool is_near = channel >= 0 && channel < p.dim + kVec;
    // What lies between elements of x is memory of the same array. Only the tiles at its ends take care of what they
    // read; elsewhere zeros replace what precedes a sequence, and what follows it is not used.
    const bool has_before = token > kHalo || (params.is_in_order && batch > 0);
    const bool has_behind = token + kTokens < p.seqlen || (params.is_in_order && batch + 1 < p.batch);
    if (kIsInner || (has_before && has_behind)) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            x[i] = Vector::zero();
            if (is_near) x[i] = load<kVec>(x_at[i % kVec] + i / kVec * (kVec * x_step));
        }
    } else {
        // What begins in front of the first token, or of the last one, or ends behind it, comes an element at a time,
        // on its way together with the other vectors.
        const auto is_part = [&](int i) {
            const int first = channel - x_phases.of(i);
            return (i == begin || i == end - 1) && (first < 0 || first + kVec > p.dim);
        };
        Vector parts[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const int row = k == 0 ? begin : end - 1;
            const int first = channel - x_phases.of(row);
            const int behind = is_near && begin < end && is_part(row) ? p.dim - first : 0;
            parts[k] = load_part<kVec>(x_tile + row * x_step + first, -first, behind);
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            x[i] = Vector::zero();
            if (!is_near || i < begin || i >= end) continue;
            if (is_part(i)) {
                x[i] = select(i == begin, parts[0], parts[1]);
            } else {
                x[i] = load<kVec>(x_at[i % kVec] + i / kVec * (kVec * x_step));
            }
        }
    }
    float bias[kVec];
    float taps[kVec][kWidth];
    load_filters<kWidth, weight_t>(p, channel, taps, bias);
    // Here and not where x is loaded: even where there is nothing to replace it waits for x.
    if (!kIsInner && begin > 0) {
#pragma unroll
        for (int i = 0; i < kHalo; ++i) x[i] = select(i < begin, Vector::zero(), x[i]);
    }
    move_later(x, [&](int i) { return x_phases.of(i); });
    if (!kIsInner && begin > 0 && p.initial_states != nullptr) {
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
    bool is_one = true;
    if constexpr (kSeqIdx) {
        const int first_seq = from_lane(own_seq, 0);
        is_one = first_seq >= 0 && lanes_where(own_seq != first_seq) == 0;
    }
    Vector y[kTokens];
    if (is_one) {
        convolve_rows<false, kSilu, Traits::kIsScaled>(x, taps, bias, own_seq, y);
    } else {
        convolve_rows<kSeqIdx, kSilu, Traits::kIsScaled>(x, taps, bias, own_seq, y);
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
    if (is_inner) {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            if (kHalo + i < end) store(out_at[i % kVec] + i / kVec * (kVec * out_step), y[i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            if (kHalo + i >= end) continue;
            const int first = channel + out_phases.ahead(i);
            store_part(out_at[i % kVec] + i / kVec * (kVec * out_step), y[i], -first, p.dim - first);
        }
    }
    if (!kIsInner && p.final_states != nullptr && token + kTokens >= p.seqlen) {
#pragma unroll 1
        for (int c = 0; c < kVec; ++c) {
            if (channel >= 0 && channel + c < p.dim) store_final_state<kWidth, input_t>(p, batch, channel + c);
        }
    }
}

template <int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu, bool kSeqIdx,
          bool kStates,
          typename Traits =
              CausalConv1dOddchannelsFwdTraits<kWidth, input_t, weight_t, kVec, kTokens, kSilu, kSeqIdx, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_oddchannels_fwd_kernel(const CausalConv1dOddchannelsFwdParams params) {
    const CausalConv1dOperands p = with_states<kStates>(params.operands);

    const int warp = uniform(static_cast<int>(threadIdx.x) / kWarpSize);
    const QuotientRemainder rest_dim = divide(blockIdx.x, params.dim_blocks);
    const QuotientRemainder batch_time = divide(rest_dim.quotient, params.time_blocks);
    const index_t batch = batch_time.quotient;
    const index_t token = (static_cast<index_t>(batch_time.remainder) * Traits::kWarps + warp) * kTokens;
    if (token > 0 && token >= p.seqlen) return;  // whole warps leave: the shuffles below stay complete
    const int channel = (static_cast<int>(rest_dim.remainder) * Traits::kLanes + lane_id() - 1) * kVec;

    if (Traits::kHasInner && token > Traits::kHalo && token + kTokens < p.seqlen) {
        convolve_tile<Traits, true, kWidth, input_t, weight_t, kVec, kTokens, kSilu, kSeqIdx>(params, p, batch, token,
                                                                                              channel);
    } else {
        convolve_tile<Traits, false, kWidth, input_t, weight_t, kVec, kTokens, kSilu, kSeqIdx>(params, p, batch, token,
                                                                                               channel);
    }
}
