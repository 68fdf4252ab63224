// The gradients of a selective scan. With a = exp(dt A), gy = dout silu(z), and e the gradient of the state h behind a
// token, from the last token to the first:
//     e[t] = C[t] gy[t] + a[t + 1] e[t + 1]      dB[t] = sum over channels of e dt u    dC[t] = sum of gy h[t]
//     du[t] = dt sum over n of e B + D gy        dA = sum over t of e dt a h[t - 1]     dD = sum of gy u
//     ddt[t] = sum over n of e (A a h[t - 1] + B u)    dz = dout y silu'(z)
// ddelta is ddt, or with delta_softplus ddt sigmoid(delta + delta_bias), and ddelta_bias is its sum.
//
// Layout: arrays of any strides. A block owns one chunk of 256 tokens and walks channels of a group: a warp owns four
// of the states, a lane 8 consecutive tokens, whose dB and dC stay in its registers from channel to channel. The state
// before the chunk is in chunk_states. The gradient of the state behind it comes from the next chunk's block, which has
// a smaller number, and so runs already, and is a channel ahead. Sums over channels and over tokens leave the block as
// one number each; selective_scan_bwd_sums adds these in a fixed order.
// Packed sequences begin chunks of their own or share them: then a chunk goes on from the one before it, and where a
// sequence begins nothing goes over. What it begins and ends with is added to what tokens bring (scan_bwd_ends.cuh).
//
// For every channel, a thread prepares two tokens, each warp takes its states through all of them, forward and back
// (scan_bwd_states.cuh), and the thread finishes its two tokens with the sums of all warps (scan_bwd_tokens.cuh).
//
// The four states are computed interleaved, which takes registers that leave room for two blocks per multiprocessor: on
// an H200 629 us (batch 1, dim 5120, seqlen 4096, bfloat16) instead of 692 in three blocks, which compute decays twice.
//
// Channels that are neighbours in memory come and go in groups (scan_bwd_channels.cuh). More than 16 states are taken
// 16 at a time, for a group of channels before the next 16, so that B, C and their sums are not changed for each
// channel.
//
// input_t      u, delta, z, dout, variable B and C, and their gradients
// kVec         tokens per access, 0 where they may be apart           kByChannel   whether channels are neighbours
// kManyStates  whether d_state exceeds 16
// kConstantB   whether B is (dim, d_state)                            kConstantC   whether C is
// kSharesChunks  whether packed sequences share chunks                kHasStates   whether these have states
#include "selective_scan/scan_bwd_ends.cuh"
#include "selective_scan/scan_bwd_numbers.cuh"
#include "selective_scan/scan_bwd_states.cuh"
#include "selective_scan/scan_bwd_tokens.cuh"

struct SelectiveScanBwdParams {
    SelectiveScanBwdOperands operands;
};

template <typename input_t, int kVec, bool kByChannel, bool kManyStates, bool kConstantB, bool kConstantC,
          bool kSharesChunks, bool kHasStates>
struct SelectiveScanBwdTraits {
    static constexpr int kThreads = 128;
    using Shape = ChunkShape<input_t>;
    static constexpr int kMinBlocks = 2;
    // Whether tokens are on their way to shared memory while the channel before them is walked.
    static constexpr bool kIsAhead = sizeof(input_t) == 2 && kVec == 2;
    static constexpr bool kIsVariable = !kConstantB && !kConstantC;
    // Whether a thread would spill (16 to 124 bytes) without taking again what shared memory has: chosen by what the
    // compiler reports, not timed. bfloat16 of many states fits in 255 registers as it is.
    static constexpr bool kIsTight =
        kManyStates ? !(kIsVariable && kIsSame<input_t, __nv_bfloat16>) : kIsVariable && sizeof(input_t) == 4;
    // Whether shared memory keeps the place of sums over channels, which saves the spills of most types with states.
    static constexpr bool kKeepsPlace = kIsTight || kHasStates;
    // Whether the next channel's tokens are loaded only behind the walk of this one: a wait for memory each channel.
    static constexpr bool kIsLate = kIsTight && !kManyStates && kVec == 0 && !kHasStates;
    // Dynamic shared memory: SequenceEnds of kHasStates, Group of kByChannel, GroupSums of kManyStates.
    static constexpr int kEndsBytes = 45072;
    static constexpr int kGroupBytes = 32768;
    static constexpr int kSumsBytes = 3072;  // per channel of a group
    static constexpr int kGroupAt = kHasStates ? kEndsBytes : 0;
    static constexpr int kSumsAt = kGroupAt + (kByChannel ? kGroupBytes : 0);
    static_assert(kThreads == Shape::kThreads && kEndsBytes == sizeof(SequenceEnds<Shape>));
    static_assert(kGroupBytes == sizeof(Group<Shape>));
    static_assert(kSumsBytes * kGroupChannels<input_t> == sizeof(GroupSums<kGroupChannels<input_t>>));
    static_assert(!kHasStates || (kSharesChunks && !kManyStates));
    static_assert(!kByChannel || (kVec == 0 && kIsVariable));
};

