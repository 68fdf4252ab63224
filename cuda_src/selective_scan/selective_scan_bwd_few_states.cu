// The gradients of a selective scan as selective_scan_bwd computes them, of up to four states, for rows of contiguous
// tokens, and variable B and C.
//
// Layout: a block is one warp, which owns one chunk of 256 tokens and walks channels of a group; blocks of a group take
// turns. A lane owns 8 consecutive tokens of all states, so that it prepares and finishes them alone: lanes hand to
// each other only what goes from token to token. On an H200 a call for 8 x 1536 x 2048 of one state in bfloat16 takes
// 204 us so, of four 250, and of either 704 where four warps share 16 states.
//
// input_t  u, delta, z, dout, B and C, and their gradients    kVec  tokens an access    kStates  d_state or more
#include "common/tokens.cuh"
#include "selective_scan/scan_bwd_numbers.cuh"
#include "selective_scan/scan_bwd_tokens.cuh"

struct SelectiveScanBwdFewStatesParams {
    SelectiveScanBwdOperands operands;
};

template <typename T, int kStates_>
struct FewStatesShape : ChunkShape<T> {
    static constexpr int kThreads = kWarpSize;
    static constexpr int kWarps = 1;
    static constexpr int kStates = kStates_;
    static constexpr int kOwn = ChunkShape<T>::kTokens;
};

template <typename Shape>
struct FewStatesShared {
    using T = typename Shape::input_t;
    alignas(16) T B[Shape::kStates][kChunk];
    alignas(16) T C[Shape::kStates][kChunk];
    WarpScan<Shape::kStates> scan;
    unsigned number;
};

template <typename input_t, int kVec, int kStates>
struct SelectiveScanBwdFewStatesTraits {
    static constexpr int kThreads = 32;
    // With registers for 12 blocks four states take 457 us for 8 x 1536 x 2048; with those for 8 one takes 214.
    static constexpr int kBlocksOf2 = 12;
    static constexpr int kBlocksOf4 = 8;
    static constexpr int kMinBlocks = kStates == 2 ? kBlocksOf2 : kBlocksOf4;
    using Shape = FewStatesShape<input_t, kStates>;
    static_assert(kThreads == Shape::kThreads);
};

// A lane's tokens of a channel, as they are in memory.
template <typename Shape, int kVec>
struct LaneRows {
    using Some = Tokens<typename Shape::input_t, Shape::kTokens, kVec>;
    Some u;
    Some delta;
    Some z;
    Some dout;
};

// The sums over tokens of a channel: of each state dA, and behind them dD and ddelta_bias, which have a part for each
// warp of other kernels.
template <typename Shape>
struct FewStatesSums {
    static constexpr int kStates = Shape::kStates;
    static constexpr int kParts = 2 * ChunkShape<typename Shape::input_t>::kWarps;
    float parts[2 * kStates];
    float* at;  // where this lane's goes for the block's first channel; null for none
    int step;   // floats from channel to channel
    bool is_zero;

    __device__ __forceinline__ void begin(const SelectiveScanBwdOperands& p, index_t first_vector, int lane) {
        clear(parts);
        at = nullptr;
        step = kParts;
        is_zero = lane >= kStates + 2;
        if (lane < kStates) {
            if (lane < p.d_state) at = p.scratch + p.rates_at + first_vector * p.d_state + lane;
            step = p.d_state;
        } else if (lane < kStates + kParts) {
            at = p.scratch + p.vectors_at + first_vector * kParts + lane - kStates;
        }
    }

    // Stores the sums of a channel, counted from the block's first one; none are there before that.
    __device__ __forceinline__ void store(int channel) {
        sum_parts_over_lanes<kWarpSize>(parts);
        if (channel >= 0 && at != nullptr) at[channel * static_cast<index_t>(step)] = is_zero ? 0.0f : parts[0];
    }
};

