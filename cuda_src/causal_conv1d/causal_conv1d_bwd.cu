// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for rows whose sequence is
// contiguous. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]    dweight[w] = sum_t g[t] * x[t - (width - 1) + w]    dbias = sum_t g[t]
//
// Layout: x, dx (batch, dim, seqlen), seqlen stride 1; any strides when kVec is 1. dout the same, or any strides element
// by element. A warp has one channel, or when rows are shorter than 32 vectors as many consecutive channels as its lanes
// have vectors for. A group is what its lanes hold of one batch entry at a time: up to 32 consecutive vectors of a row.
// The channel's groups, row after row, count as one list; a warp walks a part of it from its end to its beginning, kSlots
// groups a step, all of whose loads are issued before the first is used. Inputs before a vector come from the lane below
// by shuffle, gradients behind it from the lane above, those of the highest lane from the lowest in the group before. The
// parameters' gradients stay in registers until the warp's last group; the block adds up those of its lanes and warps in a
// fixed order. No atomics.
//
// kWidth    filter taps              input_t   x, dout and dx            weight_t  weight, and bias unless float
// kVec      elements an access       kSlots    groups a step             kSilu     silu after the sum
// kSeqIdx   tokens see only their own sequence number                kPacked   rows are packed sequences
// kStates   initial states, or gradients of states, are given or wanted
#include "causal_conv1d/conv_bwd.cuh"
#include "common/fastdiv.cuh"
#include "common/warp.cuh"

struct CausalConv1dBwdParams {
    CausalConv1dBwdOperands operands;
    FastDiv row_lanes;       // lanes a row
    FastDiv row_groups;      // groups a row
    FastDiv channel_groups;  // warps' channels
    unsigned warp_rows;      // channels a warp
    unsigned groups;         // of a channel, in all rows
    unsigned warp_groups;    // that a warp walks
    int row_vecs;            // vectors a row
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kSlots, bool kSilu, bool kSeqIdx, bool kPacked,
          bool kStates>
struct CausalConv1dBwdTraits {
    static constexpr int kThreads = 128;
    static constexpr Rows kRows = kRowsOf<kSeqIdx, kPacked>;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr bool kIsLean = kWidth <= 4 && kRows == Rows::kOne && !kStates;
    static constexpr int kMinBlocks = kIsLean ? 5 : 1;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kHaloVecs = (kHalo + kVec - 1) / kVec;
    static_assert(kWidth >= 1 && kWidth <= 16 && kSlots >= 1);
};

// A lane's place in a group: vector `vec` of the row of a batch entry. Vectors lie where memory is aligned, not where the
// row begins: vector j holds the tokens from j * kVec - phase on.
template <typename input_t, int kVec>
struct GradientRow {
    index_t batch;
    int vec;
    int token;
    const input_t* x;  // of token 0, as are the others
    const input_t* dout;
    input_t* dx;

    GradientRow() = default;

    __device__ __forceinline__ GradientRow(const CausalConv1dBwdOperands& p, index_t batch_, index_t channel, int vec_)
        : batch(batch_), vec(vec_) {
        x = static_cast<const input_t*>(p.x) + batch * p.x_stride[0] + channel * p.x_stride[1];
        dout = static_cast<const input_t*>(p.dout) + batch * p.dout_stride[0] + channel * p.dout_stride[1];
        dx = static_cast<input_t*>(p.dx) + batch * p.dx_stride[0] + channel * p.dx_stride[1];
        token = vec * kVec - static_cast<int>(reinterpret_cast<size_t>(x) / sizeof(input_t) % kVec);
    }

    // Which elements of the vector lie inside the row.
    __device__ __forceinline__ int begin() const { return token < 0 ? -token : 0; }
    __device__ __forceinline__ int end(const CausalConv1dBwdOperands& p) const {
        return p.seqlen - token < kVec ? p.seqlen - token : kVec;
    }
    __device__ __forceinline__ bool is_whole(const CausalConv1dBwdOperands& p) const {
        return token >= 0 && token + kVec <= p.seqlen;
    }
};

template <int kWidth, typename input_t, typename weight_t, int kVec, bool kSilu, Rows kRows, bool kStates>
struct RowGradients {
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kHaloVecs = (kHalo + kVec - 1) / kVec;
    using Vector = Vec<input_t, kVec>;
    using Row = GradientRow<input_t, kVec>;

    const CausalConv1dBwdOperands& p;
    index_t channel;
    int row_vecs;
    float taps[kWidth];
    float bias;
    ParameterSums<kWidth> sums;
    float next[kVec];  // gradients of the group behind, in the lowest lanes

