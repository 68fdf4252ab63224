// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for rows of aligned
// vectors, each of them one sequence that starts from zeros. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dout, dx (batch, dim, seqlen), seqlen stride 1, rows of whole 16-byte vectors at aligned addresses. A
// block has a part of a row, or of the rows of some consecutive channels, and asks for all of it at once: each warp
// loads kGroups groups, of one vector per lane, to registers. So blocks are short, follow each other in the order of
// memory, and 32 warps run at a time. Walks that bring the next groups while they compute keep as many bytes on their
// way, but in many places of memory at a time: on an H200, B8 D2048 L2048 in float32 takes 96 us so and 100 by bulk
// copies, B8 D4096 L2048 in bfloat16 97 and 100, a copy of the same bytes 96. A row that one block does not hold leaves
// one sum per part.
//
// Without arithmetic, the same loads and stores take 8.0 us for B1 D2048 L2048 in bfloat16 (copy 8.1), 25.7 for B1 D16
// L2**20 (copy 25.3) and 95 for B8 D4096 L2048 (copy 96).
//
// Inputs before a group come from the lane below by shuffle, gradients behind it from the lane above, for the highest
// lane from the next group. Behind a warp's last group they come from the next warp through shared memory; behind the
// part they are computed again from the inputs there. No atomics.
//
// kWidth    filter taps              input_t   x, dout and dx            weight_t  weight, and bias unless float
// kGroups   groups a warp            kSilu     silu after the sum
// kEdges    rows may end inside a part, and channels inside a block
#include "causal_conv1d/conv_bwd.cuh"
#include "causal_conv1d/conv_channels.cuh"
#include "common/warp.cuh"

// The arguments are only those that this needs, and strides as they are used: blocks are short, and what they do before
// their first load counts.
struct CausalConv1dRowpartsBwdParams {
    const void* x;
    const void* dout;
    void* dx;
    const void* weight;
    const void* bias;
    void* dweight;
    void* dbias;
    float* scratch;
    unsigned x_vecs[2];  // vectors from a batch entry to the next one, and from a channel
    unsigned dout_vecs[2];
    unsigned dx_vecs[2];
    unsigned warps_shift;  // binary logarithm of the warps a channel in a block
    int row_vecs;          // vectors a row
    int dim;
    int bias_is_float32;
    int dweight_is_float32;
    int dbias_is_float32;
    index_t dweight_stride[2];
    index_t dbias_stride;
};

template <int kWidth, typename input_t, typename weight_t, int kGroups, bool kEdges, bool kSilu>
struct CausalConv1dRowpartsBwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 8;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kMinWidth = 2;
    static constexpr int kMaxWidth = 4;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(input_t));
    static constexpr int kHalo = kWidth - 1;
    static_assert(kWidth >= kMinWidth && kWidth <= kMaxWidth && kHalo <= kVec && kGroups > 0);
};

