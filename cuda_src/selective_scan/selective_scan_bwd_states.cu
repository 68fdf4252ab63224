// The states before chunks of 256 tokens, for the backward pass of a scan that has left none.
//
// Layout: as selective_scan_bwd's, but chunks go forward: a block waits for the states behind the chunk before.
//
// input_t  u, delta and variable B    kConstantB  whether B is (dim, d_state)
#include "selective_scan/scan_bwd.cuh"

struct SelectiveScanBwdStatesParams {
    SelectiveScanBwdOperands operands;
};

template <typename input_t, bool kConstantB>
struct SelectiveScanBwdStatesTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 6;
    using Shape = ChunkShape<input_t>;
    static_assert(kThreads == Shape::kThreads);
};

template <typename Shape>
struct StatesShared {
    alignas(16) typename Shape::input_t B[kBlockStates][kChunk];
    alignas(16) float dt[Shape::kRow];
    alignas(16) float dt_u[Shape::kRow];
    ChunkRows<const typename Shape::input_t> u, delta;
    unsigned number;
};

template <typename input_t, bool kConstantB, typename Traits = SelectiveScanBwdStatesTraits<input_t, kConstantB>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_bwd_states_kernel(const SelectiveScanBwdStatesParams params) {
    using Shape = typename Traits::Shape;
    constexpr int kTokens = Shape::kTokens;
    constexpr int kStates = Shape::kStates;
    const SelectiveScanBwdOperands& p = params.operands;
    __shared__ StatesShared<Shape> shared;
    if (threadIdx.x == 0) shared.number = next_number(p.scratch + kStatesCounter);
    __syncthreads();
    const ChunkShare share(p, shared.number, false);
    const ChunkTokens tokens(p, share.batch, share.chunk);
    if (threadIdx.x == 0) {
        shared.u.begin(p.u, p.u_stride, share, tokens);
        shared.delta.begin(p.delta, p.delta_stride, share, tokens);
    }
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize, own_token = static_cast<int>(threadIdx.x) * Shape::kOwn;
    const input_t* const B =
        static_cast<const input_t*>(p.B) + share.batch * p.B_stride[0] + share.group * p.B_stride[1];
    // The states before this chunk, of the block's first channel; those behind it are those before the next.
    float* const before = p.scratch + p.states_at + (share.number(p) * p.dim + share.first_channel) * p.d_state;
    float* const behind = before + static_cast<index_t>(p.dim) * p.d_state;
    if (share.chunk + 1 >= p.chunks) return;
    __syncthreads();
    input_t u[Shape::kOwn], delta[Shape::kOwn];
    RawNumber<input_t> bias;
    // A channel's tokens are loaded while the one before it is walked.
    const auto load_tokens = [&](int i) {
        if (p.delta_bias != nullptr) {
            bias.load(p.delta_bias, (share.first_channel + i) * p.delta_bias_stride, p.delta_bias_is_float32);
        }
#pragma unroll
        for (int j = 0; j < Shape::kOwn; ++j) {
            const int token = own_token + j;
            u[j] = delta[j] = Dtype<input_t>::from_float(0.0f);
            if (token < tokens.live) {
                u[j] = __ldg(shared.u.place(i, token, p.u_stride[2]));
                delta[j] = __ldg(shared.delta.place(i, token, p.delta_stride[2]));
            }
        }
    };
    load_tokens(0);
    for (int i = 0; i < share.channels; ++i) {
        const int channel = share.first_channel + i;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < Shape::kOwn; ++j) {
            const int token = own_token + j, place = Shape::place(token, Shape::kGap);
            float dt = Dtype<input_t>::to_float(delta[j]) + bias.to_float(p.delta_bias_is_float32);
            if (p.delta_softplus) dt = softplus(dt);
            if (token >= tokens.live) dt = 0.0f;
            shared.dt[place] = dt;
            shared.dt_u[place] = dt * Dtype<input_t>::to_float(u[j]);
        }
        if (i + 1 < share.channels) load_tokens(i + 1);
        for (int first_state = 0; first_state < p.d_state; first_state += kBlockStates) {
            if (!kConstantB && (i == 0 || p.d_state > kBlockStates)) {
                __syncthreads();
                take_chunk<Shape>(shared.B, B, p.B_stride, first_state, p.d_state, tokens);
            }
            // What only this warp needs of its states is loaded before all wait for each other.
            const int first = first_state + warp * kStates;
            float rate[kStates];
            unsigned state_bits[kStates];
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                const int n = min(first + s, p.d_state - 1);
                rate[s] = __ldg(static_cast<const float*>(p.A) + channel * p.A_stride[0] + n * p.A_stride[1]) * kLog2E;
                const index_t* const stride = p.initial_state_stride;
                state_bits[s] = 0;
                if (tokens.live == 0) continue;
                if (!tokens.is_first) {
                    state_bits[s] = load_relaxed(before + i * p.d_state + n);
                } else if (p.initial_state != nullptr) {
                    state_bits[s] = __float_as_uint(
                        p.initial_state[tokens.sequence * stride[0] + channel * stride[1] + n * stride[2]]);
                }
            }
            __syncthreads();
            float dt[kTokens], dt_u[kTokens], steps = 0.0f;
            take_tokens<Shape, Shape::kGap>(shared.dt, lane_id(), dt);
            take_tokens<Shape, Shape::kGap>(shared.dt_u, lane_id(), dt_u);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) steps += dt[t];
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                const int n = min(first + s, p.d_state - 1);
                float b[kTokens];
                if constexpr (kConstantB) {
                    RawNumber<input_t> raw;
                    raw.load(p.B, channel * p.B_stride[1] + n * p.B_stride[2], p.B_is_float32);
#pragma unroll
                    for (int t = 0; t < kTokens; ++t) b[t] = raw.to_float(p.B_is_float32);
                } else {
                    MatrixTokens<Shape>(shared.B[n - first_state], lane_id()).to_floats(b);
                }
                float h[1] = {0.0f}, whole[1] = {exp2_approx(steps * rate[s])}, begin[1];
#pragma unroll
                for (int t = 0; t < kTokens; ++t) h[0] = fmaf(h[0], exp2_approx(dt[t] * rate[s]), dt_u[t] * b[t]);
                // The block of the chunk before may not have been there yet.
                const bool waits = tokens.live > 0 && !tokens.is_first;
                const float state[1] = {waits ? wait_for(before + i * p.d_state + n, state_bits[s])
                                              : __uint_as_float(state_bits[s])};
                scan_over_lanes<kWarpSize>(whole, state, h, begin);
                if (lane_id() == kWarpSize - 1 && first + s < p.d_state) {
                    hand_over(behind + i * p.d_state + n, h[0]);
                }
            }
        }
    }
}