    __device__ __forceinline__ RowGradients(const CausalConv1dBwdOperands& p_, index_t channel_, int row_vecs_)
        : p(p_), channel(channel_), row_vecs(row_vecs_), sums(ParameterSums<kWidth>::zero()) {
        load_taps<kWidth, weight_t>(p, channel, taps);
        bias = load_bias<weight_t>(p, channel);
        if constexpr (kSilu) scale_for_silu<input_t>(taps, bias);
#pragma unroll
        for (int i = 0; i < kVec; ++i) next[i] = 0.0f;
    }

    // A vector of x if all of it lies inside the row, else zero: complete() adds what there is.
    __device__ __forceinline__ Vector load_x(const Row& row) const {
        if (!row.is_whole(p)) return Vector::zero();
        return load<kVec>(kVec > 1 ? row.x + row.token : row.x + row.token * p.x_stride[2]);
    }
    __device__ __forceinline__ Vector load_g(const Row& row) const {
        if (!row.is_whole(p)) return Vector::zero();
        return load_dout<kVec>(row.dout + row.token * (kVec > 1 && p.dout_is_packed ? 1 : p.dout_stride[2]),
                               p.dout_stride[2], p.dout_is_packed != 0);
    }

    // Apart from the loads because merging elements waits for them.
    __device__ __forceinline__ void complete(const Row& row, Vector& x) const {
        if (kVec == 1 || row.is_whole(p) || row.token >= p.seqlen) return;
        x = load_part<kVec>(row.x + row.token, row.begin(), row.end(p));
    }
    __device__ __forceinline__ void complete(const Row& row, Vector& x, Vector& dout) const {
        if (kVec == 1 || row.is_whole(p) || row.token >= p.seqlen) return;
        complete(row, x);
        const index_t step = p.dout_stride[2];
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            if (i >= row.begin() && i < row.end(p)) dout.put(i, row.dout[(row.token + i) * step]);
        }
    }

    // The gradients of the group behind, of which the highest lanes need the first: lane i computes that of its token i.
    __device__ __forceinline__ void begin_behind(const Row& row, int vec) {
        static_assert(kHaloVecs * kVec <= kWarpSize, "every token has a lane");
        const int token = row.token + (vec - row.vec) * kVec + lane_id();
        float window[kWidth];
        int seq[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            const int at = token - kHalo + k;
            window[k] = at < p.seqlen && lane_id() < kHalo ? input(row, at) : 0.0f;
        }
        load_numbers<kRows>(p, row.batch, token - kHalo, seq);
        keep_own_inputs<kRows, kWidth, input_t>(p, channel, token, seq, window);
        float g = 0.0f;
        if (token < p.seqlen && lane_id() < kHalo && (kRows == Rows::kOne || seq[kHalo] >= 0)) {
            const float dout = Dtype<input_t>::to_float(row.dout[token * p.dout_stride[2]]);
            g = token_gradient<kSilu, input_t>(taps, bias, window, dout);
        }
#pragma unroll
        for (int i = 0; i < kVec; ++i) next[i] = from_lane(g, lane_id() * kVec + i);
    }

