// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that, for rows of contiguous tokens with up to four states, which need not be aligned.
//
// Layout: u, delta, z and out (batch, dim, seqlen), B and C (batch, ngroups, d_state, seqlen), tokens contiguous. Eight
// lanes own a channel of a row, and each lane eight consecutive tokens of a tile with all states, so that it loads,
// prepares and finishes them alone: lanes hand each other only the states between their tokens. B and C come from the
// L1 cache, where the channels of a block find them together. On an H200 64 x 1536 rows of 196 tokens with one state
// take 66 us so, and 154 where a lane walks a row alone; of 49 tokens, twice as many rows, 58 and 141.
//
// input_t  u, delta, z, out, B and C    kVec  tokens an access    kStates  d_state or more
#include "common/activation.cuh"
#include "common/tokens.cuh"
#include "common/warp.cuh"
#include "selective_scan/scan_segments.cuh"

struct SelectiveScanFewStatesFwdParams {
    SelectiveScanOperands operands;
};

template <typename input_t, int kVec, int kStates>
struct SelectiveScanFewStatesFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kLanes = 8;                     // per channel
    static constexpr int kTokens = 8;                    // per lane of a tile
    static constexpr int kChannels = kThreads / kLanes;  // per block
    static constexpr int kBlocksOf1 = 6;
    static constexpr int kBlocksOfMore = 5;
    static constexpr int kMinBlocks = kStates == 1 ? kBlocksOf1 : kBlocksOfMore;
};

template <typename input_t, int kVec, int kStates,
          typename Traits = SelectiveScanFewStatesFwdTraits<input_t, kVec, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_few_states_fwd_kernel(const SelectiveScanFewStatesFwdParams params) {
    using T = input_t;
    using Segment = ScanSegment<Traits>;
    constexpr int kLanes = Traits::kLanes, kTokens = Traits::kTokens, kTile = kLanes * kTokens;
    static_assert(Segment::kChunk % kTile == 0);
    constexpr int kAtOnce = kStates < 2 ? kStates : 2;  // states that a lane computes interleaved
    using Own = Tokens<T, kTokens, kVec>;
    const SelectiveScanOperands& p = params.operands;
    const Segment segment(p);
    const int lane = static_cast<int>(threadIdx.x) % kLanes, first = lane * kTokens;
    const int number = segment.first_channel + static_cast<int>(threadIdx.x) / kLanes;
    // Lanes beyond the last channel repeat its work and store nothing.
    const index_t batch = segment.batch, channel = min(number, p.dim - 1);
    const bool is_idle = number >= p.dim;
    const auto place = [&](const index_t* stride, index_t number) {
        return batch * stride[0] + number * stride[1] + first;
    };
    const index_t group = divide(static_cast<unsigned>(channel), p.group_dim).quotient;
    const T* const u = static_cast<const T*>(p.u) + place(p.u_stride, channel);
    const T* const delta = static_cast<const T*>(p.delta) + place(p.delta_stride, channel);
    const T* const z = static_cast<const T*>(p.z) + place(p.z_stride, channel);
    const T* const B = static_cast<const T*>(p.B) + place(p.B_stride, group);
    const T* const C = static_cast<const T*>(p.C) + place(p.C_stride, group);
    T* const out = static_cast<T*>(p.out) + place(p.out_stride, channel);
    int live = p.seqlen - first;  // tokens of the row from this lane's first one of the tile on
    Own next_u, next_delta, next_z;
    next_z.clear();
    next_u.load_front(u, live);
    next_delta.load_front(delta, live);
    if (p.z != nullptr) next_z.load_front(z, live);
    RawNumber<T> raw_d, raw_bias;
    if (p.D != nullptr) raw_d.load(p.D, channel * p.D_stride, p.D_is_float32);
    if (p.delta_bias != nullptr) raw_bias.load(p.delta_bias, channel * p.delta_bias_stride, p.delta_bias_is_float32);
    float rate[kStates], state[kStates];
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
        rate[n] = state[n] = 0.0f;
        if (n >= p.d_state) continue;
        rate[n] = load<1>(static_cast<const float*>(p.A) + channel * p.A_stride[0] + n * p.A_stride[1]).to_float(0);
        if (p.initial_state != nullptr) {
            const index_t* const stride = p.initial_state_stride;
            const float* const at = p.initial_state + batch * stride[0] + channel * stride[1] + n * stride[2];
            state[n] = load<1, Memory::kMutable>(at).to_float(0);
        }
    }