template <typename input_t, int kVec, int kStates,
          typename Traits = SelectiveScanBwdFewStatesTraits<input_t, kVec, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_bwd_few_states_kernel(const SelectiveScanBwdFewStatesParams params) {
    using T = input_t;
    using Shape = typename Traits::Shape;
    using Numbers = LaneNumber<Shape, false, false, false, false, 1>;
    using Rows = LaneRows<Shape, kVec>;
    constexpr int kTokens = Shape::kTokens;
    const SelectiveScanBwdOperands& p = params.operands;
    __shared__ FewStatesShared<Shape> shared;
    if (threadIdx.x == 0) shared.number = block_number(p);
    sync_warp();
    const ChunkShare<1> share(p, shared.number, true);
    const ChunkTokens tokens(p, share.batch, share.chunk, false);
    const int lane = opaque(static_cast<int>(threadIdx.x)), first = lane * kTokens;
    const int live = tokens.live - first;
    ChunkRows<const T> u = {}, delta = {}, dout = {}, z = {};
    u.begin(p.u, p.u_stride, share, tokens);
    delta.begin(p.delta, p.delta_stride, share, tokens);
    dout.begin(p.dout, p.dout_stride, share, tokens);
    z.begin(p.z, p.z_stride, share, tokens);
    ChunkRows<T> du = {}, ddelta = {}, dz = {};
    du.begin(p.du, p.du_stride, share, tokens);
    ddelta.begin(p.ddelta, p.ddelta_stride, share, tokens);
    dz.begin(p.dz, p.dz_stride, share, tokens);
    const auto bring = [&](typename Rows::Some& to, const ChunkRows<const T>& rows, int channel) {
        to.load_front(rows.place(channel, first, 1), live);
    };
    const auto leave = [&](const ChunkRows<T>& rows, int channel, const float (&values)[kTokens]) {
        store_front<kVec>(rows.place(channel, first, 1), live, values);
    };
    RawNumber<T> raw_bias;
    const auto load = [&](Rows& rows, int i) {
        const int channel = share.channel(i);
        bring(rows.u, u, channel);
        bring(rows.delta, delta, channel);
        bring(rows.dout, dout, channel);
        rows.z.clear();
        if (p.z != nullptr) bring(rows.z, z, channel);
        if (p.delta_bias != nullptr) {
            raw_bias.load(p.delta_bias, (share.first_channel + channel) * p.delta_bias_stride, p.delta_bias_is_float32);
        }
    };
    Rows next;
    if (share.channels > 0) load(next, 0);
    Numbers place;
    place.begin(p, share, tokens);
    const Steps<false, 1> steps = {share.channels, p.d_state};
    Step now = {0, 0};
    unsigned bits = share.channels > 0 ? place.load_first(share, steps.after(now), p.d_state) : 0;
    // Leaves this lane's tokens of a matrix in shared memory, or lets them arrive there.
    const auto take_matrix = [&](T(&to)[kStates][kChunk], const void* base, const index_t* stride) {
        constexpr int kWide = 16 / static_cast<int>(sizeof(T));
        const T* const from = static_cast<const T*>(base) + share.batch * stride[0] + share.group * stride[1] +
                              (tokens.begin + first) * stride[3];
        const bool is_aligned = stride[3] == 1 && stride[2] % kWide == 0 && reinterpret_cast<size_t>(from) % 16 == 0;
#pragma unroll
        for (int k = 0; k < kStates; ++k) {
            const int count = k < p.d_state ? live : 0;
            Tokens<T, kTokens, kWide> own;
            own.clear();
#pragma unroll
            for (int t = 0; t < kTokens && !is_aligned; ++t) {
                if (t < count) own.parts[t / kWide].put(t % kWide, from[k * stride[2] + t * stride[3]]);
            }
#pragma unroll
            for (int i = 0; i < kTokens; i += kWide) {
                T* const at = to[k] + Shape::matrix_place(first + i);
                const int some = max(0, min(count - i, kWide));
                if (is_aligned) {
                    copy_front_async(at, some > 0 ? from + k * stride[2] + i : from - first,
                                     some * static_cast<int>(sizeof(T)));
                } else {
                    store(at, own.parts[i / kWide]);
                }
            }
        }
    };
    take_matrix(shared.B, p.B, p.B_stride);
    take_matrix(shared.C, p.C, p.C_stride);
    ChannelSums<Shape, false, false> channel_sums;
    channel_sums.begin(p, share, lane, 0);
    FewStatesSums<Shape> sums;
    sums.begin(p, share.number(p) * p.dim + share.first_channel, lane);
    int done = -1;
    wait_for_copies();
    while (steps.has(now)) {
        const int channel = share.channel(now.channel);
        const Rows own = next;
        const float bias = raw_bias.to_float(p.delta_bias_is_float32);
        const Step after = steps.after(now);
        LaneTokens<Shape> lanes = {lane};
        float slope[kTokens], dresult[kTokens];
        lanes.cuts = 0;
        lanes.steps = 0.0f;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            const float v = own.delta.to_float(t) + bias;
            const TokenTerms terms(p, own.u.to_float(t), v, own.z.to_float(t), own.dout.to_float(t), t < live);
            lanes.dt[t] = terms.dt;
            lanes.dt_u[t] = terms.dt_u;
            lanes.gy[t] = terms.gy;
            slope[t] = terms.slope;
            dresult[t] = terms.dresult;
            lanes.steps += lanes.dt[t];
            lanes.e_B[t] = lanes.e_Aah[t] = lanes.y[t] = 0.0f;
        }
        if (steps.has(after)) load(next, after.channel);
        const float number = place.to_float(bits);
        bits = place.load_next(share, now, after, steps.after(after), p.d_state);
        StatesPass<Shape, Numbers, false, false, true, false, false> pass;
        pass.begin(lanes, shared, number, 0, shared.scan);
        typename WarpScan<kStates>::Links links;
        shared.scan.take(lane, links);
        shared.scan.join(lane, links);
        sums.store(done);
        const float seed = place.template seed<false>(share, number, bits, now);
        const float handed = shared.scan.run(lane, links, seed);
        place.hand_over(p, share, tokens, now, handed);
        float dA[kStates];
        pass.finish(lanes, shared, number, 0, shared.scan, channel_sums, dA);
        const float D = from_lane(number, Numbers::kDLane);
        float of_u[kTokens], of_delta[kTokens], of_z[kTokens];
        clear(sums.parts);
#pragma unroll
        for (int k = 0; k < kStates; ++k) sums.parts[k] = dA[k];
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            const float own_u = own.u.to_float(t);
            of_u[t] = fmaf(lanes.dt[t], lanes.e_B[t], D * lanes.gy[t]);
            of_delta[t] = slope[t] * fmaf(own_u, lanes.e_B[t], lanes.e_Aah[t]);
            of_z[t] = dresult[t] * fmaf(D, own_u, lanes.y[t]);
            sums.parts[kStates] = fmaf(lanes.gy[t], own_u, sums.parts[kStates]);
            sums.parts[kStates + 1] += of_delta[t];
        }
        leave(du, channel, of_u);
        leave(ddelta, channel, of_delta);
        if (p.dz != nullptr) leave(dz, channel, of_z);
        done = channel;
        now = after;
    }
    sums.store(done);
    channel_sums.store(p, 0);
}
