// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for rows whose sequence
// is contiguous. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dx (batch, dim, seqlen), seqlen stride 1; any strides when kVec is 1. dout the same, or any strides
// element by element. A warp has one channel, or when rows are shorter than 32 vectors as many consecutive channels as
// its lanes have vectors for. A group is what its lanes hold of one batch entry at a time: up to 32 consecutive vectors
// of a row. The channel's groups, row after row, count as one list; a warp walks a part of it from its end to its
// beginning. Groups come to shared memory while others are computed; a lane finds the inputs before its vector there,
// and gets the gradients behind it by shuffle from the lane above, the highest lane from the lowest in the group
// before. The parameters' gradients stay in registers until the warp's last group; the block adds up those of its lanes
// and warps in a fixed order. No barrier but for that, and no atomics.
//
// kWidth    filter taps              input_t   x, dout and dx            weight_t  weight, and bias unless float
// kVec      elements an access       kSilu     silu after the sum
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
    int has_edges;           // some vectors lie inside a row only in part
    int is_dense;            // x and dout have no gaps: what lies around a row is memory, too
};

template <int kWidth, typename input_t, typename weight_t, int kVec, bool kSilu, bool kSeqIdx, bool kPacked,
          bool kStates>
struct CausalConv1dBwdTraits {
    static constexpr int kThreads = 128;
    static constexpr Rows kRows = kRowsOf<kSeqIdx, kPacked>;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr bool kIsLean = kWidth <= 4 && kRows == Rows::kOne && !kStates;
    static constexpr int kMinBlocks = kIsLean ? 8 : kWidth <= 4 ? 4 : 1;
    // Groups in shared memory or on their way there: the one that is computed, the one before it, and two more.
    static constexpr int kStages = 4;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kHaloVecs = (kHalo + kVec - 1) / kVec;
    static_assert(kWidth >= 1 && kWidth <= 16);
};

// Where a lane's vector of a group lies: vector `vec` of a row, which begins with the token `token`. Vectors lie where
// memory is aligned, not where the row begins: vector j holds the tokens from j * kVec - phase on.
template <int kVec>
struct Place {
    int vec;
    int token;

    // `row` is any of x, dx at the row's first token: all are equally far from where memory is aligned.
    template <typename T>
    __device__ __forceinline__ Place(const T* row, int vec_)
        : vec(vec_), token(vec * kVec - static_cast<int>(reinterpret_cast<size_t>(row) / sizeof(T) % kVec)) {}

    // Which elements of the vector lie inside the row.
    __device__ __forceinline__ int begin() const { return token < 0 ? -token : 0; }
    __device__ __forceinline__ int end(int seqlen) const { return seqlen - token < kVec ? seqlen - token : kVec; }
    __device__ __forceinline__ bool is_whole(int seqlen) const { return token >= 0 && token + kVec <= seqlen; }
};

// The groups of a lane's channel from one on, downwards: where the rows of kArrays arrays are.
template <typename T, int kArrays>
struct GroupWalk {
    int row_groups;  // groups a row
    int batch;
    int group;        // of the row
    T* row[kArrays];  // its first token
    index_t stride[kArrays];

    __device__ __forceinline__ GroupWalk(const QuotientRemainder& batch_group, int row_groups_)
        : row_groups(row_groups_),
          batch(static_cast<int>(batch_group.quotient)),
          group(static_cast<int>(batch_group.remainder)) {}

    // An array of (batch, dim, seqlen), its memory and its strides.
    template <typename Pointer>
    __device__ __forceinline__ void add(int i, Pointer pointer, const index_t (&strides)[3], index_t channel) {
        stride[i] = strides[0];
        row[i] = static_cast<T*>(pointer) + batch * strides[0] + channel * strides[1];
    }

    __device__ __forceinline__ void step() {
        if (group-- > 0) return;
        group = row_groups - 1;
        --batch;
#pragma unroll
        for (int i = 0; i < kArrays; ++i) row[i] -= stride[i];
    }
};

// A lane's channel: its filter, the sums over what the lane has seen, and the gradients of one group.
template <int kWidth, typename input_t, typename weight_t, int kVec, bool kSilu, Rows kRows, bool kStates>
struct RowGradients {
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kHaloVecs = (kHalo + kVec - 1) / kVec;
    using Vector = Vec<input_t, kVec>;

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

