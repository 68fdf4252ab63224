// The gradients of a selective scan as selective_scan_bwd computes them, for rows of contiguous tokens, and variable B
// and C.
//
// Layout: as selective_scan_bwd's: a block owns one chunk of 256 tokens and walks channels of a group, a warp owns four
// of the states and a lane 8 consecutive tokens. But a thread finishes its two tokens of the channel before and
// prepares those of the next one while the lanes of a warp put their states together: these steps wait for each other's
// results, and fill each other's waits. Neighbouring channels take turns in shared memory, and the warps of a block
// wait for each other once per channel instead of twice.
//
// On an H200 a call for 8 x 1536 x 2048 in bfloat16 takes 720 us instead of 764. B, C and products of C are taken again
// on the way that leaves sums: where a lane keeps them, the compiler computes two thirds of the decays again instead.
//
// input_t  u, delta, z, dout, B and C, and their gradients; z is not null
// kManyStates  whether d_state exceeds 16
// kVec  tokens per access of rows: 2, or 1 where they begin at any element, as u does in each channel
#include "selective_scan/scan_bwd_numbers.cuh"
#include "selective_scan/scan_bwd_states.cuh"
#include "selective_scan/scan_bwd_tokens.cuh"

struct SelectiveScanBwdOverlappedParams {
    SelectiveScanBwdOperands operands;
};

// What a channel has in shared memory, from the fetch of its tokens until they are finished.
template <typename Shape, int kVec>
struct ChannelTurn {
    using T = typename Shape::input_t;
    // Words of two halves may begin with a token that is in front of the chunk.
    static constexpr int kAhead = kChunk + (kVec == 1 && sizeof(T) == 2 ? 2 : 0);
    struct Warp {
        float sums[3][Shape::kSumsRow];
    };
    alignas(16) float dt[Shape::kRow];
    alignas(16) float dt_u[Shape::kRow];
    alignas(16) float gy[Shape::kRow];
    alignas(16) Warp warps[Shape::kWarps];
    alignas(16) T ahead[4][kAhead];
    // OwnEnds of all threads.
    alignas(16) float slope[kChunk];
    alignas(16) float dresult[kChunk];
    alignas(16) T u[kChunk];

    __device__ __forceinline__ void put(const OwnTokens<T>& own, const OwnEnds& ends, int token) {
        store(u + token, own.u);
        store(slope + token, pair(ends.slope));
        store(dresult + token, pair(ends.dresult));
    }

    __device__ __forceinline__ void take(OwnEnds& ends, int token) const {
        const Vec<T, 2> own_u = load<2, Memory::kMutable>(u + token);
        const Vec<float, 2> own_slope = load_pair(slope + token), own_dresult = load_pair(dresult + token);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            ends.u[j] = own_u.to_float(j);
            ends.slope[j] = own_slope.to_float(j);
            ends.dresult[j] = own_dresult.to_float(j);
        }
    }
};

template <typename Shape, int kVec>
struct OverlappedShared {
    using T = typename Shape::input_t;
    struct Warp {
        WarpScan<Shape::kStates> scan;
    };
    alignas(16) T B[kBlockStates][kChunk];
    alignas(16) T C[kBlockStates][kChunk];
    alignas(16) Warp warps[Shape::kWarps];
    ChannelTurn<Shape, kVec> turns[2];
    ChunkRows<const T> u, delta, dout, z;
    ChunkRows<T> du, ddelta, dz;
    unsigned number;
};

template <typename input_t, bool kManyStates, int kVec>
struct SelectiveScanBwdOverlappedTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 2;
    using Shape = ChunkShape<input_t>;
    using Shared = OverlappedShared<Shape, kVec>;
    // Channels that are walked for 16 states before the next ones are: as many as there is room for.
    static constexpr int kGroup = sizeof(input_t) == 2 ? 12 : 6;
    // Dynamic shared memory: Shared by the size of elements, and GroupSums of kManyStates.
    static constexpr int kHalfBytes = 67584;
    static constexpr int kHalfBytesOfOne = 67616;  // with kVec 1
    static constexpr int kFloatBytes = 87552;
    static constexpr int kHalfSumsBytes = 36864;
    static constexpr int kFloatSumsBytes = 18432;
    static_assert(kThreads == Shape::kThreads);
    static_assert((sizeof(input_t) == 4 ? kFloatBytes : kVec == 1 ? kHalfBytesOfOne : kHalfBytes) == sizeof(Shared));
    static_assert((sizeof(input_t) == 2 ? kHalfSumsBytes : kFloatSumsBytes) == sizeof(GroupSums<kGroup>));
};