    // One group: `before` holds, in the highest lanes, the inputs of the group before it.
    __device__ __forceinline__ void add(const Row& row, const Vector& before, const Vector& own, const Vector& dout) {
        float x[kHalo + kVec];
        gather_inputs(row, before, own, x);
        int seq[kHalo + kVec + kHalo];
        load_numbers<kRows>(p, row.batch, row.token - kHalo, seq);
        float g[kVec + kHalo];
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = x[i + k];
            keep_own_inputs<kRows, kWidth, input_t>(p, channel, row.token + i, seq + i, window);
            g[i] = token_gradient<kSilu, input_t>(taps, bias, window, dout.to_float(i));
            if (kRows != Rows::kOne) g[i] = seq[i + kHalo] < 0 ? 0.0f : g[i];
            sums.add(g[i], window);
        }
        gather_gradients<1>(row, g);
#pragma unroll
        for (int i = 0; i < kVec; ++i) next[i] = g[i];
        float dx[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            float following[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) following[k] = g[i + k];
            dx[i] = input_gradient<kRows>(taps, following, seq + kHalo + i);
        }
        if constexpr (kStates && kHalo > 0) {
            add_final(row, seq, dx);
            if (kRows != Rows::kPacked && p.dinitial_states != nullptr && row.vec == 0) store_initial(row, g, dx, seq);
        }
        store_inputs(row, Vector::from_floats(dx));
    }

 private:
    // An input, or what the row's past holds before the first.
    __device__ __forceinline__ float input(const Row& row, int token) const {
        if (token >= 0) return Dtype<input_t>::to_float(row.x[kVec > 1 ? token : token * p.x_stride[2]]);
        if (kRows == Rows::kPacked || p.initial_states == nullptr || token < -kHalo) return 0.0f;
        return load_initial<input_t>(p, row.batch, channel, token + kHalo);
    }

    __device__ __forceinline__ void gather_inputs(const Row& row, const Vector& before, const Vector& own,
                                                  float (&x)[kHalo + kVec]) const {
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[kHalo + i] = own.to_float(i);
        gather_before<1>(row, before, own, x);
        if (p.initial_states != nullptr && kRows != Rows::kPacked && row.token < kHalo) {
#pragma unroll
            for (int i = 0; i < kHalo + kVec; ++i) {
                if (row.token - kHalo + i < 0) x[i] = input(row, row.token - kHalo + i);
            }
        }
    }

    template <int kDistance>
    __device__ __forceinline__ void gather_before(const Row& row, const Vector& before, const Vector& own,
                                                  float (&x)[kHalo + kVec]) const {
        if constexpr (kDistance <= kHaloVecs) {
            constexpr int kFirst = kHalo - kDistance * kVec;
            constexpr int kSkip = kFirst < 0 ? -kFirst : 0;
            const Vector v = shift_in<kSkip / Vector::kPerWord>(before, own, kDistance);
            const bool is_inside = row.vec >= kDistance;
#pragma unroll
            for (int i = kSkip; i < kVec; ++i) x[kFirst + i] = is_inside ? v.to_float(i) : 0.0f;
            gather_before<kDistance + 1>(row, before, own, x);
        }
    }

    template <int kDistance>
    __device__ __forceinline__ void gather_gradients(const Row& row, float (&g)[kVec + kHalo]) const {
        if constexpr (kDistance <= kHaloVecs) {
            const bool is_inside = row.vec + kDistance < row_vecs;
            const bool is_offered_behind = lane_id() < kDistance;
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
                if (kDistance * kVec + i < kVec + kHalo) {
                    const float above = from_lane(is_offered_behind ? next[i] : g[i], lane_id() + kDistance);
                    g[kDistance * kVec + i] = is_inside ? above : 0.0f;
                }
            }
            gather_gradients<kDistance + 1>(row, g);
        }
    }

    __device__ __forceinline__ void add_final(const Row& row, const int* seq, float (&dx)[kVec]) const {
        if (p.dfinal_states == nullptr || row.token >= p.seqlen) return;
        if (kRows != Rows::kPacked && row.token + kVec <= p.seqlen - kHalo) return;
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            const int number = kRows == Rows::kPacked ? seq[kHalo + i] : 0;
            if (row.token + i < p.seqlen) {
                dx[i] += final_gradient_of<kRows, kWidth, input_t>(p, row.batch, channel, row.token + i, number);
            }
        }
    }

    // The first vector of a row holds gradients of the initial state before the row's first token, and has what makes
    // those before the vector.
    __device__ __forceinline__ void store_initial(const Row& row, const float (&g)[kVec + kHalo],
                                                  const float (&dx)[kVec], const int* seq) const {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            const int column = row.token + i + kHalo;
            if (row.token + i < 0 && column >= 0) {
                store_initial_gradient<input_t>(p, row.batch, channel, column, dx[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            const int token = row.token - kHalo + i;
            float sum = final_gradient<kWidth, input_t>(p, row.batch, channel, token, p.seqlen);
#pragma unroll
            for (int k = kHalo - i; k < kWidth; ++k) {
                // seq[i] continues the number of the first token.
                if (kRows == Rows::kOne || seq[i + k] == seq[i]) sum = fmaf(taps[kHalo - k], g[i + k - kHalo], sum);
            }
            if (token + kHalo >= 0) store_initial_gradient<input_t>(p, row.batch, channel, token + kHalo, sum);
        }
    }

    __device__ __forceinline__ void store_inputs(const Row& row, const Vector& dx) const {
        if (row.is_whole(p)) {
            store(kVec > 1 ? row.dx + row.token : row.dx + row.token * p.dx_stride[2], dx);
        } else if (kVec > 1 && row.token < p.seqlen) {
            store_part(row.dx + row.token, dx, row.begin(), row.end(p));
        }
    }
};

// Adds up the sums of the lanes of each row, then those of the block's warps, and writes them.
template <typename Traits, int kWidth, typename weight_t>
__device__ __forceinline__ void store_block_sums(const CausalConv1dBwdOperands& p, const ParameterSums<kWidth>& sums,
                                                 float scale, const QuotientRemainder& row_lane, unsigned row_lanes,
                                                 unsigned warp_rows, index_t first_channel, unsigned part) {
    __shared__ float shared[Traits::kWarps][(kWidth + 1) * kWarpSize];
    const unsigned warp = threadIdx.x / kWarpSize;
#pragma unroll
    for (int j = 0; j <= kWidth; ++j) {
        float sum = sums.at(j) * scale;
#pragma unroll
        for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
            const float above = from_lane(sum, lane_id() + distance);
            if (row_lane.remainder + distance < row_lanes) sum += above;
        }
        if (row_lane.remainder == 0) shared[warp][j * kWarpSize + row_lane.quotient] = sum;
    }
    __syncthreads();
    const unsigned row = threadIdx.x % kWarpSize;
    if (row >= warp_rows || first_channel + row >= p.dim) return;
    for (int j = static_cast<int>(warp); j <= kWidth; j += Traits::kWarps) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < Traits::kWarps; ++i) sum += shared[i][j * kWarpSize + row];
        store_block_sum<kWidth, weight_t>(p, part, first_channel + row, j, sum);
    }
}

