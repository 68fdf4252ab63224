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
// one number each; selective_scan_bwd_matrices and selective_scan_bwd_parameters add these in a fixed order.
// Packed sequences begin chunks of their own or share them: then a chunk goes on from the one before it, and where a
// sequence begins nothing goes over. What it begins and ends with is added to what tokens bring (scan_bwd_ends.cuh).
//
// For every channel, a thread prepares two tokens, each warp takes its states through all of them, forward and back
// (scan_bwd_states.cuh), and the thread finishes its two tokens with the sums of all warps (scan_bwd_tokens.cuh).
//
// The four states are computed interleaved, which takes registers that leave room for two blocks per multiprocessor: on
// an H200 629 us (batch 1, dim 5120, seqlen 4096, bfloat16) instead of 692 in three blocks, which compute decays twice.
//
// input_t      u, delta, z, dout, variable B and C, and their gradients
// kVec         tokens per access, 0 where they may be apart           kManyStates  whether d_state exceeds 16
// kConstantB   whether B is (dim, d_state)                            kConstantC   whether C is
// kSharesChunks  whether packed sequences share chunks                kHasStates   whether these have states
#include "selective_scan/scan_bwd_ends.cuh"
#include "selective_scan/scan_bwd_numbers.cuh"
#include "selective_scan/scan_bwd_states.cuh"
#include "selective_scan/scan_bwd_tokens.cuh"

struct SelectiveScanBwdParams {
    SelectiveScanBwdOperands operands;
};

template <typename input_t, int kVec, bool kManyStates, bool kConstantB, bool kConstantC, bool kSharesChunks,
          bool kHasStates>
struct SelectiveScanBwdTraits {
    static constexpr int kThreads = 128;
    using Shape = ChunkShape<input_t>;
    static constexpr int kMinBlocks = 2;
    // Whether tokens are on their way to shared memory while the channel before them is walked.
    static constexpr bool kIsAhead = sizeof(input_t) == 2 && kVec == 2;
    static constexpr bool kIsVariable = !kConstantB && !kConstantC;
    // Whether a thread would spill (16 to 124 bytes) without taking again what shared memory has: chosen by what the
    // compiler reports, not timed. bfloat16 of many states fits in 255 registers as it is.
    static constexpr bool kIsTight = kManyStates ? !(kIsVariable && kIsSame<input_t, __nv_bfloat16>)
                                                 : kIsVariable && sizeof(input_t) == 4 && (kVec != 2 || kSharesChunks);
    // Whether shared memory keeps the place of sums over channels, which saves the spills of most types with states.
    static constexpr bool kKeepsPlace = kIsTight || kHasStates;
    // Whether the next channel's tokens are loaded only behind the walk of this one: a wait for memory each channel.
    static constexpr bool kIsLate = kIsTight && !kManyStates && kVec == 0 && !kHasStates;
    // The shared memory of kHasStates, for SequenceEnds.
    static constexpr int kDynamicBytes = 45072;
    static_assert(kThreads == Shape::kThreads && kDynamicBytes == sizeof(SequenceEnds<Shape>));
    static_assert(!kHasStates || (kSharesChunks && !kManyStates));
};