template <typename input_t, int kVec, bool kByChannel, bool kManyStates, bool kConstantB, bool kConstantC,
          bool kSharesChunks, bool kHasStates,
          typename Traits = SelectiveScanBwdTraits<input_t, kVec, kByChannel, kManyStates, kConstantB, kConstantC,
                                                   kSharesChunks, kHasStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_bwd_kernel(const SelectiveScanBwdParams params) {
    using Shape = typename Traits::Shape;
    constexpr int kGroup = kGroupChannels<input_t>, kTurn = kByChannel ? kGroup : 0;
    using Numbers = LaneNumber<Shape, kManyStates, kConstantB, kConstantC, kSharesChunks, kTurn>;
    using Shared = BwdShared<Shape, Traits::kIsAhead>;
    constexpr int kStates = Shape::kStates;
    constexpr bool kByState = kByChannel || kManyStates;
    // More would take 2 % longer where channels of many states are contiguous, which have states in vectors.
    constexpr int kAtOnce = kSharesChunks || (kByChannel && kManyStates) ? 1 : 16;
    const SelectiveScanBwdOperands& p = params.operands;
    __shared__ Shared shared;
    extern __shared__ __align__(16) unsigned char dynamic[];
    SequenceEnds<Shape>* const sequences = kHasStates ? reinterpret_cast<SequenceEnds<Shape>*>(dynamic) : nullptr;
    Group<Shape>* const group = kByChannel ? reinterpret_cast<Group<Shape>*>(dynamic + Traits::kGroupAt) : nullptr;
    auto* const kept = kManyStates ? reinterpret_cast<GroupSums<kGroup>*>(dynamic + Traits::kSumsAt) : nullptr;
    if (threadIdx.x == 0) shared.number = block_number(p);
    __syncthreads();
    const ChunkShare<kTurn> share(p, shared.number, true);
    const ChunkTokens tokens(p, share.batch, share.chunk, kSharesChunks);
    // In a register: read again and again, the special register is a wait each time.
    const int thread = opaque(static_cast<int>(threadIdx.x)), lane = thread % kWarpSize, warp = thread / kWarpSize;
    // Its sums are zeros, which selective_scan_bwd_start has left.
    if (tokens.is_unused()) return;
    const OwnRows<Shape, Shared, kVec, Traits::kIsAhead, Traits::kIsLate, kSharesChunks, kByChannel> rows = {
        p, shared, tokens.live, tokens.stored, thread, group};
    rows.begin(share, tokens);
    if constexpr (Traits::kIsAhead) rows.clear(shared);
    if constexpr (kByChannel) group->clear(thread);
    OwnTokens<input_t> own;
    const auto ask_for_rows = [&] {
        __syncthreads();
        if constexpr (kByChannel) {
            if (share.channels > 0) rows.fetch_group(share, 0);
        } else {
            rows.load(own, 0);
        }
    };
    const Steps<kManyStates, kGroup> steps = {share.channels, p.d_state};
    Step now = {0, 0};
    Numbers place;
    RawNumber<input_t> bias;
    unsigned bits = 0;
    const auto ask_for_numbers = [&] {
        place.begin(p, share, tokens);
        if (p.delta_bias != nullptr) {
            bias.load(p.delta_bias, share.first_channel * p.delta_bias_stride, p.delta_bias_is_float32);
        }
        if (share.channels > 0) bits = place.load_first(share, steps.after(now), p.d_state);
    };
    // What the first channel needs is asked for before anything is waited for; not so where sequences share chunks,
    // which takes longer.
    if constexpr (!kSharesChunks) {
        ask_for_rows();
        ask_for_numbers();
    }
    const input_t* const B =
        static_cast<const input_t*>(p.B) + share.batch * p.B_stride[0] + share.group * p.B_stride[1];
    const input_t* const C =
        static_cast<const input_t*>(p.C) + share.batch * p.C_stride[0] + share.group * p.C_stride[1];
    const auto take_matrices = [&](int first_state) {
        const auto take = [&](input_t(&to)[kBlockStates][kChunk], const input_t* from, const index_t* stride) {
            take_chunk<Shape, kSharesChunks, kByState, kAtOnce>(to, from, stride, first_state, p.d_state, tokens);
        };
        if (!kConstantB) take(shared.B, B, p.B_stride);
        if (!kConstantC) take(shared.C, C, p.C_stride);
    };
    if (!kManyStates) take_matrices(0);
    if (kSharesChunks) shared.cuts.find(p, tokens);
    if constexpr (kHasStates) sequences->begin(p, tokens);
    if constexpr (kSharesChunks) ask_for_numbers();
    const index_t first_vector = share.number(p) * p.dim + share.first_channel;
    ChannelSums<Shape, kConstantB, kConstantC> channel_sums;
    channel_sums.begin(p, share, lane, warp);
    if (Traits::kKeepsPlace && threadIdx.x == 0) shared.matrices = channel_sums.matrices;
    TokenSums<Shape> token_sums;
    token_sums.begin(p, first_vector, kManyStates, lane, warp);
    OwnEnds ends;
    if constexpr (kSharesChunks) ask_for_rows();
    if constexpr (kHasStates) sequences->fetch(p, share.first_channel, lane, warp);
    if constexpr (kByChannel) {
        rows.turn_group(share, kGroup);
        rows.take_turned(own, 0);
    }
    rows.prepare(own, bias.to_float(p.delta_bias_is_float32), ends, shared);
    if constexpr (kArrivesLater<kSharesChunks, kByState>) wait_for_copies();
    const input_t* fetched_from = nullptr;
    if constexpr (Traits::kIsAhead && !kManyStates) fetched_from = rows.fetched_from(1);
    // The channel whose last states the step before has taken, or -1.
    int done = -1;
    while (steps.has(now)) {
        const Step next = steps.after(now);
        const bool has_next = steps.has(next);
        LaneTokens<Shape> lanes = {lane};
        if (kManyStates && steps.is_first_of_run(now)) take_matrices(now.first_state);
        if (kHasStates) wait_for_copies();
        __syncthreads();
        if (!kByChannel && has_next) {
            if constexpr (Traits::kIsAhead) {
                if (kManyStates) fetched_from = rows.fetched_from(next.channel);
                rows.template fetch<true>(fetched_from, shared);
            } else if constexpr (!Traits::kIsLate) {
                rows.load(own, next.channel);
            }
        }
        lanes.template take<kSharesChunks>(shared, shared);
        // The next numbers, but of what another block still computes this one: it is needed later. delta_bias and D
        // come with every one of them.
        const float number = place.to_float(bits);
        bits = place.load_next(share, now, next, steps.after(next), p.d_state);
        auto& scan = shared.warps[warp].scan;
        StatesPass<Shape, Numbers, kConstantB, kConstantC, kManyStates || Traits::kIsTight || kHasStates,
                   Traits::kIsTight, kHasStates>
            pass;
        pass.sequences = sequences;
        pass.begin(lanes, shared, number, warp * kStates, scan);
        if (Traits::kKeepsPlace) channel_sums.matrices = as_global(shared.matrices);
        if (kManyStates && steps.is_first_of_run(now)) channel_sums.load(p, now.first_state, now.channel > 0);
        channel_sums.clear_constants();
        typename WarpScan<kStates>::Links links;
        scan.take(lane, links);
        scan.join(lane, links);
        if (!kManyStates || done >= 0) token_sums.store(done < 0 ? done : share.channel(done));
        const float seed = place.template seed<false>(share, number, bits, now);
        const float before = scan.run(lane, links, seed);
        place.hand_over(p, share, tokens, now, before);
        place.advance();
        float sums[kStates];
        pass.finish(lanes, shared, number, warp * kStates, scan, channel_sums, sums);
        if constexpr (kHasStates) {
            sync_warp();
            sequences->store_gradients(p, shared.dt, Numbers::A(number, lane % kStates),
                                       share.first_channel + share.channel(now.channel), lane, warp);
        }
        if (Traits::kKeepsPlace) channel_sums.matrices = as_global(shared.matrices);
        if (kManyStates && steps.is_last_of_run(next)) channel_sums.store(p, now.first_state);
        const index_t n = now.first_state + warp * kStates + lane,
                      at = (first_vector + share.channel(now.channel)) * p.d_state + n;
        const bool is_stored = lane < kStates && n < p.d_state;
        if (kManyStates) store_over_lanes(sums, p.scratch + p.rates_at + at, is_stored);
        if (kConstantB) store_over_tokens(channel_sums.dB, p.scratch + p.constants_at + at, is_stored);
        if (kConstantC) store_over_tokens(channel_sums.dC, p.scratch + p.more_constants_at + at, is_stored);
        token_sums.take(sums);
        sync_warp();
        lanes.put_sums(shared.warps[warp].sums);
        if (Traits::kIsAhead) wait_for_copies();
        __syncthreads();
        if constexpr (kHasStates) {
            if (has_next) sequences->fetch(p, share.first_channel + share.channel(next.channel), lane, warp);
        }
        if constexpr (Traits::kIsLate && !kByChannel) rows.load(own, has_next ? next.channel : now.channel);
        const bool is_last = steps.is_last(now);
        rows.finish(shared, ends, now.channel, from_lane(number, Numbers::kDLane), token_sums.parts[kStates],
                    token_sums.parts[kStates + 1], kManyStates ? kept->of[now.channel % kGroup] : nullptr,
                    now.first_state == 0, is_last);
        done = is_last ? now.channel : -1;
        if constexpr (kByChannel) {
            if (is_last && steps.is_last_of_run(next)) {
                rows.flush_group(share, now.channel);
                if (has_next) rows.turn_group(share, next.channel + kGroup);
            }
            rows.take_turned(own, has_next ? next.channel : now.channel);
        }
        // Behind the last channel this prepares what nothing looks at.
        if constexpr (Traits::kIsAhead) rows.take_fetched(own, shared);
        rows.prepare(own, from_lane(number, Numbers::kBiasLane), ends, shared);
        now = next;
    }
    token_sums.store(done < 0 ? done : share.channel(done));
    if (Traits::kKeepsPlace) channel_sums.matrices = as_global(shared.matrices);
    if (!kManyStates) channel_sums.store(p, 0);
}