template <int kWidth, typename input_t, typename weight_t, int kVec, int kSlots, bool kSilu, bool kSeqIdx, bool kPacked,
          bool kStates, typename Traits = CausalConv1dBwdTraits<kWidth, input_t, weight_t, kVec, kSlots, kSilu, kSeqIdx, kPacked, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_bwd_kernel(const CausalConv1dBwdParams params) {
    using Gradients = RowGradients<kWidth, input_t, weight_t, kVec, kSilu, Traits::kRows, kStates>;
    using Vector = Vec<input_t, kVec>;
    using Row = GradientRow<input_t, kVec>;
    const CausalConv1dBwdOperands p = with_states<kStates>(params.operands);

    const QuotientRemainder part_channels = divide(blockIdx.x, params.channel_groups);
    const QuotientRemainder row_lane = divide(lane_id(), params.row_lanes);
    const index_t first_channel = static_cast<index_t>(part_channels.remainder) * params.warp_rows;
    const bool is_idle = row_lane.quotient >= params.warp_rows || first_channel + row_lane.quotient >= p.dim;
    const index_t channel = is_idle ? 0 : first_channel + row_lane.quotient;
    const unsigned warp = part_channels.quotient * Traits::kWarps + threadIdx.x / kWarpSize;
    const int begin = static_cast<int>(min(warp * params.warp_groups, params.groups));
    const int end = static_cast<int>(min(begin + params.warp_groups, params.groups));
    const int row_groups = static_cast<int>(params.row_groups.divisor);

    // Lanes that have no row lie behind the end of one.
    const auto place = [&](int group) {
        const QuotientRemainder batch_group = divide(static_cast<unsigned>(group), params.row_groups);
        const int vec = static_cast<int>(batch_group.remainder) * kWarpSize + static_cast<int>(row_lane.remainder);
        return Row(p, batch_group.quotient, channel, is_idle ? params.row_vecs : vec);
    };
    Gradients gradients(p, channel, params.row_vecs);
    if constexpr (Traits::kHalo > 0) {
        if (begin < end && divide(static_cast<unsigned>(end), params.row_groups).remainder != 0) {
            const Row row = place(end - 1);
            gradients.begin_behind(row, row.vec - lane_id() + kWarpSize);
        }
    }
#pragma unroll 1
    for (int top = end - 1; top >= begin; top -= kSlots) {
        // Slot i has the group top - i; of the group before the lowest only what is in reach is loaded.
        Row rows[kSlots + 1];
        Vector x[kSlots + 1];
        Vector dout[kSlots];
        bool is_before[kSlots + 1];
#pragma unroll
        for (int i = 0; i <= kSlots; ++i) {
            const int group = top - i;
            x[i] = Vector::zero();
            is_before[i] = false;
            if (i < kSlots) dout[i] = Vector::zero();
            if (i < kSlots && group >= begin) {
                rows[i] = place(group);
                x[i] = gradients.load_x(rows[i]);
                dout[i] = gradients.load_g(rows[i]);
            } else if (Traits::kHalo > 0 && row_groups > 1 && (i == kSlots || group == begin - 1) && group >= 0) {
                rows[i] = place(group);
                is_before[i] = lane_id() >= kWarpSize - Traits::kHaloVecs;
                if (is_before[i]) x[i] = gradients.load_x(rows[i]);
            }
        }
#pragma unroll
        for (int i = 0; i <= kSlots; ++i) {
            if (i < kSlots && top - i >= begin) {
                gradients.complete(rows[i], x[i], dout[i < kSlots ? i : 0]);
            } else if (is_before[i]) {
                gradients.complete(rows[i], x[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kSlots; ++i) {
            if (top - i < begin) break;
            gradients.add(rows[i], x[i + 1], x[i], dout[i]);
        }
    }
    store_block_sums<Traits, kWidth, weight_t>(p, gradients.sums, kSumScale<input_t, kSilu>, row_lane,
                                               params.row_lanes.divisor, params.warp_rows, first_channel,
                                               part_channels.quotient);
}