template <typename input_t, int kVec, bool kManyStates, bool kConstantB, bool kConstantC, bool kSharesChunks,
          bool kHasStates,
          typename Traits =
              SelectiveScanBwdTraits<input_t, kVec, kManyStates, kConstantB, kConstantC, kSharesChunks, kHasStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_bwd_kernel(const SelectiveScanBwdParams params) {
    using Shape = typename Traits::Shape;
    using Numbers = LaneNumber<Shape, kManyStates, kConstantB, kConstantC, kSharesChunks>;
    using Shared = BwdShared<Shape, Traits::kIsAhead>;
    constexpr int kStates = Shape::kStates;
    const SelectiveScanBwdOperands& p = params.operands;
    __shared__ Shared shared;
    extern __shared__ __align__(16) unsigned char dynamic[];
    SequenceEnds<Shape>* const sequences = kHasStates ? reinterpret_cast<SequenceEnds<Shape>*>(dynamic) : nullptr;
    if (threadIdx.x == 0) shared.number = next_number(p.scratch + kBwdCounter);
    __syncthreads();
    const ChunkShare share(p, shared.number, true);
    const ChunkTokens tokens(p, share.batch, share.chunk, kSharesChunks);
    // In a register: read again and again, the special register is a wait each time.
    const int thread = opaque(static_cast<int>(threadIdx.x)), lane = thread % kWarpSize, warp = thread / kWarpSize;
    // Its sums are zeros, which selective_scan_bwd_start has left.
    if (tokens.is_unused()) return;
    const OwnRows<Shape, Shared, kVec, Traits::kIsAhead, Traits::kIsLate, kSharesChunks> rows = {p, shared, tokens.live,
                                                                                                 tokens.stored, thread};
    rows.begin(share, tokens);
    if constexpr (Traits::kIsAhead) rows.clear(shared);
    const input_t* const B =
        static_cast<const input_t*>(p.B) + share.batch * p.B_stride[0] + share.group * p.B_stride[1];
    const input_t* const C =
        static_cast<const input_t*>(p.C) + share.batch * p.C_stride[0] + share.group * p.C_stride[1];
    if (!kManyStates) {
        if (!kConstantB) take_chunk<Shape, kSharesChunks>(shared.B, B, p.B_stride, 0, p.d_state, tokens);
        if (!kConstantC) take_chunk<Shape, kSharesChunks>(shared.C, C, p.C_stride, 0, p.d_state, tokens);
    }
    if (kSharesChunks) shared.cuts.find(p, tokens);
    if constexpr (kHasStates) sequences->begin(p, tokens);
    Numbers place;
    place.begin(p, share, tokens);
    RawNumber<input_t> bias;
    if (p.delta_bias != nullptr) {
        bias.load(p.delta_bias, share.first_channel * p.delta_bias_stride, p.delta_bias_is_float32);
    }
    unsigned bits = share.channels > 0 ? place.load_first(p.d_state) : 0;
    const index_t first_vector = share.number(p) * p.dim + share.first_channel;
    ChannelSums<Shape, kConstantB, kConstantC> channel_sums;
    channel_sums.begin(p, share, lane, warp);
    if (Traits::kKeepsPlace && threadIdx.x == 0) shared.matrices = channel_sums.matrices;
    TokenSums<Shape> token_sums;
    token_sums.begin(p, first_vector, kManyStates, lane, warp);
    OwnTokens<input_t> own;
    OwnEnds ends;
    __syncthreads();
    if constexpr (kHasStates) sequences->fetch(p, share.first_channel, lane, warp);
    rows.load(own, 0);
    rows.prepare(own, bias.to_float(p.delta_bias_is_float32), ends, shared);
    const input_t* fetched_from = nullptr;
    if constexpr (Traits::kIsAhead) fetched_from = rows.fetched_from(1);
    for (int i = 0; i < share.channels; ++i) {
        const bool has_next = i + 1 < share.channels;
        LaneTokens<Shape> lanes = {lane};
        // Those of the last states under way; delta_bias and D come with every one of them.
        float number;
        for (int first_state = 0; first_state < (kManyStates ? p.d_state : 1); first_state += kBlockStates) {
            if (kManyStates) {
                if (!kConstantB)
                    take_chunk<Shape, kSharesChunks>(shared.B, B, p.B_stride, first_state, p.d_state, tokens);
                if (!kConstantC)
                    take_chunk<Shape, kSharesChunks>(shared.C, C, p.C_stride, first_state, p.d_state, tokens);
            }
            if (kHasStates) wait_for_copies();
            __syncthreads();
            const bool is_last = !kManyStates || first_state + kBlockStates >= p.d_state;
            if (first_state == 0) {
                if (has_next) {
                    if constexpr (Traits::kIsAhead) {
                        rows.template fetch<true>(fetched_from, shared);
                    } else if constexpr (!Traits::kIsLate) {
                        rows.load(own, i + 1);
                    }
                }
                lanes.template take<kSharesChunks>(shared, shared);
            }
            // The next numbers, but of what another block still computes this one: it is needed later.
            number = place.to_float(bits);
            bits = place.load_next(i, first_state, is_last, p.d_state);
            auto& scan = shared.warps[warp].scan;
            StatesPass<Shape, Numbers, kConstantB, kConstantC, kManyStates || Traits::kIsTight || kHasStates,
                       Traits::kIsTight, kHasStates>
                pass;
            pass.sequences = sequences;
            pass.begin(lanes, shared, number, warp * kStates, scan);
            if (Traits::kKeepsPlace) channel_sums.matrices = as_global(shared.matrices);
            if (kManyStates) channel_sums.load(p, first_state, i > 0);
            if (!kManyStates) channel_sums.clear_constants();
            typename WarpScan<kStates>::Links links;
            scan.take(lane, links);
            scan.join(lane, links);
            if (first_state == 0) token_sums.store(i - 1);
            const float seed = place.template seed<false>(number, bits, first_state);
            const float before = scan.run(lane, links, seed);
            place.hand_over(p, tokens, share.first_channel + i, first_state, before);
            if (is_last) place.advance();
            float sums[kStates];
            pass.finish(lanes, shared, number, warp * kStates, scan, channel_sums, sums);
            if constexpr (kHasStates) {
                sync_warp();
                sequences->store_gradients(p, shared.dt, Numbers::A(number, lane % kStates), share.first_channel + i,
                                           lane, warp);
            }
            if (Traits::kKeepsPlace) channel_sums.matrices = as_global(shared.matrices);
            if (kManyStates) channel_sums.store(p, first_state);
            const index_t n = first_state + warp * kStates + lane, at = (first_vector + i) * p.d_state + n;
            const bool is_stored = lane < kStates && n < p.d_state;
            if (kManyStates) store_over_lanes(sums, p.scratch + p.rates_at + at, is_stored);
            if (kConstantB) store_over_tokens(channel_sums.dB, p.scratch + p.constants_at + at, is_stored);
            if (kConstantC) store_over_tokens(channel_sums.dC, p.scratch + p.more_constants_at + at, is_stored);
            token_sums.take(sums);
            if (is_last) {
                sync_warp();
                lanes.put_sums(shared.warps[warp].sums);
                if (Traits::kIsAhead) wait_for_copies();
            }
            __syncthreads();
        }
        if constexpr (kHasStates) {
            if (has_next) sequences->fetch(p, share.first_channel + i + 1, lane, warp);
        }
        if constexpr (Traits::kIsLate) rows.load(own, has_next ? i + 1 : i);
        rows.finish(shared, ends, i, from_lane(number, Numbers::kDLane), token_sums.parts[kStates],
                    token_sums.parts[kStates + 1]);
        // Behind the last channel this prepares what nothing looks at.
        if constexpr (Traits::kIsAhead) rows.take_fetched(own, shared);
        rows.prepare(own, from_lane(number, Numbers::kBiasLane), ends, shared);
    }
    token_sums.store(share.channels - 1);
    if (Traits::kKeepsPlace) channel_sums.matrices = as_global(shared.matrices);
    if (!kManyStates) channel_sums.store(p, 0);
}