template <int kWidth, typename input_t, typename weight_t, int kGroups, bool kEdges, bool kSilu,
          typename Traits = CausalConv1dRowpartsBwdTraits<kWidth, input_t, weight_t, kGroups, kEdges, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_rowparts_bwd_kernel(const CausalConv1dRowpartsBwdParams params) {
    constexpr int kVec = Traits::kVec, kHalo = Traits::kHalo, kWarps = Traits::kWarps;
    using Vector = Vec<input_t, kVec>;
    const int lane = lane_id(), warp = static_cast<int>(uniform(threadIdx.x / kWarpSize));
    const int channel_warps = 1 << params.warps_shift, number = warp & (channel_warps - 1);
    const unsigned wanted = blockIdx.y * (kWarps >> params.warps_shift) + (warp >> params.warps_shift);
    const bool is_idle = kEdges && wanted >= static_cast<unsigned>(params.dim);
    const unsigned channel = is_idle ? 0 : wanted, batch = blockIdx.z;
    const int first = (static_cast<int>(blockIdx.x) * channel_warps + number) * kGroups * kWarpSize;
    const int left = params.row_vecs - first - lane;  // vectors of the row from the lane's first one on
    const auto is_there = [&](int group) { return !kEdges || (group * kWarpSize < left && !is_idle); };
    // Where an array's elements of the lane's first vector are: once for all groups.
    const auto at = [&](const void* array, const unsigned (&vecs)[2]) {
        const Vector* const row = static_cast<const Vector*>(array) + static_cast<index_t>(batch) * vecs[0] +
                                  static_cast<index_t>(channel) * vecs[1];
        return opaque(reinterpret_cast<const input_t*>(row + first + lane));
    };
    const input_t* const x = at(params.x, params.x_vecs);
    const input_t* const dout = at(params.dout, params.dout_vecs);

    // Before the rest: loads behind it take as long as it does.
    const CausalConv1dBwdOperands p = parameters_of<true>(params);
    const ChannelFilter<kWidth, weight_t, 1> filter(p, channel);
    Vector own[kGroups], of_output[kGroups];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
        // Behind its end the row's last vector, again: a load that depends on a condition waits for it.
        const int vec = kEdges ? min(i * kWarpSize, left - 1) : i * kWarpSize;
        own[i] = load<kVec>(x + vec * kVec);
        of_output[i] = load<kVec>(dout + vec * kVec);
    }
    Vector before = Vector::zero();  // the part, in the highest lane
    if (lane == kWarpSize - 1 && first > 0 && (!kEdges || first < params.row_vecs))
        before = load<kVec>(x - kWarpSize * kVec);
    // Behind the part, lane i computes the gradient of token i: it has the output's, and a part of the inputs.
    const bool goes_on = number == channel_warps - 1 && first + kGroups * kWarpSize < params.row_vecs;
    float x_around = 0.0f, dout_behind = 0.0f;
    if (goes_on && lane < 2 * kHalo) {
        const int behind = kGroups * kWarpSize * kVec + lane - lane * kVec;
        x_around = Dtype<input_t>::to_float(x[behind - kHalo]);
        if (lane < kHalo) dout_behind = Dtype<input_t>::to_float(dout[behind]);
    }
    // Blocks are short: when the last ones begin, it is time for the sums. This also keeps the loads in front of what
    // uses them.
    if (params.scratch != nullptr) let_follower_start();

    float filters[1][kWidth], biases[1];
    filter.to_floats(filters, biases);
    float (&taps)[kWidth] = filters[0];
    float bias = biases[0];
    if constexpr (kSilu) scale_for_silu<input_t>(taps, bias);
    ParameterSums<kWidth> sums = ParameterSums<kWidth>::zero();
    __shared__ float first_gradients[kWarps][kHalo];
    input_t* const dx = const_cast<input_t*>(at(params.dx, params.dx_vecs));
    // Stores a group's results, from its gradients and those behind the lane's.
    const auto finish = [&](int group, const float (&gradients)[kVec], const float (&behind)[kHalo]) {
        float g[kVec + kHalo], results[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) g[i] = gradients[i];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) g[kVec + i] = behind[i];
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            float following[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) following[k] = g[i + k];
            results[i] = input_gradient<Rows::kOne>(taps, following, nullptr);
        }
        if (is_there(group)) { store(as_global(dx + group * kWarpSize * kVec), Vector::from_floats(results)); }
    };
    if constexpr (kEdges) {
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
            own[i] = select(is_there(i), own[i], Vector::zero());
            of_output[i] = select(is_there(i), of_output[i], Vector::zero());
        }
    }
    float last[kVec], behind[kHalo];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
        // Lanes behind the row see nothing, not even its last inputs: their gradients are zeros times finite numbers.
        Vector below = shift_in<(kVec - kHalo) / Vector::kPerWord>(group == 0 ? before : own[group > 0 ? group - 1 : 0],
                                                                   own[group], 1);
        if (kEdges) below = select(is_there(group), below, Vector::zero());
        float inputs[kHalo + kVec], g[kVec];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) inputs[i] = below.to_float(kVec - kHalo + i);
#pragma unroll
        for (int i = 0; i < kVec; ++i) inputs[kHalo + i] = own[group].to_float(i);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = inputs[i + k];
            g[i] = token_gradient<kSilu, input_t>(taps, bias, window, of_output[group].to_float(i));
            sums.add(g[i], window);
        }
        if (group == 0) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) {
                if (lane == 0) first_gradients[warp][i] = g[i];
            }
        } else {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) behind[i] = from_lane(lane == 0 ? g[i] : last[i], lane + 1);
            finish(group - 1, last, behind);
        }
#pragma unroll
        for (int i = 0; i < kVec; ++i) last[i] = g[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kHalo; ++i) behind[i] = from_lane(last[i], lane + 1);
    if (number < channel_warps - 1) {
#pragma unroll
        for (int i = 0; i < kHalo; ++i) behind[i] = lane == kWarpSize - 1 ? first_gradients[warp + 1][i] : behind[i];
    } else {
        float g = 0.0f;
        if (goes_on) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = from_lane(x_around, lane + k);
            g = token_gradient<kSilu, input_t>(taps, bias, window, dout_behind);
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            const float further = from_lane(g, i);
            behind[i] = lane == kWarpSize - 1 ? further : behind[i];
        }
    }
    finish(kGroups - 1, last, behind);

    constexpr int kSums = kWidth < 4 ? 4 : 8;
    __shared__ float shared[kWarps][kSums];
    float own_sums[kSums];
#pragma unroll
    for (int j = 0; j < kSums; ++j) own_sums[j] = j <= kWidth ? sums.at(j) : 0.0f;
    const float of_warp = sum_rows_over_lanes<kSums, kWarpSize>(own_sums);
    if (lane < kSums) shared[warp][lane] = of_warp;
    __syncthreads();
    if (number > 0 || lane > kWidth || is_idle) return;
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < channel_warps; ++i) sum += shared[warp + i][lane];
    const unsigned part = batch * gridDim.x + blockIdx.x;
    store_block_sum<kWidth, weight_t>(p, part, channel, lane, sum * kSumScale<input_t, kSilu>);
}