    // The gradients of the group behind, of which the highest lanes need the first: lane i computes that of its token
    // i.
    __device__ __forceinline__ void begin_behind(int batch, const input_t* x, const input_t* dout, int first) {
        static_assert(kHaloVecs * kVec <= kWarpSize, "every token has a lane");
        const int token = first + lane_id();
        float window[kWidth];
        int seq[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            const int at = token - kHalo + k;
            const bool is_inside = at >= 0 && at < p.seqlen && lane_id() < kHalo;
            window[k] = is_inside ? Dtype<input_t>::to_float(x[kVec > 1 ? at : at * p.x_stride[2]]) : 0.0f;
            if (at < 0 && lane_id() < kHalo) window[k] = before_row(batch, at);
        }
        load_numbers<kRows>(p, batch, token - kHalo, seq);
        keep_own_inputs<kRows, kWidth, input_t>(p, channel, token, seq, window);
        float g = 0.0f;
        if (token < p.seqlen && lane_id() < kHalo && (kRows == Rows::kOne || seq[kHalo] >= 0)) {
            g = token_gradient<kSilu, input_t>(taps, bias, window,
                                               Dtype<input_t>::to_float(dout[token * p.dout_stride[2]]));
        }
#pragma unroll
        for (int i = 0; i < kVec; ++i) next[i] = from_lane(g, lane_id() * kVec + i);
    }