template <typename input_t, bool kManyStates, int kVec,
          typename Traits = SelectiveScanBwdOverlappedTraits<input_t, kManyStates, kVec>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_bwd_overlapped_kernel(const SelectiveScanBwdOverlappedParams params) {
    using Shape = typename Traits::Shape;
    using Shared = typename Traits::Shared;
    using Numbers = LaneNumber<Shape, kManyStates, false, false, false>;
    constexpr int kStates = Shape::kStates;
    const SelectiveScanBwdOperands& p = params.operands;
    extern __shared__ __align__(16) unsigned char dynamic[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic);
    auto* const kept = kManyStates ? reinterpret_cast<GroupSums<Traits::kGroup>*>(dynamic + sizeof(Shared)) : nullptr;
    if (threadIdx.x == 0) shared.number = block_number(p);
    __syncthreads();
    const ChunkShare<> share(p, shared.number, true);
    const ChunkTokens tokens(p, share.batch, share.chunk, false);
    // In a register: read again and again, the special register is a wait each time.
    const int thread = opaque(static_cast<int>(threadIdx.x)), lane = thread % kWarpSize, warp = thread / kWarpSize;
    const int own_token = thread * Shape::kOwn;
    const OwnRows<Shape, Shared, kVec, true, false, false> rows = {p, shared, tokens.live, tokens.stored, thread};
    rows.begin(share, tokens);
    rows.clear(shared.turns[0]);
    rows.clear(shared.turns[1]);
    __syncthreads();
    // What the first channels need is asked for before anything is waited for.
    const Steps<kManyStates, Traits::kGroup> steps = {share.channels, p.d_state};
    Step before = {-1, 0}, now = {0, 0}, next = steps.after(now);
    auto* turn = &shared.turns[0];
    auto* other = &shared.turns[1];
    OwnTokens<input_t> own;
    rows.load(own, 0);
    const input_t* fetched_from = rows.fetched_from(next.channel);
    if (steps.has(next)) rows.template fetch<false>(fetched_from, *other);
    RawNumber<input_t> bias;
    if (p.delta_bias != nullptr) {
        bias.load(p.delta_bias, share.first_channel * p.delta_bias_stride, p.delta_bias_is_float32);
    }
    Numbers place;
    place.begin(p, share, tokens);
    unsigned bits = place.load_first(share, next, p.d_state);
    const input_t* const B =
        static_cast<const input_t*>(p.B) + share.batch * p.B_stride[0] + share.group * p.B_stride[1];
    const input_t* const C =
        static_cast<const input_t*>(p.C) + share.batch * p.C_stride[0] + share.group * p.C_stride[1];
    const auto take_matrices = [&](int first_state) {
        take_chunk<Shape, false>(shared.B, B, p.B_stride, first_state, p.d_state, tokens);
        take_chunk<Shape, false>(shared.C, C, p.C_stride, first_state, p.d_state, tokens);
    };
    take_matrices(0);
    const index_t first_vector = share.number(p) * p.dim + share.first_channel;
    ChannelSums<Shape, false, false> channel_sums;
    channel_sums.begin(p, share, lane, warp);
    TokenSums<Shape> token_sums;
    token_sums.begin(p, first_vector, kManyStates, lane, warp);
    OwnEnds ends;
    rows.prepare(own, bias.to_float(p.delta_bias_is_float32), ends, *turn);
    turn->put(own, ends, own_token);
    wait_for_copies();
    __syncthreads();
    float D = 0.0f;
    while (steps.has(now)) {
        const Step after_next = steps.after(next);
        if (kManyStates && steps.is_first_of_run(now) && before.channel >= 0) {
            take_matrices(now.first_state);
            wait_for_copies();
            __syncthreads();
        }
        LaneTokens<Shape> lanes = {lane};
        lanes.template take<false>(shared, *turn);
        if (kManyStates) fetched_from = rows.fetched_from(after_next.channel);
        if (steps.has(after_next)) rows.template fetch<false>(fetched_from, *turn);
        const float number = place.to_float(bits);
        bits = place.load_next(share, now, next, after_next, p.d_state);
        auto& scan = shared.warps[warp].scan;
        StatesPass<Shape, Numbers, false, false, true, true, false> pass;
        pass.begin(lanes, shared, number, warp * kStates, scan);
        if (kManyStates && steps.is_first_of_run(now)) channel_sums.load(p, now.first_state, now.channel > 0);
        typename WarpScan<kStates>::Links links;
        scan.take(lane, links);
        // In front of the first channel this finishes what nothing looks at, and behind the last one it prepares such.
        other->take(ends, own_token);
        rows.take_fetched(own, *other, next.channel);
        rows.finish(*other, ends, before.channel, D, token_sums.parts[kStates], token_sums.parts[kStates + 1],
                    kManyStates ? kept->of[max(before.channel, 0) % Traits::kGroup] : nullptr, before.first_state == 0,
                    steps.is_last(before));
        rows.prepare(own, from_lane(number, Numbers::kBiasLane), ends, *other);
        other->put(own, ends, own_token);
        scan.join(lane, links);
        if (!kManyStates || steps.is_last(before)) token_sums.store(before.channel);
        D = from_lane(number, Numbers::kDLane);
        const float seed = place.template seed<true>(share, number, bits, now);
        const float handed = scan.run(lane, links, seed);
        place.hand_over(p, share, tokens, now, handed);
        place.advance();
        float sums[kStates];
        pass.finish(lanes, shared, number, warp * kStates, scan, channel_sums, sums);
        if constexpr (kManyStates) {
            if (steps.is_last_of_run(next)) channel_sums.store(p, now.first_state);
            const index_t n = now.first_state + warp * kStates + lane;
            store_over_lanes(sums, p.scratch + p.rates_at + (first_vector + now.channel) * p.d_state + n,
                             lane < kStates && n < p.d_state);
        }
        token_sums.take(sums);
        lanes.put_sums(turn->warps[warp].sums);
        wait_for_copies();
        __syncthreads();
        auto* const done = turn;
        turn = other;
        other = done;
        before = now;
        now = next;
        next = after_next;
    }
    other->take(ends, own_token);
    rows.finish(*other, ends, before.channel, D, token_sums.parts[kStates], token_sums.parts[kStates + 1],
                kManyStates ? kept->of[max(before.channel, 0) % Traits::kGroup] : nullptr, false, true);
    token_sums.store(before.channel);
    if (!kManyStates) channel_sums.store(p, 0);
}
