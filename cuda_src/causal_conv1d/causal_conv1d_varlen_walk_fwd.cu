// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for packed sequences or a dense batch of them, where
// out may be x itself.
//
// Layout: x, out (dim, total) or (batch, dim, seqlen), the tokens contiguous; any strides when kVec is 1. A warp owns
// one channel of one sequence and walks its tokens in order: kLaneVecs groups of 32 consecutive vectors at a time, the
// next of which it has loaded when it stores results. The halo comes from the lane below, and of the first lanes from
// the group before, so that no token is read behind a result in its place. Before the first result is stored, the lanes
// have read all else: a lane a result of the sequence's first kWidth - 1 tokens, and a column of its final state. The
// padding before the first sequence and behind the last counts as sequences.
//
// kWidth    filter taps              input_t   x and out                 weight_t  weight, and bias unless float
// state_t   the pool of states       kVec      elements an access        kSilu     silu after the sum
#include "causal_conv1d/conv_row.cuh"
#include "causal_conv1d/conv_snapshots.cuh"

struct CausalConv1dVarlenWalkFwdParams {
    CausalConv1dVarlenOperands operands;
    index_t batch_stride;  // of a dense x
    FastDiv dim_blocks;    // blocks per sequence
    int is_dense;          // sequences are batch entries of `total` tokens each
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu>
struct CausalConv1dVarlenWalkFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kLaneVecs = 2;  // vectors a lane loads at a time
    static_assert(kIsWidth<kWidth>);
};

// Element i of a sequence's inputs in one channel: those of its state, which it has where it goes on, are in front of
// token 0, and zeros before these. Others than the warp's own tokens are not read.
template <int kWidth, typename input_t, typename state_t>
struct WalkInputs {
    const input_t* x;
    index_t step;
    const state_t* past;  // behind the last column of the state; null for zeros
    index_t past_step;

    __device__ __forceinline__ Vec<input_t, 1> token(int i) const { return load<1, Memory::kMutable>(x + i * step); }
    __device__ __forceinline__ Vec<state_t, 1> before(int i) const {
        return past == nullptr ? Vec<state_t, 1>::zero() : load<1, Memory::kMutable>(past + i * past_step);
    }
    __device__ __forceinline__ float value(int i) const { return i < 0 ? before(i).to_float(0) : token(i).to_float(0); }
    __device__ __forceinline__ Vec<state_t, 1> state(int i) const {
        return i < 0 ? before(i) : convert<state_t>(token(i));
    }
};