    // One group: a warp's inputs lie in `own_group`, those of the group before it in `group_before`.
    __device__ __forceinline__ void add(const Place<kVec>& place, int batch, input_t* dx_row, const Vector* own_group,
                                        const Vector* group_before, const Vector& own, const Vector& dout) {
        float x[kHalo + kVec];
        gather_inputs(place, batch, own_group, group_before, own, x);
        int seq[kHalo + kVec + kHalo];
        load_numbers<kRows>(p, batch, place.token - kHalo, seq);
        float g[kVec + kHalo];
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = x[i + k];
            keep_own_inputs<kRows, kWidth, input_t>(p, channel, place.token + i, seq + i, window);
            g[i] = token_gradient<kSilu, input_t>(taps, bias, window, dout.to_float(i));
            if (kRows != Rows::kOne) g[i] = seq[i + kHalo] < 0 ? 0.0f : g[i];
            sums.add(g[i], window);
        }
        gather_gradients<1>(place, g);
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
            add_final(place, batch, seq, dx);
            if (kRows != Rows::kPacked && p.dinitial_states != nullptr && place.vec == 0) {
                store_initial(place, batch, g, dx, seq);
            }
        }
        input_t* to = dx_row + (kVec > 1 ? place.token : place.token * p.dx_stride[2]);
        if (place.is_whole(p.seqlen)) {
            store(as_global(to), Vector::from_floats(dx));
        } else if (kVec > 1 && place.token < p.seqlen) {
            store_part(to, Vector::from_floats(dx), place.begin(), place.end(p.seqlen));
        }
    }

 private:
    // What the initial state has for a token before the row's first.
    __device__ __forceinline__ float before_row(int batch, int token) const {
        if (kRows == Rows::kPacked || p.initial_states == nullptr || token < -kHalo) return 0.0f;
        return load_initial<input_t>(p, batch, channel, token + kHalo);
    }

    __device__ __forceinline__ void gather_inputs(const Place<kVec>& place, int batch, const Vector* own_group,
                                                  const Vector* group_before, const Vector& own,
                                                  float (&x)[kHalo + kVec]) const {
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[kHalo + i] = own.to_float(i);
#pragma unroll
        for (int distance = 1; distance <= kHaloVecs; ++distance) {
            const bool is_own_group = lane_id() >= distance;
            const Vector& v = (is_own_group ? own_group : group_before + kWarpSize)[lane_id() - distance];
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
                const int at = kHalo - distance * kVec + i;
                if (at >= 0) x[at >= 0 ? at : 0] = v.to_float(i);
            }
        }
        if (kHalo > 0 && place.token < kHalo) {
            // What lies before the row, or its initial state.
#pragma unroll
            for (int i = 0; i < kHalo + kVec; ++i) {
                const int token = place.token - kHalo + i;
                if (token < 0) x[i] = before_row(batch, token);
            }
        }
    }

    template <int kDistance>
    __device__ __forceinline__ void gather_gradients(const Place<kVec>& place, float (&g)[kVec + kHalo]) const {
        if constexpr (kDistance <= kHaloVecs) {
            const bool is_inside = place.vec + kDistance < row_vecs;
            const bool is_offered_behind = lane_id() < kDistance;
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
                if (kDistance * kVec + i < kVec + kHalo) {
                    const float above = from_lane(is_offered_behind ? next[i] : g[i], lane_id() + kDistance);
                    g[kDistance * kVec + i] = is_inside ? above : 0.0f;
                }
            }
            gather_gradients<kDistance + 1>(place, g);
        }
    }

    __device__ __forceinline__ void add_final(const Place<kVec>& place, int batch, const int* seq,
                                              float (&dx)[kVec]) const {
        if (p.dfinal_states == nullptr || place.token >= p.seqlen) return;
        if (kRows != Rows::kPacked && place.token + kVec <= p.seqlen - kHalo) return;
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            const int number = kRows == Rows::kPacked ? seq[kHalo + i] : 0;
            if (place.token + i < p.seqlen) {
                dx[i] += final_gradient_of<kRows, kWidth, input_t>(p, batch, channel, place.token + i, number);
            }
        }
    }

    // The first vector of a row holds gradients of the initial state before the row's first token, and has what makes
    // those before the vector.
    __device__ __forceinline__ void store_initial(const Place<kVec>& place, int batch, const float (&g)[kVec + kHalo],
                                                  const float (&dx)[kVec], const int* seq) const {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            const int column = place.token + i + kHalo;
            if (place.token + i < 0 && column >= 0) {
                store_initial_gradient<input_t>(p, batch, channel, column, dx[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            const int token = place.token - kHalo + i;
            float sum = final_gradient<kWidth, input_t>(p, batch, channel, token, p.seqlen);
#pragma unroll
            for (int k = kHalo - i; k < kWidth; ++k) {
                // seq[i] continues the number of the first token.
                if (kRows == Rows::kOne || seq[i + k] == seq[i]) sum = fmaf(taps[kHalo - k], g[i + k - kHalo], sum);
            }
            if (token + kHalo >= 0) store_initial_gradient<input_t>(p, batch, channel, token + kHalo, sum);
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

template <int kWidth, typename input_t, typename weight_t, int kVec, bool kSilu, bool kSeqIdx, bool kPacked,
          bool kStates,
          typename Traits = CausalConv1dBwdTraits<kWidth, input_t, weight_t, kVec, kSilu, kSeqIdx, kPacked, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_bwd_kernel(const CausalConv1dBwdParams params) {
    using Gradients = RowGradients<kWidth, input_t, weight_t, kVec, kSilu, Traits::kRows, kStates>;
    using Vector = Vec<input_t, kVec>;
    const CausalConv1dBwdOperands p = with_states<kStates>(params.operands);

    __shared__ Vector ring[Traits::kStages][2][Traits::kThreads];

    const QuotientRemainder part_channels = divide(blockIdx.x, params.channel_groups);
    const QuotientRemainder row_lane = divide(lane_id(), params.row_lanes);
    const index_t first_channel = static_cast<index_t>(part_channels.remainder) * params.warp_rows;
    const bool is_idle = row_lane.quotient >= params.warp_rows || first_channel + row_lane.quotient >= p.dim;
    const index_t channel = is_idle ? 0 : first_channel + row_lane.quotient;
    const unsigned warp = part_channels.quotient * Traits::kWarps + threadIdx.x / kWarpSize;
    const int begin = uniform(static_cast<int>(min(warp * params.warp_groups, params.groups)));
    const int end = uniform(static_cast<int>(min(begin + params.warp_groups, params.groups)));
    const int row_groups = static_cast<int>(params.row_groups.divisor);
    // Lanes that have no row lie behind the end of one.
    const int lane_vec = is_idle ? params.row_vecs : static_cast<int>(row_lane.remainder);

    const QuotientRemainder last = divide(static_cast<unsigned>(max(end - 1, 0)), params.row_groups);
    GroupWalk<const input_t, 2> inputs(last, row_groups);
    inputs.add(0, p.x, p.x_stride, channel);
    inputs.add(1, p.dout, p.dout_stride, channel);
    GroupWalk<input_t, 1> outputs(last, row_groups);
    outputs.add(0, p.dx, p.dx_stride, channel);

    const input_t* const x_end = static_cast<const input_t*>(p.x) + static_cast<index_t>(p.batch) * p.dim * p.seqlen;
    const Place<kVec> behind(inputs.row[0], (inputs.group + 1) * kWarpSize);
    const bool begins_behind = Traits::kHalo > 0 && begin < end && inputs.group + 1 < row_groups;
    const input_t* const first_x = inputs.row[0];
    const input_t* const first_dout = inputs.row[1];
    // Brings a group, or of the one before the last what is in reach, to the lane's place among those of a stage.
    int fetched = end - 1;
    const auto fetch = [&](Vector* slots) {
        const bool is_own = fetched >= begin;
        if (is_own || (Traits::kHalo > 0 && fetched == begin - 1 && begin < end && inputs.group + 1 < row_groups)) {
            const Place<kVec> place(inputs.row[0], inputs.group * kWarpSize + lane_vec);
            const input_t* x = inputs.row[0] + (kVec > 1 ? place.token : place.token * p.x_stride[2]);
            const index_t dout_at = kVec > 1 && p.dout_is_packed ? place.token : place.token * p.dout_stride[2];
            const bool is_whole = place.is_whole(p.seqlen);
            const bool is_memory =
                is_whole || (kVec > 1 && params.is_dense && place.token < p.seqlen && x >= p.x && x + kVec <= x_end);
            if (is_own || lane_id() >= kWarpSize - Traits::kHaloVecs) {
                if (is_memory) {
                    copy_vector_async(slots, x);
                } else {
                    *slots = place.token < p.seqlen ? load_part<kVec>(x, place.begin(), place.end(p.seqlen))
                                                    : Vector::zero();
                }
            }
            if (is_own) {
                const input_t* dout = inputs.row[1] + dout_at;
                Vector* const dout_slot = slots + Traits::kThreads;
                if (is_memory && p.dout_is_packed) {
                    copy_vector_async(dout_slot, dout);
                } else {
                    Vector v = Vector::zero();
#pragma unroll
                    for (int i = 0; i < kVec; ++i) {
                        if (i >= place.begin() && i < place.end(p.seqlen)) v.put(i, dout[i * p.dout_stride[2]]);
                    }
                    *dout_slot = v;
                }
            }
            inputs.step();
        }
        --fetched;
        end_copy_group();
    };
    constexpr int kStageSlots = 2 * Traits::kThreads;
    Vector* const warp_slots = ring[0][0] + (threadIdx.x - lane_id());
#pragma unroll
    for (int i = 0; i < Traits::kStages - 1; ++i) fetch(warp_slots + i * kStageSlots + lane_id());
    Gradients gradients(p, channel, params.row_vecs);
    if (begins_behind) gradients.begin_behind(outputs.batch, first_x, first_dout, behind.token);
    int stage = 0;
#pragma unroll 1
    for (int group = end - 1; group >= begin; --group) {
        // This group and the one before it are there, and all lanes have read the one behind it.
        wait_for_copy_groups<Traits::kStages - 3>();
        sync_warp();
        fetch(warp_slots + ((stage + Traits::kStages - 1) % Traits::kStages) * kStageSlots + lane_id());
        const Vector* const own_group = warp_slots + stage * kStageSlots;
        stage = (stage + 1) % Traits::kStages;
        const Vector* const group_before = warp_slots + stage * kStageSlots;
        const Place<kVec> place(outputs.row[0], outputs.group * kWarpSize + lane_vec);
        Vector x = own_group[lane_id()];
        Vector dout = own_group[Traits::kThreads + lane_id()];
        if (kVec > 1 && params.has_edges && !place.is_whole(p.seqlen)) {
            x = keep_part(x, place.begin(), place.end(p.seqlen));
            dout = keep_part(dout, place.begin(), place.end(p.seqlen));
        }
        gradients.add(place, outputs.batch, outputs.row[0], own_group, group_before, x, dout);
        outputs.step();
    }
    store_block_sums<Traits, kWidth, weight_t>(p, gradients.sums, kSumScale<input_t, kSilu>, row_lane,
                                               params.row_lanes.divisor, params.warp_rows, first_channel,
                                               part_channels.quotient);
}
