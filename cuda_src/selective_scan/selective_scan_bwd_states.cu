// The states before chunks of 256 tokens, for the backward pass of a scan that has left none.
//
// Layout: as selective_scan_bwd's, but chunks go forward: a block waits for the states behind the chunk before. A warp
// has 64 tokens of 16 states, a lane 8 consecutive tokens of 4 of those. Each channel's states go through the tokens of
// lanes, warps and blocks as if zeros came before them, and a few lanes put these ways together.
// Channels that are neighbours in memory come in groups. Of more than 16 states 16 are taken through all channels of a
// group before the next 16, for which B is loaded.
//
// input_t     u, delta and variable B           kByChannel     whether channels are neighbours, in whole groups
// kConstantB  whether B is (dim, d_state)       kSharesChunks  whether packed sequences share chunks
#include "selective_scan/scan_bwd_channels.cuh"

struct SelectiveScanBwdStatesParams {
    SelectiveScanBwdOperands operands;
};

// How the threads of a block divide a chunk.
template <typename T>
struct StatesShape {
    using input_t = T;
    static constexpr int kThreads = 128;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kWarpTokens = kChunk / kWarps;
    static constexpr int kTokens = 8;
    static constexpr int kTokenLanes = kWarpTokens / kTokens;  // that share the tokens of a state
    static constexpr int kStates = kBlockStates / (kWarpSize / kTokenLanes);
    static constexpr int kOwn = 2;  // consecutive tokens that a thread prepares
    // The two halves of a lane's tokens are apart, and so are the threads that read and write them in different banks.
    static constexpr int kHalf = kWarpTokens / 2;
    static constexpr int kMatrixHalf = kHalf;
    static constexpr int kGap = 16;
    static constexpr int kRow = 2 * kHalf + kGap;

    // Where a token of the warp is in a row of shared memory.
    __device__ __forceinline__ static int place(int token, int gap) {
        return token % kTokens / 4 * (kHalf + gap) + token / kTokens * 4 + token % 4;
    }

    // Where a token of the chunk is in a row of a matrix: 16-bit tokens of a lane are one vector.
    __device__ __forceinline__ static int matrix_place(int token) {
        return sizeof(T) == 4 ? token / kWarpTokens * kWarpTokens + place(token % kWarpTokens, 0) : token;
    }
};

template <typename input_t, bool kByChannel, bool kConstantB, bool kSharesChunks>
struct SelectiveScanBwdStatesTraits {
    static constexpr int kThreads = 128;
    static constexpr int kBlocks = 6;
    // Where sequences share chunks six take 1 % longer: on an H200 557 us instead of 552 for all gradients of 512
    // sequences of 8192 tokens. Groups of channels of floats leave no shared memory for six.
    static constexpr int kFewBlocks = 5;
    static constexpr int kMinBlocks = kSharesChunks || kByChannel ? kFewBlocks : kBlocks;
    using Shape = StatesShape<input_t>;
    static_assert(kThreads == Shape::kThreads);
};

struct NoGroup {};

template <typename Shape, bool kByChannel>
struct StatesShared {
    using Group = Select<kByChannel, ChannelGroup<typename Shape::input_t, 2, Shape::kThreads>, NoGroup>;
    static constexpr int kLinks = Shape::kTokenLanes;
    struct Warp {
        alignas(16) float dt[Shape::kRow];
        alignas(16) float dt_u[Shape::kRow];
        // What a lane's tokens make of a state, as factor and end; lanes of a quarter warp read different banks.
        alignas(16) float links[kBlockStates][2 * kLinks + 4];
    };
    alignas(16) typename Shape::input_t B[kBlockStates][kChunk];
    Warp warps[Shape::kWarps];
    alignas(16) float wholes[2][Shape::kWarps][2 * kBlockStates];  // the same of a warp's tokens
    ChunkRows<const typename Shape::input_t> u, delta;
    unsigned number;
    Group group;  // u and delta
};