// The kVec tokens from `token` on, as far as they are inside the sequence; zeros for the others.
template <typename input_t, int kVec>
__device__ __forceinline__ Vec<input_t, kVec> load_inside(const CausalConv1dOperands& rows,
                                                          const ConvRow<input_t, kVec>& row, index_t token) {
    if (is_whole<kVec>(rows, token)) return load<kVec, Memory::kMutable>(row.x + token * row.x_step);
    if (token <= -kVec || token >= rows.seqlen) return Vec<input_t, kVec>::zero();
    return load_part<kVec>(row.x + token * row.x_step, row.begin(token), row.end(rows, token));
}

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu,
          typename Traits = CausalConv1dVarlenWalkFwdTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_walk_fwd_kernel(const CausalConv1dVarlenWalkFwdParams params) {
    using Window = ConvWindow<kWidth, input_t, kVec>;
    using Vector = typename Window::Vector;
    constexpr int kHalo = kWidth - 1, kLaneVecs = Traits::kLaneVecs;
    const CausalConv1dVarlenOperands& p = params.operands;

    const QuotientRemainder row_block = divide(blockIdx.x, params.dim_blocks);
    const int number = static_cast<int>(row_block.quotient) - (params.is_dense ? 0 : 1);
    const index_t channel = static_cast<index_t>(row_block.remainder) * Traits::kWarps + threadIdx.x / kWarpSize;
    if (channel >= p.dim) return;  // whole warps leave: the shuffles stay complete
    const int begin = params.is_dense ? 0 : first_token(p, number);
    const int length = (params.is_dense ? p.total : first_token(p, number + 1)) - begin;
    if (length <= 0) return;
    const auto destination = destination_of<input_t, 1, Ranges::kMany>(p, channel, params.is_dense ? number : 0, begin);
    const SnapshotSource source(p, number, begin, length);
    if (source.start < 0) {
        for (int i = lane_id(); i < length && !p.keeps_padding; i += kWarpSize) {
            destination.to[i * destination.step] = Dtype<input_t>::from_float(0.0f);
        }
        return;
    }
    const input_t* const x = static_cast<const input_t*>(p.x) + (params.is_dense ? number * params.batch_stride : 0) +
                             channel * p.x_stride[0] + begin * p.x_stride[1];
    state_t* const pool = states_of<true, state_t>(p) + channel * p.conv_states_stride[1];
    const index_t past_step = p.conv_states_stride[2];
    const state_t* const past =
        source.goes_on ? pool + source.start * p.conv_states_stride[0] + (p.first_column + kHalo) * past_step : nullptr;
    const WalkInputs<kWidth, input_t, state_t> inputs{x, p.x_stride[1], past, past_step};

    CausalConv1dOperands rows{};
    rows.x = x;
    rows.out = destination.to;
    rows.x_stride[2] = p.x_stride[1];
    rows.out_stride[2] = destination.step;
    rows.seqlen = length;
    const ConvRow<input_t, kVec> row(rows, 0, 0);
    const auto load_group = [&](index_t vec, Vector(&to)[kLaneVecs]) {
#pragma unroll
        for (int i = 0; i < kLaneVecs; ++i) {
            to[i] = load_inside(rows, row, row.first_token(vec + i * kWarpSize + lane_id()));
        }
    };
    // The first tokens are on their way while the state is looked up.
    Vector next[kLaneVecs];
    load_group(0, next);
    float taps[kWidth];
    load_taps<kWidth, weight_t>(p, channel, taps);
    const float bias = load_bias<weight_t>(p, channel);
    const int prefix = min(length, kHalo);
    float first = 0.0f;
    Vec<state_t, 1> kept = Vec<state_t, 1>::zero();
    if constexpr (kWidth > 1) {
        if (lane_id() < prefix) {
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = inputs.value(lane_id() + k - kHalo);
            first = activate<input_t, kSilu, false>(convolve<false>(taps, bias, window, nullptr), 0);
        }
        if (lane_id() < kHalo) kept = inputs.state(length - kHalo + lane_id());
    }
    SnapshotRows snapshots = find_snapshots(p, number, 1, 0, kWarpSize, [](int) { return true; });
    const auto store_snapshots = [&](bool is_over_start) {
        for (int row = snapshots.begin + lane_id(); row < snapshots.end; row += kWarpSize) {
            const Snapshot snapshot = load_snapshot(p, row);
            if (snapshot.sequence != number || !source.has(snapshot)) continue;
            if (source.is_over_start(p, snapshot) != is_over_start) continue;
            const SnapshotCopy<kWidth, input_t, state_t, 1, false, Memory::kMutable> copy(p, snapshot, source, channel,
                                                                                          x);
            copy.copy(p, snapshot.slot, channel);
        }
    };
    store_snapshots(false);
    sync_warp();
    const int target = p.has_states ? load_target<true>(p, number, source.start) : -1;
    if (target >= 0 && lane_id() < kHalo) {
        store(pool + target * p.conv_states_stride[0] + (p.first_column + lane_id()) * past_step, kept);
    }
    sync_warp();
    store_snapshots(true);
    sync_warp();

    Vector wrapped = Vector::zero();
    for (index_t vec = 0; row.first_token(vec) < length; vec += kLaneVecs * kWarpSize) {
        Vector now[kLaneVecs];
#pragma unroll
        for (int i = 0; i < kLaneVecs; ++i) now[i] = next[i];
        load_group(vec + kLaneVecs * kWarpSize, next);
#pragma unroll
        for (int i = 0; i < kLaneVecs; ++i) {
            const index_t token = row.first_token(vec + i * kWarpSize + lane_id());
            const Window window(wrapped, now[i], [](Vector&, int) {});
            const ConvSums<false, kVec> sums(rows, 0, token, taps, bias, window);
            const Vector results = sums.template outputs<input_t, kSilu>();
            wrapped = now[i];
            if (token >= kHalo && token + kVec <= length) {
                store<Keep::kWhole>(row.out + token * row.out_step, results);
            } else if (token < length) {
                const int from = static_cast<int>(max(static_cast<index_t>(0), kHalo - token));
                store_part(row.out + token * row.out_step, results, from, row.end(rows, token));
            }
        }
    }
    if (lane_id() < prefix) destination.to[lane_id() * destination.step] = Dtype<input_t>::from_float(first);
}