#pragma unroll
    for (int n = 0; n < kStates; ++n) rate[n] *= kLog2E;
    const auto leave_states = [&](float* to, const index_t* stride) {
        if (is_idle) return;
#pragma unroll
        for (int n = 0; n < kStates; ++n) {
            if (n < p.d_state && lane == n) to[channel * stride[0] + n * stride[1]] = state[n];
        }
    };
    const float D = raw_d.to_float(p.D_is_float32), bias = raw_bias.to_float(p.delta_bias_is_float32);
    for (int tile = 0; tile < p.seqlen; tile += kTile, live -= kTile) {
        if (p.chunk_states != nullptr && tile % Segment::kChunk == 0) {
            const index_t* const stride = p.chunk_states_stride;
            leave_states(p.chunk_states + batch * stride[0] + tile / Segment::kChunk * stride[1], stride + 2);
        }
        const Own own_u = next_u, own_delta = next_delta, own_z = next_z;
        if (const int next = tile + kTile; next < p.seqlen) {
            next_u.load_front(u + next, live - kTile);
            next_delta.load_front(delta + next, live - kTile);
            if (p.z != nullptr) next_z.load_front(z + next, live - kTile);
        }
        float dt[kTokens], dt_u[kTokens], y[kTokens], sum = 0.0f;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            dt[t] = own_delta.to_float(t) + bias;
            if (p.delta_softplus) dt[t] = softplus(dt[t]);
            if (t >= live) dt[t] = 0.0f;
            dt_u[t] = dt[t] * own_u.to_float(t);
            sum += dt[t];
            y[t] = 0.0f;
        }
#pragma unroll
        for (int n = 0; n < kStates; n += kAtOnce) {
            Own b[kAtOnce], c[kAtOnce];
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                b[s].clear();
                c[s].clear();
                if (n + s >= p.d_state) continue;
                b[s].load_front(B + (n + s) * p.B_stride[2] + tile, live);
                c[s].load_front(C + (n + s) * p.C_stride[2] + tile, live);
            }
            float before[kAtOnce], begin[kAtOnce], h[kAtOnce], whole[kAtOnce];
            float decay[kAtOnce][kTokens], input[kAtOnce][kTokens];
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                before[s] = state[n + s];
                h[s] = 0.0f;
                whole[s] = exp2_approx(sum * rate[n + s]);
            }
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
#pragma unroll
                for (int s = 0; s < kAtOnce; ++s) {
                    decay[s][t] = exp2_approx(dt[t] * rate[n + s]);
                    input[s][t] = dt_u[t] * b[s].to_float(t);
                    h[s] = fmaf(h[s], decay[s][t], input[s][t]);
                }
            }
            scan_over_lanes<kLanes>(whole, before, h, begin);
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) state[n + s] = from_group_lane<kLanes>(h[s], kLanes - 1);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
#pragma unroll
                for (int s = 0; s < kAtOnce; ++s) {
                    begin[s] = fmaf(begin[s], decay[s][t], input[s][t]);
                    y[t] = fmaf(c[s].to_float(t), begin[s], y[t]);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            // Without D not with 0 * u, which for an infinite u is NaN.
            if (p.D != nullptr) y[t] = fmaf(D, own_u.to_float(t), y[t]);
            if (p.z != nullptr) y[t] *= silu_gate(own_z.to_float(t));
        }
        if (!is_idle) store_front<kVec>(out + tile, live, y);
    }
    if (p.last_state != nullptr) leave_states(p.last_state + batch * p.last_state_stride[0], p.last_state_stride + 1);
}