template <typename input_t, bool kByChannel, bool kConstantB, bool kSharesChunks,
          typename Traits = SelectiveScanBwdStatesTraits<input_t, kByChannel, kConstantB, kSharesChunks>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_bwd_states_kernel(const SelectiveScanBwdStatesParams params) {
    using Shape = typename Traits::Shape;
    constexpr int kTokens = Shape::kTokens;
    constexpr int kStates = Shape::kStates;
    constexpr int kGroup = kGroupChannels<input_t>;
    const SelectiveScanBwdOperands& p = params.operands;
    __shared__ StatesShared<Shape, kByChannel> shared;
    if (threadIdx.x == 0) shared.number = next_number(p.scratch + kStatesCounter);
    __syncthreads();
    const ChunkShare<kByChannel ? kGroup : 0> share(p, shared.number, false);
    ChunkTokens tokens(p, share.batch, share.chunk, kSharesChunks);
    // Nothing waits for what comes behind the last chunk, nor behind one without tokens of a sequence.
    if (share.chunk + 1 >= p.chunks || tokens.live == 0) return;
    if (kSharesChunks) tokens.keep_last_sequence(p);
    if (threadIdx.x == 0) {
        shared.u.begin(p.u, p.u_stride, share, tokens);
        shared.delta.begin(p.delta, p.delta_stride, share, tokens);
    }
    const int thread = opaque(static_cast<int>(threadIdx.x)), lane = thread % kWarpSize, warp = thread / kWarpSize;
    const int token_lane = lane % Shape::kTokenLanes, first = lane / Shape::kTokenLanes * kStates;
    const int own_token = thread * Shape::kOwn, state = lane % kBlockStates;
    auto& own = shared.warps[warp];
    const input_t* const B =
        static_cast<const input_t*>(p.B) + share.batch * p.B_stride[0] + share.group * p.B_stride[1];
    // The states before this chunk, of the block's first channel; those behind it are those before the next.
    float* const before = p.scratch + p.states_at + (share.number(p) * p.dim + share.first_channel) * p.d_state;
    float* const behind = before + static_cast<index_t>(p.dim) * p.d_state;
    const bool many_states = p.d_state > kBlockStates;
    const auto take_matrix = [&](int first_state) {
        take_chunk<Shape, kSharesChunks, kByChannel>(shared.B, B, p.B_stride, first_state, p.d_state, tokens);
        if constexpr (kArrivesLater<kSharesChunks, kByChannel>) wait_for_copies();
        __syncthreads();
    };
    __syncthreads();
    // Starts to bring the group that begins with the block's i-th channel.
    const auto fetch = [&](int i) {
        if constexpr (kByChannel) {
            const auto has = [&](int j) { return tokens.has<kSharesChunks>(own_token + j); };
            if (i >= share.channels) return;
            shared.group.fetch(0, shared.u, p.u_stride[2], share.channel(i), thread, has);
            shared.group.fetch(1, shared.delta, p.delta_stride[2], share.channel(i), thread, has);
        }
    };
    // A channel's tokens are loaded while the one before it is walked.
    Vec<input_t, Shape::kOwn> u, delta;
    RawNumber<input_t> bias;
    const auto load_tokens = [&](int i, bool is_new_group) {
        if (p.delta_bias != nullptr) {
            bias.load(p.delta_bias, (share.first_channel + share.channel(i)) * p.delta_bias_stride,
                      p.delta_bias_is_float32);
        }
        if constexpr (kByChannel) {
            if (is_new_group) {
                wait_for_copies();
                shared.group.turn(thread);
                fetch(i + kGroup);
            }
            u = shared.group.take(0, i % kGroup, thread);
            delta = shared.group.take(1, i % kGroup, thread);
            return;
        }
        u = delta = Vec<input_t, Shape::kOwn>::zero();
#pragma unroll
        for (int j = 0; j < Shape::kOwn; ++j) {
            const int token = own_token + j;
            if (tokens.has<kSharesChunks>(token)) {
                u.put(j, __ldg(shared.u.place(i, token, p.u_stride[2])));
                delta.put(j, __ldg(shared.delta.place(i, token, p.delta_stride[2])));
            }
        }
    };
    // One number of each state: A, and a constant B.
    float A = 0.0f;
    RawNumber<input_t> constant;
    const auto load_numbers = [&](int i, int n) {
        const int channel = share.first_channel + share.channel(i);
        n = min(n, p.d_state - 1);
        A = __ldg(static_cast<const float*>(p.A) + channel * p.A_stride[0] + n * p.A_stride[1]);
        if (kConstantB) constant.load(p.B, channel * p.B_stride[1] + n * p.B_stride[2], p.B_is_float32);
    };
    const Steps<true, kGroup> steps = {share.channels, p.d_state};
    Step now = {0, 0};
    if constexpr (kByChannel) shared.group.clear(thread);
    fetch(0);
    load_numbers(0, state);
    load_tokens(0, true);
    for (int turn = 0; steps.has(now); ++turn) {
        const Step next = steps.after(now);
        // Behind the last one nothing looks at what is loaded.
        const int next_channel = steps.has(next) ? next.channel : now.channel;
        float own_dt[Shape::kOwn], own_dt_u[Shape::kOwn];
#pragma unroll
        for (int j = 0; j < Shape::kOwn; ++j) {
            own_dt[j] = delta.to_float(j) + bias.to_float(p.delta_bias_is_float32);
            if (p.delta_softplus) own_dt[j] = softplus(own_dt[j]);
            if (!tokens.has<kSharesChunks>(own_token + j)) own_dt[j] = 0.0f;
            own_dt_u[j] = own_dt[j] * u.to_float(j);
        }
        const int place = Shape::place(Shape::kOwn * lane, Shape::kGap);
        // All lanes have used the channel before.
        sync_warp();
        store_packed<Shape::kOwn>(own.dt + place, own_dt);
        store_packed<Shape::kOwn>(own.dt_u + place, own_dt_u);
        sync_warp();
        load_tokens(next_channel, next_channel / kGroup != now.channel / kGroup);
        float dt[kTokens], dt_u[kTokens], lane_steps = 0.0f;
        take_tokens<Shape, Shape::kGap>(own.dt, token_lane, dt);
        take_tokens<Shape, Shape::kGap>(own.dt_u, token_lane, dt_u);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) lane_steps += dt[t];
        // All warps have used the matrix of the states before: they have waited for each other since.
        if (!kConstantB && (turn == 0 || (many_states && steps.is_first_of_run(now)))) take_matrix(now.first_state);
        // One warp after the other goes on to the states behind the chunk.
        const int n = now.first_state + state;
        const bool is_turn = turn % Shape::kWarps == warp && lane < kBlockStates && n < p.d_state;
        const index_t at = share.channel(now.channel) * p.d_state + n;
        unsigned bits = 0;
        if (is_turn) {
            const index_t* const stride = p.initial_state_stride;
            if (!tokens.is_first) {
                bits = load_relaxed(before + at);
            } else if (p.initial_state != nullptr && (!kSharesChunks || tokens.sequence >= 0)) {
                const int channel = share.first_channel + share.channel(now.channel);
                bits =
                    __float_as_uint(p.initial_state[tokens.sequence * stride[0] + channel * stride[1] + n * stride[2]]);
            }
        }
        const float rates = A * kLog2E, constants = constant.to_float(p.B_is_float32);
        float rate[kStates], b[kTokens];
#pragma unroll
        for (int k = 0; k < kStates; ++k) rate[k] = from_lane(rates, first + k);
#pragma unroll
        for (int k = 0; k < kStates; ++k) {
            if constexpr (kConstantB) {
                b[0] = from_lane(constants, first + k);
#pragma unroll
                for (int t = 1; t < kTokens; ++t) b[t] = b[0];
            } else {
                const input_t* const row = shared.B[first + k] + warp * Shape::kWarpTokens;
                MatrixTokens<Shape>(row, token_lane).to_floats(b);
            }
            float link[2] = {exp2_approx(lane_steps * rate[k]), 0.0f};
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                const float decay = exp2_approx(dt[t] * rate[k]);
                link[1] = fmaf(link[1], decay, dt_u[t] * b[t]);
            }
            store_packed<2>(own.links[first + k] + 2 * token_lane, link);
        }
        load_numbers(next_channel, next.first_state + state);
        sync_warp();
        float whole[2] = {1.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < Shape::kTokenLanes; j += 2) {
            const auto two = load<4, Memory::kMutable>(own.links[state] + 2 * j);
            whole[1] = fmaf(whole[1], two.to_float(0), two.to_float(1));
            whole[1] = fmaf(whole[1], two.to_float(2), two.to_float(3));
            whole[0] *= two.to_float(0) * two.to_float(2);
        }
        // The next turn's warps put theirs where no warp of this turn looks.
        auto& wholes = shared.wholes[turn % 2];
        if (lane < kBlockStates) store_packed<2>(wholes[warp] + 2 * state, whole);
        __syncthreads();
        if (is_turn) {
            // The block of the chunk before may not have been there yet.
            float value = !tokens.is_first ? wait_for(before + at, bits) : __uint_as_float(bits);
#pragma unroll
            for (int w = 0; w < Shape::kWarps; ++w) {
                const auto part = load<2, Memory::kMutable>(wholes[w] + 2 * state);
                value = fmaf(part.to_float(0), value, part.to_float(1));
            }
            hand_over(behind + at, value);
        }
        now = next;
    }
}
